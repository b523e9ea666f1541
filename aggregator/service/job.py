"""JobService: running jobs, their last minutes and their verdicts, from memory."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite, nan
from typing import Any

import numpy as np

from ...contract.wire import job_pb2 as wire
from ...contract.wire.job_pb2_grpc import JobServiceServicer
from ..advisories.advisory import Advisory
from ..advisories.workloads import qualified_name, reported_name
from ..errors import NotFound
from ..fleet.fleet import Fleet
from ..principal import current_login
from ..runs.job_pace import MEASURES
from ..runs.job_windows import STATES, JobRecord
from ..runs.run_log import RunLog
from ..runs.verdicts import JobVerdict
from .advisory import PREFIX
from .validation import PAGE_SIZE_MAX, check_text, page_size_of, timestamp

JOB_CHARACTERS_MAX = 512
#: Maximum verdicts, ranks and advisories in an answer; the worst are sent.
VERDICTS_MAX, RANKS_MAX, ADVICE_MAX = 64, 100_000, 5
#: Ranks with an older report are omitted.
RANK_AGE_SECONDS_MAX = 300.0
#: A share in JobWindow.shares counts steps of 1/250.
SHARE_STEPS = 250
STEP_PARTS = ("data_loading", "forward", "backward", "forward_backward", "optimizer")


class JobService(JobServiceServicer):
    """Coroutines of grpc.aio. A `ServiceError` becomes its status in the interceptor."""

    def __init__(
        self,
        runs: RunLog,
        fleet: Fleet,
        open_advisories: Callable[[], Sequence[Advisory]],
        wall_ns: Callable[[], int],
    ) -> None:
        self._runs, self._fleet = runs, fleet
        self._open_advisories, self._wall_ns = open_advisories, wall_ns

    async def ListJobs(self, request: wire.ListJobsRequest, context: Any) -> wire.ListJobsResponse:
        """Return all jobs, running ones first, then by loss."""
        size = page_size_of(request.page_size) if request.page_size else PAGE_SIZE_MAX
        records = sorted(self._records(), key=self._order)
        advisories = self._advisories_by_host()
        jobs = [self._job(record, advisories) for record in records[:size]]
        return wire.ListJobsResponse(jobs=jobs, left_out_count=max(len(records) - size, 0))

    async def GetJob(self, request: wire.GetJobRequest, context: Any) -> wire.JobStory:
        """Return the largest job of the requested name; the caller's own job comes first."""
        check_text("job", request.job, JOB_CHARACTERS_MAX)
        own = qualified_name(request.job, current_login())
        records = self._runs.windows.find(own) or self._runs.windows.find(request.job)
        if not records:
            raise NotFound(self._unknown(request.job))
        record = max(records, key=lambda record: record.run.gpus_max)
        advisories = self._advisories_by_host()
        story = wire.JobStory(
            job=self._job(record, advisories),
            nodes=[f"nodes/{host}" for host in _hosts(record)],
            windows=_windows(record),
            verdicts=[
                _verdict(verdict, advisories)
                for verdict in self._runs.verdicts.of_run(record.run.run_id)[:VERDICTS_MAX]
            ],
            advice=self._advice(record),
            ranks=self._ranks(record),
            forecast=_forecast(self._runs.forecasts.rows_of(record.run.key)),
            now=timestamp(self._wall_ns()),
        )
        if (run := self._run(record)) is not None:
            story.run.CopyFrom(run)
        self._put_steps(story, record)
        return story

    def _records(self) -> Iterator[JobRecord]:
        yield from self._runs.windows.records.values()
        yield from self._runs.windows.ended.values()

    def _order(self, record: JobRecord) -> tuple[bool, float, str]:
        lost = self._runs.verdicts.lost_gpu_hours(record.run.run_id)
        return record.ended_ns != 0, -lost, record.run.job

    def _unknown(self, job: str) -> str:
        names = sorted({record.run.job for record in self._records() if record.run.job})
        near = difflib.get_close_matches(job, names, 3, 0.5)
        if near:
            return f"no job {job!r}; did you mean {', '.join(near)}?"
        if not names:
            return f"no job {job!r}: no agent sees a job on a GPU, and no scheduler reported one"
        return (
            f"no job {job!r} runs or ended within the last hour; `gangline job` lists {len(names)}"
        )

    def _advisories_by_host(self) -> dict[str, Advisory]:
        return {advisory.host: advisory for advisory in self._open_advisories() if advisory.host}

    def _job(self, record: JobRecord, advisories: Mapping[str, Advisory]) -> wire.Job:
        run, pace = record.run, record.pace
        job = wire.Job(
            job=run.job, run_id=run.run_id, source=run.source, hosts_count=len(run.hosts), gpus_count=run.gpus_max,
            start_time=timestamp(run.begun_ns), pace=nan if record.ended_ns else pace.current,
            pace_measure=MEASURES[pace.measure], lost_gpu_hours=self._runs.verdicts.lost_gpu_hours(run.run_id),
        )  # fmt: skip
        if record.ended_ns:
            job.end_time.CopyFrom(timestamp(record.ended_ns))
        if (reference := pace.reference) is not None:
            job.pace_reference = reference.name
            if reference.at_ns:
                job.pace_reference_time.CopyFrom(timestamp(reference.at_ns))
        verdict = next(iter(self._runs.verdicts.of_run(run.run_id)), None)
        if verdict is not None and not verdict.until_ns:
            job.verdict.CopyFrom(_verdict(verdict, advisories))
        return job

    def _advice(self, record: JobRecord) -> list[wire.JobAdvice]:
        """Return the open advisories about the hosts and causes of the verdicts."""
        verdicts = self._runs.verdicts.of_run(record.run.run_id)
        hosts = {host for verdict in verdicts for host in verdict.fault.hosts}
        causes = {verdict.fault.advisory for verdict in verdicts}
        return [
            wire.JobAdvice(
                advisory=f"{PREFIX}{advisory.name}",
                subject=advisory.subject,
                state=advisory.state.name,
                action=advisory.action.name,
                message=advisory.message,
            )
            for advisory in self._open_advisories()
            if advisory.name in causes or advisory.host in hosts
        ][:ADVICE_MAX]

    def _ranks(self, record: JobRecord) -> list[wire.JobRank]:
        """Return the latest report of each rank of the job.

        Ranks report the job's name without the login: hosts of another login's job of that name are
        omitted.
        """
        job = reported_name(record.run.job)
        others = {
            self._fleet.index.get(host, -1)
            for other in self._runs.windows.records.values()
            if other is not record and reported_name(other.run.job) == job
            for host in set(_hosts(other)).difference(_hosts(record))
        }
        table = self._fleet.tables["step_1s"]
        names = table.devices.names
        age_seconds = table.age_seconds(self._fleet.boot, self._fleet.host_now_ns(self._wall_ns()))
        rows = [
            row
            for row in np.flatnonzero(age_seconds <= RANK_AGE_SECONDS_MAX).tolist()
            if names[row].rpartition("/")[0] == job and int(table.devices.host[row]) not in others
        ][:RANKS_MAX]
        row_indexes = np.array(rows, dtype=np.intp)
        columns = {
            name: table.gauge_at(name, row_indexes)
            for name in ("step_seconds", "spread_seconds", "since_seconds")
        }
        counts = table.values_at("steps_count", row_indexes)
        return [
            wire.JobRank(
                rank=_rank(names[row]),
                node=f"nodes/{self._fleet.names[int(table.devices.host[row])]}",
                steps_count=int(counts[number]),
                **{name: float(values[number]) for name, values in columns.items()},
            )
            for number, row in enumerate(rows)
        ]

    def _run(self, record: JobRecord) -> wire.JobRun | None:
        assessment = self._runs.latest.get(record.run.key)
        if assessment is None or record.ended_ns:
            return None
        pace = assessment.pace
        return wire.JobRun(
            workload_class=assessment.workload_class.name,
            class_confidence=assessment.workload_class.confidence,
            earlier_runs=assessment.earlier_runs,
            pace_ratio=pace.ratio if pace else nan,
            pace_ratio_lower=pace.lower if pace else nan,
            pace_ratio_upper=pace.upper if pace else nan,
            slower_than_before=bool(pace and pace.is_slower),
            verdict=assessment.verdict.value,
            slow_nodes=[f"nodes/{host}" for host in assessment.slow_hosts],
            memory_message=self._runs.oversized.get(record.run.run_id, ""),
        )

    def _put_steps(self, story: wire.JobStory, record: JobRecord) -> None:
        """Set step time, parts of the step and checkpoint interval: medians over the job's GPUs."""
        table = self._fleet.tables["gpu_fast_10s"]
        gpus = self._fleet.devices["gpu"]
        rows = [
            table.devices.find(int(gpus.host[row]), gpus.names[row])
            for row in record.run.rows.tolist()
        ]
        row_indexes = np.array([row for row in rows if row >= 0], dtype=np.intp)
        reported = [rank.step_seconds for rank in story.ranks if isfinite(rank.step_seconds)]
        story.steps_reported = bool(reported)
        steps = np.array(reported) if reported else table.gauge_at("step_seconds", row_indexes)
        story.step_seconds = _median(steps)
        story.checkpoint_interval_seconds = _median(
            table.gauge_at("checkpoint_interval_seconds", row_indexes)
        )
        story.step_parts_confidence_ratio = _median(
            table.gauge_at("step_parts_confidence_ratio", row_indexes)
        )
        for part in STEP_PARTS:
            shares = table.gauge_at(f"step_{part}_ratio", row_indexes)
            # Set a part only if at least half of the GPUs with a step report it.
            if np.isfinite(shares).sum() * 2 >= max(int(np.isfinite(steps).sum()), 1):
                story.step_part_ratios[part] = _median(shares)


