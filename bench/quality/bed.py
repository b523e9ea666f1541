"""One recorded host under the real judge: readings by real frames, events as the agent sends them.

The caller advances the time. Findings are collected over the whole recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gangline.agent.collector import CollectOutcome
from gangline.agent.frame_builder import FrameBuilder
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.model import Evidence, HealthState
from gangline.aggregator.scoring.evaluate import Judgement, evaluate
from gangline.aggregator.scoring.rules.agent import RECEIVED_SECONDS_MIN
from gangline.contract.block import Block
from gangline.contract.signal import Kind
from gangline.contract.signals import TABLES
from gangline.contract.wire import telemetry_pb2

SECOND_NS = 1_000_000_000
START_NS, UPTIME_NS = 1_700_000_000 * SECOND_NS, 3_600 * SECOND_NS
BOOT_ID, RUN_ID = b"B" * 16, b"R" * 16
HOST = "recorded"
OUTCOME_SIGNAL = "collector.outcome_state"


@dataclass
class Bed:
    """A fleet of one host, and its findings so far."""

    devices: Sequence[telemetry_pb2.Device] = ()
    fleet: Fleet = field(default_factory=Fleet)
    now_ns: int = START_NS
    #: Readings with a value, events, and judgements.
    readings: int = 0
    events: int = 0
    judgements: int = 0
    #: (signal of evidence or name of finding, device).
    found: set[tuple[str, str]] = field(default_factory=set)
    states: set[HealthState] = field(default_factory=set)
    #: Messages of the judge about failed rules or an outage.
    degraded: set[str] = field(default_factory=set)
    _framer: FrameBuilder = field(default_factory=lambda: FrameBuilder(RUN_ID, BOOT_ID))
    _sequence: int = 0
    _judged: Judgement | None = None

    def __post_init__(self) -> None:
        self._register(())
        # A new host is UNKNOWN: states are recorded after RECEIVED_SECONDS_MIN. The devices are
        # registered with their first reading, because GPUs without readings are UNKNOWN, too.
        for _ in range(round(RECEIVED_SECONDS_MIN) + 1):
            self._pass([])
        self._register(self.devices)

    def _register(self, devices: Sequence[telemetry_pb2.Device]) -> None:
        self.fleet.register(
            HOST, simulated=False, boot_id=BOOT_ID, devices=devices,
            booted_ns=START_NS - UPTIME_NS,
        )  # fmt: skip

    @property
    def boottime_ns(self) -> int:
        return self.now_ns - START_NS + UPTIME_NS

    def second(self, blocks: Sequence[Block]) -> None:
        """Advance by a second with the readings *blocks*, and judge."""
        self.readings += sum(
            value is not None
            for block in blocks
            for row in range(block.rows)
            for _, value in block.values(row)
        )
        self._pass(blocks)
        self._gather()

    def still(self, seconds: int, blocks: Sequence[Block] = ()) -> None:
        """Advance by *seconds* with the same *blocks* each second, and judge.

        The readings count once.
        """
        if seconds:
            self.second(blocks)
        for _ in range(seconds - 1):
            self._pass(blocks)
            self._gather()

    def _pass(self, blocks: Sequence[Block]) -> None:
        self.now_ns += SECOND_NS
        self._sequence += 1
        data = self._framer.build(self._sequence, self.boottime_ns, self.now_ns, blocks)
        if self._framer.left_out:
            raise ValueError(f"readings that a frame cannot carry: {self._framer.left_out}")
        self.fleet.observe(HOST, read_frame(data), self.now_ns)
        self._judged = evaluate(self.fleet, self.now_ns, self._judged)

    def event(self, event: telemetry_pb2.HealthEvent) -> None:
        """Receive *event* with the current time."""
        self.events += 1
        event.boottime_ns, event.wall_time_ns = self.boottime_ns, self.now_ns
        self.fleet.observe_event(HOST, event, self.now_ns, self.now_ns)

    def _gather(self) -> None:
        assert self._judged is not None
        self.judgements += 1
        (host,) = self._judged.hosts
        self.states.add(host.state)
        self.found |= {(_name(evidence), evidence.device) for evidence in host.evidence}
        self.found |= {(name, subject.split(" ")[0]) for _, name, subject in self.fleet.findings}
        if self._judged.degraded_reason:
            self.degraded.add(self._judged.degraded_reason)


def outcome_name(outcome: CollectOutcome) -> str:
    """Return the finding for a collector's turn; a refused turn (BLIND) and a failed turn differ."""
    return f"{OUTCOME_SIGNAL} {outcome.name}"


def _name(one: Evidence) -> str:
    return (
        outcome_name(CollectOutcome(int(one.value))) if one.signal == OUTCOME_SIGNAL else one.signal
    )


def block_of(table: str, rows: Mapping[str, Mapping[str, float | None]]) -> Block:
    """Return a block of *rows*, by device and column; other columns have no value.

    Raises KeyError for an unknown column.
    """
    block = Block(table, list(rows))
    columns = {signal.column: (index, signal.kind) for index, signal in enumerate(TABLES[table])}
    for row, values in enumerate(rows.values()):
        for name, value in values.items():
            at, kind = columns[name]
            if kind is Kind.GAUGE:
                block.put_float(at, row, value)
            else:
                block.put_int(at, row, None if value is None else int(value))
    return block


def outcomes_of(turns: Iterable[tuple[str, int]]) -> Block:
    """Return the readings of collector turns (name, outcome) as from the agent."""
    rows = {name: {"turn_seconds": 0.001, "outcome_state": outcome} for name, outcome in turns}
    return block_of("collector_10s", rows)
