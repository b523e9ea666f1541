"""Server side of the ScoreNodes benchmark, one process per role: `scores` or `echo`.

    python -m bench.score_server scores --hosts 10000
    python -m bench.score_server echo --bytes 300000

`scores` is an aggregator with readings that change each second; it judges after the line `judge` on
standard input. Each prints a line of JSON once it serves, and exits when standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from bench import judging
from gangline.aggregator import judge_loop as turns
from gangline.aggregator import server as aggregator_server
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.judge_loop import JudgeLoop
from gangline.aggregator.scoring.evaluate import Judgement, evaluate
from gangline.aggregator.server import Aggregator

#: Number of hosts whose score changes with each judgement.
CHANGES = 100
ECHO = "/bench.Echo/Echo"
#: A load generator connects its hosts one after another, and does not retry when it has to wait.
RECONNECTS = 100_000


class ScoreJudge(JudgeLoop):
    """Judges once, and each second after the line `judge` was received."""

    is_requested = False

    async def turn(self) -> None:
        if ScoreJudge.is_requested or self.snapshot_holder.snapshot is None:
            await super().turn()


def _changing(*given: Any, **named: Any) -> Judgement:
    """Judge, and replace the scores of some hosts each time, in place of faults that come and go."""
    judgement = evaluate(*given, **named)
    columns = judgement.columns._replace(score=judgement.columns.score.copy())
    columns.score[:: max(len(columns.score) // CHANGES, 1)] = 0.5 + 0.1 * (judgement.version % 2)
    return replace(judgement, columns=columns)


async def _move(aggregator: Aggregator) -> None:
    second = 0
    while True:
        await asyncio.sleep(1.0)
        second = max(second + 1, (time.time_ns() - judging.START_NS) // 10**9)
        if ScoreJudge.is_requested:
            judging.move(aggregator.fleet, second)


def _declared_places(folder: Path, hosts: int) -> str:
    """Write each host's rack (of 8), leaf (32), spine (512), power domain (16); return the file."""
    path = folder / "places.csv"
    rows = [
        f"host-{index:05d},r{index // 8},l{index // 32},s{index // 512},p{index // 16}"
        for index in range(hosts)
    ]
    path.write_text("\n".join(["host,rack,leaf,spine,power_domain", *rows, ""]))
    return str(path)


@contextmanager
def _made(hosts: int, *, places: bool = False) -> Iterator[Aggregator]:
    with tempfile.TemporaryDirectory() as folder:
        config = AggregatorConfig(
            declared=_declared_places(Path(folder), hosts) if places else "",
            listen="127.0.0.1:0",
            listen_scores="127.0.0.1:0",
            data=Path(folder),
            reconnects_per_second=RECONNECTS,
        )
        aggregator = Aggregator(config)
        judging.START_NS = time.time_ns()
        aggregator.fleet = judging.fill(hosts)
        turns.evaluate = _changing  # type: ignore[attr-defined]
        aggregator_server.JudgeLoop = ScoreJudge  # type: ignore[attr-defined]
        yield aggregator


async def _scores(hosts: int, *, places: bool = False) -> None:
    with _made(hosts, places=places) as aggregator:
        await aggregator.start()
        assert aggregator.scores is not None
        while not aggregator.scores.version:
            await asyncio.sleep(0.05)
        process = aggregator.scores
        facts = {"port": process.port, "whole": aggregator.port, "pid": process.pid}
        await serve(aggregator, facts)


async def serve(aggregator: Aggregator, facts: Mapping[str, int]) -> None:
    """Print *facts*; serve until standard input ends, and judge after the line `judge`."""
    moving = asyncio.create_task(_move(aggregator))
    print(json.dumps(facts), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        ScoreJudge.is_requested = line == "judge\n"
    moving.cancel()
    await aggregator.close()


class _Echo(grpc.GenericRpcHandler):
    """Answers every call with the same serialized bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def answer(request: bytes, context: object) -> bytes:
            return self._answer

        return grpc.unary_unary_rpc_method_handler(answer)


async def _echo(size: int) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Echo(bytes(size)),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(json.dumps({"port": port}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["scores", "echo"])
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--bytes", type=int, default=0)
    parser.add_argument("--places", action="store_true")
    options = parser.parse_args()
    if options.role == "scores":
        asyncio.run(_scores(options.hosts, places=options.places))
    else:
        asyncio.run(_echo(options.bytes))


if __name__ == "__main__":
    main()
