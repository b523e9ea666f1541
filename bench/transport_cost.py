"""The agent's client (sans-IO h2 in a thread) against grpclib for the same calls: CPU per frame,
memory.

Each client is a process of its own that registers and streams frames of 2 KB to one small grpc.aio
server, at the rate of receipts and at an agent's pace. Also the agent's client by TLS, against
itself in plain text. The server and the clients are this module:

python -m bench.transport_cost server FOLDER
python -m bench.transport_cost ours|grpclib PORT HERTZ FRAMES
python -m bench.transport_cost tls PORT HERTZ FRAMES CA
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.measure import Result, pss_bytes
from gangline.contract.wire import telemetry_pb2

FRAME_BYTES = 2048
#: Frames in flight without a receipt: at most the live frames of the agent's client.
CREDIT_FRAMES = 8
#: Frames before the measured ones.
WARM_UP_FRAMES = 3
#: Frames a second (0: at the rate of receipts) -> number of measured frames.
PACES = {0: 4000, 20: 100, 1: 12}
#: A client that takes longer has failed.
SECONDS_MAX = 60.0
SERVICE = "/gangline.v1.TelemetryService/"


async def serve(folder: Path) -> None:
    """Answer each frame with a receipt, until standard input closes.

    Prints the ports, of plain text and of TLS with the certificate in *folder*.
    """
    import asyncio

    import grpc.aio

    from gangline.contract.wire import telemetry_pb2_grpc

    class Service(telemetry_pb2_grpc.TelemetryServiceServicer):
        async def RegisterNode(self, request: Any, context: Any) -> Any:
            return telemetry_pb2.RegisterNodeResponse(session="s", credit_frames=CREDIT_FRAMES)

        async def StreamTelemetry(self, request_iterator: AsyncIterator[Any], context: Any) -> Any:
            async for batch in request_iterator:
                whole = telemetry_pb2.SequenceRange(first=batch.sequence, last=batch.sequence)
                yield telemetry_pb2.IngestAck(durable=[whole])

    server = grpc.aio.server()
    telemetry_pb2_grpc.add_TelemetryServiceServicer_to_server(Service(), server)  # type: ignore[no-untyped-call]
    pair = (folder / "server.key").read_bytes(), (folder / "server.pem").read_bytes()
    secure = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    print(server.add_insecure_port("127.0.0.1:0"), secure, flush=True)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


class FrameServicer:
    """A spool in memory, so that no disk is measured."""

    run_id = boot_id = bytes(16)

    def __init__(self, frame: bytes) -> None:
        self.credit = threading.Semaphore(CREDIT_FRAMES)
        self.made = 0
        self._frame = frame

    def next_sequence(self) -> int:
        return self.made + 1

    def pending(self, after: int, count_max: int) -> list[Any]:
        """Return the frames after *after*, like a spool."""
        return [(n, self._frame) for n in range(after + 1, min(self.made, after + count_max) + 1)]

    def acknowledge(self, first: int, last: int) -> None:
        self.credit.release(last - first + 1)

    def mark_refused(self, sequence: int, reason: str) -> None:
        raise AssertionError(reason)


class NoEvents:
    """An empty event queue."""

    waiting = False

    def pending(self, count_max: int) -> list[Any]:
        return []

    def acknowledge(self, event_ids: object) -> None: ...
    def mark_refused(self, event_ids: object, reason: str) -> None: ...


def stream_gangline(port: int, hertz: float, count: int, ca: str = "") -> float:
    """Send frames made in this thread by the agent's client (by TLS if given a CA); return the CPU
    seconds.
    """
    from gangline.agent.transport.client import Client
    from gangline.agent.transport.credentials import Credentials

    frames = FrameServicer(os.urandom(FRAME_BYTES))
    client = Client(
        f"127.0.0.1:{port}",
        lambda: telemetry_pb2.RegisterNodeRequest(node="bench"),
        frames, NoEvents(), random_source=random.Random(1), live_hertz=hertz or 1000,
        credentials=Credentials(ca),
    )  # fmt: skip
    client.start()
    while not client.connected:  # earlier frames would be backlog
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
    for _ in range(CREDIT_FRAMES):  # waits for the last receipt
        frames.credit.acquire()
    return time.process_time() - begin


async def stream_grpclib(port: int, hertz: float, count: int) -> float:
    """Do the same by grpclib: one task creates and sends frames, one receives receipts."""
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
def _server(folder: Path) -> Iterator[list[str]]:
    command = [sys.executable, "-m", __spec__.name, "server", str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin and child.stdout
        yield child.stdout.readline().split()
        child.stdin.close()


def _client(kind: str, port: str, hertz: int, count: int, *more: str) -> tuple[float, float]:
    """Return microseconds of CPU a frame and the process's PSS in MB."""
    command = [sys.executable, "-m", __spec__.name, kind, port, str(hertz), str(count), *more]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=SECONDS_MAX)
    cpu, pss = json.loads(done.stdout)
    return cpu / count * 1e6, pss / 1e6


def run(seed: int) -> list[Result]:
    """Measure both clients at each pace, one after the other."""
    from gangline.aggregator.auth.ca import Authority, make_authority

    results: list[Result] = []
    memories = 0.0, 0.0, 0.0
    with tempfile.TemporaryDirectory() as name:
        folder, now = Path(name), datetime.now(UTC)
        ca = str(make_authority(folder, "bench", now).certificate)
        Authority(folder, now).issue_server(["127.0.0.1"], 1)
        with _server(folder) as (port, secure):
            for hertz, count in PACES.items():
                gangline, memory = _client("ours", port, hertz, count)
                grpclib, grpclib_memory = _client("grpclib", port, hertz, count)
                by_tls, tls_memory = _client("tls", secure, hertz, count, ca)
                pace = f"at {hertz} Hz" if hertz else "as fast as receipts come"
                what = f"a frame of 2 KB to the server, {pace}"
                results.append(Result(what, gangline, "us CPU", "grpclib", grpclib))
                results.append(Result(f"{what}, by TLS", by_tls, "us CPU", "plain text", gangline))
                memories = memory, grpclib_memory, tls_memory
    what = "memory of the client's process, PSS"
    results.append(Result(what, memories[0], "MB", "grpclib", memories[1]))
    results.append(Result(f"{what}, with TLS", memories[2], "MB", "without", memories[0]))
    return results


def main(role: str, port: str = "", hertz: str = "", count: str = "", ca: str = "") -> None:
    """Run a role. asyncio is imported only by roles that use it, because its memory would count."""
    if role in ("ours", "tls"):
        seconds = stream_gangline(int(port), float(hertz), int(count), ca)
    else:
        import asyncio

        if role == "server":
            return asyncio.run(serve(Path(port)))
        seconds = asyncio.run(stream_grpclib(int(port), float(hertz), int(count)))
    print(json.dumps([seconds, pss_bytes([os.getpid()])]))


if __name__ == "__main__":
    main(*sys.argv[1:])
