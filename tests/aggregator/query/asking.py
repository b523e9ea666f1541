"""A snapshot to ask, and questions through the processes of the service."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from gangline.aggregator.query import sandbox
from gangline.aggregator.query.messages import AnswerSummary, QueryError, QuerySettings, Question
from gangline.aggregator.query.pool import QueryCost, QueryPool
from tests.aggregator.conftest import Agent, Connection, Lab, with_operators_file
from tests.processes import GUARD_SECONDS

MEMORY_BYTES_MAX = 256 << 20
#: Long enough for any machine: a busy test machine must not time out a query that should succeed.
PATIENT_SECONDS = GUARD_SECONDS
#: Rows and bytes of an answer here.
ROWS_MAX, BYTES_MAX = 5000, 4 << 20


@dataclass
class Reply:
    arrow: bytes = b""
    summary: AnswerSummary | None = None
    error: QueryError | None = None
    cost: QueryCost = field(default_factory=QueryCost)

    @property
    def table(self) -> Any:
        return pa.ipc.open_stream(io.BytesIO(self.arrow)).read_all()


async def ask(processes: QueryPool, sql: str, **limits: Any) -> Reply:
    values = {"seconds": PATIENT_SECONDS, "rows_max": ROWS_MAX, "bytes_max": BYTES_MAX, **limits}
    reply = Reply()
    try:
        async for piece in processes.query(Question(sql, **values), reply.cost):
            if isinstance(piece, AnswerSummary):
                reply.summary = piece
            else:
                reply.arrow += piece
    except QueryError as error:
        reply.error = error
    return reply


@asynccontextmanager
async def asked(folder: Path, running_max: int = 4) -> AsyncIterator[QueryPool]:
    pool = QueryPool(QuerySettings(folder, MEMORY_BYTES_MAX, 2), running_max)
    pool.start()
    try:
        yield pool
    finally:
        await pool.close()


def ask_all(folder: Path, questions: Sequence[str], at_once: int = 4, **limits: Any) -> list[Reply]:
    """Ask them all, *at_once* at a time, and see that no process is left."""

    async def way() -> list[Reply]:
        async with asked(folder, at_once) as processes:
            places = asyncio.Semaphore(at_once)

            async def one(sql: str) -> Reply:
                async with places:
                    return await ask(processes, sql, **limits)

            replies = await asyncio.gather(*map(one, questions))
            nursery = processes.fork_server_pid
            assert children(nursery) == [] and processes.running_count == 0
        assert not Path(f"/proc/{nursery}").exists()
        return replies

    return asyncio.run(way())


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def make_snapshot(folder: Path) -> Path:
    """Return a data folder with a host, two GPUs and the operators' file over them."""

    async def way() -> None:
        lab = Lab(folder)
        async with lab.aggregator() as aggregator:
            agent = Connection(aggregator.port, Agent())
            await agent.register()
            await agent.send(agent.agent.message(1), agent.agent.message(2))
            await agent.close()
            # An aggregator without time at its end writes no file, and does not wait for a running
            # write.
            await asyncio.to_thread(aggregator.store.write_ops)

    with with_operators_file():
        asyncio.run(way())
    assert (folder / "operators.duckdb").exists()
    return folder


def rows_of(connection: Any, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return (column names, rows) of a query on a connection of `fences.opened`, checked like any query."""
    sandbox.check(connection, sql)
    cursor = connection.execute(sql)
    return [column[0] for column in cursor.description or ()], cursor.fetchall()
