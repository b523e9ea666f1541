"""Settings that decide speed, once a minute: somebody changes them, and the job is slow from then on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..entering import Spares, entering
from ..hardware import settings
from ..hardware.cpu import core_of
from ..hardware.files import read_text, read_unsigned
from ..hardware.roots import Roots
from ..turn import NoData
from .columns import put


class SettingsMinute(Spares):
    """Reads all settings anew each time: some seventy small files, and two for each frequency domain."""

    name = "settings_60s"
    pace = Pace.MINUTE
    enters_driver = (
        True  # a governor asks each core; hundreds of them are not for the daemon's own thread
    )

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._block = Block("settings_60s", ("host",))

    def collect(self) -> Sequence[Block]:
        """Return the one block. Raises NoData where none of them can be read."""
        found = (
            of_cores(self._roots.sys, self._of_domain)
            | of_memory(self._roots)
            | of_devices(self._roots)
            | of_kernel(self._roots.proc / "sys")
        )
        if all(value is None for value in found.values()):
            raise NoData("no setting can be read from /sys and /proc/sys")
        for name, value in found.items():
            put(self._block, f"settings.{name}", 0, value)
        return (self._block,)

    def _of_domain(self, file: Path) -> str | None:
        core = core_of(file)
        if self.is_spared(core):
            return None
        with entering(core, f"read {file.name}"):
            return read_text(file)


def of_cores(sys: Path, of_domain: Callable[[Path], str | None]) -> dict[str, float | None]:
    """Governor, energy preference, SMT, turbo, idle states, isolation, clock source."""
    cpu = sys / "devices/system/cpu"
    clocksource = sys / "devices/system/clocksource/clocksource0/current_clocksource"
    governors = settings.domain_words(sys, "scaling_governor", of_domain)
    preferences = settings.domain_words(sys, "energy_performance_preference", of_domain)
    return {
        "cpu_governor_other_ratio": settings.share_of_others(governors, "performance"),
        "cpu_energy_preference_other_ratio": settings.share_of_others(preferences, "performance"),
        "smt_state": settings.code(settings.SMT, read_text(cpu / "smt/control")),
        "turbo_state": settings.turbo(sys),
        "idle_latency_max_microseconds": settings.idle_latency_microseconds(sys),
        "cores_isolated_count": settings.isolated_cores(sys),
        "clocksource_state": settings.clocksource_code(read_text(clocksource)),
    }


def of_memory(roots: Roots) -> dict[str, float | None]:
    """Huge pages, NUMA balancing, reclaim, swapping, mappings."""
    pages, kernel = roots.sys / "kernel/mm/transparent_hugepage", roots.proc / "sys"
    enabled = settings.parse_selected(read_text(pages / "enabled"))
    defrag = settings.parse_selected(read_text(pages / "defrag"))
    return {
        "transparent_hugepages_state": settings.code(settings.HUGEPAGES, enabled),
        "transparent_hugepages_defrag_state": settings.code(settings.HUGEPAGES_DEFRAG, defrag),
        "numa_balancing_flags": read_unsigned(kernel / "kernel/numa_balancing"),
        "zone_reclaim_flags": read_unsigned(kernel / "vm/zone_reclaim_mode"),
        "swappiness_number": read_unsigned(kernel / "vm/swappiness"),
        "memory_maps_max_count": read_unsigned(kernel / "vm/max_map_count"),
    }


def of_devices(roots: Roots) -> dict[str, float | None]:
    """Link power of PCIe, and the ways from NIC to GPU memory."""
    policy = settings.parse_selected(read_text(roots.sys / "module/pcie_aspm/parameters/policy"))
    return {
        "pcie_aspm_policy_state": settings.code(settings.ASPM, policy),
        "gpu_peer_memory_state": settings.peer_memory(roots.sys),
        "gpu_open_module_state": settings.open_module(roots.proc),
    }


def of_kernel(folder: Path) -> dict[str, float | None]:
    """Limits of /proc/sys that large jobs run into, and the kernel's taint."""
    files, files_max = settings.parse_file_handles(read_text(folder / "fs/file-nr"))
    return {
        "kernel_taint_flags": read_unsigned(folder / "kernel/tainted"),
        "threads_max_count": read_unsigned(folder / "kernel/threads-max"),
        "process_ids_max_count": read_unsigned(folder / "kernel/pid_max"),
        "open_files_count": files,
        "open_files_max_count": files_max,
        "socket_receive_buffer_max_bytes": read_unsigned(folder / "net/core/rmem_max"),
        "socket_send_buffer_max_bytes": read_unsigned(folder / "net/core/wmem_max"),
    }
