"""Settings that decide speed, once a minute: somebody changes them, and the job is slow from then on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..entering import Spares
from ..hardware import settings
from ..hardware.cpu import core_of
from ..hardware.files import Files, KeptFile
from ..hardware.roots import Roots
from ..turn import NoData
from .columns import put
from .remembering import Remembered


class SettingsMinute(Spares):
    """Some seventy small files, and two for each frequency domain: looked at each time, and read when one is another."""

    name = "settings_60s"
    pace = Pace.MINUTE
    enters_driver = (
        True  # a governor asks each core; hundreds of them are not for the daemon's own thread
    )

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._block = Block("settings_60s", ("host",))
        self._settings = Remembered(self._work_out)
        self._handles = KeptFile(roots.proc / "sys/fs/file-nr", whole=True)  # others at each look

    def spare(self, devices: frozenset[str]) -> None:
        """Ask none of these cores."""
        super().spare(devices)
        self._settings.spare(devices)

    def collect(self) -> Sequence[Block]:
        """Return the one block. Raises NoData where none of them can be read."""
        is_new = self._settings.look()
        settings_now = self._settings.value
        files, files_max = settings.parse_file_handles(self._handles.read())
        if is_new:
            for name, value in settings_now.items():
                put(self._block, f"settings.{name}", 0, value)
        if files is None and all(value is None for value in settings_now.values()):
            raise NoData("no setting can be read from /sys and /proc/sys")
        # NVIDIA's file is not kept open: nothing of the driver is held that may have to be unloaded
        put(
            self._block, "settings.gpu_open_module_state", 0, settings.open_module(self._roots.proc)
        )
        put(self._block, "settings.open_files_count", 0, files)
        put(self._block, "settings.open_files_max_count", 0, files_max)
        return (self._block,)

    def _work_out(self, files: Files) -> dict[str, float | None]:
        def of_domain(file: Path) -> str | None:
            core = core_of(file)
            return None if self.is_spared(core) else files.text(file, core)

        return (
            of_cores(self._roots.sys, files, of_domain)
            | of_memory(self._roots, files)
            | of_devices(self._roots, files)
            | of_kernel(self._roots.proc / "sys", files)
        )


def of_cores(
    sys: Path, files: Files, of_domain: Callable[[Path], str | None]
) -> dict[str, float | None]:
    """Governor, energy preference, SMT, turbo, idle states, isolation, clock source."""
    cpu = sys / "devices/system/cpu"
    clocksource = sys / "devices/system/clocksource/clocksource0/current_clocksource"
    governors = settings.domain_words(sys, "scaling_governor", of_domain, files.names)
    preferences = settings.domain_words(
        sys, "energy_performance_preference", of_domain, files.names
    )
    return {
        "cpu_governor_other_ratio": settings.share_of_others(governors, "performance"),
        "cpu_energy_preference_other_ratio": settings.share_of_others(preferences, "performance"),
        "smt_state": settings.code(settings.SMT, files.text(cpu / "smt/control")),
        "turbo_state": settings.turbo(sys, files),
        "idle_latency_max_microseconds": settings.idle_latency_microseconds(sys, files),
        "cores_isolated_count": settings.isolated_cores(sys, files),
        "clocksource_state": settings.clocksource_code(files.text(clocksource)),
    }


def of_memory(roots: Roots, files: Files) -> dict[str, float | None]:
    """Huge pages, NUMA balancing, reclaim, swapping, mappings."""
    pages, kernel = roots.sys / "kernel/mm/transparent_hugepage", roots.proc / "sys"
    enabled = settings.parse_selected(files.text(pages / "enabled"))
    defrag = settings.parse_selected(files.text(pages / "defrag"))
    return {
        "transparent_hugepages_state": settings.code(settings.HUGEPAGES, enabled),
        "transparent_hugepages_defrag_state": settings.code(settings.HUGEPAGES_DEFRAG, defrag),
        "numa_balancing_flags": files.unsigned(kernel / "kernel/numa_balancing"),
        "zone_reclaim_flags": files.unsigned(kernel / "vm/zone_reclaim_mode"),
        "swappiness_number": files.unsigned(kernel / "vm/swappiness"),
        "memory_maps_max_count": files.unsigned(kernel / "vm/max_map_count"),
    }


def of_devices(roots: Roots, files: Files) -> dict[str, float | None]:
    """Link power of PCIe, and the way from NIC to GPU memory."""
    policy = settings.parse_selected(files.text(roots.sys / "module/pcie_aspm/parameters/policy"))
    return {
        "pcie_aspm_policy_state": settings.code(settings.ASPM, policy),
        "gpu_peer_memory_state": settings.peer_memory(roots.sys, files),
    }


def of_kernel(folder: Path, files: Files) -> dict[str, float | None]:
    """Limits of /proc/sys that large jobs run into, and the kernel's taint."""
    return {
        "kernel_taint_flags": files.unsigned(folder / "kernel/tainted"),
        "threads_max_count": files.unsigned(folder / "kernel/threads-max"),
        "process_ids_max_count": files.unsigned(folder / "kernel/pid_max"),
        "socket_receive_buffer_max_bytes": files.unsigned(folder / "net/core/rmem_max"),
        "socket_send_buffer_max_bytes": files.unsigned(folder / "net/core/wmem_max"),
    }
