"""Hosts that jobs share: which of their GPUs compute for whom.

A job's work and waiting show on the GPUs that it holds. What another does beside it says nothing of the host, and
of a job that holds two of eight GPUs the mean of all says nothing at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .arrays import Flags, Indexes
from .devices import Devices
from .jobs import Job, Jobs


def are_shared(devices: Devices, held: Indexes) -> Flags:
    """Say which hosts have more GPUs than their gang's job holds. *held*: by host, MIG's each; -1: it is in no gang."""
    return np.asarray((held >= 0) & (held < np.bincount(devices.host, minlength=held.size)))


def gangs_of(
    devices: Devices, gang: Indexes, shared: Flags, jobs: Sequence[Job], running: Jobs
) -> Indexes:
    """Return for which of *jobs* each GPU computes, -1 for none: for its host's *gang*, but where *shared* for whom holds it.

    One that two hold is its host's gang's, if that is one of them, and else nobody's.
    """
    found = gang[devices.host]
    found[shared[devices.host]] = -1
    places = {id(job): place for place, job in enumerate(jobs)}
    for host in np.flatnonzero(shared).tolist():
        holders: dict[str, set[int]] = {}
        for job, gpu in running.held(host):
            holders.setdefault(gpu, set()).add(places[id(job)])
        for gpu, those in holders.items():
            row, own = devices.find(host, gpu), int(gang[host])
            if row >= 0 and (own in those or len(those) == 1):
                found[row] = own if own in those else min(those)
    return found


def are_divided(devices: Devices, gpu_gang: Indexes, hosts: int) -> Flags:
    """Say which of *hosts* have GPUs that compute for one job and GPUs that do for another. *gpu_gang*: by `gangs_of`."""
    divided, some = np.zeros(hosts, dtype=bool), gpu_gang >= 0
    one = np.full(hosts, -1, dtype=np.intp)
    one[devices.host[some]] = gpu_gang[some]
    divided[devices.host[some & (gpu_gang != one[devices.host])]] = True
    return divided
