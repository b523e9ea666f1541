"""Judging the fleet: all rules over all hosts at one moment, into an immutable snapshot. No I/O."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...fingerprints.sensitivity import KnownWorkloads, Singles
from ..counter_deltas import Flags, Indexes
from ..declared.model import ExchangeRates
from ..fleet.collector_status import CollectorStatus
from ..fleet.fleet import FINDINGS_MAX, Fleet
from ..fleet.peers import slowest, speeds_of_hosts
from ..hazard.events import class_of
from ..hazard.model import PRIOR, SPREAD_ASSUMED, HazardModel
from ..model import Finding, HealthState, Reason, Snapshot
from . import outage
from . import rule as hysteresis
from .components import component_speeds
from .declared import in_maintenance, without_noise
from .features import FaultHistory, OpenFaults, assemble
from .gang_waits import GangWaits, find_waits
from .node_facts import GangVerdicts, NodeFacts, node_costs, node_domains, node_facts
from .reported_factors import NOTHING_REPORTED, ReportedFactors
from .restart import RestartState, carry_over, unread_symptoms
from .results import Columns, Gpus, HostInputs, Hosts, pack_hosts, score_gpus
from .results import empty_gpus as no_gpus
from .rule import RuleAndDevice, RuleFunction, Symptom, TrackedSymptom, evaluate_with_rollout
from .rules import agent as rules_agent
from .rules import clock as rules_clock
from .rules import configuration as rules_configuration
from .rules import congestion as rules_congestion
from .rules import events as rules_events
from .rules import fabric as rules_fabric
from .rules import gang as rules_gang
from .rules import gang_links as rules_gang_links
from .rules import gpu as rules_gpu
from .rules import host as rules_host
from .rules import missing_gpus as rules_missing
from .rules import nvlink as rules_nvlink
from .rules import pcie as rules_pcie
from .rules import runs as rules_runs
from .rules.events import EVENT_KINDS
from .rules.missing_gpus import UNREAD_KEY
from .score import (
    HORIZON_HOURS,
    NO_FEEDBACK,
    ObservedSymptom,
    OutcomeFeedback,
    parts_of,
    score_host,
    trained,
)
from .view import FleetView

# ----------------------------------------------------------------------
# What judging keeps as findings: begun where operators must act on it, ended on record where its
# condition is gone.

#: Rules whose symptoms are findings of their own, whatever they cost.
FINDING_RULES = ("data.lost", "counter.saturated", "devices.left_out")
#: And of these what is a fault of the host, for training and for the time since its return.
FAULT_RULES = (
    "gpu.xid",
    "nvswitch.sxid",
    "gpu.lost",
    "gpu.recovery_action",
    "gpu.remap_pending",
    "gpu.remap_failed",
    "gpu.ecc_uncorrected",
    "folded",
    *sorted({kind.rule.name for kind in EVENT_KINDS.values()}),
)
#: And their classes.
_FAULTS = {name: class_of(name) for name in FAULT_RULES}
#: What costs a host its state: it stands until a reset, a boot, or time ends it, and its end is to be on record. What
#: somebody expects and a host has not is no fault of the host: a slip in a file would make lemons of all. Nor are GPUs
#: that are missing, which somebody may have taken out. What DCGM's watches and policies report may be of their own limits.
PERSISTENT_RULES = (
    *FAULT_RULES, "gpu.missing", "hardware.unexpected",
    "gpu.dcgm_failure", "gpu.dcgm_warning", "gpu.dcgm_policy",
)  # fmt: skip
#: With so many findings none is begun that is no fault: a counter stuck on each port of a large fleet, or a slip in a
#: file, leaves room for what hosts are taken out for.
NON_FAULT_FINDINGS_MAX = FINDINGS_MAX // 2
#: All of these: judging begins them and ends them.
EVALUATED_FINDINGS = frozenset((*FINDING_RULES, *PERSISTENT_RULES))


def open_faults(fleet: Fleet) -> OpenFaults:
    """Return the findings that stand and are faults, as training takes them from the record."""
    found = fleet.findings.values()
    return frozenset(
        (f.host, f.since_ns // 1000, _FAULTS[f.name]) for f in found if f.name in _FAULTS
    )


def update_findings(
    fleet: Fleet,
    tracked: Mapping[int, Mapping[RuleAndDevice, TrackedSymptom]],
    restart_state: RestartState,
    now_ns: int,
) -> None:
    """Keep as findings what operators must act on; end, on record, those whose condition is gone.

    A host that is silent keeps its own: nothing of it was looked at again. So does one that was heard
    again only now, after a restart of ours.
    """
    active: set[tuple[str, str, str]] = set()
    for host, symptoms in tracked.items():
        for symptom in (
            tracked_symptom.worst for tracked_symptom in symptoms.values() if tracked_symptom.active
        ):
            if name := finding_name(symptom):
                key = fleet.names[host], name, finding_subject(name, symptom)
                active.add(key)
                clears = symptom.clears or symptom.rule.clears
                findings_max = None if name in _FAULTS else NON_FAULT_FINDINGS_MAX
                fleet.add_finding(Finding(*key, symptom.message, now_ns, 0, clears), findings_max)
    for key in [k for k in fleet.findings if k[1] in EVALUATED_FINDINGS and k not in active]:
        if not restart_state.retains_finding(key, fleet, now_ns):
            fleet.clear_finding(*key)


def finding_name(symptom: Symptom) -> str:
    """Return under which name *symptom* is kept as a finding; "" if it is not, or somebody takes it as noise."""
    rule = symptom.rule.name
    if symptom.reason is Reason.POLICY:
        return ""
    names = (
        FINDING_RULES
        if symptom.host_state is HealthState.HEALTHY
        else FINDING_RULES + PERSISTENT_RULES
    )
    return max((n for n in names if rule == n or rule.startswith(f"{n}.")), key=len, default="")


def finding_subject(name: str, symptom: Symptom) -> str:
    """Return what a finding is about: the device, the signal, and the code or variant of it."""
    which = symptom.rule.name.removeprefix(name).lstrip(".")
    suffix = f" {which}" if which and not symptom.signal.endswith(which) else ""
    return f"{symptom.device} {symptom.signal}{suffix}"


log = logging.getLogger(__name__)

#: The rules, in no order that matters. To add one: a function here, its counters in `fleet/tracked_signals.py`, its other
#: signals in `fleet/tracked_signals.py` (of others nothing is kept), a test, a fixture.
RULES: tuple[RuleFunction, ...] = (
    rules_clock.slow_gpus,
    rules_gpu.corrected_bursts,
    rules_gpu.lost_data,
    rules_gpu.remaps,
    rules_gpu.lost_gpus,
    rules_gpu.recovery_actions,
    rules_gpu.unseen_gpus,
    rules_missing.missing_gpus,
    rules_missing.unread_hosts,
    rules_pcie.gpu_links,
    rules_pcie.links_above,
    rules_pcie.gpu_pcie_errors,
    rules_nvlink.links,
    rules_nvlink.fabric,
    rules_gpu.broken_memory,
    rules_host.host_memory,
    rules_host.drives,
    rules_host.clocks,
    rules_host.networks,
    rules_host.pauses,
    rules_fabric.retransmitting_ports,
    rules_fabric.ports_down,
    rules_fabric.flapping_ports,
    rules_fabric.interfaces_down,
    rules_fabric.pcie_errors,
    rules_host.contention,
    rules_host.file_systems,
    rules_host.dead_processes,
    rules_gang.slow_hosts,
    rules_gang.slow_gpus,
    rules_gang.capped_members,
    rules_gang.gapped_hosts,
    rules_gang_links.slow_links,
    rules_gang.waiting_hosts,
    rules_runs.slow_hosts,
    rules_congestion.congested_jobs,
    rules_events.active_xids,
    rules_events.active_sxids,
    rules_events.active_events,
    rules_agent.new_hosts,
    rules_agent.hung_devices,
    rules_agent.failing_collectors,
    rules_agent.stuck_counters,
    rules_agent.unjudged_devices,
    rules_agent.lost_frames,
    rules_agent.barred_hosts,
    rules_agent.host_findings,
    rules_configuration.differences,
)


@dataclass(frozen=True, slots=True)
class Judgement(Snapshot):
    """A snapshot with what the next one, and the fast answers, are made from."""

    dictionary_version: int = 0
    names: tuple[str, ...] = ()
    columns: Columns = field(default_factory=Columns.none)
    collector_statuses: Sequence[tuple[CollectorStatus, ...]] = ()
    tracked_symptoms: Mapping[int, Mapping[RuleAndDevice, TrackedSymptom]] = field(
        default_factory=dict
    )
    restart_state: RestartState = field(default_factory=RestartState)
    gpus: Gpus = field(default_factory=no_gpus)
    faults: FaultHistory = field(default_factory=FaultHistory)
    gang_waits: GangWaits = field(default_factory=GangWaits)
    jobs: Mapping[int, str] = field(default_factory=dict)  # by node index: its largest job
    failed: str = ""  # parts of judging, in words
    rule_symptoms: Mapping[RuleFunction, Sequence[Symptom]] = field(default_factory=dict)
    model: str = PRIOR  # of the hazard
    #: (hosts, components): what is left of each (`scoring/components.py`).
    component_speeds: Singles = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))
    workloads: KnownWorkloads = field(default_factory=KnownWorkloads)
    facts: NodeFacts = field(default_factory=NodeFacts)
    #: Of each reservation: its name, and its nodes by index.
    reservations: tuple[tuple[str, Indexes], ...] = ()
    #: Factors of a price as schedulers report them.
    reported_factors: ReportedFactors = NOTHING_REPORTED
    #: Exchange rates that operators declared, by tenant.
    tenants: Mapping[str, ExchangeRates] = field(default_factory=dict[str, ExchangeRates])


def evaluate(
    fleet: Fleet,
    now_ns: int,
    previous: Snapshot | None,
    restart_state: RestartState | None = None,
    model: HazardModel | None = None,
    feedback: OutcomeFeedback = NO_FEEDBACK,
    jump_ns: int = 0,
) -> Judgement:
    """Return the fleet as it is at *now_ns* of our clock, following *previous*.

    *restart_state*: what was known before a restart, for the first judgement after it. *model*: of the hazard; None, or a prior: none was trained.
    *feedback*: what advice and its outcomes tell. *jump_ns*: by how much our clock was set forward since *previous*
    (`Fleet.leap`).
    """
    advance_failed = fleet.advance(now_ns)
    view = FleetView(fleet, now_ns)
    same_epoch = _of_this_epoch(fleet, previous)
    restart_state = (
        restart_state or (same_epoch.restart_state if same_epoch else RestartState())
    ).at_clock(now_ns, jump_ns)
    not_received = restart_state.hosts_waiting(fleet, now_ns)
    silent_seconds = restart_state.silent_since_restart(view.silent_seconds, fleet, now_ns)
    frozen = outage.silent_together(view, silent_seconds) - not_received
    degraded_before = previous.degraded_reason if previous else ""
    rule_symptoms, failed = _run_rules(view, same_epoch, degraded_before)
    ended = _ended_by_gangs(view)
    tracked = fleet.active_symptoms = _track(
        view, _by_host(rule_symptoms.values()), same_epoch, jump_ns, restart_state, ended
    )
    weighed = without_noise(fleet, tracked, now_ns)
    transient = _by_host(
        [
            rules_agent.silent_hosts(view, frozen),
            rules_configuration.returned_hosts(
                view, feedback.returned, is_trained=trained(model) is not None
            ),
        ]
    )
    update_findings(fleet, weighed, restart_state, now_ns)
    names = _names(fleet, same_epoch)
    faults = (same_epoch.faults if same_epoch else restart_state.faults).after(
        fleet.index, open_faults(fleet), now_ns // 1000
    )
    host_inputs = _host_inputs(view, names, faults, trained(model), feedback, frozen, weighed)
    observed = dict(_observed(view, weighed, transient))
    live = Hosts(
        host_inputs, {host: score_host(host_inputs[host], each) for host, each in observed.items()}
    )
    hosts, restart_state = carry_over(restart_state, live, fleet, now_ns, tracked)
    hosts = in_maintenance(fleet, hosts, now_ns)
    gang_waits, waits_failed = _find_waits(view, observed, degraded_before)
    failed = "; ".join(filter(None, (advance_failed, failed, waits_failed)))
    since_restart = restart_state.message(len(fleet), len(not_received), now_ns)
    degraded = since_restart, outage.outage_message(fleet, frozen), failed
    return Judgement(
        version=previous.version + 1 if previous else 1,
        computed_ns=now_ns,
        horizon_seconds=HORIZON_HOURS * 3600.0,
        hosts=hosts,
        degraded_reason="; ".join(message for message in degraded if message),
        dictionary_version=fleet.epoch,
        names=names,
        columns=pack_hosts(hosts, view.ended),
        collector_statuses=tuple(fleet.collector_statuses.of(host) for host in range(len(fleet))),
        tracked_symptoms=tracked,
        restart_state=restart_state,
        gpus=score_gpus(view, live, observed),
        faults=faults,
        gang_waits=gang_waits,
        jobs=fleet.jobs.largest(),
        failed=failed,
        rule_symptoms=rule_symptoms,
        model=host_inputs.model,
        component_speeds=component_speeds(
            host_inputs.relative_speed, host_inputs.last_received_ns > 0, observed
        ),
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
    """Return what each rule sees, and words for those that failed: one must not blind the others.

    What counted of a failing one stands meanwhile: not looked at is not healthy. *degraded_before*: what was degraded before; what
    fails once a second is logged once.
    """
    symptoms: dict[RuleFunction, list[Symptom]] = {}
    failed: list[str] = []
    for rule in RULES:
        try:
            symptoms[rule] = evaluate_with_rollout(rule, view)
        except Exception as error:
            symptoms[rule] = _active_of(rule, previous) if previous else []
            failed.append(f"rule {rule.__name__} failed: {type(error).__name__}: {error}")
            if failed[-1] not in degraded_before:
                log.exception("rule %s failed; the others stand", rule.__name__)
    return symptoms, "; ".join(failed)


def _active_of(rule: RuleFunction, previous: Judgement) -> list[Symptom]:
    """Return what *rule* saw in the judgement before, as far as it counted."""
    tracked = (
        (one, previous.tracked_symptoms.get(one.host, {}).get(one.key))
        for one in previous.rule_symptoms.get(rule, ())
    )
    return [
        one
        for one, tracked_symptom in tracked
        if tracked_symptom is not None and tracked_symptom.active
    ]


def _find_waits(
    view: FleetView, observed: Mapping[int, list[ObservedSymptom]], degraded_before: str
) -> tuple[GangWaits, str]:
    """Return who waits for whom, and words if that failed: what only explains must not stop what it explains."""
    try:
        return find_waits(view, observed), ""
    except Exception as error:
        message = f"who waits for whom failed: {type(error).__name__}: {error}"
        if message not in degraded_before:
            log.exception(
                "who waits for whom failed; scores stand, their hosts are told of no other"
            )
        return GangWaits(), message


def _by_host(groups: Iterable[Iterable[Symptom]]) -> dict[int, list[Symptom]]:
    found: dict[int, list[Symptom]] = defaultdict(list)
    for group in groups:
        for symptom in group:
            found[symptom.host].append(symptom)
    return found


def _track(
    view: FleetView,
    symptoms: Mapping[int, list[Symptom]],
    previous: Judgement | None,
    jump_ns: int,
    restart_state: RestartState,
    ended: Mapping[str, frozenset[int]],
) -> dict[int, dict[RuleAndDevice, TrackedSymptom]]:
    """Return every host's holds; by rule, the hosts for which it *ended*. A host that is silent keeps its own, and so does a part that is not read: missing is not
    healthy.

    Where our clock was set back, or forward by *jump_ns*, all of them are as old as they were.
    """
    before: Mapping[int, Mapping[RuleAndDevice, TrackedSymptom]] = restart_state.tracked_symptoms
    elapsed_ns = 0
    if previous is not None:
        before, elapsed_ns = previous.tracked_symptoms, view.now_ns - previous.computed_ns
    result: dict[int, dict[RuleAndDevice, TrackedSymptom]] = {}
    for host in before.keys() | symptoms.keys():
        tracked, shown = before.get(host, {}), symptoms.get(host, [])
        stopped = unread_symptoms(view, host, tracked, {one.key for one in shown})
        if elapsed_ns < 0 or not view.awake[host]:
            tracked = hysteresis.freeze(tracked, elapsed_ns)
        elif jump_ns:
            tracked = hysteresis.freeze(tracked, jump_ns)
        over = [name for name, hosts in ended.items() if host in hosts]
        after = hysteresis.step(tracked, shown, view.now_ns, over)
        stopped = {
            key: tracked_symptom for key, tracked_symptom in stopped.items() if key[0] not in over
        }
        after |= hysteresis.freeze(stopped, elapsed_ns)
        if not view.awake[host]:  # what needs no reading, such as an event, is taken even so
            after = {**tracked, **after}
        if after:
            result[host] = after
    return result


def _ended_by_gangs(view: FleetView) -> dict[str, frozenset[int]]:
    """Return the hosts of which a gang says that they are slow no more, by the rule that had said so."""
    return {
        rules_gang.SLOW.name: rules_gang.hosts_keeping_pace(view),
        rules_gang.SLOW_GPU.name: rules_gang.hosts_with_usual_gpus(view),
    }


def _facts(
    fleet: Fleet,
    names: tuple[str, ...],
    hosts: Hosts,
    previous: Judgement | None,
    now_ns: int,
    verdicts: GangVerdicts,
) -> NodeFacts:
    """Return what decisions need of each node. *previous*: a judgement with the same node indexes."""
    before = previous.facts if previous else None
    domains = node_domains(fleet.declared, names, fleet.epoch, before.domains if before else None)
    costs = node_costs(fleet.declared, names, fleet.epoch, before.costs if before else None)
    seconds = (now_ns - previous.computed_ns) / 1e9 if previous else 0.0
    return node_facts(hosts, domains, before, seconds, costs, verdicts)


def _gang_verdicts(
    observed: Mapping[int, Sequence[ObservedSymptom]], ended: Mapping[str, frozenset[int]]
) -> GangVerdicts:
    """Return which hosts their gangs find slow at a normal clock, and which they find as fast as the others."""
    slow: dict[int, float] = {}
    for host, symptoms in observed.items():
        found = [one.symptom.speed for one in symptoms if one.symptom.rule.name in ended]
        if found:
            slow[host] = min(found)
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
    of, count = fleet.devices["gpu"].host, len(fleet)
    features = assemble(view, faults, names, frozen)
    log_base, parts = parts_of(model, features, fleet.gpus)
    return HostInputs(
        names=names,
        simulated=fleet.simulated.copy(),
        gpus=fleet.gpus,
        last_received_ns=fleet.last_received_ns.copy(),
        is_reporting=_is_readable(view, tracked),
        relative_speed=speeds_of_hosts(speeds, of, count),
        speed_error=-slowest(-speeds.error, of, count),
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
    """Say which hosts are heard, and their GPUs read, if they have any: of the others the intervals are wide."""
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
    """Yield the symptoms that count of every host that has any. *transient*: those that hold for as long as they show."""
    for host in sorted(tracked.keys() | transient.keys()):
        observed = [
            ObservedSymptom(h.worst, h.worst_seen_ns)
            for h in tracked.get(host, {}).values()
            if h.active
        ]
        observed += [ObservedSymptom(symptom, view.now_ns) for symptom in transient.get(host, ())]
        if observed:
            yield host, observed


def _names(fleet: Fleet, previous: Judgement | None) -> tuple[str, ...]:
    """Return the names by node index, the same tuple as before while no host was added."""
    if previous is not None and len(previous.names) == len(fleet):
        return previous.names
    return tuple(fleet.names)
