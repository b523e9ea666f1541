"""Whose the processes on the GPUs are, as the agents tell it (`agent/collectors/gpu_jobs.py`): a rank to each GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ....fingerprints.wire import telemetry_pb2
from ..parts import GPUS, Machine
from .channels import Ints
from .jobs import Job
from .noise import Floats
from .window import Moment

EVENT = "gpu.process"
FIRST_PID = 4000
#: What runs is told again this often (agent/collectors/telling.py): else it counts as over after an hour.
TELL_AGAIN_SECONDS = 1800.0


class Ranks:
    """What was told of some hosts. A host that is silent tells what it missed once it is heard again."""

    def __init__(self, machines: Sequence[Machine], jobs: Sequence[Job], hosts: Ints) -> None:
        """*hosts*: indexes into *machines*, in the order of a moment's slots."""
        self._machines, self._jobs, self._hosts = machines, jobs, hosts
        self._told: Ints = np.full(hosts.size, -1, np.int64)
        self._when: Floats = np.zeros(hosts.size)

    def step(self, moment: Moment) -> Iterator[tuple[int, telemetry_pb2.HealthEvent]]:
        """Yield (host, event); no clock is set."""
        slots = self._hosts.size
        now, heard = moment.jobs[:slots], ~moment.silent[:slots]
        self._told[moment.booted[:slots]] = -1  # of another boot: that is over
        changed = now != self._told
        again = (now >= 0) & (moment.seconds - self._when >= TELL_AGAIN_SECONDS)
        for slot in np.flatnonzero(heard & (changed | again)).tolist():
            host, before, after = int(self._hosts[slot]), int(self._told[slot]), int(now[slot])
            told = [(before, "ended")] if changed[slot] else []
            for number, state in (*told, (after, "running")):
                if number >= 0:
                    yield from (
                        (host, event) for event in self._events(host, number, state, moment)
                    )
            self._told[slot], self._when[slot] = after, moment.seconds

    def _events(
        self, host: int, number: int, state: str, moment: Moment
    ) -> Iterator[telemetry_pb2.HealthEvent]:
        job, machine = self._jobs[number], self._machines[host]
        first = GPUS * int(np.searchsorted(job.hosts, host))
        for gpu in range(GPUS):
            pid = FIRST_PID + gpu
            yield telemetry_pb2.HealthEvent(
                event_id=f"/{machine.gpus[gpu]}//{pid}/{number}",
                device_kind="gpu",
                device=machine.gpus[gpu],
                name=EVENT,
                revision=1 + int(moment.seconds),
                count=1,
                process_id=pid,
                process_name="python",
                attributes={
                    "state": state,
                    "source": "slurm",
                    "job_id": str(1 + number),
                    "rank": str(first + gpu),
                    "world_size": str(GPUS * job.hosts.size),
                },
            )
