"""Durations in requests: each reader refuses negative or malformed ones, and names the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from gangline.aggregator.errors import InvalidArgument
from gangline.aggregator.service import advisory, placement_messages, reservation, score
from gangline.aggregator.service.validation import hours_of
from gangline.contract.wire import advisory_pb2, placement_pb2, recovery_pb2, score_pb2

WRONG = [(5, -1), (-1, 0), (-1, -1), (0, -1), (5, 10**9), (5, -(10**9))]


def _gang(span: Duration) -> object:
    gang = placement_pb2.GangRequirements(length=span)
    return placement_messages._hours(gang, "length", 0.0, 1e9)


READERS: dict[str, Callable[[Duration], object]] = {
    "hours": lambda span: hours_of("age", recovery_pb2.CheckpointState(age=span), "age", 1e9),
    "gang.length": _gang,
    "horizon": lambda span: score._hours(score_pb2.GetNodeScoreRequest(horizon=span)),
    "lease": lambda span: advisory._lease_seconds(advisory_pb2.AckAdvisoryRequest(lease=span)),
    "ttl": reservation._ttl_ns,
    "checkpoint": lambda span: advisory._span("checkpoint_interval", span, "none"),
}


@pytest.mark.parametrize("name", READERS)
def test_a_span_that_is_none_is_refused(name: str) -> None:
    """5 s and -1 ns were accepted, and each reader interpreted them differently."""
    for seconds, nanos in WRONG:
        span: Any = Duration(seconds=seconds, nanos=nanos)
        with pytest.raises(InvalidArgument, match=r"expected"):
            READERS[name](span)
    READERS[name](Duration(seconds=3600, nanos=500))
