"""Client of JobService for `gangline job`: returns jobs and stories as rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Self

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from ...contract.client.connection import (
    DEADLINE_SECONDS,
    REPLY_BYTES_MAX,
    ConnectionOptions,
    command_error,
    open_channel,
)
from ...contract.wire import job_pb2
from ...contract.wire.job_pb2_grpc import JobServiceStub

#: A share in JobWindow.shares counts steps of 1/250.
SHARE_STEPS = 250
STATES = ("compute", "wait", "host_stall", "checkpoint", "idle")

Row = dict[str, Any]


class JobClient:
    """Job calls, each with a deadline. Raises CommandError."""

    def __init__(self, connection_options: ConnectionOptions) -> None:
        self.connection_options = connection_options
        options = [("grpc.max_receive_message_length", REPLY_BYTES_MAX), ("grpc.enable_retries", 0)]
        self._channel = open_channel(connection_options, options)
        self._stub: Any = JobServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def jobs(self) -> list[Row]:
        """Return all jobs: running ones first, then by loss, largest first."""
        return [job_row(job) for job in self._call("ListJobs", job_pb2.ListJobsRequest()).jobs]

    def story(self, job: str) -> Row:
        """Return the story of a job. Raises CommandError(NOT_FOUND)."""
        return story_row(self._call("GetJob", job_pb2.GetJobRequest(job=job)))

    def _call(self, method: str, request: object) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=DEADLINE_SECONDS)
        except grpc.RpcError as error:
            raise command_error(error, self.connection_options) from error


def job_row(job: job_pb2.Job) -> Row:
    """Return a job of the list."""
    verdict = verdict_row(job.verdict) if job.HasField("verdict") else None
    return {
        "job": job.job, "run_id": job.run_id, "source": job.source, "hosts_count": job.hosts_count,
        "gpus_count": job.gpus_count, "since": _time(job.start_time), "until": _time_or_none(job, "end_time"),
        "pace": _number(job.pace), "pace_reference": job.pace_reference or None,
        "pace_reference_time": _time_or_none(job, "pace_reference_time"), "pace_measure": job.pace_measure,
        "verdict": verdict, "straggler": verdict["host"] if verdict else None, "lost_gpu_hours": job.lost_gpu_hours,
    }  # fmt: skip


def verdict_row(one: job_pb2.JobVerdict) -> Row:
    """Return a verdict, with the columns of `ops.stragglers`."""
    hosts = _hosts(one.nodes)
    return {
        "host": hosts[0] if hosts else None, "hosts": hosts, "device": one.device or None, "verdict": one.verdict,
        "cause": one.cause, "reason": one.reason, "shared_cause": one.shared_cause or None,
        "advisory": one.advisory.removeprefix("advisories/") or None, "slowdown_ratio": _number(one.slowdown),
        "slowdown_lower_ratio": _number(one.slowdown_lower), "slowdown_upper_ratio": _number(one.slowdown_upper),
        "is_stopped": one.stops, "since": _time(one.start_time), "until": _time_or_none(one, "end_time"),
        "lost_gpu_hours": one.lost_gpu_hours, "message": one.message, "evidence_sql": one.evidence_sql,
        "next": one.next_command or None,
    }  # fmt: skip


def story_row(story: job_pb2.JobStory) -> Row:
    """Return a job with its phases, pace, verdicts, ranks, run, forecast and advice."""
    hosts = _hosts(story.nodes)
    return {
        "job": job_row(story.job),
        "run": _run_row(story.run) if story.HasField("run") else None,
        "forecast": [_forecast_row(forecast, story.now) for forecast in story.forecast],
        "step_seconds": _number(story.step_seconds),
        "checkpoint_seconds": _number(story.checkpoint_interval_seconds),
        **{f"step_{part}_ratio": _number(share) for part, share in story.step_part_ratios.items()},
        "step_parts_confidence_ratio": _number(story.step_parts_confidence_ratio),
        "ranks": [_rank_row(rank) for rank in story.ranks],
        "phases": [row for window in story.windows for row in _phase_rows(window, hosts)],
        "pace": [_pace_row(window) for window in story.windows],
        "stragglers": [verdict_row(verdict) for verdict in story.verdicts],
        "advice": [
            {
                "advisory": advisory.advisory.removeprefix("advisories/"),
                "subject": advisory.subject,
                "state": advisory.state,
                "action": advisory.action,
                "message": advisory.message,
            }
            for advisory in story.advice
        ],
    }


def _phase_rows(window: job_pb2.JobWindow, hosts: list[str]) -> Iterator[Row]:
    time, source = _time(window.time), "estimated" if window.estimated else "phases"
    for number, index in enumerate(window.node_index):
        offset = number * len(STATES)
        shares = window.shares[offset : offset + len(STATES)]
        ratios = {
            f"{state}_ratio": share / SHARE_STEPS
            for state, share in zip(STATES, shares, strict=True)
        }
        yield {"time": time, "host": hosts[index], **ratios, "source": source}


def _pace_row(window: job_pb2.JobWindow) -> Row:
    is_change = window.change_ratio != 0.0
    return {
        "time": _time(window.time),
        "pace": _number(window.pace),
        "step_seconds": _number(window.step_seconds),
        "hosts_reading": len(window.node_index),
        "is_change": is_change,
        "change_ratio": window.change_ratio if is_change else None,
    }


def _rank_row(rank: job_pb2.JobRank) -> Row:
    return {
        "rank": None if rank.rank < 0 else rank.rank,
        "host": rank.node.removeprefix("nodes/"),
        "step_seconds": _number(rank.step_seconds),
        "spread_seconds": _number(rank.spread_seconds),
        "since_seconds": _number(rank.since_seconds),
        "steps_count": rank.steps_count,
    }


def _run_row(run: job_pb2.JobRun) -> Row:
    return {
        "workload_class": run.workload_class, "class_confidence": _number(run.class_confidence),
        "earlier_runs": run.earlier_runs, "pace_ratio": _number(run.pace_ratio),
        "pace_ratio_lower": _number(run.pace_ratio_lower), "pace_ratio_upper": _number(run.pace_ratio_upper),
        "slower_than_before": run.slower_than_before, "verdict": run.verdict, "slow_hosts": _hosts(run.slow_nodes),
        "memory_message": run.memory_message,
    }  # fmt: skip


def _forecast_row(forecast: job_pb2.JobForecast, now: Timestamp) -> Row:
    row: Row = {
        "horizon_seconds": forecast.horizon_seconds,
        "now": _time(now),
        "reason": forecast.reason,
        "checkpoint_reason": forecast.checkpoint.reason or None,
        "power_watts": _number(forecast.power_watts),
        "power_watts_lower": _number(forecast.power_watts_lower),
        "power_watts_upper": _number(forecast.power_watts_upper),
    }
    for name, event in (("checkpoint", forecast.checkpoint), ("host_stall", forecast.host_stall)):
        for part in ("at", "from", "until"):
            row[f"next_{name}_{part}"] = _time_or_none(event, part)
        row[f"next_{name}_probability"] = event.probability
    return row


def _hosts(nodes: Iterable[str]) -> list[str]:
    return [node.removeprefix("nodes/") for node in nodes]


def _number(value: float) -> float | None:
    return value if isfinite(value) else None


def _time(time: Timestamp) -> datetime:
    return time.ToDatetime(UTC).replace(tzinfo=None)


def _time_or_none(message: Any, field: str) -> datetime | None:
    return _time(getattr(message, field)) if message.HasField(field) else None
