"""Live declarations: changed while the aggregator runs, kept over restarts and bad files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pytest

from gangline.aggregator import declared_reload as live
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.declared.host_placement import HostPlacement
from gangline.aggregator.declared.loader import DeclaredFile
from gangline.aggregator.declared.loader import read_files as files_read
from gangline.aggregator.declared_reload import FINDING, DeclaredReloader
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.model import AGGREGATOR_HOST
from gangline.aggregator.store.duckdb_file import migrations
from gangline.aggregator.store.store import Store
from gangline.contract.wire import telemetry_pb2

NOW_NS = 1_795_168_800 * 10**9  # 2026-11-20 10:00 UTC
STEP_NS = 31 * 10**9
RACK = '[[place]]\nhosts = ["h1"]\nrack = "{}"\n'


T = TypeVar("T")


class Tables:
    """A store with only the tables of declarations."""

    def __init__(self) -> None:
        self.connection = duckdb.connect(":memory:")
        for _, text in migrations():
            self.connection.execute(text)

    def in_transaction(
        self, work: Callable[[duckdb.DuckDBPyConnection], T], *, ahead: bool = False
    ) -> T:
        return work(self.connection)

    @contextmanager
    def reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        yield self.connection

    def close(self) -> None:
        self.connection.close()  # else the garbage collector closes it, in another store's thread


class Running:
    """The declared part of an aggregator, beside its store; `step` advances the time."""

    def __init__(self, store: Tables | Store, declared: Path | None) -> None:
        self.store = store
        self.fleet = Fleet(epoch=7)
        self.now_ns = NOW_NS
        self.live = DeclaredReloader(declared, self.fleet, self.store)
        self.live.begin(self.now_ns)

    def step(self, steps: int = 1) -> None:
        """Poll the files *steps* times."""

        async def run() -> None:
            for _ in range(steps):
                self.now_ns += STEP_NS
                self.live.step(self.now_ns)
                if task := self.live._task:  # pyright: ignore[reportPrivateUsage]
                    await task

        asyncio.run(run())

    def asked(self, query: str) -> list[tuple[Any, ...]]:
        with self.store.reading() as cursor:
            return cursor.execute(query).fetchall()

    @property
    def finding(self) -> str:
        active = self.fleet.findings.get((AGGREGATOR_HOST, FINDING, ""))
        return active.message if active else ""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of declarations."""
    write(tmp_path, RACK.format("r1"))
    return tmp_path


@pytest.fixture
def running(folder: Path) -> Iterator[Running]:
    """Run an aggregator's declared part."""
    with closing(Tables()) as tables:
        yield Running(tables, folder)


def write(folder: Path, text: str) -> None:
    """Write as editors do: a new file replaces the previous file."""
    new = folder / ".new"
    new.write_text(text)
    os.replace(new, folder / "a.toml")


def test_a_change_is_taken_live_and_a_bad_one_is_not(running: Running, folder: Path) -> None:
    """A slip at 3 a.m. must not remove all maintenance windows, and is reported."""
    assert running.fleet.declared.number == 1
    running.step()
    write(folder, RACK.format("r2"))
    running.step(2)
    assert running.fleet.declared.place("h1") == HostPlacement(rack="r2")
    assert running.fleet.declared.number == 2 and running.finding == ""
    write(folder, RACK.replace("rack", "rak"))
    running.step(2)
    assert running.fleet.declared.place("h1") == HostPlacement(rack="r2")
    assert "version 2 stays in force" in running.finding
    assert "a.toml:3: rak: unknown here; did you mean rack?" in running.finding
    assert running.live.error == running.finding
    running.step(2)
    assert running.finding, "it is told for as long as it is so"
    write(folder, RACK.format("r2"))
    running.step(2)
    assert running.finding == "" and running.fleet.declared.number == 2
    rows = running.asked("SELECT number, files FROM declared_versions ORDER BY number")
    assert rows == [(1, ["a.toml"]), (2, ["a.toml"])]
    assert running.asked(
        "SELECT host, value, source, declared_in, counts FROM declared_places"
    ) == [("h1", "r2", "file", "a.toml:1", True)]


