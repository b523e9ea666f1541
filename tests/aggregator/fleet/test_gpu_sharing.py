"""The job of each GPU, where jobs share a host."""

from __future__ import annotations

import numpy as np

from gangline.aggregator.fleet.devices import Devices
from gangline.aggregator.fleet.jobs import Jobs, are_divided, are_shared, gangs_of_gpus
from tests.aggregator.fleet.test_jobs import BOOT, SESSION, SLURM, told

OTHER = {"source": "slurm", "job_id": "124"}


def test_a_gpu_is_its_gangs_or_whose_alone_it_is() -> None:
    """A whole host; half a host (MIG) with a monitor; a shared host; an idle host."""
    devices, jobs = Devices("gpu"), Jobs()
    for host in range(4):
        for gpu in range(4):
            devices.row(host, f"GPU-{gpu}")
    for gpu in range(4):
        jobs.observe(0, BOOT, told(1, SLURM, gpu=f"GPU-{gpu}"))
        jobs.observe(2, BOOT, told(1, SLURM, gpu=f"GPU-{gpu}"))
    jobs.observe(1, BOOT, told(1, SLURM, gpu="GPU-0", gpu_instance="7"))
    jobs.observe(1, BOOT, told(1, SLURM, gpu="GPU-1"))
    jobs.observe(1, BOOT, told(2, SESSION, gpu="GPU-1"))
    jobs.observe(1, BOOT, told(2, SESSION, gpu="GPU-2"))
    jobs.observe(1, BOOT, told(2, SESSION, gpu="GPU-3"))
    jobs.observe(1, BOOT, told(2, SESSION, gpu="GPU-9"))
    jobs.observe(1, BOOT, told(3, OTHER, gpu="GPU-3"))
    jobs.observe(2, BOOT, told(3, OTHER, gpu="GPU-3"))
    slurm, session, other = running = jobs.all()
    assert (slurm.name, session.name, other.name) == ("123", "session-3.scope", "124")
    gang, gpus_held = np.array([0, 0, -1, -1]), np.array([4, 2, -1, -1])
    shared = are_shared(devices, gpus_held)
    assert shared.tolist() == [False, True, False, False]
    gang_of_gpu = gangs_of_gpus(devices, gang, shared, running, jobs)
    assert gang_of_gpu.reshape(4, 4).tolist() == [
        [0, 0, 0, 0], [0, 0, 1, -1], [-1, -1, -1, -1], [-1, -1, -1, -1],
    ]  # fmt: skip
    assert are_divided(devices, gang_of_gpu, 4).tolist() == [False, True, False, False]
