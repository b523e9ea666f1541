"""A night in a simulated fleet of eight hosts, the same in every run: the subject of `docs/sql.md`.

Time is an argument. The readings come from the simulated world's three faults; this module
overwrites the others. The hosts step in pairs, so that the dead host does not hide the slow host;
this module also reports their jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gangline.agent.frame_builder import FrameBuilder
from gangline.aggregator.advisories.advisory_limits import AdvisoryLimits
from gangline.aggregator.advisories.engine import AdvisoryEngine
from gangline.aggregator.advisories.messages import PutBack, TakenOut
from gangline.aggregator.advisories.observer import Observer
from gangline.aggregator.advisories.outcome_rows import ExpectedOutcome, OutcomeRecord
from gangline.aggregator.advisories.workloads import Gang, ScheduledGangs, WorkloadLookup
from gangline.aggregator.calibration_log import CalibrationLog, RecoveryRecord
from gangline.aggregator.commands import night as night_before
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.decisions.calibration import RecoveryReport
from gangline.aggregator.decisions.recovery import RecoveryKind
from gangline.aggregator.declared.loader import DeclaredFile, parse_files
from gangline.aggregator.declared.model import Declared
from gangline.aggregator.declared.rows import put_places, put_version
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest.findings import ActiveFindings
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.runs.run_log import RunLog
from gangline.aggregator.scoring.evaluate import Judgement, evaluate
from gangline.aggregator.scoring.score_rows import ScoreLog
from gangline.aggregator.store.decision_records import (
    ChoiceRecord,
    DecisionCommit,
    DecisionRecord,
    OptionSummary,
)
from gangline.aggregator.store.journal import StoredEvent
from gangline.aggregator.store.parquet import views as history_parts
from gangline.aggregator.store.rows import ClockRecord, HostRecord, put_clocks
from gangline.aggregator.store.store import Store
from gangline.contract.block import Block
from gangline.contract.signals import index_of
from gangline.contract.wire import telemetry_pb2 as wire
from gangline.simulator.night import HOSTS, JOB_ID, WRONG_CLOCK_HOST, NightWorld

SECOND_NS = 1_000_000_000
#: 2023-11-14 22:13:20 UTC
START_NS = 1_700_000_000 * SECOND_NS
SECONDS = 240
UPTIME_NS = 5 * 3600 * SECOND_NS
BOOT_ID, RUN_ID = b"B" * 16, b"R" * 16

#: Rollups of these readings, without waiting for their export.
ROLLUPS = "".join(
    f"""
CREATE OR REPLACE VIEW rollups.gpu_1s_{grain} AS SELECT
    host, device, date_trunc('{unit}', time) AS time, count(*) AS readings_count,
    avg(sm_clock_hertz) AS sm_clock_hertz_mean, min(sm_clock_hertz) AS sm_clock_hertz_min,
    avg(power_watts) AS power_watts_mean, max(power_watts) AS power_watts_max,
    max(temperature_celsius) AS temperature_celsius_max,
    avg(utilization_ratio) AS utilization_ratio_mean,
    bit_or(clock_event_reasons_flags) AS clock_event_reasons_flags_any,
    max(violation_thermal_nanoseconds) - min(violation_thermal_nanoseconds)
        AS violation_thermal_nanoseconds_increase
