"""Settings and services that affect jobs, once a minute, to catch changes that slow down jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...contract.block import Block
from ..collector import AccessDenied, ExcludingCollector, NoData, driver_call
from ..hardware import services, settings
from ..hardware.cpu_cores import core_of
from ..hardware.files import FileReader, OpenFile, Roots
from ..hardware.proc_files import parse_first_decimal
from ..hardware.processes import PROC, ProcessScanner
from ..hardware.services import SERVICES, Service
from .block_writer import block_of, put, row_writer
from .file_cache import FileCache
from .tasks import HIDEPID, PROCESSES_MAX, hides_processes

RUNNING, NOT_RUNNING = 1, 2
#: Known other processes read per collection: a name changes only by exec.
READS_MAX = 2048
#: The mount point of the root filesystem, which has the unit files.
_ROOT = "/"
_COLUMNS = ("service.running_state", "service.enabled_state", "service.running_seconds")
_NAMES = frozenset(service.process for service in SERVICES)


class SettingsMinute(ExcludingCollector):
    """Kernel and driver settings: some 70 files, and two per frequency domain.

    A changed file is read again.
    """

    name = "settings_60s"
    # A governor is read on its core: hundreds are too slow for the daemon's own thread
    enters_driver = True

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._block = Block("settings_60s", ("host",))
        self._settings = FileCache(self._compute)
        self._handles = OpenFile(roots.proc / "sys/fs/file-nr", whole=True)  # changes at every read

    def exclude(self, devices: frozenset[str]) -> None:
        super().exclude(devices)
        self._settings.exclude(devices)

    def collect(self) -> Sequence[Block]:
        """Return the block. Raises NoData if no setting can be read."""
        is_new = self._settings.refresh()
        settings_now = self._settings.value
        files, files_max = settings.parse_file_handles(self._handles.read())
        if is_new:
            for name, value in settings_now.items():
                put(self._block, f"settings.{name}", 0, value)
        if files is None and all(value is None for value in settings_now.values()):
            raise NoData("no setting can be read from /sys and /proc/sys")
        # NVIDIA's file is not kept open, so that the driver can be unloaded.
        put(
            self._block, "settings.gpu_open_module_state", 0, settings.open_module(self._roots.proc)
        )
        put(self._block, "settings.open_files_count", 0, files)
        put(self._block, "settings.open_files_max_count", 0, files_max)
        return (self._block,)

    def _compute(self, files: FileReader) -> dict[str, float | None]:
        def of_domain(file: Path) -> str | None:
            core = core_of(file)
            return None if self.is_excluded(core) else files.text(file, core)

        return (
            of_cores(self._roots.sys, files, of_domain)
            | of_memory(self._roots, files)
            | of_devices(self._roots, files)
            | of_kernel(self._roots.proc / "sys", files)
        )


def of_cores(
    sys: Path, files: FileReader, of_domain: Callable[[Path], str | None]
) -> dict[str, float | None]:
    """Return governor, energy preference, SMT, turbo, idle states, isolation, clock source."""
    cpu = sys / "devices/system/cpu"
    clocksource = sys / "devices/system/clocksource/clocksource0/current_clocksource"
    governors = settings.domain_values(sys, "scaling_governor", of_domain, files.names)
    preferences = settings.domain_values(
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


def of_memory(roots: Roots, files: FileReader) -> dict[str, float | None]:
    """Return huge pages, NUMA balancing, reclaim, swapping, mappings."""
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


def of_devices(roots: Roots, files: FileReader) -> dict[str, float | None]:
    """Return the link power of PCIe, and peer memory for NIC to GPU transfers."""
    policy = settings.parse_selected(files.text(roots.sys / "module/pcie_aspm/parameters/policy"))
    return {
        "pcie_aspm_policy_state": settings.code(settings.ASPM, policy),
        "gpu_peer_memory_state": settings.peer_memory(roots.sys, files),
        "gpu_direct_storage_state": settings.direct_storage(roots.sys, files),
    }


def of_kernel(folder: Path, files: FileReader) -> dict[str, float | None]:
    """Return limits of /proc/sys that large jobs reach, and the kernel's taint."""
    return {
        "kernel_taint_flags": files.unsigned(folder / "kernel/tainted"),
        "threads_max_count": files.unsigned(folder / "kernel/threads-max"),
        "process_ids_max_count": files.unsigned(folder / "kernel/pid_max"),
        "socket_receive_buffer_max_bytes": files.unsigned(folder / "net/core/rmem_max"),
        "socket_send_buffer_max_bytes": files.unsigned(folder / "net/core/wmem_max"),
    }


