"""Which of the services that a GPU host needs are there, and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..entering import Spares, entering
from ..hardware import services
from ..hardware.files import KeptFile
from ..hardware.memory import parse_first_decimal
from ..hardware.roots import Roots
from ..hardware.services import SERVICES, Service
from ..hardware.tasks import PROC, Processes
from ..turn import Blind, NoData
from .columns import block_of, places_of
from .tasks import HIDEPID, PROCESSES_MAX, hides_processes

RUNNING, NOT_RUNNING = 1, 2
#: Of processes that are known and none of these, so many are read in a turn: a name changes by exec only.
READS_MAX = 2048
#: Unit files are on the root filesystem, by the name that it has as a mount point.
_ROOT = "/"
_COLUMNS = ("service.running_state", "service.enabled_state", "service.running_seconds")
_NAMES = frozenset(service.process for service in SERVICES)


class Services(Spares):
    """Fills a row per service that is installed or runs. Nothing is started, and no socket is touched."""

    name = "service_60s"
    pace = Pace.MINUTE
    enters_driver = True  # no driver, but all of /proc: not in the daemon's own thread

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._root = roots.proc.parent  # of the host, also where it is mounted below /host
        self._uptime = KeptFile(roots.proc / "uptime", whole=True)
        self._processes = Processes(roots.proc, PROCESSES_MAX, READS_MAX)
        self._block = Block("service_60s", ())
        self.blind_words = ""

    def collect(self) -> Sequence[Block]:
        """Return the one block. Raises NoData when none of the services is there, Blind when none is shown."""
        if self.is_spared(PROC) or self.is_spared(_ROOT):
            self._block.clear()
            return (self._block,) if self._block.rows else ()
        with entering(_ROOT, "list unit files"):
            units = services.UnitFiles(self._root)
        found = self._found(units)
        if not found and self.blind_words:
            raise Blind(self.blind_words)
        if not found:
            raise NoData(
                f"none of {', '.join(s.name for s in SERVICES[:4])}... is installed or runs"
            )
        self._block = block_of(self._block, (service.name for service in found))
        places = places_of(self._block, _COLUMNS)
        now_seconds = parse_first_decimal(self._uptime.read())
        for row, (service, run) in enumerate(found.items()):
            is_enabled = not units.enabled.isdisjoint(service.units)
            began = run.since_seconds if run else None
            seconds: float | None = None
            if began is not None and now_seconds is not None:
                seconds = max(0.0, now_seconds - began)
            places.put(row, (self._state(run), is_enabled, seconds))
        return (self._block,)

    def _state(self, run: _Run | None) -> int | None:
        """Return the state; None where the processes that would tell are hidden."""
        if run is None:
            return None if self.blind_words else NOT_RUNNING
        return RUNNING

    def _found(self, units: services.UnitFiles) -> dict[Service, _Run | None]:
        """Return the services that are there, with how they run."""
        starts, by_name = self._starts()
        if not starts:
            raise NoData("no process in /proc")
        groups = services.groups_of_units(self._roots.sys)
        runs = {service: self._run_of(service, groups, starts, by_name) for service in SERVICES}
        booted = services.is_booted(self._roots.run)
        with entering(_ROOT, "look for unit files"):
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
    ) -> _Run | None:
        numbers = services.processes_of_unit(groups, service)
        known = [starts[number] for number in numbers or () if number in starts]
        if not known and service.process in by_name:
            known = [by_name[service.process]]
        if known:
            return _Run(min(known))
        is_once = not service.process and services.is_active(self._roots.run, service)
        return _Run(None) if numbers is not None or is_once else None

    def _starts(self) -> tuple[dict[int, float], dict[str, float]]:
        """Return when each process began, by its number, and the oldest of each name."""
        try:
            processes = self._processes.read(lambda task: task.name in _NAMES)
        except OSError:
            return {}, {}
        self.blind_words = HIDEPID if hides_processes(processes) else ""
        found = [task for task in processes if not task.is_kernel]
        by_name: dict[str, float] = {}
        for task in found:
            by_name[task.name] = min(task.start_seconds, by_name.get(task.name, task.start_seconds))
        return {task.number: task.start_seconds for task in found}, by_name


@dataclass(frozen=True, slots=True)
class _Run:
    """A service runs; since when, in seconds since boot, if that can be known."""

    since_seconds: float | None
