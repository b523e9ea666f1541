"""The aggregator over one episode, in process: frames in; named hosts and advice out.

It receives only what a real aggregator can: inventories, places, frames and events (`Outside`). The
truth is known only to `simulated_truth.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from bench.quality.simulated_baselines import BASELINES, Cry
from gangline.aggregator.advisories.advisory import Action, Advisory, AdvisoryState, Basis
from gangline.aggregator.advisories.advisory_limits import AdvisoryLimits
from gangline.aggregator.advisories.messages import Instruction, Publish, Tick
from gangline.aggregator.advisories.observer import Observer
from gangline.aggregator.advisories.state_machine import AdvisoryStateMachine
from gangline.aggregator.advisories.workloads import ScheduledGangs, WorkloadLookup
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest import clocks
from gangline.aggregator.ingest.frame_reader import CATALOGUE
from gangline.aggregator.model import Finding, HealthState, Reason
from gangline.aggregator.scoring.evaluate import Judgement, evaluate
from gangline.aggregator.scoring.results import Hosts
from gangline.aggregator.scoring.view import FleetView
from gangline.contract.frame import decode
from gangline.contract.wire import telemetry_pb2
from gangline.ext.intake import Reader
from gangline.simulator.scenario import HOSTS_MAX
from gangline.simulator.world import STEP_SECONDS, Delivery, WorldStep

JUDGE = "judge"
#: Simultaneous failures within two seconds may appear one step apart.
LIMITS = replace(AdvisoryLimits(), shared_seconds=AdvisoryLimits().shared_seconds + STEP_SECONDS)
#: The same without limits of advice: a limit of hosts out of service must not hide a false drain.
UNLIMITED = replace(
    LIMITS, rack_hosts_max=HOSTS_MAX, job_hosts_max=HOSTS_MAX, cluster_share_max=1.0, open_max=10 * HOSTS_MAX
)  # fmt: skip
#: Age of the hosts outside the episode.
LONG_NS = 3600 * 1_000_000_000


class Outside(Protocol):
    """The view of a world from outside."""

    @property
    def names(self) -> list[str]: ...
    def devices(self, host: int) -> list[telemetry_pb2.Device]: ...
    def labels(self, host: int) -> dict[str, str]: ...
    def frames(self, hosts: Sequence[int], begin: float, end: float) -> Iterator[WorldStep]: ...


@dataclass(slots=True)
class NamedState:
    """A finding about a host, active without a break from *begin* to *end* (seconds of the world)."""

    by: str  # the judge or a baseline
    host: str
    rule: str
    device: str
    state: HealthState
    reason: Reason
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class SimulatedAdvice:
    """Advice that was given or changed.

    Advice about a shared cause has many `hosts`, and `subject` is the cause.
    """

    seconds: float
    name: str
    subject: str
    hosts: tuple[str, ...]
    action: Action
    basis: Basis
    reason: str
    message: str


@dataclass(slots=True)
class Observed:
    """All findings and advice of an episode."""

    named: list[NamedState] = field(default_factory=list[NamedState])
    advised: list[SimulatedAdvice] = field(default_factory=list[SimulatedAdvice])
    steps: int = 0
    #: Reason of doubt about the picture, which suppresses proposals -> number of steps.
    degraded: dict[str, int] = field(default_factory=dict[str, int])


def feed(
    world: Outside, hosts: Sequence[int], begin: float, end: float, limits: AdvisoryLimits = LIMITS
) -> Observed:
    """Feed *hosts* from *begin* to *end* to a new aggregator; return its findings and advice."""
    aggregator = SimulatedAggregator(world, hosts, limits)
    for step in world.frames(hosts, begin, end):
        aggregator.step(step)
    return aggregator.observed


class SimulatedAggregator:
    """Fleet, judge and advice over the hosts of one episode.

    All other hosts are only known to exist, so that limits and outages refer to a full fleet.
    """

    def __init__(
        self, world: Outside, hosts: Sequence[int], limits: AdvisoryLimits = LIMITS
    ) -> None:
        self.observed = Observed()
        self._world, self._fleet = world, Fleet(epoch=1)
        names = world.names
        self._index = {name: host for host, name in enumerate(names)}
        spoken = {names[host] for host in hosts}
        self._others = [name for name in names if name not in spoken]
        self._starts: dict[str, int] = {}
        self._readers: dict[str, Reader] = {}  # per host's stream
        self._clocks: dict[str, clocks.HostClock] = {}
        self._judged: Judgement | None = None
        self._machine = AdvisoryStateMachine(limits)
        self._observer = Observer(
            lambda: self._fleet.declared, WorkloadLookup(self._fleet, ScheduledGangs())
        )
        self._active: dict[tuple[str, Cry], NamedState] = {}
        self._advised: dict[str, tuple[Action, tuple[str, ...]]] = {}

    def step(self, step: WorldStep) -> None:
        """Receive a step's frames, judge, advise, and record the results."""
        self._hear_others(step.now_ns)
        for delivery in step.deliveries:
            self._take(delivery, step.now_ns)
        fleet = self._fleet
        fleet.declared = fleet.declared.with_reported(fleet.reported_inventory.apply_changes())
        self._judged = evaluate(fleet, step.now_ns, self._judged)
        if reason := self._judged.degraded_reason:
            self.observed.degraded[reason] = self.observed.degraded.get(reason, 0) + 1
        self._note(JUDGE, _cries(self._judged), step.seconds)
        present = FleetView(fleet, step.now_ns)
        for name, baseline in BASELINES.items():
            self._note(name, baseline(present), step.seconds)
        self._advise(self._judged, step)
        self.observed.steps += 1

    @property
    def judged(self) -> Judgement | None:
        """Return the last judgement; None before the first step."""
        return self._judged

    def reconnect(self) -> None:
        """Start new streams of the same hosts: another call of `frames` starts over."""
        self._starts.clear()

    def _hear_others(self, now_ns: int) -> None:
        fleet, count = self._fleet, len(self._others)
        if not self.observed.steps:
            for name in self._others:
                # Without GPUs: a host with GPUs but without readings would be UNKNOWN.
                fleet.restore(name, simulated=False, gpus=0, last_received_ns=now_ns)
            fleet.first_received_ns[:count] = now_ns - LONG_NS
        fleet.last_received_ns[:count] = now_ns

    def _take(self, delivery: Delivery, now_ns: int) -> None:
        name, fleet = delivery.host, self._fleet
        if self._starts.get(name) != delivery.starts:
            self._starts[name], self._readers[name] = delivery.starts, Reader(CATALOGUE, decode)
            host = self._index[name]
            fleet.register(
                name,
                simulated=False,  # after a minute of silence it counts as missing, like a real host
                boot_id=delivery.boot_id,
                devices=self._world.devices(host),
                booted_ns=delivery.booted_ns,
                labels=self._world.labels(host),
            )
        frame = self._readers[name].read(delivery.frame)
        fleet.observe(name, frame, now_ns)
        clock = self._clocks.setdefault(name, clocks.HostClock())
        clock.observe(frame.boot_id, frame.boottime_ns, frame.wall_ns, now_ns)
        if abs(clock.error_seconds) > clocks.OFFSET_SECONDS_MAX:
            message = clocks.offset_message(clock.error_seconds)
            fleet.add_finding(Finding(name, "clock.offset", "", message, now_ns))
        elif abs(clock.error_seconds) < clocks.CLEAR_SECONDS_MAX:
            fleet.clear_finding(name, "clock.offset")
        for event in delivery.events:
            fleet.observe_event(name, event, now_ns)

    def _note(self, by: str, cries: Iterable[Cry], seconds: float) -> None:
        """Record current findings: each continues, or begins."""
        now: dict[tuple[str, Cry], NamedState] = {}
        for cry in cries:
            key = by, cry
            known = self._active.get(key)
            if known is None or seconds - known.end > 1.5 * STEP_SECONDS:
                known = self._active[key] = NamedState(by, *cry, seconds, seconds)
                self.observed.named.append(known)
            known.end = seconds
            now[key] = known

    def _advise(self, judged: Judgement, step: WorldStep) -> None:
        machine = self._machine
        instructions: list[Instruction] = []
        for event in [*self._observer.events(machine.state, judged, self._fleet.gpus)]:
            instructions += machine.step(event)
        instructions += machine.step(Tick(step.now_ns))
        for instruction in instructions:
            if (
                isinstance(instruction, Publish)
                and instruction.advisory.state is AdvisoryState.PROPOSED
            ):
                self._proposed(instruction.advisory, step.seconds)

    def _proposed(self, one: Advisory, seconds: float) -> None:
        what = one.action, one.hosts
        if self._advised.get(one.name) != what:
            self._advised[one.name] = what
            self.observed.advised.append(
                SimulatedAdvice(
                    seconds, one.name, one.subject, one.hosts, one.action, one.basis, one.reason, one.message
                )
            )  # fmt: skip


def _cries(judged: Judgement) -> Iterator[Cry]:
    for host, holds in judged.tracked_symptoms.items():
        for hold in holds.values():
            if hold.active:
                worst = hold.worst
                reason = worst.rule.reason if worst.reason is None else worst.reason
                yield judged.names[host], worst.rule.name, worst.device, worst.host_state, reason
    assert isinstance(
        judged.hosts, Hosts
    )  # as in `evaluate`, which creates no objects for healthy hosts
    for score in judged.hosts.computed_scores.values():
        if score.state is HealthState.STALE:
            yield score.host, "host.silent", "host", HealthState.STALE, Reason.STALE_TELEMETRY
