"""Tests that each executor must pass with each scheduler: run with the model and with real Slurm."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import pytest

from gangline.aggregator.advisories.advisory import Action, AdvisoryState
from gangline.aggregator.advisories.advisory_limits import AdvisoryLimits
from gangline.contract.otlp_logs import OtlpLogExporter, OtlpRecord
from gangline.contract.wire import recovery_pb2
from gangline.executors import core, evictions
from gangline.executors.client import AggregatorClient, NodeDictionary
from gangline.executors.context import ExecutorContext
from gangline.executors.executor import Executor
from gangline.executors.launchers.launchers import Launchers
from gangline.executors.ledger import ExecutorLedger
from gangline.executors.model import Scheduler
from gangline.executors.settings import ExecutorConfig, NodeNames
from gangline.executors.step_log import StepLog
from gangline.executors.undo import undo_all
from tests.executors.advice_server import LIMITS, AdviceServer, connected_client, serving_advice
from tests.processes import GUARD_SECONDS


class Site(ABC):
    """A scheduler of eight nodes, n1 to n8 by `node(1)` to `node(8)`, and the people who use it."""

    #: Settings of each executor of the site.
    settings: ClassVar[dict[str, object]] = {}
    #: The scheduler starts the job of a bad node on another node.
    requeues: ClassVar[bool] = True

    @property
    @abstractmethod
    def scheduler(self) -> Scheduler: ...

    @abstractmethod
    def node(self, number: int) -> str: ...

    @abstractmethod
    def submit(self, nodes: int, *, may_requeue: bool = True) -> str:
        """Submit a job; return its name once it runs."""

    @abstractmethod
    def drain(self, node: str, reason: str) -> None:
        """A person drains a node."""

    @abstractmethod
    def resume(self, node: str) -> None: ...

    @abstractmethod
    def remove_hold(self, name: str) -> None: ...

    @abstractmethod
    def cancel(self, job: str) -> None: ...

    def forbid_moving(self, job: str) -> None:
        """A budget, or the owner, forbids that *job* leaves its nodes."""
        raise AssertionError(f"{job}: this executor moves no jobs")

    def allow_moving(self, job: str) -> None:
        raise AssertionError(f"{job}: this executor moves no jobs")

    def set_weight(self, node: str, weight: int) -> None:
        raise AssertionError(f"{node}: nodes of this scheduler have no weights, nor {weight}")

    def weights(self) -> dict[str, int | None]:
        return {node.name: node.weight for node in self.scheduler.read_nodes().values()}

    def ours(self) -> dict[str, frozenset[str]]:
        """Return the holds of executors, and the nodes that executors drained."""
        holds = {
            hold.name: hold.nodes
            for hold in self.scheduler.read_holds().values()
            if hold.is_managed
        }
        drained = {
            node.reason: frozenset([node.name])
            for node in self.scheduler.read_nodes().values()
            if node.is_managed
        }
        return holds | drained


class Rig:
    """A site, advice, and executors that a test starts, kills and starts again."""

    def __init__(self, site: Site, advice: AdviceServer, folder: Path, stack: ExitStack) -> None:
        self.site, self.advice, self.folder, self._stack = site, advice, folder, stack
        self.executor: Executor | None = None
        #: Steps that went to a collector of logs.
        self.exported: list[str] = []
        self.client: AggregatorClient | None = None

    def start(self, name: str = "one", *, shadow: bool = False, **settings: object) -> Executor:
        """Start an executor with the ledger *name*; the previous executor only loses its client, as in a kill."""
        if self.client is not None:
            self.client.close()
        fields = {
            "poll_seconds": 0.2, "nodes_poll_seconds": 1.0, "cluster": name, **self.site.settings, **settings,
        }  # fmt: skip
        config = ExecutorConfig(ledger=str(self.folder / name), **fields)  # type: ignore[arg-type]
        (self.folder / name).mkdir(exist_ok=True)
        wake, names = threading.Event(), NodeNames()
        client = self._stack.enter_context(connected_client(self.advice, config.actor, wake.set))
        ledger = ExecutorLedger(self.folder / name / "ledger.json")
        launchers = Launchers(config, shadow=shadow)
        launchers.start()
        self._stack.callback(launchers.close)
        context = ExecutorContext(config, self.site.scheduler, client, ledger, names, shadow=shadow)
        step_log = StepLog(context, exporter=self._exporter())
        self.executor = Executor(context, step_log, launchers, wake)
        self.client, self.ledger, self.launchers = client, ledger, launchers
        return self.executor

    def _exporter(self) -> OtlpLogExporter:
        exporter = OtlpLogExporter("http://127.0.0.1:1", "gangline-executor", "test", headers={})

        def export(record: OtlpRecord) -> bool:
            self.exported.append(str(record.attributes["gangline.step"]))
            return True

        exporter.export = export  # type: ignore[method-assign]
        return exporter

    def until(self, condition: Callable[[], object], what: str, *executors: Executor) -> None:
        end = time.monotonic() + GUARD_SECONDS
        turning = executors or ((self.executor,) if self.executor else ())
        while not condition():
            assert time.monotonic() < end, (
                f"never: {what}; {self.site.ours()}; {self.states()}; {self.site.scheduler.read_jobs()}"
            )
            for executor in turning:
                executor.turn()
            time.sleep(0.01)

    def states(self) -> dict[str, str]:
        return {
            name: f"{advisory.action.name} {advisory.hosts[0]} {advisory.state.name}: {advisory.state_message}"
            for name, advisory in self.advice.advisories().items()
        }

    def is_done(self, node: str) -> bool:
        advisory = self.advice.of(node)
        return advisory is not None and advisory.state is AdvisoryState.DONE

    def turn(self, count: int = 5) -> None:
        assert self.executor is not None
        for _ in range(count):
            self.executor.turn()


class PlanAnswer:
    """A plan that is ready at once."""

    def __init__(self, reply: recovery_pb2.PlanRecoveryResponse) -> None:
        self._reply = reply

    def is_done(self) -> bool:
        return True

    def result(self) -> recovery_pb2.PlanRecoveryResponse:
        return self._reply


class Plans:
    """Planner whose plan replaces the failed host with the last host."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        self.hosts = hosts
        self.requests: list[recovery_pb2.PlanRecoveryRequest] = []
        self.reports: list[recovery_pb2.ReportRecoveryRequest] = []

    def serve(self, client: AggregatorClient | None, monkeypatch: pytest.MonkeyPatch) -> None:
        assert client is not None
        dictionary = NodeDictionary(1, self.hosts)
        monkeypatch.setattr(client, "node_dictionary", lambda: dictionary)
        monkeypatch.setattr(client, "plan_recovery", self._plan)
        monkeypatch.setattr(client, "report_recovery", self.reports.append)

    def _plan(self, request: recovery_pb2.PlanRecoveryRequest, seconds_max: float) -> PlanAnswer:
        assert 0 < seconds_max <= 1
        self.requests.append(request)
        last, (failed,) = len(self.hosts) - 1, request.failed_node_index
        nodes = [last if index == failed else index for index in request.current_node_index]
        reply = recovery_pb2.PlanRecoveryResponse(decision_id="d1", dictionary_version=1)
        option = reply.options.add(kind=recovery_pb2.RECOVERY_FREE_NODE, node_index=nodes)
        option.replacements.add(failed_node_index=failed, by_node_index=last)
        return PlanAnswer(reply)


