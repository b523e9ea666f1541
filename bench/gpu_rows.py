"""GPU rows of a fleet of 10,000 hosts at a steady rate: few connections, ten seconds in a frame.

    python -m bench.gpu_rows --address 127.0.0.1:7600 --rows-per-second 80000 --seconds 20 --seed 1

A machine of two cores cannot serve 10,000 connections beside the aggregator. A frame of ten seconds
has about the same number of rows as a host's frame of all tables. The frames are made beforehand.

Prints a line of JSON once it is connected, and then a line each second: rows sent and rows
receipted (durable) so far.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from .ingest_cost import GPUS, FrameShape, IngestHost, connections, hosts_of

#: With a credit of 64 frames each: 1,000 frames/s, and receipts within seconds.
STREAMS = 128
#: Readings of each GPU in a frame.
MOMENTS = 10
ROWS = MOMENTS * GPUS
#: Maximum seconds to create the frames and connect: the stamps begin then.
MAKING_SECONDS = 20.0


@dataclass
class Paced(IngestHost):
    """A host that sends frames at the time of their stamps, within its credit."""

    begin: float = 0.0  # time.time()
    period_seconds: float = 1.0
    sent: int = 0

    async def _messages(self) -> AsyncIterator[bytes]:
        async for message in super()._messages():
            due = self.begin + self.sent * self.period_seconds
            await asyncio.sleep(max(0.0, due - time.time()))
            self.sent += 1
            yield message


def made(seed: int, rows_per_second: int, seconds: int) -> list[Paced]:
    """Return the hosts with their messages; all begin within one period."""
    period_seconds, begin = STREAMS * ROWS / rows_per_second, time.time() + MAKING_SECONDS
    frames = round(seconds / period_seconds)
    shape = FrameShape("", MOMENTS, frames, streams=STREAMS, step_ns=round(period_seconds * 1e9))
    return [
        Paced(
            f"gpus-{index}", host.run_id, host.boot_id, host.messages,
            begin=begin + period_seconds * index / STREAMS, period_seconds=period_seconds,
        )
        for index, host in enumerate(hosts_of(seed, shape, round(begin * 1e9)))
    ]  # fmt: skip


async def _send(hosts: list[Paced], seconds: int) -> None:
    begin = min(host.begin for host in hosts)
    for second in range(1, seconds + 1):
        await asyncio.sleep(max(0.0, begin + second - time.time()))
        rows = ROWS * sum(host.sent for host in hosts)
        receipted = ROWS * sum(host.durable for host in hosts)
        cpu = time.process_time()
        print(json.dumps({"rows": rows, "gpu_rows": rows, "receipted_rows": receipted, "cpu_seconds": cpu}), flush=True)  # fmt: skip


async def _run(address: str, hosts: list[Paced], seconds: int) -> None:
    async with connections(address, len(hosts)) as channels:
        sending = asyncio.gather(
            *(host.run(channel) for host, channel in zip(hosts, channels, strict=True))
        )
        print(json.dumps({"connected": len(hosts)}), flush=True)
        await _send(hosts, seconds)
        await sending


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--rows-per-second", type=int, default=80_000)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    hosts = made(options.seed, options.rows_per_second, options.seconds)
    asyncio.run(_run(options.address, hosts, options.seconds))
    sys.stdin.read()


if __name__ == "__main__":
    main()
