"""Support for job launchers (NVIDIA's resiliency extension): segment files, cycle-info, attribution.

The files are on a shared file system that may hang, so a separate thread reads and writes them. A reading is valid for
FRESH_SECONDS. The executor's loop never waits for this thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..ledger import ExecutorLedger
from ..model import SchedulerState, Situation
from ..settings import ExecutorConfig
from . import attribution
from . import segments as launcher_segments
from .cycle_info import CycleInfo, CycleInfoError, allocations, read_cycle_info, with_cycles

if TYPE_CHECKING:
    from .attribution_server import AttributionServer

log = logging.getLogger(__name__)

#: Period of reading files. Changed segment files are written at once.
READ_SECONDS = 2.0
#: How long a reading is valid.
FRESH_SECONDS = 60.0
#: Period of the search for files of an earlier executor.
TIDY_SECONDS = 60.0
#: Limit of jobs whose files are read; beyond it, the files of the last jobs by name are not read.
JOBS_MAX = 5000
CLOSE_SECONDS = 5.0
LOGGED_MAX = 1000


class Launchers:
    """Support for launchers: call `start`, `update` after each turn of the executor, and `close`.

    Without a setting that needs it, neither the thread nor the server runs.
    """

    def __init__(
        self,
        config: ExecutorConfig,
        *,
        shadow: bool = False,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind the attribution server. *shadow*: write no file. Raises OSError."""
        self._wall, self._monotonic = wall, monotonic
        self._folders = [Path(folder) for folder in config.cycle_info_dirs]
        writes = bool(config.segment_health_dir) and not shadow
        self._segments = Path(config.segment_health_dir) if writes else None
        self.board = attribution.AttributionBoard(config.attribution_wait_seconds)
        self.server: AttributionServer | None = None
        if config.attribution_listen:
            from .attribution_server import AttributionServer

            self.server = AttributionServer(self.board, config.attribution_listen, wall)
        self._lock = threading.Lock()
        self._jobs: tuple[str, ...] = ()
        self._wanted: dict[str, str] | None = None
        self._written: Mapping[str, str] = {}
        self._tidied = -1e9
        self._cycles: dict[str, CycleInfo] = {}
        self._read_at = -1e9
        self._logged: set[str] = set()
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="launcher-files", daemon=True)

    def start(self) -> None:
        """Start the thread and the attribution server."""
        if self._folders or self._segments:
            self._thread.start()
        if self.server is not None:
            self.server.start()

    def close(self) -> None:
        """Stop the thread and the server. Written files stay until the next start, as marks do."""
        self._stopped.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)
        if self.server is not None:
            self.server.close()

    def cycles(self) -> Mapping[str, CycleInfo]:
        """Return the newest cycle of each job; empty if the last reading is older than FRESH_SECONDS."""
        with self._lock:
            is_fresh = self._monotonic() - self._read_at < FRESH_SECONDS
            return dict(self._cycles) if is_fresh else {}

    def refine(self, state: SchedulerState) -> SchedulerState:
        """Return *state* with jobs as their launchers run them: for reports, not for decisions."""
        return with_cycles(state, self.cycles()) if self._folders else state

    def update(self, situation: Situation, ledger: ExecutorLedger) -> None:
        """Update the view of the attribution server, the wanted files and the jobs to read."""
        state = situation.scheduler
        if self.server is not None:
            self.board.view = attribution.health_view(
                state, self.cycles(), situation.advice.values(), self.board.view, situation.now, is_live=situation.is_live,
            )  # fmt: skip
        wanted = launcher_segments.wanted_files(state, ledger) if self._segments else {}
        with self._lock:
            self._jobs = tuple(sorted(allocations(state))[:JOBS_MAX]) if self._folders else ()
            is_new, self._wanted = wanted != self._wanted, wanted
        if is_new:
            self._wake.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.turn()
            except Exception:  # a thread must not end unseen
                log.exception("launcher files")
            self._wake.wait(READ_SECONDS)
            self._wake.clear()

    def turn(self) -> None:
        """Write the wanted files and read the cycles once."""
        with self._lock:
            jobs, wanted = self._jobs, self._wanted
        if self._segments is not None and wanted is not None:
            self._write(self._segments, wanted)
        if self._folders:
            found = self._read(jobs)
            with self._lock:
                self._cycles, self._read_at = found, self._monotonic()

    def _write(self, folder: Path, wanted: dict[str, str]) -> None:
        now = self._monotonic()
        tidy = wanted != self._written or now - self._tidied > TIDY_SECONDS
        try:
            for problem in launcher_segments.sync(folder, wanted, tidy=tidy):
                self._complain(problem)
        except OSError as error:
            self._complain(f"segment_health_dir {folder}: {error.strerror}")
            return
        self._written = wanted
        if tidy:
            self._tidied = now

    def _read(self, jobs: tuple[str, ...]) -> dict[str, CycleInfo]:
        found: dict[str, CycleInfo] = {}
        for folder in self._folders:
            for job in jobs:
                try:
                    info = read_cycle_info(folder, job)
                except CycleInfoError as error:
                    self._complain(f"{folder}/cycle_info.{job}: {error}")
                    continue
                except Exception as error:  # noqa: BLE001 - a user's file must not keep those of others from being read
                    self._complain(f"{folder}/cycle_info.{job}: {type(error).__name__}: {error}")
                    continue
                if info is not None and (job not in found or info.started > found[job].started):
                    found[job] = info
        return found

    def _complain(self, line: str) -> None:
        """Log *line*, unless it was logged before."""
        if line in self._logged:
            return
        if len(self._logged) >= LOGGED_MAX:
            self._logged.clear()
        self._logged.add(line)
        log.warning("%s", line)
