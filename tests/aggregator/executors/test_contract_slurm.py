"""The contract of executors over a real Slurm of eight nodes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from gangline.aggregator.executors.model import Scheduler
from gangline.aggregator.executors.slurm import Slurm, run_command
from tests.aggregator.executors.contract import ExecutorContract, Site
from tests.slurm_cluster import MISSING, SlurmCluster, has_slurm, running_slurm

SCRIPT = "#!/bin/bash\nsleep 1000\n"
NODES = 8


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with running_slurm(tmp_path_factory.mktemp("slurm"), NODES) as one:
        yield one


class SlurmSite(Site):
    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self._slurm = Slurm(partial(run_command, environment=cluster.environment))

    @property
    def scheduler(self) -> Scheduler:
        return self._slurm

    def node(self, number: int) -> str:
        return f"gpu{number}"

    def submit(self, nodes: int, *, may_requeue: bool = True) -> str:
        requeue = "--requeue" if may_requeue else "--no-requeue"
        job = self.cluster.submit(SCRIPT, f"-N{nodes}", requeue, "--gpus-per-node=4")
        self.cluster.until(lambda: self.cluster.job(job)["JobState"] == "RUNNING", f"{job} runs")
        return job

    def drain(self, node: str, reason: str) -> None:
        self.cluster.command(
            "scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}"
        )

    def resume(self, node: str) -> None:
        self.cluster.command("scontrol", "update", f"nodename={node}", "state=resume")

    def remove_hold(self, name: str) -> None:
        self.cluster.command("scontrol", "delete", f"reservationname={name}")

    def cancel(self, job: str) -> None:
        self.cluster.command("scancel", job)

    def clean(self) -> None:
        """Have an empty cluster again."""
        self.cluster.command("scancel", "--user", self.cluster.user)
        for hold in self._slurm.read_holds():
            self.remove_hold(hold)
        for node in self._slurm.read_nodes().values():
            if node.out or node.is_managed:
                self.resume(node.name)
        self.cluster.until(
            lambda: len(self.cluster.node_states("IDLE")) == NODES, "an empty cluster"
        )


@pytest.mark.skipif(not has_slurm(), reason=MISSING)
class TestSlurm(ExecutorContract):
    @pytest.fixture
    def site(self, cluster: SlurmCluster) -> Iterator[Site]:
        site = SlurmSite(cluster)
        yield site
        site.clean()
