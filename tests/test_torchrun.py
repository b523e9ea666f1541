"""`torchrun --rdzv-backend=gangline`: the file of the agent, and real torchrun with a host that is barred."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from gangline import torchrun
from tests.torch_rig import TORCH_PYTHON, needs_torch

ROOT = Path(__file__).parent.parent
REASON = "xid79 0000:9b:00.0: GPU has fallen off the bus"
SECOND_NS = 1_000_000_000
TRAIN = """
import os, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("rank", dist.get_rank(), "of", dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""


def status_file(path: Path, *, is_barred: bool = False, **fields: object) -> Path:
    """Write a status as an agent does now; return its path."""
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    barred = {"until_ns": now_ns + 30 * SECOND_NS, "reason": REASON} if is_barred else None
    document = {"format": 1, "boottime_ns": now_ns, "barred": barred, **fields}
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"boottime_ns": "now"}',
        b'{"boottime_ns": 1}',
        b'{"boottime_ns": 1, "barred": 3}',
        b'{"boottime_ns": 1, "barred": {"until_ns": null, "reason": "x"}}',
        b'{"boottime_ns": 1, "barred": {"until_ns": 9}}',
        b'{"boottime_ns": 1, "barred": {"until_ns": 9, "reason": "x"' + b" " * (1 << 19) + b"}}",
    ],
)
def test_a_file_of_another_program_bars_no_host(tmp_path: Path, content: bytes) -> None:
    """No exception, and the host joins."""
    (tmp_path / "status").write_bytes(content)
    assert torchrun.barred_reason(str(tmp_path / "status"), 2) == ""


def test_without_a_current_file_the_host_joins(tmp_path: Path) -> None:
    """No file, a folder, a FIFO without a writer, a dead agent, a permit that has ended."""
    os.mkfifo(tmp_path / "fifo")
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    for name in ("nothing", "fifo", "."):
        assert torchrun.barred_reason(str(tmp_path / name), now_ns) == ""
    path = str(status_file(tmp_path / "status", is_barred=True))
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert torchrun.barred_reason(path, now_ns) == REASON
    for seconds in (-3, 31):
        assert torchrun.barred_reason(path, now_ns + seconds * SECOND_NS) == ""


class Nodes:
    """Hosts of one torchrun job, all on this machine: each with a status file of its own.

    Debian's torch has no libuv, which torchrun's TCP store insists on: their store is a file.
    """

    def __init__(self, folder: Path, python: Path, nodes: str, stack: ExitStack) -> None:
        self.folder, self.python, self.nodes, self.stack = folder, python, nodes, stack
        (folder / "names").mkdir()
        (folder / "names" / "gangline").symlink_to(ROOT)
        installed = folder / "names" / "gangline-0.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: gangline\nVersion: 0\n")
        points = "[torchrun.handlers]\ngangline = gangline.torchrun:rendezvous\n"
        assert (
            points.splitlines()[1].replace(" = ", ' = "') + '"'
            in (ROOT / "pyproject.toml").read_text()
        )
        (installed / "entry_points.txt").write_text(points)
        (folder / "train.py").write_text(TRAIN)

    def start(self, path: Path) -> subprocess.Popen[str]:
        command = [
            str(self.python), "-m", "torch.distributed.run", f"--nnodes={self.nodes}", "--nproc-per-node=1",
            "--rdzv-backend=gangline", f"--rdzv-endpoint={self.folder / 'store'}", "--rdzv-id=t1", "--max-restarts=0",
            f"--rdzv-conf=store_type=file,agent_status={path},last_call_timeout=5",
            "--local-addr=127.0.0.1", str(self.folder / "train.py"),
        ]  # fmt: skip
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self.folder / "names"),
            "OMP_NUM_THREADS": "1",
            "USE_LIBUV": "0",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        child = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.stack.enter_context(child)
        self.stack.callback(child.kill)
        return child


@needs_torch
@pytest.mark.slow
def test_a_barred_host_leaves_and_the_others_go_on(tmp_path: Path) -> None:
    """Real torchrun, `--nnodes=3:4`, four hosts of which one is barred: three ranks run, and the fourth host says why not."""
    with ExitStack() as stack:
        nodes = Nodes(tmp_path, TORCH_PYTHON, "3:4", stack)
        children = []
        for number in range(4):
            path = status_file(tmp_path / f"agent{number}", is_barred=number == 3)
            children.append(nodes.start(path))
        barred_out, barred_words = children[3].communicate(timeout=240)
        outs = [child.communicate(timeout=240) for child in children[:3]]
    assert children[3].returncode == 1
    assert "rank" not in barred_out
    assert f"is barred from jobs by its agent and does not join: {REASON}" in barred_words
    assert [child.returncode for child in children[:3]] == [0, 0, 0], outs
    assert sorted(line for out, _ in outs for line in out.splitlines()) == [
        f"rank {r} of 3" for r in range(3)
    ]


@needs_torch
@pytest.mark.slow
def test_without_an_agent_it_is_c10d(tmp_path: Path) -> None:
    """No agent on any host: the job runs as it would without us."""
    with ExitStack() as stack:
        nodes = Nodes(tmp_path, TORCH_PYTHON, "2:2", stack)
        children = [nodes.start(tmp_path / "nobody") for _ in range(2)]
        outs = [child.communicate(timeout=240) for child in children]
    assert [child.returncode for child in children] == [0, 0], outs
    assert sorted(line for out, _ in outs for line in out.splitlines()) == [
        "rank 0 of 2",
        "rank 1 of 2",
    ]
