"""`make soak-kubernetes`: random faults, and an executor that dies at random calls, over a real API server.

    GANGLINE_KUBERNETES=FOLDER/bin python -m tests.soak_kubernetes --rounds 200 --seed 1

Each round breaks a node, kills the executor before or after some of its calls to the API server (so that the server may have done what the
ledger does not know), starts another one on the ledger in the ConfigMap, and heals the node. Meanwhile somebody else taints and cordons nodes.
Counted is what must never be: a mark past its end or after the return of its node, somebody else's taint or cordon that was touched, a gang
that was evicted twice, in half, or against its disruption budget.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gangline.aggregator.advisories.advisory import Action, AdvisoryState
from gangline.executors.context import ExecutorContext
from gangline.executors.executor import Executor
from gangline.executors.kubernetes.api import ApiServer
from gangline.executors.kubernetes.scheduler import Kubernetes
from gangline.executors.kubernetes.settings import KubernetesConfig
from gangline.executors.kubernetes.state import ConfigMapLedger
from gangline.executors.settings import NodeNames
from tests.executors.advice_server import AdviceServer, connected_client, serving_advice
from tests.executors.kubernetes_site import KubernetesSite
from tests.kubernetes_cluster import MISSING, UsedCluster, executor_cluster, has_kubernetes
from tests.processes import GUARD_SECONDS
from tests.soak_rounds import RoundsReport, play_rounds, run_soak

ACTIONS = (Action.AVOID, Action.DRAIN_AFTER_JOB, Action.EVICT_NOW, Action.EVICT_NOW)
FOREIGN_KEY = "repair.example/fan"
#: Rounds in which the executor does not come back.
DEAD_ROUNDS = 20


class Killed(BaseException):
    """As SIGKILL: nothing behind it is done."""


@dataclass
class KubernetesReport(RoundsReport):
    """The result."""

    kills: int = 0
    evictions: int = 0
    refused: int = 0
    foreign_writes: int = 0


class KubernetesSoak:
    """A cluster, advice, and executors one after another."""

    def __init__(
        self, cluster: UsedCluster, advice: AdviceServer, source: random.Random, stack: ExitStack
    ) -> None:
        self.cluster, self.advice, self.source = cluster, advice, source
        self.report = KubernetesReport()
        self._stack = stack
        self.site = KubernetesSite(cluster)
        self._left = 0
        #: A killed process makes no more calls, also not in a `finally`, where a failed call would hide the kill.
        self._is_killed = False
        self._life: ExitStack | None = None
        self._executor: Executor | None = None
        self.start()

    def start(self) -> None:
        """Start an executor as after a kill: new connections, the ledger from the API server."""
        if self._life is not None:
            self._life.close()
        life = self._life = ExitStack()
        self._stack.callback(life.close)
        api: Any = ApiServer(self.cluster.access)
        scheduler = Kubernetes(api)
        life.callback(scheduler.close)
        call = api.call
        main = threading.get_ident()

        def guarded(*arguments: Any) -> Any:
            if threading.get_ident() != main:  # a watch
                return call(*arguments)
            self._pass()
            answer = call(*arguments)
            self._pass()
            return answer

        api.call = guarded
        config = KubernetesConfig(poll_seconds=0.2, nodes_poll_seconds=1.0)
        client = life.enter_context(connected_client(self.advice, config.actor, lambda: None))
        while True:
            self._is_killed = False
            try:
                ledger = ConfigMapLedger(api, config.namespace, config.state_name)
                break
            except Killed:
                self.report.kills += 1
        self._executor = Executor(ExecutorContext(config, scheduler, client, ledger, NodeNames()))

    def _pass(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._left = self.source.choice((0, 0, self.source.randint(1, 12)))
            self._is_killed = True
        if self._is_killed:
            raise Killed

    def until(self, condition: Callable[[], object], what: str) -> bool:
        """Turn the executor and its successor until *condition*; a timeout is a violation."""
        end = time.monotonic() + GUARD_SECONDS / 4
        while time.monotonic() < end:
            if condition():
                return True
            assert self._executor
            try:
                self._executor.turn()
            except Killed:
                self.report.kills += 1
                self.start()
            time.sleep(0.01)
        states = {advisory.name: f"{advisory.hosts[0]} {advisory.state.name} {advisory.state_message}" for advisory in self.advice.advisories().values()}  # fmt: skip
        self.report.violate(f"never: {what}; {states}")
        return False

    def play(self) -> None:
        self.report.rounds += 1
        source, people, site = self.source, self.cluster.people, self.site
        action = source.choice(ACTIONS)
        # Always the same node: a node reported by a killed executor stays out for its ttl, and gets
        # no advice.
        cordoned = "n8"
        site.drain(cordoned, "bad fan")
        job = site.submit(3)
        app = job.rpartition("/")[2]
        has_budget = action is Action.EVICT_NOW and source.random() < 0.3
        if has_budget:
            people.add_budget(app, 2)
            path = f"/apis/policy/v1beta1/namespaces/ml/poddisruptionbudgets/{app}"
            self.until(lambda: (people.api.call("GET", path).get("status") or {}).get("disruptionsAllowed") == 1, "the budget is known")  # fmt: skip
        self.until(lambda: job in self.advice.gangs(), f"{job} is reported")
        nodes = sorted(site.kubernetes.read_jobs()[job].nodes)
        node = source.choice(nodes)
        before = self._pods(app)
        writer = threading.Thread(target=self._write_foreign, args=(node, source.randint(3, 15)))
        writer.start()
        self._left = source.randint(1, 14)
        self.advice.fault(node, action, job=job)
        if action is Action.DRAIN_AFTER_JOB:
            self.until(lambda: site.ours(), f"a mark on {node}")
            people.cancel(app)
        # Half of the budgets are removed before the node recovers, and the next attempt succeeds.
        is_left = has_budget and source.random() < 0.5
        if has_budget:
            self.until(lambda: self._is_refused(node, job), f"{job} is kept by its budget")
            self.report.refused += 1
            if (pods := self._pods(app)) != before:
                self.report.violate(
                    f"{len(before - pods)} pods of {app} were evicted against its budget"
                )
            if not is_left:
                people.remove_budget(app)
        if not is_left:
            self.until(lambda: self._is_done(node), f"{action.name} of {node} is done")
        writer.join()
        if action is Action.EVICT_NOW and not is_left:
            self.report.evictions += 1
            self.until(lambda: len(self._pods(app) - before) == 3, f"{job} has new pods")
        self._check(action, is_left, before, app, node, cordoned)
        self._left = source.randint(1, 14)
        if self.report.rounds % DEAD_ROUNDS == 0:
            self._outlive(node)
        self.advice.heal(node)
        self.until(lambda: not site.ours(), f"{node} is back")
        self._left = 0
        people.untaint(node, FOREIGN_KEY)
        if is_left:
            people.remove_budget(app)
        if action is not Action.DRAIN_AFTER_JOB:
            people.cancel(app)
        site.resume(cordoned)
        self.until(lambda: not people.remove_pods(), "no pods are left")

    def _write_foreign(self, node: str, count: int) -> None:
        """Change a foreign controller's own taint, which no executor may remove."""
        people = self.cluster.people
        for number in range(count):
            people.taint(node, FOREIGN_KEY, str(number), "PreferNoSchedule")
            self.report.foreign_writes += 1
            if f"{FOREIGN_KEY}={number}:PreferNoSchedule" not in people.taints(node):
                self.report.violate("a taint of another was lost")

    def _outlive(self, node: str) -> None:
        """End the executor for good: another party removes its expired marks."""
        later = Kubernetes(ApiServer(self.cluster.access), wall=lambda: time.time() + 100_000)
        later.capabilities()
        later.remove_expired()
        later.close()
        if any("gangline" in taint for taint in self.cluster.people.taints(node)):
            self.report.violate(f"a mark on {node} is past its end")

    def _pods(self, app: str) -> set[str]:
        return {
            pod["metadata"]["uid"] for pod in self.cluster.people.pods()
            if pod["metadata"]["labels"].get("app") == app and not pod["metadata"].get("deletionTimestamp")
        }  # fmt: skip

    def _is_done(self, node: str) -> bool:
        advisory = self.advice.of(node)
        return advisory is not None and advisory.state is AdvisoryState.DONE

    def _is_refused(self, node: str, job: str) -> bool:
        """Return whether the advisory is still carried out, and names the job that its budget keeps on *node*."""
        advisory = self.advice.of(node)
        return (
            advisory is not None
            and advisory.state is AdvisoryState.ACCEPTED
            and f"job {job} was left: disruption budget" in advisory.state_message
        )

    def _check(
        self, action: Action, is_left: bool, before: set[str], app: str, node: str, cordoned: str
    ) -> None:
        people, problems = self.cluster.people, []
        pods = self._pods(app)
        if (is_left or action is Action.AVOID) and pods != before:
            problems.append(f"{len(before - pods)} pods of {app} were evicted, budget: {is_left}")  # fmt: skip
        if action is Action.EVICT_NOW and not is_left and pods & before:
            problems.append(f"{len(pods & before)} of {len(before)} pods of {app} were left")
        node_object = people.node(cordoned)
        if not node_object["spec"].get("unschedulable"):
            problems.append(f"the cordon of {cordoned} is gone")
        if not any(taint.startswith(FOREIGN_KEY) for taint in people.taints(node)):
            problems.append(f"the other taint of {node} is gone")
        marked = {f"n{index}" for index in range(1, 9) if any("gangline" in taint for taint in people.taints(f"n{index}"))}  # fmt: skip
        if marked - {node}:
            problems.append(f"marks on {marked - {node}}")
        for problem in problems:
            self.report.violate(f"{action.name}: {problem}")


def soak(rounds: int, seed: int, *, show: bool = True) -> KubernetesReport:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        cluster = stack.enter_context(executor_cluster(folder))
        advice = stack.enter_context(serving_advice())
        ground = KubernetesSoak(cluster, advice, random.Random(seed), stack)
        play_rounds(rounds, lambda _: ground.play(), ground.report, show=show)
        ground.site.clean()
        return ground.report


def main() -> int:
    """Return 1 where a promise was broken."""
    return run_soak(
        __doc__ or "", "" if has_kubernetes() else MISSING, soak,
        lambda one: f"{one.kills} kills, {one.evictions} gangs evicted, {one.refused} kept by a budget, "
        f"{one.foreign_writes} changes by another writer",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
