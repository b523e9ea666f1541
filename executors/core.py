"""Decides an executor's next steps from advice, scheduler state, ledger and clock, each step with its reason. No I/O.

No state is kept between calls, so an executor that was killed at any point continues from the ledger and the scheduler's
state. If the two differ, the scheduler is right. A person's change is never reverted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from . import evictions
from .evictions import CLOCK_SECONDS
from .ledger import (
    ACCEPTED,
    DOWN,
    DRAIN,
    GIVEN_BACK,
    HOLD,
    REMOVED,
    SET,
    SETTING,
    Entry,
    ExecutorLedger,
    JobProgress,
)
from .model import (
    DONE,
    EVICT_SUFFIX,
    HOLD_PREFIX,
    HOLDING_ACTIONS,
    MOVING_ACTIONS,
    OPEN_STATES,
    REASON_PREFIX,
    REBOOT,
    RESET_GPU,
    RETURN,
    Accept,
    AdoptStore,
    Advice,
    Answer,
    Capabilities,
    Drain,
    ExtendHold,
    Forget,
    GiveBack,
    KillReplicas,
    Node,
    PlaceHold,
    Reboot,
    RemoveHold,
    RenewLease,
    ResetGpus,
    Restore,
    Resume,
    SchedulerState,
    Situation,
    Step,
)

#: Minimum duration of a new hold; a shorter hold is not set.
HOLD_SECONDS_MIN = 1.0
#: The end of a hold is moved if it differs by more than this from the advisory's expiry.
EXTEND_SECONDS_MIN = 30.0
#: A mark that is missing within this time after it was set is read again; after this time, a
#: person is assumed to have removed the mark.
SETTLE_SECONDS = 5.0
#: A mark that is missing within this time before its end has expired: clocks of the two machines differ.
END_MARGIN_SECONDS = 5.0
#: After this time without success the advisory is answered FAILED.
GIVE_UP_SECONDS = 300.0
#: While a job is being requeued the scheduler is read this often.
QUICK_SECONDS = 0.02
#: After the second in which a requeued job may start, the scheduler is read again after this time.
SECOND_MARGIN_SECONDS = 0.05
#: Limit of the reads every QUICK_SECONDS for a job that does not complete.
QUICK_SECONDS_MAX = 60.0
#: Longer notes of an answer are cut.
NOTE_CHARACTERS_MAX = 450

#: Names that executors give to holds.
OUR_HOLD = re.compile(rf"{HOLD_PREFIX}a[0-9]{{1,18}}(?:{EVICT_SUFFIX})?", re.ASCII)

#: Values of the setting `mark`. `auto`: a hold, but for EVICT_NOW a drain if drains end by themselves.
MARKS = ("auto", "hold", "drain")


def decide(situation: Situation, ledger: ExecutorLedger) -> list[Step]:
    """Return the next steps: new marks and moves of jobs before removals. Changes nothing."""
    placed: list[Step] = []
    removed: list[Step] = []
    store = store_of(situation)
    if store and ledger.store and store != ledger.store:
        return _change_store(situation, ledger, store)
    marks = sum(entry.is_marked for entry in ledger)
    returning = {  # nodes that this executor is returning to service
        advice.node
        for advice in situation.advice.values()
        if advice.action == RETURN and advice.state == "ACCEPTED" and ledger.get(advice.name)
    }
    for name in sorted(situation.advice, key=_number):
        advice = situation.advice[name]
        entry = ledger.get(name)
        if entry is not None and is_owned_by_other(advice, entry):
            removed.append(Forget(name, f"{advice.owner} carries it out, token {advice.token}"))
        elif advice.action == RETURN:
            removed += _return(situation, ledger, advice, entry)
        elif entry is None and advice.state == DONE:
            steps = _restore(situation, ledger, advice, marks)
            marks += len(steps)
            placed += steps
        elif entry is None or advice.state in ("PROPOSED", "DEFERRED"):
            steps = _take(situation, ledger, advice, marks)
            marks += len(steps)
            placed += steps
            if entry is not None and not steps and entry.expires <= situation.now:
                removed += _take_back(situation, ledger, entry, "it has expired")
        elif entry.node in returning:
            continue
        elif advice.state == "ACCEPTED":
            placed += _carry_out(situation, advice, entry)
        elif advice.state == DONE and advice.expires > situation.now:
            placed += _uphold(situation, advice, entry) or _move_later(situation, advice, entry)
        else:
            removed += _take_back(situation, ledger, entry, f"the advisory is {advice.state}")
    for entry in ledger:
        if entry.advisory in situation.advice:
            continue
        if situation.is_live:
            removed += _take_back(situation, ledger, entry, "the aggregator no longer knows it")
        elif entry.expires <= situation.now:
            removed += _take_back(situation, ledger, entry, "it has expired")
        else:
            removed += evictions.restart_steps(situation, entry)
    placed += evictions.lost_job_steps(situation, ledger)
    return [*placed, *removed, *_stray_holds(situation.scheduler, ledger)]


def store_of(situation: Situation) -> str:
    return next((advice.store for advice in situation.advice.values() if advice.store), "")


def _change_store(situation: Situation, ledger: ExecutorLedger, store: str) -> list[Step]:
    """Return the steps that undo all marks of the previous store, then the step that begins the ledger for *store*.

    The aggregator was reset or restored from a backup, so an advisory of the same name is about another node, and its token
    is lower.
    """
    if not situation.is_live:
        return []
    why = "the aggregator has another store"
    steps = [step for entry in ledger for step in _take_back(situation, ledger, entry, why)]
    return steps if ledger.entries else [AdoptStore("", why, store)]


def _stray_holds(scheduler: SchedulerState, ledger: ExecutorLedger) -> list[Step]:
    """Return the steps that remove the previous hold of each advisory that changed to or from EVICT_NOW."""
    return [
        RemoveHold(entry.advisory, f"{entry.hold} took its place", name)
        for entry in ledger
        for name in (HOLD_PREFIX + entry.advisory, HOLD_PREFIX + entry.advisory + EVICT_SUFFIX)
        if entry.phase == SET and name != entry.hold and name in scheduler.holds
    ]


def _number(name: str) -> int:
    return int(name[1:])


def is_owned_by_other(advice: Advice, entry: Entry) -> bool:
    """Return whether another executor now owns *advice*; this executor must then leave its marks alone."""
    if advice.state not in ("ACCEPTED", DONE):
        return False
    return advice.token > entry.token or (
        advice.token == entry.token and bool(advice.owner) and advice.owner != entry.owner
    )


def _take(situation: Situation, ledger: ExecutorLedger, advice: Advice, marks: int) -> list[Step]:
    """Return the step that accepts *advice*, if this executor may carry it out."""
    if not situation.is_live or not _is_to_take(situation, advice):
        return []
    if _is_returned(situation, advice):
        return []
    if refusal_reason(situation, ledger, advice, marks):
        return []
    return [Accept(advice.name, f"{advice.action} of {advice.node}: {advice.reason}")]


def _is_to_take(situation: Situation, advice: Advice) -> bool:
    """Return whether *advice* has no owner, or this executor accepted it and was killed before it wrote the ledger."""
    is_lost = advice.state == "ACCEPTED" and _is_own(situation, advice)
    return advice.state == "PROPOSED" or is_lost


def _is_own(situation: Situation, advice: Advice) -> bool:
    """Return whether this executor owns *advice*; the aggregator may put a login before its name."""
    actor = situation.policy.actor
    return bool(actor) and f"/{advice.owner}".endswith(f"/{actor}")


def _restore(
    situation: Situation, ledger: ExecutorLedger, advice: Advice, marks: int
) -> list[Step]:
    """Return the step that restores the mark of *advice*, which is in force and not in the ledger."""
    is_in_force = situation.is_live and advice.expires - situation.now > HOLD_SECONDS_MIN
    if not is_in_force or advice.action not in HOLDING_ACTIONS or not _is_own(situation, advice):
        return []
    if _is_returned(situation, advice):
        return []
    if refusal_reason(situation, ledger, advice, marks):
        return []
    return [Restore(advice.name, f"{advice.action} of {advice.node} is in force: {advice.reason}")]


def _is_returned(situation: Situation, advice: Advice) -> bool:
    """Return whether a later advisory returns the node: until its answer is stored, *advice* is still in force."""
    return any(
        later.action == RETURN
        and later.node == advice.node
        and later.state in ("ACCEPTED", DONE)
        and _number(later.name) > _number(advice.name)
        for later in situation.advice.values()
    )


def refusal_reason(situation: Situation, ledger: ExecutorLedger, advice: Advice, marks: int) -> str:
    """Return why this executor does not carry out *advice*; "" if it does."""
    policy = situation.policy
    if advice.action not in policy.actions:
        return f"{advice.action} is not among the actions that this executor carries out"
    if (known := ledger.tokens.get(advice.name, 0)) > advice.token and advice.token:
        return f"its fencing token {advice.token} is older than {known}"
    node = situation.scheduler.nodes.get(advice.node)
    if node is None:
        return f"{advice.node or 'its host'} is not a node of this scheduler"
    if is_out(node) and not _may_move_beside(situation, advice, node):
        return f"{node.name} is out already: {node.out}"
    entry = ledger.get(advice.name)
    if entry is not None and entry.phase == GIVEN_BACK:
        return "a person removed what was set for it"
    if marks >= policy.marks_max and (entry is None or not entry.is_marked):
        return f"marks_max = {policy.marks_max} marks are set"
    return ""


def is_out(node: Node) -> bool:
    """Return whether a mark that no executor set keeps work off *node*."""
    return bool(node.out) and not node.is_managed


def _may_move_beside(situation: Situation, advice: Advice, node: Node) -> bool:
    """Return whether jobs may be moved off *node*, which takes no new work, without changing the foreign mark."""
    moves = advice.action in MOVING_ACTIONS and situation.capabilities.has_hold
    return moves and (mark_of(situation, advice) == HOLD or node.may_drain)


def mark_of(situation: Situation, advice: Advice) -> str:
    """Return the kind of mark for *advice*: HOLD, DRAIN or DOWN."""
    node = situation.scheduler.nodes[advice.node]
    if not situation.capabilities.has_drain:
        return HOLD
    if situation.capabilities.has_hold:
        if not node.may_drain:
            return HOLD
        if situation.scheduler.is_held_in_vain(node.name):
            return DRAIN
    if advice.action == "EVICT_NOW" and not node.is_responding:
        return DOWN
    if situation.policy.mark == "drain":
        return DRAIN
    drains = advice.action == "EVICT_NOW" and situation.capabilities.drain_ends
    return DRAIN if situation.policy.mark == "auto" and drains else HOLD


def plan(situation: Situation, advice: Advice) -> list[Step]:
    """Return the steps that would carry *advice* out now; `--shadow` prints them."""
    node = situation.scheduler.nodes[advice.node]
    entry = Entry(
        advisory=advice.name,
        node=advice.node,
        action=advice.action,
        owner="",
        token=advice.token,
        accepted=situation.now,
        expires=situation.now + 7200,
        mark=mark_of(situation, advice),
    )
    steps = [_place(situation, advice, entry, node)]
    if advice.action == "EVICT_NOW":
        if situation.policy.kill_replicas:
            steps.append(KillReplicas(advice.name, "", advice.node))
        jobs = evictions.jobs_to_move(situation.scheduler, advice, entry)
        steps += [evictions.leave_step(advice, job) for job in jobs]
    return steps


def _place(situation: Situation, advice: Advice, entry: Entry, node: Node) -> Step:
    seconds = max(entry.expires - situation.now, HOLD_SECONDS_MIN)
    why = f"{advice.action}: {advice.reason}"
    if entry.mark == HOLD:
        name, holds = entry.hold or advice.hold_name, situation.scheduler.holds.values()
        others = any(node.name in hold.nodes and hold.name != name for hold in holds)
        devices = advice.devices if advice.scope == "gpu" else ()
        return PlaceHold(
            advisory=advice.name,
            why=why,
            hold=name,
            node=node.name,
            seconds=seconds,
            overlaps=others,
            devices=devices,
        )
    reason = drain_reason(advice, seconds)
    return Drain(advice.name, why, node.name, reason, seconds, down=entry.mark == DOWN)


def drain_reason(advice: Advice, seconds: float) -> str:
    """Return the reason that identifies a drain as this executor's; its grammar is shared with the checks of hosts."""
    act = "evict" if advice.action == "EVICT_NOW" else "drain"
    cause = "".join(c for c in advice.cause.lower() if c.isalnum() or c in "_.-")[:64]
    return (
        f"{REASON_PREFIX}act={act};cause={cause or 'unknown'};ttl={seconds:.0f};adv={advice.name}"
    )


