"""Real processes: an aggregator, honest agents, and a hostile agent with a login.

The assertions do not depend on the machine's speed; `make bench` measures the slowdown of receipts.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.aggregator.auth.hostile import host_of, receipts
from tests.aggregator.auth.secured import Secured, bearer, telemetry
from tests.processes import GUARD_SECONDS, with_store

ROOT = Path(__file__).parents[3]
ATTACK_SECONDS = 2.0
#: An aggregator of five hosts uses 200 MB; the limit of all additional memory during an attack.
MORE_BYTES_MAX = 300 << 20
HOSTS, FRAMES = 3, 8


class Aggregator:
    def __init__(self, secured: Secured) -> None:
        with_store(secured.data)
        settings = secured.settings(client_certificates=False, commit_seconds=0.05, ops_seconds=0)
        arguments = [
            word for key, value in settings.items() for word in ("--set", f"{key}={value}")
        ]
        self.log = secured.data.parent / "aggregator.log"
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "gangline.cli", "aggregator", "--data", str(secured.data),
                 "--listen", "127.0.0.1:0", *arguments],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        self.port = int(line.partition("127.0.0.1:")[2].partition(",")[0])

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def end(self) -> int:
        self.child.terminate()
        with self.child:
            return self.child.wait(GUARD_SECONDS)


def attacked(names: Sequence[str], port: int, secured: Secured) -> subprocess.Popen[str]:
    """Start a process that is hostile in all these ways; return once it has begun."""
    folder = secured.data.parent
    for name in names:
        (folder / f"{name}.token").write_text(secured.token("agent", host_of(name)))
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.aggregator.auth.hostile", ",".join(names), str(port), str(secured.ca),
         str(folder), str(ATTACK_SECONDS)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
    )  # fmt: skip
    assert child.stdout is not None and child.stdout.readline() == "begins\n"
    return child


async def honest(port: int, secured: Secured, tokens: dict[str, str]) -> int:
    """Return the number of receipts of honest agents; each agent waits for a receipt before its next frame."""
    got: Counter[str] = Counter()

    async def one(name: str) -> None:
        async with secured.channel(port) as channel:
            async for _ in receipts(telemetry(channel), name, bearer(tokens[name]), FRAMES, 0.0):
                got[name] += 1

    async with asyncio.timeout(GUARD_SECONDS):
        await asyncio.gather(*map(one, tokens))
    return sum(got.values())


@pytest.mark.slow
def test_honest_agents_get_every_receipt(secured: Secured) -> None:
    """A fleet with compromised hosts that attack in eight ways at once: the attack must not harm their neighbors."""
    attacks = (
        "garbage", "names", "connections", "odd_values", "devices", "time_travel", "streams", "strangers",
    )  # fmt: skip
    tokens = {f"honest-{n}": secured.token("agent", f"honest-{n}") for n in range(HOSTS)}
    aggregator = Aggregator(secured)
    try:
        assert asyncio.run(honest(aggregator.port, secured, tokens)) == HOSTS * FRAMES
        before = aggregator.rss_bytes()
        with attacked(attacks, aggregator.port, secured) as child:
            assert asyncio.run(honest(aggregator.port, secured, tokens)) == HOSTS * FRAMES
            tallies = json.loads(child.communicate(timeout=GUARD_SECONDS)[0])
        assert aggregator.rss_bytes() - before < MORE_BYTES_MAX
    finally:
        code = aggregator.end()
    assert code == 0
    log = aggregator.log.read_text()
    assert (
        "Traceback" not in log
        and "Handshake" not in log
        and secured.token("agent", "x")[:9] not in log
    )
    check(tallies)


def check(found: dict[str, dict[str, int]]) -> None:
    refusals: dict[str, Any] = {
        "garbage": lambda got: got["refused"] and not got.get("receipts"),
        "names": lambda got: got["PERMISSION_DENIED"] and "OK" not in got,
        "connections": lambda got: got["ended"],
        "odd_values": lambda got: got["written"],
        "devices": lambda got: got["written"] < 400,
        "time_travel": lambda got: got["written"],
        "streams": lambda got: set(got) - {"OK"},
        "strangers": lambda got: got["UNAUTHENTICATED"] and "OK" not in got,
    }
    for name, got in found.items():
        assert refusals[name](got), (name, got)


@pytest.mark.slow
def test_nothing_secret_is_in_the_log_or_the_process_list(secured: Secured) -> None:
    """A token in `ps` is readable by everyone on the machine; a log may be shipped to another company."""
    secret = secured.token("operator", "alice")
    aggregator = Aggregator(secured)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{aggregator.port}") as channel:
            call: Any = channel.unary_unary("/gangline.v1.PermitService/GetPermit")
            with pytest.raises(grpc.RpcError):
                call(b"", metadata=bearer(secret), timeout=GUARD_SECONDS)
        arguments = Path(f"/proc/{aggregator.child.pid}/cmdline").read_bytes()
    finally:
        aggregator.end()
    assert "Handshake" not in aggregator.log.read_text()  # nor may any client fill it
    key = secured.server.key.read_text().splitlines()[1]
    assert secret.split("_", 2)[2].encode() not in arguments
    assert (
        secret.split("_", 2)[2] not in aggregator.log.read_text()
        and key not in aggregator.log.read_text()
    )
