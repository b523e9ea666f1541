"""Judges the fleet: evaluates all rules over all hosts into an immutable snapshot. No I/O."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...fingerprints.demand import HostSupply
from ...fingerprints.interference import InterferenceModel
from ...fingerprints.sensitivity import KnownWorkloads, Singles
from ..arrays import Flags, Indexes
from ..declared.model import ExchangeRates
from ..fleet.collector_status import CollectorStatus
from ..fleet.fleet import Fleet
from ..fleet.jobs import ResidentJob, SlowedJob
from ..fleet.relative_speeds import slowest, speeds_of_hosts
from ..hazard.model import PRIOR, SPREAD_ASSUMED, HazardModel
from ..model import Snapshot
from ..rule_catalogue.gang import NEIGHBOR, SLOW, SLOW_GPU
from . import hysteresis, missing_readings, rules
from .base_hazard import parts_of, trained
from .declared import in_maintenance, without_noise
from .detectors import RuleFunction, evaluate_with_rollout
from .features import FaultHistory, assemble
from .findings import open_faults, update_findings
from .hysteresis import RuleAndDevice, TrackedSymptom
from .job_faults import JobFault, find_job_faults
from .job_impact import GangWaits, component_speeds, find_waits
from .missing_readings import (
    SettlingHosts,
    awaited_hosts,
    restart_message,
    scores_as_before,
    silent_while_up,
    still_settling,
    unread_symptoms,
)
from .node_facts import GangVerdicts, NodeFacts, node_costs, node_domains, node_facts
from .reported_factors import NOTHING_REPORTED, ReportedFactors
from .results import Gpus, HostInputs, Hosts, score_gpus
from .results import empty_gpus as no_gpus
from .rules import agent, configuration, gang
from .rules.missing_gpus import UNREAD_KEY
from .score import HORIZON_HOURS, NO_FEEDBACK, ObservedSymptom, OutcomeFeedback, score_host
from .score_columns import Columns, pack_hosts
from .shared_faults import attribute_shared
from .symptom import Symptom
from .view import FleetView

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Judgement(Snapshot):
    """A snapshot with the state for the next judgement and for fast answers."""

    dictionary_version: int = 0
    names: tuple[str, ...] = ()
    columns: Columns = field(default_factory=Columns.none)
    collector_statuses: Sequence[tuple[CollectorStatus, ...]] = ()
    tracked_symptoms: Mapping[int, Mapping[RuleAndDevice, TrackedSymptom]] = field(
        default_factory=dict
    )
    #: Hosts whose last score before our restart applies until they reported for long enough.
    settling: SettlingHosts = field(default_factory=dict)
    restarted_ns: int = 0
    gpus: Gpus = field(default_factory=no_gpus)
    faults: FaultHistory = field(default_factory=FaultHistory)
    gang_waits: GangWaits = field(default_factory=GangWaits)
    job_faults: Sequence[JobFault] = ()
    jobs: Mapping[int, str] = field(default_factory=dict)  # by node index: its largest job
    failed: str = ""  # failed parts of judging, as text
    rule_symptoms: Mapping[RuleFunction, Sequence[Symptom]] = field(default_factory=dict)
    model: str = PRIOR  # version of the hazard model
    #: (hosts, components): remaining speed (`scoring/job_impact.py`).
    component_speeds: Singles = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))
    workloads: KnownWorkloads = field(default_factory=KnownWorkloads)
    #: By node index (`aggregator/runs/supply.py`).
    supplies: HostSupply = field(default_factory=HostSupply)
    #: By node index: jobs on partly used nodes, and jobs that a neighbor was measured to slow.
    residents: Mapping[int, tuple[ResidentJob, ...]] = field(default_factory=dict)
    slowed_by_neighbor: Mapping[int, Sequence[SlowedJob]] = field(default_factory=dict)
    #: Learned from co-locations, by form of sharing.
    interference: tuple[InterferenceModel, ...] = ()
    facts: NodeFacts = field(default_factory=NodeFacts)
    #: Reservations: name, and node indexes.
    reservations: tuple[tuple[str, Indexes], ...] = ()
    #: Price factors from scheduler reports.
    reported_factors: ReportedFactors = NOTHING_REPORTED
    #: Exchange rates that operators declared, by tenant.
    tenants: Mapping[str, ExchangeRates] = field(default_factory=dict)


def evaluate(
    fleet: Fleet,
    now_ns: int,
    previous: Snapshot | None,
    model: HazardModel | None = None,
    feedback: OutcomeFeedback = NO_FEEDBACK,
    jump_ns: int = 0,
) -> Judgement:
    """Return the judgement of the fleet at *now_ns* of our clock, following *previous*.

    *model*: hazard model; without a trained model the public record applies. *feedback*: from
    advice and its outcomes. *jump_ns*: forward jump of our clock since *previous*
    (`Fleet.apply_clock_jump`).
    """
    advance_failed = fleet.advance(now_ns)
    view = FleetView(fleet, now_ns)
    same_epoch = _of_this_epoch(fleet, previous)
    settling = still_settling(same_epoch.settling if same_epoch else {}, fleet, now_ns)
    awaited = awaited_hosts(settling, fleet, now_ns)
    silent_seconds = silent_while_up(settling, view.silent_seconds, fleet, now_ns)
    frozen = missing_readings.silent_together(view, silent_seconds) - awaited
    degraded_before = previous.degraded_reason if previous else ""
    rule_symptoms, failed = _run_rules(view, same_epoch, degraded_before)
    # Hosts that are no longer slow in a gang by themselves, by rule.
    beside_neighbor = {
        symptom.host
        for symptoms in rule_symptoms.values()
        for symptom in symptoms
        if symptom.rule is NEIGHBOR
    }
    ended = {
        SLOW.name: gang.hosts_keeping_pace(view) | beside_neighbor,
        SLOW_GPU.name: gang.hosts_with_usual_gpus(view) | beside_neighbor,
    }
    shown = _by_host(rule_symptoms.values())
    tracked = fleet.active_symptoms = _track(view, shown, same_epoch, jump_ns, settling, ended)
    weighed = without_noise(fleet, tracked, now_ns)
    used_model = trained(model)
    is_trained = used_model is not None
    returned = configuration.returned_hosts(view, feedback.returned, is_trained=is_trained)
    transient = _by_host([agent.silent_hosts(view, frozen), returned])
    update_findings(fleet, weighed, settling, now_ns)
    names = _names(fleet, same_epoch)
    known_faults = same_epoch.faults if same_epoch else FaultHistory()
    faults = known_faults.after(fleet.index, open_faults(fleet), now_ns // 1000)
    host_inputs = _host_inputs(view, names, faults, used_model, feedback, frozen, weighed)
    own_symptoms = dict(_observed(view, weighed, transient))
    observed = attribute_shared(names, own_symptoms, feedback.shared_causes)
    scores = {host: score_host(host_inputs[host], symptoms) for host, symptoms in observed.items()}
    live = Hosts(host_inputs, scores)
    hosts = live.with_scores(scores_as_before(settling, live, awaited))
    hosts = in_maintenance(fleet, hosts, now_ns)
    (gang_waits, job_faults), waits_failed = _find_waits(view, observed, degraded_before)
    failed = "; ".join(filter(None, (advance_failed, failed, waits_failed)))
    restart = restart_message(settling, live, awaited, fleet, now_ns)
    outage = missing_readings.outage_message(fleet, frozen)
    is_known = host_inputs.last_received_ns > 0
    return Judgement(
        version=previous.version + 1 if previous else 1,
        computed_ns=now_ns,
        horizon_seconds=HORIZON_HOURS * 3600.0,
        hosts=hosts,
        degraded_reason="; ".join(filter(None, (restart, outage, failed))),
        dictionary_version=fleet.epoch,
        names=names,
        columns=pack_hosts(hosts, view.ended),
        simulation_ended=view.simulation_ended,
        collector_statuses=tuple(fleet.collector_statuses.of(host) for host in range(len(fleet))),
        tracked_symptoms=tracked,
        settling=settling,
        restarted_ns=fleet.restarted_ns,
        gpus=score_gpus(view, live, observed),
        faults=faults,
        gang_waits=gang_waits,
        job_faults=job_faults,
        jobs=fleet.jobs.largest(),
        residents=fleet.jobs.residents(fleet.gpus),
        slowed_by_neighbor=fleet.slowed_by_neighbor,
        failed=failed,
        rule_symptoms=rule_symptoms,
        model=host_inputs.model,
        component_speeds=component_speeds(host_inputs.relative_speed, is_known, observed),
        facts=_facts(fleet, names, hosts, same_epoch, now_ns, _gang_verdicts(observed, ended)),
        tenants=fleet.declared.tenants,
    )


def _of_this_epoch(fleet: Fleet, previous: Snapshot | None) -> Judgement | None:
    """Return *previous* if its node indexes are those of *fleet*."""
    if isinstance(previous, Judgement) and previous.dictionary_version == fleet.epoch:
        return previous
    return None


def _run_rules(
    view: FleetView, previous: Judgement | None, degraded_before: str
) -> tuple[dict[RuleFunction, list[Symptom]], str]:
    """Return the symptoms by rule, and messages of rules that failed.

    A failed rule keeps its active symptoms: not evaluated is not healthy. *degraded_before*: the
    previous degradation, so that a failure in each turn is logged once.
    """
    symptoms: dict[RuleFunction, list[Symptom]] = {}
    failed: list[str] = []
    for rule in rules.DETECTORS:
        try:
            symptoms[rule] = evaluate_with_rollout(rule, view)
        except Exception as error:
            symptoms[rule] = _active_of(rule, previous) if previous else []
            failed.append(f"rule {rule.__name__} failed: {type(error).__name__}: {error}")
            if failed[-1] not in degraded_before:
                log.exception("rule %s failed; the other rules apply", rule.__name__)
    return symptoms, "; ".join(failed)


def _active_of(rule: RuleFunction, previous: Judgement) -> list[Symptom]:
    """Return the symptoms of *rule* in *previous* that were active."""
    tracked = (
        (symptom, previous.tracked_symptoms.get(symptom.host, {}).get(symptom.key))
        for symptom in previous.rule_symptoms.get(rule, ())
    )
    return [symptom for symptom, state in tracked if state is not None and state.active]


def _find_waits(
    view: FleetView, observed: Mapping[int, list[ObservedSymptom]], degraded_before: str
) -> tuple[tuple[GangWaits, Sequence[JobFault]], str]:
    """Return waits in gangs, faults of jobs, and a message on failure: scores need neither."""
    try:
        return (find_waits(view, observed), find_job_faults(view, observed)), ""
    except Exception as error:
        message = f"finding waiting hosts failed: {type(error).__name__}: {error}"
        if message not in degraded_before:
            log.exception("finding waiting hosts failed; scores apply without it")
        return (GangWaits(), ()), message


def _by_host(groups: Iterable[Iterable[Symptom]]) -> dict[int, list[Symptom]]:
    result: dict[int, list[Symptom]] = defaultdict(list)
    for group in groups:
        for symptom in group:
            result[symptom.host].append(symptom)
    return result


def _track(
    view: FleetView,
    symptoms: Mapping[int, list[Symptom]],
    previous: Judgement | None,
    jump_ns: int,
    settling: SettlingHosts,
    ended: Mapping[str, frozenset[int]],
) -> dict[int, dict[RuleAndDevice, TrackedSymptom]]:
    """Return every host's tracked symptoms. *ended*: by rule, the hosts on which it ended.

    Silent and *settling* hosts, and unread parts, keep their symptoms: missing is not healthy.
    After our clock was set back, or forward by *jump_ns*, all symptoms keep their age.
    """
    before: Mapping[int, Mapping[RuleAndDevice, TrackedSymptom]] = {}
    elapsed_ns = 0
    if previous is not None:
        before, elapsed_ns = previous.tracked_symptoms, view.now_ns - previous.computed_ns
    result: dict[int, dict[RuleAndDevice, TrackedSymptom]] = {}
    for host in before.keys() | symptoms.keys():
        tracked, shown = before.get(host, {}), symptoms.get(host, [])
        shown_keys = {symptom.key for symptom in shown}
        stopped = unread_symptoms(view, host, tracked, shown_keys)
        if host in settling:
            restored = (settling[host].symptoms & tracked.keys()) - shown_keys
            stopped |= {key: tracked[key] for key in restored}
        if elapsed_ns < 0 or not view.awake[host]:
            tracked = hysteresis.freeze(tracked, elapsed_ns)
        elif jump_ns:
            tracked = hysteresis.freeze(tracked, jump_ns)
        over = [name for name, hosts in ended.items() if host in hosts]
        after = hysteresis.step(tracked, shown, view.now_ns, over)
        stopped = {key: symptom for key, symptom in stopped.items() if key[0] not in over}
        after |= hysteresis.freeze(stopped, elapsed_ns)
        # even then, symptoms that need no reading, such as events, are taken
        if not view.awake[host]:
            after = {**tracked, **after}
        if after:
            result[host] = after
    return result


def _facts(
    fleet: Fleet,
    names: tuple[str, ...],
    hosts: Hosts,
    previous: Judgement | None,
    now_ns: int,
    verdicts: GangVerdicts,
) -> NodeFacts:
    """Return each node's facts for decisions. *previous*: judgement with the same node indexes."""
    before = previous.facts if previous else None
    domains = node_domains(fleet.declared, names, fleet.epoch, before.domains if before else None)
    costs = node_costs(fleet.declared, names, fleet.epoch, before.costs if before else None)
    seconds = (now_ns - previous.computed_ns) / 1e9 if previous else 0.0
    return node_facts(hosts, domains, before, seconds, costs, verdicts)


