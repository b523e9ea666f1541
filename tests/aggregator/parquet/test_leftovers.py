"""The start finds leftovers of a crash, a bad disk or an operator, and reports them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.aggregator.store.parquet import segment_files
from tests.aggregator.parquet.conftest import Past

POWER = "SELECT power_watts FROM readings.gpu_1s ORDER BY 1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Past:
    """Return a closed store with two parts of readings in Parquet, one live."""
    past = Past(tmp_path_factory.mktemp("made") / "data").open()
    for number in range(3):
        past.put(values={"power_watts": float(number)})
        past.put("host_1s", {"cpu_user_ratio": 0.5}, devices=("host",))
        past.later(300)
    past.turn()
    past.close()
    return past


@pytest.fixture
def two(made: Past, tmp_path: Path) -> Iterator[Past]:
    """Return an open copy of it, after one turn."""
    folder = Path(shutil.copytree(made.folder, tmp_path / "data"))
    past = Past(folder, now_ns=made.now_ns, sequence=made.sequence).open()
    past.turn()
    past.findings.clear()
    yield past
    past.close()


def raw(past: Any, at: int = 0) -> Path:
    folder: Path = past.folder
    return sorted(folder.glob("segments/gpu_1s/*/*.parquet"))[at]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def spoil_footer(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-40:-8] = os.urandom(32)
    path.write_bytes(data)


def not_parquet(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


@pytest.mark.slow
@pytest.mark.parametrize("harm", [cut, spoil_footer, not_parquet, Path.unlink])
@pytest.mark.parametrize("at", [0, 1])
def test_a_segment_that_cannot_be_read_costs_only_itself(
    two: Any, harm: Callable[[Path], Any], at: int
) -> None:
    """A full disk cut off one file of a thousand: every query of that table failed."""
    two.close()
    path = raw(two, at)
    harm(path)
    two.open()
    remaining = sorted({0.0, 1.0, 2.0} - {float(at)})
    assert two.ask(POWER) == [(value,) for value in remaining]  # also before the first turn
    turn_log = two.turn()
    name = str(path.relative_to(two.folder))
    line = next(line for line in turn_log if line.startswith(name))
    assert "1 rows of gpu_1s received 2026112010" in line and "the rest is unaffected" in line
    finding = next(
        finding_or_file
        for finding_or_file in two.findings
        if finding_or_file.name == "store.segment_damaged"
    )
    assert (finding.host, finding.subject, finding.message) == ("(aggregator)", name, line)
    aside = [
        finding_or_file for finding_or_file in two.files() if finding_or_file.startswith("aside")
    ]
    assert aside == ([] if harm is Path.unlink else [f"aside/{name.replace('/', '--')}"])
    assert two.ask(POWER) == [(value,) for value in remaining]
    assert name not in [
        finding_or_file.path
        for finding_or_file in segment_files.read_manifest(two.folder, "gpu_1s")
    ]
    assert two.ask("SELECT count(*) FROM readings.host_1s") == [(3,)]


@pytest.mark.slow
@pytest.mark.parametrize("is_merged", [False, True])
def test_a_bit_that_fell_over_is_found_by_reading_again(two: Any, is_merged: bool) -> None:
    """A failing disk keeps sizes and footers: the damage appeared when the readings were needed.

    If it is merged, the hour gets the damage as well, and the good part is lost.
    """
    path = raw(two)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    path.write_bytes(data)
    if is_merged:
        two.history._unread = ["none"]
    two.later(3700 if is_merged else 31)
    for _ in range(5 if is_merged else 2):
        two.turn()
        two.later(31 if is_merged else 0)
    assert two.ask(POWER) == [(1.0,), (2.0,)]
    if is_merged:
        parts = [name for name in two.files() if name.startswith("segments/gpu_1s")]
        assert [name.rsplit("/")[-1] for name in parts] == ["2026112010-0.parquet"]
    else:
        assert [finding.name for finding in two.findings] == ["store.segment_damaged"]
        assert "differs from what was written (CRC-32)" in two.findings[0].message


@pytest.mark.slow
def test_what_nobody_recorded_is_moved_aside_not_removed(two: Any) -> None:
    """The live file came from last night's backup: today's files were the only copy of today."""
    source = raw(two).read_bytes()
    strange = two.folder / "segments/gpu_1s/2026111923/2026111923-0.parquet"
    strange.parent.mkdir()
    strange.write_bytes(source)
    unfinished = raw(two).with_suffix(".parquet" + segment_files.UNFINISHED_SUFFIX)
    unfinished.write_bytes(source[:100])
    two.again()
    turn_log = two.turn()
    assert "removed 1 files that were not finished or are elsewhere whole" in turn_log
    assert any("not in the store's list" in line for line in turn_log)
    assert [entry for entry in two.files() if entry.startswith("aside")] == [
        "aside/segments--gpu_1s--2026111923--2026111923-0.parquet"
    ]
    assert two.ask(POWER) == [(0.0,), (1.0,), (2.0,)]
    assert [entry.name for entry in two.findings] == ["store.file_unrecorded"]


def test_a_failed_export_costs_nothing_and_is_done_again(
    two: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full for an hour: half a file stayed, and appeared beside the live rows."""
    finish = segment_files.finish

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(segment_files, "finish", full)
    two.later(10)
    two.history.turn(two.now_ns, 1e9)
    assert two.history.failing.startswith("exporting gpu_1s 202611201010: no space left on")
    assert two.ask(POWER) == [(0.0,), (1.0,), (2.0,)]
    monkeypatch.setattr(segment_files, "finish", finish)
    two.history.turn(two.now_ns, 1e9)
    # the other table was exported; this table waits for a minute
    assert len(two.live_tables()) == 1
    assert two.history.failing.startswith("exporting gpu_1s 202611201010: no space left on")
    two.later(61)
    two.turn()
    assert two.live_tables() == []
    assert two.ask(POWER) == [(0.0,), (1.0,), (2.0,)]
    assert not list(two.folder.rglob("*" + segment_files.UNFINISHED_SUFFIX))


@pytest.mark.slow
def test_rows_that_come_while_a_part_is_exported(two: Any) -> None:
    """The clock was set back over a part's end: later rows were dropped with the table."""
    two.later(10)
    late = [9.0]

    def step(name: str) -> None:
        if name == "synced" and late:
            now, two.now_ns = two.now_ns, two.now_ns - 200 * 10**9
            two.put(values={"power_watts": late.pop()})
            two.now_ns = now

    two.step = step
    two.history.turn(two.now_ns, 1e9)
    assert "rows were exported" in two.history.failing
    two.later(61)
    two.turn()
    assert two.live_tables() == []
    assert two.ask(POWER) == [(0.0,), (1.0,), (2.0,), (9.0,)]
    two.now_ns -= 300 * 10**9
    two.put(values={"power_watts": 10.0})  # and again, when its file exists already
    two.later(400)
    two.turn()
    assert two.ask(POWER)[-1] == (10.0,)
    assert (two.folder / "segments/gpu_1s/2026112010/202611201010-1.parquet").exists()
