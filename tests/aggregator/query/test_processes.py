"""A query's process: its limits, its end, and that its failure does not hurt the client."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gangline.aggregator.process_limits import SESSION_NICE, query_processors
from gangline.aggregator.query.messages import (
    AnswerSummary,
    NoSnapshot,
    QueryFailed,
    QueryOutOfMemory,
    QueryOutOfTime,
    QueryRefused,
    Question,
    TooManyQueries,
)
from gangline.aggregator.query.pool import QueryCost
from tests.aggregator.query.asking import (
    MEMORY_BYTES_MAX,
    PATIENT_SECONDS,
    ask,
    ask_all,
    asked,
    children,
    threads,
)

#: Never ends by itself, takes little memory, and minds the interrupt.
ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range < 0"
#: Does not mind it.
DEAF_CALL = "levenshtein(repeat('a', 200000), repeat('b', 200000) || range)"
DEAF = f"SELECT {DEAF_CALL} FROM range(100)"

Until = Callable[[Callable[[], Any]], Awaitable[Any]]

_OWNER = """
import asyncio, sys
from pathlib import Path
from tests.aggregator.query.asking import asked, ask
async def way():
    async with asked(Path(sys.argv[1])) as processes:
        print(processes.fork_server_pid, flush=True)
        await ask(processes, sys.argv[2])
asyncio.run(way())
"""


def status(pid: int) -> dict[str, str]:
    lines = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: value.strip() for name, _, value in lines}


def limits(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    return {line[:26].strip(): line[26:47].strip() for line in lines}


def policies(pid: int) -> set[int]:
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir(f"/proc/{pid}/task")}


def test_a_process_goes_last_and_cannot_write(snapshot: Path, until: Until) -> None:
    """A query must not slow the store: its process has the lowest CPU priority, and is the first to
    die when memory runs out.

    Four bombs took half of two processors, each at the lowest priority: Linux divides CPU time by
    session first, and their session had the aggregator's share.
    """

    async def way() -> None:
        async with asked(snapshot) as processes:
            task = asyncio.create_task(ask(processes, ENDLESS))
            (pid,) = await until(lambda: children(processes.fork_server_pid))
            await until(lambda: limits(pid)["Max open files"] == "1024")
            assert os.getpriority(os.PRIO_PROCESS, pid) == 19
            assert policies(pid) == {os.SCHED_IDLE}
            assert os.sched_getaffinity(pid) == query_processors()
            assert len(os.sched_getaffinity(0)) == 1 or query_processors() < os.sched_getaffinity(0)
            assert os.getsid(pid) == processes.fork_server_pid
            share = Path(f"/proc/{pid}/autogroup")
            assert not share.exists() or share.read_text().endswith(f" nice {SESSION_NICE}\n")
            assert status(pid)["NoNewPrivs"] == "1"
            assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "1000"
            process_limits = limits(pid)
            assert (
                process_limits["Max file size"] == "0"
                and process_limits["Max core file size"] == "0"
            )
            assert (
                MEMORY_BYTES_MAX
                < int(process_limits["Max address space"])
                < MEMORY_BYTES_MAX + (1 << 30)
            )
            await until(lambda: limits(pid)["Max cpu time"].isdecimal())
            assert threads(processes.fork_server_pid) == 1, (
                "a fork of a process with threads may hang"
            )
            ours = os.getpriority(os.PRIO_PROCESS, 0)
            assert os.getpriority(os.PRIO_PROCESS, processes.fork_server_pid) == ours
            os.kill(pid, signal.SIGKILL)
            reply = await task
            assert isinstance(reply.error, QueryOutOfMemory) and "ran out of memory" in str(
                reply.error
            )
            assert (await ask(processes, "SELECT 1")).summary

    asyncio.run(way())


def test_a_process_has_no_secret_and_no_descriptor_of_others(
    snapshot: Path, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hole in DuckDB would have given a foreign statement the token in the environment, and the
    descriptors of other queries.
    """
    monkeypatch.setenv("GANGLINE_TOKEN", "gangline_000000000000_secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret too")

    async def way() -> None:
        async with asked(snapshot) as processes:
            task = asyncio.create_task(ask(processes, ENDLESS))
            (pid,) = await until(lambda: children(processes.fork_server_pid))
            await until(lambda: limits(pid)["Max cpu time"].isdecimal())
            for process_id in (pid, processes.fork_server_pid):
                assert b"secret" not in Path(f"/proc/{process_id}/environ").read_bytes()
            open_files = []
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # it is just opening DuckDB
                    open_files.append(os.readlink(descriptor))
            assert sum(name.startswith("socket:") for name in open_files) == 1
            os.kill(pid, signal.SIGKILL)
            await task

    asyncio.run(way())


