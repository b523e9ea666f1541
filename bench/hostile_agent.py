"""Honest agents' receipts while others are hostile, against the same receipts without them.

    python -m bench hostile_agent                 in all ways at once, each by an agent of its own
    python -m bench.hostile_agent                 each way alone, half a minute each
    python -m bench.hostile_agent flood deaf      those alone

Real processes: the aggregator with TLS and tokens, the honest agents here, the hostile one at the lowest priority, so
that what it takes of the processor itself is not counted as the aggregator's fault.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from gangline.aggregator.access import tokens
from gangline.aggregator.access.authority import Authority, make_authority, pair
from gangline.aggregator.access.caller import Role
from gangline.aggregator.access.door import tokens_file
from gangline.fingerprints.wire.telemetry_pb2_grpc import TelemetryServiceStub
from tests.aggregator.access.hostile import ATTACKS, host_of, receipts

from .measure import HEADING, Result, cpu_seconds, percentile

HOSTS = 20
#: Frames of each host, about five a second.
FRAMES, PERIOD_SECONDS = 30, 0.1
COMMIT_SECONDS = 0.1
#: The attack goes on for longer than the honest agents are looked at, and has done what may be done at once before.
ATTACK_SECONDS, SETTLE_SECONDS = 15.0, 3.0


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
        """Start the hostile agents, at the lowest priority; return once it begins."""
        child = subprocess.Popen(
            ["nice", "-n", "19", sys.executable, "-m", "tests.aggregator.access.hostile", ",".join(attacks), str(self.port),
             str(pair(self.ca, "ca").certificate), str(self.folder), str(seconds)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert child.stdout
        child.stdout.readline()
        return child

    async def honest(self) -> list[float]:
        """Return the seconds of each receipt of all honest agents."""
        found: list[float] = []

        async def host(name: str) -> None:
            credentials = grpc.ssl_channel_credentials(pair(self.ca, "ca").certificate.read_bytes())
            alone = [("grpc.use_local_subchannel_pool", 1)]
            metadata = (("authorization", f"Bearer {self.tokens[name]}"),)
            async with grpc.aio.secure_channel(
                f"localhost:{self.port}", credentials, options=alone
            ) as channel:
                stub: Any = TelemetryServiceStub(channel)  # type: ignore[no-untyped-call]
                async for seconds in receipts(stub, name, metadata, FRAMES, PERIOD_SECONDS):
                    found.append(seconds)

        await asyncio.gather(*(host(f"honest-{n}") for n in range(HOSTS)))
        return found

    def end(self) -> None:
        """Stop the aggregator."""
        self.child.terminate()
        self.child.wait(30)


def run(seed: int) -> list[Result]:
    """Measure without, then under all attacks at once."""
    return measured("in all ways", list(ATTACKS))


def measured(name: str, attacks: Sequence[str]) -> list[Result]:
    """Measure without, then under *attacks*, in an aggregator of its own."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), attacks)
        try:
            asyncio.run(world.honest())  # to be warm
            spent = [cpu_seconds(world.child.pid)]
            alone = asyncio.run(world.honest())
            spent.append(cpu_seconds(world.child.pid))
            before = world.rss_bytes()
            child = world.attacked(attacks, ATTACK_SECONDS)
            time.sleep(SETTLE_SECONDS)
            spent.append(cpu_seconds(world.child.pid))
            harmed = asyncio.run(world.honest())
            spent.append(cpu_seconds(world.child.pid))
            during = world.rss_bytes()
            lasted = child.poll() is None
            said, _ = child.communicate(timeout=60)
            alone += asyncio.run(world.honest())
            after = max(during, world.rss_bytes())
        finally:
            world.end()
    assert lasted, f"{name} was over before the honest agents were"
    tally = json.loads(said)
    without, with_it = spent[1] - spent[0], spent[3] - spent[2]
    notes = (
        f"the aggregator's CPU meanwhile {with_it:.1f} s, without {without:.1f}; "
        f"{(after - before) / 1e6:.0f} MB more; it was answered {tally}"
    )
    return [
        Result(
            f"a receipt while an agent is hostile: {name}, p{share:.0%}".replace("%", ""),
            1000 * percentile(harmed, share), "ms", "without it", 1000 * percentile(alone, share),
            notes if share == 0.5 else "",
        )
        for share in (0.5, 0.99)
    ]  # fmt: skip


def main() -> int:
    """Measure each way named, or each there is, alone."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("attack", nargs="*", choices=[*ATTACKS, []], default=[])
    attacks = parser.parse_args().attack or list(ATTACKS)
    results: list[Result] = []
    for at, attack in enumerate(attacks, 1):
        print(f"[{at}/{len(attacks)}] {attack}", file=sys.stderr, flush=True)
        results += measured(attack, [attack])
    print("\n".join([HEADING, *(result.row() for result in results)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
