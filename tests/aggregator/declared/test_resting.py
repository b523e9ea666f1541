"""Files that change all the time: an exporter, a mount with new times at each poll."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gangline.aggregator import declared_reload as live
from gangline.aggregator.declared.host_placement import HostPlacement
from gangline.aggregator.declared_reload import UNSTABLE_POLLS
from tests.aggregator.declared.test_live import RACK, Running, Tables, write

INVENTORY = "inventory.csv"
R1, R2 = HostPlacement(rack="r1"), HostPlacement(rack="r2")
#: Polls until a result: a file that changes during a comparison waits for the next two polls.
LOOKS_MAX = 2 * UNSTABLE_POLLS


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """Run an aggregator's declared part with an operators' file and an exported inventory."""
    write(tmp_path, RACK.format("r1"))
    (tmp_path / INVENTORY).write_text("host,rack\nh2,r2\n")
    with closing(Tables()) as tables:
        yield Running(tables, tmp_path)


def looks(running: Running, count: int, each: Callable[[int], object]) -> None:
    """Poll *count* times; call *each* before every poll."""
    for number in range(count):
        each(number)
        running.step()


def exporter(folder: Path, text: str = "host,rack\nh2,r2\n") -> Callable[[int], None]:
    """Return a function that exports the inventory again; *text* may contain its number."""
    times = itertools.count(1_700_000_000)

    def export(number: int) -> None:
        (folder / INVENTORY).write_text(text.format(number))
        os.utime(folder / INVENTORY, (0, next(times)))

    return export


def test_a_window_beside_an_export_that_never_rests_is_taken(
    running: Running, tmp_path: Path
) -> None:
    """With an inventory exported every three seconds no change was used, without any message."""
    export = exporter(tmp_path)
    looks(running, 5, export)
    write(tmp_path, RACK.format("r2"))
    looks(running, LOOKS_MAX, export)
    assert running.fleet.declared.place("h1") == R2 and running.finding == ""
    write(tmp_path, "nonsense = [")
    looks(running, LOOKS_MAX, export)
    assert running.fleet.declared.place("h1") == R2 and "a.toml: not TOML" in running.finding
    write(tmp_path, RACK.format("r1"))
    looks(running, LOOKS_MAX, export)
    assert running.fleet.declared.place("h1") == R1 and running.finding == ""
    assert running.fleet.declared.number == 3


def test_an_export_that_says_something_else_each_time_is_told(
    running: Running, tmp_path: Path
) -> None:
    """Half an export looks like a whole one; 15 minutes later a window was missed."""
    export = exporter(tmp_path, "host,rack\nh2,r{}\n")
    write(tmp_path, RACK.format("r2"))
    looks(running, UNSTABLE_POLLS - 2, export)
    assert running.finding == "", "a copy of some seconds is no news"
    looks(running, LOOKS_MAX, export)
    assert running.fleet.declared.place("h1") == R1
    assert "version 1 stays in force: inventory.csv: changed continuously" in running.finding
    finding = running.finding
    looks(running, LOOKS_MAX, export)
    assert running.finding == finding
    running.step(2)
    assert running.fleet.declared.place("h1") == R2 and running.finding == ""


def test_what_was_written_back_as_it_was_is_right_again(running: Running, tmp_path: Path) -> None:
    """The last export equals the version in force: the finding ends."""
    looks(running, LOOKS_MAX, exporter(tmp_path, "host,rack\nh2,r{}\n"))
    assert running.finding
    (tmp_path / INVENTORY).write_text("host,rack\nh2,r2\n")
    running.step(2)
    assert running.finding == "" and running.fleet.declared.number == 1


@pytest.mark.parametrize("starts_so", [False, True])
def test_a_mount_that_tells_other_times_at_each_look(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts_so: bool
) -> None:
    """Some network file systems number files again each time: even SIGHUP had no effect."""
    stamps, numbers = live._stamps, itertools.count(1)  # pyright: ignore[reportPrivateUsage]

    def changing_stamps(path: Path | None) -> live.Stamps:
        return tuple((*stamp[:4], next(numbers)) for stamp in stamps(path))

    monkeypatch.setattr(live, "_stamps", changing_stamps)
    write(tmp_path, RACK.format("r2"))
    if starts_so:
        running = Running(running.store, tmp_path)
    running.live.request_poll()
    running.step(UNSTABLE_POLLS)
    assert running.fleet.declared.place("h1") == R2 and running.finding == ""


def test_who_asks_has_what_rests_at_once(running: Running, tmp_path: Path) -> None:
    """SIGHUP does not wait for the minute, nor for an export that rests at that moment."""
    export = exporter(tmp_path, "host,rack\nh2,r{}\n")
    for number in range(UNSTABLE_POLLS + 2):
        export(number)
        write(tmp_path, RACK.format(f"r{number}"))
        running.live.request_poll()
        running.step()
        assert running.fleet.declared.place("h1").rack == f"r{number}" and running.finding == ""
