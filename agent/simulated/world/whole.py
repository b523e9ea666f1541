"""What a whole host says beside what judgement reads: made where a world is on the wire, at a second's pace."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .. import drives, interfaces, kernel, machines, nvlinks, ports
from ..levels import (
    OWN_OCCUPANCY,
    OWN_SM_ACTIVE,
    SAMPLES_PER_SECOND,
    WAIT_OCCUPANCY,
    WAIT_SM_ACTIVE,
    Phase,
)
from ..parts import GPUS
from ..tables import Tables
from .incidents import named_random
from .noise import Floats
from .physics import Counters, Now, mix
from .window import Moment


class Whole:
    """The rest of what hosts say; arrays are (hosts,) or (hosts, 8)."""

    def __init__(self, tables: Tables, seed: int, hosts: int, uptime_seconds: float) -> None:
        """*tables*: all, with what judgement reads put already at each step."""
        self._tables, self._count = tables, hosts
        self._machines = machines.Machines(
            named_random(seed, "machines around"), hosts, uptime_seconds
        )
        self._interfaces = interfaces.Interfaces(named_random(seed, "interfaces"), hosts)
        self._nvlinks = nvlinks.NvLinks(named_random(seed, "nvlinks"), hosts)
        self._kernels = kernel.Kernels(named_random(seed, "kernels"), hosts)
        self._idle_ns: Floats = np.zeros((hosts, GPUS))
        self._seconds = 0.0

    def publish(self, moment: Moment, counters: Counters, xids: Mapping[int, int]) -> None:
        """Put the rest of the moment's readings. *xids*: how many each host tells of now."""
        now, tables, seconds = moment.now, self._tables, moment.step_seconds
        self._seconds += seconds
        self._publish_gpus(now, seconds)
        self._publish_fast(now)
        own = slice(self._count)
        self._nvlinks.publish(tables, counters.moved[own])
        ports.publish(tables, counters.moved[own], counters.resent[own])
        self._publish_drives()
        writing = np.asarray(now.shares.writes[own].any(axis=1), np.float64)
        watts = now.mean_watts[own].sum(axis=1)
        self._machines.publish(tables, seconds, self._seconds, writing, watts)
        self._interfaces.publish(tables, seconds)
        for slot, count in xids.items():
            if count:
                self._kernels.tell_xids(slot, count, moment.seconds)
        self._kernels.publish(tables, seconds, moment.seconds)

    def _publish_gpus(self, now: Now, seconds: float) -> None:
        own, tables = slice(self._count), self._tables
        at_work = now.shares.at_work[own, None] * np.ones(GPUS)
        self._idle_ns += np.floor((1 - at_work) * seconds * 1e9)
        tables.put("gpu.violation_low_utilization_nanoseconds", self._idle_ns)
        tables.put("gpu.graphics_clock_hertz", now.clock_hertz[own])
        tables.put("gpu.power_average_watts", np.round(now.mean_watts[own], 3))

    def _publish_fast(self, now: Now) -> None:
        """Put the least and the most of the second: of the states that it had."""
        own, tables, shares = slice(self._count), self._tables, now.shares
        at_work = shares.at_work[own, None] & ~now.channels.lost[own]
        computes, pauses = shares.compute[own] > 0, shares.gap[own] > 0
        most = np.where(computes, OWN_SM_ACTIVE[Phase.COMPUTE], WAIT_SM_ACTIVE) * at_work
        least = np.where(pauses, OWN_SM_ACTIVE[Phase.GAP], WAIT_SM_ACTIVE) * at_work
        tables.put("gpu_fast.samples_count", SAMPLES_PER_SECOND)
        tables.put("gpu_fast.sm_active_max_ratio", most)
        tables.put("gpu_fast.sm_active_min_ratio", least)
        occupied = mix(shares, OWN_OCCUPANCY, WAIT_OCCUPANCY)[own] * at_work
        tables.put("gpu_fast.sm_occupancy_ratio", np.round(occupied, 4))

    def _publish_drives(self) -> None:
        """Put both drives: what the scratch drive moved is there, the system drive has its logs."""
        read, written = (
            self._tables.read("disk.read_bytes"),
            self._tables.read("disk.written_bytes"),
        )
        written[:, drives.SYSTEM] = drives.sectors(
            np.array(drives.LOG_BYTES_PER_SECOND * self._seconds)
        )
        drives.publish(self._tables, read, written)