FROM readings.gpu_1s GROUP BY ALL;
"""
    for grain, unit in (("1m", "minute"), ("1h", "hour"))
)


#: The aggregator's own figures: it fell behind for half a minute.
OWN = [
    (START_NS + second * SECOND_NS, figure, value, "")
    for second in range(0, SECONDS, 15)
    for figure, value in (
        ("lag_seconds", 12.5 if 90 <= second < 120 else 0.5),
        ("queue_ratio", 0.31 if 90 <= second < 120 else 0.0),
    )
]


#: Measured clocks of hosts: a clock is behind.
CLOCKS = [
    ClockRecord(name, -3.2 if name == WRONG_CLOCK_HOST else 0.004, 0.03, START_NS + 90 * SECOND_NS)
    for name in (f"sim-{number:03}" for number in range(HOSTS))
]


#: Ranks of the night's job that report their steps, in its last half minute.
RANK_OF = {"sim-000": 0, "sim-001": 8}

DECLARED = DeclaredFile("fleet.toml", night_before.declared(START_NS // 1000).encode())


def _reported_steps(rank: int, second: int) -> Block:
    block = Block("step_1s", (f"{JOB_ID}/{rank}",))
    for name, value in (("step_seconds", 1.25), ("spread_seconds", 0.02), ("since_seconds", 0.5)):
        block.put_float(index_of(f"step.{name}"), 0, value)
    for name, number in (
        ("steps_count", 2000 + second),
        ("rank_number", rank),
        ("user_number", 1007),
    ):
        block.put_int(index_of(f"step.{name}"), 0, number)
    return block


def _put_declared(live: Any, declared: Declared) -> None:
    put_version(live, declared, [DECLARED], START_NS)
    put_places(live, declared)


def _put_before(live: Any) -> None:
    """Store the state before the night, and the parts of the history."""
    history_parts.track_parts(live, list(night_before.HOSTS))
    night_before.put_previous_state(live, START_NS // 1000)


@dataclass
class Night:
    """The fleet, its judge and its store, a second at a time."""

    store: Store
    now_ns: int = START_NS
    fleet: Fleet = field(default_factory=lambda: Fleet(epoch=7))
    seen: Judgement | None = None

    def __post_init__(self) -> None:
        self.simulated = NightWorld(UPTIME_NS / SECOND_NS)
        self.findings, self.scores = ActiveFindings(self.fleet), ScoreLog()
        self.runs = RunLog(self.fleet, self.store)
        self.framers = {name: FrameBuilder(RUN_ID, BOOT_ID) for name in self.simulated.names}
        for name in self.simulated.names:
            self._register(name)
        declared = parse_files([DECLARED], START_NS, number=1)
        self.fleet.declared = declared.with_reported(self.fleet.reported_inventory.apply_changes())
        self._before()

    def _register(self, name: str) -> None:
        """Register a host as real: silence of a simulated host raises no finding."""
        devices, labels = self.simulated.devices(name), self.simulated.labels(name)
        index = self.fleet.register(name, simulated=False, boot_id=BOOT_ID, devices=devices,
                                    booted_ns=START_NS - UPTIME_NS, labels=labels)  # fmt: skip
        reported = tuple((d.kind, d.key, dict(d.attributes)) for d in devices)
        self.store.submit_host(
            HostRecord(
                name, index, False, RUN_ID, BOOT_ID, "0.2", "10.0.0.1", labels, START_NS, reported
            ),
            {},
        )

    def _before(self) -> None:
        """A fault of yesterday of a GPU that was in another host then."""
        at_ns = self.now_ns - night_before.EARLIER_FAULT_SECONDS * SECOND_NS
        self._tell(night_before.BROKEN_HOST_BEFORE, night_before.earlier_fault(at_ns), at_ns)

    def struck(self, class_name: str) -> tuple[str, str]:
        return self.simulated.affected_gpu(class_name)

    def event(
        self, host: str, name: str, device: str, *, ago_seconds: int = 0, **more: Any
    ) -> None:
        """Tell an event of *ago_seconds* ago."""
        at_ns = self.now_ns - ago_seconds * SECOND_NS
        boot = "" if ago_seconds else BOOT_ID.hex()
        health_event = wire.HealthEvent(
            event_id=f"{boot}/{name}/{device}/{more.get('process_id', at_ns)}",
            device_kind=name.partition(".")[0], device=device, name=name, count=1,
            wall_time_ns=at_ns, boottime_ns=max(1, at_ns - START_NS + UPTIME_NS), **more,
        )  # fmt: skip
        self._tell(host, health_event, at_ns)

    def _tell(self, host: str, one: wire.HealthEvent, at_ns: int) -> None:
        self.fleet.observe_event(host, one, at_ns, at_ns)
        self.store.append_events([StoredEvent(host, at_ns, at_ns, one)])

    def run(self) -> None:
        for second in range(1, SECONDS + 1):
            self.now_ns = START_NS + second * SECOND_NS
            self._happen(second)
            for name, blocks, events in self.simulated.step(1.0):
                self._hear(name, blocks, second)
                for event in events:
                    event.event_id = f"{BOOT_ID.hex()}/{event.event_id.removeprefix('/')}"
                    event.boottime_ns = self.now_ns - START_NS + UPTIME_NS
                    event.wall_time_ns = self.now_ns
                    self._tell(name, event, self.now_ns)
            self._judge()

    def _happen(self, second: int) -> None:
        if second == 90:
            message = "its clock is 3.2 s behind ours: readings are stored under our time; look at its NTP"
            self.findings.find(
                WRONG_CLOCK_HOST, "clock.offset", message, self.now_ns, expires=False
            )

    def _hear(self, name: str, blocks: list[Block], second: int) -> None:
        if not blocks:
            return
        if second >= SECONDS - 30 and name in RANK_OF:
            blocks = [*blocks, _reported_steps(RANK_OF[name], second)]
        boottime_ns = self.now_ns - START_NS + UPTIME_NS
        data = self.framers[name].build(second, boottime_ns, self.now_ns, blocks)
        frame = read_frame(data)
        self.fleet.observe(name, frame, self.now_ns)
        assert self.store.submit_frame(name, frame, START_NS - UPTIME_NS, lambda _: None)

    def _judge(self) -> None:
        self.seen = evaluate(self.fleet, self.now_ns, self.seen)
        self.runs.observe(self.now_ns, self.seen.job_faults)
        self.store.submit_scores(self.seen, self.scores.take_changed(self.seen))
        self.store.submit_findings(self.findings.changes(self.now_ns))


def _advise(store: Store, one: Night) -> None:
    """Advise in shadow mode on the state at the night's end, and report the end of a job."""
    assert one.seen is not None
    gangs = ScheduledGangs()
    works = WorkloadLookup(one.fleet, gangs)
    observer = Observer(lambda: one.fleet.declared, works)
    limits = AdvisoryLimits(
        gather_seconds=0.0, cluster_share_max=1.0, rack_hosts_max=HOSTS, job_hosts_max=HOSTS
    )
    book = AdvisoryEngine(store, limits, observer, one.now_ns, shadow=True, gangs=gangs)
    until_ns = one.now_ns + 3600 * SECOND_NS
    gang = Gang("123", tuple(one.fleet.names), 64, 1800.0, until_ns, "slurm", one.now_ns)
    book.update_gangs([gang], [])
    member = works.member("sim-007")
    assert member is not None
    out = TakenOut(one.now_ns, "slurm", "burn-in after a new NIC", until_ns, (member,))
    book.declare_out([out], PutBack(one.now_ns, "slurm", ()))
    for seconds in (0, 5):  # a case waits a moment for others of the same cause
        later = replace(one.seen, computed_ns=one.now_ns + seconds * SECOND_NS)
        book.observe(later, one.fleet.gpus)
    asyncio.run(book.flush())
    first = next(iter(book.machine.state.advisories.values()))
    now_us = one.now_ns // 1000
    row = (
        now_us, "job-7/1", first.name, "slurm", "job-7", [*first.hosts], now_us - 3_600_000_000, now_us, True,
        first.hosts[0], "node failed", False, 12.0, 1.0, 0.02, first.reason,
        [0.02, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], "d4c1", 1, 96_000.0, 540.0, [("rack", 1.0)], 0.2,
    )  # fmt: skip
    expected = ExpectedOutcome(0.02, (0.02, 0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0))
    book.add_outcomes([OutcomeRecord("job-7/1", "slurm", True, expected, row, 1.0, 1)], one.now_ns)
    asyncio.run(book.persisted())
    asyncio.run(_report(store, one.now_ns))


