"""Settings of the agent, from a TOML file and `--set key=value`; every setting has a default."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from ..contract import topology
from ..contract.settings import SettingsError, constant, setting
from .hardware.files import Roots
from .spool.lockdir import MEMORY_FOLDER

#: Run folder of a service: systemd creates it (RuntimeDirectory=gangline) for the agent's user.
SERVICE_RUN_FOLDER = Path("/run/gangline")
#: Run folder of an agent started by hand with default settings, below its working folder.
DEFAULT_RUN_FOLDER = Path("var/agent/run")
SOCKET_NAME = "agent.sock"
STATUS_NAME = "status.json"

HOST_CHARACTERS_MAX = 253
#: RFC 1123, section 2.1, and underscores, which existing machines use.
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_ADDRESS = re.compile(
    r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]):(?P<port>[0-9]{1,5})"
)
_PORTS = range(1, 65536)
#: Limits of the labels that an operator sets.
LABELS_MAX, LABEL_CHARACTERS_MAX = 16, 512
_RAILS = f"{topology.LABEL_PREFIX}rails"
_LABEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
#: Size of sun_path (unix(7)) without the zero at its end.
UNIX_PATH_BYTES_MAX = 107
#: Values of the setting `dcgm`.
DCGM_MODES = ("off", "listen", "watch")
METRICS_NAMES = ("gangline", "dcgm", "dcgm-4.8", "dcgm-4.9")


def choose_run_folder(
    configured: str, default: Path = DEFAULT_RUN_FOLDER, service: Path = SERVICE_RUN_FOLDER
) -> Path:
    """Return *configured*, else the service's run folder if writable, else *default*."""
    if configured:
        return Path(configured)
    return service if os.access(service, os.W_OK | os.X_OK) else default


def run_folder_candidates(setting: str = "") -> tuple[Path, ...]:
    """Return the folders where an agent may listen, the likeliest first. For clients."""
    return (Path(setting),) if setting else (SERVICE_RUN_FOLDER, DEFAULT_RUN_FOLDER)


def check_host(name: str) -> None:
    """Raise ValueError unless *name* can name a host; "" stands for the machine's own name."""
    labels = name.split(".")
    if name and (len(name) > HOST_CHARACTERS_MAX or not all(map(_LABEL.fullmatch, labels))):
        raise ValueError(
            f"a host name such as gpu-017.cluster: at most {HOST_CHARACTERS_MAX} letters, "
            "digits, hyphens and underscores, in parts of at most 63 separated by dots"
        )


def check_address(address: str) -> None:
    """Raise ValueError unless *address* is `host:port`: a name, IPv4 or bracketed IPv6."""
    match = _ADDRESS.fullmatch(address)
    if not match or int(match["port"]) not in _PORTS:
        raise ValueError("host:port with a port of 1 to 65535, as 10.0.0.5:7600 or [fd00::5]:7600")


def check_listen(where: str) -> None:
    """Raise ValueError unless *where* is `host:port`, `unix:PATH`, or "" (off)."""
    path = where.removeprefix("unix:")
    if path != where:
        if not path.startswith("/") or len(os.fsencode(path)) > UNIX_PATH_BYTES_MAX:
            raise ValueError(
                f"unix: and an absolute path of at most {UNIX_PATH_BYTES_MAX} bytes, "
                "as unix:/run/gangline/metrics.sock"
            )
    elif where:
        try:
            check_address(where)
        except ValueError as error:
            raise ValueError(f"nothing, unix:PATH, or {error}") from error


def check_dcgm(mode: str) -> None:
    """Raise ValueError unless *mode* is one of `DCGM_MODES`."""
    if mode not in DCGM_MODES:
        raise ValueError("off, listen or watch")


def check_dcgm_address(address: str) -> None:
    """Raise ValueError for an invalid address. Without one DCGM would start a host engine."""
    path = address.removeprefix("unix:")
    is_path = path.startswith("/") and len(os.fsencode(path)) <= UNIX_PATH_BYTES_MAX
    try:
        if path == address:
            check_address(address)
        elif not is_path:
            raise ValueError
    except ValueError:
        raise ValueError(
            "host:port, as localhost:5555, or unix: and an absolute path, as unix:/run/nv-hostengine.sock"
        ) from None


def check_metrics_names(names: str) -> None:
    """Raise ValueError unless *names* is one of `METRICS_NAMES`."""
    if names not in METRICS_NAMES:
        raise ValueError(
            "gangline; or dcgm, dcgm-4.8 or dcgm-4.9 for the names of a dcgm-exporter beside them"
        )


