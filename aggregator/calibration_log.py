"""Stores reports of recoveries and throughputs, and computes price factors from them.

Only the aggregator writes reports, each once. A recovery is durable before it is answered;
throughputs are columns of `outcomes`, which `AdvisoryEngine` writes. Factors are estimated outside
the event loop after new reports, and once an hour as reports age.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import nan
from typing import Any, NamedTuple

from .decisions.calibration import (
    CalibrationRow,
    RecoveryReport,
    ThroughputReport,
    calibration_rows,
    reported_factors,
)
from .decisions.requirements import PRICED_TIERS
from .errors import ServiceUnavailable
from .model import TransactionalStore
from .scoring.calibration import HALF_LIFE_DAYS
from .scoring.reported_factors import NOTHING_REPORTED, ReportedFactors
from .store.rows import table, time_us

log = logging.getLogger(__name__)

#: Maximum reports for an estimate: the newest of 400 days.
RECOVERIES_MAX, THROUGHPUTS_MAX = 10_000, 20_000
#: Maximum remembered incidents; an older incident that is reported again counts again.
INCIDENTS_KNOWN_MAX = 100_000
#: Maximum recoveries waiting for the disk; further ones are rejected.
WAITING_MAX = 10_000
#: Pause after an estimate, as a multiple of its duration: 0.5 s at the maximum of reports.
REST_SHARE = 20.0
#: Reports age in steps of an hour, so that prices stay the same in between.
ESTIMATED_NS = 3600 * 10**9

_RECOVERY_COLUMNS = (
    "time:time incident:str reporter:str decision:str kind:int workload:str fault:time detected:time decided:time "
    "acted:time resumed:time success:bool restarted:bool restored_from_peer:bool lost_gpu_hours:float note:str"
)
_CALIBRATION_COLUMNS = (
    "time:time factor:str workload:str nodes:int unit:str value:float lower:float upper:float source:str "
    "reports:int assumed:float"
)
#: Ranks reports per reporter, newest first: no reporter can displace all others.
_TURNS = "row_number() OVER (PARTITION BY reporter ORDER BY time DESC), time DESC"
_STORED_RECOVERIES = f"""
SELECT
    incident, reporter, epoch_ns(time), kind, coalesce(epoch_ns(fault), 0), coalesce(epoch_ns(detected), 0),
    coalesce(epoch_ns(decided), 0), coalesce(epoch_ns(acted), 0), coalesce(epoch_ns(resumed), 0), success, restarted,
    restored_from_peer
