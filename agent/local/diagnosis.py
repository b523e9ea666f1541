"""Checks of `gangline doctor`: what works, what the agent cannot read, and how to enable it.

Each check is a function of a `DiagnosedHost`, listed in CHECKS. The checks use the status file of a
running agent; without an agent they read the sources themselves.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...contract.gpu_set import PASSTHROUGH_DRIVERS
from ..config import AgentConfig, label_error
from ..hardware import pci
from ..hardware.files import read_text
from ..hardware.kernel_clock import Timex, parse_timex
from ..hardware.nvidia import driver_gpus, kernel_driver_version
from ..registration import version
from ..transport.credentials import Credentials
from .check import SECOND_NS, format_duration
from .self_status import UnreadSources

OK, NOTE, BLIND, PROBLEM = "ok", "note", "blind", "problem"

#: Timeout of a connection to the aggregator.
CONNECT_SECONDS_MAX = 3.0
#: Days before its end at which a certificate is reported, as in the aggregator's log.
EXPIRY_DAYS = 14
DAY_SECONDS = 86_400
#: Free space for the next hour of an outage (assumed; an agent of 8 GPUs writes 10 MB an hour).
FREE_BYTES_MIN = 64 << 20
NAMES_SHOWN = 4
LIBRARY = "libnvidia-ml.so.1"
#: Library folders of distributions, NVIDIA's runfile and NVIDIA's container runtime.
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
)
_LIBRARY_VERSION = re.compile(r"libnvidia-ml\.so\.(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)")
#: Capability of the unit -> its number in include/uapi/linux/capability.h, and the loss without it.
CAPABILITIES = {
    "CAP_DAC_READ_SEARCH": (2, "RAPL, Lustre in debugfs, room below closed folders, NVMe controllers"),
    "CAP_SYS_PTRACE": (19, "which hung processes use a GPU, ranks of jobs"),
    "CAP_SYS_ADMIN": (21, "NVMe wear and media errors, MaxReadReq and ACS of PCIe, MIG instances of others"),
    "CAP_SYSLOG": (34, "the kernel log where kernel.dmesg_restrict is 1: XIDs, AER, machine checks"),
}  # fmt: skip
_EFFECTIVE = re.compile(r"^CapEff:\s*([0-9a-fA-F]{1,32})\s*$", re.MULTILINE)
#: Separates a source's message from its remedy.
_REMEDY = re.compile(
    r"[;:,] (?=(?:open it with|give the agent|let the agent|grant|run the agent|load) )"
)


class DiagnosisResult(NamedTuple):
    """A line of the report. *remedy*: "" if the operator has nothing to do."""

    level: str
    check: str
    text: str
    remedy: str = ""


@dataclass
class DiagnosedHost:
    """Input of the checks. Tests hand in folders and functions."""

    config: AgentConfig
    config_file: Path | None
    config_error: str
    #: Parsed status file of a running agent, or None and the reason.
    status: dict[str, Any] | None
    no_agent_reason: str
    #: Sources that were not read, and the number of sources that were.
    unread: Sequence[UnreadSources]
    read_count: int
    timex: Callable[[], Timex] | None
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs
    connect: Callable[[AgentConfig], str] = field(default=lambda config: connection_error(config))
    library_folders: Sequence[Path] = tuple(map(Path, LIBRARY_FOLDERS))
    environment: Callable[[str], str | None] = os.environ.get
    boottime_ns: int = field(default_factory=lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME))
    wall_seconds: float = field(default_factory=time.time)

    @property
    def agent(self) -> dict[str, Any] | None:
        """Return the section `agent` of the status file; None without a running agent."""
        return self.status and self.status["agent"]

    @property
    def process(self) -> Path:
        """Return the folder in /proc of the agent, else of this process."""
        return self.config.proc_root / (str(self.agent["pid"]) if self.agent else "self")


def connection_error(config: AgentConfig) -> str:
    """Connect to the aggregator as the agent would; return the error, or "". Waits 3 s at most."""
    host, _, port = config.aggregator.rpartition(":")
    host = host.strip("[]")
    try:
        if config.tls_ca_file:
            from ...contract.tls import TlsError, TlsFiles, diagnosis

            files = TlsFiles(
                config.tls_ca_file,
                config.tls_certificate_file,
                config.tls_key_file,
                config.tls_server_name,
            )
            try:
                return diagnosis(host, int(port), files, CONNECT_SECONDS_MAX)
            except TlsError as error:
                return str(error)
        socket.create_connection((host, int(port)), CONNECT_SECONDS_MAX).close()
    except OSError as error:
        return str(error.strerror or error)
    return ""


def check_settings(host: DiagnosedHost) -> Iterator[DiagnosisResult]:
    """Check the settings file, and report labels that the aggregator does not know."""
    if host.config_error:
        yield DiagnosisResult(
            PROBLEM, "settings", host.config_error, "gangline agent --help-settings"
        )
    elif host.config_file is None:
        yield DiagnosisResult(NOTE, "settings", "no settings file: the defaults apply")
    else:
        yield DiagnosisResult(OK, "settings", f"{host.config_file} is valid")
    for label in host.config.labels:
        if error := label_error(label):
            yield DiagnosisResult(NOTE, "settings", f"label {error}")


def check_agent(host: DiagnosedHost) -> Iterator[DiagnosisResult]:
    """Check that the agent runs, and in the installed version."""
    if host.status is None:
        yield DiagnosisResult(
            PROBLEM,
            "agent",
            host.no_agent_reason,
            "systemctl enable --now gangline-agent; why it does not start: journalctl -u gangline-agent",
        )
        return
    running, installed = host.status["agent_version"], version()
    agent = host.agent
    number = f", process {agent['pid']}" if agent else ""
    if running != installed and "unknown" not in (running, installed):
        text = f"version {running} runs{number}; {installed} is installed"
        yield DiagnosisResult(NOTE, "agent", text, "systemctl restart gangline-agent")
    else:
        yield DiagnosisResult(OK, "agent", f"version {running} runs{number}")
    for note in host.status["notes"]:
        yield DiagnosisResult(PROBLEM, "agent", note)


def check_aggregator(host: DiagnosedHost) -> Iterator[DiagnosisResult]:
    """Check that the aggregator is reachable: by the agent's connection, else a new one."""
    if (agent := host.agent) is None:
        target, error = host.config.aggregator, host.connect(host.config)
        since = ""
    else:
        target, error = agent["aggregator"], agent["last_error"]
        error = "" if agent["connected"] else error or "not connected yet"
        error = error.removeprefix(f"{target}: ")
        age = max(0.0, (host.boottime_ns - agent["since_ns"]) / SECOND_NS)
        since = f" for {format_duration(age)}"
    if not error:
        verb = "connected to" if agent else "answers:"
        yield DiagnosisResult(OK, "aggregator", f"{verb} {target}{since}")
        return
    waiting = f"; {agent['waiting_frames']} frames wait here" if agent else ""
    yield DiagnosisResult(
        PROBLEM,
        "aggregator",
        f"{target} cannot be reached{since}: {error}{waiting}",
        "is `aggregator` in the settings right, and there: systemctl status gangline-aggregator",
    )