def test_what_fails_in_taking_it_is_told(
    running: Running,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After an internal error a saved change had no effect, and no log line."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    with monkeypatch.context() as patch:
        patch.setattr(running.live, "_apply", broken)
        write(folder, RACK.format("b2"))
        running.step(2)
    assert "the declarations could not be applied" in caplog.text
    running.step(2)
    assert running.fleet.declared.place("h1").rack == "b2", "and it is looked at again"


def test_half_a_file_is_not_taken(running: Running, folder: Path) -> None:
    """A file that grows during a copy may be valid at each of its halves."""
    running.step()
    for number in range(3):
        write(folder, RACK.format(f"r{number + 3}"))
        running.step()
        assert running.fleet.declared.place("h1") == HostPlacement(rack="r1")
    running.step()
    assert running.fleet.declared.place("h1") == HostPlacement(rack="r5")


def test_what_is_written_while_we_read_is_not_taken(
    running: Running, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first half of a file of windows is a valid file with fewer windows."""
    running.step()
    write(folder, RACK.format("r2"))
    running.step()
    reading = files_read

    def torn(paths: list[Path]) -> list[DeclaredFile]:
        files = reading(paths)
        write(folder, RACK.format("r3"))
        return files

    monkeypatch.setattr(live, "read_files", torn)
    running.step()
    assert running.fleet.declared.place("h1") == HostPlacement(rack="r1")
    monkeypatch.undo()
    running.step(2)
    assert running.fleet.declared.place("h1") == HostPlacement(rack="r3") and running.finding == ""


def test_a_start_while_somebody_writes_has_what_was_in_force(
    running: Running, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Configuration management restarts us during its copy: no window is lost."""
    running.step()
    reading = files_read

    def torn(paths: list[Path]) -> list[DeclaredFile]:
        write(folder, RACK.format("r3"))
        return reading(paths)

    monkeypatch.setattr(live, "read_files", torn)
    again = Running(running.store, folder)
    monkeypatch.undo()
    assert again.fleet.declared.place("h1") == HostPlacement(rack="r1") and again.finding == ""
    again.step(2)
    assert again.fleet.declared.place("h1") == HostPlacement(rack="r3")


def test_what_is_not_in_force_is_not_told_to_be(folder: Path) -> None:
    """A first start with a bad file; a stored version that this release rejects."""
    write(folder, "nonsense = [")
    with closing(Tables()) as tables:
        assert "nothing is declared" in Running(tables, folder).finding
    with closing(Tables()) as store:
        write(folder, RACK.format("r1"))
        Running(store, folder).step()
        store.connection.execute("UPDATE declared_files SET text = 'nonsense = ['")
        write(folder, "nonsense = {")
        assert "nothing is declared" in Running(store, folder).finding


def test_sighup_takes_it_at_once(running: Running, folder: Path) -> None:
    """The sender of SIGHUP has finished the file."""
    running.step()
    write(folder, RACK.format("r2"))
    running.live.request_poll()
    running.step()
    assert running.fleet.declared.place("h1") == HostPlacement(rack="r2")


def test_a_folder_that_is_gone_changes_nothing_until_it_is_back(
    running: Running, folder: Path
) -> None:
    """A mount that is missing for an hour must not remove all racks."""
    running.step()
    folder.rename(folder.with_name("away"))
    running.step(2)
    assert running.fleet.declared.place("h1") == HostPlacement(rack="r1")
    assert "No such file" in running.finding
    folder.with_name("away").rename(folder)
    running.step(2)
    assert running.finding == "" and running.fleet.declared.number == 1


def test_a_folder_that_is_empty_changes_nothing_until_its_files_are_back(
    running: Running, folder: Path
) -> None:
    """A missing mount leaves an empty folder: all windows ended, and operators were called."""
    running.step()
    (folder / "a.toml").rename(folder / ".away")
    running.step(2)
    assert running.fleet.declared.place("h1") == HostPlacement(rack="r1")
    assert "version 1" in running.finding
    assert ".json any more. Is a mount missing?" in running.finding
    again = Running(running.store, folder)
    assert again.fleet.declared.place("h1") == HostPlacement(rack="r1") and again.finding, (
        "nor is a boot"
    )
    (folder / "a.toml").touch()
    running.step(2)
    assert running.fleet.declared.place("h1") == HostPlacement() and running.finding == "", (
        "as it is asked"
    )
    (folder / "a.toml").unlink()
    running.step(2)
    assert "any more" in running.finding


def test_a_folder_that_never_had_a_file_is_no_trouble(tmp_path: Path) -> None:
    """The packages create it empty."""
    with closing(Tables()) as tables:
        running = Running(tables, tmp_path)
        running.step(2)
        assert Running(tables, tmp_path).finding == running.finding == ""


@pytest.mark.slow
def test_after_a_restart_with_a_bad_file_the_last_good_one_is_in_force(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The machine boots in the night after the slip: the store has the last good version."""
    data = tmp_path_factory.mktemp("data")
    config = AggregatorConfig(data=data, ops_seconds=3600.0, history_on=False)
    store = Store.open(data, config)
    Running(store, folder).step()
    assert store.close() == ""
    write(folder, "nonsense = [")
    store = Store.open(data, config)
    try:
        again = Running(store, folder)
        assert again.fleet.declared.place("h1") == HostPlacement(rack="r1")
        assert again.fleet.declared.number == 1 and "not TOML" in again.finding
        write(folder, RACK.format("r1"))
        again.step(2)
        assert again.finding == "" and again.fleet.declared.number == 1
    finally:
        assert store.close() == ""


def test_nothing_declared_any_more(running: Running) -> None:
    """The setting is removed: SQL no longer shows old places; version numbers continue."""
    running.step()
    again = Running(running.store, None)
    again.step()
    assert again.fleet.declared.place("h1") == HostPlacement() and again.finding == ""
    assert again.asked("SELECT max(number) FROM declared_versions") == [(2,)]
    assert again.asked("FROM declared_places") == []
    assert again.asked("SELECT count(*) > 3 FROM declared_thresholds") == [(True,)]


def test_labels_of_agents_say_where_a_host_stands(running: Running) -> None:
    """Without an entry in a file a host's own label counts; a file comes before it."""
    for host in ("h1", "h2"):
        gpu = telemetry_pb2.Device(
            kind="gpu", key=f"GPU-{host}", attributes={"fabric_cluster": "c", "fabric_clique": "3"}
        )
        labels = {"gangline.rack": "r9", "gangline.rails": "l0 l1", "hostname": host}
        running.fleet.register(
            host, simulated=False, boot_id=b"B" * 16, devices=[gpu], labels=labels
        )
    running.step()
    place = running.fleet.declared.place("h2")
    assert place == HostPlacement(rack="r9", rails=("l0", "l1"), nvlink_domain="c.3")
    assert running.fleet.declared.place("h1").rack == "r1"
    rows = running.asked(
        "SELECT value, source, counts FROM declared_places WHERE host = 'h1' AND field = 'rack' ORDER BY counts"
    )
    assert rows == [("r9", "label", False), ("r1", "file", True)]


def test_places_are_written_though_our_clock_was_set_back(running: Running) -> None:
    """Hosts were missing from `ops.places` for a day: our clock had been set back."""
    running.step(40)
    running.now_ns -= 86_400 * 10**9
    running.fleet.register(
        "h9", simulated=False, boot_id=b"B" * 16, devices=[], labels={"gangline.rack": "r9"}
    )
    running.step(2)
    rows = running.asked("SELECT value FROM declared_places WHERE host = 'h9'")
    assert rows == [("r9",)]


def test_files_of_old_versions_are_let_go(
    running: Running, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generator that writes each minute must not fill the store."""
    monkeypatch.setattr("gangline.aggregator.declared.rows.FILES_RETAINED_VERSIONS", 2)
    for number in range(4):
        write(folder, RACK.format(f"r{number + 3}"))
        running.live.request_poll()
        running.step()
    assert running.asked("SELECT DISTINCT number FROM declared_files ORDER BY 1") == [(4,), (5,)]
    assert running.asked("SELECT count(*) FROM declared_versions") == [(5,)]
