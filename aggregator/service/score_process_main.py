"""`python -m gangline.aggregator.service.score_process_main`: answers from snapshots.

The score process serves ScoreService, PlacementService, RecoveryService and InterferenceService. It
is separate because in the aggregator responses would wait: for a judgement of all hosts, for incoming frames, for the
GIL. The services, authentication and errors are the same code. It does not open the store.

Standard input is a socket of packets. The first is `ScoreProcessSettings`; then `{"dictionary": 3}`
for each snapshot, with two descriptors (see `shared_snapshot.py`). The process answers `{"port":
7601}` once it listens, then for each snapshot its counts since the last: `{"version": 9, "begun":
{...}, "failed": [...], "refused": 0}`. Decisions are sent separately: `{"recording": 7}` when batch 7
begins, then `{"decisions": 3, "dropped": 0, "batch": 7}` with a descriptor (see `decision_recorder.py`).
The process exits when the socket closes or its parent exits, after sending the last decisions.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import pickle
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from grpc_health.v1 import health, health_pb2

from ...contract.settings import SettingsError
from ...contract.workers import end_with_parent
from ...ext import process
from .. import metrics
from ..auth.access import AccessControl
from ..config import AggregatorConfig
from ..metrics import CallCounters
from ..scoring.evaluate import Judgement
from ..workers import receive_packets
from .decision_recorder import DecisionRecorder
from .grpc_server import INTERFERENCE, PLACEMENT, RECOVERY, SCORE, make_server, serve_on
from .interference import InterferenceService
from .placement import PlacementService
from .recovery import RecoveryService
from .score import ScoreService
from .shared_snapshot import NameDictionary, sealed_file, snapshot_of

PACKET_BYTES_MAX = 1 << 16
#: Calls that still run this long after the end are cancelled.
GRACE_SECONDS = 0.2
#: Maximum unread batches of decisions in the socket; the reply to a snapshot needs space, too.
UNREAD_BATCHES_MAX = 32


@dataclass(frozen=True, slots=True)
class ScoreProcessSettings:
    """Configuration, address and parent of the score process."""

    config: AggregatorConfig
    address: str
    port: int
    parent: int


class ScoreServer:
    """The event loop's side: receives snapshots, answers calls."""

    def __init__(self, control: socket.socket, settings: ScoreProcessSettings) -> None:
        """Raises SettingsError for certificates or tokens."""
        self.snapshot: Judgement | None = None
        self._control, self._settings = control, settings
        self._calls, self._reported = CallCounters(), _ReportedCounts()
        self._access_control = AccessControl(settings.config)
        self._dictionary: tuple[int, NameDictionary] | None = None
        #: Batches since the last snapshot: an aggregator that does not read gets no more.
        self._unread_batches = 0
        self._decisions = DecisionRecorder(
            self._send_decisions, time.time_ns, self._announce_decisions
        )
        self._placement = PlacementService(self, is_dedicated=True, recorder=self._decisions)
        self._preparing: asyncio.Task[None] | None = None
        self._health: Any = cast(Any, health).aio.HealthServicer()

    async def run(self) -> None:
        """Serve until the control socket closes. Raises RuntimeError if it cannot listen."""
        config, settings = self._settings.config, self._settings
        server = make_server(config, self._access_control, self._calls)
        port = 0
        serve_on(
            server,
            {
                SCORE: ScoreService(self, lambda: port),
                PLACEMENT: self._placement,
                RECOVERY: RecoveryService(self._placement),
                INTERFERENCE: InterferenceService(self),
            },
            self._health,
        )
        port = self._access_control.bind(server, f"{settings.address}:{settings.port}")
        self._access_control.watch_ports([port])
        await self._set_serving(health_pb2.HealthCheckResponse.NOT_SERVING)
        await server.start()
        tasks = [
            asyncio.create_task(self._access_control.watch()),
            asyncio.create_task(self._decisions.run()),
        ]
        # An aggregator that ends resets the socket if it left packets unread.
        with suppress(ConnectionError):
            self._send({"port": port})
            await receive_packets(self._control, PACKET_BYTES_MAX, 2, self._load_snapshot)
        for task in tasks:
            task.cancel()
        await server.stop(GRACE_SECONDS)
        await self._decisions.flush()

    async def _set_serving(self, status: Any) -> None:
        for name in ("", SCORE, PLACEMENT, RECOVERY, INTERFERENCE):
            await self._health.set(name, status)

    async def _load_snapshot(self, packet: bytes, descriptors: list[int]) -> None:
        """Answer from the snapshot in the second of *descriptors*; the first has its names."""
        number, (names, descriptor) = json.loads(packet)["dictionary"], descriptors
        self._unread_batches = 0
        if self._dictionary is None or self._dictionary[0] != number:
            self._dictionary = number, NameDictionary(names)
        first, self.snapshot = self.snapshot is None, snapshot_of(descriptor, self._dictionary[1])
        if first:
            await self._set_serving(health_pb2.HealthCheckResponse.SERVING)
        if self._preparing is None or self._preparing.done():
            self._preparing = asyncio.create_task(self._placement.prepare())
        figures = self._reported.since(self._calls, self._access_control)
        self._send({"version": self.snapshot.version, **figures})

    def _send_decisions(self, encoded: bytes, count: int) -> bool:
        """Send a batch. False: the aggregator does not read; the batch is dropped."""
        if self._unread_batches < UNREAD_BATCHES_MAX:
            self._unread_batches += 1
            with suppress(OSError):
                descriptor = sealed_file(encoded)
                try:
                    packet = {
                        "decisions": count,
                        "dropped": self._decisions.dropped,
                        "batch": self._decisions.batch_number,
                    }
                    socket.send_fds(self._control, [json.dumps(packet).encode()], [descriptor])
                finally:
                    os.close(descriptor)
                self._decisions.take_dropped()
                return True
        self._decisions.dropped += count
        return False

    def _announce_decisions(self, number: int) -> None:
        with suppress(OSError):
            self._send({"recording": number})

    def _send(self, reply: dict[str, Any]) -> None:
        self._control.send(json.dumps(reply).encode())


class _ReportedCounts:
    """The counts that were already reported."""

    def __init__(self) -> None:
        self._calls, self._refused = CallCounters(), 0

    def since(self, calls: CallCounters, access_control: AccessControl) -> dict[str, Any]:
        started, failed = calls.started - self._calls.started, calls.failed - self._calls.failed
        refused = access_control.refused_count - self._refused
        self._calls.started += started
        self._calls.failed += failed
        self._refused += refused
        return {
            "begun": started,
            "failed": [[name, code, count] for (name, code), count in failed.items()],
            "refused": refused,
        }


def main() -> int:
    """Run the score process on the socket in standard input; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # Signals to the group are ignored: the aggregator ends this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(0))
    control.setblocking(True)
    settings: ScoreProcessSettings = pickle.loads(control.recv(PACKET_BYTES_MAX))
    if not end_with_parent(settings.parent):
        return 1
    process.name(b"gangline-score")
    process.be_small()
    metrics.raise_open_files_limit()
    control.setblocking(False)
    gc.freeze()
    try:
        asyncio.run(ScoreServer(control, settings).run())
    except (SettingsError, RuntimeError) as error:
        with suppress(OSError):
            control.send(json.dumps({"error": str(error)}).encode())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