def _carry_out(situation: Situation, advice: Advice, entry: Entry) -> list[Step]:
    """Return the next steps for an advisory that this executor accepted."""
    steps: list[Step] = []
    if advice.lease_until - situation.now < situation.policy.lease_seconds / 2:
        steps.append(RenewLease(advice.name, "the lease ends soon", entry.reported))
    if entry.answered:
        return steps
    if entry.phase == GIVEN_BACK:
        note = f"a person removed {_named(entry)}: it is not set again"
        return [Answer(advice.name, note, "REJECTED")]
    if advice.action in (REBOOT, RESET_GPU):
        return [*steps, *_repair(situation, advice, entry)]
    is_late = situation.now - entry.accepted > GIVE_UP_SECONDS
    if entry.phase != SET and not entry.set_at and is_late:
        return [Answer(advice.name, "the scheduler did not accept the mark", "FAILED")]
    upheld = _uphold(situation, advice, entry)
    steps += upheld
    if entry.phase != SET or any(isinstance(step, GiveBack | Answer) for step in upheld):
        return steps
    return [*steps, *_move_jobs(situation, advice, entry)]


def _uphold(situation: Situation, advice: Advice, entry: Entry) -> list[Step]:
    """Return the steps that keep the mark until the advisory expires, unless a person removed it."""
    node = situation.scheduler.nodes.get(entry.node)
    if node is None or entry.phase in (GIVEN_BACK, REMOVED):
        return []
    if is_out(node) and not situation.capabilities.has_hold:
        return _yield_to(advice, entry, node)
    if not _is_in_place(situation.scheduler, entry):
        return _set_again(situation, advice, entry, node)
    moved = abs(advice.expires - entry.ends) > EXTEND_SECONDS_MIN
    if entry.phase == SET and moved and entry.mark == HOLD:
        seconds = advice.expires - situation.now
        return [ExtendHold(advice.name, "its cause still holds", entry.hold, seconds)]
    # SETTING: the executor was killed just before or after it sent the command.
    if entry.phase == SETTING or moved:
        return [_place(situation, advice, entry, node)]
    return []


