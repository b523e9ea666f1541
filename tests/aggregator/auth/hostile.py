"""A hostile agent with a login of its own, which does maximal harm to others, as a process with its
attacks as arguments.

`python -m tests.aggregator.auth.hostile ATTACK,ATTACK... PORT CA FOLDER SECONDS`; prints the
answers to each attack as JSON. The folder contains `ATTACK.token` for each attack, of the host
`hostile-ATTACK`.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from gangline.agent.frame_builder import signal_dictionary
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.signals import TABLES
from gangline.contract.wire import telemetry_pb2 as wire
from gangline.contract.wire.telemetry_pb2_grpc import TelemetryServiceStub

BOOT = b"B" * 16
HOUR_NS = 3600 * 10**9
GUARD_SECONDS = 30.0


class Hostile:
    """The attacker's login, its connection, and a tally of the answers."""

    def __init__(self, host: str, port: int, ca: Path, token: str, seconds: float) -> None:
        self.host, self.run_id = host, host.encode().ljust(16)[-16:]
        self.port, self.ca, self.token = port, ca, token
        self.end = time.monotonic() + seconds
        self.tally: Counter[str] = Counter()
        self.sequence = 0
        self.is_deaf = False
        self.random = random.Random(1)

    @property
    def going(self) -> bool:
        """Return whether to continue: until the end, and beyond it while a slow machine has not answered yet."""
        late = time.monotonic() - self.end
        return late < 0 or (not self.met and late < GUARD_SECONDS)

    @property
    def met(self) -> bool:
        """Whether it was answered anything but that it may go on."""
        answers = +self.tally  # a zero count is skipped: most acknowledgements refuse nothing
        hears = bool(set(answers) - {"OK", "written", "connected"})
        return hears or (self.is_deaf and answers["written"] >= 500)

    @property
    def left_seconds(self) -> float:
        return max(0.2, self.end - time.monotonic())

    def channel(self) -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(self.ca.read_bytes())
        alone = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        return grpc.aio.secure_channel(f"localhost:{self.port}", credentials, options=alone)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),)

    def registration(self, host: str = "", **changes: Any) -> wire.RegisterNodeRequest:
        values = {
            "protocol_version": 1, "node": host or self.host, "run_id": self.run_id, "boot_id": BOOT, "agent_version": "x",
            "signals": signal_dictionary(), "boottime_ns": HOUR_NS, "wall_time_ns": time.time_ns(),
        }  # fmt: skip
        return wire.RegisterNodeRequest(**{**values, **changes})

    async def called(self, call: Any) -> Any:
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            self.tally[error.code().name] += 1
            return None
        self.tally["OK"] += 1
        return answer

    async def session(self, stub: Any) -> str:
        while self.going:
            if answer := await self.called(
                stub.RegisterNode(self.registration(), metadata=self.metadata)
            ):
                return str(answer.session)
        return ""

    def frame(self, blocks: list[Block], offset_ns: int = 0) -> wire.TelemetryBatch:
        self.sequence += 1
        boottime = max(1, HOUR_NS + self.sequence * 10**6 + offset_ns)
        stamp = frames.Stamp(
            self.run_id, BOOT, self.sequence, boottime, max(0, time.time_ns() + offset_ns)
        )
        frame = frames.encode(stamp, blocks, deflate=False)
        return wire.TelemetryBatch(sequence=self.sequence, frame=frame)

    async def pour(self, make: Callable[[], wire.TelemetryBatch], *, deaf: bool = False) -> None:
        self.is_deaf = deaf
        async with self.channel() as channel:
            stub: Any = TelemetryServiceStub(channel)  # type: ignore[no-untyped-call]
            while self.going and (session := await self.session(stub)):
                stream = stub.StreamTelemetry(
                    metadata=(*self.metadata, ("gangline-session", session))
                )
                listening = asyncio.create_task(self._listen(stream)) if not deaf else None
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
                    async with asyncio.timeout(self.left_seconds):
                        while self.going:
                            await stream.write(make())
                            self.tally["written"] += 1
                stream.cancel()
                if listening:
                    with suppress(asyncio.CancelledError):
                        await listening

    async def _listen(self, stream: Any) -> None:
        try:
            async for ack in stream:
                self.tally["receipts"] += sum(span.last - span.first + 1 for span in ack.durable)
                self.tally["refused"] += len(ack.refused)
        except grpc.aio.AioRpcError as error:
            self.tally[error.code().name] += 1