def check_labels(labels: tuple[str, ...]) -> None:
    """Raise ValueError unless each label is NAME=VALUE, and names are unique."""
    names = [label.partition("=")[0] for label in labels]
    if len(labels) > LABELS_MAX or len({*names}) < len(names) or not all(map(_is_label, labels)):
        raise ValueError(
            f"up to {LABELS_MAX} of NAME=VALUE, each name once, as gangline.rack=r12 "
            f"(values of 1 to {LABEL_CHARACTERS_MAX} printable characters)"
        )


def label_error(label: str) -> str:
    """Return why the aggregator ignores this gangline label; "" for an accepted or foreign label.

    Not an error at start: otherwise newer settings would stop older agents of the fleet.
    """
    name = label.partition("=")[0]
    known = [topology.LABEL_PREFIX + field for field in topology.FIELDS]
    if name.startswith(topology.LABEL_PREFIX) and name not in known:
        return f"{name}: expected one of {', '.join(known)}"
    if name in known and not _is_accepted_label(label):
        return (
            f"{name}: expected at most {topology.NAME_CHARACTERS_MAX} characters "
            f"(of {_RAILS} up to {topology.RAILS_MAX} such names)"
        )
    return ""


def _is_accepted_label(label: str) -> bool:
    """Return whether an aggregator accepts the label's whole value."""
    name, _, value = label.partition("=")
    names = value.split() if name == _RAILS else [value]
    fit = (len(part) <= topology.NAME_CHARACTERS_MAX for part in names)
    return len(names) <= topology.RAILS_MAX and all(fit)


