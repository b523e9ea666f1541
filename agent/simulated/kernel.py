"""What the kernel says of itself: its clock, which a daemon keeps, its log, and the network it watches."""

from __future__ import annotations

import numpy as np

from .tables import Floats, Tables

#: Lines that a kernel wrote while it booted; and how many of others come an hour.
BOOT_RECORDS = 4200
RECORDS_PER_HOUR = 40.0
#: An incident of the kernel log may go on for this long after its last line.
INCIDENT_SECONDS = 60.0
#: A daemon speaks to the kernel this often; until then the greatest error grows (kernel/time/ntp.c).
POLL_SECONDS = 64.0
ERROR_GROWTH = 500e-6
_STA_PLL_NANO = 0x2001


class Kernels:
    """The kernels of all hosts; arrays are (hosts,)."""

    def __init__(self, random: np.random.Generator, hosts: int) -> None:
        self._random = random
        self._frequency: Floats = random.normal(0.0, 8e-6, hosts)
        self._polled_seconds = random.uniform(0.0, POLL_SECONDS, hosts)
        self._records = np.full(hosts, float(BOOT_RECORDS))
        self._told = np.zeros(hosts)
        self._incident_until_seconds = np.zeros(hosts)

    def tell_xids(self, host: int, count: int, now_seconds: float) -> None:
        """Take note that the driver of *host* wrote so many XIDs, which NVML delivers as well."""
        self._records[host] += count
        self._told[host] += count
        self._incident_until_seconds[host] = now_seconds + INCIDENT_SECONDS

    def publish(self, tables: Tables, seconds: float, now_seconds: float) -> None:
        """Put what was read in the last *seconds*."""
        shape = self._told.shape
        self._records += self._random.poisson(RECORDS_PER_HOUR / 3600 * seconds, shape)
        tables.put("kernel_log.read_count", self._records)
        tables.put("kernel_log.told_events", self._told)
        tables.put("kernel_log.incidents_count", self._incident_until_seconds > now_seconds)
        tables.put("nvml_events.received_events", self._told)
        tables.put("nvml_events.told_by_kernel_log_events", self._told)
        since_poll = (now_seconds + self._polled_seconds) % POLL_SECONDS
        strays = self._random.normal(0.0, 2e-5, shape)
        tables.put("clock.offset_seconds", tables.read("clock.offset_seconds")[:, 0] + strays)
        tables.put("clock.error_max_seconds", 1e-3 + ERROR_GROWTH * since_poll)
        tables.put("clock.frequency_offset_ratio", self._frequency)


#: Signal -> its value on every host.
CONSTANTS: dict[str, float] = {
    "kernel_log.lost_count": 0,
    "kernel_log.not_understood_count": 0,
    "clock.error_estimated_seconds": 2e-4,
    "clock.synchronised_state": 1,
    "clock.leap_state": 0,
    "clock.status_flags": _STA_PLL_NANO,
    "clock.tai_offset_seconds": 37,
    "rtnetlink.messages_count": 3,
    "rtnetlink.overruns_events": 0,
    "rtnetlink.transitions_events": 0,
    "rtnetlink.withheld_events": 0,
    "rtnetlink.interfaces_count": 1,
    "rtnetlink.malformed_count": 0,
}
