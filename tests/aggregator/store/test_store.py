"""The store's file: refusals with their message, kept rows, and deleted rows."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import duckdb
import pytest

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.model import Finding
from gangline.aggregator.store import frame_rows, rows
from gangline.aggregator.store.journal import StoredEvent
from gangline.aggregator.store.live_tables import HOUR_NS, LiveTables
from gangline.aggregator.store.maintenance.consistent_view import hold_checkpoints
from gangline.aggregator.store.queue import Pending
from gangline.aggregator.store.rows import HostRecord
from gangline.aggregator.store.store import Store
from gangline.aggregator.store.store_folder import StoreError
from gangline.aggregator.store.writer import Writer
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.processes import GUARD_SECONDS

NOW_NS = 1_795_168_800 * 1_000_000_000  # 2026-11-20 10:00 UTC


@pytest.fixture(scope="module", autouse=True)
def stores_are_copied() -> None:
    """Create stores as in service, instead of copying a template."""


@contextmanager
def opened(folder: Path, wall_ns: Callable[[], int], **changes: Any) -> Iterator[Store]:
    values = {"commit_seconds": 0.01, "ops_seconds": 3600.0, **changes}
    store = Store.open(folder, AggregatorConfig(data=folder, **values), wall_ns, wall_ns)
    try:
        yield store
    finally:
        store.close()


def put(store: Store, sequence: int, block: Block | None = None, host: str = "a") -> None:
    """Submit a frame and wait for its receipt."""
    done = threading.Event()
    if block is None:
        block = Block("host_1s", ["host"])
        block.put_float(0, 0, float(sequence))
    stamp = frames.Stamp(b"r" * 16, b"b" * 16, sequence, 1_000_000_000, NOW_NS)
    frame = read_frame(frames.encode(stamp, (block,)))
    assert store.submit_frame(host, frame, NOW_NS, lambda _: done.set())
    assert done.wait(GUARD_SECONDS)


def ask(folder: Path, query: str) -> list[Any]:
    with duckdb.connect(str(folder / "gangline.duckdb"), read_only=True) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.parametrize(("ahead", "stored_before"), [(True, 0), (False, 1)])
def test_what_is_ahead_does_not_wait_for_what_was_received(
    tmp_path: Path, ahead: bool, stored_before: int
) -> None:
    """Advice waited for the commit of a second's readings; a barrier still waits for them."""
    count = "SELECT count(*) FROM findings"
    with opened(tmp_path, lambda: NOW_NS, commit_seconds=10.0) as store:
        store.submit_findings([Finding("a", "clock.offset", "", "it is late", NOW_NS)])
        done = store.in_transaction(lambda base: base.execute(count).fetchall(), ahead=ahead)
        assert done == [(stored_before,)]
        assert store.in_transaction(lambda base: base.execute(count).fetchall()) == [(1,)]


def test_work_runs_behind_what_was_received_before_it_also_during_a_commit(tmp_path: Path) -> None:
    """A query that came after a finding, during a commit, was answered without the finding."""
    seen: list[Any] = []
    finding = Finding("a", "clock.offset", "", "it is late", NOW_NS)

    def count(connection: Any) -> None:
        seen.append(connection.execute("SELECT count(*) FROM findings").fetchone())

    with opened(tmp_path, lambda: NOW_NS) as store:
        commit = store._writer.commit

        def slow_commit(pending: Pending, now_ns: int) -> None:
            store._writer.commit = commit  # type: ignore[method-assign]
            commit(pending, now_ns)
            store.submit_findings([finding])
            store._submit_work(lambda: store._writer.transact(count))

        store._writer.commit = slow_commit  # type: ignore[method-assign]
        put(store, 1)
        store.in_transaction(lambda _: None)
    assert seen == [(1,)]


