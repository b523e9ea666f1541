"""Scores as messages: a node, packed columns of many nodes, and a host's verdict for its agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from numpy.typing import NDArray

from ...contract.wire import score_pb2
from ...contract.wire import telemetry_pb2 as wire
from ...fingerprints.sensitivity import COMPONENTS, WorkloadNeeds, expected_slowdowns
from ..decisions.neighbors import NeighborPredictions
from ..fleet.collector_status import CollectorStatus
from ..model import Evidence, GpuScore, HealthState, HostScore, Snapshot
from ..scoring.evaluate import Judgement
from ..scoring.results import Gpus, Hosts
from ..scoring.score import HORIZON_HOURS, scores_of
from .validation import timestamp

_LENGTH_DELIMITED = 2
#: A varint has seven bits per byte, lowest first; all but the last byte have the eighth bit set.
_SHIFTS = np.arange(0, 35, 7, dtype=np.uint64)

#: Validity of an answer for schedulers, in seconds.
VALID_SECONDS = 15
#: Length of the reason that a host's agent receives.
REASON_CHARACTERS_MAX = 300
HEALTHY = wire.HostVerdict(state=HealthState.HEALTHY.name)


def packed(kind: type[Message], columns: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the serialized fields of *kind* from arrays: repeated packed floats or uint32.

    Appended to a serialized message they are part of it: the order of fields is free, and repeated
    fields continue. Python's protobuf objects take 50 ms for 80,000 GPUs.
    """
    parts = list[bytes]()
    for name, column in columns.items():
        field = kind.DESCRIPTOR.fields_by_name[name]
        if field.type == FieldDescriptor.TYPE_FLOAT:
            values = column.astype("<f4", copy=False).tobytes()
        else:
            values = varints(column)
        if values:
            head = np.array([field.number << 3 | _LENGTH_DELIMITED, len(values)])
            parts += [varints(head), values]
    return b"".join(parts)


