"""Stores of earlier versions: opened by the current code, killed at any step of it, with nothing lost or doubled."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pytest

from gangline import cli
from gangline.aggregator.advisories.advisory_limits import AdvisoryLimits
from gangline.aggregator.advisories.rows import parse_event, restore_machine
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.store.answer_journal import ANSWERS_FILE, AnswerJournal
from gangline.aggregator.store.duckdb_file import migrations, open_store
from gangline.aggregator.store.journal import EventJournal
from gangline.aggregator.store.maintenance import backup_files
from gangline.aggregator.store.store import Store
from gangline.aggregator.store.store_folder import BACKUPS_FOLDER, STORE_VERSION_FILE
from tests.processes import GUARD_SECONDS
from tests.upgrade.keep_store import FRAMES, GPUS, HOSTS, NOW_NS, frame
from tests.upgrade.kept_stores import EVENTS, FINDINGS, GPU_ROWS, STORES, unpack

NEWEST = migrations()[-1][0]


def version_of(archive: Path) -> int:
    """Return which version of the store was kept: version-10-killed.tar.xz."""
    return int(archive.name.removeprefix("version-").partition(".")[0].partition("-")[0])


KEPT = sorted(STORES.glob("version-*.tar.xz"), key=lambda path: (version_of(path), path.name))
#: The stores of the last version are tried by `make test`, the older ones by `make test-slow`.
LAST = version_of(KEPT[-1])
STORE_OF_EACH_VERSION = [
    pytest.param(
        path,
        id=path.name.partition(".")[0],
        marks=[] if version_of(path) == LAST else [pytest.mark.slow],
    )
    for path in KEPT
]


def test_a_store_of_each_version_is_kept() -> None:
    """A migration without a kept store of the version before it is untested: see keep_store.py."""
    assert {version_of(path) for path in KEPT} >= {1, 2, 5, 10, 11, 12, 14, 23}


@pytest.mark.parametrize("archive", STORE_OF_EACH_VERSION)
def test_a_store_is_backed_up_before_it_is_migrated(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The chart's init container makes one backup, of the old version; none once the store has this version."""
    folder = tmp_path / "store"
    to = folder / BACKUPS_FOLDER
    command = ["admin", "backup", "--before-migration", "--data", str(folder), "--to", str(to), "--keep", "2"]  # fmt: skip
    assert cli.main(command) == cli.OK
    assert "no store yet" in capsys.readouterr().out and not folder.exists()
    unpack(archive, folder)
    assert cli.main(command) == cli.OK
    (backup,) = backup_files.backups(to)
    assert backup_files.read(backup).schema_version == version_of(archive)
    Store.open(folder, AggregatorConfig(data=folder, ops_seconds=0), lambda: NOW_NS).close()
    capsys.readouterr()
    assert cli.main(command) == cli.OK
    assert f"the store has version {NEWEST}" in capsys.readouterr().out
    assert backup_files.backups(to) == [backup]
    restore = ["admin", "restore", "--from", str(to), "--data", str(folder), "--force"]
    assert cli.main(restore) == cli.OK
    assert (folder / STORE_VERSION_FILE).read_text() == f"{version_of(archive)}\n"
    assert backup_files.backups(to) == [backup], "a restore leaves the backups where they are"


