"""Records an executor's steps, and the scheduler's answers to them, in its ledger. No I/O."""

from __future__ import annotations

from . import evictions, model
from .core import is_out, is_owned_by_other, mark_of, store_of
from .evictions import CLOCK_SECONDS
from .ledger import (
    ACCEPTED,
    DOWN,
    DRAIN,
    GIVEN_BACK,
    HOLD,
    NONE,
    REMOVED,
    SET,
    SETTING,
    START,
    Entry,
    ExecutorLedger,
)

#: Note of an executor that was killed while it ended replicas; the replicas are not ended again.
REPLICAS_UNKNOWN = "whether a replica of torchft was ended is not known"


def record_intent(step: model.Step, ledger: ExecutorLedger, situation: model.Situation) -> None:
    """Record in *ledger* that *step* is about to be sent."""
    entry = ledger.get(step.advisory)
    if entry is None:
        return
    match step:
        case model.PlaceHold() | model.Drain():
            if entry.phase != SET:
                entry.phase = SETTING
                node = situation.scheduler.nodes.get(entry.node)
                if node is not None and not node.is_managed:
                    entry.before_state, entry.before_reason = node.state, node.reason
        case model.Requeue(job=job, restarts=restarts) | model.EndStep(job=job, restarts=restarts):
            evictions.record_intent(entry, job, restarts)
        case model.Reboot() | model.ResetGpus():
            entry.phase = SETTING
        case model.KillReplicas():
            entry.replicas = REPLICAS_UNKNOWN
        case _:
            pass


def reconcile(ledger: ExecutorLedger, situation: model.Situation) -> bool:
    """Update *ledger* from the aggregator's and the scheduler's state; return whether anything changed."""
    changed = False
    if not ledger.store and (store := store_of(situation)):
        ledger.store, changed = store, True
    for entry in ledger:
        advice = situation.advice.get(entry.advisory)
        if (
            advice is not None
            and abs(advice.expires - entry.expires) > CLOCK_SECONDS
            and not is_owned_by_other(advice, entry)
        ):
            entry.expires, changed = advice.expires, True
        changed |= evictions.follow_jobs(entry, situation) | _change_mark(entry, situation)
    return changed


def _change_mark(entry: Entry, situation: model.Situation) -> bool:
    """Choose another kind of mark if the scheduler's state made the first ineffective; return whether that changed *entry*."""
    scheduler, node = situation.scheduler, situation.scheduler.nodes.get(entry.node)
    if node is None or entry.phase in (GIVEN_BACK, REMOVED):
        return False
    if entry.mark == HOLD and scheduler.is_held_in_vain(entry.node):
        return evictions.drain_instead(entry, situation)
    has_hold = situation.capabilities.has_hold
    is_overwritten = not node.may_drain if has_hold else is_out(node)
    if entry.mark not in (DRAIN, DOWN) or not is_overwritten:
        return False
    if has_hold:
        suffix = model.EVICT_SUFFIX if entry.action == "EVICT_NOW" else ""
        entry.mark, entry.hold = HOLD, f"{model.HOLD_PREFIX}{entry.advisory}{suffix}"
    is_changed = has_hold or entry.phase != ACCEPTED
    entry.phase, entry.ends = ACCEPTED, 0.0
    return is_changed


def record_accept(ledger: ExecutorLedger, situation: model.Situation, advice: model.Advice) -> None:
    """Record that this executor accepted *advice*. A mark that it set under an earlier lease stays unchanged."""
    entry = ledger.get(advice.name)
    mark, hold = NONE, ""
    if advice.action in model.HOLDING_ACTIONS:
        mark = mark_of(situation, advice)
        hold = advice.hold_name if mark == HOLD else ""
    if entry is not None and (entry.mark, entry.hold) == (mark, hold):
        entry.owner, entry.token, entry.answered = advice.owner, advice.token, ""
        entry.accepted, entry.expires = situation.now, advice.expires
    else:
        entry = Entry(
            advisory=advice.name,
            node=advice.node,
            action=advice.action,
            owner=advice.owner,
            token=advice.token,
            accepted=situation.now,
            expires=advice.expires,
            mark=mark,
            hold=hold,
            replicas=entry.replicas if entry is not None else "",
        )
    ledger.add(entry)


def record_result(step: model.Step, error: str, ledger: ExecutorLedger, now: float) -> None:
    """Record the outcome of *step* in *ledger*; *error* is "" for success."""
    entry = ledger.get(step.advisory)
    if entry is None:
        return
    match step:
        case model.PlaceHold(seconds=seconds) | model.Drain(seconds=seconds) if not error:
            entry.phase, entry.set_at, entry.ends = SET, now, now + seconds
        case model.ExtendHold(seconds=seconds) if not error:
            entry.ends = now + seconds
        case model.RenewLease(note=note) if not error:
            entry.reported = note
        case model.Requeue(job=job):
            evictions.record_requeue(entry, job, error, now)
        case model.EndStep(job=job):
            evictions.record_end_step(entry, job, error, now)
        case model.RemoveHold(hold=hold) if not error and hold == entry.hold:
            entry.phase = REMOVED
        case model.Resume() if not error:
            entry.phase = REMOVED
        case model.StartNow(job=job) if not error:
            entry.jobs[job].state, entry.jobs[job].started = START, now
        case model.Reboot() | model.ResetGpus():
            entry.phase = ACCEPTED if error else SET
        case model.GiveBack():
            entry.phase = GIVEN_BACK
        case model.Forget():
            ledger.remove(step.advisory)
        case _:
            pass


def record_replicas(step: model.KillReplicas, note: str, ledger: ExecutorLedger) -> None:
    """Record in *ledger* the outcome for the replicas; it becomes part of the answer's note."""
    entry = ledger.get(step.advisory)
    if entry is not None:
        entry.replicas = note[: evictions.JOB_NOTE_CHARACTERS_MAX]
