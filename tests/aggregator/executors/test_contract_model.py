"""The contract of executors over a scheduler in memory, and what only a model can be brought to do: a kill at each step."""

from __future__ import annotations

import pytest

from gangline.aggregator.executors.model import Scheduler
from tests.aggregator.executors.contract import ExecutorContract, Site
from tests.aggregator.executors.model_scheduler import ModelScheduler


class ModelSite(Site):
    def __init__(self, drain_ends: bool) -> None:
        self._model = ModelScheduler([f"n{at}" for at in range(1, 9)], drain_ends=drain_ends)

    @property
    def scheduler(self) -> Scheduler:
        return self._model

    def node(self, number: int) -> str:
        return f"n{number}"

    def submit(self, nodes: int, *, may_requeue: bool = True) -> str:
        return self._model.submit(nodes, may_requeue=may_requeue)

    def drain(self, node: str, reason: str) -> None:
        self._model.drain(node, reason)

    def resume(self, node: str) -> None:
        self._model.resume(node)

    def remove_hold(self, name: str) -> None:
        del self._model.holds[name]

    def cancel(self, job: str) -> None:
        self._model.end(job)


class TestModel(ExecutorContract):
    @pytest.fixture(params=[False, True], ids=["drains stay", "drains end"])
    def site(self, request: pytest.FixtureRequest) -> Site:
        return ModelSite(request.param)
