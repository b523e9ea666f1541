"""What an operator may set of the agent. TOML file, `--set key=value`, or nothing at all."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path

from ..fingerprints.settings import SettingsError, setting
from .hardware.roots import Roots

HOST_CHARACTERS_MAX = 253
#: RFC 1123, section 2.1; and underscores, which machines in service bear.
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_ADDRESS = re.compile(
    r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]):(?P<port>[0-9]{1,5})"
)
_PORTS = range(1, 65536)


def check_host(name: str) -> None:
    """Raise ValueError unless *name* can name a host; empty stands for the machine's own name."""
    labels = name.split(".")
    if name and (len(name) > HOST_CHARACTERS_MAX or not all(map(_LABEL.fullmatch, labels))):
        raise ValueError(
            f"a host name: at most {HOST_CHARACTERS_MAX} letters, digits, hyphens and underscores "
            "in parts of at most 63 set off by dots, as gpu-017.cluster"
        )


def check_address(address: str) -> None:
    """Raise ValueError unless *address* is `host:port`, a name, an IPv4 or a bracketed IPv6."""
    match = _ADDRESS.fullmatch(address)
    if not match or int(match["port"]) not in _PORTS:
        raise ValueError("host:port with a port of 1 to 65535, as 10.0.0.5:7600 or [fd00::5]:7600")


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The agent's settings. Made by `fingerprints.settings.load`, which checks each."""

    aggregator: str = setting(
        "127.0.0.1:7600", check=check_address, says="where the aggregator listens, host:port"
    )
    allow_plaintext: bool = setting(
        False, says="also send unencrypted to an aggregator that is not on this machine"
    )
    host: str = setting(
        "", check=check_host, says="this host's name in the fleet; empty: the machine's own"
    )
    spool_folder: Path = setting(  # noqa: RUF009 - a Path is immutable
        Path("var/agent/spool"), says="frames wait here until the aggregator has them for good"
    )
    events_folder: Path = setting(  # noqa: RUF009
        Path("var/agent/events"), says="events wait here until the aggregator has them for good"
    )
    state_folder: Path = setting(  # noqa: RUF009
        Path("var/agent/state"),
        says="what must be remembered over a restart, as the kernel log's place",
    )
    spool_bytes_max: int = setting(
        256 << 20, low=1 << 20, high=1 << 40, says="a spool this full forgets its oldest frames"
    )
    collectors_off: tuple[str, ...] = setting((), says="names of collectors that are not to run")
    sys_root: Path = setting(Path("/sys"), says="where the kernel shows its devices")  # noqa: RUF009
    proc_root: Path = setting(Path("/proc"), says="where the kernel shows its state")  # noqa: RUF009
    dev_root: Path = setting(Path("/dev"), says="where the device nodes are")  # noqa: RUF009
    run_root: Path = setting(Path("/run"), says="where services keep their sockets")  # noqa: RUF009
    nvml_library: str = setting(
        "", says="path or name of the NVML library; empty: the driver's libnvidia-ml.so.1"
    )
    probe_deadline_seconds: float = setting(
        3.0, low=0.1, high=60.0, says="a turn in a driver that takes longer is reported as hung"
    )
    probe_linger_seconds: float = setting(
        0.5, low=0.0, high=0.9, says="how long a second's frame waits for turns in drivers"
    )
    inventory_deadline_seconds: float = setting(
        30.0, low=1.0, high=300.0, says="the inventory's child is ended when it takes longer"
    )

    @property
    def host_name(self) -> str:
        """The name that this host goes by. Raises SettingsError if the machine's own cannot serve."""
        name = self.host or socket.gethostname()
        try:
            check_host(name)
        except ValueError as error:
            raise SettingsError(
                f"this machine's name {name!r} cannot serve; set host to {error}"
            ) from error
        return name

    @property
    def roots(self) -> Roots:
        """Where the collectors read."""
        return Roots(
            self.sys_root,
            self.proc_root,
            self.nvml_library or None,
            dev=self.dev_root,
            run=self.run_root,
            state=self.state_folder,
        )