def _hosts(record: JobRecord) -> list[str]:
    seen = dict.fromkeys(host for window in record.windows for host in window.hosts)
    return sorted(seen or dict.fromkeys(record.run.hosts))


def _windows(record: JobRecord) -> list[wire.JobWindow]:
    index = {host: index for index, host in enumerate(_hosts(record))}
    pace = record.pace
    changes = {change.window: change.ratio for change in pace.changes()}
    by_time = {
        window.time_ns: (value, window.step_seconds, changes.get(position, 0.0))
        for position, (window, value) in enumerate(zip(pace.windows, pace.paces(), strict=True))
    }
    messages: list[wire.JobWindow] = []
    for window in record.windows:
        value, step_seconds, change = by_time.get(window.time_ns, (nan, nan, 0.0))
        shares = np.rint(np.clip(window.shares, 0.0, 1.0) * SHARE_STEPS).astype(np.uint8)
        messages.append(
            wire.JobWindow(
                time=timestamp(window.time_ns),
                node_index=[index[host] for host in window.hosts],
                shares=shares.tobytes(),
                estimated=window.is_estimated,
                pace=value,
                step_seconds=step_seconds,
                change_ratio=change,
            )
        )
    assert not messages or len(STATES) * len(messages[0].node_index) == len(messages[0].shares)
    return messages