def _is_in_place(scheduler: SchedulerState, entry: Entry) -> bool:
    """Return whether the scheduler shows the mark."""
    if entry.mark == HOLD:
        hold = scheduler.holds.get(entry.hold)
        return hold is not None and entry.node in hold.nodes
    node = scheduler.nodes.get(entry.node)
    return node is not None and node.is_managed


def _set_again(situation: Situation, advice: Advice, entry: Entry, node: Node) -> list[Step]:
    """Return the step that sets the missing mark, or GiveBack if a person removed it."""
    if advice.expires - situation.now < HOLD_SECONDS_MIN:
        return []
    ended_itself = situation.now >= entry.ends - END_MARGIN_SECONDS
    if entry.phase == SET and not ended_itself:
        if situation.now - entry.set_at < SETTLE_SECONDS:
            return []
        # A killed controller restarts from its last saved state, which may lack the mark.
        if situation.scheduler.started > entry.set_at - CLOCK_SECONDS:
            return [_place(situation, advice, entry, node)]
        return [GiveBack(advice.name, f"somebody removed {_named(entry)}", entry.node)]
    return [_place(situation, advice, entry, node)]


def _named(entry: Entry) -> str:
    return entry.hold if entry.mark == HOLD else f"the drain of {entry.node}"


def _yield_to(advice: Advice, entry: Entry, node: Node) -> list[Step]:
    """Return the answer for a node with a foreign drain, in a scheduler with one drain per node and no holds."""
    if advice.state != "ACCEPTED" or entry.answered:
        return []
    note = f"{node.name} is out already ({node.out}), which stays; Gangline's drain follows it"
    return [Answer(advice.name, note, "DONE")]


