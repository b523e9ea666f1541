"""A store with a past that is restored, compacted, or lacks files: its queries still work."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gangline.aggregator.store.maintenance import compact, verify
from gangline.aggregator.store.maintenance.backup import Backup
from gangline.aggregator.store.maintenance.consistent_view import open_stopped_store
from gangline.aggregator.store.maintenance.restore import restore

QUESTIONS = (
    "SELECT host, device, time, power_watts FROM readings.gpu_1s ORDER BY ALL",
    "SELECT sum(readings_count), sum(violation_power_nanoseconds_increase) FROM rollups.gpu_1s_1m",
    "SELECT count(*) FROM ops.gpu_history('G0')",
    "SELECT count(*) FROM history.moved",
)
OTHER = "SELECT sum(readings_count) FROM rollups.host_1s_1h"


class Quiet:
    def begin(self, what: str, total: int) -> None: ...

    def advance(self, size_bytes: int) -> None: ...


def fill(past: Any) -> None:
    """Store 13 parts of two tables: an hour is merged, a part stands alone, a part is live."""
    for number in range(13):
        values = {"power_watts": float(number), "violation_power_nanoseconds": number * 10**6}
        past.put(values=values, devices=("G0", "G1"))
        past.put("host_1s", {}, devices=("host",))
        past.later(300)
    past.later(70)
    past.turn()
    past.put(values={"power_watts": 99.0}, devices=("G0", "G1"))


def answers(past: Any, *more: str) -> list[Any]:
    return [past.ask(question) for question in (*QUESTIONS, *more)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, list[Any]]:
    """Return a stopped store with a past, its time, and its results."""
    from tests.aggregator.parquet.conftest import Past

    past = Past(tmp_path_factory.mktemp("kept") / "data").open()
    fill(past)
    results = answers(past, OTHER)
    past.close()
    assert results[1] == [(26, 24 * 10**6)] and results[-1] == [(12,)]
    return past.folder, past.now_ns, results


@pytest.mark.slow
def test_a_restored_store_answers_for_all_of_it(
    kept: tuple[Path, int, list[Any]], make_past: Any, tmp_path: Path
) -> None:
    """The machine burnt down: rollup views named the old folder, and the store did not open."""
    folder, now_ns, expected = kept
    data = Path(shutil.move(shutil.copytree(folder, tmp_path / "data"), tmp_path / "old"))
    backup = Backup(tmp_path / "to", Quiet()).make(lambda: open_stopped_store(data))
    verification = verify.verify_store(
        backup.folder / "gangline.duckdb", backup.folder, tmp_path, lambda *_: None
    )
    assert verification.problems == [] and verification.parquet_files > 5
    shutil.rmtree(data)
    restore(tmp_path / "to", tmp_path / "new", Quiet())
    hidden = folder.rename(folder.with_name("hidden"))
    past = make_past(tmp_path / "new", now_ns=now_ns).open()
    try:
        assert answers(past, OTHER) == expected  # before maintenance, too
        past.turn()
        assert answers(past, OTHER) == expected and past.findings == []
    finally:
        past.close()
        hidden.rename(folder)


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["gone", "cut"])
def test_rollups_that_cannot_be_read_do_not_keep_it_from_starting(
    harm: str, kept: tuple[Path, int, list[Any]], make_past: Any, tmp_path: Path
) -> None:
    """A kill between deletion and new views, or a bad block: one missing file stopped the start."""
    folder, now_ns, expected = kept
    data = Path(shutil.copytree(folder, tmp_path / "data"))
    past = make_past(data, now_ns=now_ns).open()  # its views name its own files
    past.turn()
    past.close()
    for path in (data / "rollups" / "gpu_1s" / "1m").rglob("*.parquet"):
        path.unlink() if harm == "gone" else path.write_bytes(path.read_bytes()[:30])
    past.open()
    try:
        assert past.ask(QUESTIONS[0]) == expected[0]
        past.turn()
        assert past.ask(QUESTIONS[1]) == [(None, None)]
        assert {finding.name for finding in past.findings} == {"store.segment_damaged"}
    finally:
        past.close()


@pytest.mark.slow
def test_a_compacted_store_keeps_its_past(past: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts were exported during the copy: the new file lacked rollups and history.*."""
    fill(past)
    past.put(values={"power_watts": 100.0}, devices=("G0", "G1"))
    expected = answers(past, OTHER)
    monkeypatch.setattr(compact, "PIECE_ROWS", 1)
    live = past.live_tables()

    def meanwhile() -> bool:
        if past.live_tables() == live:  # after the first piece of a table
            past.later(306)
            past.turn()
        return False

    compact.compact(past.store, lambda *_: None, meanwhile)
    assert past.live_tables() != live
    results = answers(past, OTHER)
    assert results[0] == expected[0] and results[1][0][0] == 30 and results[3:] == expected[3:]
    assert past.again().ask(QUESTIONS[0]) == expected[0]


@pytest.mark.slow
@pytest.mark.usefixtures("operators_file")
def test_a_rollup_that_rots_does_not_stop_the_operators_file(past: Any) -> None:
    """One bad block in a year of rollups stopped the snapshot, until an operator noticed."""
    fill(past)
    (path,) = (past.folder / "rollups" / "gpu_1s" / "1m").rglob("2026112010-0.parquet")
    path.write_bytes(path.read_bytes()[:30])
    past.store.write_ops()
    with duckdb.connect(str(past.folder / "operators.duckdb"), read_only=True) as base:
        ((left_out,),) = base.execute("SELECT left_out FROM snapshot").fetchall()
        assert [line for line in left_out if line.startswith("rollups.gpu_1s_1m: all, it cannot")]
        assert base.execute(QUESTIONS[1]).fetchall() == [(None, None)]
        assert base.execute(QUESTIONS[0]).fetchall()[-1][3] == 99.0
