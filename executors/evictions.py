"""Decides which jobs leave a node and when, how often a move is tried, and when a requeued job may start again. No I/O.

A job is also moved if it becomes known later, if the scheduler refused to move it before, or if it returns to the node.
"""

from __future__ import annotations

import math
from dataclasses import replace

from .ledger import (
    ACCEPTED,
    DRAIN,
    HOLD,
    LEFT,
    MOVED,
    REQUEUE,
    START,
    Entry,
    ExecutorLedger,
    JobProgress,
)
from .model import (
    Advice,
    Capabilities,
    EndStep,
    KillReplicas,
    Requeue,
    ScheduledJob,
    SchedulerState,
    Situation,
    StartNow,
    Step,
)

#: A job leaves this long after its checkpoint is due, so that the write can finish.
CHECKPOINT_MARGIN_SECONDS = 60.0
#: The delay of a requeued job is lifted again after this time, if the job still waits.
START_AGAIN_SECONDS = 0.3
#: A requeued job counts as about to start for this long, then as waiting for nodes.
STARTS_SECONDS_MAX = 3.0
#: The scheduler kills a job again that is still completing after this time.
KILLED_AGAIN_SECONDS = 5.0
#: A shorter delay is not lifted, because the job starts soon anyway.
DELAY_SECONDS_MIN = 2.0
#: A longer delay does not come from a requeue: the job's owner has set a start time.
DELAY_SECONDS_MAX = 600.0
#: A requeue without effect is repeated after this time.
STUCK_SECONDS = 60.0
#: Delay before the next attempt for a job that the scheduler refused to move, and its maximum; the delay doubles each
#: time.
RETRY_SECONDS, RETRY_SECONDS_MAX = 5.0, 60.0
#: A job is left on the node after this many returns: the executor's marks do not keep it off.
RETURNS_MAX = 4
#: Smaller differences of two times may come from the clocks of two machines: only a run that
#: started longer after the requeue is a new run.
CLOCK_SECONDS = 2.0
#: A longer note about a job is cut.
JOB_NOTE_CHARACTERS_MAX = 120

#: States of jobs that were stopped and have not started again.
IN_MOTION = (REQUEUE, START)


def jobs_to_move(scheduler: SchedulerState, advice: Advice, entry: Entry) -> list[ScheduledJob]:
    """Return the jobs that must leave the node.

    These are all jobs on the node, but only the advisory's job if single devices are held and this job runs on the node.
    """
    running = scheduler.running_on(advice.node)
    hold = scheduler.holds.get(entry.hold)
    if hold is not None and hold.devices:
        return [job for job in running if job.name == advice.workload] or running
    return running


def moving_steps(situation: Situation, advice: Advice, entry: Entry) -> list[Step]:
    """Return the steps by which jobs leave the node now, and by which requeued jobs restart."""
    steps = restart_steps(situation, entry)
    evicts = advice.action == "EVICT_NOW"
    if evicts and situation.policy.kill_replicas and not entry.replicas:
        why = f"replicas of torchft on {entry.node} are ended before their heartbeat is missed"
        steps.append(KillReplicas(advice.name, why, entry.node))
    if advice.action == "DRAIN_AT_CHECKPOINT":
        due = checkpoint_due(situation, advice, entry)
        evicts = bool(due) and situation.now >= due
    if evicts:
        steps += [
            leave_step(advice, job)
            for job in jobs_to_move(situation.scheduler, advice, entry)
            if _may_leave(entry.jobs.get(job.name), job, situation.now)
        ]
    return steps


def leave_step(advice: Advice, job: ScheduledJob) -> Step:
    """Return the step by which *job* leaves the node: EndStep if the job restarts by itself, else Requeue."""
    if job.restarts_itself:
        why = f"job {job.name} continues with its spare nodes"
        return EndStep(advice.name, why, job.name, advice.node, job.restarts)
    why = f"job {job.name} runs on {advice.node}"
    return Requeue(advice.name, why, job.name, job.restarts, advice.node)


def _may_leave(progress: JobProgress | None, job: ScheduledJob, now: float) -> bool:
    """Return whether a move of *job*, which is on the node, may be tried now."""
    if progress is None:
        return True
    if progress.state == LEFT:
        is_movable = job.may_requeue or job.restarts_itself  # the owner may have changed this
        return is_movable and progress.returns < RETURNS_MAX and now >= progress.retry
    if progress.state == REQUEUE and job.restarts <= progress.restarts:
        return True  # the executor was killed before the command, or before it recorded the result
    return progress.state in IN_MOTION and now - progress.requeued > STUCK_SECONDS


