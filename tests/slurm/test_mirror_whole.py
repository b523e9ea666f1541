"""End to end: simulated hosts, a real aggregator, `gangline mirror`, and the plugin in a real slurmctld."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gangline import cli
from gangline.executors import mirror_file
from tests.aggregator.process import Process
from tests.processes import GUARD_SECONDS
from tests.slurm.embedded_lua import script
from tests.slurm.plugin_cluster import MISSING_PLUGIN, excluded_nodes, has_plugin, sbatch
from tests.slurm_cluster import MISSING, SlurmCluster, has_slurm

HOSTS = 4
NAMES = [f"sim-{index:03d}" for index in range(HOSTS)]


def _cluster(folder: Path, mirror: Path) -> SlurmCluster:
    """Return a cluster whose nodes have the names of the simulated hosts."""
    cluster = SlurmCluster(folder, HOSTS)
    # All nodes are alike and interchangeable.
    text = (
        cluster.conf.read_text()
        .replace(",lic:1", "")
        .replace("NodeName=gpu1 ", "NodeName=sim-000 ")
    )
    text = text.replace(f"NodeName=gpu[2-{HOSTS}]", f"NodeName=sim-[001-{HOSTS - 1:03d}]")
    gres = folder / "gres.conf"
    gres.write_text(gres.read_text().replace("NodeName=gpu1 Name=lic Count=1\n", ""))
    cluster.conf.write_text(f"{text}JobSubmitPlugins=lua\n")
    cluster.nodes = NAMES
    for name in NAMES:
        (folder / "spool" / name).mkdir()
    (folder / "job_submit.lua").write_text(script(mirror, exclude=True))
    return cluster


@pytest.mark.slow
@pytest.mark.skipif(not has_slurm(), reason=MISSING)
@pytest.mark.skipif(not has_plugin(), reason=MISSING_PLUGIN)
def test_a_fault_of_a_host_reaches_the_next_job(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After an XID a job that others can run excludes the host, a job that needs all nodes is
    accepted; then Gangline is killed.
    """
    folder = tmp_path_factory.mktemp("whole")
    for name in ("slurm", "mirror", "store"):
        (folder / name).mkdir(mode=0o755)
        (folder / name).chmod(0o755)
    path = folder / "mirror" / "nodes"
    cluster = _cluster(folder / "slurm", path)
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    monkeypatch.setenv("PATH", cluster.environment["PATH"])
    aggregator = Process(folder / "store")
    address = f"127.0.0.1:{aggregator.port}"
    simulate = [sys.executable, "-m", "gangline.cli", "simulate", "--hosts", str(HOSTS), "--seed", "1", "--scenario", "three"]  # fmt: skip
    hosts = subprocess.Popen(
        [*simulate, "--aggregator", address, "--data", folder / "spools"], stdout=subprocess.DEVNULL
    )
    try:
        cluster.start()

        def faulty() -> str:
            code = cli.main(["mirror", str(path), "--once", "--slurm", "--aggregator", address])
            return mirror_file.read(path).lists["exclude"] if code == cli.OK else ""

        cluster.until(faulty, "a fault in the mirror")
        bad = mirror_file.read(path).lists["exclude"]
        number, message = sbatch(cluster, "-N1")
        assert number and excluded_nodes(cluster, number) == bad and bad in NAMES
        assert f"leaves out nodes with a fault: {bad}" in message
        number, message = sbatch(cluster, f"-N{HOSTS}")
        assert number and excluded_nodes(cluster, number) == ""
        assert f"needs {HOSTS} nodes, and {HOSTS - 1} of {HOSTS} are fit" in message
        cluster.command("scontrol", "update", f"nodename={bad}", "state=drain", "reason=test")
        waiting, _ = sbatch(cluster, f"-N{HOSTS}", "--gpus-per-node=4")
        capsys.readouterr()
        assert cli.main(["why", waiting, "--aggregator", address]) == cli.OK
        message = capsys.readouterr().out
        assert f"too few nodes are left: {HOSTS - 1} of the {HOSTS} that it needs" in message
        assert "1 DRAIN: test" in message and "below each constraint: changes" in message
        cluster.command("scancel", waiting)
        assert aggregator.end(signal.SIGKILL) == -signal.SIGKILL
        # The file is no longer written, and contains its own expiry.
        cluster.until(
            lambda: excluded_nodes(cluster, sbatch(cluster, "-N1")[0]) == "", "the file's end"
        )
    finally:
        hosts.kill()
        hosts.wait(GUARD_SECONDS)
        if aggregator.child.poll() is None:
            os.kill(aggregator.child.pid, signal.SIGKILL)
            aggregator.child.wait(GUARD_SECONDS)
        cluster.close()
