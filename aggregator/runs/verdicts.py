"""The verdicts of each job: the host, link or shared cause that slows or stops it, and the cost.

One place for `gangline job`, `ops.stragglers` and tags. A gang runs at the pace of its slowest member. So each
moment is charged to the verdict with the largest slowdown, and the lost hours of a job add up. No I/O; times are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from typing import Any, NamedTuple

from ..scoring.job_faults import LINK, UNKNOWN, JobFault, Strength

#: A verdict ends if its fault was not seen for this long; its end is the time when the fault was
#: last seen.
LEAVE_SECONDS = 45.0
#: Minimum fall of the pace to blame a link with errors, and to report a fall without explanation.
LINK_FALL_MIN, UNEXPLAINED_FALL_MIN = 0.03, 0.10
#: An unexplained fall is reported after this time, because checkpoints and evaluations are shorter.
UNEXPLAINED_SECONDS_MIN = 60.0
#: Longer steps of the clock are not charged, because the aggregator was stopped.
CHARGED_SECONDS_MAX = 10.0
#: Verdicts kept per job, the costliest.
PER_JOB_MAX = 64
UNEXPLAINED = "pace"
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class JobState:
    """State of a job for verdicts. `pace`: NaN if unknown. `reference`: name of the pace of 1."""

    run_id: str
    job: str
    gpus: int
    pace: float = nan
    reference: str = ""
    is_standing: bool = False


@dataclass(slots=True)
class JobVerdict:
    """A fault of a run, from `since_ns` to `until_ns` (0: it lasts)."""

    run_id: str
    job: str
    fault: JobFault
    since_ns: int
    seen_ns: int
    until_ns: int = 0
    slowdown: float = 0.0
    is_stopped: bool = False
    lost_gpu_hours: float = 0.0

    @property
    def verdict_id(self) -> str:
        return f"{self.run_id}/{self.fault.identity}@{self.since_ns // 1000}"

    @property
    def host(self) -> str:
        """Return the host at fault, the first of several; "" if no host is."""
        return self.fault.hosts[0] if self.fault.hosts else ""


@dataclass(slots=True)
class _RunVerdicts:
    open: dict[str, JobVerdict] = field(default_factory=dict)
    ended: list[JobVerdict] = field(default_factory=list)
    fell_ns: int = 0  # beginning of the current fall by UNEXPLAINED_FALL_MIN or more; 0: none


class VerdictChanges(NamedTuple):
    """`absorbed`: ids of verdicts that are part of another verdict now."""

    changed: Sequence[JobVerdict]
    absorbed: frozenset[str]


class JobVerdicts:
    """Verdicts of all jobs: `step` once a second; `take_changes` for the store."""

    def __init__(self) -> None:
        self._jobs: dict[str, _RunVerdicts] = {}
        self._changed: dict[str, JobVerdict] = {}
        self._absorbed: set[str] = set()
        self._last_ns = 0

    def of_run(self, run_id: str) -> list[JobVerdict]:
        """Return the verdicts of a run: open ones first, then the costliest."""
        job = self._jobs.get(run_id, _RunVerdicts())
        return sorted(
            [*job.open.values(), *job.ended],
            key=lambda verdict: (
                verdict.until_ns != 0,
                -verdict.slowdown,
                -verdict.lost_gpu_hours,
                verdict.since_ns,
            ),
        )

    def lost_gpu_hours(self, run_id: str) -> float:
        """Return the GPU-hours that a run has lost so far."""
        return sum(verdict.lost_gpu_hours for verdict in self.of_run(run_id))

    def restore(self, verdicts: Iterable[JobVerdict]) -> None:
        """Restore stored verdicts after a restart."""
        for verdict in verdicts:
            job = self._jobs.setdefault(verdict.run_id, _RunVerdicts())
            if verdict.until_ns:
                job.ended.append(verdict)
            else:
                job.open[verdict.fault.identity] = verdict

    def forget(self, run_ids: Iterable[str]) -> None:
        """Forget runs that ended long ago; they stay in the store."""
        for run_id in run_ids:
            self._jobs.pop(run_id, None)

    def put_back(self, changes: VerdictChanges) -> None:
        """Make changes that could not be written pending again."""
        self._changed = {
            **{verdict.verdict_id: verdict for verdict in changes.changed},
            **self._changed,
        }
        self._absorbed |= changes.absorbed

    def take_changes(self) -> VerdictChanges:
        """Return the changes since the last call."""
        changes = VerdictChanges(list(self._changed.values()), frozenset(self._absorbed))
        self._changed, self._absorbed = {}, set()
        return changes

    def step(
        self, states: Iterable[JobState], faults: Mapping[str, Sequence[JobFault]], now_ns: int
    ) -> None:
        """Follow the faults of all running jobs. *faults*: by run id."""
        seconds = (now_ns - self._last_ns) / 1e9
        seconds = seconds if 0.0 < seconds <= CHARGED_SECONDS_MAX else 0.0
        self._last_ns = now_ns
        for state in states:
            job = self._jobs.setdefault(state.run_id, _RunVerdicts())
            acting = _acting(state, faults.get(state.run_id, ()), self._fall(job, state, now_ns))
            for fault, slowdown in acting:
                self._observe(job, state, fault, slowdown, now_ns)
            self._charge(job, state, seconds)
            self._end_unseen(job, now_ns)

    def end_run(self, run_id: str, now_ns: int) -> None:
        """End the verdicts of a run. A host that is broken now has stopped it."""
        job = self._jobs.get(run_id)
        if job is None:
            return
        for verdict in list(job.open.values()):
            verdict.is_stopped |= verdict.fault.strength is Strength.STOPS
            self._end(job, verdict, now_ns)

    def _fall(self, job: _RunVerdicts, state: JobState, now_ns: int) -> int:
        """Return the beginning of a fall that has lasted UNEXPLAINED_SECONDS_MIN; 0 without one."""
        if not isfinite(state.pace) or state.is_standing or state.pace > 1.0 - UNEXPLAINED_FALL_MIN:
            job.fell_ns = 0
            return 0
        job.fell_ns = job.fell_ns or now_ns
        is_long = now_ns - job.fell_ns >= UNEXPLAINED_SECONDS_MIN * _SECOND_NS
        return job.fell_ns if is_long else 0

    def _observe(
        self, job: _RunVerdicts, state: JobState, fault: JobFault, slowdown: float, now_ns: int
    ) -> None:
        before = job.open.get(fault.identity)
        if before is None:
            since_ns = job.fell_ns if fault.cause == UNEXPLAINED else now_ns
            before = JobVerdict(state.run_id, state.job, fault, since_ns, now_ns)
            self._absorb(job, before)
            job.open[fault.identity] = before
        # Hosts that recovered stay in the verdict until it ends.
        hosts = dict.fromkeys((*fault.hosts, *before.fault.hosts))
        before.fault = replace(fault, hosts=tuple(hosts))
        before.seen_ns, before.slowdown = now_ns, slowdown
        before.is_stopped = state.is_standing and fault.strength is Strength.STOPS
        self._changed[before.verdict_id] = before

    def _absorb(self, job: _RunVerdicts, shared: JobVerdict) -> None:
        """Merge verdicts on single hosts from the seconds before their shared cause was known."""
        if not shared.fault.shared_cause:
            return
        for host in shared.fault.hosts:
            own = job.open.get(f"host {host}")
            if own is not None and own.fault.reason == shared.fault.reason:
                del job.open[own.fault.identity]
                self._changed.pop(own.verdict_id, None)
                self._absorbed.add(own.verdict_id)
                shared.since_ns = min(shared.since_ns, own.since_ns)
                shared.lost_gpu_hours += own.lost_gpu_hours

    def _charge(self, job: _RunVerdicts, state: JobState, seconds: float) -> None:
        worst = max(job.open.values(), key=lambda verdict: verdict.slowdown, default=None)
        if worst is not None:
            worst.lost_gpu_hours += worst.slowdown * state.gpus * seconds / 3600.0

    def _end_unseen(self, job: _RunVerdicts, now_ns: int) -> None:
        for verdict in list(job.open.values()):
            if now_ns - verdict.seen_ns > LEAVE_SECONDS * _SECOND_NS:
                self._end(job, verdict, verdict.seen_ns)

    def _end(self, job: _RunVerdicts, verdict: JobVerdict, until_ns: int) -> None:
        del job.open[verdict.fault.identity]
        verdict.until_ns = max(until_ns, verdict.since_ns)
        job.ended.append(verdict)
        self._changed[verdict.verdict_id] = verdict
        if len(job.ended) > PER_JOB_MAX:
            job.ended.sort(key=lambda verdict: -verdict.lost_gpu_hours)
            del job.ended[PER_JOB_MAX:]


def _acting(
    state: JobState, faults: Sequence[JobFault], fell_ns: int
) -> list[tuple[JobFault, float]]:
    """Return the faults of the strongest kind and of all broken hosts, with slowdowns."""
    broken = [fault for fault in faults if fault.strength is Strength.STOPS]
    if state.is_standing and broken:
        return [(fault, 1.0) for fault in broken]
    acting = _slowing(state, faults, fell_ns)
    named = {fault.identity for fault, _ in acting}
    return acting + [(fault, 0.0) for fault in broken if fault.identity not in named]


def _slowing(
    state: JobState, faults: Sequence[JobFault], fell_ns: int
) -> list[tuple[JobFault, float]]:
    """Return the faults of the strongest kind that slows a running job."""
    fall = max(1.0 - state.pace, 0.0) if isfinite(state.pace) else 0.0
    slows = [(fault, fault.slowdown) for fault in faults if isfinite(fault.slowdown)]
    if slows:
        return slows
    links = [fault for fault in faults if fault.verdict == LINK]
    if links and fall > LINK_FALL_MIN:
        return [(fault, fall) for fault in links]
    explanations = [fault for fault in faults if fault.strength is Strength.EXPLAINS]
    if explanations:
        return [(fault, fall) for fault in explanations]
    if fell_ns:
        return [(_unexplained(state, fall), fall)]
    return []


def _unexplained(state: JobState, fall: float) -> JobFault:
    message = f"its pace is {100 * (1 - fall):.0f} % of the {state.reference}, and no host, link or shared cause explains that"
    return JobFault(
        job=("", state.job, -1), identity="pace", strength=Strength.EXPLAINS, verdict=UNKNOWN, cause=UNEXPLAINED,
        reason="NONE", hosts=(), device="", slowdown=fall, slowdown_lower=nan, slowdown_upper=nan, message=message, sql="",
    )  # fmt: skip


def row(verdict: JobVerdict, now_ns: int) -> dict[str, Any]:
    """Return a verdict as a row of the table `job_verdicts`; times in ns."""
    fault = verdict.fault
    return {
        "verdict_id": verdict.verdict_id, "run_id": verdict.run_id, "job": verdict.job, "since": verdict.since_ns,
        "until": verdict.until_ns, "time": now_ns, "identity": fault.identity, "strength": int(fault.strength),
        "verdict": fault.verdict, "cause": fault.cause, "reason": fault.reason, "shared_cause": fault.shared_cause,
        "advisory": fault.advisory, "hosts": list(fault.hosts), "device": fault.device,
        "slowdown_ratio": verdict.slowdown, "slowdown_lower_ratio": fault.slowdown_lower,
        "slowdown_upper_ratio": fault.slowdown_upper, "is_stopped": verdict.is_stopped,
        "lost_gpu_hours": verdict.lost_gpu_hours, "message": fault.message, "evidence_sql": fault.sql,
    }  # fmt: skip


def from_row(stored: Mapping[str, Any]) -> JobVerdict:
    """Return the verdict of a row of `job_verdicts`; times in ns."""

    def number(name: str) -> float:
        return nan if stored[name] is None else float(stored[name])

    fault = JobFault(
        job=("", str(stored["job"]), -1), identity=str(stored["identity"]), strength=Strength(int(stored["strength"])),
        verdict=str(stored["verdict"]), cause=str(stored["cause"]), reason=str(stored["reason"]),
        hosts=tuple(stored["hosts"] or ()), device=str(stored["device"] or ""), slowdown=number("slowdown_ratio"),
        slowdown_lower=number("slowdown_lower_ratio"), slowdown_upper=number("slowdown_upper_ratio"),
        message=str(stored["message"] or ""), sql=str(stored["evidence_sql"] or ""),
        shared_cause=str(stored["shared_cause"] or ""), advisory=str(stored["advisory"] or ""),
    )  # fmt: skip
    return JobVerdict(
        run_id=str(stored["run_id"]),
        job=str(stored["job"]),
        fault=fault,
        since_ns=int(stored["since"]),
        seen_ns=int(stored["time"]),
        until_ns=int(stored["until"] or 0),
        slowdown=number("slowdown_ratio"),
        is_stopped=bool(stored["is_stopped"]),
        lost_gpu_hours=number("lost_gpu_hours"),
    )