def _gang_verdicts(
    observed: Mapping[int, Sequence[ObservedSymptom]], ended: Mapping[str, frozenset[int]]
) -> GangVerdicts:
    """Return hosts that gangs find slow at a normal clock, and hosts as fast as the others."""
    slow: dict[int, float] = {}
    for host, symptoms in observed.items():
        speeds = [o.symptom.speed for o in symptoms if o.symptom.rule.name in ended]
        if speeds:
            slow[host] = min(speeds)
    return GangVerdicts(slow, frozenset().union(*ended.values()))


def _host_inputs(
    view: FleetView,
    names: tuple[str, ...],
    faults: FaultHistory,
    model: HazardModel | None,
    feedback: OutcomeFeedback,
    frozen: frozenset[int],
    tracked: Mapping[int, Mapping[RuleAndDevice, TrackedSymptom]],
) -> HostInputs:
    fleet, speeds = view.fleet, view.speeds
    gpu_host, count = fleet.devices["gpu"].host, len(fleet)
    features = assemble(view, faults, names, frozen)
    log_base, parts = parts_of(model, features, fleet.gpus)
    return HostInputs(
        names=names,
        simulated=fleet.simulated.copy(),
        gpus=fleet.gpus,
        last_received_ns=fleet.last_received_ns.copy(),
        is_reporting=_is_readable(view, tracked),
        relative_speed=speeds_of_hosts(speeds, gpu_host, count),
        speed_error=-slowest(-speeds.error, gpu_host, count),
        log_base=log_base,
        parts=parts,
        features=features,
        model=model.version if model else PRIOR,
        at_ns=view.now_ns,
        spread=model.spread if model else SPREAD_ASSUMED,
        outcomes=feedback.outcomes,
    )