def _move_jobs(situation: Situation, advice: Advice, entry: Entry) -> list[Step]:
    """Return the steps that move jobs off the node; the answer DONE if none is left to move."""
    scheduler = situation.scheduler
    if advice.action == "AVOID":
        return _finish(advice, entry, scheduler)
    steps = evictions.moving_steps(situation, advice, entry)
    if steps or evictions.is_any_in_motion(entry):
        return steps
    if advice.action == "EVICT_NOW":
        remaining = evictions.remaining_jobs(scheduler, advice, entry)
        if remaining:
            return _report_remaining(advice, entry, remaining)
        return _finish(advice, entry, scheduler)
    return [] if scheduler.running_on(entry.node) else _finish(advice, entry, scheduler)


def _move_later(situation: Situation, advice: Advice, entry: Entry) -> list[Step]:
    """Return the steps for jobs that start on the node, or become known, after the answer."""
    if entry.phase != SET or advice.action == "AVOID":
        return evictions.restart_steps(situation, entry)
    return evictions.moving_steps(situation, advice, entry)


def _report_remaining(
    advice: Advice, entry: Entry, remaining: Mapping[str, JobProgress | None]
) -> list[Step]:
    """Return the step that reports, once, which jobs are still on the node and why.

    Moving these jobs is tried again, and the advisory is not answered DONE.
    """
    notes = [one.note if one else f"job {name} is still there" for name, one in remaining.items()]
    note = "; ".join(notes)[:NOTE_CHARACTERS_MAX]
    if note == entry.reported:
        return []
    return [RenewLease(advice.name, f"jobs must leave {entry.node} and are still there", note)]


