"""Parsers of performance settings in /sys and /proc, and of the state of systemd services."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .files import FileReader, names_in, parse_unsigned, read_bytes, read_text, read_unsigned
from .cpu_cores import cores_in

SMT = {"off": 0, "on": 1, "forceoff": 2, "notsupported": 3, "notimplemented": 4}
HUGEPAGES = {"never": 0, "madvise": 1, "always": 2}
HUGEPAGES_DEFRAG = {"never": 0, "madvise": 1, "defer": 2, "defer+madvise": 3, "always": 4}
ASPM = {"default": 0, "performance": 1, "powersave": 2, "powersupersave": 3}
#: Codes from 10 on: reading the clock leaves the core, and takes some 1000 ns instead of 20.
CLOCKSOURCES = {
    "tsc": 1,
    "arch_sys_counter": 2,
    "kvm-clock": 3,
    "hyperv_clocksource_tsc_page": 4,
    "hpet": 10,
    "acpi_pm": 11,
    "jiffies": 12,
    "refined-jiffies": 12,
}
CLOCKSOURCE_OTHER = 0
#: Parameters of the kernel's command line that affect speed or isolate cores
#: (kernel-parameters.txt). Others are not shown: they may contain an address or a key.
_FLAGS = re.compile(
    r"(intel_iommu|amd_iommu|iommu|iommu\.\w+|arm-smmu\S*|swiotlb|pcie_aspm|pcie_acs_override|pci|pcie_ports"
    r"|mitigations|nosmt|isolcpus|nohz|nohz_full|rcu_nocbs|irqaffinity|housekeeping|skew_tick"
    r"|processor\.max_cstate|intel_idle\.max_cstate|idle|cpuidle\.\w+|intel_pstate|amd_pstate|cpufreq\.\w+"
    r"|transparent_hugepage|hugepages|hugepagesz|default_hugepagesz|numa|numa_balancing|tsc|clocksource|nohpet"
    r"|nmi_watchdog|audit|init_on_alloc|init_on_free|page_poison|preempt|systemd\.unified_cgroup_hierarchy"
    r"|cgroup_no_v1|nvidia[\w.-]*|nvme_core\.\w+|mce|edac_report|ghes\.\w+|pci=\S+)(=.*)?$",
    re.ASCII,
)
_FLAGS_CHARACTERS_MAX = 512


def parse_selected(text: str | None) -> str | None:
    """Return the word in brackets of `always [madvise] never`; None unless there is exactly one."""
    selected = re.findall(r"\[([^\[\]\s]+)\]", text or "")
    return selected[0] if len(selected) == 1 else None


def code(codes: Mapping[str, int], text: str | None) -> int | None:
    """Return the code of a word; None for an unknown one."""
    return None if text is None else codes.get(text)


def clocksource_code(text: str | None) -> int | None:
    """Return the code of the kernel's clock source; CLOCKSOURCE_OTHER for an unknown one."""
    return CLOCKSOURCES.get(text, CLOCKSOURCE_OTHER) if text else None


def share_of_others(values: Iterable[str | None], wanted: str) -> float | None:
    """Return the share of known *values* that are not *wanted*; None without a known value."""
    known = [word for word in values if word]
    return sum(word != wanted for word in known) / len(known) if known else None


def domain_values(
    sys: Path,
    file: str,
    read: Callable[[Path], str | None] = read_text,
    names: Callable[[Path], list[str]] = names_in,
) -> list[str | None]:
    """Return the value of a file in each frequency domain."""
    folder = sys / "devices/system/cpu/cpufreq"
    return [read(folder / name / file) for name in names(folder) if "policy" in name]


def turbo(sys: Path, files: FileReader) -> int | None:
    """Return 1 if cores may exceed their base frequency, 0 if not; None if unknown."""
    folder = sys / "devices/system/cpu"
    braked = files.unsigned(folder / "intel_pstate/no_turbo")
    boost = files.unsigned(folder / "cpufreq/boost")
    if braked in (0, 1):
        return 1 - braked
    return boost if boost in (0, 1) else None


