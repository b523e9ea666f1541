"""NVIDIA's `ft_launcher` 0.7 with torch, as a job runs it, beside an executor: cycle-info, attribution, its own stop."""

from __future__ import annotations

import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gangline.aggregator.advisories.advisory import Action
from gangline.executors.model import Node
from tests.debian13 import MISSING, debian13, has_debian13, start_inside
from tests.executors.advice_server import serving_advice
from tests.executors.contract import Rig
from tests.executors.model_scheduler import ModelScheduler
from tests.executors.test_contract_model import ModelSite
from tests.processes import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not has_debian13("srv/nvrx/0.7.0") or not has_debian13("usr/lib/python3/dist-packages/torch"),
        reason=MISSING.format(part="torch"),
    ),
]  # fmt: skip

#: Each cycle trains for a moment and fails.
TRAIN = "import sys, time\ntime.sleep(1)\nsys.exit(1)\n"
#: By the console entry: `python -m ...launcher` has two copies of its module, and the checks are in the other one.
ENTRY = "import sys\nfrom nvidia_resiliency_ext.fault_tolerance.launcher import main\nsys.exit(main())\n"
NO_RESTART = 93


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that both sides see; inside it is /srv/<name>."""
    shared_folder = debian13() / "srv" / f"test-{uuid.uuid4().hex[:8]}"
    (shared_folder / "cycles").mkdir(parents=True)
    (shared_folder / "train.py").write_text(TRAIN)
    (shared_folder / "ft_launcher").write_text(ENTRY)
    yield shared_folder
    shutil.rmtree(shared_folder)


def test_a_job_that_starts_again_on_a_broken_host_is_stopped(folder: Path, tmp_path: Path) -> None:
    """Six restarts were left; each would have failed on the same GPU, with the whole gang waiting."""
    host = socket.gethostname().partition(".")[0]
    site = ModelSite(drain_ends=False)
    model = site.scheduler
    assert isinstance(model, ModelScheduler)
    model.nodes = {host: Node(host, "IDLE")}
    job = site.submit(1, may_requeue=False)
    inside = f"/srv/{folder.name}"
    with serving_advice() as server, ExitStack() as stack:
        rig = Rig(site, server, tmp_path, stack)
        rig.start(cycle_info_dirs=(str(folder / "cycles"),), attribution_listen="127.0.0.1:0")
        rig.until(lambda: job in server.gangs(), "the gang is reported")
        server.fault(host, Action.EVICT_NOW, job=job)
        rig.until(lambda: rig.is_done(host), "done")
        assert rig.launchers.server is not None
        options = [
            "--nnodes=1", "--nproc-per-node=1", "--max-restarts=6", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
            "--rdzv-conf=is_host=true,use_libuv=false", "--rdzv-id=t1", "--ft-rank-heartbeat-timeout=null",
            "--ft-initial-rank-heartbeat-timeout=null", f"--ft-cycle-info-dir={inside}/cycles",
            f"--ft-per-cycle-applog-prefix={inside}/logs/train.log",
            f"--ft-attribution-endpoint=http://{rig.launchers.server.address}", "--ft-attribution-stop-action=no-restart",
        ]  # fmt: skip
        environment = {
            "PYTHONPATH": "/srv/nvrx/0.7.0:/srv/nvrx/site", "OMP_NUM_THREADS": "1", "SLURM_JOB_ID": job, "SLURM_PROCID": "0",
            "SLURM_NNODES": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_TASKS_PER_NODE": "1",
        }  # fmt: skip
        with (tmp_path / "launcher.log").open("wb") as output:
            launcher = start_inside("python3", f"{inside}/ft_launcher", *options, f"{inside}/train.py", environment=environment, output=output)  # fmt: skip
            try:
                rig.until(lambda: launcher.poll() is not None, "the launcher ends")
            finally:
                launcher.kill()
                launcher.wait()
        text = (tmp_path / "launcher.log").read_text(errors="replace")
        assert launcher.returncode == NO_RESTART, text[-3000:]
        assert "(attribution_stop)" in text
        assert f"a restart does not cure: {host}: GPU 3: XID 79" in text
        rig.until(server.outcomes, "its restart is an outcome")
        assert server.outcomes()[0][:3] == (job, False, "restarted by its launcher")
