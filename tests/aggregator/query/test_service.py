"""QueryService over the wire: its answers, its refusals, and its log."""

from __future__ import annotations

import asyncio
import io
import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.ipc
import pytest

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.query.log import QueryLog, QueryLogEntry
from gangline.aggregator.service import query
from gangline.contract.settings import SettingsError, load
from gangline.contract.wire import query_pb2, status_pb2
from gangline.contract.wire.query_pb2_grpc import QueryServiceStub
from tests.aggregator.auth.secured import Secured, bearer, status_of
from tests.aggregator.conftest import wait_until
from tests.aggregator.query.asking import children
from tests.aggregator.query.test_processes import DEAF, ENDLESS
from tests.processes import GUARD_SECONDS

pytestmark = pytest.mark.usefixtures("live_operators_files")


@asynccontextmanager
async def client(aggregator: Any) -> AsyncIterator[Any]:
    """A stub of the service, once there is a snapshot to ask."""
    snapshot = aggregator.query.pool.settings.folder / "operators.duckdb"
    await wait_until(snapshot.exists)
    assert snapshot.stat().st_size
    async with grpc.aio.insecure_channel(f"127.0.0.1:{aggregator.port}") as channel:
        yield QueryServiceStub(channel)  # type: ignore[no-untyped-call]


async def responses(call: Any) -> list[query_pb2.QueryResponse]:
    return [response async for response in call]


async def refusal(stub: Any, **fields: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await responses(stub.Query(query_pb2.QueryRequest(**fields)))
    return raised.value


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "queries.log").read_text().splitlines()]


@pytest.mark.slow
def test_no_answer_says_where_the_files_are(lab: Any) -> None:
    """DuckDB's stack trace, with the paths of its library, came as INVALID_ARGUMENT when an allocation failed."""

    async def way() -> None:
        async with lab.aggregator() as aggregator, client(aggregator) as stub:
            too_large = "SELECT reservoir_quantile(a, 0.5, 2000000000) FROM range(10) t(a)"
            error = await refusal(stub, sql=too_large)
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            message = str(error.details())
            assert "of memory" in message and not set(message) & {"/", "\n", "{"}
            missing = await refusal(stub, sql=f"FROM '{lab.folder.absolute()}/segments/a.parquet'")
            assert "segments/a.parquet" in str(missing.details())
            assert str(lab.folder) not in str(missing.details())

    asyncio.run(way())


@pytest.mark.slow
def test_an_answer_is_one_arrow_stream(lab: Any) -> None:
    """Schema, batches, and last how many rows, how old, whether cut; the log has who, what, how long."""

    async def way() -> None:
        async with lab.aggregator(query_rows_max=9000) as aggregator, client(aggregator) as stub:
            request = query_pb2.QueryRequest(
                sql="SELECT range AS n FROM range(10000)", row_limit=5000
            )
            got = await responses(stub.Query(request))
            assert all(r.arrow_stream and not r.HasField("summary") for r in got[:-1])
            joined = b"".join(r.arrow_stream for r in got)
            summary = got[-1].summary
            table = pa.ipc.open_stream(io.BytesIO(joined)).read_all()
            assert pa.ipc.open_stream(io.BytesIO(got[0].arrow_stream)).schema.names == ["n"]
            assert table.num_rows == summary.row_count == 5000
            assert summary.byte_count == len(joined)
            assert summary.truncated and summary.truncated_reason == "first 5000 rows"
            assert summary.snapshot_time.seconds > 0 and summary.elapsed.ToNanoseconds() > 0
            request = query_pb2.QueryRequest(
                sql="SELECT range AS n FROM range(10000)", format=query_pb2.ARROW_STREAM_ZSTD
            )
            got = await responses(stub.Query(request))
            assert got[-1].summary.row_count == 9000

    asyncio.run(way())
    first, second = log_of(lab.folder)
    assert first["sql"] == "SELECT range AS n FROM range(10000)" and first["outcome"] == "ok"
    assert first["rows"] == 5000 and first["size_bytes"] > 40000 and first["seconds"] > 0
    assert first["who"] == "local" and first["peer"].startswith("ipv4:127.0.0.1")
    assert first["cpu_seconds"] > 0
    assert second["rows"] == 9000
    assert stat.S_IMODE((lab.folder / "queries.log").stat().st_mode) == 0o600


