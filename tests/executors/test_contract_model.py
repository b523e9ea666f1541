"""The contract of executors over a scheduler in memory, and a kill at each step."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gangline.aggregator.advisories.advisory import Action
from gangline.executors.executor import Executor
from gangline.executors.ledger import ExecutorLedger, LedgerError
from gangline.executors.model import Scheduler
from tests.executors.advice_server import LIMITS, serving_advice
from tests.executors.contract import ExecutorContract, Rig, Site
from tests.executors.model_scheduler import ModelScheduler
from tests.processes import GUARD_SECONDS


class ModelSite(Site):
    def __init__(self, drain_ends: bool) -> None:
        self._model = ModelScheduler([f"n{index}" for index in range(1, 9)], drain_ends=drain_ends)

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

    def forbid_moving(self, job: str) -> None:
        self._model.fixed.add(job)

    def allow_moving(self, job: str) -> None:
        self._model.fixed.remove(job)

    def set_weight(self, node: str, weight: int) -> None:
        self._model.set_weight(node, weight)


class TestModel(ExecutorContract):
    @pytest.fixture(params=[False, True], ids=["drains stay", "drains end"])
    def site(self, request: pytest.FixtureRequest) -> Site:
        return ModelSite(request.param)


def test_a_replica_without_its_ledger_answers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that was frozen while another took over answered DONE from the state that it had read before."""
    site = ModelSite(drain_ends=False)
    with serving_advice() as advice, ExitStack() as stack:
        rig = Rig(site, advice, tmp_path, stack)
        rig.start()
        save = rig.ledger.save

        def refused() -> None:
            if site.ours():
                raise LedgerError("another executor wrote it")
            save()

        monkeypatch.setattr(rig.ledger, "save", refused)
        advice.fault("n1", Action.AVOID)
        rig.until(site.ours, "a hold")
        rig.turn()
        assert not rig.is_done("n1"), rig.states()
        monkeypatch.setattr(rig.ledger, "save", save)
        rig.until(lambda: rig.is_done("n1"), "done")


def test_another_store_of_the_aggregator_begins_the_ledger_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The aggregator was reset and the ledger kept: new advice was refused for hours, and a healthy node stayed reserved."""
    site = ModelSite(drain_ends=False)
    job = site.submit(2)

    def advise(nodes: list[str]) -> ExecutorLedger:
        """Begin with an empty store of the aggregator, and take out *nodes*."""
        with serving_advice() as advice, ExitStack() as stack:
            rig = Rig(site, advice, tmp_path, stack)
            rig.start()
            for node in nodes:
                advice.fault(node, Action.AVOID)
            rig.until(lambda: all(map(rig.is_done, nodes)), "done")
            rig.until(lambda: job in advice.gangs(), "the gang is reported")
            assert set().union(*site.ours().values()) == set(nodes)
            return rig.ledger

    before = advise(["n5", "n6", "n7"]).store
    ledger = advise(["n8"])
    assert ledger.store not in ("", before) and ledger.tokens == {"a1": 1}
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert (
        len([text for text in warnings if text.startswith("the aggregator has another store")]) == 1
    )


def test_a_mark_is_restored_behind_an_outage_that_is_longer_than_its_hold(tmp_path: Path) -> None:
    """The fault was active throughout an outage longer than the hold, and the node stayed open after the outage."""
    site = ModelSite(drain_ends=False)
    with serving_advice(replace(LIMITS, hold_seconds=2.0)) as advice, ExitStack() as stack:
        rig = Rig(site, advice, tmp_path, stack)
        rig.start()
        advice.fault("n1", Action.EVICT_NOW)
        rig.until(lambda: rig.is_done("n1"), "done")
        with advice.away():
            rig.until(lambda: not site.ours() and not rig.ledger.entries, "it has expired")
            job = site.submit(1)
        rig.until(site.ours, "it is in force again")
        rig.until(lambda: "n1" not in site.scheduler.read_jobs()[job].nodes, "the job left")
        assert advice.advisories().keys() == {"a1"}


class Killed(BaseException):
    """Raised in place of SIGKILL: no later statement runs."""


class KillPoints:
    """Counts the moments before and after each command and each call, and kills the executor at a given moment."""

    def __init__(self, at: int) -> None:
        self.left = at

    def pass_by(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **more: Any) -> Any:
            self.pass_by()
            result = call(*arguments, **more)
            self.pass_by()
            return result

        return guarded


def life(rig: Rig, model: ModelScheduler, points: KillPoints) -> None:
    """Evict a node and return it; after each kill a new executor continues from the ledger."""

    def start() -> Executor:
        executor = rig.start(poll_seconds=0.05)
        assert rig.client is not None
        rig.client.answer = points.around(rig.client.answer)  # type: ignore[method-assign]
        return executor

    executor = start()

    def until(condition: Callable[[], object]) -> None:
        nonlocal executor
        end = time.monotonic() + GUARD_SECONDS
        while not condition():
            assert time.monotonic() < end, f"{rig.states()} {rig.site.ours()} {list(rig.ledger)}"
            try:
                executor.turn()
            except Killed:
                executor = start()
            time.sleep(0.005)

    until(lambda: rig.client is not None and rig.client.is_live())
    job = rig.site.submit(3)
    until(lambda: job in rig.advice.gangs())
    rig.advice.fault("n2", Action.EVICT_NOW, job=job)
    until(lambda: rig.is_done("n2"))
    until(lambda: model.read_jobs()[job].is_running)
    assert model.read_jobs()[job].restarts == 1, "requeued once, however often it was killed"
    assert "n2" not in model.read_jobs()[job].nodes
    rig.advice.heal("n2")
    until(lambda: not rig.site.ours() and not rig.ledger.entries)


@pytest.mark.parametrize(
    "at", [pytest.param(n, marks=() if n in (2, 5, 7) else pytest.mark.slow) for n in range(1, 26)]
)
def test_killed_at_any_step_it_goes_on_from_its_ledger(at: int, tmp_path: Path) -> None:
    """A job was requeued twice, or a hold stayed, when the executor died between a command and its note of it."""
    site = ModelSite(drain_ends=False)
    model = site.scheduler
    assert isinstance(model, ModelScheduler)
    points = KillPoints(at)
    model.apply_one = points.around(model.apply_one)  # type: ignore[method-assign]
    with serving_advice() as advice, ExitStack() as stack:
        life(Rig(site, advice, tmp_path, stack), model, points)
    assert points.left <= 0 or at > 14, "the moment was reached"