def _finish(advice: Advice, entry: Entry, scheduler: SchedulerState) -> list[Step]:
    """Return the answer DONE; its note names the mark and the outcome of each job."""
    if entry.answered:
        return []
    parts = [f"{entry.hold} is in force" if entry.mark == HOLD else f"{entry.node} is drained"]
    hold = scheduler.holds.get(entry.hold)
    if hold is not None and hold.devices:
        parts.append(f"of {', '.join(hold.devices)} alone: other GPUs of {entry.node} continue")
    elif advice.scope == "gpu":
        parts.append("the whole node: the scheduler takes out no single GPU")
    if entry.replicas:
        parts.append(entry.replicas)
    for name, progress in entry.jobs.items():
        parts.append(progress.note or f"job {name} {progress.state}")
    left = [job.name for job in scheduler.running_on(entry.node) if job.name not in entry.jobs]
    if left and advice.action in ("EVICT_NOW", "AVOID"):
        parts.append(f"continues there: {', '.join(left[:5])}")
    return [Answer(advice.name, "; ".join(parts)[:NOTE_CHARACTERS_MAX], "DONE")]


def _repair(situation: Situation, advice: Advice, entry: Entry) -> list[Step]:
    """Return the reboot or the reset, and the answer DONE once it was sent."""
    if entry.answered:
        return []
    if entry.phase == ACCEPTED:
        if advice.action == REBOOT:
            reason = drain_reason(advice, entry.expires - situation.now)
            return [Reboot(advice.name, advice.reason, entry.node, reason)]
        return [ResetGpus(advice.name, advice.reason, entry.node)]
    word = "reboots once it is free" if advice.action == REBOOT else "its GPUs were reset"
    return [Answer(advice.name, f"{entry.node} {word}", "DONE")]


