"""The aggregator's side of worker processes: starts them, exchanges packets, stops them.

A worker is a Gangline module in a separate process. Its standard input is a packet socket; it exits
when the socket closes or its parent exits (`contract/workers.py`).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from ..contract.workers import module_command, packet_sockets

#: A worker is killed this long after its socket was closed.
END_SECONDS = 2.0
#: A killed worker that remains after this time waits for a disk, and exits later.
GONE_SECONDS = 5.0
#: Settings against library threads in a fork server, and for malloc to release memory.
_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "MALLOC_ARENA_MAX": "4",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
#: Variables that a fork server needs for Python, its libraries and its language. No others are
#: passed: a token (GANGLINE_TOKEN), cloud keys or a proxy's password would be readable by a
#: stranger's query.
_INHERITED = frozenset(("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SYSTEMROOT"))
_INHERITED_PREFIXES = ("PYTHON", "LC_", "LD_", "COV_", "COVERAGE")


class WorkerProcess:
    """A started worker, and the aggregator's end of its socket, `control`."""

    def __init__(self, module: str, *arguments: str, own_session: bool) -> None:
        """Start the worker. Raises OSError.

        *own_session*: Linux divides CPU time between sessions first (autogroup, sched(7)).
        """
        self.control, child_socket = packet_sockets()
        try:
            with child_socket:
                self._process = subprocess.Popen(
                    module_command(module, *arguments),
                    stdin=child_socket.fileno(),
                    stdout=subprocess.DEVNULL,
                    env=environment(),
                    start_new_session=own_session,
                )
        except BaseException:
            self.control.close()
            raise
        self.pid = self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def send(self, packet: Any, *descriptors: int) -> None:
        """Send *packet* as JSON. Raises OSError."""
        socket.send_fds(self.control, [json.dumps(packet).encode()], descriptors)

    def kill(self) -> None:
        """Kill the worker without waiting, from any thread."""
        self._process.kill()

    def end(self) -> int | None:
        """Close the socket and wait; return the exit status, None if it cannot be killed."""
        self.control.close()
        for seconds in (END_SECONDS, GONE_SECONDS):
            with suppress(subprocess.TimeoutExpired):
                return self._process.wait(seconds)
            self._process.kill()
        return None


async def receive_packets(
    control: socket.socket,
    bytes_max: int,
    descriptors_max: int,
    on_packet: Callable[[bytes, list[int]], Awaitable[None]],
) -> None:
    """Await *on_packet* with each packet and its descriptors until the other end closes.

    *control* is non-blocking. The descriptors are closed after the call. Raises OSError, and the
    errors of *on_packet*.
    """
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(control, readable.set)
    try:
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(control, bytes_max, descriptors_max)
            except BlockingIOError:
                readable.clear()
                await readable.wait()
                continue
            if not data:
                return
            try:
                await on_packet(data, descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
    finally:
        loop.remove_reader(control)


def environment() -> dict[str, str]:
    """Return the environment of our processes that load DuckDB and Arrow."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
    }
    return {**inherited, **_ENVIRONMENT}