def check_certificate(host: DiagnosedHost) -> Iterator[DiagnosisResult]:
    """Check the files with which agent and aggregator authenticate each other."""
    config = host.config
    credentials = Credentials(
        config.tls_ca_file,
        config.tls_certificate_file,
        config.tls_key_file,
        config.tls_server_name,
        config.token_file,
    )
    try:
        beyond = not config.aggregator.startswith(("127.", "localhost:", "[::1]:"))
        credentials.check(beyond_loopback=beyond)
    except ValueError as error:
        yield DiagnosisResult(PROBLEM, "certificate", str(error))
    for file in filter(None, (config.tls_ca_file, config.tls_certificate_file)):
        yield _certificate_result(Path(file), host.wall_seconds)
    for file in filter(None, (config.tls_key_file, config.token_file)):
        if not Path(file).exists():
            yield DiagnosisResult(
                PROBLEM,
                "certificate",
                f"{file} does not exist, or is hidden from this user",
                f"install -m 0600 -o gangline YOUR_FILE {file}",
            )


def _certificate_result(file: Path, wall_seconds: float) -> DiagnosisResult:
    """Return how long the first certificate in a PEM file is valid."""
    import ssl

    decode: Callable[[str], dict[str, Any]] = ssl._ssl._test_decode_cert  # type: ignore[attr-defined]
    try:
        fields = decode(str(file))
    except OSError as error:  # SSLError too
        reason = error.strerror if type(error) is not ssl.SSLError else "no certificate in PEM"
        return DiagnosisResult(PROBLEM, "certificate", f"{file}: {reason or error}")
    until = ssl.cert_time_to_seconds(fields["notAfter"])
    begin = ssl.cert_time_to_seconds(fields["notBefore"])
    days = (until - wall_seconds) / DAY_SECONDS
    renew = "gangline admin cert issue --force ..., on the aggregator's machine"
    if wall_seconds < begin:
        text = f"{file} is valid from {fields['notBefore']} on: is this host's clock right?"
        return DiagnosisResult(PROBLEM, "certificate", text, "timedatectl")
    if days < 0:
        return DiagnosisResult(
            PROBLEM, "certificate", f"{file} expired {-days:.0f} days ago", renew
        )
    level = NOTE if days < EXPIRY_DAYS else OK
    text = f"{file} is valid for {days:.0f} more days"
    return DiagnosisResult(level, "certificate", text, renew if level is NOTE else "")


