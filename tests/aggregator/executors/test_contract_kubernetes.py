"""The contract of executors over Kubernetes: the real API server, etcd and scheduler, and a stand-in for where they are not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gangline.aggregator.executors.kubernetes import Kubernetes
from gangline.aggregator.executors.kubernetes_api import ApiAccess, ApiServer
from gangline.aggregator.executors.model import Scheduler
from tests.aggregator.executors.contract import ExecutorContract, Site
from tests.fake_kubernetes import fake_kubernetes
from tests.kubernetes_cluster import (
    ADMIN_TOKEN,
    EXECUTOR_TOKEN,
    MANIFESTS,
    MISSING,
    NAMESPACE,
    Background,
    Binder,
    JobController,
    Kubelets,
    People,
    has_kubernetes,
    path_of,
    running_kubernetes,
    until,
    used_cluster,
)


class KubernetesSite(Site):
    """*access*: of the executor, which has no rights beyond those that it needs."""

    def __init__(self, access: ApiAccess, people: People) -> None:
        self.people = people
        self._kubernetes = Kubernetes(ApiServer(access))
        self._kubernetes.capabilities()

    @property
    def scheduler(self) -> Scheduler:
        return self._kubernetes

    def node(self, number: int) -> str:
        return f"n{number}"

    def submit(self, nodes: int, *, may_requeue: bool = True) -> str:
        job = self.people.submit(nodes, {} if may_requeue else {"gangline.io/requeue": "false"})
        name = f"{NAMESPACE}/job/{job}"

        def runs() -> bool:
            found = self.scheduler.read_jobs().get(name)
            ready = [
                pod for pod in self.people.pods()
                if pod["metadata"]["labels"]["job-name"] == job and pod["status"]["phase"] == "Running"
            ]  # fmt: skip
            return found is not None and len(found.nodes) == nodes and len(ready) == nodes

        until(runs, f"{name} runs")
        return name

    def drain(self, node: str, reason: str) -> None:
        self.people.cordon(node, reason)
        until(lambda: reason in self.scheduler.read_nodes()[node].out, "the cordon is seen")

    def resume(self, node: str) -> None:
        self.people.uncordon(node)
        until(lambda: not self.scheduler.read_nodes()[node].out, "the end of the cordon is seen")

    def remove_hold(self, name: str) -> None:
        for node in self.scheduler.read_holds()[name].nodes:
            self.people.untaint(node, "gangline.io/avoid")
        until(lambda: name not in self.scheduler.read_holds(), "the end of the hold is seen")

    def cancel(self, job: str) -> None:
        self.people.cancel(job.rpartition("/")[2])

    def clean(self) -> None:
        """Have an empty cluster again."""
        jobs, _ = self.people.api.list_all("/apis/batch/v1/jobs")
        for job in jobs:
            self.people.cancel(job["metadata"]["name"])
        for name, node in self.scheduler.read_nodes().items():
            if node.out:
                self.people.uncordon(name)
            self.people.untaint(name, "gangline.io/avoid")
        until(lambda: not self.people.pods(), "no pods")
        until(lambda: not self.ours() and not self.scheduler.read_jobs(), "an empty cluster")
        self._kubernetes.close()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ApiAccess, People]]:
    with ExitStack() as stack:
        cluster = stack.enter_context(running_kubernetes(tmp_path_factory.mktemp("kubernetes")))
        kubectl = path_of("kubectl")
        assert kubectl
        config = cluster.kubeconfig(ADMIN_TOKEN)
        subprocess.run(
            [kubectl, f"--kubeconfig={config}", "apply", "-f", str(MANIFESTS / "executor-rights.yaml")],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        loops: list[type[Background]] = [Kubelets]
        if not cluster.has_controller_manager:
            loops.append(JobController)
        people = stack.enter_context(used_cluster(cluster.access(ADMIN_TOKEN), *loops))
        yield cluster.access(EXECUTOR_TOKEN), people


@pytest.fixture(scope="module")
def fake() -> Iterator[tuple[ApiAccess, People]]:
    with ExitStack() as stack:
        _, access = stack.enter_context(fake_kubernetes())
        loops = (Kubelets, JobController, Binder)
        yield access, stack.enter_context(used_cluster(access, *loops))


class TestFakeKubernetes(ExecutorContract):
    @pytest.fixture
    def site(self, fake: tuple[ApiAccess, People]) -> Iterator[Site]:
        site = KubernetesSite(*fake)
        yield site
        site.clean()


@pytest.mark.skipif(not has_kubernetes(), reason=MISSING)
class TestKubernetes(ExecutorContract):
    @pytest.fixture
    def site(self, real: tuple[ApiAccess, People]) -> Iterator[Site]:
        site = KubernetesSite(*real)
        yield site
        site.clean()