def test_closing_the_answer_ends_the_process(snapshot: Path, until: Until) -> None:
    """Ctrl-C frees the slot for the next query, even if the running query ignores interrupts."""

    async def way() -> None:
        async with asked(snapshot, running_max=1) as processes:
            for sql in (DEAF, "FROM range(100000000000)"):
                cost = QueryCost()
                answer = processes.query(Question(sql, PATIENT_SECONDS), cost)
                task = asyncio.ensure_future(anext(answer))
                await until(lambda: children(processes.fork_server_pid))
                with pytest.raises(TooManyQueries, match="too many queries running"):
                    await anext(processes.query(Question("SELECT 1", 1.0), QueryCost()))
                if sql == DEAF:
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                else:
                    await task
                await answer.aclose()
                assert processes.running_count == 0 and children(processes.fork_server_pid) == []
                assert cost.cpu_seconds > 0 and cost.rss_bytes_max > 1 << 20
            assert (await ask(processes, "SELECT 1")).summary

    asyncio.run(way())


@pytest.mark.slow
def test_a_dead_nursery_costs_only_what_ran(snapshot: Path, until: Until) -> None:
    """A cleanup script kills the nursery: running queries fail with a message, their processes end,
    the next query is answered.
    """

    async def way() -> None:
        async with asked(snapshot) as processes:
            task = asyncio.create_task(ask(processes, DEAF))
            (pid,) = await until(lambda: children(processes.fork_server_pid))
            first = processes.fork_server_pid
            os.kill(first, signal.SIGKILL)
            reply = await task
            assert isinstance(reply.error, QueryFailed) and "Run the query again" in str(
                reply.error
            )
            await until(lambda: not Path(f"/proc/{pid}").exists())
            assert (await ask(processes, "SELECT 1")).summary
            assert processes.fork_server_pid != first

    asyncio.run(way())


@pytest.mark.slow
def test_nothing_outlives_the_aggregator(snapshot: Path, until: Until) -> None:
    async def way() -> None:
        command = [sys.executable, "-c", _OWNER, str(snapshot), DEAF]
        root = Path(__file__).parents[3]
        owner = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=root
        )
        assert owner.stdout
        nursery = int(await owner.stdout.readline())
        (pid,) = await until(lambda: children(nursery))
        owner.kill()
        await until(lambda: not Path(f"/proc/{pid}").exists())
        await until(lambda: not Path(f"/proc/{nursery}").exists())
        await owner.wait()

    asyncio.run(way())


@pytest.mark.slow
def test_each_question_sees_the_newest_snapshot(snapshot: Path, tmp_path: Path) -> None:
    """The file is renewed by rename every 15 s: a process must not answer from an old file."""
    folder = tmp_path / "data"
    folder.mkdir()

    async def way() -> None:
        async with asked(folder) as processes:
            assert isinstance((await ask(processes, "FROM hosts")).error, NoSnapshot)
            for count in (1, 2):
                shutil.copy(snapshot / "operators.duckdb", folder / "new")
                with duckdb.connect(str(folder / "new")) as connection:
                    connection.execute(f"CREATE TABLE mark AS SELECT {count} AS a")
                (folder / "new").replace(folder / "operators.duckdb")
                reply = await ask(processes, "FROM mark")
                assert reply.table.to_pydict() == {"a": [count]}
                assert reply.summary and reply.summary.taken_us > 10**15
            (folder / "operators.duckdb").write_bytes(b"no database" * 1000)
            error = (await ask(processes, "FROM mark")).error
            assert isinstance(error, QueryFailed) and "cannot be opened" in str(error)

    asyncio.run(way())