async def _report(store: Store, now_ns: int) -> None:
    """Report how two recoveries went, and what throughput a run had."""
    log = CalibrationLog(store, now_ns)
    for number, minutes in enumerate(night_before.RECOVERY_MINUTES, 1):
        fault, detect, decide, act, resume = (
            now_ns - (7200 - 60 * sum(minutes[:index])) * SECOND_NS for index in range(5)
        )
        report = RecoveryReport(
            f"incident-{number}", "slurm", now_ns, int(RecoveryKind.FREE_NODE), fault, detect, decide, act,
            resume, success=True, restarted=False, restored_from_peer=False,
        )  # fmt: skip
        log.add_recovery(RecoveryRecord(report, "r81f", "job-7", 40.0 * number, "GPU lost"))
    log.step(now_ns)
    await log.close()


def _decide(store: Store, now_ns: int) -> None:
    """A scheduler asked where a gang runs best, and took the first option."""
    options = (OptionSummary("plan", 4, 41.2, 3.0, 160.5, 0.961, 0.998),)
    hosts = ("sim-000", "sim-001", "sim-002", "sim-003")
    asked_ns = now_ns - 1800 * SECOND_NS
    record = DecisionRecord(
        "d4c1", asked_ns, "placement", "slurm", "job-9", 7000, 1, "0.1.0", 0.003, False, options, hosts, (), b"", b"", (),
    )  # fmt: skip
    until_ns = asked_ns + 600 * SECOND_NS
    choice = ChoiceRecord("reservations/1", "d4c1", 1, "slurm-main", asked_ns, until_ns, 4)
    assert store.submit_decisions(DecisionCommit((record,), {}, (choice,)))


@contextmanager
def night(folder: Path) -> Iterator[Night]:
    """Yield a night that has passed; the store and the operators' file are in *folder* once it is left."""
    clock_ns = [START_NS]
    config = AggregatorConfig(data=folder, ops_seconds=3600.0)
    store = Store.open(folder, config, lambda: clock_ns[0])
    try:
        played_night = Night(store)
        played_night.run()
        clock_ns[0] = START_NS + SECONDS * SECOND_NS + SECOND_NS // 2
        store.submit_own_health(OWN)
        asyncio.run(played_night.runs.close(played_night.now_ns))
        _advise(store, played_night)
        _decide(store, played_night.now_ns)
        store.in_transaction(lambda live: put_clocks(live, CLOCKS))
        store.in_transaction(lambda live: _put_declared(live, played_night.fleet.declared))
        store.in_transaction(lambda live: live.execute(ROLLUPS))
        store.in_transaction(_put_before)
        yield played_night
    finally:
        store.close(60.0)