def idle_latency_microseconds(sys: Path, files: FileReader) -> int | None:
    """Return the longest latency of an enabled idle state of each package's first core."""
    latencies: list[int] = []
    for core in _first_cores(sys / "devices/system/cpu", files):
        for name in files.names(core / "cpuidle"):
            latency = files.unsigned(core / "cpuidle" / name / "latency")
            disabled = files.unsigned(core / "cpuidle" / name / "disable")
            if latency is not None and disabled == 0:
                latencies.append(latency)
    return max(latencies, default=None)


def _first_cores(folder: Path, files: FileReader) -> list[Path]:
    packages: dict[int | None, Path] = {}
    files.text(folder / "online")  # changes when a core goes offline or comes back
    for name in sorted(names_in(folder), key=lambda name: (len(name), name)):
        if name.startswith("cpu") and name[3:].isdecimal():
            package = read_unsigned(folder / name / "topology/physical_package_id")
            packages.setdefault(package, folder / name)
    return list(packages.values())


def peer_memory(sys: Path, files: FileReader) -> int | None:
    """Return the module for RDMA with GPU memory: 0 none, 1 nvidia_peermem, 2 nv_peer_mem.

    Return None without a GPU driver.
    """
    modules = files.names(sys / "module")
    if "nvidia" not in modules:
        return None
    if "nvidia_peermem" in modules:
        return 1
    return 2 if "nv_peer_mem" in modules else 0


def open_module(proc: Path) -> int | None:
    """Return 1 for NVIDIA's open kernel modules, 0 for the closed ones; None without them."""
    text = read_text(proc / "driver/nvidia/version")
    return None if not text else int("Open Kernel Module" in text)


def parse_file_handles(text: str | bytes | None) -> tuple[int | None, int | None]:
    """Return used and maximum handles of /proc/sys/fs/file-nr: `1952 0 9223372036854775807`."""
    tokens = text.split() if text else ()
    if len(tokens) != 3:
        return None, None
    return parse_unsigned(tokens[0]), parse_unsigned(tokens[2])


def isolated_cores(sys: Path, files: FileReader) -> int | None:
    """Return the number of cores isolated from the scheduler."""
    cores = cores_in(files.text(sys / "devices/system/cpu/isolated"))
    return None if cores is None else len(cores)


def kernel_flags(text: str | None) -> str:
    """Return the parameters of a kernel's command line that affect speed, in their order.

    Return "" without such a parameter.
    """
    flags = " ".join(word for word in (text or "").split() if _FLAGS.match(word))
    return flags[:_FLAGS_CHARACTERS_MAX]


# Services. Sources: systemd.unit(5) (folders of unit files, `.wants`, masking), the cgroup of a
# unit (Documentation/admin-guide/cgroup-v2.rst, `populated`), /run/systemd/units (a link
# `invocation:UNIT` for each active unit, src/core/unit.c). A service in a container has no unit on
# the host, and is recognized by its process.

