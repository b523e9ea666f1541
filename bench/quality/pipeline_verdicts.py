"""Verdicts on the third world (`pipeline_world`): real frames, the real fleet and judge, in process, a second at a time.

A host counts as named as in `stragglers`: DEGRADED or worse, or with evidence that costs speed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from bench.quality.pipeline_readings import DriverReadings, HostAgent
from bench.quality.pipeline_scenario import (
    GPUS,
    GangRun,
    GangScenario,
    HostFault,
)
from bench.quality.pipeline_world import play, step_ends
from bench.quality.straggler_replay import (
    GRAVE,
    JUDGE_SECONDS,
    NEW_HOST,
    SECOND_NS,
    START_NS,
    naive,
)
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.fleet.jobs import ScheduledGang
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.model import HealthState, Reason
from gangline.aggregator.scoring.evaluate import Judgement, evaluate


@dataclass
class HostVerdict:
    """Reports about one host: at which seconds it was named, and why."""

    named: list[float] = field(default_factory=list)
    watched: list[float] = field(default_factory=list)
    #: (rule, reason) -> first second.
    rules: dict[tuple[str, Reason], float] = field(default_factory=dict[tuple[str, Reason], float])
    devices: dict[str, float] = field(default_factory=dict[str, float])


@dataclass
class GangOutcome:
    """Results of one scenario."""

    scenario: GangScenario
    verdicts: dict[int, HostVerdict] = field(default_factory=dict[int, HostVerdict])
    naive: dict[str, frozenset[int]] = field(default_factory=dict[str, frozenset[int]])
    pace_lost: float = 0.0

    @property
    def fault(self) -> HostFault:
        """Return the first fault."""
        return self.scenario.faults[0]

    def first_named(self, fault: HostFault) -> float:
        """Return when the host of *fault* was first named during the fault; NaN: never."""
        times = self.verdicts.get(fault.host, HostVerdict()).named
        return next((t for t in times if fault.onset <= t <= fault.heals), math.nan)

    def reasons(self, host: int) -> set[Reason]:
        """Return the reasons for which *host* was named."""
        return {reason for _, reason in self.verdicts.get(host, HostVerdict()).rules}

    def gpus_named(self, host: int) -> set[int]:
        """Return the named GPUs of *host*, with or without the host."""
        names = self.verdicts.get(host, HostVerdict()).devices
        return {int(name[-12:]) for name in names if name.startswith("GPU-")}

    @property
    def wrong(self) -> list[int]:
        """Return the wrongly named hosts: without a fault, or first named outside its time."""
        faults = {fault.host: fault for fault in self.scenario.faults}
        return [
            host for host, verdict in self.verdicts.items()
            if verdict.named and (host not in faults or not faults[host].onset <= verdict.named[0] <= faults[host].heals)
        ]  # fmt: skip

    @property
    def node_days(self) -> float:
        """Return the days of all hosts without a fault."""
        return (self.scenario.hosts - len(self.scenario.culprits)) * self.scenario.seconds / 86400.0

    def healing_seconds(self, fault: HostFault) -> tuple[float, bool]:
        """Return how long the host was named after the fault's end, and whether that stopped."""
        verdict = self.verdicts.get(fault.host, HostVerdict())
        last = max((t for t in verdict.named if t > fault.heals), default=fault.heals)
        return last - fault.heals, last < self.scenario.seconds - 2 * JUDGE_SECONDS


def judge_scenario(scenario: GangScenario) -> GangOutcome:
    """Play *scenario*, and judge it second by second, with its agents' frames."""
    record = play(scenario)
    random = np.random.default_rng([scenario.seed, 9])
    readings = DriverReadings(record, random)
    fleet, outcome, judged = Fleet(epoch=1), GangOutcome(scenario), None
    agents = [HostAgent(readings, host, random) for host in range(scenario.hosts)]
    running: list[GangRun] = []
    if scenario.is_reported:
        fleet.jobs.scheduled = lambda: [
            ScheduledGang(
                str(run.job_id), tuple(agents[host].name for host in run.hosts), run.gpus.size
            )
            for run in running
        ]
    for agent in agents:
        agent.register_model(fleet)
    late: dict[int, list[tuple[HostAgent, bytes]]] = {}
    for second in range(scenario.seconds):
        now_ns = START_NS + (second + 1) * SECOND_NS
        for number, run in enumerate(record.runs):
            begins, ends = second == int(run.begin), second == int(run.end)
            running += [run] * begins
            if ends:
                running.remove(run)
            if scenario.is_attributed and (begins or ends):
                state = "running" if begins else "ended"
                for agent in (agents[host] for host in run.hosts):
                    for event in agent.processes(run, number, state, second):
                        fleet.observe_event(agent.name, event, now_ns, now_ns)
        for host, agent in enumerate(agents):
            if any(
                silent == host and begin <= second < end for silent, begin, end in scenario.silences
            ):
                agent.track(second)
                continue
            late.setdefault(second + agent.late_seconds, []).append(
                (agent, agent.frame(second, now_ns))
            )
        for agent, sent in late.pop(second, ()):
            fleet.observe(agent.name, read_frame(sent), now_ns)
        fleet.advance(now_ns)
        if second % JUDGE_SECONDS == 0:
            judged = evaluate(fleet, now_ns, judged)
            _note(outcome, judged, float(second))
    end = min([float(scenario.seconds), *(fault.heals for fault in scenario.faults)])
    seconds = (
        readings.of_second(values).mean(axis=1).reshape(scenario.seconds, -1, GPUS)
        for values in (readings.used, readings.power, readings.active)
    )
    outcome.naive = naive(end, *seconds)
    outcome.pace_lost = pace_lost(scenario)
    return outcome


def _note(outcome: GangOutcome, judged: Judgement, second: float) -> None:
    for host, tracked in judged.tracked_symptoms.items():
        for score in tracked.values():
            worst = score.worst
            if (
                not score.active
                or worst.host_state is HealthState.HEALTHY
                or worst.rule.name == NEW_HOST
            ):
                continue
            verdict = outcome.verdicts.setdefault(host, HostVerdict())
            reason = worst.rule.reason if worst.reason is None else worst.reason
            verdict.watched.append(second)
            if worst.host_state not in GRAVE and worst.speed >= 1.0:
                continue
            if not verdict.named or verdict.named[-1] != second:
                verdict.named.append(second)
            verdict.rules.setdefault((worst.rule.name, reason), second)
            verdict.devices.setdefault(worst.device, second)


def pace_lost(scenario: GangScenario) -> float:
    """Return the share of steps that the gang loses while all faults are active.

    It is relative to the same run without the faults.
    """
    if not scenario.faults:
        return 0.0
    begin = max(fault.onset for fault in scenario.faults) + (
        100 if scenario.faults[0].kind == "thermal" else 10
    )
    end = min([*(fault.heals for fault in scenario.faults), float(scenario.seconds)])
    without = replace(
        scenario, faults=tuple(replace(fault, slowdown=0.0) for fault in scenario.faults)
    )
    counts = []
    for played in (scenario, without):
        ends = step_ends(played)
        counts.append(np.diff(np.interp([begin, end], ends, np.arange(ends.size)))[0])
    return float(1 - counts[0] / counts[1]) if counts[1] else 0.0
