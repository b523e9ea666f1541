"""The management interface of every host: a 100 Gbit/s adapter with little to do and a good wire."""

from __future__ import annotations

import numpy as np

from .tables import Tables

PACKET_BYTES = 1400.0
#: ETHTOOL_LINK_MODE_FEC_RS_BIT (ethtool.h).
_FEC_RS = 50
#: The interface's index; another one would be another interface.
_INDEX = 2


class Interfaces:
    """One interface a host; arrays are (hosts,)."""

    def __init__(self, random: np.random.Generator, hosts: int) -> None:
        self._hosts = hosts
        self._random = random
        self._bytes = np.floor(random.uniform(1e11, 9e12, (2, hosts)))
        self._dropped = np.floor((random.random(hosts) < 0.2) * random.uniform(0, 40, hosts))

    def publish(self, tables: Tables, seconds: float) -> None:
        """Put the traffic of the last *seconds*."""
        self._bytes += np.floor(self._random.gamma(4.0, 5e5, (2, self._hosts)) * seconds)
        for row, way in enumerate(("received", "transmitted")):
            tables.put(f"net.{way}_bytes", self._bytes[row])
            tables.put(f"net.{way}_packets", np.floor(self._bytes[row] / PACKET_BYTES))
        self._dropped += self._random.poisson(0.004 * seconds, self._hosts)
        tables.put("net.receive_dropped_packets", self._dropped)


#: Signal -> its value on every host.
CONSTANTS: dict[str, float] = {
    "net.carrier_state": 1,
    "net.operational_state": 6,
    "net.counter_epoch_count": _INDEX,
    "net.carrier_changes_count": 2,
    "net.carrier_up_events": 1,
    "net.carrier_down_events": 1,
    "net.speed_bytes_per_second": 12.5e9,
    "net.mtu_bytes": 9000,
    "link.detected_state": 1,
    "link.speed_bytes_per_second": 12.5e9,
    "link.width_lanes": 4,
    "link.duplex_state": 1,
    "link.autonegotiation_state": 1,
    "link.fec_active_code": _FEC_RS,
    "link.fec_automatic_state": 1,
    "link.pause_autonegotiation_state": 0,
    "link.pause_receive_state": 0,
    "link.pause_transmit_state": 0,
    "link.counter_epoch_count": _INDEX,
    "nic.statistics_count": 1100,
    "nic.counter_epoch_count": _INDEX,
}