def _verdict(verdict: JobVerdict, advisories: Mapping[str, Advisory]) -> wire.JobVerdict:
    fault = verdict.fault
    own = advisories.get(verdict.host)
    advisory = fault.advisory or (own.name if own else "")
    message = wire.JobVerdict(
        verdict=fault.verdict, cause=fault.cause, reason=fault.reason, shared_cause=fault.shared_cause,
        advisory=f"{PREFIX}{advisory}" if advisory else "", nodes=[f"nodes/{host}" for host in fault.hosts],
        device=fault.device, slowdown=1.0 if verdict.is_stopped else verdict.slowdown,
        slowdown_lower=nan if verdict.is_stopped else fault.slowdown_lower,
        slowdown_upper=nan if verdict.is_stopped else fault.slowdown_upper, stops=verdict.is_stopped,
        start_time=timestamp(verdict.since_ns), lost_gpu_hours=verdict.lost_gpu_hours, message=fault.message,
        evidence_sql=fault.sql, next_command=_next_command(verdict, advisory),
    )  # fmt: skip
    if verdict.until_ns:
        message.end_time.CopyFrom(timestamp(verdict.until_ns))
    return message


def _next_command(verdict: JobVerdict, advisory: str) -> str:
    if verdict.until_ns:
        return ""
    if verdict.fault.shared_cause or advisory:
        return f"gangline advise show {advisory}"
    return f"gangline explain {verdict.host}" if verdict.host else ""


def _forecast(rows: Sequence[Mapping[str, Any]]) -> list[wire.JobForecast]:
    return [
        wire.JobForecast(
            horizon_seconds=row["horizon_seconds"],
            reason=row["reason"],
            power_watts=row["power_watts"],
            power_watts_lower=row["power_watts_lower"],
            power_watts_upper=row["power_watts_upper"],
            checkpoint=_event(row, "checkpoint"),
            host_stall=_event(row, "host_stall"),
        )
        for row in sorted(rows, key=lambda row: float(row["horizon_seconds"]))
    ]


def _event(row: Mapping[str, Any], name: str) -> wire.JobForecastEvent:
    event = wire.JobForecastEvent(
        probability=row[f"next_{name}_probability"], reason=row[f"{name}_reason"]
    )
    seconds = (
        row[f"next_{name}_seconds"],
        row[f"next_{name}_lower_90"],
        row[f"next_{name}_upper_90"],
    )
    if all(map(isfinite, seconds)):
        expected, begin, until = (
            timestamp(row["time"] + round(offset * 1e9)) for offset in seconds
        )
        event.at.CopyFrom(expected)
        getattr(event, "from").CopyFrom(begin)
        event.until.CopyFrom(until)
    return event


def _median(values: Any) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else nan


def _rank(device: str) -> int:
    text = device.rpartition("/")[2]
    return int(text) if text.isascii() and text.isdigit() else -1
