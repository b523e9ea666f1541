"""A query through the Query call (a separate process, over gRPC) against the same query on the file
in process.

Both open the newest snapshot for each query, like an operator's next question. The difference is
the price of a query that can be killed. Also measured: the memory of the spare process that makes
the call fast.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import grpc

from bench.measure import Result, percentile, pss_bytes
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.server import Aggregator
from gangline.contract.wire import query_pb2
from gangline.contract.wire.query_pb2_grpc import QueryServiceStub

QUERIES = 60
#: A small answer, and an answer dominated by the transfer of rows.
SMALL, LARGE = "FROM ops.worst(n := 20)", "SELECT range AS n, hash(range) AS h FROM range(500000)"
FILE = "operators.duckdb"


def run(seed: int) -> list[Result]:
    """Return the times of both queries, and the memory of the spare. *seed* is ignored."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(Path(folder)))


async def _measure(folder: Path) -> list[Result]:
    config = AggregatorConfig(listen="127.0.0.1:0", data=folder, ops_seconds=1.0)
    aggregator = Aggregator(config)
    await aggregator.start()
    try:
        while not (folder / FILE).exists():
            await asyncio.sleep(0.05)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{aggregator.port}") as channel:
            stub: Any = QueryServiceStub(channel)  # type: ignore[no-untyped-call]
            results = [await _against(stub, folder / FILE, sql) for sql in (SMALL, LARGE)]
        fork_server_bytes = pss_bytes([aggregator.query.pool.fork_server_pid])
        bare = await _bare_bytes()
    finally:
        await aggregator.close()
    notes = "proportional set size; kept ready, so that a query does not load DuckDB and Arrow"
    return [
        *results,
        Result("memory of the spare process", fork_server_bytes / 2**20, "MiB", "a bare interpreter", bare / 2**20, notes),
    ]  # fmt: skip


async def _against(stub: Any, file: Path, sql: str) -> Result:
    service_seconds, duckdb_seconds = [], []
    for index in range(QUERIES + 3):
        begin = time.perf_counter()
        rows = [response async for response in stub.Query(query_pb2.QueryRequest(sql=sql))][
            -1
        ].summary
        between = time.perf_counter()
        count = _in_process(file, sql)
        end = time.perf_counter()
        assert rows.row_count == count
        if index >= 3:
            service_seconds.append(between - begin)
            duckdb_seconds.append(end - between)
    notes = f"median of {QUERIES}, alternating; through the service p99 {percentile(service_seconds, 0.99) * 1e3:.0f} ms"
    return Result(
        f"`{sql[:30]}` through Query", percentile(service_seconds, 0.5) * 1e3, "ms",
        "opening the file and querying in process", percentile(duckdb_seconds, 0.5) * 1e3, notes,
    )  # fmt: skip


def _in_process(file: Path, sql: str) -> int:
    with duckdb.connect(str(file), read_only=True, config={"threads": 2}) as connection:
        return int(connection.sql(sql).to_arrow_table().num_rows)


async def _bare_bytes() -> int:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE
    )
    try:
        await asyncio.sleep(0.5)
        return pss_bytes([child.pid])
    finally:
        child.kill()
        await child.wait()