def gpu_block(devices: list[str], value: Callable[[], float] = lambda: 500.0) -> Block:
    block = Block("gpu_1s", devices)
    for column, signal in enumerate(TABLES["gpu_1s"]):
        if signal.kind.value == "gauge":
            for row in range(len(devices)):
                block.put_float(column, row, value())
    return block


async def garbage(one: Hostile) -> None:
    def make() -> wire.TelemetryBatch:
        one.sequence += 1
        return wire.TelemetryBatch(sequence=one.sequence, frame=os.urandom(300))

    await one.pour(make)


async def flood(one: Hostile) -> None:
    block = gpu_block([f"GPU-{gpu}" for gpu in range(8)])
    await one.pour(lambda: one.frame([block]))


async def devices(one: Hostile) -> None:
    """A million device names, a thousand a frame."""
    names = iter(range(10**9))
    await one.pour(lambda: one.frame([gpu_block([f"GPU-{next(names)}" for _ in range(1000)])]))


async def odd_values(one: Hostile) -> None:
    """NaN, infinities, the largest numbers there are."""
    odd = [math.nan, math.inf, -math.inf, 1.8e308, -1.8e308, 5e-324, 0.0]
    await one.pour(
        lambda: one.frame(
            [gpu_block([f"GPU-{gpu}" for gpu in range(8)], lambda: one.random.choice(odd))]
        )
    )


async def time_travel(one: Hostile) -> None:
    """Frames of all centuries, forth and back."""
    block = gpu_block(["GPU-0"])
    years = 365 * 24 * HOUR_NS
    await one.pour(lambda: one.frame([block], one.random.randrange(-50, 200) * years))


async def deaf(one: Hostile) -> None:
    block = gpu_block(["GPU-0"])
    await one.pour(lambda: one.frame([block]), deaf=True)


async def names(one: Hostile) -> None:
    """Register under a million foreign names."""
    async with one.channel() as channel:
        stub: Any = TelemetryServiceStub(channel)  # type: ignore[no-untyped-call]

        async def register() -> None:
            while one.going:
                one.sequence += 1
                request = one.registration(f"victim-{one.sequence}")
                await one.called(stub.RegisterNode(request, metadata=one.metadata))

        await _until_end(one, *(register() for _ in range(50)))


async def strangers(one: Hostile) -> None:
    """Calls without a login, at full speed, over many connections."""
    one.token = "gangline_000000000000_" + "A" * 43

    async def ask() -> None:
        async with one.channel() as channel:
            stub: Any = TelemetryServiceStub(channel)  # type: ignore[no-untyped-call]
            while one.going:
                await one.called(
                    stub.RegisterNode(wire.RegisterNodeRequest(), metadata=one.metadata)
                )

    await _until_end(one, *(ask() for _ in range(50)))


async def streams(one: Hostile) -> None:
    """Open ten thousand idle streams."""

    async def idle() -> None:
        async with one.channel() as channel:
            stub: Any = TelemetryServiceStub(channel)  # type: ignore[no-untyped-call]
            if not (session := await one.session(stub)):
                return
            metadata = (*one.metadata, ("gangline-session", session))
            opened = [stub.StreamTelemetry(metadata=metadata) for _ in range(500)]
            for stream in asyncio.as_completed([stream.code() for stream in opened]):
                one.tally[(await stream).name] += 1

    await _until_end(one, *(idle() for _ in range(20)))


async def connections(one: Hostile) -> None:
    """Open ten thousand connections that begin a handshake, or HTTP/2, and then stay silent."""
    context = ssl.create_default_context(cafile=str(one.ca))
    context.set_alpn_protocols(["h2"])

    async def open_and_wait(number: int) -> None:
        secure = context if number % 10 == 0 else None  # most hang in the middle of the handshake
        with suppress(OSError, TimeoutError):
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection("localhost", one.port, ssl=secure), GUARD_SECONDS
            )
            one.tally["connected"] += 1
            if not await reader.read(1):
                one.tally["ended"] += 1
            writer.close()

    async def again(number: int) -> None:
        while one.going:
            await open_and_wait(number)
            await asyncio.sleep(0.05)

    await _until_end(one, *(again(number) for number in range(1000)))