def _is_readable(
    view: FleetView, tracked: Mapping[int, Mapping[RuleAndDevice, TrackedSymptom]]
) -> Flags:
    """Return reporting hosts with their GPUs, if any, read; other hosts get wide intervals."""
    unread = [
        host
        for host, symptoms in tracked.items()
        if (key := UNREAD_KEY) in symptoms and symptoms[key].active
    ]
    known = view.awake.copy()
    known[unread] = False
    return known


def _observed(
    view: FleetView,
    tracked: Mapping[int, Mapping[RuleAndDevice, TrackedSymptom]],
    transient: Mapping[int, list[Symptom]],
) -> Iterator[tuple[int, list[ObservedSymptom]]]:
    """Yield each host's active symptoms, if any. *transient*: symptoms without hysteresis."""
    for host in sorted(tracked.keys() | transient.keys()):
        known = tracked.get(host, {}).values()
        observed = [ObservedSymptom(t.worst, t.worst_seen_ns) for t in known if t.active]
        observed += [ObservedSymptom(symptom, view.now_ns) for symptom in transient.get(host, ())]
        if observed:
            yield host, observed


def _names(fleet: Fleet, previous: Judgement | None) -> tuple[str, ...]:
    """Return the names by node index, reusing the previous tuple while no host was added."""
    if previous is not None and len(previous.names) == len(fleet):
        return previous.names
    return tuple(fleet.names)
