"""GPUs that nobody uses and nobody can use: what a process held that has ended."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...verdicts import Reason, State
from ..present import Present
from ..symptoms import Rule, Symptom, short

TABLE = "gpu_job_1s_changes"

#: A process that ends is listed for moments; a driver that frees 80 GB takes seconds (assumed).
DEAD = Rule(
    "gpu.held_by_the_dead",
    State.DEGRADED,
    Reason.DRIVER_HUNG,
    "the driver lists no process that has ended: whoever inherited /dev/nvidia* of it is ended (`fuser -v /dev/nvidia*`), or "
    "a zombie's parent, or the GPU is reset",
    enter_seconds=30.0,
    leave_seconds=10.0,
    hazard_factor=20.0,
)


def dead_holders(present: Present) -> Iterator[Symptom]:
    """The driver lists processes that have ended: the next job finds the memory taken, and dies of it."""
    counts = present.gauge(TABLE, "dead_count")
    memory = present.gauge(TABLE, "dead_memory_bytes")
    for row in np.flatnonzero(counts > 0).tolist():
        host, device = present.name(TABLE, row)
        held = f", with {memory[row] / 1e9:.1f} GB of its memory" if memory[row] > 0 else ""
        many = counts[row] > 1
        who = f"{counts[row]:.0f} processes that have" if many else "a process that has"
        yield Symptom(
            rule=DEAD,
            host=host,
            device=device,
            signal="gpu_job.dead_count",
            value=float(counts[row]),
            normal="0",
            words=f"{short(device)} is held by {who} ended{held}: "
            f"whose {'they were' if many else 'it was'} is in ops.gpu_processes",
            sql=present.sql(TABLE, row, "dead_count, dead_memory_bytes", 120),
        )
