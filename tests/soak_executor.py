"""`make soak-executor`: random faults and random kills around a real executor in a real Slurm; what was promised holds after each.

    python -m tests.soak_executor --rounds 200 --seed 1

Each round breaks a node, kills the executor with SIGKILL at a random moment, now and then restarts slurmctld, starts the executor
again, and heals the node. Counted is what must never be: a job that failed or was requeued twice, a mark past its expiry or
after the return of its node, somebody else's drain that was touched.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gangline.aggregator.advisories.advisory import Action, AdvisoryState
from gangline.executors.model import SchedulerError
from gangline.executors.scheduler_command import run_command
from gangline.executors.slurm.scheduler import Slurm
from tests.executors.advice_server import LIMITS, AdviceServer, serving_advice
from tests.processes import GUARD_SECONDS
from tests.slurm_cluster import MISSING, SlurmCluster, has_slurm, running_slurm
from tests.soak_rounds import RoundsReport, play_rounds, run_soak

NODES = 8
HOLD_SECONDS = 30.0
ACTIONS = (Action.AVOID, Action.DRAIN_AFTER_JOB, Action.EVICT_NOW, Action.EVICT_NOW)
#: Seconds until slurmctld purges an ended reservation.
PURGED_SECONDS = 5.0
FOREIGN_REASON = "bad fan"


@dataclass
class SlurmReport(RoundsReport):
    """The result."""

    executor_kills: int = 0
    controller_restarts: int = 0


class SoakGround:
    """A cluster, advice, and one executor process that is killed and started again."""

    def __init__(
        self, cluster: SlurmCluster, advice: AdviceServer, folder: Path, source: random.Random
    ) -> None:
        self.cluster, self.advice, self.folder, self.source = cluster, advice, folder, source
        self.slurm = Slurm(partial(run_command, environment=cluster.environment))
        self.report = SlurmReport()
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder / "executor.log"

    def start(self) -> None:
        settings = {"ledger": self.folder / "ledger", "poll_seconds": 0.3, "nodes_poll_seconds": 1}
        assignments = [
            word for key, value in settings.items() for word in ("--set", f"{key}={value}")
        ]
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gangline.cli", "executor", "slurm", "--aggregator", self.advice.address, *assignments],
                env=self.cluster.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(GUARD_SECONDS)
            self.report.executor_kills += 1

    def close(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(GUARD_SECONDS)

    def until(self, condition: Callable[[], object], what: str) -> bool:
        """Wait for *condition*; a timeout is a violation."""
        end = time.monotonic() + GUARD_SECONDS / 2
        while time.monotonic() < end:
            try:
                if condition():
                    return True
            except (AssertionError, SchedulerError):  # slurmctld is away
                pass
            time.sleep(0.05)
        state = {
            advisory.name: f"{advisory.hosts[0]} {advisory.state.name} {advisory.state_message}"
            for advisory in self.advice.advisories().values()
        }
        self.report.violate(f"never: {what}; {state}")
        return False

    def marks(self) -> set[str]:
        return {
            node
            for hold in self.slurm.read_holds().values()
            if hold.is_managed
            for node in hold.nodes
        }

    def play(self) -> None:
        self.report.rounds += 1
        source, cluster = self.source, self.cluster
        action = source.choice(ACTIONS)
        job = cluster.submit("#!/bin/bash\nsleep 600\n", "-N3", "--requeue")
        if not self.until(lambda: job in self.advice.gangs(), f"job {job} is reported"):
            return
        nodes = sorted(self.slurm.read_jobs()[job].nodes)
        node = source.choice(nodes)
        foreign = source.choice([name for name in cluster.nodes if name not in nodes])
        cluster.command(
            "scontrol", "update", f"nodename={foreign}", "state=drain", f"reason={FOREIGN_REASON}"
        )
        self.advice.fault(node, action, job=job)
        time.sleep(source.random() ** 2)
        self.kill()
        if source.random() < 0.2:
            self._restart_controller()
        self.start()
        if source.random() < 0.3:
            time.sleep(source.random())
            self.kill()
            self.start()
        if action is Action.DRAIN_AFTER_JOB:
            self.until(lambda: node in self.marks(), f"a mark on {node}")
            cluster.command("scancel", job)
        self.until(lambda: self._is_done(node), f"{action.name} of {node} is done")
        if action is Action.EVICT_NOW:
            self.until(lambda: self._runs(job), f"job {job} runs again")
        self._check(job, node, foreign, action)
        self.advice.heal(node)
        if source.random() < 0.3:
            time.sleep(0.5 * source.random())
            self.kill()
            self.start()
        self.until(lambda: not self.marks(), f"{node} is back")
        cluster.command("scancel", job)
        self.until(lambda: self._resume(foreign), f"{foreign} is resumed")
        self.until(lambda: len(cluster.node_states("IDLE")) == NODES, "all nodes are idle")

    def play_dead(self) -> None:
        """Play a round in which the executor does not return: its marks end by themselves."""
        self.report.rounds += 1
        node = self.source.choice(self.cluster.nodes)
        self.advice.fault(node, Action.AVOID)
        self.until(lambda: self._is_done(node), f"AVOID of {node} is done")
        self.kill()
        (hold,) = (hold for hold in self.slurm.read_holds().values() if hold.is_managed)
        time.sleep(max(0.0, hold.ends + PURGED_SECONDS - time.time()))
        if self.marks():
            self.report.violate(f"{hold} is past its expiry")
        self.start()
        self.advice.heal(node)
        self.until(lambda: not self.marks(), f"{node} is back")

    def _is_done(self, node: str) -> bool:
        advisory = self.advice.of(node)
        return advisory is not None and advisory.state is AdvisoryState.DONE

    def _check(self, job: str, node: str, foreign: str, action: Action) -> None:
        job_state = self.slurm.read_jobs().get(job)
        problems: list[str] = []
        if action is Action.EVICT_NOW and (
            job_state is None or job_state.restarts != 1 or node in job_state.nodes
        ):
            problems.append(f"job {job} after the eviction from {node}: {job_state}")
        if action is Action.AVOID and (
            job_state is None or job_state.restarts or not job_state.is_running
        ):
            problems.append(f"job {job} on an avoided node: {job_state}")
        if not self._is_foreign(foreign):
            problems.append(f"the drain of {foreign} is gone")
        if extra := self.marks() - {node}:
            problems.append(f"marks on {extra}")
        for problem in problems:
            self.report.violate(problem)

    def _runs(self, job: str) -> bool:
        job_state = self.slurm.read_jobs().get(job)
        return job_state is not None and job_state.is_running

    def _resume(self, node: str) -> bool:
        """Resume drained nodes; a node that has not registered since slurmctld's restart accepts this a moment later."""
        if self._is_foreign(node):
            self.cluster.command("scontrol", "update", f"nodename={node}", "state=resume")
        return not self._is_foreign(node)

    def _is_foreign(self, node: str) -> bool:
        return FOREIGN_REASON in self.slurm.read_nodes([node])[node].out

    def _restart_controller(self) -> None:
        """Restart slurmctld, which first saves its state: a killed slurmctld loses unsaved state,
        such as a new job, with any executor.
        """
        self.cluster.restart_controller()
        self.report.controller_restarts += 1


def soak(rounds: int, seed: int, *, show: bool = True) -> SlurmReport:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        (folder / "slurm").mkdir()
        limits = replace(LIMITS, hold_seconds=HOLD_SECONDS)
        with running_slurm(folder / "slurm", NODES) as cluster, serving_advice(limits) as advice:
            ground = SoakGround(cluster, advice, folder, random.Random(seed))
            ground.start()
            try:
                play_rounds(
                    rounds,
                    lambda at: ground.play_dead() if at % 25 == 24 else ground.play(),
                    ground.report,
                    show=show,
                )
            finally:
                ground.close()
                if ground.report.violations and show:
                    print(os.linesep + ground.log.read_text()[-6000:], file=sys.stderr)
    return ground.report


def main() -> int:
    """Return 1 where a promise was broken."""
    return run_soak(
        __doc__ or "", "" if has_slurm() else MISSING, soak,
        lambda one: f"{one.executor_kills} kills of the executor, {one.controller_restarts} restarts of slurmctld",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
