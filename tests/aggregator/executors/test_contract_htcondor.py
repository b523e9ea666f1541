"""The contract of executors over a real HTCondor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import ClassVar

import pytest

from gangline.aggregator.executors.htcondor import HTCondor
from gangline.aggregator.executors.model import Scheduler, SchedulerError
from tests.aggregator.executors.contract import ExecutorContract, Rig, Site
from tests.condor_pool import MISSING, CondorPool, condor_pool, has_condor

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_condor(), reason=MISSING)]

#: A job that was seen to run so often, a tenth of a second and more apart, goes on.
STABLE_READS = 15


class CondorSite(Site):
    settings: ClassVar[dict[str, object]] = {"mark": "drain"}

    def __init__(self, pool: CondorPool) -> None:
        self.pool = pool
        self._condor = HTCondor(pool.run)

    @property
    def scheduler(self) -> Scheduler:
        return self._condor

    def node(self, number: int) -> str:
        return f"n{number}.local"

    def submit(self, nodes: int, *, may_requeue: bool = True) -> str:
        job = self.pool.submit(nodes, may_requeue=may_requeue)

        def runs() -> bool:
            found = self.scheduler.read_jobs().get(job)
            if found is None or not found.is_running:
                return False
            # The schedd says so before the machines have started it: a drain would still undo that.
            slots = [slot for several in self._condor.slots(found.nodes).values() for slot in several]  # fmt: skip
            busy = [one for one in slots if one.get("JobId") == job and one["Activity"] == "Busy"]
            return len(busy) == nodes

        # After other jobs a schedd may first try claims that are gone, and start the job once more.
        seen = 0

        def runs_on() -> bool:
            nonlocal seen
            seen = seen + 1 if runs() else 0
            return seen >= STABLE_READS

        self.pool.until(runs_on, f"{job} runs")
        return job

    def drain(self, node: str, reason: str) -> None:
        if self.scheduler.read_nodes([node])[node].out:
            self.pool.run(["condor_drain", "-cancel", node])
        self.pool.run(["condor_drain", "-graceful", "-reason", reason, node])
        self.pool.until(lambda: reason in self.scheduler.read_nodes([node])[node].out, "drained")

    def resume(self, node: str) -> None:
        self.pool.run(["condor_drain", "-cancel", node])
        self.pool.until(lambda: not self.scheduler.read_nodes([node])[node].out, "not drained")

    def remove_hold(self, name: str) -> None:
        raise AssertionError("there are none")

    def cancel(self, job: str) -> None:
        self.pool.run(["condor_rm", job])

    def clean(self) -> None:
        """Have an empty pool again."""
        if self.scheduler.read_jobs():
            self.pool.run(["condor_rm", "-all"])
        for name, node in self.scheduler.read_nodes().items():
            if node.out:
                self.pool.run(["condor_drain", "-cancel", name])
        self.pool.until(lambda: not self.scheduler.read_jobs(), "no jobs")

        def idle() -> bool:
            nodes = self.scheduler.read_nodes().values()
            for node in nodes:
                if node.out:  # what the pool did not show yet above
                    with suppress(SchedulerError):
                        self.pool.run(["condor_drain", "-cancel", node.name])
            return all(node.state == "Unclaimed" and not node.out for node in nodes)

        self.pool.until(idle, "an empty pool")


@pytest.fixture(scope="module")
def pool() -> Iterator[CondorPool]:
    with condor_pool() as pool:
        yield pool


UNRELIABLE = "a job of the parallel universe with free machines beside it is at times off the machine before it is moved: not understood, so EVICT_NOW is off by default"


class TestHTCondor(ExecutorContract):
    @pytest.mark.xfail(reason=UNRELIABLE, strict=False)
    def test_an_eviction_moves_the_named_job_and_no_other(self, rig: Rig) -> None:
        super().test_an_eviction_moves_the_named_job_and_no_other(rig)

    @pytest.mark.xfail(reason=UNRELIABLE, strict=False)
    def test_a_job_that_may_not_be_requeued_is_left(self, rig: Rig) -> None:
        super().test_a_job_that_may_not_be_requeued_is_left(rig)

    @pytest.fixture
    def site(self, pool: CondorPool) -> Iterator[Site]:
        site = CondorSite(pool)
        yield site
        site.clean()


def test_only_the_drain_that_is_ours_is_cancelled(pool: CondorPool) -> None:
    """A person's drain that took the place of ours has another number; a machine that is asked to cancel ours refuses."""
    site = CondorSite(pool)
    site.drain("n1.local", "burn-in")
    site._condor._cancel("n1.local")
    assert "burn-in" in site.scheduler.read_nodes(["n1.local"])["n1.local"].out
    with pytest.raises(SchedulerError, match="No matching draining request id"):
        pool.run(["condor_drain", "-cancel", "-request-id", "99", "n1.local"])
    site.clean()
