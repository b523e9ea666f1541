"""An extender in a thread, over a mirror file that a test writes."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gangline.executors import mirror_file
from gangline.executors.kubernetes.extender_server import Extender, serve
from gangline.executors.mirror_format import VALID_SECONDS_MAX, MirrorNode, render
from tests.processes import GUARD_SECONDS


def mirror_node(name: str, bucket: int = 0, ready: bool = True) -> MirrorNode:
    state = "HEALTHY" if ready else "UNHEALTHY"
    return MirrorNode(name, bucket, ready, 0.9, 1e-4, 1.0, state, "" if ready else "XID")


def write_mirror(path: Path, nodes: Iterable[MirrorNode], *, degraded: bool = False) -> None:
    """Write a mirror that is valid from the current time."""
    now = int(time.time())
    path.parent.chmod(0o755)
    mirror_file.write(
        path, render(nodes, computed_seconds=now, valid_until_seconds=now + VALID_SECONDS_MAX, degraded=degraded)
    )  # fmt: skip


class ServedExtender:
    """`post` and `get` over one connection."""

    def __init__(self, extender: Extender, port: int) -> None:
        self.extender, self.port = extender, port
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD_SECONDS)

    def send(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        self.connection.request(method, path, body)
        response = self.connection.getresponse()
        return response.status, response.read()

    def post(self, path: str, document: Any) -> Any:
        status, answer = self.send("POST", path, json.dumps(document).encode())
        assert status == 200, answer
        return json.loads(answer)


@contextmanager
def serving_extender(path: Path, **settings: Any) -> Iterator[ServedExtender]:
    """Yield an extender on a free port."""
    extender = Extender(path, **settings)
    loop = asyncio.new_event_loop()
    ended, ready, ports = asyncio.Event(), threading.Event(), list[int]()

    def listen(port: int) -> None:
        ports.append(port)
        ready.set()

    thread = threading.Thread(
        target=lambda: loop.run_until_complete(serve(extender, "127.0.0.1", 0, ended, listen))
    )
    thread.start()
    try:
        assert ready.wait(GUARD_SECONDS)
        served = ServedExtender(extender, ports[0])
        yield served
        served.connection.close()
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(GUARD_SECONDS)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
