"""What `gangline run --once` waits for: every host judged, and the simulated faults found, rightly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...fingerprints.wire import score_pb2
from .table import host_of

#: Fault of the scenario that `gangline simulate` plays -> the reason that is right for it.
REASONS: dict[str, score_pb2.ReasonCode] = {
    "thermal": score_pb2.REASON_THERMAL_THROTTLE,
    "rdma_link": score_pb2.REASON_FABRIC,
    "hbm": score_pb2.REASON_XID_FATAL,
}
#: States of a host that something is wrong with.
BAD = (score_pb2.DEGRADED, score_pb2.SUSPECT, score_pb2.UNHEALTHY)


@dataclass(frozen=True, slots=True)
class Truth:
    """A fault of the truth log that `gangline simulate` writes, and the aggregator never sees."""

    host: str
    kind: str


def read_truth(file: Path) -> list[Truth]:
    """Return the faults to come; none while the log is not written."""
    try:
        lines = file.read_text().splitlines()
    except FileNotFoundError:
        return []
    told = (fields for fields in map(json.loads, lines) if fields.get("sort") == "faults")
    return [Truth(host, fields["class"]) for fields in told for host, _ in fields["struck"]]


def missing(scores: Sequence[score_pb2.NodeScore], hosts: int, truth: Sequence[Truth]) -> str:
    """Say what the table still lacks, or shows wrongly; empty when it is complete and right.

    *scores*: worst first. *hosts*: how many are expected to speak.
    """
    speaking = [s for s in scores if s.state not in (score_pb2.UNKNOWN, score_pb2.STALE)]
    if len(speaking) < hosts:
        return f"{len(speaking)} of {hosts} hosts have a score"
    if hosts > 1 and not truth:
        return "the simulated hosts have not said which of them will fail"
    wanted = {t.host: REASONS[t.kind] for t in truth}
    found = {host_of(s): s for s in scores[: len(wanted)]}
    for fault in truth:
        score = found.get(fault.host)
        if score is None or score.state not in BAD:
            return f"{fault.host} ({fault.kind}) does not stand among the worst {len(wanted)}"
        if score.reason != wanted[fault.host]:
            name = score_pb2.ReasonCode.Name(score.reason)
            return f"{fault.host} ({fault.kind}) stands there for {name}: {score.reason_words}"
    extra = [host_of(s) for s in scores[len(wanted) :] if s.state in BAD]
    return f"{', '.join(extra)}: nothing was done to these" if extra else ""