def check_disk(host: DiagnosedHost) -> Iterator[DiagnosisResult]:
    """Check the disk space for frames and events that wait while the aggregator is away."""
    config, agent = host.config, host.agent
    checked: set[Path] = set()
    for folder in (config.spool_folder, config.events_folder, config.state_folder):
        existing = next(
            (path for path in (folder, *folder.absolute().parents) if path.exists()), folder
        )
        if existing in checked:
            continue
        checked.add(existing)
        try:
            usage = host.statvfs(existing)
        except OSError as error:
            yield DiagnosisResult(PROBLEM, "disk", f"{existing}: {error.strerror}")
            continue
        free = usage.f_bavail * usage.f_frsize
        if usage.f_flag & os.ST_RDONLY:
            text = f"{existing} is on a file system that is mounted read-only"
            yield DiagnosisResult(PROBLEM, "disk", text, f"findmnt --target {existing}")
        elif free < FREE_BYTES_MIN or (usage.f_files and not usage.f_favail):
            text = f"{existing} has {free / 1e6:.0f} MB and {usage.f_favail} inodes left"
            yield DiagnosisResult(PROBLEM, "disk", text, f"df {existing}; df --inodes {existing}")
        elif folder == config.spool_folder and free < config.spool_bytes_max:
            text = f"{existing} has {free / 1e6:.0f} MB left, less than the {config.spool_bytes_max / 1e6:.0f} MB of spool_bytes_max"
            yield DiagnosisResult(NOTE, "disk", text)
        else:
            yield DiagnosisResult(OK, "disk", f"{existing} has {free / 1e9:.1f} GB left")
    if agent and agent["write_errors"]:
        text = f"{agent['write_errors']} frames could not be written to the disk"
        yield DiagnosisResult(PROBLEM, "disk", text, "dmesg | tail")
    if agent and (lost := agent["lost_frames"] + agent["lost_events"]):
        yield DiagnosisResult(
            NOTE, "disk", f"{lost} frames and events were lost; the agent's log names the reason"
        )


def check_clock(host: DiagnosedHost) -> Iterator[DiagnosisResult]:
    """Check that NTP, chrony or PTP synchronizes this host's clock."""
    if host.timex is None:
        return
    try:
        state = parse_timex(host.timex())
    except OSError as error:
        yield DiagnosisResult(NOTE, "clock", f"its state is not shown: {error.strerror}")
        return
    if not state.synchronised:
        yield DiagnosisResult(
            PROBLEM,
            "clock",
            "not synchronized: no NTP, chrony or PTP runs",
            "timedatectl set-ntp true, or: systemctl enable --now chronyd",
        )
        return
    error_max = state.error_max_seconds
    within = "" if error_max is None else f", off by {error_max * 1e3:.0f} ms at most"
    yield DiagnosisResult(OK, "clock", f"synchronized{within}")


