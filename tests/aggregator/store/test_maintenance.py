"""Backup, restore, verify, compact: complete or not at all, while the aggregator runs."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline import cli
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.errors import ResourceExhausted, ServiceUnavailable
from gangline.aggregator.service import admin as service
from gangline.aggregator.store.answer_journal import (
    ANSWERS_FILE,
    AnswerJournal,
    AnswerRecord,
    parse_answers,
)
from gangline.aggregator.store.duckdb_file import migrations
from gangline.aggregator.store.live_tables import HOUR_NS
from gangline.aggregator.store.maintenance import backup as backups
from gangline.aggregator.store.maintenance import backup_files, compact, verify
from gangline.aggregator.store.maintenance.backup import Backup, BackupResult
from gangline.aggregator.store.maintenance.consistent_view import (
    FileChangedError,
    change_check,
    hold_checkpoints,
    open_stopped_store,
)
from gangline.aggregator.store.maintenance.restore import restore
from gangline.aggregator.store.parquet.segment_files import RAW, ParquetSegment, record
from gangline.aggregator.store.store import Store
from gangline.aggregator.store.store_folder import (
    BACKUP_HOLDS_FOLDER,
    COMPACTED_FILE,
    STORE_FILE,
    StoreError,
    folder_identity,
)
from gangline.contract.durable_file import CopyError
from gangline.contract.wire import admin_pb2
from tests.aggregator.store.test_store_opening import event, put
from tests.processes import GUARD_SECONDS

NOW_NS = 1_795_168_800 * 1_000_000_000  # 2026-11-20 10:00 UTC
STORE = "gangline.duckdb"

ANSWERS = [AnswerRecord(7, "Acked", '{"by": "slurm"}'), AnswerRecord(8, "Acked", "x" * 2_000_000)]


class Quiet:
    """A progress without output."""

    def begin(self, what: str, total: int) -> None: ...

    def advance(self, size_bytes: int) -> None: ...


class Interrupted(Quiet):
    """Raises KeyboardInterrupt after *after_bytes* bytes."""

    def __init__(self, after_bytes: int) -> None:
        self.left = after_bytes

    def advance(self, size_bytes: int) -> None:
        self.left -= size_bytes
        if self.left < 0:
            raise KeyboardInterrupt


@contextmanager
def opened(folder: Path, now: list[int] | None = None) -> Iterator[Store]:
    config = AggregatorConfig(
        data=folder, commit_seconds=0.01, ops_seconds=3600.0, retention_hours=2
    )
    clock = now or [NOW_NS]
    store = Store.open(folder, config, lambda: clock[0])
    try:
        yield store
    finally:
        store.close()


@pytest.fixture
def data(stopped_store: Path, tmp_path: Path) -> Path:
    """A copy of `stopped_store` for each test."""
    return Path(shutil.copytree(stopped_store, tmp_path / "data"))


@pytest.fixture(scope="module")
def stopped_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped store: ten frames, a permit, a segment and a rollup."""
    folder = tmp_path_factory.mktemp("stopped") / "data"
    with opened(folder) as store:
        for sequence in range(10):
            put(store, sequence)
    (folder / "permit.json").write_text("{}")
    (folder / "access").mkdir()
    (folder / "access" / "ca.key").write_text("secret")
    for name in ("segments/host_1s/2026112009/0.parquet", "rollups/host_1m/2026112009.parquet"):
        (folder / name).parent.mkdir(parents=True)
        with duckdb.connect() as base:
            base.execute(
                "COPY (SELECT 'a' AS host, 'host' AS device, TIMESTAMP '2026-11-20 09:00:00' AS time, "
                f"1::UBIGINT AS boottime_ns) TO '{folder / name}' (FORMAT parquet)"
            )
    return folder


def backed_up(data: Path, to: Path, **how: Any) -> BackupResult:
    return Backup(to, how.pop("progress", Quiet()), **how).make(lambda: open_stopped_store(data))


def numbers(folder: Path) -> list[int]:
    with duckdb.connect(str(folder / STORE), read_only=True) as base:
        rows = base.execute("SELECT boottime_ns // 1000000000 FROM readings.host_1s ORDER BY 1")
        return [int(n) for (n,) in rows.fetchall()]