@pytest.mark.slow
def test_no_key_and_no_index_anywhere(tmp_path: Path) -> None:
    """DuckDB 1.5.5 corrupts an index when it replays a WAL with ALTER: the store has none."""
    with opened(tmp_path, lambda: NOW_NS) as store:
        put(store, 1)
    assert ask(tmp_path, "SELECT index_name FROM duckdb_indexes()") == []
    keys = "SELECT * FROM duckdb_constraints() WHERE constraint_type <> 'NOT NULL'"
    assert ask(tmp_path, keys) == []


def test_a_newer_store_is_refused_unchanged(tmp_path: Path) -> None:
    """After a downgrade the older program must not write into an unknown schema."""
    with opened(tmp_path, lambda: NOW_NS):
        pass
    with duckdb.connect(str(tmp_path / "gangline.duckdb")) as connection:
        connection.execute("UPDATE gangline_store SET schema_version = 99")
    before = (tmp_path / "gangline.duckdb").read_bytes()
    with pytest.raises(StoreError, match=r"version 99, this gangline knows up to \d+.*unchanged"):
        Store.open(tmp_path)
    assert (tmp_path / "gangline.duckdb").read_bytes() == before


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    """--data names a folder with another program's database."""
    with duckdb.connect(str(tmp_path / "gangline.duckdb")) as connection:
        connection.execute("CREATE TABLE payroll (name VARCHAR)")
    with pytest.raises(StoreError, match=r"not a Gangline store .it holds payroll.*--data"):
        Store.open(tmp_path)


def test_no_database_file_is_refused(tmp_path: Path) -> None:
    """A file that was truncated, or was never a database, stays unchanged."""
    path = tmp_path / "gangline.duckdb"
    path.write_bytes(b"SQLite format 3\0" * 100)
    with pytest.raises(StoreError, match=r"not a DuckDB file.*unchanged"):
        Store.open(tmp_path)
    assert path.read_bytes() == b"SQLite format 3\0" * 100


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """--data names a file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="data folder cannot be used"):
        Store.open(tmp_path / "file")


@pytest.mark.slow
def test_a_refused_store_frees_the_folder(tmp_path: Path) -> None:
    """A refusal releases the lock, so that the next start works."""
    path = tmp_path / "gangline.duckdb"
    path.write_bytes(b"x" * 100)
    with pytest.raises(StoreError):
        Store.open(tmp_path)
    path.unlink()
    with opened(tmp_path, lambda: NOW_NS) as store:
        put(store, 1)


@pytest.mark.slow
def test_hours_go_by_age(tmp_path: Path) -> None:
    """Retention drops whole hours, and the view covers the rest."""
    now = [NOW_NS]
    with opened(tmp_path, lambda: now[0], retention_hours=2) as store:
        for hour in range(5):
            now[0] = NOW_NS + hour * HOUR_NS + HOUR_NS // 20
            put(store, hour)
    tables = ask(tmp_path, "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'hours'")
    assert sorted(name for (name,) in tables) == [
        "host_1s__202611201200",
        "host_1s__202611201300",
        "host_1s__202611201400",
    ]
    values = ask(tmp_path, "SELECT cpu_user_ratio FROM readings.host_1s ORDER BY ALL")
    assert values == [(2.0,), (3.0,), (4.0,)]


@pytest.mark.slow
def test_an_hour_table_of_an_older_version_gains_columns(tmp_path: Path) -> None:
    """Upgraded within the hour: the old version's table lacks new columns."""
    with opened(tmp_path, lambda: NOW_NS) as store:
        put(store, 1)
    with duckdb.connect(str(tmp_path / "gangline.duckdb")) as connection:
        connection.execute("ALTER TABLE hours.host_1s__202611201000 DROP COLUMN cpu_user_ratio")
    with opened(tmp_path, lambda: NOW_NS) as store:
        put(store, 2)
    values = ask(tmp_path, "SELECT cpu_user_ratio FROM readings.host_1s ORDER BY ALL NULLS FIRST")
    assert values == [(None,), (2.0,)]