def library_version(folders: Sequence[Path]) -> str:
    """Return the NVML library's version, by its symbolic link; "" without a library."""
    for folder in folders:
        if match := _LIBRARY_VERSION.fullmatch(
            os.path.basename(os.path.realpath(folder / LIBRARY))
        ):
            return match[1]
    return ""


def check_gpus(host: DiagnosedHost) -> Iterator[DiagnosisResult]:
    """Check that PCI bus, loaded driver and NVML library agree. Does not call the driver."""
    roots = host.config.roots
    bound_drivers = pci.nvidia_gpus(roots.sys)
    gpus = {
        address: driver
        for address, driver in bound_drivers.items()
        if driver not in PASSTHROUGH_DRIVERS
    }
    if not gpus:
        passed = (
            f"; {len(bound_drivers)} are passed through to virtual machines"
            if bound_drivers
            else ""
        )
        yield DiagnosisResult(NOTE, "gpus", f"no NVIDIA GPU on the PCI bus for this host{passed}")
        return
    loaded, library = kernel_driver_version(roots.proc), library_version(host.library_folders)
    if not loaded:
        first, bound = next(iter(gpus.items()))
        to = f"bound to {bound}" if bound else "bound to no driver"
        text = f"{len(gpus)} on the PCI bus, and the NVIDIA driver is not loaded; {first} is {to}"
        remedy = "modprobe nvidia; why it does not load: dmesg | grep -i -e nvrm -e nouveau, and dkms status"
        yield DiagnosisResult(PROBLEM, "gpus", text, remedy)
        return
    shown = driver_gpus(roots.proc)
    if missing := sorted(gpus.keys() - set(shown)):
        text = f"{len(gpus)} on the PCI bus, and the driver {loaded} shows {len(shown)}; missing: {', '.join(missing[:NAMES_SHOWN])}"
        yield DiagnosisResult(PROBLEM, "gpus", text, f"dmesg | grep -e {missing[0]} -e NVRM")
    elif not (roots.dev / "nvidiactl").exists():
        text = f"{len(gpus)}, driver {loaded}, and no {roots.dev}/nvidiactl"
        remedy = "nvidia-modprobe, or: systemctl enable --now nvidia-persistenced"
        if in_container(host):
            remedy = "give the pod the NVIDIA runtime class: runtimeClassName: nvidia"
        yield DiagnosisResult(PROBLEM, "gpus", text, remedy)
    else:
        yield DiagnosisResult(OK, "gpus", f"{len(gpus)}, driver {loaded}")
    if library and library != loaded:
        yield DiagnosisResult(
            PROBLEM,
            "driver",
            f"the kernel has driver {loaded} loaded, and {LIBRARY} is of {library}: no GPU can be "
            "read until they agree",
            "when no job runs: gangline release; rmmod nvidia_drm nvidia_modeset nvidia_uvm nvidia; modprobe nvidia; gangline resume. Or reboot",
        )