async def giants(one: Hostile) -> None:
    """Messages as long as may be, and longer."""
    async with one.channel() as channel:
        stub: Any = TelemetryServiceStub(channel)  # type: ignore[no-untyped-call]
        devices_ = [wire.Device(kind="gpu", key=f"{n:090}") for n in range(50_000)]

        async def register() -> None:
            while one.going:
                request = one.registration(
                    devices=devices_[: one.random.choice((3000, 15_000, 50_000))]
                )
                await one.called(stub.RegisterNode(request, metadata=one.metadata))

        await _until_end(one, *(register() for _ in range(5)))


async def events(one: Hostile) -> None:
    """Events without end, a thousand a call."""
    async with one.channel() as channel:
        stub: Any = TelemetryServiceStub(channel)  # type: ignore[no-untyped-call]
        session = await one.session(stub)

        async def report() -> None:
            while one.going:
                one.sequence += 1
                running = [
                    wire.HealthEvent(
                        event_id=f"{one.sequence}-{n}", name="gpu.xid", code=79, boot_id=BOOT
                    )
                    for n in range(1000)
                ]
                request = wire.ReportEventsRequest(events=running)
                metadata = (*one.metadata, ("gangline-session", session))
                await one.called(stub.ReportEvents(request, metadata=metadata))

        await _until_end(one, *(report() for _ in range(5)))


async def _until_end(one: Hostile, *work: Coroutine[Any, Any, None]) -> None:
    tasks = {asyncio.create_task(task) for task in work}
    while tasks and one.going:
        _, tasks = await asyncio.wait(tasks, timeout=min(0.2, one.left_seconds))
    for task in tasks:
        task.cancel()


ATTACKS: dict[str, Callable[[Hostile], Awaitable[None]]] = {
    task.__name__: task
    for task in (
        garbage, flood, devices, odd_values, time_travel, deaf, names, strangers, streams, connections, giants,
        events,
    )
}  # fmt: skip


def host_of(attack: str) -> str:
    return f"hostile-{attack.replace('_', '-')}"


async def main(attacks: str, port: str, ca: str, folder: str, seconds: str) -> None:
    hosts: dict[str, Hostile] = {}
    for name in attacks.split(","):
        token = (Path(folder) / f"{name}.token").read_text().strip()
        hosts[name] = Hostile(host_of(name), int(port), Path(ca), token, float(seconds))
    print("begins", flush=True)
    await asyncio.gather(*(ATTACKS[name](host) for name, host in hosts.items()))
    print(json.dumps({name: host.tally for name, host in hosts.items()}), flush=True)
    os._exit(0)  # thousands of calls and connections are left as they are


async def receipts(
    stub: Any, host: str, metadata: Any, count: int, period_seconds: float
) -> AsyncIterator[float]:
    """Act as an honest agent: send a frame each *period_seconds*, and yield the seconds until each receipt."""
    run_id = host.encode().ljust(16)[:16]
    request = wire.RegisterNodeRequest(
        protocol_version=1, node=host, run_id=run_id, boot_id=BOOT, agent_version="x",
        signals=signal_dictionary(), boottime_ns=HOUR_NS, wall_time_ns=time.time_ns(),
    )  # fmt: skip
    session = (await stub.RegisterNode(request, metadata=metadata)).session
    stream = stub.StreamTelemetry(metadata=(*metadata, ("gangline-session", session)))
    block = gpu_block([f"GPU-{host}-{gpu}" for gpu in range(8)])
    sent: dict[int, float] = {}
    for sequence in range(1, count + 1):
        stamp = frames.Stamp(run_id, BOOT, sequence, HOUR_NS + sequence * 10**9, time.time_ns())
        sent[sequence] = time.monotonic()
        batch = wire.TelemetryBatch(
            sequence=sequence, frame=frames.encode(stamp, [block], deflate=False)
        )
        await stream.write(batch)
        while sequence in sent:
            ack = await stream.read()
            assert not ack.refused, ack.refused
            for span in ack.durable:
                for number in range(span.first, span.last + 1):
                    yield time.monotonic() - sent.pop(number)
        await asyncio.sleep(max(0.0, period_seconds))
    stream.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
