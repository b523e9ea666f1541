"""A cluster of Kubernetes as the contract of executors uses it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gangline.executors.kubernetes.api import ApiServer
from gangline.executors.kubernetes.scheduler import Kubernetes
from gangline.executors.kubernetes.settings import KubernetesConfig
from gangline.executors.model import Scheduler
from tests.executors.contract import Site
from tests.kubernetes_cluster import NAMESPACE, UsedCluster, until


class KubernetesSite(Site):
    """A Kubernetes cluster with the executor's minimal rights. *settings* belong to the scheduler."""

    def __init__(
        self, cluster: UsedCluster, wall: Callable[[], float] = time.time, **settings: Any
    ) -> None:
        self.people = cluster.people
        self.kubernetes = Kubernetes(ApiServer(cluster.access), KubernetesConfig(**settings), wall)
        self.kubernetes.capabilities()

    @property
    def scheduler(self) -> Scheduler:
        return self.kubernetes

    def node(self, number: int) -> str:
        return f"n{number}"

    def submit(self, nodes: int, *, may_requeue: bool = True) -> str:
        return self.submit_annotated(nodes, {} if may_requeue else {"gangline.io/requeue": "false"})

    def submit_annotated(self, nodes: int, annotations: dict[str, str]) -> str:
        job = self.people.submit(nodes, annotations)
        name = f"{NAMESPACE}/job/{job}"

        def runs() -> bool:
            scheduled_job = self.scheduler.read_jobs().get(name)
            ready = [
                pod for pod in self.people.pods()
                if pod["metadata"]["labels"]["job-name"] == job and pod["status"]["phase"] == "Running"
            ]  # fmt: skip
            return (
                scheduled_job is not None
                and len(scheduled_job.nodes) == nodes
                and len(ready) == nodes
            )

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

    def forbid_moving(self, job: str) -> None:
        app = job.rpartition("/")[2]
        self.people.add_budget(app, len(self.scheduler.read_jobs()[job].nodes))

    def allow_moving(self, job: str) -> None:
        self.people.remove_budget(job.rpartition("/")[2])

    def clean(self) -> None:
        """Remove all jobs and marks from the cluster."""
        jobs, _ = self.people.api.list_all("/apis/batch/v1/jobs")
        for job in jobs:
            self.people.cancel(job["metadata"]["name"])
        for name, node in self.scheduler.read_nodes().items():
            if node.out:
                self.people.uncordon(name)
            self.people.untaint(name, "gangline.io/avoid")
            self.people.annotate(name, "gangline.io/holds", None)
        until(lambda: not self.people.remove_pods(), "no pods")
        until(lambda: not self.ours() and not self.scheduler.read_jobs(), "an empty cluster")
        self.kubernetes.close()
