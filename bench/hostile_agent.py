"""Honest agents' receipts while others are hostile, against the same receipts without them, in turns of one run.

    python -m bench hostile_agent                 in all ways at once, each by an agent of its own
    python -m bench.hostile_agent                 each way alone, and a control: about a minute each
    python -m bench.hostile_agent flood deaf      those alone

Real processes: the aggregator with TLS and tokens, the honest agents here, the hostile one at the lowest priority there
is (`bench.load.lowest`), so that what it takes of the processor itself is not counted as the aggregator's fault. What is left of
that, `control` tells: a process that turns in a loop and says nothing to anybody.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import grpc

from gangline.agent.framing import dictionary
from gangline.aggregator.access import tokens
from gangline.aggregator.access.authority import Authority, make_authority, pair
from gangline.aggregator.access.caller import Role
from gangline.aggregator.access.door import tokens_file
from gangline.fingerprints import frames
from gangline.fingerprints.wire import telemetry_pb2 as wire
from gangline.fingerprints.wire.telemetry_pb2_grpc import TelemetryServiceStub
from tests.aggregator.access.hostile import ATTACKS, BOOT, HOUR_NS, gpu_block, host_of

from .measure import HEADING, Result, cpu_seconds
from .turns import SETTLE_SECONDS, TURN_SECONDS, Sample, Turns, results

#: Honest agents, each of which sends a frame every so often, whether it has its receipts or not: 80 frames a second in all.
HOSTS, PERIOD_SECONDS = 20, 0.25
COMMIT_SECONDS = 0.1
#: Beside nothing hostile at all, a process that burns a processor.
CONTROL = "control"


class World:
    """An aggregator in a folder of its own, and everybody's tokens."""

    def __init__(self, folder: Path, attacks: Sequence[str]) -> None:
        hostile = {host_of(attack): attack for attack in attacks}
        self.ca = folder / "ca"
        data = folder / "data"
        make_authority(self.ca, "bench", datetime.now(UTC))
        server = Authority(self.ca, datetime.now(UTC)).issue_server(["localhost", "127.0.0.1"], 1)
        self.tokens = {}
        kept = []
        for name in [*hostile, *(f"honest-{n}" for n in range(HOSTS))]:
            self.tokens[name], one = tokens.make(Role.AGENT, name, 1, int(time.time()))
            kept.append(one)
        data.mkdir()
        tokens.change(tokens_file(data), lambda _: kept)
        self.folder = folder
        for name, attack in hostile.items():
            (folder / f"{attack}.token").write_text(self.tokens[name])
        self.child = subprocess.Popen(
            [sys.executable, "-m", "gangline.cli", "aggregator", "--data", str(data), "--listen", "127.0.0.1:0",
             "--set", f"tls_certificate_file={server.certificate}", "--set", f"tls_key_file={server.key}",
             "--set", f"commit_seconds={COMMIT_SECONDS}", "--set", "ops_seconds=3600"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.child.stdout
        said = self.child.stdout.readline()
        self.port = int(said.partition("127.0.0.1:")[2].partition(",")[0])

    def rss_bytes(self) -> int:
        """Return what the aggregator holds in memory."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def attacked(self, attacks: Sequence[str], seconds: float) -> subprocess.Popen[str]:
        """Start the hostile agents; return once it begins."""
        hostile = [
            "-m", "bench.load.lowest", "tests.aggregator.access.hostile", ",".join(attacks), str(self.port),
            str(pair(self.ca, "ca").certificate), str(self.folder), str(seconds),
        ]  # fmt: skip
        control = ["-m", "bench.load.lowest", "burn", str(seconds)]
        child = subprocess.Popen(
            [sys.executable, *(control if list(attacks) == [CONTROL] else hostile)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        assert child.stdout
        child.stdout.readline()
        return child

    def end(self) -> None:
        """Stop the aggregator."""
        self.child.terminate()
        self.child.wait(30)


class Honest:
    """Honest agents in a thread: they send by the clock, so that a slow time has as many frames as a quick one."""

    def __init__(self, world: World) -> None:
        self.samples: list[Sample] = []
        self.lost = 0
        self._world = world
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    async def _all(self) -> None:
        await asyncio.gather(*(self._host(number) for number in range(HOSTS)))

    async def _host(self, number: int) -> None:
        name, world = f"honest-{number}", self._world
        credentials = grpc.ssl_channel_credentials(pair(world.ca, "ca").certificate.read_bytes())
        options = [("grpc.use_local_subchannel_pool", 1)]
        metadata = (("authorization", f"Bearer {world.tokens[name]}"),)
        run_id = name.encode().ljust(16)[:16]
        request = wire.RegisterNodeRequest(
            protocol_version=1, node=name, run_id=run_id, boot_id=BOOT, agent_version="x",
            signals=dictionary(), boottime_ns=HOUR_NS, wall_time_ns=time.time_ns(),
        )  # fmt: skip
        target = f"localhost:{world.port}"
        async with grpc.aio.secure_channel(target, credentials, options=options) as channel:
            stub: Any = TelemetryServiceStub(channel)  # type: ignore[no-untyped-call]
            session = (await stub.RegisterNode(request, metadata=metadata)).session
            stream = stub.StreamTelemetry(metadata=(*metadata, ("gangline-session", session)))
            sent: dict[int, float] = {}
            reading = asyncio.create_task(self._read(stream, sent))
            due = time.monotonic() + PERIOD_SECONDS * number / HOSTS
            block = gpu_block([f"GPU-{name}-{gpu}" for gpu in range(8)])
            sequence = 0
            while not self._over.is_set():
                sequence += 1
                due += PERIOD_SECONDS
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                boottime_ns = HOUR_NS + sequence * 10**9
                stamp = frames.Stamp(run_id, BOOT, sequence, boottime_ns, time.time_ns())
                frame = frames.encode(stamp, [block], deflate=False)
                sent[sequence] = due
                await stream.write(wire.TelemetryBatch(sequence=sequence, frame=frame))
            reading.cancel()
            stream.cancel()

    async def _read(self, stream: Any, sent: dict[int, float]) -> None:
        async for ack in stream:
            now = time.monotonic()
            self.lost += len(ack.refused)
            for one in ack.durable:
                for number in range(one.first, one.last + 1):
                    due = sent.pop(number)
                    self.samples.append((due, now - due))


def run(seed: int) -> list[Result]:
    """Measure without and under all attacks at once."""
    return measured("in all ways", list(ATTACKS))


def measured(name: str, attacks: Sequence[str]) -> list[Result]:
    """Measure without and under *attacks* in turns, in an aggregator of its own."""
    tally: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), [one for one in attacks if one != CONTROL])
        spent: list[float] = []
        memory: list[int] = []

        def each() -> None:
            spent.append(cpu_seconds(world.child.pid))
            memory.append(world.rss_bytes())

        def start() -> Callable[[], None]:
            child = world.attacked(attacks, TURN_SECONDS + SETTLE_SECONDS + 0.5)

            def end() -> None:
                for one, answers in json.loads(child.communicate(timeout=120)[0]).items():
                    tally.setdefault(one, Counter()).update(answers)

            return end

        try:
            with Honest(world) as honest:
                time.sleep(2 * SETTLE_SECONDS)
                turns = Turns(start, each)
                turns.run()
                assert not honest.lost, "an honest frame was refused"
        finally:
            world.end()
    seconds = [two - one for one, two in zip(spent[::2], spent[1::2], strict=True)]
    without, beside = (sum(seconds[at::2]) / len(seconds[at::2]) / TURN_SECONDS for at in (0, 1))
    notes = (
        f"the aggregator's cores {without:.2f} without, {beside:.2f} with; memory "
        f"{memory[0] / 1e6:.0f} MB at first, {max(memory) / 1e6:.0f} at most; it was answered "
        f"{ {one: dict(answers) for one, answers in tally.items()} }"
    )
    found = [turn.of(honest.samples) for turn in turns.done]
    return results(f"a receipt while an agent is hostile: {name}", turns, found, notes)


def main() -> int:
    """Measure each way named, or each there is, alone."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ways = [CONTROL, *ATTACKS]
    parser.add_argument("attack", nargs="*", choices=[*ways, []], default=[])
    attacks = parser.parse_args().attack or ways
    print(HEADING)
    for at, attack in enumerate(attacks, 1):
        print(f"[{at}/{len(attacks)}] {attack}", file=sys.stderr, flush=True)
        for result in measured(attack, [attack]):
            print(result.row(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
