"""Server side of the ScoreNodes bench, each role a process of its own: `score` or `echo`.

    python -m bench.score_server score --hosts 10000
    python -m bench.score_server echo --bytes 300000

Prints its port and serves until its standard input closes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import replace
from typing import Any

import grpc

from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest.reading import received
from gangline.aggregator.judgement.judge import Judgement, judge
from gangline.aggregator.service.errors import Errors
from gangline.aggregator.service.score import ScoreService
from gangline.fingerprints import frames
from gangline.fingerprints.block import Block
from gangline.fingerprints.catalogue import index_of
from gangline.fingerprints.frames import Stamp
from gangline.fingerprints.wire.score_pb2_grpc import add_ScoreServiceServicer_to_server

GPUS = 8
#: Hosts whose score is another one each second, where that is asked for.
CHANGES = 100
ECHO = "/bench.Echo/Echo"


class Holder:
    """What ScoreService answers from."""

    def __init__(self, snapshot: Judgement) -> None:
        self.snapshot = snapshot


def judged(hosts: int) -> Judgement:
    """Return a snapshot of *hosts* hosts of eight GPUs that all compute."""
    fleet = Fleet()
    now = time.time_ns()
    for host in range(hosts):
        name = f"node-{host:05d}"
        fleet.register(name, simulated=True, boot_id=bytes(16), devices=())
        block = Block("gpu_1s", [f"GPU-{host:05d}-{gpu}" for gpu in range(GPUS)])
        for gpu in range(GPUS):
            block.put_float(index_of("gpu.sm_clock_hertz"), gpu, 1.7e9)
            block.put_float(index_of("gpu.power_watts"), gpu, 550.0)
            block.put_float(index_of("gpu.utilization_ratio"), gpu, 1.0)
        for second in range(8):
            at = now + second * 10**9
            stamp = Stamp(bytes(16), bytes(16), second, 10**12 + second * 10**9, at)
            fleet.observe(name, received(frames.encode(stamp, (block,))), at)
    return judge(fleet, now + 8 * 10**9, None)


async def _change(holder: Holder) -> None:
    """Let every hundredth host be another one each second."""
    while True:
        await asyncio.sleep(1.0)
        before = holder.snapshot
        columns = before.columns._replace(score=before.columns.score.copy())
        columns.score[:: len(columns.score) // CHANGES] = 0.5 + 0.1 * (before.version % 2)
        now_ns, version = time.time_ns(), before.version + 1
        holder.snapshot = replace(before, version=version, computed_ns=now_ns, columns=columns)


class _Echo(grpc.GenericRpcHandler):
    """Answers every call with the same bytes, serialised already."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def answer(request: bytes, context: object) -> bytes:
            return self._answer

        return grpc.unary_unary_rpc_method_handler(answer)


async def _serve(options: argparse.Namespace) -> None:
    server = grpc.aio.server(interceptors=[Errors()])
    tasks: list[asyncio.Task[None]] = []
    if options.role == "score":
        holder = Holder(judged(options.hosts))
        if options.changing:
            tasks.append(asyncio.create_task(_change(holder)))
        add_ScoreServiceServicer_to_server(ScoreService(holder), server)  # type: ignore[no-untyped-call]
    else:
        server.add_generic_rpc_handlers((_Echo(bytes(options.bytes)),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)
    for task in tasks:
        task.cancel()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["score", "echo"])
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--changing", action="store_true", help="other scores each second")
    parser.add_argument("--bytes", type=int, default=0)
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