def _return(
    situation: Situation, ledger: ExecutorLedger, advice: Advice, entry: Entry | None
) -> list[Step]:
    """Return the steps that remove the marks of earlier advisories on the node; foreign marks stay."""
    earlier = [one for one in ledger.on_node(advice.node) if one.advisory != advice.name]
    if entry is None and _is_to_take(situation, advice):
        allowed = RETURN in situation.policy.actions and situation.is_live
        if not allowed or not earlier:
            return []
        return [Accept(advice.name, f"{advice.node} is healthy: {advice.reason}")]
    if entry is None:
        return []
    if advice.state != "ACCEPTED":
        return [Forget(advice.name, f"the advisory is {advice.state}")]
    why = f"{advice.node} is well"
    steps = [step for one in earlier for step in _take_back(situation, ledger, one, why)]
    if not earlier and not entry.answered:
        note = f"{advice.node} is back: removed what was set"
        steps.append(Answer(advice.name, note, "DONE"))
    return steps


def _take_back(situation: Situation, ledger: ExecutorLedger, entry: Entry, why: str) -> list[Step]:
    """Return the step that removes the mark, or Forget once it is gone.

    A node that a person has since taken out stays out.
    """
    starts = evictions.restart_steps(situation, entry)
    if entry.is_marked and _is_in_place(situation.scheduler, entry):
        if entry.mark == HOLD:
            return [*starts, RemoveHold(entry.advisory, why, entry.hold)]
        if not any(
            other.is_marked and other.mark in (DRAIN, DOWN)
            for other in ledger.on_node(entry.node)
            if other is not entry
        ):
            return [*starts, Resume(entry.advisory, why, entry.node)]
    if starts:
        return starts
    if evictions.is_any_in_motion(entry) and situation.now - entry.accepted < GIVE_UP_SECONDS:
        return []  # the job is still completing; the delay of its requeue is lifted afterwards
    return [Forget(entry.advisory, why)]


def missing_marks(ledger: ExecutorLedger, scheduler: SchedulerState) -> set[str]:
    """Return the advisories whose marks were set and are no longer in the scheduler."""
    marked = (entry for entry in ledger if entry.is_marked and entry.phase == SET)
    return {entry.advisory for entry in marked if not _is_in_place(scheduler, entry)}


def next_poll_seconds(
    ledger: ExecutorLedger, capabilities: Capabilities, now: float, otherwise: float
) -> float:
    """Return the seconds until the next read of the scheduler: few during a requeue, else *otherwise*."""
    pauses = [otherwise]
    for entry in ledger:
        for progress in entry.jobs.values():
            since = progress.requeued or entry.accepted
            if progress.state not in evictions.IN_MOTION or now - since > QUICK_SECONDS_MAX:
                continue
            wait = 0.0
            if progress.started:
                start = evictions.earliest_start(capabilities, progress)
                wait = start + SECOND_MARGIN_SECONDS - now
            pauses.append(max(wait, QUICK_SECONDS))
    return min(pauses)


def nodes_of_interest(advice: Iterable[Advice], ledger: ExecutorLedger) -> set[str]:
    """Return the nodes of open or DONE advisories and of ledger entries."""
    named = {one.node for one in advice if one.state in (*OPEN_STATES, DONE)}
    return {node for node in named | {entry.node for entry in ledger} if node}


def undo_steps(scheduler: SchedulerState) -> list[Step]:
    """Return the steps that remove every mark of an executor, found by the names of holds and the reasons of drains."""
    steps: list[Step] = [
        RemoveHold(_advisory_of(hold.name), "undo", hold.name)
        for hold in scheduler.holds.values()
        if OUR_HOLD.fullmatch(hold.name)
    ]
    for node in scheduler.nodes.values():
        if node.is_managed and (found := re.search(r";adv=(a[0-9]{1,18})\b", node.reason)):
            steps.append(Resume(found.group(1), "undo", node.name))
    return steps


def _advisory_of(hold: str) -> str:
    return hold.removeprefix(HOLD_PREFIX).removesuffix(EVICT_SUFFIX)
