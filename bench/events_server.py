"""A complete aggregator and a bare echo server in the same process and event loop.

python -m bench.events_server FOLDER

Prints both ports, serves until its standard input closes, then prints the time of each fsynced
append to the event journal, in microseconds, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.server import Aggregator
from gangline.aggregator.store.journal import EventJournal, StoredEvent
from gangline.contract.wire import telemetry_pb2, telemetry_pb2_grpc


class EchoServicer(telemetry_pb2_grpc.TelemetryServiceServicer):
    """Answers the same call and ignores its content."""

    async def ReportEvents(self, request: Any, context: Any) -> Any:
        return telemetry_pb2.ReportEventsResponse(accepted=len(request.events))


def timed(times: list[float]) -> None:
    """Record the duration of each append to a journal, including its fsync."""
    append = EventJournal.append

    def timed_append(self: EventJournal, events: Sequence[StoredEvent]) -> int:
        begin = time.perf_counter()
        end = append(self, events)
        times.append((time.perf_counter() - begin) * 1e6)
        return end

    EventJournal.append = timed_append  # type: ignore[method-assign]


async def serve(folder: Path) -> None:
    times: list[float] = []
    timed(times)
    aggregator = Aggregator(AggregatorConfig(listen="127.0.0.1:0", data=folder))
    await aggregator.start()
    echo = grpc.aio.server()
    telemetry_pb2_grpc.add_TelemetryServiceServicer_to_server(EchoServicer(), echo)  # type: ignore[no-untyped-call]
    echo_port = echo.add_insecure_port("127.0.0.1:0")
    await echo.start()
    print(aggregator.port, echo_port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps(times), flush=True)
    await echo.stop(None)
    await aggregator.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