def is_any_in_motion(entry: Entry) -> bool:
    """Return whether a job was stopped and has not started again."""
    return any(progress.state in IN_MOTION for progress in entry.jobs.values())


def remaining_jobs(
    scheduler: SchedulerState, advice: Advice, entry: Entry
) -> dict[str, JobProgress | None]:
    """Return the jobs that must leave and are still on the node, without jobs whose owner forbids a requeue."""
    found = {
        job.name: entry.jobs.get(job.name)
        for job in jobs_to_move(scheduler, advice, entry)
        if job.may_requeue or job.restarts_itself
    }
    return {name: p for name, p in found.items() if p is None or p.state != MOVED}


def checkpoint_due(situation: Situation, advice: Advice, entry: Entry) -> float:
    """Return when the jobs leave: after each job's first checkpoint since the acceptance; 0 if an interval is unknown."""
    times = []
    for job in jobs_to_move(situation.scheduler, advice, entry):
        interval = job.checkpoint_seconds
        if job.name == advice.workload:
            interval = advice.checkpoint_seconds or interval
        if not interval > 0 or not job.started or not job.may_requeue:
            return 0.0
        count = max(0.0, entry.accepted - job.started) // interval + 1
        times.append(job.started + count * interval + min(CHECKPOINT_MARGIN_SECONDS, interval / 4))
    return max(times, default=0.0)


def restart_steps(situation: Situation, entry: Entry) -> list[Step]:
    """Return the steps that lift the scheduler's delay of requeued jobs.

    The scheduler overwrites a start time that is set while a job is completing, so the step is repeated.
    """
    steps: list[Step] = []
    for name, progress in entry.jobs.items():
        job = situation.scheduler.jobs.get(name)
        if progress.state not in IN_MOTION or job is None:
            continue
        is_due = situation.now - progress.started > START_AGAIN_SECONDS
        if job.waits_for_begin_time and is_due:
            # The start time is set before its second begins, so that the scheduler's first pass in this second starts
            # the job.
            earliest = earliest_start(situation.capabilities, progress)
            begin = earliest if earliest > situation.now else 0.0
            why = f"job {name} was requeued by Gangline"
            steps.append(StartNow(entry.advisory, why, name, begin, job.parts))
    return steps


def lost_job_steps(situation: Situation, ledger: ExecutorLedger) -> list[Step]:
    """Return the steps that lift the delay of jobs that the scheduler itself requeued after the loss of a node."""
    if "EVICT_NOW" not in situation.policy.actions:
        return []
    handled = {
        name for entry in ledger for name, one in entry.jobs.items() if one.state in IN_MOTION
    }
    steps: list[Step] = []
    for job in situation.scheduler.jobs.values():
        is_delayed = job.waits_for_begin_time and job.begins - situation.now > DELAY_SECONDS_MIN
        if not is_delayed or job.name in handled:
            continue
        nodes = (situation.scheduler.nodes.get(name) for name in sorted(job.previous_nodes))
        lost = [node.name for node in nodes if node and (node.down or not node.is_responding)]
        if lost:
            why = f"job {job.name} was requeued because {lost[0]} is down"
            is_next = situation.capabilities.restart_next_second
            begin = math.floor(situation.now) + 1.0 if is_next else 0.0
            steps.append(StartNow("", why, job.name, begin, job.parts))
    return steps


def _adopt_requeued_jobs(entry: Entry, situation: Situation) -> None:
    """Add to *entry* jobs that were requeued off the node and wait for their delay.

    The scheduler itself requeued these jobs, or an executor did whose ledger was lost.
    """
    advice = situation.advice.get(entry.advisory)
    if advice is None or advice.action != "EVICT_NOW":
        return
    for name, job in situation.scheduler.jobs.items():
        was_there = entry.node in job.previous_nodes or name == advice.workload
        is_delayed = 0 < job.begins - situation.now <= DELAY_SECONDS_MAX
        if name not in entry.jobs and job.waits_for_begin_time and is_delayed and was_there:
            note = f"job {name} was requeued"
            entry.jobs[name] = JobProgress(START, job.restarts - 1, note, waiting=situation.now)


def earliest_start(capabilities: Capabilities, progress: JobProgress) -> float:
    """Return the earliest start of a requeued job, a whole second since the epoch; 0: at once."""
    if not capabilities.restart_next_second:
        return 0.0
    # The scheduler kills a job again that completes slowly; the later kill then counts.
    soon = progress.waiting - progress.requeued < KILLED_AGAIN_SECONDS
    killed = progress.requeued if soon and progress.requeued else progress.waiting
    return math.floor(killed) + 1.0