#: Below the host's root; the operator's own first (systemd.unit(5), table 1).
UNIT_FOLDERS = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
#: Below fs/cgroup: v2, the v2 tree of a hybrid host, v1.
_CGROUP_TREES = ("", "unified", "systemd")
_PROCESSES_MAX = 64
_POPULATED = re.compile(rb"^populated ([01])$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Service:
    """A service: usual name, unit names, and process name as the kernel truncates it."""

    name: str
    units: tuple[str, ...]
    process: str = ""  # empty: it runs once and leaves no process


def _daemon(process: str, *units: str) -> Service:
    return Service(units[0], tuple(f"{unit}.service" for unit in units), process[:15])


def _once(*units: str) -> Service:
    return Service(units[0], tuple(f"{unit}.service" for unit in units))


SERVICES = (
    _daemon("nv-fabricmanager", "nvidia-fabricmanager"),
    _daemon("nvidia-persistenced", "nvidia-persistenced"),
    _daemon("nvidia-imex", "nvidia-imex"),
    _daemon("nv-hostengine", "nvidia-dcgm", "dcgm"),
    _once("openibd"),
    _once("rdma-load-modules@rdma", "rdma"),
    _daemon("opensm", "opensm", "opensmd"),
    _daemon("slurmd", "slurmd"),
    _daemon("munged", "munge"),
    _daemon("kubelet", "kubelet"),
    _daemon("containerd", "containerd"),
    _daemon("chronyd", "chronyd", "chrony"),
    _daemon("ntpd", "ntpd", "ntp", "ntpsec"),
    _daemon("systemd-timesyncd", "systemd-timesyncd"),
    _daemon("ptp4l", "ptp4l"),
    _daemon("rasdaemon", "rasdaemon"),
    _daemon("irqbalance", "irqbalance"),
)


_UNITS = frozenset(unit for service in SERVICES for unit in service.units)


def is_booted(run: Path) -> bool:
    """Return whether systemd runs this host (sd_booted(3)); otherwise unit files have no effect."""
    return (run / "systemd/system").is_dir()


class UnitFiles:
    """The services' unit files, and the units wanted at boot, as listed at construction."""

    def __init__(self, root: Path) -> None:
        self._folders: dict[str, frozenset[str]] = {}
        enabled: set[str] = set()
        for folder in (f"{root}/{name}" for name in UNIT_FOLDERS):
            names = names_in(folder)
            self._folders[folder] = _UNITS.intersection(names)
            for name in names:
                if name.endswith((".wants", ".requires")):  # as `systemctl enable` links them
                    enabled.update(names_in(f"{folder}/{name}"))
        self.enabled = frozenset(enabled)

    def has(self, service: Service) -> bool:
        """Return whether a unit file exists that is not masked (a link to /dev/null)."""
        for unit in service.units:
            # The first folder wins, even with a masked unit.
            first = next((folder for folder, names in self._folders.items() if unit in names), "")
            if first and not _is_masked(f"{first}/{unit}"):
                return True
        return False


def _is_masked(path: str) -> bool:
    try:
        return os.readlink(path) == "/dev/null"
    except OSError:
        return False


def parse_populated(data: bytes | None) -> bool | None:
    """Return whether a cgroup.events file shows processes; None if it does not say."""
    match = _POPULATED.search(data or b"")
    return None if match is None else match[1] == b"1"


def parse_processes(data: bytes | None) -> list[int]:
    """Return the first PIDs of a cgroup.procs file, without 0 (a process of another namespace)."""
    numbers = [parse_unsigned(word) for word in (data or b"").split()[:_PROCESSES_MAX]]
    return [number for number in numbers if number]


def groups_of_units(sys: Path) -> dict[str, list[str]]:
    """Return the folders of the control groups of the services' units, by unit."""
    groups: dict[str, list[str]] = {}
    for tree in _CGROUP_TREES:
        folder = f"{sys}/fs/cgroup/{tree}/system.slice"
        for unit in _UNITS.intersection(names_in(folder)):
            groups.setdefault(unit, []).append(f"{folder}/{unit}")
    return groups


def processes_of_unit(groups: Mapping[str, Sequence[str]], service: Service) -> list[int] | None:
    """Return the processes in the control groups of the service's unit.

    Return None without a running process. The list is empty if all processes are in child cgroups.
    """
    for folder in (folder for unit in service.units for folder in groups.get(unit, ())):
        processes = parse_processes(read_bytes(f"{folder}/cgroup.procs"))
        if processes or parse_populated(read_bytes(f"{folder}/cgroup.events")):
            return processes
    return None


def is_active(run: Path, service: Service) -> bool:
    """Return whether systemd has an active unit of the service, also after a one-shot run."""
    return any(os.path.lexists(f"{run}/systemd/units/invocation:{unit}") for unit in service.units)
