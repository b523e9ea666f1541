"""Inputs of a decision: node columns with names and locations, and a few numbers of the snapshot.

A part is named by a digest of its bytes, so a part that stays the same between snapshots is stored
once. It begins with a line of JSON that describes it. An array follows as its bytes in memory
(little-endian), anything else as JSON.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from ...fingerprints.demand import DEMANDS, QUANTILES, SHARED_RESOURCES, HostSupply
from ...fingerprints.sensitivity import KnownWorkloads
from ..arrays import Flags
from ..declared.model import ExchangeRates
from ..scoring.evaluate import Judgement
from ..scoring.node_facts import DOMAIN_FIELDS, NodeCosts, NodeDomains, NodeFacts
from ..scoring.reported_factors import (
    NOTHING_REPORTED,
    ReportedFactor,
    ReportedFactors,
    ReportedThroughputs,
)
from ..scoring.score_columns import Columns
from .neighbors import decoded_predictions, encoded_predictions
from .node_table import NeighborPrediction

#: A larger part was not written by Gangline.
PART_BYTES_MAX = 64 << 20
#: Maximum length of a part's first line.
_HEAD_BYTES_MAX = 1000
_DIGEST_BYTES = 16
_COMPRESSION_LEVEL = 3
_TYPES = ("<f4", "<i4", "<i8", "|u1", "|b1")

_COLUMNS = ("score", "hazard_per_hour", "relative_speed", "state", "ended")
_FACTS = ("gpus", "hazard_down", "hazard_up", "speed_reach", "is_reporting", "speed_before")


class InputsError(Exception):
    """Parts are missing or not in Gangline's format; the message names them."""


class DecisionInputs(NamedTuple):
    """The inputs of decisions in a snapshot, and the excluded nodes."""

    snapshot: Judgement
    excluded: Flags
    neighbors: Mapping[int, NeighborPrediction]


def input_parts(snapshot: Judgement, excluded: Flags) -> Iterator[tuple[str, bytes]]:
    """Yield, with its digest, each part of *snapshot* that decisions need, except workloads."""
    domains, facts = snapshot.facts.domains, snapshot.facts
    arrays: dict[str, Any] = {name: getattr(snapshot.columns, name) for name in _COLUMNS}
    arrays |= {name: getattr(facts, name) for name in _FACTS}
    arrays |= {
        "pace_before": facts.pace_before, "domain_ids": domains.ids, "rails": domains.rails, "component_speeds": snapshot.component_speeds,
        "excluded": excluded,
        "price_per_gpu_hour": facts.costs.price, "preemptions_per_hour": facts.costs.preemption,
        "reserved_nodes": np.concatenate(
            [np.zeros(0, dtype=np.int64), *(nodes.astype(np.int64) for _, nodes in snapshot.reservations)]
        ),
    }  # fmt: skip
    supplies = snapshot.supplies
    arrays |= {
        "supply": supplies.values, "supply_hbm_bytes": supplies.hbm_bytes, "supply_memory_bytes": supplies.memory_bytes,
    }  # fmt: skip
    # Keep the order: among otherwise equal jobs the first counts.
    jobs = {job: number for number, job in enumerate(dict.fromkeys(snapshot.jobs.values()))}
    count = len(snapshot.jobs)
    arrays["job_nodes"] = np.fromiter(snapshot.jobs, dtype=np.int32, count=count)
    arrays["job_numbers"] = np.fromiter(
        (jobs[job] for job in snapshot.jobs.values()), dtype=np.int32, count=count
    )
    values: dict[str, Any] = {
        "names": snapshot.names,
        "domain_names": domains.names,
        "gpu_models": supplies.gpu_models,
        "jobs": list(jobs),
        "reservations": [(name, nodes.size) for name, nodes in snapshot.reservations],
        "tenants": {name: astuple(rates) for name, rates in sorted(snapshot.tenants.items())},
        "snapshot": {
            "version": snapshot.version,
            "computed_ns": snapshot.computed_ns,
            "horizon_seconds": snapshot.horizon_seconds,
            "degraded_reason": snapshot.degraded_reason,
            "dictionary_version": snapshot.dictionary_version,
            "model": snapshot.model,
            "rails_count": domains.rails_count,
        },
    }
    for name, array in arrays.items():
        part = _array_part(name, array)
        yield _digest(part), part
    for name, value in values.items():
        part = _value_part(name, value)
        yield _digest(part), part
    yield _reported_part(snapshot.reported_factors)