def varints(values: NDArray[Any]) -> bytes:
    """Return *values*, each from 0 to 2**32 - 1, as consecutive varints."""
    wide = values.astype(np.uint64)
    longest = max(1, -(-int(wide.max(initial=0)).bit_length() // 7))
    shifted = wide[:, None] >> _SHIFTS[:longest]
    is_present = shifted > 0
    is_present[:, 0] = True
    follows = np.zeros_like(is_present)
    follows[:, :-1] = is_present[:, 1:]
    octets = (shifted & np.uint64(0x7F)).astype(np.uint8) | (follows.astype(np.uint8) << 7)
    return octets[is_present].tobytes()


def score_message(
    snapshot: Judgement,
    host: HostScore,
    hours: float,
    *,
    full: bool,
    sources: tuple[CollectorStatus, ...],
) -> score_pb2.NodeScore:
    """Return *host* over *hours* as a message; *full* adds contributions, GPUs and sources."""
    reply = score_pb2.NodeScore(
        node=f"nodes/{host.host}",
        score=host.score,
        score_lower=host.score_lower,
        score_upper=host.score_upper,
        state=_number(host.state),
        hazard_per_hour=host.hazard_per_hour,
        relative_speed=host.relative_speed,
        reason=_number(host.reason),
        reason_message=host.reason_message,
        clears_when=host.clears_when,
        simulated=host.simulated,
        hazard_lower=host.hazard_interval[0],
        hazard_upper=host.hazard_interval[1],
        relative_speed_lower=host.speed_lower,
        relative_speed_upper=host.speed_upper,
        hazard_model=host.inputs.model if host.inputs else "",
        compute_time=timestamp(snapshot.computed_ns),
        version=snapshot.version,
        job=snapshot.jobs.get(host.node_index, ""),
    )
    if cause := host.shared_cause:
        reply.shared_cause, reply.shared_cause_nodes = cause.subject, cause.hosts_count
        reply.shared_cause_advisory = f"advisories/{cause.advisory}"
    waits_for = snapshot.gang_waits.evidence_for(host.node_index)
    if waits_for:
        reply.waits_for = f"nodes/{waits_for.device}"
        reply.waits_for_job = snapshot.gang_waits.job_of(host.node_index)
    reply.horizon.FromNanoseconds(round(hours * 3600e9))
    if host.last_received_ns:
        reply.data_age.FromNanoseconds(max(0, snapshot.computed_ns - host.last_received_ns))
    if full:
        reply.contributions.extend(_contribution(e) for e in host.evidence)
        if waits_for:
            reply.contributions.append(_contribution(waits_for))
        reply.gpus.extend(map(_gpu, snapshot.gpus.of(host.node_index)))
        reply.sources.extend(
            score_pb2.SourceOutcome(source=s.name, outcome=s.outcome_name, message=s.message)
            for s in sources
        )
    return reply


def _gpu(gpu: GpuScore) -> score_pb2.GpuScore:
    return score_pb2.GpuScore(
        gpu=gpu.gpu,
        state=_number(gpu.state),
        reason=_number(gpu.reason),
        hazard_per_hour=gpu.hazard_per_hour,
        hazard_lower=gpu.hazard_lower,
        hazard_upper=gpu.hazard_upper,
        relative_speed=gpu.relative_speed,
        relative_speed_lower=gpu.speed_lower,
        relative_speed_upper=gpu.speed_upper,
    )


def _contribution(evidence: Evidence) -> score_pb2.Contribution:
    return score_pb2.Contribution(
        signal=evidence.signal,
        device=evidence.device,
        value=evidence.value,
        unit=evidence.unit,
        normal=evidence.normal,
        log_hazard_delta=evidence.log_hazard_delta,
        relative_speed_factor=evidence.relative_speed_factor,
        score_delta=evidence.score_delta,
        reason=_number(evidence.reason),
        message=evidence.message,
        observe_time=timestamp(evidence.observed_ns),
        evidence_sql=evidence.sql,
        hazard_delta=0.0 if isnan(evidence.hazard_delta) else evidence.hazard_delta,
        shared_count=evidence.shared_count,
    )


def _number(value: int) -> Any:
    """Return *value* as the type that protobuf's stubs accept; they do not know IntEnum."""
    return value


class RequestedWorkload(NamedTuple):
    """A requested workload: its needs, and a description of their source."""

    needs: WorkloadNeeds
    source: str


def columns_message(
    snapshot: Judgement,
    chosen: np.typing.NDArray[np.intp],
    floor: float,
    hours: float,
    *,
    gpus: bool,
    workload: RequestedWorkload | None = None,
    neighbors: Sequence[score_pb2.NodeNeighbors] = (),
) -> bytes:
    """Return a serialized ScoreNodesResponse of the nodes *chosen*, over *hours*.

    *workload*: adds its expected slowdown per node; *neighbors*: its job's neighbors.
    """
    score_columns = snapshot.columns
    if hours != HORIZON_HOURS:
        hazards = score_columns.hazard_per_hour.astype(np.float64)
        score_columns = score_columns._replace(score=scores_of(hazards, hours).astype(np.float32))
    allowed = score_columns.allowed(floor)[chosen]
    reply = score_pb2.ScoreNodesResponse(
        dictionary_version=snapshot.dictionary_version,
        score_version=snapshot.version,
        state=score_columns.state[chosen].tobytes(),
        bucket=score_columns.bucket[chosen].tobytes(),
        reason=score_columns.reason[chosen].tobytes(),
        allowed_bitmap=np.packbits(allowed, bitorder="little").tobytes(),
        valid_until=timestamp(snapshot.computed_ns + VALID_SECONDS * 1_000_000_000),
        degraded=bool(snapshot.degraded_reason),
        degraded_reason=snapshot.degraded_reason,
    )
    reply.horizon.FromNanoseconds(round(hours * 3600e9))
    reply.neighbors.extend(neighbors)
    repeated: dict[str, np.typing.NDArray[Any]] = {
        "node_index": chosen,
        "score": score_columns.score[chosen],
        "hazard_per_hour": score_columns.hazard_per_hour[chosen],
        "relative_speed": score_columns.relative_speed[chosen],
    }
    if workload:
        reply.workload_source = workload.source
        for name, share in zip(COMPONENTS, workload.needs.bound, strict=True):
            setattr(reply.workload_shares, name, share)
        speeds = snapshot.component_speeds[chosen]
        repeated["expected_slowdown"] = expected_slowdowns(workload.needs, speeds)
    if gpus:
        wanted = np.zeros(len(snapshot.hosts), dtype=bool)
        wanted[chosen] = True
        repeated |= _gpu_columns(reply, snapshot.gpus, np.flatnonzero(wanted[snapshot.gpus.host]))
    return reply.SerializeToString() + packed(score_pb2.ScoreNodesResponse, repeated)


def neighbors_messages(
    snapshot: Judgement, job: str, nodes: Sequence[int], predictions: NeighborPredictions
) -> list[score_pb2.NodeNeighbors]:
    """Return the neighbors that *job* has, or would have, on those of *nodes* where other jobs run."""
    predicted = predictions.of(nodes)
    measured = {
        node: max(own, key=lambda slowed: slowed.slowdown)
        for node in nodes
        if (own := [s for s in snapshot.slowed_by_neighbor.get(node, ()) if s.name == job])
    }
    messages: list[score_pb2.NodeNeighbors] = []
    for node in sorted(predicted.keys() | measured.keys()):
        message = score_pb2.NodeNeighbors(node_index=node)
        if (slowed := measured.get(node)) is not None:
            message.jobs.append(slowed.neighbor)
            shares = slowed.slowdown, slowed.slowdown_lower, slowed.slowdown_upper
            ratios = [1.0 / (1.0 - share) for share in shares]
            message.measured, message.message = True, slowed.message
        else:
            prediction = predicted[node]
            message.jobs.extend(prediction.jobs)
            ratios = [prediction.ratio, prediction.lower, prediction.upper]
            message.message = prediction.abstained or prediction.binding
            if prediction.abstained:
                ratios = [nan] * 3
        message.slowdown, message.slowdown_lower, message.slowdown_upper = (
            ratio - 1.0 for ratio in ratios
        )
        messages.append(message)
    return messages


def _gpu_columns(
    reply: score_pb2.ScoreNodesResponse, gpus: Gpus, rows: np.typing.NDArray[np.intp]
) -> dict[str, np.typing.NDArray[Any]]:
    """Add the byte columns of GPUs to *reply*; return the other columns."""
    reply.gpu_state, reply.gpu_reason = gpus.state[rows].tobytes(), gpus.reason[rows].tobytes()
    return {
        "gpu_index": rows,
        "gpu_node_index": gpus.host[rows],
        "gpu_hazard_per_hour": gpus.hazard_per_hour[rows],
        "gpu_hazard_spread": gpus.hazard_spread[rows],
        "gpu_relative_speed": gpus.relative_speed[rows],
        "gpu_relative_speed_lower": gpus.speed_lower[rows],
        "gpu_relative_speed_upper": gpus.speed_upper[rows],
    }


def verdict_of(
    snapshot: Snapshot | None, index: Mapping[str, int], host: str
) -> wire.HostVerdict | None:
    """Return the verdict on *host* for its agent; None: not judged. *index*: node index by host."""
    node = index.get(host)
    if snapshot is None or node is None or node >= len(snapshot.hosts):
        return None
    hosts = snapshot.hosts
    host_score = hosts.computed_scores.get(node) if isinstance(hosts, Hosts) else hosts[node]
    if host_score is None or host_score.state is HealthState.HEALTHY:
        return HEALTHY  # avoids computing the score of a healthy host
    return wire.HostVerdict(
        state=host_score.state.name, reason=host_score.reason_message[:REASON_CHARACTERS_MAX]
    )
