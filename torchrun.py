"""`torchrun --rdzv-backend=gangline`: c10d rendezvous, which a host joins unless its agent bars it.

Before each join the handler reads the agent's status file. A barred host raises `BarredHostError`
before it joins, so that with `--nnodes=3:4` the others continue without it. Without a current file,
the host joins. Options of `--rdzv-conf` are those of c10d, and `agent_status`. Needs only torch;
torch 2.5 and later load it by its entry point.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

STATUS_FILE = "/run/gangline/status.json"
#: A longer file was not written by an agent, and an older file is of an agent that is dead.
STATUS_BYTES_MAX, FRESH_SECONDS = 256 << 10, 30
#: Tolerated difference of the clocks of two processes on a host.
CLOCK_AHEAD_SECONDS_MAX = 2
REASON_CHARACTERS_MAX = 300
SECOND_NS = 1_000_000_000


class BarredHostError(RuntimeError):
    """This host's agent bars it from jobs."""


def barred_reason(path: str, boottime_ns: int) -> str:
    """Return why the agent whose status is in *path* bars this host; "" if it does not. Never raises.

    *boottime_ns*: CLOCK_BOOTTIME. A missing, malformed or old file bars no host.
    """
    try:
        # A FIFO in place of the file would keep the job waiting.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            content = os.read(file, STATUS_BYTES_MAX)
        finally:
            os.close(file)
        status = json.loads(content)
        age_ns = boottime_ns - int(status["boottime_ns"])
        barred = status.get("barred")
        is_current = -CLOCK_AHEAD_SECONDS_MAX * SECOND_NS <= age_ns <= FRESH_SECONDS * SECOND_NS
        if not is_current or not barred or boottime_ns >= int(barred["until_ns"]):
            return ""
        reason = str(barred["reason"])[:REASON_CHARACTERS_MAX]
        return reason if reason.isprintable() and reason else "the agent gives no reason"
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        log.info("gangline: %s has no status of an agent (%r); this host joins", path, error)
        return ""


def rendezvous() -> Callable[[Any], Any]:
    """Return the factory of handlers, for the entry point `gangline` of `torchrun.handlers`.

    torch is imported only here, so that this file can be imported without it.
    """
    from torch.distributed.elastic.rendezvous.api import RendezvousHandler
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    class GanglineRendezvous(RendezvousHandler):  # type: ignore[misc]
        """c10d, which reads the agent's verdict before each join."""

        def __init__(self, inner: Any, path: str) -> None:
            self._inner, self._path, self._is_barred = inner, path, False

        def get_backend(self) -> str:
            return "gangline"

        @property
        def use_agent_store(self) -> bool:
            return bool(self._inner.use_agent_store)

        def next_rendezvous(self) -> Any:
            if reason := barred_reason(self._path, time.clock_gettime_ns(time.CLOCK_BOOTTIME)):
                self._is_barred = True
                raise BarredHostError(
                    f"{socket.gethostname()} is barred from jobs by its agent and does not join: {reason}; "
                    "`gangline check` there says what to do"
                )
            return self._inner.next_rendezvous()

        def is_closed(self) -> bool:
            return bool(self._inner.is_closed())

        def set_closed(self) -> None:
            self._inner.set_closed()

        def num_nodes_waiting(self) -> int:
            return int(self._inner.num_nodes_waiting())

        def get_run_id(self) -> str:
            return str(self._inner.get_run_id())

        def shutdown(self) -> bool:
            # Closing the rendezvous would end the job of the others, who continue.
            return True if self._is_barred else bool(self._inner.shutdown())

    def create(parameters: Any) -> Any:
        path = str(parameters.get("agent_status", STATUS_FILE))
        backend, store = create_backend(parameters)
        return GanglineRendezvous(create_handler(store, backend, parameters), path)

    return create
