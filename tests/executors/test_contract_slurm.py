"""The contract of executors over a real Slurm of eight nodes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from gangline.aggregator.advisories.advisory import Action
from gangline.executors.model import Scheduler
from gangline.executors.scheduler_command import run_command
from gangline.executors.slurm.scheduler import Slurm
from tests.executors.contract import ExecutorContract, Rig, Site
from tests.slurm_cluster import MISSING, SlurmCluster, has_slurm, running_slurm

SCRIPT = "#!/bin/bash\nsleep 1000\n"
NODES = 8
GANG = f"{sys.executable} -m gangline.cli gang"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with running_slurm(tmp_path_factory.mktemp("slurm"), NODES) as slurm:
        yield slurm


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

    def forbid_moving(self, job: str) -> None:
        self.cluster.command("scontrol", "update", f"jobid={job}", "requeue=0")

    def allow_moving(self, job: str) -> None:
        self.cluster.command("scontrol", "update", f"jobid={job}", "requeue=1")

    def set_weight(self, node: str, weight: int) -> None:
        self.cluster.command("scontrol", "update", f"nodename={node}", f"weight={weight}")

    def clean(self) -> None:
        """Remove all jobs and holds from the cluster."""
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

    def test_a_gang_with_a_spare_never_leaves_its_nodes(
        self, rig: Rig, cluster: SlurmCluster
    ) -> None:
        """The step starts again on the spare in the same allocation: no requeue, no scheduling pass."""
        rig.start()
        rank = 'echo "rank $SLURMD_NODENAME $GANGLINE_RESTART"; sleep 300'
        script = (
            f"#!/bin/bash\nexec {GANG} --nodes 2 -- srun --ntasks-per-node=1 bash -c '{rank}'\n"
        )
        job = cluster.submit(script, "-N3", "--no-kill", "--comment=gangline:spares", "--requeue")

        def ranks(start: str) -> set[str]:
            lines = (line.split() for line in cluster.output(job).splitlines())
            return {line[1] for line in lines if line[0] == "rank" and line[2] == start}

        rig.until(lambda: len(ranks("0")) == 2 and job in rig.advice.gangs(), "two ranks")
        node = max(ranks("0"))
        rig.advice.fault(node, Action.EVICT_NOW, job=job)
        rig.until(lambda: len(ranks("1")) == 2, "two ranks again")
        assert node not in ranks("1")
        rig.until(lambda: rig.is_done(node), "done")
        assert cluster.job(job)["Restarts"] == "0"
        assert re.search(rf"lost {node} \(.*EVICTED", cluster.output(job))

    @pytest.mark.parametrize("flags", ["overlap", "maint,ignore_jobs"])
    def test_a_job_in_a_reservation_that_overrides_holds_leaves(
        self, rig: Rig, cluster: SlurmCluster, flags: str
    ) -> None:
        """Slurm ignores the executor's reservation for jobs in such a reservation: they restarted on the broken node."""
        rig.start()
        job, create = "", ["scontrol", "create", "reservation", "reservationname=site", "starttime=now"]  # fmt: skip
        try:
            avoided = rig.site.node(5)
            rig.advice.fault(avoided, Action.AVOID)
            rig.until(lambda: rig.is_done(avoided), "a hold")
            cluster.command(*create, "duration=60", "nodes=gpu[1-3,5]", f"users={cluster.user}", f"flags={flags}")  # fmt: skip
            rig.until(lambda: rig.site.scheduler.read_nodes()[avoided].is_managed, "a drain")
            job = cluster.submit(SCRIPT, "-N2", "--requeue", "--reservation=site")
            cluster.until(lambda: cluster.job(job)["JobState"] == "RUNNING", f"{job} runs")
            node = min(rig.site.scheduler.read_jobs()[job].nodes)
            rig.advice.fault(node, Action.EVICT_NOW)
            rig.until(lambda: rig.is_done(node), "done")
            rig.until(lambda: rig.site.scheduler.read_jobs()[job].is_running, "it runs again")
            assert not {node, avoided} & rig.site.scheduler.read_jobs()[job].nodes
            for healed in (node, avoided):
                rig.advice.heal(healed)
            rig.until(lambda: not rig.site.ours(), "nothing is set")
        finally:
            if job:
                cluster.command("scancel", job)
            cluster.until(
                lambda: not cluster.node_states("MIXED", "ALLOCATED", "COMPLETING"), "no job"
            )
            cluster.command("scontrol", "delete", "reservationname=site")

    @pytest.mark.parametrize("pin", ["--nodelist={node}", "--constraint=fast", "--gres=lic:1"])
    def test_a_job_that_can_run_nowhere_else_is_left(
        self, rig: Rig, cluster: SlurmCluster, pin: str
    ) -> None:
        """A job that was pinned to the bad node was requeued, and never ran again."""
        features = ["scontrol", "update", "availablefeatures=fast", "activefeatures=fast"]
        # gpu1 alone has `lic`.
        node, other = ("gpu1" if "lic" in pin else rig.site.node(3)), rig.site.node(4)
        cluster.command(*features, f"nodename={node}")
        rig.start()
        job = cluster.submit(SCRIPT, "-N1", "--requeue", pin.format(node=node))
        rig.until(lambda: job in rig.advice.gangs(), "the gang is reported")
        rig.advice.fault(node, Action.EVICT_NOW)

        def reported() -> bool:
            advisory = rig.advice.of(node)
            return advisory is not None and "it can run nowhere else" in advisory.state_message

        rig.until(reported, "it says so")
        rig.turn()
        assert rig.site.scheduler.read_jobs()[job].is_running and not rig.is_done(node)
        if "constraint" in pin:
            cluster.command(*features, f"nodename={other}")
            rig.until(lambda: rig.is_done(node), "done")
            rig.until(lambda: rig.site.scheduler.read_jobs()[job].is_running, "it runs again")
            assert rig.site.scheduler.read_jobs()[job].nodes == {other}
        cluster.command("scancel", job)
        for name in (node, other):
            cluster.command("scontrol", "update", f"nodename={name}", "availablefeatures=", "activefeatures=")  # fmt: skip

    def test_a_job_whose_license_is_gone_is_left(self, rig: Rig, cluster: SlurmCluster) -> None:
        """A license that was taken out of slurm.conf stays with its job until a requeue, which waits for the license forever."""
        rig.start()
        job = cluster.submit(SCRIPT, "-N1", "--requeue", "--licenses=tool:2")
        rig.until(lambda: job in rig.advice.gangs(), "the gang is reported")
        (node,) = rig.site.scheduler.read_jobs()[job].nodes
        cluster.set_licenses("tool:1")
        try:
            rig.advice.fault(node, Action.EVICT_NOW)

            def reported() -> bool:
                advisory = rig.advice.of(node)
                return advisory is not None and "needs 2 of license tool" in advisory.state_message

            rig.until(reported, "it says so")
            assert rig.site.scheduler.read_jobs()[job].is_running and not rig.is_done(node)
        finally:
            cluster.set_licenses("tool:2")
        rig.until(lambda: rig.is_done(node), "done")
        cluster.command("scancel", job)

    def test_a_job_of_a_dead_slurmd_runs_again_at_once(
        self, rig: Rig, cluster: SlurmCluster
    ) -> None:
        """The most common loss: the node was DOWN, its advisory was deferred, and the job waited behind Slurm's delay."""
        rig.start()
        job = rig.site.submit(2)
        rig.until(lambda: job in rig.advice.gangs(), "the gang is reported")
        node = max(rig.site.scheduler.read_jobs()[job].nodes)
        cluster.kill_node(node)
        rig.until(lambda: rig.site.scheduler.read_jobs()[job].is_running, "it runs again")
        job_state = rig.site.scheduler.read_jobs()[job]
        assert job_state.restarts == 1 and node not in job_state.nodes
        rig.until(lambda: node in rig.advice.unavailable(), "it is reported")
        rig.advice.fault(node, Action.EVICT_NOW)
        rig.until(lambda: rig.is_done(node), "done")
        cluster.start_node(node)
        rig.advice.heal(node)
        rig.until(lambda: not rig.site.ours(), "nothing is set")

    def test_a_heterogeneous_job_is_one_job(self, rig: Rig, cluster: SlurmCluster) -> None:
        rig.start()
        script = cluster.folder / "jobs" / "het.sh"
        script.write_text(SCRIPT)
        command = [
            "sbatch",
            "--parsable",
            "--requeue",
            "--output=/dev/null",
            "-N2",
            ":",
            "-N1",
            str(script),
        ]
        job = cluster.command(*command).strip()
        rig.until(lambda: len(rig.advice.gangs().get(job, ((),))[0]) in (1, 3), "the gang")
        rig.until(lambda: rig.site.scheduler.read_jobs()[job].is_running, "both parts run")
        node = max(rig.site.scheduler.read_jobs()[job].nodes)
        rig.advice.fault(node, Action.EVICT_NOW, job=job)
        rig.until(lambda: rig.is_done(node), "done")
        rig.until(lambda: rig.site.scheduler.read_jobs()[job].is_running, "both parts run again")
        again = rig.site.scheduler.read_jobs()[job]
        assert again.restarts == 1 and node not in again.nodes
