"""The agent's client (sans-IO h2 in a thread) against the same calls by grpclib: CPU a frame, memory.

Each client is a process of its own that registers and streams frames of 2 KB, as fast as receipts let
it and at an agent's pace, to one small grpc.aio server. The server and the clients are this module:

    python -m bench.transport_cost server
    python -m bench.transport_cost ours|grpclib PORT HERTZ FRAMES
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from gangline.fingerprints.wire import telemetry_pb2

from .measure import Result, pss_bytes

FRAME_BYTES = 2048
#: Frames on their way without a receipt. No more than the agent's client sends as live at once.
CREDIT_FRAMES = 8
#: Frames before the measured ones.
WARM_UP_FRAMES = 3
#: Frames a second (0: as fast as receipts come) -> how many are measured.
PACES = {0: 4000, 20: 100, 1: 12}
#: A client that takes longer has lost its way.
SECONDS_MAX = 60.0
SERVICE = "/gangline.v1.TelemetryService/"


async def serve() -> None:
    """Take frames and answer each with a receipt; print the port, end when standard input closes."""
    import asyncio

    import grpc.aio

    from gangline.fingerprints.wire import telemetry_pb2_grpc

    class Service(telemetry_pb2_grpc.TelemetryServiceServicer):
        async def RegisterNode(self, request: Any, context: Any) -> Any:
            return telemetry_pb2.RegisterNodeResponse(session="s", credit_frames=CREDIT_FRAMES)

        async def StreamTelemetry(self, request_iterator: AsyncIterator[Any], context: Any) -> Any:
            async for batch in request_iterator:
                whole = telemetry_pb2.SequenceRange(first=batch.sequence, last=batch.sequence)
                yield telemetry_pb2.IngestAck(durable=[whole])

    server = grpc.aio.server()
    telemetry_pb2_grpc.add_TelemetryServiceServicer_to_server(Service(), server)  # type: ignore[no-untyped-call]
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


class Frames:
    """A spool in memory: what is measured is the way, not the disk."""

    run_id = boot_id = bytes(16)

    def __init__(self, frame: bytes) -> None:
        self.credit = threading.Semaphore(CREDIT_FRAMES)
        self.made = 0
        self._frame = frame

    def next_sequence(self) -> int:
        return self.made + 1

    def pending(self, after: int, count_max: int) -> list[Any]:
        """The frames past *after*, as a spool gives them."""
        return [(n, self._frame) for n in range(after + 1, min(self.made, after + count_max) + 1)]

    def receipt(self, first: int, last: int) -> None:
        self.credit.release(last - first + 1)

    def refused(self, sequence: int, reason: str) -> None:
        raise AssertionError(reason)


class NoEvents:
    """Nothing ever happens."""

    waiting = False

    def pending(self, count_max: int) -> list[Any]:
        return []

    def receipt(self, event_ids: object) -> None: ...
    def refused(self, event_ids: object, reason: str) -> None: ...


def stream_ours(port: int, hertz: float, count: int) -> float:
    """Send by the agent's client, frames made in this thread; return the seconds of CPU."""
    from gangline.agent.transport.client import Client

    frames = Frames(os.urandom(FRAME_BYTES))
    client = Client(
        f"127.0.0.1:{port}",
        lambda: telemetry_pb2.RegisterNodeRequest(node="bench"),
        frames, NoEvents(), random_source=random.Random(1), live_hertz=hertz or 1000,
    )  # fmt: skip
    client.start()
    while not client.connected:  # a frame of before would be backlog
        time.sleep(0.01)
    begin = 0.0
    for number in range(WARM_UP_FRAMES + count):
        if number == WARM_UP_FRAMES:
            begin = time.process_time()
        if hertz:
            time.sleep(1 / hertz)
        frames.credit.acquire()
        frames.made += 1
        client.notify()
    for _ in range(CREDIT_FRAMES):  # the last receipt
        frames.credit.acquire()
    return time.process_time() - begin


async def stream_grpclib(port: int, hertz: float, count: int) -> float:
    """The same by grpclib, one task that makes and sends, one that takes receipts."""
    import asyncio

    from grpclib.client import Channel, StreamStreamMethod, UnaryUnaryMethod

    frame, credit, begin = os.urandom(FRAME_BYTES), asyncio.Semaphore(CREDIT_FRAMES), 0.0
    channel = Channel("127.0.0.1", port)
    register = UnaryUnaryMethod(
        channel, SERVICE + "RegisterNode",
        telemetry_pb2.RegisterNodeRequest, telemetry_pb2.RegisterNodeResponse,
    )  # fmt: skip
    stream = StreamStreamMethod(
        channel, SERVICE + "StreamTelemetry", telemetry_pb2.TelemetryBatch, telemetry_pb2.IngestAck
    )
    answer = await register(telemetry_pb2.RegisterNodeRequest(node="bench"))
    async with stream.open(metadata={"gangline-session": answer.session}) as call:

        async def take() -> None:
            async for ack in call:
                for durable in ack.durable:
                    for _ in range(durable.first, durable.last + 1):
                        credit.release()

        await call.send_request()
        taking = asyncio.create_task(take())
        for number in range(WARM_UP_FRAMES + count):
            if number == WARM_UP_FRAMES:
                begin = time.process_time()
            if hertz:
                await asyncio.sleep(1 / hertz)
            await credit.acquire()
            await call.send_message(telemetry_pb2.TelemetryBatch(sequence=number + 1, frame=frame))
        for _ in range(CREDIT_FRAMES):
            await credit.acquire()
        spent = time.process_time() - begin
        await call.end()
        await taking
    channel.close()
    return spent


@contextmanager
def _server() -> Iterator[str]:
    command = [sys.executable, "-m", __spec__.name, "server"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin and child.stdout
        yield child.stdout.readline().strip()
        child.stdin.close()


def _client(kind: str, port: str, hertz: int, count: int) -> tuple[float, float]:
    """Return microseconds of CPU a frame and the process's PSS in MB."""
    command = [sys.executable, "-m", __spec__.name, kind, port, str(hertz), str(count)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=SECONDS_MAX)
    cpu, pss = json.loads(done.stdout)
    return cpu / count * 1e6, pss / 1e6


def run(seed: int) -> list[Result]:
    """Measure both clients at each pace, one after the other."""
    results: list[Result] = []
    memories = 0.0, 0.0
    with _server() as port:
        for hertz, count in PACES.items():
            ours, memory = _client("ours", port, hertz, count)
            theirs, their_memory = _client("grpclib", port, hertz, count)
            pace = f"at {hertz} Hz" if hertz else "as fast as receipts come"
            results.append(
                Result(f"a frame of 2 KB to the server, {pace}", ours, "us CPU", "grpclib", theirs)
            )
            memories = memory, their_memory
    results.append(
        Result("memory of the client's process, PSS", memories[0], "MB", "grpclib", memories[1])
    )
    return results


def main(role: str, port: str = "", hertz: str = "", count: str = "") -> None:
    """Play a role. asyncio is imported by those that use it: it would be memory of ours too."""
    if role == "ours":
        seconds = stream_ours(int(port), float(hertz), int(count))
    else:
        import asyncio

        if role == "server":
            return asyncio.run(serve())
        seconds = asyncio.run(stream_grpclib(int(port), float(hertz), int(count)))
    print(json.dumps([seconds, pss_bytes([os.getpid()])]))


if __name__ == "__main__":
    main(*sys.argv[1:])
