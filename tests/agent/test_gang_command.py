"""`gangline gang` in a real Slurm: only a lost node costs a restart on a spare."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline import cli
from tests.slurm_cluster import MISSING, SlurmCluster, has_slurm, running_slurm

slurm = pytest.mark.skipif(not has_slurm(), reason=MISSING)

HEAD = "#!/bin/bash\n"
GANG = f"exec {sys.executable} -m gangline.cli gang"
#: Each rank prints its node and its start, and then works.
RANK = 'echo "rank on $SLURMD_NODENAME start $GANGLINE_RESTART"'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with running_slurm(tmp_path_factory.mktemp("slurm"), 4) as one:
        yield one


def ranks(cluster: SlurmCluster, job: str, start: int) -> set[str]:
    return {
        line.split()[2]
        for line in cluster.output(job).splitlines()
        if line.startswith("rank on ") and line.endswith(f"start {start}")
    }


def submit(cluster: SlurmCluster, program: str, *options: str, nodes: int = 4) -> str:
    step = f"srun --ntasks-per-node=1 bash -c '{program}'"
    script = f"{HEAD}{GANG} {' '.join(options)} -- {step}\n"
    return cluster.submit(script, f"-N{nodes}", "--no-kill", "--gpus-per-node=4")


def finish(cluster: SlurmCluster, job: str) -> str:
    """Wait for the end of a job, make its nodes idle again, and return its exit code."""
    cluster.until(
        lambda: cluster.job(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), "an end"
    )
    code = cluster.job(job)["ExitCode"]
    for name, state in cluster.node_states().items():
        if "DOWN" in state or "DRAIN" in state:
            cluster.command("scontrol", "update", f"nodename={name}", "state=resume")
    cluster.until(lambda: len(cluster.node_states("IDLE")) == 4, "all nodes idle")
    return code


@slurm
def test_a_lost_node_is_replaced_by_a_spare(cluster: SlurmCluster) -> None:
    """One of four nodes is lost; the others continue with the spare, in the same job."""
    job = submit(cluster, f"{RANK}; [ $GANGLINE_RESTART = 1 ] && sleep 1 || sleep 300", "--nodes 3")
    cluster.until(lambda: len(ranks(cluster, job, 0)) == 3, "three ranks")
    lost = sorted(ranks(cluster, job, 0))[1]
    cluster.command("scontrol", "update", f"nodename={lost}", "state=down", "reason=test")
    assert finish(cluster, job) == "0:0"
    before, after = ranks(cluster, job, 0), ranks(cluster, job, 1)
    assert len(after) == 3 and lost not in after and len(before & after) == 2
    output = cluster.output(job)
    assert f"gangline gang: lost {lost} (" in output and "restart 1 of at most 3" in output
    assert "started again on " in output


@slurm
def test_a_program_that_fails_is_no_lost_node(cluster: SlurmCluster) -> None:
    """Its exit code is the job's, and it is not started again."""
    # Slurm ends the slower rank: both end alike, at any time.
    job = submit(cluster, f'trap "exit 7" TERM; {RANK}; sleep 3; exit 7', "--nodes 2")
    assert finish(cluster, job) == "7:0"
    assert not ranks(cluster, job, 1) and "restart" not in cluster.output(job)


@slurm
def test_signals_reach_the_program(cluster: SlurmCluster) -> None:
    """Slurm warns a job before its limit: a checkpoint is written, and nothing restarts."""
    job = submit(
        cluster, f'trap "echo saved; exit 3" USR1; {RANK}; while :; do sleep 0.1; done', "--nodes 1"
    )
    cluster.until(lambda: len(ranks(cluster, job, 0)) == 1, "a rank")
    cluster.command("scancel", "--batch", "--signal=USR1", job)
    assert finish(cluster, job) == "3:0"
    assert "saved" in cluster.output(job) and not ranks(cluster, job, 1)


@slurm
def test_without_a_spare_it_says_so(cluster: SlurmCluster) -> None:
    """The job ends with a message, not with a step that waits forever."""
    job = submit(cluster, f"{RANK}; sleep 300", "--nodes 2", nodes=2)
    cluster.until(lambda: len(ranks(cluster, job, 0)) == 2, "two ranks")
    lost = sorted(ranks(cluster, job, 0))[1]
    cluster.command("scontrol", "update", f"nodename={lost}", "state=down", "reason=test")
    assert finish(cluster, job) == "1:0"
    assert f"nodes left of job {job}: 1, the step needs 2" in cluster.output(job)


@slurm
def test_restarts_are_bounded(cluster: SlurmCluster) -> None:
    """A step that loses a node each time ends with its own exit code."""
    job = submit(cluster, f"{RANK}; sleep 300", "--nodes 2", "--restarts 0")
    cluster.until(lambda: len(ranks(cluster, job, 0)) == 2, "two ranks")
    lost = sorted(ranks(cluster, job, 0))[1]
    cluster.command("scontrol", "update", f"nodename={lost}", "state=down", "reason=test")
    assert finish(cluster, job) not in ("0:0", "1:0") or "no restarts are left" in cluster.output(
        job
    )
    assert "no restarts are left of 0" in cluster.output(job) and not ranks(cluster, job, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "2"], "no step; put its command after --"),
        (["--nodes", "2", "--"], "no step; put its command after --"),
        (["--nodes", "2", "--", "mpirun", "x"], "'mpirun': expected srun as the first word of the step"),
        (["--nodes", "2", "--", "srun", "-N4", "x"], "-N4: leave it out"),
        (["--nodes", "2", "--", "srun", "-n", "4", "--nodelist=a", "x"], "--nodelist=a: leave it out"),
        (["--nodes", "0", "--", "srun", "x"], "expected 1 or more"),
        (["--nodes", "two", "--", "srun", "x"], "expected a whole number"),
        (["--nodes", "2", "--restarts", "1001", "--", "srun", "x"], "up to 1000"),
        (["--", "srun", "x"], "--nodes"),
    ],
)  # fmt: skip
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage is exit code 2, with the correct usage."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["gang", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_outside_a_job(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """At a prompt there is no allocation; options after the program belong to the program."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert cli.main(["gang", "--nodes", "2", "--", "srun", "-n", "2", "./train", "-N4"]) == 1
    assert "no SLURM_JOB_ID. Run this in a batch script" in capsys.readouterr().err


def test_nothing_but_slurm_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Slurm's commands there is a message; no signal handler remains."""
    before = signal.getsignal(signal.SIGUSR1)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("PATH", str(tmp_path))
    try:
        assert cli.main(["gang", "--nodes", "1", "--", "srun", "true"]) == 1
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGUSR1, before)
