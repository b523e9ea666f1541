"""A start after a crash or damage succeeds, or names the cause and the remedy."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.store import duckdb_file
from gangline.aggregator.store.journal import EventJournal, StoredEvent, encode_record
from gangline.aggregator.store.store import Store
from gangline.aggregator.store.store_folder import StoreError
from gangline.cli import main
from gangline.contract import frame
from gangline.contract.block import Block
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.processes import GUARD_SECONDS

NOW_NS = 1_795_168_800 * 1_000_000_000  # 2026-11-20 10:00 UTC
FRAMES = 12
STORE, WAL, JOURNAL = "gangline.duckdb", "gangline.duckdb.wal", "events.journal"
NOBODY = 65534


@pytest.fixture(scope="module", autouse=True)
def stores_are_copied() -> None:
    """Create stores as in service, instead of copying a template."""


def open_store(folder: Path) -> Store:
    config = AggregatorConfig(data=folder, commit_seconds=0.01, ops_seconds=3600.0)
    return Store.open(folder, config, lambda: NOW_NS)


def put(store: Store, sequence: int) -> None:
    """Submit a frame and wait for its receipt."""
    done = threading.Event()
    block = Block("host_1s", ["host"])
    block.put_float(0, 0, float(sequence))
    stamp = frame.Stamp(b"r" * 16, b"b" * 16, sequence, sequence * 10**9, NOW_NS)
    assert store.submit_frame(
        "a", read_frame(frame.encode(stamp, [block])), NOW_NS, lambda _: done.set()
    )
    assert done.wait(GUARD_SECONDS)


def event(number: int) -> StoredEvent:
    return StoredEvent("a", NOW_NS, NOW_NS, HealthEvent(event_id=f"e{number}", name="gpu.xid"))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a killed aggregator: half of the frames in the file, half in the WAL."""
    folder = tmp_path_factory.mktemp("killed") / "live"
    left = folder.with_name("left")
    store = open_store(folder)
    for sequence in range(FRAMES // 2):
        put(store, sequence)
    store.close()
    shutil.copy(folder / STORE, folder.with_name("older.duckdb"))
    store = open_store(folder)
    for sequence in range(FRAMES // 2, FRAMES):
        put(store, sequence)
    left.mkdir()
    for name in (STORE, WAL, JOURNAL, f"{JOURNAL}.noted", "durable", "lock"):
        shutil.copy(folder / name, left / name)
    store.close()
    (left / JOURNAL).write_bytes(b"".join(encode_record(event(number)) for number in range(3)))
    assert (left / WAL).stat().st_size > 0
    return left


@pytest.fixture
def folder(killed: Path, tmp_path: Path) -> Path:
    """A copy of `killed`, to be damaged."""
    return Path(shutil.copytree(killed, tmp_path / "data"))


def cut(name: str, share: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        os.truncate(path, int(path.stat().st_size * share))

    return damage


def turned(name: str, at: int, length: int = 8) -> Callable[[Path], None]:
    """Invert *length* bytes at *at*, from the end if negative."""

    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        begin = at if at >= 0 else len(data) + at
        data[begin : begin + length] = bytes(b ^ 0xFF for b in data[begin : begin + length])
        (folder / name).write_bytes(data)

    return damage


def written(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda folder: void((folder / name).write_bytes(data))


def void(_: object) -> None:
    pass


def a_folder(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()

    return damage


def older(folder: Path) -> None:
    shutil.copy(folder / STORE, folder / "now")
    (folder / WAL).unlink()
    with duckdb.connect(str(folder / STORE)) as base:  # two more checkpoints, which the copy lacks
        base.execute("CREATE TABLE more (n INTEGER)")
        base.execute("CHECKPOINT")
    (folder / "now").replace(folder / STORE)


def restoring(folder: Path) -> None:
    (folder / "restoring").mkdir()


#: Damage -> pattern of the refusal, with the file, the cause and the remedy.
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "an empty file": (
        written(STORE, b""),
        r"gangline.duckdb was cut off: it has 0 bytes.*restore a backup \(gangline admin restore",
    ),
    "the head only": (cut(STORE, 0.005), r"was cut off: it has \d+ bytes, and says that it has \d+"),
    "half a file": (cut(STORE, 0.5), r"was cut off: .*gangline admin restore BACKUP"),
    "another program's file": (
        written(STORE, b"SQLite format 3\0" * 1000), r"not a DuckDB file.*unchanged.*--data",
    ),
    "a head that was written wrong": (
        turned(STORE, 100), r"DuckDB .* cannot open it: .*damaged and unchanged: restore a backup",
    ),
    "catalog damaged": (turned(STORE, 12_288, 1 << 22), r"cannot open it.*gangline admin verify --data"),
    "a WAL damaged within": (
        turned(WAL, 300), r"cannot open it.*WAL.*restore a backup.*or move .*duckdb.wal away",
    ),
    "a journal that is a folder": (a_folder(JOURNAL), r"events.journal: cannot be used: Is a directory"),
    "a lock that is a folder": (a_folder("lock"), r"cannot be used: Is a directory.*move away what is"),
    "a store that is a folder": (a_folder(STORE), r"gangline.duckdb: cannot be read: Is a directory"),
    "a restore that was killed": (restoring, r"restore .* has not ended; run it again: gangline admin"),
}  # fmt: skip

#: Damage -> pattern of the loss message ("": no loss), minimum of frames left.
STARTED: dict[str, tuple[Callable[[Path], None], str, int]] = {
    "killed": (void, "", FRAMES),
    "a WAL cut off": (cut(WAL, 0.6), r"wal has \d+ bytes, and had \d+ when .* 10:00:00 UTC", 6),
    "a WAL that went": (cut(WAL, 0.0), r"wal has 0 bytes, and had \d+", 6),
    "a WAL of another": (written(WAL, b"x" * 1_000_000), r"wal is not the one that was there", 6),
    "a store that went": (lambda f: (f / STORE).unlink(), r"duckdb is not there, but was", 0),
    "an older copy": (older, r"wal has 0 bytes, and had", 6),
    "a journal cut off": (cut(JOURNAL, 0.5), r"", FRAMES),
    "a journal damaged within": (
        turned(JOURNAL, 10),
        r"journal is damaged at byte 0; 2 events",
        FRAMES,
    ),
    "a journal of nothing": (written(JOURNAL, b"\0" * 5000), "", FRAMES),
    "a snapshot damaged": (written("operators.duckdb", b"x" * 100), "", FRAMES),
    "a mark damaged": (written("durable", b"x" * 60), "", FRAMES),
    "a note damaged": (written("events.journal.noted", b"xx"), "", FRAMES),
    "a lock with nonsense": (written("lock", b"\xff" * 100), "", FRAMES),
    "half a store, not yet renamed": (written("gangline-new.duckdb", b"x"), "", FRAMES),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_it_says_why_not_and_what_to_do(case: str, folder: Path) -> None:
    """A DuckDB traceback at 4 a.m., and a store that a start would have overwritten."""
    damage, pattern = REFUSED[case]
    damage(folder)
    before = (folder / STORE).read_bytes() if (folder / STORE).is_file() else b""
    with pytest.raises(StoreError, match=rf"(?s){pattern}") as refused:
        open_store(folder)
    assert str(folder) in str(refused.value) and "\n" not in str(refused.value)
    if "journal" not in case:  # it is checked last
        assert not before or (folder / STORE).read_bytes() == before, "it was written to"


@pytest.mark.slow
@pytest.mark.usefixtures("operators_file")
@pytest.mark.parametrize("case", STARTED)
def test_it_starts_and_says_what_is_gone(case: str, folder: Path) -> None:
    """DuckDB accepts a truncated WAL: acknowledged readings were lost silently."""
    damage, pattern, at_least = STARTED[case]
    damage(folder)
    store = open_store(folder)
    try:
        if pattern:
            with pytest.raises(AssertionError, match=rf"(?s){pattern}"):
                raise AssertionError(store.loss_message)
        else:
            assert store.loss_message == ""
        put(store, FRAMES + 1)
    finally:
        assert store.close() == ""
    with duckdb.connect(str(folder / STORE), read_only=True) as base:
        rows = base.execute("SELECT boottime_ns // 1000000000 FROM readings.host_1s").fetchall()
    numbers = [int(row[0]) for row in rows]
    assert len(numbers) == len(set(numbers)) and FRAMES + 1 in numbers
    assert set(range(at_least)) <= set(numbers)
    assert open_and_close(folder) == "", "once is enough"


def open_and_close(folder: Path) -> str:
    store = open_store(folder)
    store.close()
    return store.loss_message


@pytest.mark.slow
def test_a_journal_that_lost_its_end(tmp_path: Path) -> None:
    """Acknowledged events were not stored yet, and the disk lost the last block."""
    store = open_store(tmp_path)
    store.close()
    journal = EventJournal(tmp_path / JOURNAL)
    journal.append([event(1)])
    record_bytes = (tmp_path / JOURNAL).stat().st_size
    journal.append([event(2), event(3)])
    journal.close()
    os.truncate(tmp_path / JOURNAL, record_bytes + 5)
    store = open_store(tmp_path)
    assert (
        f"ends at byte {record_bytes}, and {3 * record_bytes} were acknowledged"
        in store.loss_message
    )
    store.close()


@contextmanager
def as_nobody() -> Iterator[None]:
    """Drop root's rights for a while."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("name", ["", STORE, JOURNAL, "lock"])
def test_files_of_another_user(name: str, folder: Path) -> None:
    """After a run as root, the error names the file and its expected owner.

    *folder* is a store that this process has opened, so the scripts were read before root's rights
    are dropped: the user `nobody` may not enter a checkout in the home of root.
    """
    for parent in folder.parents:  # only the test's own folders
        if parent.stat().st_uid == os.geteuid() and "pytest" in str(parent):
            parent.chmod(0o755)
    for path in (folder, *folder.iterdir()):
        os.chown(path, NOBODY if os.geteuid() == 0 else -1, -1)
    target = folder / name if name else folder
    os.chown(target, os.geteuid(), -1)
    target.chmod(0o000)
    try:
        with as_nobody(), pytest.raises(StoreError, match="ermission denied") as refused:
            open_store(folder)
    finally:
        target.chmod(0o700)
    assert str(target) in str(refused.value)
    if name != JOURNAL:
        assert "user id" in str(refused.value)


@contextmanager
def mounted(place: Path, options: str) -> Iterator[None]:
    """A real filesystem of its own."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, f"gangline-test-{os.getpid()}", str(place)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_read_only(killed: Path, tmp_path: Path) -> None:
    """The kernel remounted a bad disk: the error names the folder and the remedy."""
    with mounted(tmp_path / "disk", "size=32m"):
        shutil.copytree(killed, tmp_path / "disk" / "data")
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        with pytest.raises(StoreError, match=r"disk/data.*Read-only file system; remount it"):
            open_store(tmp_path / "disk" / "data")
        with pytest.raises(StoreError, match=r"disk/new.*Read-only file system; remount it"):
            open_store(tmp_path / "disk" / "new")


@pytest.mark.slow
@pytest.mark.parametrize("files", ["none", "a store"])
def test_a_disk_that_is_full(files: str, killed: Path, tmp_path: Path) -> None:
    """Neither the lock nor a checkpoint has room on the disk."""
    with mounted(tmp_path / "disk", "size=8m"):
        data = tmp_path / "disk" / "data"
        if files != "none":
            shutil.copytree(killed, data)
        (tmp_path / "disk" / "ballast").touch()
        with (
            open(tmp_path / "disk" / "ballast", "wb", buffering=0) as ballast,
            pytest.raises(OSError),
        ):
            while True:
                ballast.write(bytes(4096))
        with pytest.raises(StoreError, match=r"disk/data.*[Nn]o space left.*free some space there"):
            open_store(data).close()
        (tmp_path / "disk" / "ballast").unlink()
        store = open_store(data)
        assert store.loss_message == ""
        put(store, 50)
        store.close()


@pytest.mark.slow
def test_a_log_that_memory_has_no_room_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A 45 MB log, too large to replay within `memory_limit`, is opened and verified.

    The start failed with "Restore a backup", because a DuckDB that has spilled cannot change its
    temporary folder, and verify ended in a traceback.
    """
    older, wal = folder / "older.duckdb", folder / "older.duckdb.wal"
    shutil.copy(folder / STORE, older)
    shutil.copy(folder / WAL, wal)
    with duckdb.connect(str(older), config={"checkpoint_threshold": "1GB"}) as store:
        for _ in range(20):  # a whole row group would go to the file, not to the log
            store.execute(
                "INSERT INTO own_health SELECT make_timestamp(range), 'x', random(), '' FROM range(50000)"
            )
        shutil.copy(older, folder / STORE)
        shutil.copy(wal, folder / WAL)
    older.unlink()
    monkeypatch.setitem(duckdb_file.CONNECTION_CONFIG, "memory_limit", "24MB")
    with (
        pytest.raises(duckdb.NotImplementedException),
        duckdb.connect(
            str(folder / STORE), read_only=True, config=duckdb_file.CONNECTION_CONFIG
        ) as spilled,
    ):
        # shows that the test meets the condition
        spilled.execute(f"SET temp_directory = '{folder}'")
    assert main(["admin", "verify", "--data", str(folder)]) == 0, capfd.readouterr().err
    open_store(folder).close()


@pytest.mark.skipif(duckdb.__version__ >= "2", reason="this DuckDB reads it")
def test_a_file_of_a_newer_duckdb(tmp_path: Path) -> None:
    """After an upgrade and downgrade of DuckDB the file stays, and the error names the version."""
    with tarfile.open(
        Path(__file__).parent.parent.parent / "upgrade" / "duckdb-2.0.tar.xz"
    ) as packed:
        packed.extractall(tmp_path, filter="data")
    before = (tmp_path / STORE).read_bytes()
    with pytest.raises(StoreError, match=r"newer DuckDB.*unchanged.*duckdb>=2,<3.*admin restore"):
        open_store(tmp_path)
    assert (tmp_path / STORE).read_bytes() == before