@cache
def _last_reported() -> list[tuple[ReportedFactors, tuple[str, bytes]]]:
    """Return the cache of the last part, since factors rarely change between snapshots."""
    return []


def _reported_part(reported: ReportedFactors) -> tuple[str, bytes]:
    last = _last_reported()
    if not last or last[0][0] is not reported:
        points = reported.throughputs
        value = {
            "factors": {name: list(factor) for name, factor in sorted(reported.factors.items())},
            "workloads": points.workloads,
            "starts": points.starts.tolist(),
            "nodes": points.nodes.tolist(),
            "throughputs": points.throughputs.tolist(),
            "reports": points.reports.tolist(),
        }
        part = _value_part("reported_factors", value)
        last[:] = [(reported, (_digest(part), part))]
    return last[0][1]


def _reported(document: Mapping[str, Any] | None) -> ReportedFactors:
    if document is None:
        return NOTHING_REPORTED
    factors = {name: ReportedFactor(*values) for name, values in document["factors"].items()}
    points = ReportedThroughputs(
        tuple(document["workloads"]),
        np.array(document["starts"], dtype=np.intp),
        np.array(document["nodes"], dtype=np.intp),
        np.array(document["throughputs"], dtype=np.float64),
        np.array(document["reports"], dtype=np.intp),
    )
    return ReportedFactors(factors, points)


def workload_part(snapshot: Judgement, job: str, known_as: str) -> tuple[str, bytes]:
    """Return the digest and the part of the known facts of *job*, possibly none.

    *known_as*: the name of its run, which may be the caller's own of several; "": no run that the caller may name.
    """
    index = snapshot.workloads.names.get(known_as)
    known: list[Any] = []
    if index is not None:
        known = [
            job,
            snapshot.workloads.descriptions[index],
            snapshot.workloads.needs[index].tolist(),
            snapshot.workloads.demands[index : index + 1].tolist(),
        ]
    part = _value_part("workload", known)
    return _digest(part), part


def neighbors_part(predictions: Mapping[int, NeighborPrediction]) -> tuple[str, bytes]:
    """Return the digest and the part of predictions beside running jobs, by node index."""
    part = _value_part("neighbors", encoded_predictions(predictions))
    return _digest(part), part


def compressed(part: bytes) -> bytes:
    """Return a part, or a message, as it is stored."""
    return zlib.compress(part, _COMPRESSION_LEVEL)


def decompressed(data: bytes) -> bytes:
    """Return the argument of `compressed`. Raises InputsError."""
    unpacking = zlib.decompressobj()
    try:
        part = unpacking.decompress(data, PART_BYTES_MAX)
    except zlib.error as error:
        raise InputsError(f"a part cannot be read: {error}") from error
    if not unpacking.eof:
        raise InputsError(f"a part is cut off, or has more than {PART_BYTES_MAX} bytes")
    return part


def checked_part(digest: str, data: bytes) -> bytes:
    """Return the part stored as *data*. Raises InputsError, also if *digest* differs."""
    part = decompressed(data)
    if _digest(part) != digest:
        raise InputsError("its content does not match its digest")
    return part


def restored_inputs(parts: Iterable[bytes]) -> DecisionInputs:
    """Return the arguments of `input_parts`, `workload_part` and `neighbors_part`. Raises InputsError."""
    parts_by_name = dict(map(_decoded, parts))
    try:
        return _restored(parts_by_name)
    except KeyError as error:
        raise InputsError(f"the part {error} is missing") from error
    except (TypeError, ValueError, IndexError) as error:
        raise InputsError(f"the parts do not belong together: {error}") from error


def node_names(parts: Iterable[bytes]) -> tuple[str, ...]:
    """Return the names of the nodes by index; empty if the part is missing. Raises InputsError."""
    for part in parts:
        name, value = _decoded(part)
        if name == "names":
            return tuple(value)
    return ()


