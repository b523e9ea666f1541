"""Verdicts on the third world (`pipeline_world`): real frames, the real fleet and judge, in process, a second at a time.

A host counts as named as in `stragglers`: DEGRADED or worse, or with evidence that costs speed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bench.quality.pipeline_readings import DriverReadings, HostAgent
from bench.quality.pipeline_world import GangRun, GangScenario, play
from bench.quality.stragglers import GRAVE, JUDGE_SECONDS, NEW_HOST, SECOND_NS, START_NS
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.fleet.jobs import ScheduledGang
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.model import HealthState, Reason
from gangline.aggregator.scoring.evaluate import Judgement, evaluate


@dataclass
class HostVerdict:
    """What was reported of one host: at which seconds it was named, and why."""

    named: list[float] = field(default_factory=list)
    watched: list[float] = field(default_factory=list)
    #: Rule and reason, by the first second of each.
    rules: dict[tuple[str, Reason], float] = field(default_factory=dict[tuple[str, Reason], float])
    devices: dict[str, float] = field(default_factory=dict[str, float])


@dataclass
class GangOutcome:
    """What came of one scenario."""

    scenario: GangScenario
    verdicts: dict[int, HostVerdict] = field(default_factory=dict[int, HostVerdict])
    naive: dict[str, frozenset[int]] = field(default_factory=dict[str, frozenset[int]])
    pace_lost: float = 0.0


def judge_scenario(scenario: GangScenario) -> GangOutcome:
    """Play *scenario*, and let the judge see it, second by second, as its agents would send it."""
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
        agent.register(fleet)
    late: dict[int, list[tuple[HostAgent, bytes]]] = {}
    for second in range(scenario.seconds):
        now_ns = START_NS + (second + 1) * SECOND_NS
        _tell_jobs(
            fleet,
            record.runs,
            running,
            agents,
            second,
            now_ns,
            is_attributed=scenario.is_attributed,
        )
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
    ends, onset = record.step_ends, min([f.onset for f in scenario.faults], default=scenario.onset)
    before = float(((ends > onset - 100) & (ends < onset)).sum())
    after = float(((ends > onset + 100) & (ends < onset + 200)).sum())
    outcome.pace_lost = 1 - after / before if before else 0.0
    return outcome


def _tell_jobs(
    fleet: Fleet, runs: list[GangRun], running: list[GangRun], agents: list[HostAgent], second: int, now_ns: int,
    *, is_attributed: bool,
) -> None:  # fmt: skip
    for number, run in enumerate(runs):
        begins, ends = second == int(run.begin), second == int(run.end)
        if begins:
            running.append(run)
        if ends:
            running.remove(run)
        if not is_attributed or not (begins or ends):
            continue
        for host in run.hosts:
            for event in agents[host].processes(
                run, number, "running" if begins else "ended", second
            ):
                fleet.observe_event(agents[host].name, event, now_ns, now_ns)


def _note(outcome: GangOutcome, judged: Judgement, second: float) -> None:
    for host, tracked in judged.tracked_symptoms.items():
        for one in tracked.values():
            worst = one.worst
            if (
                not one.active
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