@pytest.mark.slow
def test_limits_of_an_answer(snapshot: Path) -> None:
    """An answer is cut at rows or bytes, with a notice; an answer that just fits is complete."""
    wide = "SELECT repeat('x', 1000) AS x FROM range(3000)"
    exact, more, fits, bytes_cut, packed = ask_all(
        snapshot, ["FROM range(5000)", "FROM range(5001)", wide, wide, wide], at_once=1
    )[:5]
    assert exact.summary and (exact.summary.rows, exact.summary.truncated_reason) == (5000, "")
    assert more.summary and more.summary.rows == more.table.num_rows == 5000
    assert more.summary.truncated_reason == "first 5000 rows"
    assert fits.summary == bytes_cut.summary or fits.table.num_rows == 3000
    (cut,) = ask_all(snapshot, [wide], bytes_max=1 << 20)
    assert cut.summary and 0 < cut.summary.rows == cut.table.num_rows < 3000
    assert cut.summary.size_bytes == len(cut.arrow) <= 1 << 20
    assert cut.summary.truncated_reason.endswith("an answer has at most 1 MiB")
    (packed,) = ask_all(snapshot, [wide], compressed=True)
    assert packed.table.equals(fits.table) and len(packed.arrow) < len(fits.arrow) / 10


@pytest.mark.slow
def test_trouble_after_the_first_rows(snapshot: Path) -> None:
    """Rows were already sent when a cast fails, a limit is met, or memory ends: the summary still has the error."""
    late = "CASE WHEN range > 900000 THEN {} ELSE 0 END AS late FROM range(1000000)"
    cast, interrupted, deaf = ask_all(
        snapshot,
        [
            f"SELECT {late.format('(range || chr(120))::INT')}",
            "SELECT a.range FROM range(10000000) a, range(100000) b WHERE (a.range + b.range) % 999983 = 1",
            f"SELECT range, if(range < 4000, 0, {DEAF_CALL}) FROM range(5000)",
        ],
        seconds=2.0,
        rows_max=0,
        bytes_max=0,
    )
    assert isinstance(cast.error, QueryRefused | QueryOutOfTime)
    assert isinstance(cast.error, QueryOutOfTime) or "Could not convert" in str(cast.error)
    assert "exception_type" not in str(cast.error), "words, not DuckDB's JSON"
    for reply in (interrupted, deaf):
        assert isinstance(reply.error, QueryOutOfTime), reply.error


def test_enumerations_and_every_kind_of_value_travel(snapshot: Path) -> None:
    """Dictionaries precede their batch, types nest: the received parts are a single Arrow stream."""
    sql = (
        "SELECT 'b'::ENUM('a', 'b') AS e, {'a': [range, NULL]} AS s, map {'k': range} AS m, range::HUGEINT AS h, "
        "INTERVAL 1 DAY AS i, 'x'::BLOB AS b, uuid() AS u, TIMESTAMPTZ '2026-01-01 00:00:00+00' AS t, "
        "'nan'::FLOAT AS f, NULL AS n, DATE '2026-01-01' AS d, 1.5::DECIMAL(9, 2) AS c FROM range(5000)"
    )
    (reply,) = ask_all(snapshot, [sql])
    assert reply.error is None and isinstance(reply.summary, AnswerSummary)
    assert reply.table.num_rows == reply.summary.rows == 5000
    assert reply.table["e"][4999].as_py() == "b" and reply.table["s"][1].as_py() == {"a": [1, None]}
