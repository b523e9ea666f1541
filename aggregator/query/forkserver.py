"""`python -m gangline.aggregator.query.forkserver SETTINGS`: forks a process per query.

It kills queries that exceed their time. It has DuckDB and Arrow loaded, runs no query itself and has one thread, so forking it is safe and takes milliseconds. It is
separate from the aggregator's process, which has threads. It leads a session with a small CPU share, and has priority over
its queries, so that it can kill one that does not end.

Its standard input is the socket of its owner (`contract/workers.py`).
"""

from __future__ import annotations

import os
import signal
import socket
import sys

import duckdb

from ...contract.workers import ForkLoop
from ...ext import process
from ..process_limits import confine, lower_session_priority
from . import worker
from .messages import NO_MEMORY_STATUS, QuerySettings


def _run_query(settings: QuerySettings, connected: socket.socket) -> int:
    try:
        _without_stdin()  # a query must not write reports to the control socket
        confine(settings.memory_bytes_max)
        worker.serve(connected, settings)
    except MemoryError:
        return NO_MEMORY_STATUS
    except BaseException as error:  # noqa: BLE001 - nothing may continue after the fork
        print(f"gangline query: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _without_stdin() -> None:
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)


def main() -> int:
    """Run the fork server with the settings in the first argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.name(b"gangline-sql")
    lower_session_priority()
    duckdb.default_connection().close()  # its thread would break a fork
    control = socket.socket(fileno=os.dup(0))
    settings = QuerySettings.from_text(sys.argv[1])
    ForkLoop(
        control, b"gangline-query", lambda _, connected: _run_query(settings, connected)
    ).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
