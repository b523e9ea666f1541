"""Parsers of performance settings in /sys and /proc."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from .cpu_cores import cores_in
from .files import FileReader, names_in, parse_unsigned, read_text, read_unsigned

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

    None without a GPU driver.
    """
    modules = files.names(sys / "module")
    if "nvidia" not in modules:
        return None
    if "nvidia_peermem" in modules:
        return 1
    return 2 if "nv_peer_mem" in modules else 0


def direct_storage(sys: Path, files: FileReader) -> int | None:
    """Return 1 if storage can read and write GPU memory by itself (nvidia_fs), else 0; None without a GPU driver."""
    modules = files.names(sys / "module")
    return int("nvidia_fs" in modules) if "nvidia" in modules else None


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
    """Return the parameters of a kernel's command line that affect speed, in their order."""
    flags = " ".join(word for word in (text or "").split() if _FLAGS.match(word))
    return flags[:_FLAGS_CHARACTERS_MAX]
