"""The agent's findings about itself: blind collectors, a mismatched driver, unread sources."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...contract.signals import BY_NAME
from ...contract.wire.telemetry_pb2 import IngestAck
from ..clock import Clock
from ..collector import CollectOutcome, CollectResult
from ..hardware.nvidia import kernel_driver_version
from ..latest import LatestReadings
from ..spool.event_queue import EventQueue
from ..spool.spool import Spool
from ..transport.client import Client
from .check import NAMES_MAX, printable

STATE = BY_NAME["gpu.driver_updating_state"]
#: Age at which a reading no longer counts: the GPUs may have been released.
FRESH_NS = 10_000_000_000

#: Groups of unread sources in the document.
GROUPS_MAX = 32


def driver_mismatch(latest: LatestReadings, proc: Path, now_ns: int) -> str:
    """Return a text if the versions of NVML and driver differ (an update), else "". Any thread."""
    readings = latest.tables.get(STATE.table)
    if readings is None or now_ns - readings.boottime_ns > FRESH_NS:
        return ""
    if not any(value for _, value in readings.values(STATE.signal_id)):
        return ""
    version = kernel_driver_version(proc)
    loaded = f"; the kernel has {version} loaded" if version else ""
    return f"being updated: NVML and the driver are of different versions{loaded}"


class Verdict(NamedTuple):
    """The aggregator's state of this host. *at_ns*: boot time of the last message that had it."""

    state: str
    reason: str
    at_ns: int


class UnreadSources(NamedTuple):
    """Sources that are not read for the same reason."""

    outcome: str
    message: str
    names: list[str]


class SelfStatus:
    """State of the agent itself: connection, spool, unread sources. For the daemon's thread."""

    def __init__(
        self,
        connection: Client,
        frames: Spool,
        events: EventQueue,
        results: Callable[[], Sequence[CollectResult]],
        clock: Clock,
    ) -> None:
        """*results* returns each source's last result; the same object until a result differs."""
        self._connection, self._frames, self._events = connection, frames, events
        self._results, self._clock = results, clock
        self._connected = False
        self._since_ns = clock.boottime_ns()
        self._acked_frames = frames.acknowledged_frames
        self._last_ack_ns: int | None = None
        self._last_results: Sequence[CollectResult] = ()
        self._unread: list[UnreadSources] = []
        self._unread_names: list[tuple[str, list[str]]] = []
        self._ok_count = 0
        self._verdict: Verdict | None = None  # set by the client's thread

    def update_verdict(self, message: IngestAck) -> None:
        """Store the aggregator's state of this host. For a single thread."""
        verdict = message.verdict
        self._verdict = (
            Verdict(printable(verdict.state), printable(verdict.reason), self._clock.boottime_ns())
            if message.HasField("verdict")
            else None
        )

    def update(self) -> None:
        """Store the changes since the last update."""
        now_ns = self._clock.boottime_ns()
        if self._connection.connected is not self._connected:
            self._connected, self._since_ns = self._connection.connected, now_ns
        if self._frames.acknowledged_frames != self._acked_frames:
            self._acked_frames, self._last_ack_ns = self._frames.acknowledged_frames, now_ns
        results = self._results()
        if results is not self._last_results:
            self._last_results, self._unread = results, group_unread(results)
            self._unread_names = [(group.outcome, group.names) for group in self._unread]
            self._ok_count = sum(result.outcome is CollectOutcome.OK for result in results)

    @property
    def change_key(self) -> object:
        """Return the fields whose change is published at once."""
        return self._connected, self._verdict and self._verdict.state, self._unread_names

    def fields(self) -> dict[str, Any]:
        frames, connection = self._frames, self._connection
        return {
            "pid": os.getpid(),
            "aggregator": printable(connection.target),
            "connected": self._connected,
            "since_ns": self._since_ns,
            "last_error": printable(connection.last_error),
            "last_receipt_ns": self._last_ack_ns,
            "waiting_frames": frames.unacknowledged_frames,
            "waiting_bytes": frames.bytes,
            "waiting_events": len(self._events),
            "lost_frames": frames.dropped_frames,
            "refused_frames": frames.refused_frames,
            "lost_events": self._events.dropped_events,
            "write_errors": frames.write_errors,
            "sources_well": self._ok_count,
            "verdict": self._verdict and self._verdict._asdict(),
            "sources_unread": [group._asdict() for group in self._unread],
        }


def group_unread(results: Sequence[CollectResult]) -> list[UnreadSources]:
    """Return the unread sources grouped by reason, the gravest outcome first."""
    groups: dict[tuple[CollectOutcome, str], list[str]] = {}
    for result in results:
        if result.outcome is not CollectOutcome.OK:
            names = groups.setdefault((result.outcome, printable(result.message)), [])
            if len(names) < NAMES_MAX:
                names.append(printable(result.collector))
    ordered = sorted(groups.items(), key=lambda group: (-group[0][0], group[1]))
    return [
        UnreadSources(key[0].name.lower(), key[1], names) for key, names in ordered[:GROUPS_MAX]
    ]
