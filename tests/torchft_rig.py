# pyright: reportArgumentType=false, reportIncompatibleMethodOverride=false
"""The lighthouse and managers of torchft, each in a process of its own: the real ones if
`tests/rigs/torchft.sh` has installed them, else fakes.

A process prints its address, and runs until its stdin ends. `python torchft_rig.py lighthouse
FOLDER`, or `manager FOLDER NAME HOST LIGHTHOUSE`; FOLDER is the rig's folder.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Any

VARIABLE = "GANGLINE_TORCHFT"
MISSING = f"no torchft: tests/rigs/torchft.sh FOLDER; export {VARIABLE}=FOLDER"
FOLDER = Path(os.environ.get(VARIABLE) or "/nowhere")
SECONDS_MAX = 30

#: The page of 0.2.0, as its lighthouse wrote it.
MEMBER = """
<div class="member
 
">
  <b>{name}</b> <br/>
  Step: 3 <br/>
  Manager: {address} <br/>
  TCPStore: gpu02:29513 <br/>
  World size: 2 <br/>

  <button hx-post="/replica/{name}/kill"
          hx-trigger="click">
    Kill
  </button>
</div>
"""
PAGE = """
Current quorum_id: 1 <br>
Next quorum status: New quorum not ready, only have 0 participants, need min_replicas 1 [0/1 participants healthy]

<h3>Previous Quorum</h3>

Previous quorum id: 1 <br>
Num participants: 2 <br>
Quorum age:
5.005835945s

<div>
{members}
</div>

<h2>Heartbeats</h2>
<ul>
  <li class="heartbeat
    old
  ">
    train_0:uuid-0: seen 5.005757108s ago
  </li>
</ul>
"""


def status_page(replicas: dict[str, str]) -> str:
    """Return the lighthouse's page of these replicas, by name their managers' addresses."""
    members = "".join(
        MEMBER.format(name=name, address=replica) for name, replica in replicas.items()
    )
    return PAGE.format(members=members)


class TorchftRig:
    """A lighthouse, and a manager per name; `alive` returns the running ones."""

    lighthouse: str

    def alive(self) -> set[str]:
        raise NotImplementedError

    def await_end(self, name: str) -> None:
        raise NotImplementedError


class StandInRig(TorchftRig):
    """A page like the lighthouse's, and managers that end on the real request bytes."""

    def __init__(self, replicas: dict[str, str], stack: ExitStack) -> None:
        import grpc

        self.requests: list[tuple[str, bytes]] = []
        self._ended = {name: threading.Event() for name in replicas}
        addresses: dict[str, str] = {}
        for name, host in replicas.items():
            pool = stack.enter_context(futures.ThreadPoolExecutor(2))
            server = grpc.server(pool)

            def kill(request: bytes, context: Any, name: str = name, server: Any = server) -> bytes:
                self.requests.append((name, request))
                self._ended[name].set()
                server.stop(None)  # as a process that exits: the call has no answer
                return b""

            method = grpc.unary_unary_rpc_method_handler(kill, lambda b: b, lambda b: b)
            service = grpc.method_handlers_generic_handler("torchft.ManagerService", {"Kill": method})  # fmt: skip
            server.add_generic_rpc_handlers((service,))
            port = server.add_insecure_port("localhost:0")
            server.start()
            stack.callback(stop_server, server)
            addresses[name] = f"http://{host}:{port}"
        page = status_page(addresses).encode()

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if self.path == "/status" else 404)
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *_: object) -> None: ...

        # Not HTTPServer, which asks the resolver for this machine's full name.
        web = ThreadingTCPServer(("127.0.0.1", 0), Answer)
        thread = threading.Thread(target=web.serve_forever, args=(0.01,))
        thread.start()
        stack.callback(thread.join, SECONDS_MAX)
        stack.callback(web.server_close)
        stack.callback(web.shutdown)
        self.lighthouse = f"http://127.0.0.1:{web.server_address[1]}"

    def alive(self) -> set[str]:
        return {name for name, ended in self._ended.items() if not ended.is_set()}

    def await_end(self, name: str) -> None:
        assert self._ended[name].wait(SECONDS_MAX)


def stop_server(server: Any) -> None:
    server.stop(None).wait(SECONDS_MAX)


class RealRig(TorchftRig):
    def __init__(self, folder: Path, replicas: dict[str, str], stack: ExitStack) -> None:
        address = self._start(stack, "lighthouse", str(folder), str(len(replicas)))[1]
        self.lighthouse = f"http://127.0.0.1:{address.rpartition(':')[2]}"
        started = [
            (name, stack.enter_context(process_of("manager", str(folder), name, host, self.lighthouse)))
            for name, host in replicas.items()
        ]  # fmt: skip
        self._processes = dict(started)
        for process in self._processes.values():
            first_line(process)  # its first quorum has been reached

    @staticmethod
    def _start(stack: ExitStack, *words: str) -> tuple[subprocess.Popen[str], str]:
        process = stack.enter_context(process_of(*words))
        return process, first_line(process)

    def alive(self) -> set[str]:
        return {name for name, process in self._processes.items() if process.poll() is None}

    def await_end(self, name: str) -> None:
        assert self._processes[name].wait(SECONDS_MAX) == 1


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line.startswith("http://"), f"torchft did not start: {line!r}"
    return line


@contextmanager
def process_of(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, __file__, *words], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def has_torchft() -> bool:
    return any(FOLDER.glob("torchft/_torchft*.so"))


@contextmanager
def torchft_rig(replicas: dict[str, str], *, is_real: bool) -> Iterator[TorchftRig]:
    """Yield a lighthouse with these replicas, by name their managers' hosts."""
    with ExitStack() as stack:
        if not is_real:
            yield StandInRig(replicas, stack)
            return
        yield RealRig(FOLDER, replicas, stack)


def main(words: list[str]) -> None:
    (library,) = glob.glob(f"{words[1]}/torchft/_torchft*.so")
    spec = importlib.util.spec_from_file_location("torchft._torchft", library)
    assert spec is not None and spec.loader is not None
    torchft: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(torchft)
    if words[0] == "lighthouse":
        server = torchft.LighthouseServer(bind="127.0.0.1:0", min_replicas=int(words[2]))
    else:
        name, host, lighthouse = words[2:]
        server = torchft.ManagerServer(
            replica_id=name, lighthouse_addr=lighthouse, hostname=host, bind="127.0.0.1:0", store_addr="localhost:1", world_size=1,
            heartbeat_interval=timedelta(milliseconds=100), connect_timeout=timedelta(seconds=SECONDS_MAX), quorum_retries=0,
        )  # fmt: skip
        client = torchft.ManagerClient(server.address(), timedelta(seconds=SECONDS_MAX))
        client._quorum(
            group_rank=0, step=1, checkpoint_metadata="", shrink_only=False, timeout=timedelta(seconds=SECONDS_MAX), commit_failures=0, init_sync=True,
        )  # fmt: skip
    print(server.address(), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
