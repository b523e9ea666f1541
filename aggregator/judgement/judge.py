"""Judging the fleet: all rules over all hosts at one moment, into an immutable snapshot. No I/O."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..fleet.fleet import Fleet
from ..fleet.pace import slowest
from ..fleet.sources import Source
from ..hazard.model import PRIOR, SPREAD_ASSUMED, HazardModel
from ..verdicts import Snapshot
from . import found, hysteresis, outage
from .columns import Columns, pack_hosts
from .declared import in_maintenance, without_noise
from .experience import NOTHING, Experience
from .faults import Faults
from .features import COLUMN, assemble
from .gpus import Gpus, score_gpus
from .gpus import none as no_gpus
from .hosts import Hosts, Subjects
from .hysteresis import Hold, Key
from .model import parts_of, trained
from .present import Present
from .restart import Before, carried
from .rules import agent as rules_agent
from .rules import alone as rules_alone
from .rules import clock as rules_clock
from .rules import expected as rules_expected
from .rules import fabric as rules_fabric
from .rules import gang as rules_gang
from .rules import gpu as rules_gpu
from .rules import hangs as rules_hangs
from .rules import host as rules_host
from .rules import jobs as rules_jobs
from .rules import kernel as rules_kernel
from .rules import memory as rules_memory
from .rules import network as rules_network
from .rules import nvlink as rules_nvlink
from .rules import parts as rules_parts
from .rules import pcie as rules_pcie
from .rules import returned as rules_returned
from .rules import xid as rules_xid
from .scoring import HORIZON_HOURS, Seen, score_host
from .staged import Rule, looked
from .symptoms import Symptom
from .unread import unread
from .waits import Waits, waits

log = logging.getLogger(__name__)

#: The rules, in no order that matters. To add one: a function here, its counters in `fleet/counted.py`, its other
#: signals in `fleet/kept.py` (of others nothing is kept), a test, a fixture.
RULES: tuple[Rule, ...] = (
    rules_clock.slow_gpus,
    rules_memory.corrected_bursts,
    rules_memory.lost_data,
    rules_memory.remaps,
    rules_gpu.lost_gpus,
    rules_gpu.recovery_actions,
    rules_gpu.unseen_gpus,
    rules_pcie.gpu_links,
    rules_pcie.links_above,
    rules_pcie.gpu_pcie_errors,
    rules_nvlink.links,
    rules_nvlink.fabric,
    rules_memory.broken_memory,
    rules_parts.host_memory,
    rules_parts.drives,
    rules_parts.clocks,
    rules_parts.networks,
    rules_parts.pauses,
    rules_fabric.retransmitting_ports,
    rules_fabric.ports_down,
    rules_fabric.flapping_ports,
    rules_fabric.interfaces_down,
    rules_fabric.pcie_errors,
    rules_host.contention,
    rules_host.file_systems,
    rules_jobs.dead_holders,
    rules_gang.long_hosts,
    rules_gang.gapped_hosts,
    rules_alone.waiting_hosts,
    rules_network.congested_jobs,
    rules_xid.standing_xids,
    rules_xid.standing_sxids,
    rules_kernel.standing_events,
    rules_agent.new_hosts,
    rules_hangs.hung_devices,
    rules_agent.failing_collectors,
    rules_agent.stuck_counters,
    rules_agent.lost_frames,
    rules_agent.barred_hosts,
    rules_agent.standing_findings,
    rules_expected.differences,
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
    failed: str = ""  # parts of judging, in words
    saw: Mapping[Rule, Sequence[Symptom]] = field(default_factory=dict)
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
    holds = _hold(present, _by_host(saw.values()), kin, leapt_ns, before)
    counting = without_noise(fleet, holds, now_ns)
    passing = _by_host(
        [
            rules_agent.silent_hosts(present, frozen),
            rules_returned.returned_hosts(
                present, experience.returned, is_trained=trained(model) is not None
            ),
        ]
    )
    found.report(fleet, counting, before, now_ns)
    names = _names(fleet, kin)
    faults = (kin.faults if kin else before.faults).after(
        fleet.index, found.standing_faults(fleet), now_ns // 1000
    )
    subjects = _subjects(present, names, faults, trained(model), experience, frozen)
    seen = dict(_seen(present, counting, passing))
    live = Hosts(subjects, {host: score_host(subjects[host], each) for host, each in seen.items()})
    hosts, before = carried(before, live, fleet, now_ns, holds)
    hosts = in_maintenance(fleet, hosts, now_ns)
    whose, unexplained = _whose(present, seen, told)
    failed = "; ".join(filter(None, (unsound, failed, unexplained)))
    degraded = (
        before.words(len(fleet), len(unheard), now_ns),
        outage.words(fleet, frozen),
        failed,
    )
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
) -> tuple[dict[Rule, list[Symptom]], str]:
    """Return what each rule sees, and words for those that failed: one must not blind the others.

    What counted of a failing one stands meanwhile: not looked at is not healthy. *told*: what was degraded before; what
    fails once a second is logged once.
    """
    saw: dict[Rule, list[Symptom]] = {}
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


def _counted_of(rule: Rule, previous: Judgement) -> list[Symptom]:
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
    """Return every host's holds. A host that is silent keeps its own, and so does a GPU that is not read: missing is not
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
        held = {**held, **hysteresis.paused(stopped, elapsed_ns)} if stopped else held
        over = (rules_gang.SLOW.name,) if host in alike else ()
        after = hysteresis.step(held, seen, present.now_ns, over)
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
        heard=present.awake,
        relative_speed=features[:, COLUMN["speed"]],
        speed_error=-slowest(-speeds.error, of, count),
        log_base=log_base,
        parts=parts,
        features=features,
        model=model.version if model else PRIOR,
        at_ns=present.now_ns,
        spread=model.spread if model else SPREAD_ASSUMED,
        outcomes=experience.outcomes,
    )


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
