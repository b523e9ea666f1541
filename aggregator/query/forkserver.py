"""`python -m gangline.aggregator.query.forkserver PLACE`: forks a process per question, ends those that overstay.

It has loaded DuckDB and Arrow, runs no query itself and has one thread, so that a fork of it is safe and
takes milliseconds: it is the warm spare. It stands outside the aggregator's process, which has threads. It leads a
session that has a small share of the processors, and in it goes before its queries: one that will not end is killed.

Its standard input is a socket of packets in JSON: `{"id": 1, "seconds": 10}` with the question's own socket
attached, `{"id": 1, "kill": "cancelled"}`; it answers `{"id": 1, "status": -9, ...}` when that process has ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

import duckdb

from ...ext import process
from ..workers import KILL_AFTER_SECONDS, confine, lower_session_priority
from . import worker
from .messages import NO_MEMORY_STATUS, PACKET_BYTES_MAX, TIME, QuerySettings


@dataclass(slots=True)
class _RunningQuery:
    number: int
    kill_at: float
    why: str = ""


class QueryForkServer:
    """The loop: packets in, forks, kills, obituaries out. Ends when its owner's socket closes."""

    def __init__(self, control: socket.socket, settings: QuerySettings) -> None:
        self._control = control
        self._settings = settings
        self._running: dict[int, _RunningQuery] = {}
        self._woken, wake = socket.socketpair()
        self._woken.setblocking(False)
        wake.setblocking(False)
        self._wake = wake
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Serve until the owner is gone."""
        while True:
            ready, _, _ = select.select(
                [self._control, self._woken], [], [], self._timeout_seconds()
            )
            if self._woken in ready:
                self._woken.recv(4096)
            if self._control in ready and not self._receive_packet():
                return
            self._kill_overdue()
            self._reap()

    def _timeout_seconds(self) -> float | None:
        if not self._running:
            return None
        first = min(one.kill_at for one in self._running.values())
        return max(0.0, min(first - time.monotonic(), 3600.0))

    def _receive_packet(self) -> bool:
        """Take one packet. False: the owner is gone."""
        try:
            data, sockets, _, _ = socket.recv_fds(self._control, PACKET_BYTES_MAX, 1)
        except OSError:
            return False
        if not data:
            return False
        packet = json.loads(data)
        if sockets:
            self._fork(packet, sockets[0])
        else:
            self._kill(packet)
        return True

    def _fork(self, packet: dict[str, Any], connected: int) -> None:
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            self._run_query(socket.socket(fileno=connected), parent)
        os.close(connected)
        seconds = packet["seconds"]
        kill_at = time.monotonic() + seconds + KILL_AFTER_SECONDS if seconds else float("inf")
        self._running[child] = _RunningQuery(packet["id"], kill_at)

    def _run_query(self, connected: socket.socket, parent: int) -> None:
        """Never returns: whatever happens here ends this process, and this one only."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            _without_stdin()  # the control socket is there too: obituaries are not a query's to write
            self._woken.close()
            self._wake.close()
            confine(self._settings.memory_bytes_max, parent)
            worker.serve(connected, self._settings)
            status = 0
        except MemoryError:
            status = NO_MEMORY_STATUS
        except BaseException as error:  # noqa: BLE001 - nothing may get past the fork
            print(f"gangline query: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)

    def _kill(self, packet: dict[str, Any]) -> None:
        for child, one in self._running.items():
            if one.number == packet["id"]:
                one.why = one.why or packet["kill"]
                os.kill(child, signal.SIGKILL)

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for child, one in self._running.items():
            if one.kill_at <= now:
                one.why, one.kill_at = one.why or TIME, float("inf")
                os.kill(child, signal.SIGKILL)

    def _reap(self) -> None:
        while self._running:
            child, status, usage = os.wait4(-1, os.WNOHANG)
            if not child:
                return
            one = self._running.pop(child)
            exit_report = {
                "id": one.number,
                "status": os.waitstatus_to_exitcode(status),
                "why": one.why,
                "cpu_seconds": usage.ru_utime + usage.ru_stime,
                "rss_bytes_max": usage.ru_maxrss * 1024,
            }
            self._control.send(json.dumps(exit_report).encode())


def _without_stdin() -> None:
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)


def main() -> int:
    """Be the fork server of the place in the first argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.name(b"gangline-sql")
    lower_session_priority()
    duckdb.default_connection().close()  # its thread would be in the way of a fork
    control = socket.socket(fileno=os.dup(0))
    QueryForkServer(control, QuerySettings.from_text(sys.argv[1])).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
