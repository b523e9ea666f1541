"""The helpers of all tests that kill at every step."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.killed_processes import Killer, LifeError, again, as_killed, life, on_disk, worth_killing


def test_a_life_is_another_process_and_says_what_it_found() -> None:
    """The function runs in another process."""
    parent = os.getpid()
    assert life(lambda: [os.getppid() == parent, os.getpid() == parent]) == [True, False]


def test_what_it_raises_is_raised_here() -> None:
    """A preparation failed silently, and every test that used it passed."""

    def act() -> None:
        raise ValueError("the disk is gone")

    with pytest.raises(LifeError, match="ValueError: the disk is gone"):
        life(act)


def writes(work: Path, at: int, kept: Path | None = None) -> list[object]:
    """Five steps; new data was written before two of them."""
    killer = Killer(work, at, kept)
    killer("begin")
    (work / "a").write_bytes(b"1")
    killer("written")
    killer("synced")
    (work / "a").write_bytes(b"2")  # of the same length, in the same millisecond
    killer("again")
    (work / "a").write_bytes(b"2")
    killer("end")
    return [killer.steps, killer.states]


def test_it_is_killed_where_something_has_changed_and_nowhere_else(tmp_path: Path) -> None:
    """Each kill leaves the disk as before that step, and the process reports nothing more."""
    before, work = tmp_path / "before", tmp_path / "work"
    before.mkdir()
    steps, states = again(before, work, lambda: writes(work, -1))
    assert steps == ["begin", "written", "synced", "again", "end"]
    assert worth_killing(states) == [0, 1, 3]
    left = {}
    for index in range(len(steps)):
        assert again(before, work, lambda index=index: writes(work, index)) == signal.SIGKILL  # type: ignore[misc]
        left[steps[index]] = (work / "a").read_text() if (work / "a").exists() else ""
    assert left == {"begin": "", "written": "1", "synced": "1", "again": "2", "end": "2"}
    assert list(before.iterdir()) == []


def test_what_is_kept_is_what_a_kill_leaves(tmp_path: Path) -> None:
    """One life in the place of many that are killed: each must leave the same, to the byte."""
    before, work, kept = tmp_path / "before", tmp_path / "work", tmp_path / "kept"
    before.mkdir()
    (before / "from before").mkdir()
    _, states = again(before, work, lambda: writes(work, -1, kept))
    assert sorted(path.name for path in kept.iterdir()) == ["0", "1", "3"]
    for index in worth_killing(states):
        assert again(before, work, lambda index=index: writes(work, index)) == signal.SIGKILL  # type: ignore[misc]
        killed = on_disk(work)
        as_killed(kept, index, work)
        assert on_disk(work) == killed
    assert list(kept.iterdir()) == []


@pytest.mark.parametrize("change", ["a name", "an empty folder", "a file that went"])
def test_names_are_looked_at_too(change: str, tmp_path: Path) -> None:
    """A rename changes no byte of any file."""
    (tmp_path / "a").write_bytes(b"1")
    killer = Killer(tmp_path)
    killer("before")
    if change == "a name":
        (tmp_path / "a").rename(tmp_path / "b")
    elif change == "an empty folder":
        (tmp_path / "c").mkdir()
    else:
        (tmp_path / "a").unlink()
    killer("after")
    assert worth_killing(killer.states) == [0, 1]
