"""RDMA ports: bytes that are equal for all by construction, and retransmissions that need not be.

InfiniBand NDR at 400 Gbit/s. Such ports have no RoCE congestion counters, so those cells are missing.
"""

from __future__ import annotations

import numpy as np

from . import parts
from .job import OVERLAPPED_SHARE, Job, Stretch
from .tables import Floats, Tables

RATE_BYTES_PER_SECOND = 50e9
#: What a port reaches in an exchange, of its rate.
EXCHANGE_SHARE = 0.4
PACKET_BYTES = 4096
#: A port that retransmits at full strength still moves this share of what it did.
DEGRADED_SPEED = 0.65
#: Retransmission counter -> its part in the fault's amount.
RETRANSMISSIONS = {
    "rdma.ack_timeout_errors": 0.5,
    "rdma.packet_sequence_errors": 1.0,
    "rdma.out_of_sequence_packets": 0.8,
    "rdma.adaptive_retransmissions_packets": 1.1,
    "rdma.implied_nak_errors": 0.1,
    "rdma.slow_restarts_events": 0.05,
}
#: Of these, what is seen on healthy ports too, now and then.
BENIGN = ("rdma.packet_sequence_errors", "rdma.adaptive_retransmissions_packets")
BENIGN_PER_SECOND = 0.02

#: What comes of retransmissions -> of which counter, and how many of those to one (assumed).
CONSEQUENCES = {
    "rdma.duplicate_requests_packets": ("rdma.packet_sequence_errors", 2),
    "rdma.adaptive_retransmission_timeouts_events": ("rdma.ack_timeout_errors", 4),
    "rdma.slow_restart_notifications_packets": ("rdma.slow_restarts_events", 1),
    "rdma.slow_restart_transitions_events": ("rdma.slow_restarts_events", 2),
}
MULTICAST_PACKETS = 900


class Ports:
    """All ports of the fleet, one beside each GPU; arrays are (hosts, 8)."""

    def __init__(
        self, random: np.random.Generator, noise: np.random.Generator, hosts: int, job: Job
    ) -> None:
        self._noise = noise
        self.shape = (hosts, parts.GPUS)
        exchanged = job.communicate_seconds * RATE_BYTES_PER_SECOND * EXCHANGE_SHARE
        self.step_bytes = exchanged / (1 - OVERLAPPED_SHARE)  # the rest travels while computing
        self._steps_per_second = 1 / job.period_seconds
        self.moved_bytes = np.zeros(self.shape)
        self._before = {
            name: np.floor(random.uniform(1e13, 9e14, self.shape) / 4) * 4
            for name in ("received", "transmitted")
        }
        self._wait_ticks = np.floor(random.uniform(0, 2.0e9, self.shape))
        prone = random.random(self.shape) < 0.15
        self._benign = prone * BENIGN_PER_SECOND
        self.counters = {
            name: np.floor(prone * random.uniform(0, 5, self.shape)) for name in RETRANSMISSIONS
        }
        self._receive_errors = np.floor((random.random(self.shape) < 0.05) * 14.0)
        # A 4-bit counter that stuck at its ceiling years ago, as on hosts in the field.
        self._overruns = (random.random(self.shape) < 0.01) * 15.0
        self.strength = np.zeros(self.shape)  # of the fault, 0 to 1
        self.retransmissions_per_second = np.zeros(self.shape)
        self._traffic = np.zeros(
            self.shape
        )  # of this second; 1.0 is what a steady job moves in one

    def speed(self) -> Floats:
        """Return the pace of each port in an exchange; 1.0 is nominal."""
        return 1 - (1 - DEGRADED_SPEED) * self.strength

    def advance(self, stretch: Stretch) -> None:
        """Move what the job moved in this stretch."""
        self.moved_bytes += stretch.sent * self.step_bytes
        self._traffic += stretch.sent / self._steps_per_second

    def publish(self, tables: Tables) -> None:
        """Draw this second's retransmissions and put the counters."""
        for name, part in RETRANSMISSIONS.items():
            per_second = self.retransmissions_per_second * self.strength * part
            if name in BENIGN:
                per_second = per_second + self._benign
            self.counters[name] += self._noise.poisson(per_second * self._traffic)
            tables.put(name, self.counters[name])
        for name, (cause, share) in CONSEQUENCES.items():
            tables.put(name, np.floor(self.counters[cause] / share))
        self._wait_ticks += self._noise.poisson(200 + 3000 * self._traffic)
        self._traffic = np.zeros(self.shape)
        moved = np.floor(self.moved_bytes / 4) * 4  # the hardware counts words of four bytes
        for way, before in self._before.items():
            tables.put(f"rdma.{way}_bytes", before + moved)
            packets = np.floor((before + moved) / PACKET_BYTES)
            tables.put(f"rdma.{way}_packets", packets)
            tables.put(f"rdma.unicast_{way}_packets", packets - MULTICAST_PACKETS)
            tables.put(f"rdma.multicast_{way}_packets", MULTICAST_PACKETS)
        tables.put("rdma.transmit_wait_count", np.minimum(self._wait_ticks, 2.0**32 - 1))

    def publish_constants(self, tables: Tables) -> None:
        """Put what does not change while the model runs."""
        tables.put("rdma.port_state", 4)
        tables.put("rdma.physical_state", 5)
        tables.put("rdma.rate_bytes_per_second", RATE_BYTES_PER_SECOND)
        tables.put("rdma.receive_errors", self._receive_errors)
        tables.put("rdma.buffer_overrun_errors", self._overruns)
        tables.put("rdma.link_layer_code", 1)
        tables.put("rdma.counter_epoch_count", 0)
        tables.put("rdma.unnamed_counters_count", 0)
