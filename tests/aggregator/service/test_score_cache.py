"""Repeated responses are built once per snapshot, or once per dictionary."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from gangline.aggregator.scoring.evaluate import Judgement
from gangline.aggregator.service import score_messages
from gangline.aggregator.service.score import HORIZONS_MAX, ScoreService
from gangline.contract.wire import score_pb2
from tests.worlds import World


@dataclass
class Holder:
    snapshot: Judgement | None = None


@dataclass
class Asked:
    world: World
    holder: Holder

    def __post_init__(self) -> None:
        self.service = ScoreService(self.holder)

    def __call__(self, name: str, request: Any) -> bytes:
        reply: bytes = asyncio.run(getattr(self.service, name)(request, None))
        return reply

    def run(self, seconds: int) -> None:
        self.holder.snapshot = self.world.run(seconds)


@pytest.fixture
def asked() -> Asked:
    """A fleet, and a service over its snapshots."""
    world = World(hosts=3, gpus=2)
    return Asked(world, Holder(world.run(5)))


def of(hours: int, *, gpus: bool = False) -> score_pb2.ScoreNodesRequest:
    return score_pb2.ScoreNodesRequest(horizon=Duration(seconds=hours * 3600), gpus=gpus)


def test_another_horizon_is_made_once_a_snapshot(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that requests 24 h every 100 ms had all scores computed each time."""
    built_hours, columns = list[float](), score_messages.columns_message

    def counted(snapshot: Any, chosen: Any, floor: float, hours: float, *, gpus: bool) -> bytes:
        built_hours.append(hours)
        return columns(snapshot, chosen, floor, hours, gpus=gpus)

    monkeypatch.setattr(score_messages, "columns_message", counted)
    first = [asked("ScoreNodes", of(hours)) for hours in (8, 24, 24, 8, 48)]
    assert built_hours == [8, 24, 48] and first[1] is first[2]
    asked("ScoreNodes", of(24, gpus=True))
    assert built_hours[3:] == [24]
    asked.run(1)
    assert asked("ScoreNodes", of(24)) != first[1] and built_hours[4:] == [24]


def test_horizons_that_are_kept_are_few(asked: Asked) -> None:
    """168 horizons would be 50 MB of responses of a large fleet; the default's is always kept."""
    for hours in range(9, 60):
        asked("ScoreNodes", of(hours))
    assert len(asked.service._replies) == HORIZONS_MAX
    assert asked("ScoreNodes", of(8)) is asked("ScoreNodes", score_pb2.ScoreNodesRequest())


def test_names_are_made_once_until_there_is_another(asked: Asked) -> None:
    """80,000 GPU names were assembled per call: 60 ms that block all other calls."""
    with_gpus, without = (
        score_pb2.GetNodeDictionaryRequest(gpus=True),
        score_pb2.GetNodeDictionaryRequest(),
    )
    first = asked("GetNodeDictionary", with_gpus)
    asked.run(1)
    assert asked("GetNodeDictionary", with_gpus) is first
    assert asked("GetNodeDictionary", without) is asked("GetNodeDictionary", without)
    assert not score_pb2.NodeDictionary.FromString(asked("GetNodeDictionary", without)).gpus
    asked.world = World(hosts=4, gpus=2)
    asked.run(5)
    names = score_pb2.NodeDictionary.FromString(asked("GetNodeDictionary", with_gpus))
    assert len(names.names) == 4 and len(names.gpus) == 8
