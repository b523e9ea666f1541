"""Judging the fleet: all rules over all hosts at one moment, into an immutable snapshot. No I/O."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..counter_deltas import Flags
from ..fleet.collector_status import Source
from ..fleet.fleet import FINDINGS_MAX, Fleet
from ..fleet.peers import slowest, speeds_of_hosts
from ..hazard.events import class_of
from ..hazard.model import PRIOR, SPREAD_ASSUMED, HazardModel
from ..model import Finding, Reason, Snapshot, State
from . import outage
from . import rule as hysteresis
from .declared import in_maintenance, without_noise
from .features import Faults, Standing, assemble
from .gang_waits import Waits, waits
from .restart import Before, carried, unread
from .results import Columns, Gpus, Hosts, Subjects, pack_hosts, score_gpus
from .results import none as no_gpus
from .rule import Hold, Key, StagedRule, Symptom, looked
from .rules import agent as rules_agent
from .rules import clock as rules_clock
from .rules import configuration as rules_configuration
from .rules import events as rules_events
from .rules import fabric as rules_fabric
from .rules import gang as rules_gang
from .rules import gpu as rules_gpu
from .rules import host as rules_host
from .rules import missing_gpus as rules_missing
from .rules import nvlink as rules_nvlink
from .rules import pcie as rules_pcie
from .rules.events import KINDS
from .rules.missing_gpus import UNREAD_KEY
from .score import HORIZON_HOURS, NOTHING, Experience, Seen, parts_of, score_host, trained
from .view import Present

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
    *sorted({kind.rule.name for kind in KINDS.values()}),
)
#: And their classes.
_FAULTS = {name: class_of(name) for name in FAULT_RULES}
#: What costs a host its state: it stands until a reset, a boot, or time ends it, and its end is to be on record. What
#: somebody expects and a host has not is no fault of the host: a slip in a file would make lemons of all. Nor are GPUs
#: that are missing, which somebody may have taken out.
STANDING_RULES = (*FAULT_RULES, "gpu.missing", "hardware.unexpected")
#: With so many findings none is begun that is no fault: a counter stuck on each port of a large fleet, or a slip in a
#: file, leaves room for what hosts are taken out for.
OTHERS_MAX = FINDINGS_MAX // 2
#: All of these: judging begins them and ends them.
JUDGED_FINDINGS = frozenset((*FINDING_RULES, *STANDING_RULES))


def standing_faults(fleet: Fleet) -> Standing:
    """Return the findings that stand and are faults, as training takes them from the record."""
    found = fleet.findings.values()
    return frozenset(
        (f.host, f.since_ns // 1000, _FAULTS[f.name]) for f in found if f.name in _FAULTS
    )


def report(
    fleet: Fleet, holds: Mapping[int, Mapping[Key, Hold]], before: Before, now_ns: int
) -> None:
    """Keep as findings what operators must act on; end, on record, those whose condition is gone.

    A host that is silent keeps its own: nothing of it was looked at again. So does one that was heard
    again only now, after a restart of ours.
    """
    standing: set[tuple[str, str, str]] = set()
    for host, held in holds.items():
        for symptom in (hold.worst for hold in held.values() if hold.active):
            if name := finding_name(symptom):
                key = fleet.names[host], name, finding_subject(name, symptom)
                standing.add(key)
                clears = symptom.clears or symptom.rule.clears
                most = None if name in _FAULTS else OTHERS_MAX
                fleet.find(Finding(*key, symptom.words, now_ns, 0, clears), most)
    for key in [k for k in fleet.findings if k[1] in JUDGED_FINDINGS and k not in standing]:
        if not before.keeps(key, fleet, now_ns):
            fleet.clear(*key)


def finding_name(symptom: Symptom) -> str:
    """Return under which name *symptom* is kept as a finding; "" if it is not, or somebody takes it as noise."""
    rule = symptom.rule.name
    if symptom.reason is Reason.POLICY:
        return ""
    names = FINDING_RULES if symptom.host_state is State.HEALTHY else FINDING_RULES + STANDING_RULES
    return max((n for n in names if rule == n or rule.startswith(f"{n}.")), key=len, default="")


def finding_subject(name: str, symptom: Symptom) -> str:
    """Return what a finding is about: the device, the signal, and the code or variant of it."""
    which = symptom.rule.name.removeprefix(name).lstrip(".")
    told = f" {which}" if which and not symptom.signal.endswith(which) else ""
    return f"{symptom.device} {symptom.signal}{told}"


log = logging.getLogger(__name__)

#: The rules, in no order that matters. To add one: a function here, its counters in `fleet/tracked_signals.py`, its other
#: signals in `fleet/tracked_signals.py` (of others nothing is kept), a test, a fixture.
RULES: tuple[StagedRule, ...] = (
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
    rules_host.dead_holders,
    rules_gang.long_hosts,
    rules_gang.gapped_hosts,
    rules_gang.waiting_hosts,
    rules_gang.congested_jobs,
    rules_events.standing_xids,
    rules_events.standing_sxids,
    rules_events.standing_events,
    rules_agent.new_hosts,
    rules_agent.hung_devices,
    rules_agent.failing_collectors,
    rules_agent.stuck_counters,
    rules_agent.unjudged_devices,
    rules_agent.lost_frames,
    rules_agent.barred_hosts,
    rules_agent.standing_findings,
    rules_configuration.differences,
)


@dataclass(frozen=True, slots=True)
class Judgement(Snapshot):
    """A snapshot with what the next one, and the fast answers, are made from."""

    dictionary_version: int = 0
    names: tuple[str, ...] = ()
    columns: Columns = field(default_factory=Columns.none)
    sources: Sequence[tuple[Source, ...]] = ()
    holds: Mapping[int, Mapping[Key, Hold]] = field(default_factory=dict)
    before: Before = field(default_factory=Before)
    gpus: Gpus = field(default_factory=no_gpus)
    faults: Faults = field(default_factory=Faults)
    waits: Waits = field(default_factory=Waits)
    jobs: Mapping[int, str] = field(default_factory=dict)  # by node index: its largest job
    failed: str = ""  # parts of judging, in words
    saw: Mapping[StagedRule, Sequence[Symptom]] = field(default_factory=dict)
    model: str = PRIOR  # of the hazard


def judge(
    fleet: Fleet,
    now_ns: int,
    previous: Snapshot | None,
    before: Before | None = None,
    model: HazardModel | None = None,
    experience: Experience = NOTHING,
    leapt_ns: int = 0,
) -> Judgement:
    """Return the fleet as it is at *now_ns* of our clock, following *previous*.

    *before*: what was known before a restart, for the first judgement after it. *model*: of the hazard; None, or a prior: none was trained.
    *experience*: what advice and its outcomes tell. *leapt_ns*: by how much our clock was set forward since *previous*
    (`Fleet.leap`).
    """
    unsound = fleet.advance(now_ns)
    present = Present(fleet, now_ns)
    kin = _of_this_epoch(fleet, previous)
    before = (before or (kin.before if kin else Before())).by(now_ns, leapt_ns)
    unheard = before.waiting(fleet, now_ns)
    listened = before.listened_seconds(present.silent_seconds, fleet, now_ns)
    frozen = outage.silent_together(present, listened) - unheard
    told = previous.degraded_reason if previous else ""
    saw, failed = _look(present, kin, told)
    holds = fleet.held = _hold(present, _by_host(saw.values()), kin, leapt_ns, before)
    counting = without_noise(fleet, holds, now_ns)
    passing = _by_host(
        [
            rules_agent.silent_hosts(present, frozen),
            rules_configuration.returned_hosts(
                present, experience.returned, is_trained=trained(model) is not None
            ),
        ]
    )
    report(fleet, counting, before, now_ns)
    names = _names(fleet, kin)
    faults = (kin.faults if kin else before.faults).after(
        fleet.index, standing_faults(fleet), now_ns // 1000
    )
    subjects = _subjects(present, names, faults, trained(model), experience, frozen, counting)
    seen = dict(_seen(present, counting, passing))
    live = Hosts(subjects, {host: score_host(subjects[host], each) for host, each in seen.items()})
    hosts, before = carried(before, live, fleet, now_ns, holds)
    hosts = in_maintenance(fleet, hosts, now_ns)
    whose, unexplained = _whose(present, seen, told)
    failed = "; ".join(filter(None, (unsound, failed, unexplained)))
    since_restart = before.words(len(fleet), len(unheard), now_ns)
    degraded = since_restart, outage.words(fleet, frozen), failed
    return Judgement(
        version=previous.version + 1 if previous else 1,
        computed_ns=now_ns,
        horizon_seconds=HORIZON_HOURS * 3600.0,
        hosts=hosts,
        degraded_reason="; ".join(words for words in degraded if words),
        dictionary_version=fleet.epoch,
        names=names,
        columns=pack_hosts(hosts, present.ended),
        sources=tuple(fleet.sources.of(host) for host in range(len(fleet))),
        holds=holds,
        before=before,
        gpus=score_gpus(present, live, seen),
        faults=faults,
        waits=whose,
        jobs=fleet.jobs.largest(),
        failed=failed,
        saw=saw,
        model=subjects.model,
    )


def _of_this_epoch(fleet: Fleet, previous: Snapshot | None) -> Judgement | None:
    """Return *previous* if its node indexes are those of *fleet*."""
    if isinstance(previous, Judgement) and previous.dictionary_version == fleet.epoch:
        return previous
    return None


def _look(
    present: Present, previous: Judgement | None, told: str
) -> tuple[dict[StagedRule, list[Symptom]], str]:
    """Return what each rule sees, and words for those that failed: one must not blind the others.

    What counted of a failing one stands meanwhile: not looked at is not healthy. *told*: what was degraded before; what
    fails once a second is logged once.
    """
    saw: dict[StagedRule, list[Symptom]] = {}
    failed: list[str] = []
    for rule in RULES:
        try:
            saw[rule] = looked(rule, present)
        except Exception as error:
            saw[rule] = _counted_of(rule, previous) if previous else []
            failed.append(f"rule {rule.__name__} failed: {type(error).__name__}: {error}")
            if failed[-1] not in told:
                log.exception("rule %s failed; the others stand", rule.__name__)
    return saw, "; ".join(failed)


def _counted_of(rule: StagedRule, previous: Judgement) -> list[Symptom]:
    """Return what *rule* saw in the judgement before, as far as it counted."""
    held = (
        (one, previous.holds.get(one.host, {}).get(one.key)) for one in previous.saw.get(rule, ())
    )
    return [one for one, hold in held if hold is not None and hold.active]


def _whose(present: Present, seen: Mapping[int, list[Seen]], told: str) -> tuple[Waits, str]:
    """Return who waits for whom, and words if that failed: what only explains must not stop what it explains."""
    try:
        return waits(present, seen), ""
    except Exception as error:
        words = f"who waits for whom failed: {type(error).__name__}: {error}"
        if words not in told:
            log.exception(
                "who waits for whom failed; scores stand, their hosts are told of no other"
            )
        return Waits(), words


def _by_host(groups: Iterable[Iterable[Symptom]]) -> dict[int, list[Symptom]]:
    found: dict[int, list[Symptom]] = defaultdict(list)
    for group in groups:
        for symptom in group:
            found[symptom.host].append(symptom)
    return found


def _hold(
    present: Present,
    symptoms: Mapping[int, list[Symptom]],
    previous: Judgement | None,
    leapt_ns: int,
    restarted: Before,
) -> dict[int, dict[Key, Hold]]:
    """Return every host's holds. A host that is silent keeps its own, and so does a part that is not read: missing is not
    healthy.

    Where our clock was set back, or forward by *leapt_ns*, all of them are as old as they were.
    """
    before: Mapping[int, Mapping[Key, Hold]] = restarted.holds
    elapsed_ns = 0
    if previous is not None:
        before, elapsed_ns = previous.holds, present.now_ns - previous.computed_ns
    alike = rules_gang.alike(present)
    result: dict[int, dict[Key, Hold]] = {}
    for host in before.keys() | symptoms.keys():
        held, seen = before.get(host, {}), symptoms.get(host, [])
        stopped = unread(present, host, held, {one.key for one in seen})
        if elapsed_ns < 0 or not present.awake[host]:
            held = hysteresis.paused(held, elapsed_ns)
        elif leapt_ns:
            held = hysteresis.paused(held, leapt_ns)
        over = (rules_gang.SLOW.name,) if host in alike else ()
        after = hysteresis.step(held, seen, present.now_ns, over)
        stopped = {key: hold for key, hold in stopped.items() if key[0] not in over}
        after |= hysteresis.paused(stopped, elapsed_ns)
        if not present.awake[host]:  # what needs no reading, such as an event, is taken even so
            after = {**held, **after}
        if after:
            result[host] = after
    return result


def _subjects(
    present: Present,
    names: tuple[str, ...],
    faults: Faults,
    model: HazardModel | None,
    experience: Experience,
    frozen: frozenset[int],
    holds: Mapping[int, Mapping[Key, Hold]],
) -> Subjects:
    fleet, speeds = present.fleet, present.speeds
    of, count = fleet.devices["gpu"].host, len(fleet)
    features = assemble(present, faults, names, frozen)
    log_base, parts = parts_of(model, features, fleet.gpus)
    return Subjects(
        names=names,
        simulated=fleet.simulated.copy(),
        gpus=fleet.gpus,
        heard_ns=fleet.heard_ns.copy(),
        heard=_known(present, holds),
        relative_speed=speeds_of_hosts(speeds, of, count),
        speed_error=-slowest(-speeds.error, of, count),
        log_base=log_base,
        parts=parts,
        features=features,
        model=model.version if model else PRIOR,
        at_ns=present.now_ns,
        spread=model.spread if model else SPREAD_ASSUMED,
        outcomes=experience.outcomes,
    )


def _known(present: Present, holds: Mapping[int, Mapping[Key, Hold]]) -> Flags:
    """Say which hosts are heard, and their GPUs read, if they have any: of the others the intervals are wide."""
    unread = [
        host for host, held in holds.items() if (key := UNREAD_KEY) in held and held[key].active
    ]
    known = present.awake.copy()
    known[unread] = False
    return known


def _seen(
    present: Present,
    holds: Mapping[int, Mapping[Key, Hold]],
    passing: Mapping[int, list[Symptom]],
) -> Iterator[tuple[int, list[Seen]]]:
    """Yield the symptoms that count of every host that has any. *passing*: those that hold for as long as they show."""
    for host in sorted(holds.keys() | passing.keys()):
        seen = [Seen(h.worst, h.worst_ns) for h in holds.get(host, {}).values() if h.active]
        seen += [Seen(symptom, present.now_ns) for symptom in passing.get(host, ())]
        if seen:
            yield host, seen


def _names(fleet: Fleet, previous: Judgement | None) -> tuple[str, ...]:
    """Return the names by node index, the same tuple as before while no host was added."""
    if previous is not None and len(previous.names) == len(fleet):
        return previous.names
    return tuple(fleet.names)