FROM recoveries ORDER BY {_TURNS} LIMIT {RECOVERIES_MAX}
"""
_STORED_THROUGHPUTS = f"""
SELECT outcome, reporter, epoch_ns(time), job, len(hosts), throughput, domains_spanned, communication_share
FROM outcomes WHERE throughput > 0 ORDER BY {_TURNS} LIMIT {THROUGHPUTS_MAX}
"""


#: Reporter, and its id of an incident or an outcome.
ReportKey = tuple[str, str]


class RecoveryRecord(NamedTuple):
    """A recovery with the values that only its row has."""

    report: RecoveryReport
    decision: str
    workload: str
    lost_gpu_hours: float
    note: str

    def row(self) -> tuple[Any, ...]:
        """Return the row for `recoveries`."""
        report = self.report
        times = (
            report.fault_ns,
            report.detect_ns,
            report.decide_ns,
            report.act_ns,
            report.resume_ns,
        )
        return (
            time_us(report.time_ns), report.incident, report.reporter, self.decision, report.kind, self.workload,
            *map(time_us, times), report.success, report.restarted, report.restored_from_peer,
            self.lost_gpu_hours, self.note,
        )  # fmt: skip


class CalibrationLog:
    """Reports and their factors. Belongs to the event loop.

    A report takes effect once `step` has estimated the factors again.
    """

    def __init__(
        self, store: TransactionalStore, now_ns: int, half_life_days: float = HALF_LIFE_DAYS
    ) -> None:
        """Load the stored reports. Blocks for the store."""
        self._store, self._half_life_days = store, half_life_days
        # By (reporter, id), oldest first; ids are unique per reporter.
        self._recoveries: dict[ReportKey, RecoveryReport] = {}
        self._throughputs: dict[ReportKey, ThroughputReport] = {}
        self._incidents: dict[ReportKey, None] = {}
        self._waiting: list[RecoveryRecord] = []
        self._writing = asyncio.Lock()
        self._flushing: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._failed = ""
        #: Factors of the last estimate.
        self.factors: ReportedFactors = NOTHING_REPORTED
        self._has_new = True
        self._estimated_ns, self._rest_until = now_ns, 0.0
        self._restore()
        self.factors = self._estimator(now_ns)()

    def _restore(self) -> None:
        with self._store.reading() as connection:
            recoveries = connection.execute(_STORED_RECOVERIES).fetchall()
            throughputs = connection.execute(_STORED_THROUGHPUTS).fetchall()
            known = connection.execute(
                f"SELECT reporter, incident FROM recoveries ORDER BY {_TURNS} LIMIT ?",
                [INCIDENTS_KNOWN_MAX],
            ).fetchall()
        self._incidents = dict.fromkeys(reversed(known))
        reports = sorted(
            (RecoveryReport(*row) for row in recoveries), key=lambda report: report.time_ns
        )
        self._recoveries = {(report.reporter, report.incident): report for report in reports}
        for outcome, reporter, time_ns, workload, nodes, throughput, spanned, share in sorted(
            throughputs, key=lambda row: row[2]
        ):
            self._throughputs[reporter, outcome] = ThroughputReport(
                outcome, reporter, time_ns, workload, nodes, throughput,
                domains_of(spanned or {}), nan if share is None else share,
            )  # fmt: skip

    def is_known(self, reporter: str, incident: str) -> bool:
        """Return whether *reporter* has reported this recovery before."""
        return (reporter, incident) in self._incidents

    def add_recovery(self, one: RecoveryRecord) -> bool:
        """Add a recovery; return False for a known incident. Raises ServiceUnavailable.

        The recovery is on disk after `persisted`.
        """
        incident = one.report.reporter, one.report.incident
        if incident in self._incidents:
            return False
        if len(self._waiting) >= WAITING_MAX:
            raise ServiceUnavailable(
                f"{WAITING_MAX} recoveries wait for the disk, which does not accept writes. "
                "Report it again later"
            )
        self._incidents[incident] = None
        self._recoveries[incident] = one.report
        _drop_oldest(self._incidents, INCIDENTS_KNOWN_MAX)
        _drop_oldest(self._recoveries, RECOVERIES_MAX)
        self._waiting.append(one)
        self._has_new = True
        return True

    def add_throughputs(self, reports: Iterable[ThroughputReport]) -> None:
        """Add the throughputs of outcomes, ignoring known ones."""
        for report in reports:
            if (report.reporter, report.outcome) not in self._throughputs:
                self._throughputs[report.reporter, report.outcome] = report
                self._has_new = True
        _drop_oldest(self._throughputs, THROUGHPUTS_MAX)

    async def persisted(self) -> None:
        """Return once all recoveries are on disk.

        Raises ServiceUnavailable if the disk fails; the recoveries are then written later.
        """
        # A cancelled caller must not cancel the write, or the rows would be written twice.
        task = asyncio.create_task(self._flush())
        self._flushing.add(task)
        task.add_done_callback(self._flush_done)
        await asyncio.shield(task)

    def _flush_done(self, task: asyncio.Task[None]) -> None:
        self._flushing.discard(task)
        if not task.cancelled():
            task.exception()  # mark the exception as retrieved, even without a waiting caller

    async def _flush(self) -> None:
        async with self._writing:
            if not self._waiting:
                return
            taken, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(self._write_recoveries, [record.row() for record in taken])
            except BaseException as error:
                self._waiting = [*taken, *self._waiting]
                if not isinstance(error, Exception):
                    raise
                raise ServiceUnavailable(
                    f"the report cannot be written to disk yet: {error}. It counts once it is "
                    "written"
                ) from error

    def _write_recoveries(self, rows: Sequence[tuple[Any, ...]]) -> None:
        def put(connection: Any) -> None:
            _insert(connection, "recoveries", table(_RECOVERY_COLUMNS, rows))

        self._store.in_transaction(put)

    def step(self, now_ns: int) -> None:
        """Start a due estimate, and the writing of waiting reports. Never raises."""
        is_due = self._has_new or abs(now_ns - self._estimated_ns) >= ESTIMATED_NS
        busy = self._task is not None and not self._task.done()
        if (is_due or self._waiting) and not busy and time.monotonic() >= self._rest_until:
            self._task = asyncio.get_running_loop().create_task(self._refresh(now_ns))

    async def _refresh(self, now_ns: int) -> None:
        self._has_new, self._estimated_ns = False, now_ns
        try:
            began = time.monotonic()
            self.factors = await asyncio.to_thread(self._estimator(now_ns))
            self._rest_until = time.monotonic() + REST_SHARE * (time.monotonic() - began)
            await self.persisted()
            rows = calibration_rows(self.factors)
            await asyncio.to_thread(self._write_calibration, rows, now_ns)
            self._failed = ""
        except Exception as error:  # noqa: BLE001 - the store reports its failures itself
            self._has_new = True  # retry in the next turn
            if (failed := f"{type(error).__name__}: {error}") != self._failed:
                log.warning("factors of prices cannot be estimated or stored: %s", failed)
                self._failed = failed

    def _estimator(self, now_ns: int) -> Callable[[], ReportedFactors]:
        """Return a function that estimates from the current reports, in any thread."""
        recoveries, throughputs = list(self._recoveries.values()), list(self._throughputs.values())
        return lambda: reported_factors(recoveries, throughputs, now_ns, self._half_life_days)

    def _write_calibration(self, rows: Sequence[CalibrationRow], now_ns: int) -> None:
        def put(connection: Any) -> None:
            connection.execute("DELETE FROM calibration")
            cells = [(time_us(now_ns), *row) for row in rows]
            _insert(connection, "calibration", table(_CALIBRATION_COLUMNS, cells))

        self._store.in_transaction(put)

    async def close(self) -> None:
        """Wait for running writes. Never raises."""
        if self._task is not None:
            with suppress(Exception, asyncio.CancelledError):
                await self._task
        with suppress(Exception):
            await self.persisted()


def domains_of(spanned: Mapping[str, float]) -> tuple[int, ...]:
    """Convert a row's `domains_spanned` to the domains per priced tier of a `ThroughputReport`."""
    return tuple(int(spanned.get(tier.name.lower(), 0)) for tier in PRICED_TIERS)


def _drop_oldest(those: dict[ReportKey, Any], count_max: int) -> None:
    """Reduce *those* to *count_max* by the oldest reports of the most frequent reporters."""
    while len(those) > count_max:
        ((reporter, _),) = Counter(reporter for reporter, _ in those).most_common(1)
        del those[next(key for key in those if key[0] == reporter)]


def _insert(connection: Any, name: str, arrow: Any) -> None:
    connection.register("new_reports", arrow)
    try:
        connection.execute(f"INSERT INTO {name} BY NAME FROM new_reports")
    finally:
        connection.unregister("new_reports")