@pytest.mark.parametrize("archive", STORE_OF_EACH_VERSION)
def test_what_an_earlier_version_left_is_there(archive: Path, tmp_path: Path) -> None:
    """An upgrade of the aggregator: every reading, event and finding, and no frame twice that is sent again."""
    folder = unpack(archive, tmp_path / "store")
    config = AggregatorConfig(data=folder, commit_seconds=0.01, ops_seconds=0)
    store = Store.open(folder, config, lambda: NOW_NS + 600 * 10**9)
    try:
        assert len(store.recent_events) == EVENTS
        done = threading.Semaphore(0)
        for sequence in (1, FRAMES, FRAMES + 1):  # two stored frames, and a new one
            assert store.submit_frame(HOSTS[0], frame(sequence), NOW_NS, lambda _: done.release())
        for _ in range(3):
            assert done.acquire(timeout=GUARD_SECONDS)
    finally:
        assert store.close() == ""
    with duckdb.connect(str(folder / "gangline.duckdb"), read_only=True) as base:
        rows = base.execute(
            "SELECT host, device, time, boottime_ns FROM readings.gpu_1s"
        ).fetchall()
        assert len(set(rows)) == len(rows) == GPU_ROWS + len(GPUS)
        of_a_frame = base.execute(
            "SELECT count(*), count(DISTINCT host) FROM readings.gpu_1s WHERE boottime_ns = 7000000000"
        ).fetchone()
        assert of_a_frame == (len(GPUS) * len(HOSTS), len(HOSTS))
        faults = base.execute(
            "SELECT count(*), count(DISTINCT message), min(count) FROM ops.faults"
        ).fetchone()
        assert faults == (EVENTS, 3, 1)
        assert base.execute("SELECT message FROM ops.findings").fetchall() == [("kept finding",)]
        assert base.execute("FROM gangline_store").fetchall() == [(NEWEST,)]


def test_texts_kept_under_former_names_are_read(tmp_path: Path) -> None:
    """Version 24 renamed columns, keys of advice and an event; a killed store has some only in its journals."""
    folder = unpack(STORES / "advised-23.tar.xz", tmp_path / "store")
    names = [stored.event.name for stored in EventJournal(folder / "events.journal").replayed]
    assert names == ["gpu.full_report"]
    connection = open_store(folder / "gangline.duckdb")
    machine, _ = restore_machine(connection, AdvisoryLimits())
    for record in AnswerJournal(folder / ANSWERS_FILE).replayed:
        machine.step(parse_event(record.kind, record.body))
    rejected = machine.state.ended["a1"]
    assert rejected.message.startswith("GPU-6394… XID 95: uncontained memory error")
    assert rejected.state_message == "rejected by alice: wait for the checkpoint"
    assert machine.state.absent["sim-001"]["root"].message == "swap of a fan"
    for query in (
        "FROM evidence WHERE message = ''", "FROM findings WHERE message = ''", "FROM signals WHERE description = ''",
        "FROM scores WHERE state = 'UNHEALTHY' AND (reason_message = '' OR last_seen IS NULL)",
        """FROM advice_decisions WHERE message = '' OR contains(body, '"words"')""",
    ):  # fmt: skip
        assert connection.execute(query).fetchall() == [], query
    connection.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "archive",
    [*{version_of(path): path for path in reversed(KEPT)}.values(), None],
    ids=lambda p: p.name.partition(".")[0] if p else "none",
)
def test_a_kill_at_any_step_of_a_migration(archive: Path | None, tmp_path: Path) -> None:
    """The upgrade of a large store was interrupted: started again, it ends as if it had not been.

    Each version has its killed store here: it has the rows of the closed store, and the log of DuckDB.
    Killed wherever the disk has changed; `python -m tests.upgrade.kept_stores FOLDER WORK all`
    kills before each statement.
    """
    source = unpack(archive, tmp_path / "store") if archive else tmp_path / "store"
    source.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.upgrade.kept_stores", str(source), str(tmp_path / "work")],
        check=False,
        capture_output=True,
        text=True,
        timeout=GUARD_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    wanted = f"[({NEWEST},)] ({GPU_ROWS},) [({EVENTS},), ({FINDINGS},)]"
    empty = f"[({NEWEST},)] (None,) [(0,), (0,)]"
    assert set(lines) == {wanted if archive else empty}
    version = version_of(archive) if archive else 0
    # after each COMMIT, after each CHECKPOINT, and without a kill
    assert len(lines) > 2 * (NEWEST - version), "not every migration was killed in"