class ExecutorContract:
    """Subclasses give the fixture `site`."""

    limits: AdvisoryLimits = LIMITS

    @pytest.fixture
    def rig(self, site: Site, tmp_path: Path) -> Iterator[Rig]:
        with serving_advice(self.limits) as advice, ExitStack() as stack:
            yield Rig(site, advice, tmp_path, stack)

    def test_avoid_keeps_new_work_off_and_lets_jobs_go_on(self, rig: Rig) -> None:
        job = rig.site.submit(8)
        node = rig.site.node(3)
        rig.start()
        rig.advice.fault(node, Action.AVOID)
        rig.until(lambda: rig.is_done(node), "done")
        assert set().union(*rig.site.ours().values()) == {node}
        assert rig.site.scheduler.read_jobs()[job].is_running
        assert rig.executor is not None
        rig.turn(1)
        figures = rig.executor.step_log.figures
        assert figures.answers == {"DONE": 1} and figures.done_seconds.count == 1
        assert figures.marks.count == 1 and figures.open_advice == 0 and figures.is_connected
        assert rig.exported.index("Accept") < rig.exported.index("Answer")

    def test_an_eviction_moves_the_named_job_and_no_other(self, rig: Rig) -> None:
        """The named job runs elsewhere; its node gets no new work."""
        rig.start()
        named = rig.site.submit(3)
        rig.until(lambda: named in rig.advice.gangs(), "the gang is reported")
        nodes = rig.site.scheduler.read_jobs()[named].nodes
        node = min(nodes)
        other = rig.site.submit(1)
        rig.advice.fault(node, Action.EVICT_NOW, job=named)
        rig.until(lambda: rig.is_done(node), "done")
        rig.until(lambda: rig.site.scheduler.read_jobs()[named].is_running, "it runs again")
        jobs = rig.site.scheduler.read_jobs()
        assert node not in jobs[named].nodes and jobs[named].restarts == 1, jobs[named]
        assert jobs[other].is_running and jobs[other].restarts == 0
        rig.until(lambda: rig.advice.outcomes(), "the outcome is reported")
        assert rig.advice.outcomes()[0] == (named, True, "requeued by advice", True)

    def test_a_job_that_may_not_be_requeued_is_left(self, rig: Rig) -> None:
        """The owner forbade a requeue at submission: the answer says that the job stays on the node."""
        rig.start()
        job = rig.site.submit(2, may_requeue=False)
        rig.until(lambda: job in rig.advice.gangs(), "the gang is reported")
        node = min(rig.site.scheduler.read_jobs()[job].nodes)
        rig.advice.fault(node, Action.EVICT_NOW, job=job)
        rig.until(lambda: rig.is_done(node), "done")
        assert rig.site.scheduler.read_jobs()[job].is_running
        advisory = rig.advice.of(node)
        assert advisory is not None and f"job {job} was left: " in advisory.state_message, (
            rig.states()
        )

    def test_a_job_that_nobody_reported_leaves_the_node_too(self, rig: Rig) -> None:
        """The fault came before the gang was reported: EVICT_NOW was DONE, and the job stayed on the broken node."""
        if not rig.site.requeues:
            pytest.skip("this executor moves no jobs")
        rig.start()
        rig.until(lambda: rig.client is not None and rig.client.is_live(), "it is connected")
        job = rig.site.submit(2)
        node = min(rig.site.scheduler.read_jobs()[job].nodes)
        rig.advice.fault(node, Action.EVICT_NOW)
        rig.until(lambda: rig.is_done(node), "done")
        rig.until(lambda: rig.site.scheduler.read_jobs()[job].is_running, "it runs again")
        assert node not in rig.site.scheduler.read_jobs()[job].nodes, rig.states()
        advisory = rig.advice.of(node)
        assert advisory is not None and f"job {job} was requeued" in advisory.state_message, (
            rig.states()
        )

    def test_a_job_that_may_not_leave_is_tried_again(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A budget forbade the eviction for a minute: the job stayed on the dead GPU for good."""
        if not rig.site.requeues:
            pytest.skip("this executor moves no jobs")
        monkeypatch.setattr(evictions, "RETRY_SECONDS", 0.2)
        rig.start()
        job = rig.site.submit(2)
        rig.until(lambda: job in rig.advice.gangs(), "the gang is reported")
        node = min(rig.site.scheduler.read_jobs()[job].nodes)
        rig.site.forbid_moving(job)
        rig.advice.fault(node, Action.EVICT_NOW, job=job)

        def reported() -> bool:
            advisory = rig.advice.of(node)
            return advisory is not None and f"job {job} was left: " in advisory.state_message

        rig.until(reported, "it says that the job is still there")
        assert node in rig.site.scheduler.read_jobs()[job].nodes
        rig.site.allow_moving(job)
        rig.until(lambda: node not in rig.site.scheduler.read_jobs()[job].nodes, "it left")
        rig.until(lambda: rig.is_done(node), "done")
        rig.until(lambda: rig.site.scheduler.read_jobs()[job].is_running, "it runs again")

    def test_a_job_that_may_not_leave_stays_if_the_node_recovers(self, rig: Rig) -> None:
        """The eviction was repeated on the healthy node, and the mark stayed as long as the budget forbade it."""
        if not rig.site.requeues:
            pytest.skip("this executor moves no jobs")
        rig.start()
        job = rig.site.submit(2)
        rig.until(lambda: job in rig.advice.gangs(), "the gang is reported")
        node = min(rig.site.scheduler.read_jobs()[job].nodes)
        rig.site.forbid_moving(job)
        rig.advice.fault(node, Action.EVICT_NOW, job=job)
        rig.until(
            lambda: any("was left: " in state for state in rig.states().values()),
            "the refusal is reported",
        )
        rig.advice.heal(node)
        rig.until(lambda: not rig.site.ours() and not rig.ledger.entries, "the mark is removed")
        rig.turn()
        assert not rig.site.ours() and node in rig.site.scheduler.read_jobs()[job].nodes
        assert rig.site.scheduler.read_jobs()[job].restarts == 0
        rig.site.allow_moving(job)

    def test_a_drain_waits_for_the_job(self, rig: Rig) -> None:
        rig.start()
        job = rig.site.submit(8)
        node = rig.site.node(2)
        rig.advice.fault(node, Action.DRAIN_AFTER_JOB, job=job)
        rig.until(rig.site.ours, "a mark")
        rig.turn()
        assert not rig.is_done(node), (rig.states(), rig.site.scheduler.read_jobs())
        rig.site.cancel(job)
        rig.until(lambda: rig.is_done(node), "done")

    def test_a_return_takes_back_ours_and_nothing_else(self, rig: Rig) -> None:
        rig.start()
        node, others = rig.site.node(1), rig.site.node(2)
        rig.site.drain(others, "bad fan")
        rig.advice.fault(node, Action.DRAIN_AFTER_JOB)
        rig.until(lambda: rig.is_done(node), "done")
        rig.advice.heal(node)
        rig.until(lambda: not rig.site.ours(), "ours is gone")
        rig.until(lambda: not rig.ledger.entries, "the ledger is empty")
        assert rig.site.scheduler.read_nodes()[others].out
        assert rig.advice.unavailable().keys() == {others}

    def test_a_node_that_somebody_drained_stays_theirs(self, rig: Rig) -> None:
        """AVOID is not accepted for a drained node. A later drain stays, and the mark protects the
        node when the drain ends.
        """
        rig.start()
        first, second = rig.site.node(1), rig.site.node(2)
        rig.site.drain(first, "bad fan")
        rig.until(lambda: first in rig.advice.unavailable(), "it is reported")
        rig.advice.fault(first, Action.AVOID)
        rig.advice.fault(second, Action.AVOID)
        rig.until(lambda: rig.is_done(second), "done")
        rig.site.drain(second, "burn-in")
        rig.until(lambda: second in rig.advice.unavailable(), "it is reported")
        rig.turn()
        nodes = rig.site.scheduler.read_nodes()
        assert "bad fan" in nodes[first].out and "burn-in" in nodes[second].out
        rig.site.resume(second)
        rig.until(lambda: second not in rig.advice.unavailable(), "its return is reported")
        rig.until(lambda: rig.site.ours(), "ours is in force")
        assert set().union(*rig.site.ours().values()) == {second}

    def test_running_work_leaves_a_node_that_somebody_drained(self, rig: Rig) -> None:
        """A foreign taint or drain keeps new work off, but a gang that runs on a dead GPU must leave."""
        if not rig.site.requeues:
            pytest.skip("this executor moves no jobs")
        rig.start()
        job = rig.site.submit(2)
        node = min(rig.site.scheduler.read_jobs()[job].nodes)
        rig.site.drain(node, "bad fan")
        rig.until(lambda: node in rig.advice.unavailable(), "it is reported")
        rig.advice.fault(node, Action.EVICT_NOW)
        rig.until(lambda: rig.is_done(node), "done")
        rig.until(lambda: rig.site.scheduler.read_jobs()[job].is_running, "it runs again")
        assert node not in rig.site.scheduler.read_jobs()[job].nodes
        assert "bad fan" in rig.site.scheduler.read_nodes()[node].out
        rig.site.resume(node)
        rig.until(lambda: node not in rig.advice.unavailable(), "its return is reported")
        assert node in set().union(*rig.site.ours().values())

    def test_what_a_person_takes_away_is_not_set_again(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A person who resumes a node overrides the executor's drain."""
        monkeypatch.setattr(
            core, "SETTLE_SECONDS", 0.0
        )  # for a scheduler that shows a new drain at once
        rig.start()
        node = rig.site.node(4)
        rig.advice.fault(node, Action.AVOID)
        rig.until(lambda: rig.is_done(node), "done")
        (entry,) = rig.ledger
        entry.set_at += 2 * evictions.CLOCK_SECONDS  # this controller has just started
        if entry.hold:
            rig.site.remove_hold(entry.hold)
        else:
            rig.site.resume(node)
        rig.until(lambda: entry.phase == "given back" or not rig.ledger.entries, "given back")
        rig.turn()
        assert not rig.site.ours()

    def test_of_two_executors_one_acts(self, rig: Rig) -> None:
        first = rig.start("one")
        client = rig.client
        rig.client = None
        second = rig.start("two")
        nodes = [rig.site.node(number) for number in (1, 2, 3)]
        for node in nodes:
            rig.advice.fault(node, Action.AVOID)
        rig.until(lambda: all(map(rig.is_done, nodes)), "done", first, second)
        assert len(rig.site.ours()) == 3
        owners = {advisory.owner for advisory in rig.advice.advisories().values()}
        assert all(owner.startswith(("executor one", "executor two")) for owner in owners)
        figures = first.step_log.figures, second.step_log.figures
        assert sum(each.steps_of(mark) for each in figures for mark in ("PlaceHold", "Drain")) == 3
        if client is not None:
            client.close()

    def test_shadow_changes_nothing(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        """A shadow executor logs its steps, and the advisory stays proposed."""
        caplog.set_level("INFO")
        rig.start(shadow=True)
        node = rig.site.node(1)
        rig.advice.fault(node, Action.AVOID)
        rig.until(lambda: "would be accepted; then: " in caplog.text, "it says so")
        advisory = rig.advice.of(node)
        assert advisory is not None and advisory.state is AdvisoryState.PROPOSED
        assert not rig.site.ours() and not rig.advice.gangs()

    def test_while_the_aggregator_is_away_marks_stand_and_nothing_new_begins(
        self, rig: Rig
    ) -> None:
        """Jobs are still scheduled; after the return no step is repeated."""
        executor = rig.start()
        node = rig.site.node(5)
        rig.advice.fault(node, Action.AVOID)
        rig.until(lambda: rig.is_done(node), "done")
        before = executor.step_log.figures.steps_of("PlaceHold")
        with rig.advice.away():
            rig.until(lambda: rig.client is not None and not rig.client.is_live(), "it is away")
            rig.turn()
            assert set().union(*rig.site.ours().values()) == {node}
            assert rig.site.submit(2)
        rig.until(lambda: rig.client is not None and rig.client.is_live(), "it is back")
        rig.turn()
        assert executor.step_log.figures.steps_of("PlaceHold") == before

    def test_what_came_back_while_no_executor_ran_is_reported(self, rig: Rig) -> None:
        """The process that reported it out was killed: the node stayed out until the report ended, ten minutes later."""
        rig.start()
        node = rig.site.node(6)
        rig.site.drain(node, "bad fan")
        rig.until(lambda: node in rig.advice.unavailable(), "it is reported")
        rig.executor = None
        rig.site.resume(node)
        rig.start()
        rig.until(lambda: not rig.advice.unavailable(), "its return is reported")

    def test_weights_follow_buckets_and_come_back(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A weight refuses no job; the earlier weight is restored, and a person's weight wins."""
        before = rig.site.weights()
        if None in before.values():
            pytest.skip("this scheduler has no weights")
        executor = rig.start(weights=True, weights_poll_seconds=1.0)
        nodes = [rig.site.node(number) for number in range(1, 9)]
        buckets = {node: index % 4 for index, node in enumerate(nodes)}
        monkeypatch.setattr(rig.client, "buckets", lambda: dict(buckets))
        expected = {node: before[node] + bucket for node, bucket in buckets.items()}  # type: ignore[operator]
        rig.until(lambda: rig.site.weights() == expected, "weights by bucket")
        # One command for each bucket but the best.
        assert executor.step_log.figures.steps_of("SetWeight") == 3
        rig.site.set_weight(nodes[3], 50)
        rig.until(lambda: rig.site.weights()[nodes[3]] == 53, "a person's weight counts")
        rig.start()  # without the setting, after a kill
        rig.until(lambda: rig.site.weights() == {**before, nodes[3]: 50}, "what was before")
        rig.until(lambda: not rig.ledger.weights, "nothing is left of it")
        rig.site.set_weight(nodes[3], 1)
        rig.start(weights=True, weights_poll_seconds=1.0)
        monkeypatch.setattr(rig.client, "buckets", lambda: dict(buckets))
        rig.until(lambda: rig.site.weights() == expected, "weights by bucket again")
        with rig.advice.away():
            _, failed = undo_all(rig.site.scheduler, rig.ledger)
        assert not failed and rig.site.weights() == before and not rig.ledger.weights

    def test_a_plan_is_followed_and_its_recovery_reported(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The planned node is preferred until the job runs; the measured times calibrate later plans."""
        if not rig.site.requeues:
            pytest.skip("this executor moves no jobs")
        before = rig.site.weights()
        rig.start(follow_plan=True)
        hosts = tuple(rig.site.node(number) for number in range(1, 9))
        plans = Plans(hosts)
        plans.serve(rig.client, monkeypatch)
        job = rig.site.submit(3)
        rig.until(lambda: job in rig.advice.gangs(), "the gang is reported")
        old = rig.site.scheduler.read_jobs()[job].nodes
        node = min(old)
        rig.advice.fault(node, Action.EVICT_NOW, job=job)
        rig.until(lambda: rig.is_done(node), "done")
        rig.until(lambda: plans.reports, "the recovery is reported")
        (request,) = plans.requests
        assert [hosts[index] for index in request.failed_node_index] == [node]
        assert {hosts[index] for index in request.current_node_index} == old
        assert rig.site.scheduler.read_jobs()[job].is_running
        (report,) = plans.reports
        assert report.success and report.decision_id == "d1" and report.workload == job
        times = (report.detect_time, report.decide_time, report.act_time)
        seconds = [timestamp.ToNanoseconds() for timestamp in times]
        assert seconds == sorted(seconds) and seconds[0] > 0
        advisory = rig.advice.of(node)
        assert (
            advisory is not None
            and f"plan FREE_NODE ({hosts[-1]} for {node})" in advisory.state_message
        )
        rig.until(lambda: rig.site.weights() == before, "weights are as they were")

    def test_undo_takes_everything_away_without_the_aggregator(self, rig: Rig) -> None:
        """The emergency command removes all holds and drains of executors; a foreign drain stays."""
        rig.start()
        for number in (1, 2):
            rig.advice.fault(rig.site.node(number), Action.AVOID)
        rig.until(lambda: len(rig.site.ours()) == 2, "two marks")
        rig.site.drain(rig.site.node(7), "bad fan")
        with rig.advice.away():
            done, failed = undo_all(rig.site.scheduler)
        assert len(done) == 2 and not failed and not rig.site.ours()
        assert rig.site.scheduler.read_nodes()[rig.site.node(7)].out