def _restored(document: Mapping[str, Any]) -> DecisionInputs:
    about, names = document["snapshot"], tuple(document["names"])
    count = len(names)
    zeros = np.zeros(count, dtype=np.uint8)
    columns = Columns(
        **{name: document[name] for name in _COLUMNS},
        bucket=zeros,
        reason=zeros,
        simulated=zeros.astype(bool),
    )
    domains = NodeDomains(
        (about["dictionary_version"], count, 0),
        document["domain_ids"],
        tuple(tuple(domain_names) for domain_names in document["domain_names"]),
        document["rails"],
        about["rails_count"],
    )
    # Older decisions lack these parts.
    price, preemption, pace = (
        np.asarray(document.get(name, ()), dtype=np.float32).reshape(-1)
        for name in ("price_per_gpu_hour", "preemptions_per_hour", "pace_before")
    )
    costs = NodeCosts(price=price, preemption=preemption)
    tenants = {
        name: ExchangeRates(*map(float, rates))
        for name, rates in dict(document.get("tenants", {})).items()
    }
    facts = NodeFacts(
        domains, **{name: document[name] for name in _FACTS}, pace_before=pace, costs=costs
    )
    excluded = document["excluded"]
    sizes = {column.size for column in (*columns, excluded, facts.gpus, domains.rails)}
    sizes |= {column.size or count for column in (costs.price, costs.preemption, pace)}
    if sizes != {count} or domains.ids.shape != (len(DOMAIN_FIELDS), count):
        raise ValueError(f"columns of {sorted(sizes)} nodes for {count} names")
    ends = np.cumsum([0, *(size for _, size in document["reservations"])])
    reserved = document["reserved_nodes"].astype(np.intp)
    reservations = tuple(
        (name, reserved[ends[index] : ends[index + 1]])
        for index, (name, _) in enumerate(document["reservations"])
    )
    jobs = document["jobs"]
    numbered = zip(document["job_nodes"].tolist(), document["job_numbers"].tolist(), strict=True)
    snapshot = Judgement(
        version=about["version"], computed_ns=about["computed_ns"], horizon_seconds=about["horizon_seconds"],
        hosts=(), degraded_reason=about["degraded_reason"], dictionary_version=about["dictionary_version"],
        names=names, columns=columns, jobs={node: jobs[number] for node, number in numbered}, model=about["model"],
        component_speeds=document["component_speeds"], workloads=_workloads(document.get("workload")), facts=facts,
        reservations=reservations, reported_factors=_reported(document.get("reported_factors")),
        tenants=tenants, supplies=_supplies(document),
    )  # fmt: skip
    neighbors = decoded_predictions(document.get("neighbors", ()))
    return DecisionInputs(snapshot, excluded, neighbors)


def _supplies(document: Mapping[str, Any]) -> HostSupply:
    """Return the supplies, which older decisions lack. Raises ValueError for another layout."""
    values = np.asarray(document.get("supply", ()), dtype=np.float32)
    values = values.reshape(-1, len(SHARED_RESOURCES))
    hbm_bytes, memory_bytes = (
        np.asarray(document.get(f"supply_{name}", ()), dtype=np.float32).reshape(-1)
        for name in ("hbm_bytes", "memory_bytes")
    )
    models = tuple(map(str, document.get("gpu_models", ())))
    return HostSupply(values, hbm_bytes, memory_bytes=memory_bytes, gpu_models=models)


def _workloads(known: list[Any] | None) -> KnownWorkloads:
    if not known:
        return KnownWorkloads()
    job, description, needs, *demands = known
    table = np.array(demands[0] if demands else (), dtype=np.float32)
    if table.shape[1:] != (len(DEMANDS), len(QUANTILES)):  # stored by an older version
        table = table[:0]
    return KnownWorkloads(
        {job: 0},
        (description,),
        np.array([needs], dtype=np.float32),
        table.reshape(-1, len(DEMANDS), len(QUANTILES)),
    )


def _digest(part: bytes) -> str:
    return blake2b(part, digest_size=_DIGEST_BYTES).hexdigest()


def _array_part(name: str, array: Any) -> bytes:
    ordered = np.ascontiguousarray(array)
    kind = ordered.dtype.newbyteorder("<").str
    assert kind in _TYPES, f"{name}: {kind}"
    head = {"part": name, "type": kind, "shape": ordered.shape}
    return json.dumps(head).encode() + b"\n" + ordered.tobytes()


def _value_part(name: str, value: Any) -> bytes:
    return json.dumps({"part": name}).encode() + b"\n" + json.dumps(value).encode()


def _decoded(part: bytes) -> tuple[str, Any]:
    """Return the name and the content of a part. Raises InputsError."""
    end = part.find(b"\n", 0, _HEAD_BYTES_MAX)
    try:
        head = json.loads(part[: max(end, 0)])
        name = str(head["part"])
        if "type" not in head:
            return name, json.loads(part[end + 1 :])
        if head["type"] not in _TYPES:
            raise ValueError(f"type {head['type']!r}")
        array = np.frombuffer(part, dtype=head["type"], offset=end + 1)
        return name, array.reshape(head["shape"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputsError(f"a part is not what Gangline writes: {error}") from error
