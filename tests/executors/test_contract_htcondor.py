"""The contract of executors over a real HTCondor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import ClassVar

import pytest

from gangline.aggregator.advisories.advisory import Action
from gangline.executors.htcondor.scheduler import HTCondor, _number
from gangline.executors.model import Drain, Resume, Scheduler, SchedulerError
from tests.condor_pool import MISSING, CondorPool, condor_pool, has_condor
from tests.executors.contract import ExecutorContract, Rig, Site

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_condor(), reason=MISSING)]

#: A job that was running in 15 reads, at least 0.1 s apart, is stable.
STABLE_READS = 15


class CondorSite(Site):
    settings: ClassVar[dict[str, object]] = {"mark": "drain"}
    requeues = False

    def __init__(self, pool: CondorPool) -> None:
        self.pool = pool
        self._condor = HTCondor(pool.run)

    @property
    def scheduler(self) -> Scheduler:
        return self._condor

    def node(self, number: int) -> str:
        return f"n{number}.local"

    def submit(self, nodes: int, *, may_requeue: bool = True) -> str:
        job = self.pool.submit(nodes)

        def runs() -> bool:
            job_state = self.scheduler.read_jobs().get(job)
            if job_state is None or not job_state.is_running:
                return False
            # The schedd reports the job as running before the machines have started it: a drain
            # would still undo the start.
            slots = [slot for node_slots in self._condor.slots(job_state.nodes).values() for slot in node_slots]  # fmt: skip
            busy = [
                slot for slot in slots if slot.get("JobId") == job and slot["Activity"] == "Busy"
            ]
            return len(busy) == nodes

        # After other jobs a schedd may first try claims that have ended, and start the job once
        # more.
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
        """Remove all jobs and drains from the pool."""
        if self.scheduler.read_jobs():
            with suppress(SchedulerError):  # the test itself has just removed the last one
                self.pool.run(["condor_rm", "-all"])
        for name, node in self.scheduler.read_nodes().items():
            if node.out:
                self.pool.run(["condor_drain", "-cancel", name])
        self.pool.until(lambda: not self.scheduler.read_jobs(), "no jobs")

        def idle() -> bool:
            nodes = self.scheduler.read_nodes().values()
            for node in nodes:
                if node.out:  # a drain that the pool did not show above
                    with suppress(SchedulerError):
                        self.pool.run(["condor_drain", "-cancel", node.name])
            if not all(node.state == "Unclaimed" and not node.out for node in nodes):
                return False
            slots = [slot for node_slots in self._condor.slots().values() for slot in node_slots]
            for slot in slots:
                if not slot["MaxJobRetirementTime"]:  # a person's cancel leaves it so
                    self._condor._restore_retirement(slot["Machine"], "gangline:v1;adv=a0")
            return all(slot["MaxJobRetirementTime"] for slot in slots)

        self.pool.until(idle, "an empty pool")


@pytest.fixture(scope="module")
def pool() -> Iterator[CondorPool]:
    with condor_pool() as pool:
        yield pool


class TestHTCondor(ExecutorContract):
    def test_an_eviction_moves_the_named_job_and_no_other(self, rig: Rig) -> None:
        """The executor moves no job: the machine gets no new work, and the answer reports that the job continues."""
        rig.start()
        job = rig.site.submit(3)
        rig.until(lambda: job in rig.advice.gangs(), "the gang is reported")
        node = min(rig.site.scheduler.read_jobs()[job].nodes)
        rig.advice.fault(node, Action.EVICT_NOW, job=job)
        rig.until(lambda: rig.is_done(node), "done")
        advisory = rig.advice.of(node)
        assert advisory is not None and f"job {job} was left: in HTCondor its owner moves it" in advisory.state_message  # fmt: skip
        after = rig.site.scheduler.read_jobs()[job]
        assert after.is_running and after.restarts == 0 and node in after.nodes

    @pytest.fixture
    def site(self, pool: CondorPool) -> Iterator[Site]:
        site = CondorSite(pool)
        yield site
        site.clean()


def test_a_machine_that_was_drained_keeps_its_jobs_at_the_next_drain(pool: CondorPool) -> None:
    """HTCondor leaves MaxJobRetirementTime at 0 once the last job has left a draining machine: the next drain would end jobs at once."""
    site = CondorSite(pool)
    node, reason = "n1.local", "gangline:v1;act=evict;cause=x;ttl=60;adv=a1"
    drain, resume = Drain("a1", "", node, reason, 60.0), Resume("a1", "", node)

    def retirement() -> float:
        return _number(site._condor.slots([node])[node][0], "MaxJobRetirementTime")

    job = site.submit(8)
    assert not site.scheduler.apply([drain])
    site.cancel(job)
    pool.until(lambda: retirement() == 0, "HTCondor has set it to 0")
    pool.run(["condor_drain", "-cancel", node])  # by a person
    job = site.submit(8)
    errors = site.scheduler.apply([drain])
    assert "a drain would evict its jobs" in errors[drain]
    site.cancel(job)
    pool.until(lambda: site.scheduler.read_nodes([node])[node].state == "Unclaimed", "idle")
    assert not site.scheduler.apply([drain])
    assert not site.scheduler.apply([resume])
    job = site.submit(8)
    assert not site.scheduler.apply([drain])
    site.cancel(job)
    pool.until(lambda: retirement() == 0, "HTCondor has set it to 0")
    assert not site.scheduler.apply([resume])
    pool.until(lambda: retirement() == 30 * 86_400, "our cancel has restored it")
    site.clean()


def test_only_the_drain_that_is_ours_is_cancelled(pool: CondorPool) -> None:
    """A person's drain in place of the executor's has another number; the machine refuses to cancel the executor's."""
    site = CondorSite(pool)
    site.drain("n1.local", "burn-in")
    site._condor._cancel("n1.local")
    assert "burn-in" in site.scheduler.read_nodes(["n1.local"])["n1.local"].out
    with pytest.raises(SchedulerError, match="No matching draining request id"):
        pool.run(["condor_drain", "-cancel", "-request-id", "99", "n1.local"])
    site.clean()