def _is_label(text: str) -> bool:
    name, _, value = text.partition("=")
    good = 0 < len(value) <= LABEL_CHARACTERS_MAX and value.isprintable()
    return good and _LABEL_NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The agent's settings, created and checked by `contract.settings.load`."""

    aggregator: str = setting(
        "127.0.0.1:7600", check=check_address, description="address of the aggregator, host:port"
    )
    allow_plaintext: bool = setting(
        False, description="allow an unencrypted connection to an aggregator on another machine"
    )
    host: str = setting(
        "",
        check=check_host,
        description="this host's name in the fleet; empty: the machine's host name",
    )
    labels: tuple[str, ...] = setting(
        (),
        check=check_labels,
        description=(
            "labels NAME=VALUE of this host; its place: gangline.rack, .power_domain, "
            ".cooling_domain, .leaf, .spine, .core, .nvlink_domain, .nvlink_subdomain, .rails"
        ),
    )
    spool_folder: Path = setting(  # noqa: RUF009 - a Path is immutable
        Path("var/agent/spool"),
        description="folder where frames wait until the aggregator has stored them",
    )
    spool_head_folder: str = setting(
        str(MEMORY_FOLDER),
        description=(
            "folder in memory where frames wait while the aggregator acknowledges them; after "
            "20 s without a receipt they move to the spool folder; empty: frames go to the "
            "spool folder immediately"
        ),
    )
    events_folder: Path = setting(  # noqa: RUF009
        Path("var/agent/events"),
        description="folder where events wait until the aggregator has stored them",
    )
    state_folder: Path = setting(  # noqa: RUF009
        Path("var/agent/state"),
        description="folder for state that must survive a restart, such as the position in the kernel log",
    )
    run_folder: str = setting(
        "",
        description=(
            "folder of agent.sock and status.json, for callers on this host; empty: "
            "/run/gangline if it exists and is writable, else `run` beside the state folder"
        ),
    )
    policy_file: str = setting(
        "",
        description=(
            "a policy of findings in TOML that overrides the built-in one; empty: only the "
            "built-in policy"
        ),
    )
    enforcing: tuple[str, ...] = setting(
        (),
        description=(
            "names of findings for which `gangline check` may exit with 10 while a permit of "
            "the aggregator is in force, for example xid79; none: report-only"
        ),
    )
    spool_bytes_max: int = setting(
        256 << 20,
        low=1 << 20,
        high=1 << 40,
        description="maximum size of the spool; beyond the limit the oldest frames are dropped",
    )
    recordings_folder: str = setting(
        "",
        description=(
            "folder of the recordings around findings (docs/recordings.md); empty: "
            "`recordings` beside the state folder"
        ),
    )
    recordings_bytes_max: int = setting(
        64 << 20,
        low=0,
        high=1 << 34,
        description=(
            "maximum size of all recordings; beyond the limit the oldest are deleted; 0: none "
            "is stored"
        ),
    )
    collectors_off: tuple[str, ...] = setting((), description="names of collectors to turn off")
    sys_root: Path = setting(Path("/sys"), description="folder where sysfs is mounted")  # noqa: RUF009
    proc_root: Path = setting(Path("/proc"), description="folder where procfs is mounted")  # noqa: RUF009
    dev_root: Path = setting(Path("/dev"), description="folder of the device nodes")  # noqa: RUF009
    run_root: Path = setting(Path("/run"), description="folder where services keep their sockets")  # noqa: RUF009
    nvml_library: str = setting(
        "", description="path or name of the NVML library; empty: the driver's libnvidia-ml.so.1"
    )
    dcgm: str = setting(
        "listen",
        check=check_dcgm,
        description=(
            "what the agent reads from a running DCGM host engine; off: nothing; listen: the "
            "fields that other clients watch; watch: the agent adds its own watches "
            "(docs/hardware.md)"
        ),
    )
    dcgm_address: str = setting(
        "localhost:5555",
        check=check_dcgm_address,
        description="address of DCGM's host engine, host:port or unix:PATH; the agent never starts one",
    )
    dcgm_library: str = setting(
        "",
        description="path or name of DCGM's client library; empty: libdcgm.so.4, else libdcgm.so.3",
    )
    probe_deadline_seconds: float = constant(
        0.9, "a healthy driver answers in a fraction of 0.9 s, and a frame is due each second"
    )
    probe_linger_seconds: float = constant(0.5, "it follows from the time of a frame")
    read_ranks: bool = setting(
        False,
        description=(
            "a helper reads rank and world size from the environments of processes on GPUs: a "
            "fixed list of variables, nothing else (docs/jobs.md)"
        ),
    )
    inventory_deadline_seconds: float = constant(
        30.0, "the inventory takes a few seconds, and is tried again"
    )

    metrics_listen: str = setting(
        "",
        check=check_listen,
        description="address of /metrics, 127.0.0.1:9476 or unix:PATH, without a login; empty: off",
    )
    metrics_names: str = setting(
        "gangline",
        check=check_metrics_names,
        description=(
            "dcgm, dcgm-4.8 or dcgm-4.9: /metrics also shows the metrics of dcgm-exporter's default list, with the "
            "names, units and labels of its versions up to 4.8.2, of 4.8.3 and 4.8.4, or from 4.9 on"
        ),
    )
    metrics_series_max: int = setting(
        400,
        low=10,
        high=100_000,
        description="maximum number of series on /metrics; the most important come first",
    )

    tls_ca_file: str = setting(
        "",
        description="the CA of the aggregator's certificate, PEM; turns TLS on; empty: plain text",
    )
    tls_certificate_file: str = setting(
        "", description="this host's certificate, PEM, with which it logs in"
    )
    tls_key_file: str = setting("", description="its key, PEM, not encrypted")
    tls_server_name: str = setting(
        "", description="the name in the aggregator's certificate; empty: the one in `aggregator`"
    )
    token_file: str = setting(
        "", description="a file with this host's token, with which it logs in; empty: none"
    )

    @property
    def host_name(self) -> str:
        """This host's name in the fleet. Raises SettingsError for an invalid machine name."""
        name = self.host or socket.gethostname()
        try:
            check_host(name)
        except ValueError as error:
            raise SettingsError(
                f"this machine's name {name!r} is not a valid host name; set host to {error}"
            ) from error
        return name

    @property
    def spool_head_path(self) -> Path | None:
        """Folder of the memory tier; None: no memory tier."""
        return Path(self.spool_head_folder) if self.spool_head_folder else None

    @property
    def recordings_path(self) -> Path:
        """Folder of the recordings around findings."""
        return Path(self.recordings_folder or self.state_folder.parent / "recordings")

    @property
    def run_path(self) -> Path:
        return choose_run_folder(self.run_folder, self.state_folder.parent / "run")

    @property
    def roots(self) -> Roots:
        """Folders that the collectors read."""
        return Roots(
            self.sys_root,
            self.proc_root,
            self.nvml_library or None,
            dev=self.dev_root,
            run=self.run_root,
            state=self.state_folder,
            reads_ranks=self.read_ranks,
            dcgm=self.dcgm,
            dcgm_address=self.dcgm_address,
            dcgm_library=self.dcgm_library,
        )