def tree(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files except the operators' files."""
    files = (p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("operators"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.slow
def test_there_and_back(data: Path, tmp_path: Path) -> None:
    """The machine burnt down: everything except the keys is in the backup, and starts elsewhere."""
    result = backed_up(data, tmp_path / "to")
    names = set(result.manifest.files)
    assert names == {
        STORE, "events.journal", "permit.json",
        "segments/host_1s/2026112009/0.parquet", "rollups/host_1m/2026112009.parquet",
    }  # fmt: skip
    assert result.manifest.rows > 10 and result.manifest.schema_version == migrations()[-1][0]
    shutil.rmtree(data)
    done = restore(tmp_path / "to", tmp_path / "other", Quiet())
    assert done.replaced is None and set(tree(tmp_path / "other")) == names | {"store_version"}
    assert numbers(tmp_path / "other") == list(range(10))
    with opened(tmp_path / "other") as store:
        assert store.loss_message == ""
        put(store, 5)  # sent again: it is stored already
        put(store, 10)
    assert numbers(tmp_path / "other") == list(range(11))


def test_keys_only_when_asked_for(data: Path, tmp_path: Path) -> None:
    """More people can read backups than the data folder."""
    assert not any("access" in name for name in backed_up(data, tmp_path / "to").manifest.files)
    result = backed_up(data, tmp_path / "to", access=True)
    assert (result.folder / "access" / "ca.key").read_text() == "secret"


def test_what_the_backup_before_has_is_linked(data: Path, tmp_path: Path) -> None:
    """A year of Parquet is linked instead of copied every night; each backup is complete."""
    first, second = backed_up(data, tmp_path / "to"), backed_up(data, tmp_path / "to")
    name = "segments/host_1s/2026112009/0.parquet"
    assert (first.folder / name).samefile(second.folder / name)
    assert not (data / name).samefile(second.folder / name)
    assert second.copied_bytes < first.copied_bytes
    assert backups.remove_all_but(tmp_path / "to", 1) == [first.folder]
    assert verify.verify_store(
        second.folder / STORE, second.folder, tmp_path, lambda *_: None
    ).problems == []  # fmt: skip


def test_a_name_that_was_given_again_is_another_file(data: Path, tmp_path: Path) -> None:
    """After a clock set back, a new segment had an old one's name and length: backups kept that."""
    name = "segments/host_1s/2026112009/0.parquet"
    backed_up(data, tmp_path / "to")
    content = (data / name).read_bytes()[::-1]
    (data / name).unlink()
    (data / name).write_bytes(content)
    result = backed_up(data, tmp_path / "to")
    assert (result.folder / name).read_bytes() == content
    restore(result.folder, tmp_path / "other", Quiet())
    again = backed_up(tmp_path / "other", tmp_path / "to")  # the restored files are the same
    assert (again.folder / name).samefile(result.folder / name)


@pytest.mark.slow
def test_beside_ingest_as_of_one_moment(tmp_path: Path) -> None:
    """During ingest, the copy has each frame acknowledged before the hold, once."""
    with opened(tmp_path / "data") as store:
        for sequence in range(20):
            put(store, sequence)
        store.append_events([event(1)])
        going = threading.Event()

        def ingest() -> None:
            sequence = 20
            while not going.is_set():
                put(store, sequence)
                sequence += 1

        thread = threading.Thread(target=ingest)
        thread.start()
        try:
            with hold_checkpoints(store) as held:
                part = tmp_path / "copy"
                part.mkdir()
                until = held.wal_bytes + 20_000
                while held.path.with_name(f"{STORE}.wal").stat().st_size < until:
                    pass  # later frames are not in the copy
                shutil.copy(held.path, part / STORE)
                wal = held.path.with_name(f"{STORE}.wal").read_bytes()[: held.wal_bytes]
                (part / f"{STORE}.wal").write_bytes(wal)
                with (
                    pytest.raises(Exception, match="another backup is running"),
                    hold_checkpoints(store),
                ):
                    pass
        finally:
            going.set()
            thread.join()
    copied = numbers(tmp_path / "copy")
    assert copied[:20] == list(range(20)) and len(copied) == len(set(copied))
    assert len(copied) < len(numbers(tmp_path / "data"))


def test_a_checkpoint_in_between_is_noticed(tmp_path: Path) -> None:
    """A store reopened in the middle of a copy gives parts of two states."""
    with opened(tmp_path) as store:
        put(store, 1)
        check = change_check(tmp_path / STORE)
        check()
    with pytest.raises(FileChangedError, match="while it was copied"):
        check()


@pytest.mark.parametrize("after_bytes", [0, 300_000, 1_000_000])
def test_ctrl_c_leaves_nothing_half(after_bytes: int, data: Path, tmp_path: Path) -> None:
    """An interrupt leaves earlier backups complete, and no other files."""
    first = backed_up(data, tmp_path / "to")
    before = set(os.listdir(data))
    with pytest.raises(KeyboardInterrupt):
        backed_up(data, tmp_path / "to", progress=Interrupted(after_bytes))
    assert os.listdir(tmp_path / "to") == [first.folder.name] and set(os.listdir(data)) == before
    with pytest.raises(KeyboardInterrupt):
        restore(tmp_path / "to", tmp_path / "new", Interrupted(after_bytes))
    assert not (tmp_path / "new").exists()
    store = tree(data)
    with pytest.raises(KeyboardInterrupt):
        restore(tmp_path / "to", data, Interrupted(after_bytes), force=True)
    assert tree(data) == store


def test_a_backup_that_was_killed_is_none(data: Path, tmp_path: Path) -> None:
    """A folder without a manifest is not a backup; the next backup removes it."""
    ended_process = subprocess.Popen(["true"])
    ended_process.wait()
    (tmp_path / "to" / f".{ended_process.pid}.partial").mkdir(parents=True)
    with pytest.raises(CopyError, match=r"not a backup and contains none.*manifest.json"):
        backup_files.newest(tmp_path / "to")
    result = backed_up(data, tmp_path / "to")
    assert os.listdir(tmp_path / "to") == [result.folder.name]
    (tmp_path / "to" / f".{os.getppid()}.partial").mkdir()  # another backup is running there
    backed_up(data, tmp_path / "to")
    assert len(os.listdir(tmp_path / "to")) == 3


def test_what_was_killed_leaves_no_disk_full(data: Path) -> None:
    """Leftovers of killed commands kept disk space: links to removed segments, and half files."""
    for name in (COMPACTED_FILE, f"{COMPACTED_FILE}.wal", "gangline-before.duckdb"):
        (data / name).write_bytes(b"x")
    for name in (f"{BACKUP_HOLDS_FOLDER}/123/segments", "gangline-verify-abc"):
        (data / name).mkdir(parents=True)
    with opened(data):
        assert not [
            entry
            for entry in os.listdir(data)
            if entry.startswith(("compacted", "backup", "gangline-"))
        ]


def test_a_restored_store_has_another_identity(data: Path, tmp_path: Path) -> None:
    """Executors compare fencing tokens within an identity: a restored store's tokens are lower."""
    before = folder_identity(data)
    assert re.fullmatch("[0-9a-f]{16}", before) and folder_identity(data) == before
    result = backed_up(data, tmp_path / "to")
    restore(result.folder, data, Quiet(), force=True)
    after = folder_identity(data)
    assert after != before
    (data / "store_identity").write_text("../../etc")
    assert re.fullmatch("[0-9a-f]{16}", folder_identity(data))


def damaged(folder: Path, what: str) -> str:
    """Damage a backup; return a pattern that the error must match."""
    path = folder / STORE
    if what == "cut":
        os.truncate(path, path.stat().st_size // 2)
        return r"gangline.duckdb"
    if what == "a bit":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        return r"gangline.duckdb"
    segment = folder / "segments/host_1s/2026112009/0.parquet"
    segment.unlink()
    return r"segments/host_1s/2026112009/0.parquet"


@pytest.mark.parametrize("what", ["cut", "a bit", "a segment gone"])
def test_a_damaged_backup_is_not_restored(what: str, data: Path, tmp_path: Path) -> None:
    """Restore and verify check a backup before they write anything."""
    result = backed_up(data, tmp_path / "to")
    pattern, before = damaged(result.folder, what), tree(data)
    with pytest.raises(CopyError, match=rf"{pattern} .*nothing was written"):
        restore(tmp_path / "to", data, Quiet(), force=True)
    assert tree(data) == before
    code, output = admin("verify", str(tmp_path / "to"))
    assert code == cli.FAILED and "WRONG: " + pattern in output


def admin(*arguments: str) -> tuple[int, str]:
    """Run `gangline admin` here; return its exit code and output."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        code = cli.main(["admin", *arguments])
    return code, output.getvalue()


def in_a_shell(*arguments: str) -> tuple[int, str]:
    """Run `gangline admin` as a process; return its exit code and output."""
    done = subprocess.run(
        [sys.executable, "-m", "gangline.cli", "admin", *arguments],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_place_that_cannot_be_used_is_said(data: Path, tmp_path: Path) -> None:
    """A mistyped `--scratch` ended in a traceback; a stopped store reported a storage pause."""
    (tmp_path / "file").touch()
    options = ["--data", str(data)]
    for command, message in (
        (["verify", "--scratch", str(tmp_path / "nowhere")], "nowhere/gangline-verify-"),
        (
            ["verify", "--scratch", str(tmp_path / "file")],
            "a file exists where a folder is expected",
        ),
        (["backup", "--to", str(tmp_path / "file")], "a file exists where a folder is expected"),
    ):
        code, output = admin(*command, *options)
        assert code == cli.FAILED and message in output, output
    for command in (["backup", "--to", str(tmp_path / "to")], ["compact"]):
        code, output = admin(*command, *options)
        assert code == cli.OK and "nothing was stored" not in output


def test_a_store_is_not_written_over(data: Path, tmp_path: Path) -> None:
    """A wrong folder is only replaced with --force, and its files are kept."""
    backed_up(data, tmp_path / "to")
    with opened(data) as store:
        put(store, 99)
        with pytest.raises(StoreError, match="in use by another aggregator"):
            restore(tmp_path / "to", data, Quiet(), force=True)
    before = tree(data)
    with pytest.raises(CopyError, match=r"has a store or other files already.*--force"):
        restore(tmp_path / "to", data, Quiet())
    assert tree(data) == before
    done = restore(tmp_path / "to", data, Quiet(), force=True)
    assert done.replaced is not None and numbers(data) == list(range(10))
    assert numbers(done.replaced) == [*range(10), 99]
    assert (data / "access" / "ca.key").exists(), "keys are not of a backup, and stay"


def test_a_restore_killed_at_the_exchange(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power loss between two renames no aggregator starts, until a repeated restore."""
    backed_up(data, tmp_path / "to")
    replace, left = os.replace, [0]

    def killed(source: Any, target: Any, **how: Any) -> None:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        replace(source, target, **how)

    for step in range(8):
        copy = Path(shutil.copytree(data, tmp_path / f"copy{step}"))
        left[0] = step
        monkeypatch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            restore(tmp_path / "to", copy, Quiet(), force=True)
        monkeypatch.setattr(os, "replace", replace)
        with pytest.raises(StoreError, match="has not ended; run it again"):
            Store.open(copy)
        restore(tmp_path / "to", copy, Quiet(), force=True)
        assert numbers(copy) == list(range(10))


@pytest.mark.parametrize(
    ("table", "harm", "message"),
    [
        ("a row twice", "INSERT INTO hours.{host} SELECT * FROM hours.{host} LIMIT 1", "1 rows are stored more"),
        ("a range twice", "INSERT INTO received SELECT * FROM received", "10 that overlap another"),
        ("a ledger that lacks a host", "DELETE FROM received", "are not in the ledger, such as a"),
        ("a version ahead", "UPDATE gangline_store SET schema_version = 99", "use the newer one"),
    ],
)  # fmt: skip
def test_verify_finds(table: str, harm: str, message: str, data: Path) -> None:
    """`verify` finds duplicate and unreceived frames, which DuckDB accepts."""
    code, output = admin("verify", "--data", str(data))
    assert code == cli.OK and "nothing is wrong" in output, table
    with duckdb.connect(str(data / STORE)) as base:
        (name,) = base.execute(
            "SELECT table_name FROM duckdb_tables() WHERE starts_with(table_name, 'host_1s__')"
        ).fetchall()[0]
        base.execute(harm.format(host=f'"{name}"'))
    code, output = admin("verify", "--data", str(data))
    assert code == cli.FAILED and message in output


def test_what_is_on_record_must_be_there(data: Path, tmp_path: Path) -> None:
    """A changed, truncated or removed segment is reported, and no backup is made without it."""
    name = "segments/host_1s/2026112009/0.parquet"
    content = (data / name).read_bytes()
    segment = ParquetSegment(
        RAW,
        "host_1s",
        "2026112009",
        name,
        0,
        0,
        1,
        len(content),
        zlib.crc32(content),
        "host VARCHAR",
    )
    with duckdb.connect(str(data / STORE)) as base:
        record(base, [segment], 0)
    assert admin("verify", "--data", str(data))[0] == cli.OK
    backed_up(data, tmp_path / "to")
    turned = bytearray(content)
    turned[content.index(b"host")] ^= 1  # a name in the footer, or a value: DuckDB may ignore it
    for harm, message in (
        (bytes(turned), ""),
        (content[:10], "has 10 bytes"),
        (b"", "has 0 bytes"),
    ):
        (data / name).write_bytes(harm)
        code, output = admin("verify", "--data", str(data))
        assert code == cli.FAILED and f"WRONG: {name} {message}" in output
    (data / name).unlink()
    code, output = admin("verify", "--data", str(data))
    assert code == cli.FAILED and f"{name} is not there" in output
    with pytest.raises(FileChangedError, match="removed before it could be copied"):
        backed_up(data, tmp_path / "to")


def test_verify_reads_every_block(data: Path) -> None:
    """A flipped bit in a block that no query reads."""
    content = bytearray((data / STORE).read_bytes())
    detected = 0
    for offset in range(12_288 + 1000, len(content), 3 * 262_144):
        spoilt = bytearray(content)
        spoilt[offset : offset + 8] = bytes(b ^ 0xFF for b in spoilt[offset : offset + 8])
        (data / STORE).write_bytes(spoilt)
        code, output = admin("verify", "--data", str(data), "--json")
        detected += code == cli.FAILED and bool(json.loads(output)["wrong"])
    assert detected >= 2


@pytest.mark.slow
def test_a_compacted_store_holds_the_same(tmp_path: Path) -> None:
    """Blocks of dropped hours are freed; frames arrive while the file is rewritten."""
    now = [NOW_NS]
    with opened(tmp_path, now) as store:
        for hour in range(4):
            now[0] = NOW_NS + hour * HOUR_NS
            for sequence in range(20):
                put(store, hour * 100 + sequence)
        store.append_events([event(1), event(2)])
        more = iter(range(500, 600))
        store.in_transaction(
            lambda c: c.execute("CREATE TABLE gone AS SELECT random() FROM range(2500000)")
        )
        store.in_transaction(lambda c: c.execute("DROP TABLE gone"))
        put(store, next(more))
        bytes_before = (tmp_path / STORE).stat().st_size

        def meanwhile(*_: int) -> None:
            # not while the store is paused
            if threading.current_thread() is threading.main_thread():
                put(store, next(more))

        done = compact.compact(store, meanwhile)
        assert done.bytes_after < bytes_before
        put(store, 3 * 100 + 19)  # sent again: the ledger was copied
        put(store, 700)
        assert not (tmp_path / COMPACTED_FILE).exists()
    assert not list(tmp_path.glob("*before*"))
    stored_numbers = numbers(tmp_path)
    assert len(stored_numbers) == len(set(stored_numbers)) and {
        *range(300, 320),
        500,
        501,
        700,
    } <= set(stored_numbers)
    assert next(more) - 1 in stored_numbers
    with duckdb.connect(str(tmp_path / STORE), read_only=True) as base:
        events = base.execute("SELECT event_id, revision FROM events ORDER BY 1").fetchall()
        assert events == [("e1", 0), ("e2", 0)]
        commented = base.execute("SELECT count(*) FROM duckdb_tables() WHERE comment IS NULL")
        (row,) = commented.fetchall()
        with_defaults = base.execute("SELECT sql FROM duckdb_tables() WHERE table_name = 'events'")
        assert "revision UINTEGER DEFAULT(0)" in with_defaults.fetchall()[0][0]
    assert row[0] <= 1 + len(base_tables(tmp_path))


def base_tables(folder: Path) -> list[str]:
    with duckdb.connect(str(folder / STORE), read_only=True) as base:
        rows = base.execute("SELECT table_name FROM duckdb_tables() WHERE schema_name = 'hours'")
        return [name for (name,) in rows.fetchall()]


def test_a_compaction_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an unreadable new file, a full disk or a cancellation the old store continues."""
    with opened(tmp_path) as store:
        put(store, 1)
        with pytest.raises(CopyError, match="cancelled"):
            monkeypatch.setattr(compact, "PIECE_ROWS", 1)
            compact.compact(store, lambda *_: None, lambda: True)
        monkeypatch.setattr(compact, "free_bytes", lambda _: 10)
        with pytest.raises(CopyError, match=r"has 10 bytes free.*make room first"):
            compact.compact(store, lambda *_: None)
        monkeypatch.undo()
        monkeypatch.setattr(compact, "schemas", lambda _: [])
        with pytest.raises(CopyError, match="not compacted, the store is unchanged"):
            compact.compact(store, lambda *_: None)
        monkeypatch.undo()
        put(store, 2)
        put(store, 1)
        # The operators' file and its base may change meanwhile.
        files = {path.name for path in tmp_path.glob("*.duckdb")}
        assert {name for name in files if not name.startswith("operators")} == {STORE}
    assert numbers(tmp_path) == [1, 2]


def answers_of(folder: Path) -> list[AnswerRecord]:
    with closing(AnswerJournal(folder / ANSWERS_FILE)) as journal:
        return journal.replayed


def test_answers_that_the_store_lacks_are_in_the_backup(data: Path, tmp_path: Path) -> None:
    """After a restore an acknowledged accept was lost, and with it the drain."""
    with closing(AnswerJournal(data / ANSWERS_FILE)) as journal:
        journal.append(ANSWERS)
    backed_up(data, tmp_path / "to")
    restore(tmp_path / "to", tmp_path / "other", Quiet())
    assert answers_of(tmp_path / "other") == ANSWERS
    (data / ANSWERS_FILE).write_bytes(b"")
    backed_up(data, tmp_path / "later")
    restore(tmp_path / "later", tmp_path / "other", Quiet(), force=True)
    assert answers_of(tmp_path / "other") == [], "those of another time are not mixed in"


def test_answers_of_the_moment_of_the_hold_are_in_the_backup(tmp_path: Path) -> None:
    """The store takes an answer after the hold began: the copy lacks it, the journal is empty."""
    with opened(tmp_path / "data") as store:
        journal = AnswerJournal(tmp_path / "data" / ANSWERS_FILE)
        journal.append(ANSWERS[:1])
        with hold_checkpoints(store) as held:
            journal.mark_stored(ANSWERS[0].number)
            assert list(parse_answers(held.answers)) == ANSWERS[:1]
        journal.close()


def test_a_running_aggregator_sends_its_answers(lab: Any, tmp_path: Path) -> None:
    """With `gangline admin backup`: two megabytes arrive in pieces."""

    async def back_up() -> None:
        async with lab.aggregator() as aggregator:
            journal = AnswerJournal(lab.folder / ANSWERS_FILE)
            journal.append(ANSWERS)
            options = ["--data", str(lab.folder), "--aggregator", f"127.0.0.1:{aggregator.port}"]
            code, output = await asyncio.to_thread(
                admin, "backup", "--to", str(tmp_path / "to"), *options
            )
            assert code == 0, output
            journal.mark_stored(ANSWERS[-1].number)
            journal.close()

    asyncio.run(back_up())
    (folder,) = (tmp_path / "to").iterdir()
    assert answers_of(folder) == ANSWERS


@pytest.mark.slow
def test_all_of_it_against_a_running_aggregator(lab: Any, make_agent: Any, tmp_path: Path) -> None:
    """`gangline admin` from a shell while an agent sends: exit codes, messages, JSON."""

    async def run_commands() -> None:
        async with lab.aggregator() as aggregator:
            options = ["--data", str(lab.folder), "--aggregator", f"127.0.0.1:{aggregator.port}"]
            async with lab.agent(aggregator) as agent:
                await agent.send(*(make_agent().message(n) for n in range(1, 6)))
                results: list[tuple[int, str]] = []
                shell = ["backup", "--to", str(tmp_path / "to"), "--json", *options]
                results.append(await asyncio.to_thread(in_a_shell, *shell))
                for command in (
                    ["verify", *options],
                    ["verify", str(tmp_path / "to")],
                    ["compact", *options],
                    [
                        "restore",
                        "--from",
                        str(tmp_path / "to"),
                        "--data",
                        str(lab.folder),
                        "--force",
                    ],
                    ["backup", "--to", str(tmp_path / "to"), *options[:3], "127.0.0.1:1"],
                    ["backup", "--to", "/proc/nothing", *options],
                    ["backup", "--to", str(tmp_path), "--data", str(tmp_path / "nowhere")],
                ):
                    results.append(await asyncio.to_thread(admin, *command))
                await agent.send(*(make_agent().message(n) for n in range(4, 9)))
                codes = [code for code, _ in results]
                assert codes == [0, 0, 0, 0, 1, 3, 1, 1], results
                assert json.loads(results[0][1])["rows"] > 10
                for index, message in ((1, "nothing is wrong"), (3, "nothing was stored"), (4, "in use by"),
                                  (5, "no aggregator answers at 127.0.0.1:1"), (6, "/proc/nothing"),
                                  (7, "holds no store")):  # fmt: skip
                    assert message in results[index][1]

    asyncio.run(run_commands())
    assert lab.rows("SELECT count(*), count(DISTINCT power_watts) FROM readings.gpu_1s") == [
        (16, 8)
    ]


@pytest.mark.slow
def test_another_aggregators_folder_is_not_taken_for_this_one(
    lab: Any, data: Path, tmp_path: Path
) -> None:
    """An admin command refuses an aggregator of another folder.

    With two aggregators on a machine a hold on the wrong one does not stop the file's changes, and
    `compact` compacted the other's store, and reported this one.
    """

    async def run_commands() -> None:
        async with lab.aggregator() as aggregator:
            with opened(data):
                options = ["--data", str(data), "--aggregator", f"127.0.0.1:{aggregator.port}"]
                for command in (["backup", "--to", str(tmp_path / "b")], ["compact"]):
                    before = (lab.folder / STORE_FILE).stat().st_ino
                    code, output = await asyncio.to_thread(admin, *command, *options)
                    assert code == cli.FAILED and "name that folder with" in output
                    assert (lab.folder / STORE_FILE).stat().st_ino == before

    (lab.folder).mkdir()
    asyncio.run(run_commands())


@pytest.fixture
def lab(tmp_path: Path) -> Any:
    """A folder next to `data`."""
    from tests.aggregator.conftest import Lab

    return Lab(tmp_path / "running")


@pytest.mark.slow
def test_a_caller_who_is_gone_holds_nothing(lab: Any, tmp_path: Path) -> None:
    """After a kill -9 of a backup checkpoints continue, and the next backup works."""

    async def kill_backup() -> None:
        async with lab.aggregator() as aggregator:
            options = ["--data", str(lab.folder), "--aggregator", f"127.0.0.1:{aggregator.port}"]
            await asyncio.to_thread(aggregator.store.in_transaction, lambda _: None)
            code = (
                "import sys; from pathlib import Path; from gangline.aggregator.commands.admin_store import ConnectionOptions, held_store\n"
                f"with held_store(Path({str(lab.folder)!r}), ConnectionOptions('127.0.0.1:{aggregator.port}')): print('held', flush=True); sys.stdin.read()"
            )
            command = [sys.executable, "-c", code]
            child = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            assert child.stdout is not None
            assert await child.stdout.readline() == b"held\n"
            failed, output = await asyncio.to_thread(
                admin, "backup", "--to", str(tmp_path / "b"), *options
            )
            assert failed == cli.FAILED and "another backup is running" in output
            child.send_signal(signal.SIGKILL)
            await child.wait()
            async with asyncio.timeout(GUARD_SECONDS):
                while (
                    await asyncio.to_thread(admin, "backup", "--to", str(tmp_path / "b"), *options)
                )[0]:
                    pass
            child._transport.close()  # type: ignore[attr-defined]

    asyncio.run(kill_backup())


@given(st.binary(max_size=200))
def test_a_manifest_of_anything(data: bytes) -> None:
    """Others can write the manifest: it is parsed, or refused with a message."""
    try:
        backup_files.parse(data)
    except backup_files.NoManifestError as error:
        assert str(error)


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "", "a//b", "a\0b"])
def test_a_manifest_stays_in_its_folder(name: str) -> None:
    """A backup from elsewhere must not name files of this machine."""
    file = {"size_bytes": 1, "sha256": "0" * 64}
    fields = {
        "format": 1, "as_of_ns": 1, "host": "h", "gangline": "0", "duckdb": "1", "schema_version": 2,
        "rows": 0, "files": {name: file},
    }  # fmt: skip
    with pytest.raises(backup_files.NoManifestError, match="not the name of a file"):
        backup_files.parse(json.dumps(fields).encode())
    fields["files"] = {"segments/a.parquet": file}
    assert list(backup_files.parse(json.dumps(fields).encode()).files) == ["segments/a.parquet"]


def test_segments_stay_for_the_copy(data: Path) -> None:
    """Retention deletes a segment before the backup has copied it."""
    name = "segments/host_1s/2026112009/0.parquet"
    with backup_files.hold_files(data, [name, "segments/gone.parquet"]) as stage:
        (data / name).unlink()
        assert (stage / name).exists() and not (stage / "segments/gone.parquet").exists()
    assert not stage.exists()


def test_a_connection_that_breaks_ends_its_compaction_before_another_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After its stream broke a compaction continued, and the next wrote into the same file."""
    running = list[bool]()

    def compacting(store: object, told: object, stopped: Any) -> None:
        running.append(True)
        while not stopped():
            pass
        running.clear()
        raise StoreError("ended")

    class Broken:
        async def write(self, message: object) -> None:
            assert running
            raise RuntimeError("the connection broke")

    monkeypatch.setattr(service, "compact", compacting)
    monkeypatch.setattr(service, "POLL_SECONDS", 0.01)

    async def run() -> None:
        admins = service.AdminService(None, 0, None, None)  # type: ignore[arg-type]
        async with asyncio.timeout(GUARD_SECONDS):
            with pytest.raises(RuntimeError, match="broke"):
                await admins.CompactStore(admin_pb2.CompactStoreRequest(), Broken())
        assert not running

    asyncio.run(run())


def test_a_compaction_outlasts_who_is_cancelled_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second cancellation, by the aggregator's end, let another compaction begin in parallel."""
    begun, go = threading.Event(), threading.Event()

    def compacting(store: object, told: object, stopped: Any) -> None:
        begun.set()
        assert go.wait(GUARD_SECONDS) and stopped()
        raise StoreError("ended")

    def beginning(store: object, told: object, stopped: Any) -> None:
        raise StoreError("another began")

    monkeypatch.setattr(service, "compact", compacting)

    async def run() -> None:
        admins = service.AdminService(None, 0, None, None)  # type: ignore[arg-type]

        async def compact_store() -> None:
            await admins.CompactStore(admin_pb2.CompactStoreRequest(), None)

        request = asyncio.create_task(compact_store())
        assert await asyncio.to_thread(begun.wait, GUARD_SECONDS)
        for _ in range(2):
            request.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await request
        monkeypatch.setattr(service, "compact", beginning)
        try:
            with pytest.raises(ResourceExhausted, match="compacted already"):
                await compact_store()
        finally:
            go.set()
        assert admins._compacting is not None
        async with asyncio.timeout(GUARD_SECONDS):
            await asyncio.wait([admins._compacting])
        with pytest.raises(ServiceUnavailable, match="another began"):
            await compact_store()

    asyncio.run(run())