class Counted:
    """A connection that counts queries of DuckDB's catalogue."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection, self.asked = connection, 0

    def execute(self, query: str, *more: Any) -> duckdb.DuckDBPyConnection:
        self.asked += "FROM duckdb_" in query
        return self._connection.execute(query, *more)


@pytest.mark.slow
def test_a_start_asks_no_more_of_duckdb_for_more_that_is_stored(tmp_path: Path) -> None:
    """One query over all columns per five minutes of each table: a start took 13 s of CPU."""
    now = [NOW_NS]
    query_counts = list[int]()
    for part in range(2):
        now[0] = NOW_NS + part * HOUR_NS // 12
        with opened(tmp_path, lambda: now[0]) as store:
            put(store, part)
        with duckdb.connect(str(tmp_path / "gangline.duckdb")) as connection:
            counted = Counted(connection)
            LiveTables(counted, tmp_path).reload()  # type: ignore[arg-type]
            query_counts.append(counted.asked)
            ((stored,),) = connection.execute("SELECT count(*) FROM readings.host_1s").fetchall()
            assert stored == part + 1
    assert query_counts[0] == query_counts[-1]


@pytest.mark.slow
def test_what_is_stored_under_a_table_s_former_name_is_found_under_that_of_now(
    tmp_path: Path,
) -> None:
    """The month before the upgrade was hidden behind the table's new name."""
    now = [NOW_NS]
    block = Block("agent_10s", ["agent"])
    with opened(tmp_path, lambda: now[0]) as store:
        put(store, 1, block)
    with duckdb.connect(str(tmp_path / "gangline.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE hours.agent_1s__2026112010 AS FROM hours.agent_10s__202611201000"
        )
        connection.execute("DROP TABLE hours.agent_10s__202611201000")
    count_queries = {
        name: f"SELECT count(*) FROM {name}.agent_10s" for name in ("readings", "latest")
    }
    with opened(tmp_path, lambda: now[0], retention_hours=2) as store:
        put(store, 2, block)
        now[0] += HOUR_NS
        put(store, 3, block)
    assert [ask(tmp_path, query) for query in count_queries.values()] == [[(3,)], [(1,)]]
    with opened(tmp_path, lambda: now[0], retention_hours=2) as store:
        now[0] += 3 * HOUR_NS + HOUR_NS // 20
        put(store, 4, block)
    assert ask(tmp_path, count_queries["readings"]) == [(1,)]
    tables = ask(tmp_path, "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'hours'")
    assert tables == [("agent_10s__202611201400",)]


@pytest.mark.slow
def test_what_is_missing_is_null_and_counters_keep_64_bits(tmp_path: Path) -> None:
    """A missing value is neither zero nor healthy; 2^64 - 1 is not rounded to a double."""
    block = Block("gpu_1s_changes", ["GPU-0", "GPU-1"])
    block.put_int(0, 1, 2**64 - 1)
    with opened(tmp_path, lambda: NOW_NS) as store:
        put(store, 1, block)
    query = "SELECT device, ecc_corrected_volatile_errors FROM readings.gpu_1s_changes ORDER BY 1"
    assert ask(tmp_path, query) == [("GPU-0", None), ("GPU-1", 2**64 - 1)]


@pytest.mark.slow
def test_odd_times_are_held_within_what_sql_can_show(tmp_path: Path) -> None:
    """A host whose boot clock says the year 2300 is stored, and breaks no other host's commit."""
    block = Block("host_1s", ["host"])
    block.offset_ns = 2**62
    with opened(tmp_path, lambda: NOW_NS) as store:
        put(store, 1, block, host="odd")
        put(store, 1, host="even")
    assert ask(tmp_path, "SELECT host FROM readings.host_1s ORDER BY 1") == [("even",), ("odd",)]


@pytest.mark.slow
def test_a_full_queue_says_no(tmp_path: Path) -> None:
    """With a disk slower than the fleet, memory is bounded; accepted frames are acknowledged."""
    block = Block("host_1s", [f"device-{n}" for n in range(1000)])
    frame = read_frame(frames.encode(frames.Stamp(b"r" * 16, b"b" * 16, 1, 1, NOW_NS), (block,)))
    done = threading.Event()
    with opened(tmp_path, lambda: NOW_NS, queue_bytes_max=1 << 20, commit_seconds=3.0) as store:
        taken = 0
        while store.submit_frame(f"host-{taken}", frame, 0, lambda _: done.set()):
            taken += 1
            assert taken < 100
        assert 0 < taken < 10 and store.room < 0.5
        store.request_commit()
        assert done.wait(GUARD_SECONDS)


@pytest.mark.slow
def test_the_ledger_is_compacted_at_the_start(tmp_path: Path) -> None:
    """A million commits must not mean a million rows to read at every start."""
    with opened(tmp_path, lambda: NOW_NS) as store:
        for sequence in (1, 2, 3, 7):
            put(store, sequence)
    assert len(ask(tmp_path, "FROM received")) == 4
    with opened(tmp_path, lambda: NOW_NS):
        pass
    kept = ask(tmp_path, "SELECT first_sequence, last_sequence FROM received ORDER BY 1")
    assert kept == [(1, 3), (7, 7)]


@pytest.mark.slow
def test_what_cannot_be_stored_costs_no_other_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame that triggers a bug is set aside for its host only, and the writer continues."""
    honest = frame_rows.batch

    def stumbles(of: Any) -> Any:
        if any(host_frame.host == "poison" for host_frame in of):
            raise ValueError("no such cell")
        return honest(of)

    monkeypatch.setattr("gangline.aggregator.store.writer.batch", stumbles)
    block = Block("host_1s", ["host"])
    frame = read_frame(frames.encode(frames.Stamp(b"r" * 16, b"b" * 16, 1, 1, NOW_NS), (block,)))
    receipts: list[str] = []
    done = threading.Event()
    with opened(tmp_path, lambda: NOW_NS, commit_seconds=0.2) as store:
        store.submit_frame("poison", frame, 0, lambda _: receipts.append("poison"))
        store.submit_frame("good", frame, 0, lambda _: done.set())
        assert done.wait(GUARD_SECONDS)
        put(store, 2, host="good")
        assert (receipts, store.set_aside_frames) == ([], 1)
    assert ask(tmp_path, "SELECT DISTINCT host FROM readings.host_1s") == [("good",)]


@pytest.mark.slow
def test_what_cannot_be_stored_costs_nothing_else_of_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad registration or event cost all acknowledged events of its host, uncounted."""

    def event(host: str, event_id: str) -> StoredEvent:
        return StoredEvent(host, NOW_NS, NOW_NS, HealthEvent(event_id=event_id, name="gpu.xid"))

    def stumbles(honest: Callable[[Any], Any], wrong: Callable[[Any], bool]) -> Any:
        def builder(of: Any) -> Any:
            if any(map(wrong, of)):
                raise ValueError("no such cell")
            return honest(of)

        return builder

    unstorable = {
        "hosts": stumbles(rows.hosts, lambda item: item.host == "odd"),
        "events": stumbles(rows.events, lambda item: item.event.event_id == "bad"),
    }
    for name, builder in unstorable.items():
        monkeypatch.setattr(f"gangline.aggregator.store.writer.records.{name}", builder)
    odd = HostRecord("odd", 1, False, b"r" * 16, b"b" * 16, "", "", {}, NOW_NS)
    frame = read_frame(frames.encode(frames.Stamp(b"r" * 16, b"b" * 16, 1, 1, NOW_NS), ()))
    done = threading.Event()
    with opened(tmp_path, lambda: NOW_NS, commit_seconds=0.2) as store:
        store.submit_host(odd, {})
        store.append_events([event("odd", f"e{number}") for number in range(5)])
        store.append_events([event("odd", "bad"), event("good", "e0")])
        assert store.submit_frame("odd", frame, 0, lambda _: done.set())
        assert done.wait(GUARD_SECONDS)
        put(store, 2, host="good")
        assert (store.set_aside_events, store.set_aside_frames, store.journal_bytes) == (1, 0, 0)
    kept = [*(("odd", f"e{number}") for number in range(5)), ("good", "e0")]
    assert sorted(ask(tmp_path, "SELECT host, event_id FROM events")) == sorted(kept)


def test_findings_take_as_many_statements_as_one(tmp_path: Path) -> None:
    """Each of 4,096 hosts had a clock finding: a DELETE each took 4 s without a receipt."""
    writer = Writer(tmp_path / "gangline.duckdb", retention_hours=24, history_days=400)
    honest, statements = writer._connection, list[str]()

    class Told:
        def execute(self, query: str, *more: Any) -> Any:
            statements.append(query)
            return honest.execute(query, *more)

        def __getattr__(self, name: str) -> Any:
            return getattr(honest, name)

    writer._connection = cast(duckdb.DuckDBPyConnection, Told())
    used = []
    for cleared_ns, numbers in ((0, range(1)), (0, range(200)), (NOW_NS, range(100, 200))):
        pending = Pending()
        for number in numbers:
            finding = Finding(f"h{number}", "clock.offset", "", "off", NOW_NS + 1001, cleared_ns)
            pending.findings[finding.host, finding.name, finding.subject, finding.since_ns] = (
                finding
            )
        writer.commit(pending, NOW_NS)
        used.append(len(statements))
        statements.clear()
    writer.close()
    assert used[1] <= used[0] and used[2] == used[1]
    assert ask(tmp_path, "SELECT count(*), count(DISTINCT host), count(cleared) FROM findings") == [
        (200, 200, 100)
    ]


@pytest.mark.slow
def test_work_between_commits_is_durable_or_nothing(tmp_path: Path) -> None:
    """An export and the drop of its hour must not be half done."""

    def rename(connection: duckdb.DuckDBPyConnection) -> int:
        connection.execute("UPDATE received SET host = 'renamed'")
        return 7

    def fail(connection: duckdb.DuckDBPyConnection) -> None:
        connection.execute("DELETE FROM received")
        raise ValueError("half way")

    with opened(tmp_path, lambda: NOW_NS) as store:
        put(store, 1)
        assert store.in_transaction(rename) == 7
        with pytest.raises(ValueError, match="half way"):
            store.in_transaction(fail)
        put(store, 2)
    assert ask(tmp_path, "SELECT DISTINCT host FROM received") == [("renamed",), ("a",)]
    with pytest.raises(StoreError, match="closing"):
        store.in_transaction(rename)


def test_a_store_that_a_full_disk_has_closed_names_the_disk(tmp_path: Path) -> None:
    """`gangline admin verify` on a full disk: "internal error: ConnectionException", and a traceback in the log."""
    with opened(tmp_path, lambda: NOW_NS) as store:

        def fill(writer: Writer) -> None:
            writer._connection.close()  # as a reopening that failed
            store._disk_status.record_failure(OSError(errno.ENOSPC, "No space left on device"), 1)

        store.run_on_writer_thread(fill)
        with pytest.raises(StoreError, match="; free some space there"), hold_checkpoints(store):
            pass
        with pytest.raises(StoreError, match="no space left"), store.reading():
            pass
        store.run_on_writer_thread(lambda writer: writer._reopen())


@pytest.mark.slow
def test_work_that_makes_room_runs_while_commits_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the oldest hours are deleted without waiting for a commit to succeed."""
    with opened(tmp_path, lambda: NOW_NS) as store:
        put(store, 1)
        failed = threading.Event()

        def full(*_: Any) -> None:
            failed.set()
            raise duckdb.IOException("No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr("gangline.aggregator.store.writer.batch", full)
            done = threading.Event()
            block = Block("host_1s", ["host"])
            frame = read_frame(
                frames.encode(frames.Stamp(b"r" * 16, b"b" * 16, 2, 1, NOW_NS), (block,))
            )
            assert store.submit_frame("a", frame, NOW_NS, lambda _: done.set())
            assert failed.wait(GUARD_SECONDS)
            store.in_transaction(lambda connection: connection.execute("DELETE FROM received"))
            assert not done.is_set()
        assert done.wait(GUARD_SECONDS)