class Services(ExcludingCollector):
    """A row per service that is installed or runs. Nothing is started, and no socket is touched."""

    name = "service_60s"
    enters_driver = True  # no driver, but all of /proc: not in the daemon's own thread

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._root = roots.proc.parent  # the host's root, also if it is mounted below /host
        self._uptime = OpenFile(roots.proc / "uptime", whole=True)
        self._processes = ProcessScanner(roots.proc, PROCESSES_MAX, READS_MAX)
        self._block = Block("service_60s", ())

    def collect(self) -> Sequence[Block]:
        """Return the block.

        Raises NoData without a service, or AccessDenied instead if processes are hidden.
        """
        if self.is_excluded(PROC) or self.is_excluded(_ROOT):
            self._block.clear()
            return (self._block,) if self._block.rows else ()
        with driver_call(_ROOT, "list unit files"):
            units = services.UnitFiles(self._root)
        installed = self._find_services(units)
        if not installed and self.access_error:
            raise AccessDenied(self.access_error)
        if not installed:
            raise NoData(
                f"none of {', '.join(s.name for s in SERVICES[:4])}... is installed or runs"
            )
        self._block = block_of(self._block, (service.name for service in installed))
        writer = row_writer(self._block, _COLUMNS)
        now_seconds = parse_first_decimal(self._uptime.read())
        for row, (service, run) in enumerate(installed.items()):
            is_enabled = not units.enabled.isdisjoint(service.units)
            start_seconds = run.since_seconds if run else None
            seconds: float | None = None
            if start_seconds is not None and now_seconds is not None:
                seconds = max(0.0, now_seconds - start_seconds)
            writer.put(row, (self._state(run), is_enabled, seconds))
        return (self._block,)

    def _state(self, run: _ServiceRun | None) -> int | None:
        """Return the state; None if the processes are hidden."""
        if run is None:
            return None if self.access_error else NOT_RUNNING
        return RUNNING

    def _find_services(self, units: services.UnitFiles) -> dict[Service, _ServiceRun | None]:
        starts, by_name = self._starts()
        if not starts:
            raise NoData("no process in /proc")
        groups = services.groups_of_units(self._roots.sys)
        runs = {service: self._run_of(service, groups, starts, by_name) for service in SERVICES}
        booted = services.is_booted(self._roots.run)
        with driver_call(_ROOT, "look for unit files"):
            return {
                service: run
                for service, run in runs.items()
                if run or (booted and units.has(service))
            }

    def _run_of(
        self,
        service: Service,
        groups: Mapping[str, Sequence[str]],
        starts: Mapping[int, float],
        by_name: Mapping[str, float],
    ) -> _ServiceRun | None:
        numbers = services.processes_of_unit(groups, service)
        known = [starts[number] for number in numbers or () if number in starts]
        if not known and service.process in by_name:
            known = [by_name[service.process]]
        if known:
            return _ServiceRun(min(known))
        is_once = not service.process and services.is_active(self._roots.run, service)
        return _ServiceRun(None) if numbers is not None or is_once else None

    def _starts(self) -> tuple[dict[int, float], dict[str, float]]:
        """Return the start of each process by number, and the oldest start per name."""
        try:
            processes = self._processes.read(lambda task: task.name in _NAMES)
        except OSError:
            return {}, {}
        self.access_error = HIDEPID if hides_processes(processes) else ""
        user_tasks = [task for task in processes if not task.is_kernel]
        by_name: dict[str, float] = {}
        for task in user_tasks:
            by_name[task.name] = min(task.start_seconds, by_name.get(task.name, task.start_seconds))
        return {task.number: task.start_seconds for task in user_tasks}, by_name


@dataclass(frozen=True, slots=True)
class _ServiceRun:
    """A running service, and its start in seconds since boot if known."""

    since_seconds: float | None