def follow_jobs(entry: Entry, situation: Situation) -> bool:
    """Update the progress of the jobs of *entry* from the scheduler's state; return whether it changed."""
    before = {name: replace(progress) for name, progress in entry.jobs.items()}
    _adopt_requeued_jobs(entry, situation)
    for name, progress in entry.jobs.items():
        job = situation.scheduler.jobs.get(name)
        if progress.state in IN_MOTION:
            _follow(entry, progress, name, job, situation)
        if progress.state == MOVED and job is not None:
            if _is_new_run(job, progress) and job.is_running and entry.node in job.nodes:
                _note_return(entry, progress, job, situation)
            elif progress.requeued and not entry.answered:
                progress.note = f"job {name} {_outcome(job)}"
    return before != entry.jobs


def _follow(
    entry: Entry, progress: JobProgress, name: str, job: ScheduledJob | None, situation: Situation
) -> None:
    if job is None or job.ended:
        progress.state, progress.note = MOVED, f"job {name} has ended"
        return
    if job.waits_for_begin_time and not progress.waiting:
        progress.waiting = situation.now
    # The nodes are compared too, because a killed scheduler may have lost the count of restarts.
    runs_again = job.is_running and (_is_new_run(job, progress) or entry.node not in job.nodes)
    is_pending = (
        job.state == "PENDING"
        and not job.waits_for_begin_time
        and (progress.started > 0 or job.restarts > progress.restarts)
        and situation.now - max(progress.started, progress.requeued) > STARTS_SECONDS_MAX
    )
    if runs_again or is_pending:
        progress.state, progress.note = MOVED, f"job {name} {_outcome(job)}"


def _outcome(job: ScheduledJob) -> str:
    if job.ended:
        return "was requeued and has ended"
    return f"was requeued and {'runs again' if job.is_running else 'waits for nodes'}"


def _is_new_run(job: ScheduledJob, progress: JobProgress) -> bool:
    """Return whether *job* has started again since its requeue."""
    started_since = progress.requeued and job.started > progress.requeued + CLOCK_SECONDS
    return job.restarts > progress.restarts or bool(started_since)


def _note_return(
    entry: Entry, progress: JobProgress, job: ScheduledJob, situation: Situation
) -> None:
    """Record that the job started on the node again and must leave; replace an ineffective hold by a drain."""
    progress.returns += 1
    progress.state, progress.restarts = LEFT, job.restarts
    progress.note = f"job {job.name} was left: it started on {entry.node} again"
    progress.retry = situation.now
    if progress.returns > 1:
        progress.retry += _retry_seconds(progress.returns - 2)
    drain_instead(entry, situation)


def drain_instead(entry: Entry, situation: Situation) -> bool:
    """Replace an ineffective hold by a drain, unless the node has a foreign drain; return whether it was replaced."""
    node = situation.scheduler.nodes.get(entry.node)
    has_drain = situation.capabilities.has_drain
    if entry.mark != HOLD or not has_drain or node is None or not node.may_drain:
        return False
    entry.mark, entry.hold, entry.phase, entry.ends = DRAIN, "", ACCEPTED, 0.0
    return True


def _retry_seconds(attempts: int) -> float:
    return min(RETRY_SECONDS * 2.0 ** min(attempts, 10), RETRY_SECONDS_MAX)


def record_intent(entry: Entry, job: str, restarts: int) -> None:
    """Record that *job* is about to be requeued, or that its steps are about to be ended."""
    before = entry.jobs.get(job, JobProgress(REQUEUE))
    entry.jobs[job] = JobProgress(
        REQUEUE, restarts, attempts=before.attempts, returns=before.returns
    )


def record_left(entry: Entry, job: str, error: str, now: float) -> None:
    """Record that the scheduler refused to move *job*, and set the time of the next attempt."""
    progress = entry.jobs[job]
    progress.retry = now + _retry_seconds(progress.attempts)
    progress.attempts += 1
    progress.state = LEFT
    progress.note = f"job {job} was left: {error}"[:JOB_NOTE_CHARACTERS_MAX]


def record_requeue(entry: Entry, job: str, error: str, now: float) -> None:
    """Record the outcome of a requeue in *entry*."""
    if error:
        record_left(entry, job, error, now)
        return
    progress = entry.jobs[job]
    progress.state, progress.note, progress.requeued = START, f"job {job} was requeued", now


def record_end_step(entry: Entry, job: str, error: str, now: float) -> None:
    """Record in *entry* the outcome of ending the steps of a job that restarts them by itself."""
    if error:
        record_left(entry, job, error, now)
        return
    progress = entry.jobs[job]
    progress.state, progress.note = MOVED, f"job {job} continues with its spare nodes"
