"""`torchrun --rdzv-backend=gangline`: the question to a real agent's socket, and real torchrun with a host that is barred."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from gangline import torchrun
from gangline.agent.local import agent_service
from gangline.agent.local.host_status import HostHealthResult
from gangline.agent.local.server import LocalServer
from gangline.contract.wire import nvhcd_pb2
from tests.torch_rig import TORCH_PYTHON, needs_torch

ROOT = Path(__file__).parent.parent
BARRED = HostHealthResult(
    False, 1, json.dumps({"fail_count": 1, "failed_checks": ["xid79"]}), "xid79 on 0000:9b:00.0"
)
TRAIN = """
import os, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("rank", dist.get_rank(), "of", dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""


@contextmanager
def agent(path: Path, *, is_barred: bool = False) -> Iterator[Path]:
    answer = (lambda request: BARRED) if is_barred else agent_service.healthy_result
    server = LocalServer(
        path, {agent_service.HEALTH_CHECK_PATH: agent_service.health_check_method(answer)}
    )
    server.start()
    try:
        yield path
    finally:
        server.close()


def test_the_agent_is_asked(tmp_path: Path) -> None:
    """Gangline's own agent serves the call: it must accept a minimal HTTP/2 of few frames."""
    with agent(tmp_path / "a") as path:
        assert torchrun.ask(str(path), 20.0) == (
            False,
            json.dumps({"fail_count": 0, "failed_checks": []}),
        )
    with agent(tmp_path / "b", is_barred=True) as path:
        answer = torchrun.ask(str(path), 20.0)
    assert answer is not None
    assert answer.is_barred
    assert answer.reason == "xid79 on 0000:9b:00.0"


def test_where_nobody_answers_the_host_joins(tmp_path: Path) -> None:
    """No socket, a file, a socket without a server."""
    (tmp_path / "file").write_text("")
    for name in ("nothing", "file"):
        assert torchrun.ask(str(tmp_path / name)) is None


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(9) * 100, b"\xff" * 4096]
)
def test_an_answer_that_is_none(tmp_path: Path, answer: bytes) -> None:
    """Somebody else's server, or garbage: no exception, and the host joins."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                with suppress(OSError):
                    while connection.recv(4096):
                        pass

        thread = threading.Thread(target=serve)
        thread.start()
        assert torchrun.ask(str(tmp_path / "s"), 20.0) is None
        thread.join()


def test_an_agent_that_hangs_is_waited_for_no_longer_than_said(tmp_path: Path) -> None:
    """The agent accepts and sends nothing; a job must not wait for it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        assert torchrun.ask(str(tmp_path / "s"), 0.05) is None


def test_the_message_is_read_as_protobuf_writes_it() -> None:
    """The message of the official package; an unknown field is skipped, and a truncated message is refused."""
    message = nvhcd_pb2.HealthCheckResponse(success=False, exit_code=300, error="xid79")
    assert torchrun.parse_answer(message.SerializeToString()) == (True, "xid79")
    healthy = nvhcd_pb2.HealthCheckResponse(success=True).SerializeToString()
    assert not torchrun.parse_answer(healthy).is_barred
    # A server with an empty answer excludes no host.
    assert not torchrun.parse_answer(b"").is_barred
    for size in range(1, len(message.SerializeToString()) - 1):
        try:
            torchrun.parse_answer(message.SerializeToString()[:size])
        except ValueError:
            continue


class Nodes:
    """Hosts of one torchrun job, all on this machine: each with an agent's socket of its own.

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
            f"--rdzv-conf=store_type=file,agent_socket={path},last_call_timeout=5",
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
            path = stack.enter_context(agent(tmp_path / f"agent{number}", is_barred=number == 3))
            children.append(nodes.start(path))
        barred_out, barred_words = children[3].communicate(timeout=240)
        outs = [child.communicate(timeout=240) for child in children[:3]]
    assert children[3].returncode == 1
    assert "rank" not in barred_out
    assert (
        "is barred from jobs by its agent and does not join: xid79 on 0000:9b:00.0" in barred_words
    )
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
