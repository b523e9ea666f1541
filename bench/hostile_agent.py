"""Receipt latency of honest agents with hostile agents, against the same without, alternating.

    python -m bench hostile_agent                 all attacks at once, each by its own agent
    python -m bench.hostile_agent                 each attack alone, and a control: a minute each
    python -m bench.hostile_agent flood deaf      these attacks alone

The hostile process has the lowest priority (`bench.load.lowest`), so that its own CPU use is not
counted as the aggregator's fault. `control` is a process that only uses CPU: it shows the effect
that remains.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import grpc

from bench.load.aggregator import STORE, Running, aggregator
from bench.measure import HEADING, Result
from bench.turns import SETTLE_SECONDS, TURN_SECONDS, MeasuredTurns, Sample, results
from gangline.agent.frame_builder import signal_dictionary
from gangline.aggregator.auth import tokens
from gangline.aggregator.auth.access import tokens_file
from gangline.aggregator.auth.ca import Authority, certificate_paths, make_authority
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.principal import Role
from gangline.contract import frame as frames
from gangline.contract.wire import telemetry_pb2 as wire
from gangline.contract.wire.telemetry_pb2_grpc import TelemetryServiceStub
from tests.aggregator.auth.hostile import ATTACKS, BOOT, HOUR_NS, gpu_block, host_of

#: Honest agents, and seconds between the frames of each: 80 frames a second in all.
HOSTS, PERIOD_SECONDS = 20, 0.25
COMMIT_SECONDS = 0.1
#: The default limit of reconnects, after which clients wait.
RECONNECTS = f"reconnects_per_second={AggregatorConfig.reconnects_per_second}"
#: A process that only uses CPU and sends nothing.
CONTROL = "control"


@dataclass(frozen=True)
class HostileWorld:
    """An aggregator in a folder of its own, and the tokens of all agents."""

    running: Running
    folder: Path
    tokens: dict[str, str]

    @property
    def ca(self) -> Path:
        return certificate_paths(self.folder, "ca").certificate

    @property
    def port(self) -> int:
        return int(self.running.address.rpartition(":")[2])

    def attacked(self, attacks: Sequence[str], seconds: float) -> subprocess.Popen[str]:
        """Start the hostile agents; return when the attack has begun."""
        hostile = [
            "-m", "bench.load.lowest", "tests.aggregator.auth.hostile", ",".join(attacks), str(self.port),
            str(self.ca), str(self.folder), str(seconds),
        ]  # fmt: skip
        control = ["-m", "bench.load.lowest", "burn", str(seconds)]
        child = subprocess.Popen(
            [sys.executable, *(control if list(attacks) == [CONTROL] else hostile)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        assert child.stdout
        child.stdout.readline()
        return child


@contextmanager
def world(attacks: Sequence[str]) -> Iterator[HostileWorld]:
    """Run an aggregator until the end of the block."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_authority(folder, "bench", datetime.now(UTC))
        server = Authority(folder, datetime.now(UTC)).issue_server(["localhost", "127.0.0.1"], 1)
        secrets, token_rows = _tokens(
            [*map(host_of, attacks), *(f"honest-{n}" for n in range(HOSTS))]
        )
        tokens.update_tokens(tokens_file(folder / STORE), lambda _: token_rows)
        for attack in attacks:
            (folder / f"{attack}.token").write_text(secrets[host_of(attack)])
        settings = (
            f"tls_certificate_file={server.certificate}", f"tls_key_file={server.key}",
            f"commit_seconds={COMMIT_SECONDS}", "ops_seconds=3600", RECONNECTS,
        )  # fmt: skip
        with aggregator(folder, *settings) as running:
            yield HostileWorld(running, folder, secrets)


def _tokens(names: Sequence[str]) -> tuple[dict[str, str], list[tokens.Token]]:
    """Return the secrets of agents by name, and the aggregator's token records."""
    result = {name: tokens.make_token(Role.AGENT, name, 1, int(time.time())) for name in names}
    return {name: secret for name, (secret, _) in result.items()}, [
        row for _, row in result.values()
    ]


class Honest:
    """Honest agents in a thread: they send by the clock, at an equal rate in slow and fast periods."""

    def __init__(self, world: HostileWorld) -> None:
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
        credentials = grpc.ssl_channel_credentials(world.ca.read_bytes())
        options = [("grpc.use_local_subchannel_pool", 1)]
        metadata = (("authorization", f"Bearer {world.tokens[name]}"),)
        run_id = name.encode().ljust(16)[:16]
        request = wire.RegisterNodeRequest(
            protocol_version=1, node=name, run_id=run_id, boot_id=BOOT, agent_version="x",
            signals=signal_dictionary(), boottime_ns=HOUR_NS, wall_time_ns=time.time_ns(),
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
            for span in ack.durable:
                for number in range(span.first, span.last + 1):
                    due = sent.pop(number)
                    self.samples.append((due, now - due))


def run(seed: int) -> list[Result]:
    """Measure without and under all attacks at once."""
    return measured("in all ways", list(ATTACKS))


def measured(name: str, attacks: Sequence[str]) -> list[Result]:
    """Measure without and under *attacks*, alternating, in an aggregator of its own."""
    tally: dict[str, Counter[str]] = {}
    spent: list[float] = []
    memory: list[int] = []
    with world([attack for attack in attacks if attack != CONTROL]) as attacked_world:

        def each() -> None:
            spent.append(attacked_world.running.cpu()[0])
            memory.append(attacked_world.running.memory_bytes())

        def start() -> Callable[[], None]:
            child = attacked_world.attacked(attacks, TURN_SECONDS + SETTLE_SECONDS + 0.5)

            def end() -> None:
                for attack, answers in json.loads(child.communicate(timeout=120)[0]).items():
                    tally.setdefault(attack, Counter()).update(answers)

            return end

        with Honest(attacked_world) as honest:
            time.sleep(2 * SETTLE_SECONDS)
            turns = MeasuredTurns(start, each)
            turns.run()
            assert not honest.lost, "an honest frame was refused"
    seconds = [two - before for before, two in zip(spent[::2], spent[1::2], strict=True)]
    without, attacked = (sum(seconds[at::2]) / len(seconds[at::2]) / TURN_SECONDS for at in (0, 1))
    notes = (
        f"the aggregator's cores {without:.2f} without, {attacked:.2f} with; memory "
        f"{memory[0] / 1e6:.0f} MB at first, {max(memory) / 1e6:.0f} at most; it was answered "
        f"{ {attack: dict(answers) for attack, answers in tally.items()} }"
    )
    result = [turn.of(honest.samples) for turn in turns.done]
    return results(f"a receipt while an agent is hostile: {name}", turns, result, notes)


def main() -> int:
    """Measure each named attack alone, or all attacks one by one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    scenarios = [CONTROL, *ATTACKS]
    parser.add_argument("attack", nargs="*", choices=[*scenarios, []], default=[])
    attacks = parser.parse_args().attack or scenarios
    print(HEADING)
    for index, attack in enumerate(attacks, 1):
        print(f"[{index}/{len(attacks)}] {attack}", file=sys.stderr, flush=True)
        for result in measured(attack, [attack]):
            print(result.row(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