def check_sources(host: DiagnosedHost) -> Iterator[DiagnosisResult]:
    """Report each source that exists and is not read, in the collector's words."""
    absent = [
        name for source in host.unread if source.outcome == "no_data" for name in source.names
    ]
    if host.agent is None and host.status is not None:
        yield DiagnosisResult(NOTE, "sources", "this agent does not report its sources")
        return
    reader = "" if host.agent else " as root" if not os.geteuid() else f" as user {os.geteuid()}"
    without = f"; {len(absent)} do not exist on this host" if absent else ""
    yield DiagnosisResult(OK, "sources", f"{host.read_count} read{reader}{without}")
    for source in host.unread:
        if source.outcome == "no_data":
            continue
        text, remedy = split_remedy(source.message)
        more = len(source.names) - NAMES_SHOWN
        names = ", ".join(source.names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
        level = BLIND if source.outcome == "blind" else PROBLEM
        verb = {"hung": "hangs: "}.get(source.outcome, "")
        yield DiagnosisResult(level, names, f"{verb}{text}", remedy)


def split_remedy(message: str) -> tuple[str, str]:
    """Return the problem and the remedy in a collector's message; the remedy is "" if not given."""
    match = _REMEDY.search(message)
    return (message[: match.start()], message[match.end() :]) if match else (message, "")


def check_capabilities(host: DiagnosedHost) -> Iterator[DiagnosisResult]:
    """Check that the agent has all capabilities of its unit."""
    text = read_text(host.process / "status") or ""
    match = _EFFECTIVE.search(text)
    if match is None:
        return
    mask = int(match[1], 16)
    missing = {name: lost for name, (bit, lost) in CAPABILITIES.items() if not mask >> bit & 1}
    if not missing:
        yield DiagnosisResult(OK, "capabilities", "all that the unit grants")
    elif host.agent is None:
        yield DiagnosisResult(
            NOTE,
            "capabilities",
            "this command has fewer than the agent: the agent may read what this command cannot",
            "sudo gangline doctor",
        )
    else:
        for name, lost in missing.items():
            yield DiagnosisResult(
                BLIND,
                "capabilities",
                f"without {name}: {lost}",
                f"AmbientCapabilities={name} and CapabilityBoundingSet={name} (systemctl edit "
                "gangline-agent)",
            )


def check_selinux(host: DiagnosedHost) -> Iterator[DiagnosisResult]:
    """Check whether SELinux may deny a source; modes and capabilities do not show this."""
    enforcing = read_text(host.config.sys_root / "fs/selinux/enforce")
    if enforcing is None:
        return
    domain = (read_text(host.process / "attr/current") or "an unknown domain").rstrip("\0")
    if enforcing != "1":
        yield DiagnosisResult(OK, "selinux", "permissive: it denies nothing")
    elif any(source.outcome == "blind" for source in host.unread):
        text = f"enforcing, in {domain}: it may be the reason why a source is blind"
        yield DiagnosisResult(NOTE, "selinux", text, "ausearch -m avc -ts today | grep gangline")
    else:
        yield DiagnosisResult(OK, "selinux", f"enforcing, in {domain}; no source is blind")


def in_container(host: DiagnosedHost) -> bool:
    """Return whether this is a pod or another container.

    A microVM that boots a container's image has the image's marks too, but they are in the root of process 1,
    whose kernel threads are visible.
    """
    if host.environment("KUBERNETES_SERVICE_HOST"):
        return True
    root = host.config.run_root.parent
    marks = [
        mark
        for mark in (host.config.run_root / ".containerenv", root / ".dockerenv")
        if mark.exists()
    ]
    if not marks or read_text(host.config.proc_root / "2/comm") != "kthreadd":
        return bool(marks)
    root_of_first = host.config.proc_root / "1/root"
    return not any(os.path.exists(root_of_first / mark.relative_to(root)) for mark in marks)


def check_container(host: DiagnosedHost) -> Iterator[DiagnosisResult]:
    """Report the limits of a container, which no capability removes."""
    if in_container(host):
        text = "runs in a container: it sees the devices that the container's runtime gives"
        if pci.nvidia_gpus(host.config.sys_root):
            text += ", and loses access to its GPUs when systemd reloads (nvidia-docker issue 1671); the GPUs are healthy then"
        yield DiagnosisResult(NOTE, "container", text)


CHECKS: Sequence[Callable[[DiagnosedHost], Iterator[DiagnosisResult]]] = (
    check_settings,
    check_agent,
    check_aggregator,
    check_certificate,
    check_disk,
    check_clock,
    check_gpus,
    check_sources,
    check_capabilities,
    check_selinux,
    check_container,
)


def diagnose(host: DiagnosedHost) -> list[DiagnosisResult]:
    """Return the results of all checks, in the order of CHECKS."""
    return [result for check in CHECKS for result in check(host)]
