"""Jobs of processes that a GPU driver names in the kernel log.

The collector `gpu_job_1s` reports the owner of each process on a GPU. A process shorter than its
period is looked up in /proc, in a thread of its own, because reading a control group may wait for a
lock of the kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from ...contract.wire.telemetry_pb2 import HealthEvent
from ..hardware.process_state import in_host_pid_namespace, read_process
from .gpu_processes import EVENT
from .process_tracker import owner_text

#: Owners remembered by PID; beyond this number the one reported longest ago is forgotten.
PROCESSES_MAX = 4096
#: The report of an XID waits at most this long for /proc.
LOOKUP_SECONDS_MAX = 0.05


class ProcessJobs:
    """Jobs by PID. Any thread may call `observe`, only the kernel log's reader `attributes`.

    Neither raises.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._is_foreign = not in_host_pid_namespace(proc)
        self._known: dict[int, Mapping[str, str]] = {}
        self._lookup: threading.Thread | None = None

    def observe(self, event: HealthEvent) -> None:
        """Remember the owner of a GPU's process from its event."""
        if event.name != EVENT or event.attributes.get("source", "unknown") == "unknown":
            return
        self._known.pop(event.process_id, None)
        self._known[event.process_id] = _job(dict(event.attributes))
        while len(self._known) > PROCESSES_MAX:
            self._known.pop(next(iter(self._known)), None)

    def attributes(self, pid: int) -> Mapping[str, str]:
        """Return a process's job as attributes of an event; {} if unknown.

        *pid* is of the host's namespace.
        """
        if pid in self._known:
            return self._known[pid]
        if self._is_foreign or (self._lookup is not None and self._lookup.is_alive()):
            return {}
        owners: list[Mapping[str, str]] = []
        self._lookup = threading.Thread(
            target=lambda: owners.append(read_process(self._proc, pid).owner.attributes()),
            name="process-job",
            daemon=True,
        )
        self._lookup.start()
        self._lookup.join(LOOKUP_SECONDS_MAX)
        return _job(owners[0]) if owners and owners[0] else {}


def _job(owner: Mapping[str, str]) -> Mapping[str, str]:
    job_id = owner.get("job_id") or owner.get("pod_uid") or owner.get("container_id", "")
    return {"job": owner_text(owner), "job_source": owner["source"]} | (
        {"job_id": job_id} if job_id else {}
    )