@pytest.mark.slow
def test_a_question_of_a_moment_that_the_file_does_not_have_gets_a_newer_file(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SQL of `explain`, pasted at once, had 0 rows in 3 of 4 tries: the file was up to 64 s older than its moment."""
    monkeypatch.setattr(query, "WAIT_SECONDS_MAX", GUARD_SECONDS)  # on a busy machine

    async def way() -> query_pb2.QueryResponse:
        async with lab.aggregator(commit_seconds=60.0) as aggregator, client(aggregator) as stub:
            async with lab.agent(aggregator) as agent:
                agent.open()
                await agent.stream.write(agent.agent.message(1))
                await wait_until(lambda: aggregator.store.queue_bytes)
                sql = f"SELECT host FROM latest.gpu_1s WHERE '{datetime.now(UTC):%F %T.%f}' <> ''"
                got = await responses(stub.Query(query_pb2.QueryRequest(sql=sql)))
            return got[-1]

    end = asyncio.run(way()).summary
    assert end.row_count and not end.history_missing_reason


@pytest.mark.slow
def test_what_is_refused_says_why(lab: Any) -> None:
    """Each with its status: a client retries what may pass, and shows a person where the SQL is wrong."""

    async def way() -> None:
        async with lab.aggregator() as aggregator, client(aggregator) as stub:
            wrong = await refusal(stub, sql="SELECT *\nFORM hosts")
            assert wrong.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "sql: line 2, column 6:" in str(wrong.details()), wrong.details()
            assert "DELETE" in str((await refusal(stub, sql="DELETE FROM hosts")).details())
            assert "is empty" in str((await refusal(stub, sql=" ")).details())
            assert "format: 77" in str((await refusal(stub, sql="FROM hosts", format=77)).details())
            for seconds in (-1, 0, int(GUARD_SECONDS) + 1, 10**10):
                late = await refusal(stub, sql="FROM hosts", timeout={"seconds": seconds})
                assert late.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert f"up to {GUARD_SECONDS:g} s" in str(late.details())
            slow = await refusal(stub, sql=ENDLESS, timeout={"nanos": 200_000_000})
            assert slow.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "ran longer than 0.2 s" in str(slow.details())
            large = "SELECT count(*) FROM (SELECT unnest(range(900000000)))"
            big = await refusal(stub, sql=large, timeout={"seconds": 5})
            assert big.code() in (
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                grpc.StatusCode.DEADLINE_EXCEEDED,
            )
            (aggregator.query.pool.settings.folder / "operators.duckdb").unlink()
            gone = await refusal(stub, sql="FROM hosts")
            assert gone.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(way())
    outcomes = [line["outcome"] for line in log_of(lab.folder)]
    assert outcomes[:8] == ["refused"] * 8 and outcomes[8] == "time" and outcomes[-1] == "failed"


def test_without_an_operators_file_a_query_says_how_to_turn_it_on(lab: Any) -> None:
    """`ops_seconds = 0` never writes the file, not even at the end, and removes an old file."""
    file = lab.folder / "operators.duckdb"
    lab.folder.mkdir(exist_ok=True)
    file.write_bytes(b"of an earlier process")

    async def way() -> None:
        async with lab.aggregator(ops_seconds=0.0) as aggregator:
            address = f"127.0.0.1:{aggregator.port}"
            async with grpc.aio.insecure_channel(address) as channel:
                stub = QueryServiceStub(channel)  # type: ignore[no-untyped-call]
                none = await refusal(stub, sql="FROM hosts")
        assert none.code() is grpc.StatusCode.UNAVAILABLE
        assert "set ops_seconds = 15 and restart the aggregator" in str(none.details())

    asyncio.run(way())
    assert sorted(path.name for path in lab.folder.glob("operators*")) == []
    for wrong in ("0.4", "-1", "3601"):
        with pytest.raises(SettingsError, match="ops_seconds"):
            load(AggregatorConfig, assignments=[f"ops_seconds={wrong}"])


@pytest.mark.slow
def test_as_many_as_may_run(lab: Any, until: Any) -> None:
    """The fifth query is refused at once with a retry time, and succeeds after another has ended; nothing queues."""

    async def way() -> None:
        async with (
            lab.aggregator(query_running_max=2) as aggregator,
            client(aggregator) as stub,
        ):
            calls = [stub.Query(query_pb2.QueryRequest(sql=DEAF)) for _ in range(2)]
            tasks = [asyncio.ensure_future(responses(call)) for call in calls]
            await until(lambda: aggregator.query.pool.running_count == 2)
            busy = await refusal(stub, sql="FROM hosts")
            assert busy.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            trailing: dict[str, Any] = dict(busy.trailing_metadata())
            details = trailing["grpc-status-details-bin"]
            status = status_pb2.ErrorStatus.FromString(details)
            assert status.code == 8 and status.details[0].type_url.endswith("google.rpc.RetryInfo")
            retry = status_pb2.ErrorRetry.FromString(status.details[0].value)
            assert retry.retry_delay.seconds == 1
            calls[0].cancel()
            await until(lambda: aggregator.query.pool.running_count == 1)
            assert await responses(stub.Query(query_pb2.QueryRequest(sql="FROM hosts")))
            calls[1].cancel()
            await until(lambda: aggregator.query.pool.running_count == 0)
            await asyncio.gather(*tasks, return_exceptions=True)
            assert children(aggregator.query.pool.fork_server_pid) == []

    asyncio.run(way())
    assert sorted(line["outcome"] for line in log_of(lab.folder)) == [
        "busy",
        "cancelled",
        "cancelled",
        "ok",
    ]


@pytest.mark.slow
def test_one_operator_leaves_room_for_another(lab: Any, until: Any, secured: Secured) -> None:
    """An operator's dashboard held all four slots, and a colleague's queries at night were refused."""
    alice_login, two = (bearer(secured.token("operator", name)) for name in ("alice", "bob"))

    async def way() -> None:
        settings = secured.settings(client_certificates=False)
        async with (
            lab.aggregator(**settings) as aggregator,
            secured.channel(aggregator.port) as channel,
        ):
            await until((lab.folder / "operators.duckdb").exists)
            stub: Any = QueryServiceStub(channel)  # type: ignore[no-untyped-call]
            calls = [
                stub.Query(query_pb2.QueryRequest(sql=DEAF), metadata=alice_login) for _ in range(2)
            ]
            tasks = [asyncio.ensure_future(responses(call)) for call in calls]
            await until(lambda: aggregator.query.pool.running_count == 2)
            request = query_pb2.QueryRequest(sql="FROM hosts")
            code, message = await status_of(responses(stub.Query(request, metadata=alice_login)))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "2 queries of operator 'alice' run" in message
            assert await responses(stub.Query(request, metadata=two))
            for call in calls:
                call.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await until(lambda: aggregator.query.pool.running_count == 0)
            assert await responses(stub.Query(request, metadata=alice_login))

    asyncio.run(way())
    outcomes = [(line["who"], line["outcome"]) for line in log_of(lab.folder)]
    assert outcomes[0] == ("alice", "busy") and outcomes.count(("alice", "cancelled")) == 2


def test_who_may_not_ask_is_in_the_log(lab: Any, until: Any, secured: Secured) -> None:
    """A stolen scheduler's token tried SQL all night, and the query log had no entry of it.

    Refused callers must not fill that log and push out other entries, either.
    """
    token = bearer(secured.token("scheduler", "slurm"))

    async def way() -> None:
        settings = secured.settings(client_certificates=False)
        async with (
            lab.aggregator(**settings) as aggregator,
            secured.channel(aggregator.port) as channel,
        ):
            stub: Any = QueryServiceStub(channel)  # type: ignore[no-untyped-call]
            request = query_pb2.QueryRequest(sql="FROM hosts -- " + "x" * 1000)
            code, _ = await status_of(responses(stub.Query(request, metadata=token)))
            assert code is grpc.StatusCode.PERMISSION_DENIED
            bucket = aggregator.access_control._refusals._buckets["scheduler", "slurm"]
            bucket._level = -1e9  # as if it had been refused all night
            held = asyncio.ensure_future(responses(stub.Query(request, metadata=token)))
            await until(lambda: aggregator.access_control.refused_count == 2)
            held.cancel()
            await asyncio.gather(held, return_exceptions=True)

    asyncio.run(way())
    (line,) = log_of(lab.folder)
    assert (line["who"], line["role"], line["outcome"]) == ("slurm", "scheduler", "denied")
    assert line["sql"].startswith("FROM hosts") and len(line["sql"]) == 200


def test_one_agents_token_does_not_rewrite_the_log(lab: Any, secured: Secured) -> None:
    """Five lines a second, despite the refusals, pushed all entries of operators out of the log within a night."""
    token = bearer(secured.token("agent", "host-1"))

    async def way() -> None:
        settings = secured.settings(client_certificates=False)
        async with (
            lab.aggregator(**settings) as aggregator,
            secured.channel(aggregator.port) as channel,
        ):
            stub: Any = QueryServiceStub(channel)  # type: ignore[no-untyped-call]
            now = 1000.0
            aggregator.query._denials._seconds = lambda: now
            for now in (1000.0, 1000.0, 1000.1, 1019.9, 1020.1):
                call = stub.Query(query_pb2.QueryRequest(sql=f"SELECT {now}"), metadata=token)
                assert (await status_of(responses(call)))[0] is grpc.StatusCode.PERMISSION_DENIED

    asyncio.run(way())
    first, second = log_of(lab.folder)
    assert (first["sql"], second["sql"]) == ("SELECT 1000.0", "SELECT 1020.1")
    assert "3 more times" in second["message"] and "more" not in first["message"]


@pytest.mark.slow
def test_receipts_flow_while_bombs_run(lab: Any, until: Any) -> None:
    """Four operators with four bombs: readings go on being stored and receipted."""

    async def way() -> None:
        async with (
            lab.aggregator() as aggregator,
            client(aggregator) as stub,
            lab.agent(aggregator) as agent,
        ):
            calls = [stub.Query(query_pb2.QueryRequest(sql=DEAF)) for _ in range(4)]
            tasks = [asyncio.ensure_future(responses(call)) for call in calls]
            await until(lambda: aggregator.query.pool.running_count == 4)
            await agent.send(*(agent.agent.message(index) for index in range(1, 21)))
            assert agent.durable == set(range(1, 21))
            assert aggregator.query.pool.running_count == 4
            for call in calls:
                call.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(way())


def entry(sql: str) -> QueryLogEntry:
    return QueryLogEntry(0, "me", "operator", "ipv4:1", sql, 0.1, 1, 2, "ok", "", 0.1, 3)


def test_the_log_is_bounded(tmp_path: Path) -> None:
    """A dashboard that asks every second must not fill the disk; a statement of a megabyte is cut."""
    log = QueryLog(tmp_path, 20_000)
    for index in range(200):
        log.append(entry(f"SELECT {index}\n{'x' * 10_000}"))
    log.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["queries.log", *(f"queries.log.{n}" for n in (1, 2, 3))]
    assert all(path.stat().st_size <= 20_000 for path in tmp_path.iterdir())
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.iterdir())
    last = log_of(tmp_path)[-1]
    assert last["sql"].startswith("SELECT 199\n") and last["sql_characters"] == 10_011


def test_a_disk_that_takes_no_log_ends_no_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "gone"
    log = QueryLog(folder, 20_000)
    for _ in range(3):
        log.append(entry("SELECT 1"))
    assert log.lost_lines == 3 and caplog.text.count("cannot be written") == 1
    assert "Traceback" not in caplog.text
    folder.mkdir()
    log.append(entry("SELECT 2"))
    log.close()
    assert log.lost_lines == 0 and "3 lines could not be written" in caplog.text
    assert log_of(folder)[0]["sql"] == "SELECT 2"
