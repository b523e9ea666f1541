"""Rounds of one fault each against a real aggregator with simulated agents; after each no
acknowledged data is missing.

A round: agents send; the fault; then the aggregator starts, or its error names the cause and the
remedy, and a restore from the last backup succeeds; all pending data gets its receipt; the
aggregator ends (stopped or killed), and the store is compared with the agents' receipts. Data
destroyed on disk may be missing if the aggregator reported it.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from tests.processes import GUARD_SECONDS, Process, free_port, listening, until
from tests.survival.faults import FSYNC_FAILS, FULL, READ_ONLY, Faults, cut, remove, spoil
from tests.survival.fleet import Fleet, Memory

#: Rounds per folder; then everything begins again.
ROUNDS_OF_A_FOLDER = 20
LOST = "stored readings are gone: "
MISSING = "are missing from queries"
STORE, WAL, JOURNAL = "gangline.duckdb", "gangline.duckdb.wal", "events.journal"
#: Seconds after which a part is closed.
PART_SECONDS = 306.0
#: A refusal to start must name one of these remedies.
REMEDY = re.compile(
    r"gangline admin restore|move it away|--data|remount|make room|free some space|start the aggregator again"
)


class Broken(AssertionError):
    """A round found a fault of the store; the message has the kind, the seed and the round."""


@dataclass
class Counted:
    rounds: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    said_lost: Counter[str] = field(default_factory=Counter[str])
    written_off: Counter[str] = field(default_factory=Counter[str])
    seconds: Counter[str] = field(default_factory=Counter[str])
    frames: int = 0


class World:
    """An aggregator, its agents, its backups, and what may go wrong with them."""

    def __init__(
        self, place: Path, seed: int, agents: int = 4, *, small_disk: bool = False
    ) -> None:
        self.source, self.place, self.count = random.Random(seed), place, agents
        self.disk = place / "disk"
        self.disk.mkdir(exist_ok=True)
        self.small_disk = small_disk
        self.faults = Faults(place, self.disk)
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.counted = Counted()
        self.log = place / "log"
        self.fleet = Fleet(self.address, 0, self.source, period_seconds=0.02)
        self.anew()

    def later(self) -> None:
        """Advance five minutes: the data stored so far moves to Parquet."""
        self.faults.ahead_seconds += PART_SECONDS
        self.faults.set()

    def anew(self) -> None:
        """Begin with an empty folder and new agents."""
        self.fleet.begin_anew(0)
        for path in self.disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(self.place / "backups", ignore_errors=True)
        self.data = self.disk / "data"
        settings = [
            "commit_seconds=0.05",
            "ops_seconds=1",
            "judge_seconds=0.2",
            "history_seconds=0.1",
            "listen_scores=off",  # it stores nothing
        ]
        settings.append(
            "disk_free_share_min=0"
        )  # no reading is dropped for lack of space: a missing reading is a fault
        arguments = ["aggregator", "--data", str(self.data), "--listen", self.address]
        arguments += [word for setting in settings for word in ("--set", setting)]
        self.aggregator = Process(arguments, self.log, environment=self.faults.environment)
        self.fleet.begin_anew(self.count)
        self.backed_up: dict[str, Memory] = {}
        #: Frames of which some rows went with a Parquet file.
        self.in_part: set[tuple[str, int]] = set()

    def start(self) -> str:
        """Start the aggregator; return "" once it listens, or its error message."""
        offset = len(self.aggregator.said()) if self.log.exists() else 0
        self.aggregator.start()
        until(
            lambda: listening(self.port) or not self.aggregator.alive(),
            f"listening or ended; see {self.log}",
        )
        message = self.aggregator.said()[offset:]
        if self.aggregator.alive():
            return ""
        child = self.aggregator.child
        code = child.wait() if child else None
        self.aggregator.child = None
        if code != 1 or "Traceback" in message or not REMEDY.search(message):
            raise Broken(f"it ended with {code}, and did not say what to do: {message[-1500:]}")
        if str(self.data) not in message:
            raise Broken(f"it refused, and named nothing of {self.data}: {message[-1500:]}")
        return message

    def running(self) -> None:
        """Start the aggregator unless it runs; a refusal is an error."""
        if not self.aggregator.alive() and (message := self.start()):
            raise Broken(f"it does not start: {message}")

    def wait_receipts(self, more: int) -> None:
        """Wait until *more* further frames have a receipt."""
        wanted = self.fleet.receipts() + more
        until(
            lambda: self.fleet.receipts() >= wanted or not self.aggregator.alive(),
            f"{more} more receipts; see {self.log}",
        )
        if not self.aggregator.alive():
            raise Broken(f"it ended by itself: {self.aggregator.said()[-1500:]}")

    def settle(self) -> None:
        """Wait until all data has its receipt."""
        self.fleet.making = False
        try:
            until(
                lambda: not self.fleet.waiting() or not self.aggregator.alive(),
                f"receipts for all; see {self.log}",
            )
        except AssertionError as error:
            stuck = [
                (a.host, len(a.waiting), a.events_waiting[:2], a.ended) for a in self.fleet.agents
            ]
            raise Broken(f"{error}: {stuck}") from error
        finally:
            self.fleet.making = True
        refused = {a.host: a.refused for a in self.fleet.agents if a.refused}
        if refused or not self.aggregator.alive():
            raise Broken(f"refused {refused}; {self.aggregator.said()[-1500:]}")

    def end(self) -> None:
        """Stop or kill the aggregator."""
        if self.source.random() < 0.5:
            self.aggregator.kill()
        elif code := self.aggregator.stop():
            raise Broken(f"it ended with {code}: {self.aggregator.said()[-1500:]}")

    def pause(self, seconds_max: float = 0.6) -> None:
        """Wait a random time, so that the fault interrupts another step each round."""
        time.sleep(self.source.random() * seconds_max)

    def parquet(self) -> list[Path]:
        files = [
            path for top in ("segments", "rollups") for path in (self.data / top).rglob("*.parquet")
        ]
        return sorted(files)

    def admin(self, *arguments: str, wanted: int | None = 0) -> str:
        """Run `gangline admin`, which must end with *wanted* (None: 0 or 1); return its output."""
        command = [sys.executable, "-m", "gangline.cli", "admin", *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=GUARD_SECONDS
        )
        ends = (0, 1) if wanted is None else (wanted,)
        if done.returncode not in ends or "Traceback" in done.stderr:
            raise Broken(f"{command[3:]} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def back_up(self) -> None:
        """Make a backup, and remember what was acknowledged before it."""
        acknowledged = self.fleet.acknowledged()
        to = str(self.place / "backups")
        where = ("--data", str(self.data), "--aggregator", self.address)
        self.admin("backup", "--to", to, "--keep", "2", *where)
        self.backed_up = acknowledged

    def restore(self) -> None:
        """Restore the last backup; later data is written off."""
        self.admin(
            "restore", "--from", str(self.place / "backups"), "--data", str(self.data), "--force"
        )
        for old in self.disk.glob("data/replaced-*"):
            shutil.rmtree(old)

    def stored(self, *, may_lose: bool = False) -> tuple[dict[str, set[int]], dict[str, set[str]]]:
        """Return host -> numbers and host -> events; raise Broken for duplicate or partial data.

        A Parquet file belongs to a table: without it a frame may lose some of its rows, and counts
        as lost.
        """
        with duckdb.connect(str(self.data / STORE), read_only=True) as base:
            rows = base.execute(
                "SELECT host, context_switches_count, count(*) FROM readings.host_1s GROUP BY ALL"
            ).fetchall()
            gpus = base.execute(
                "SELECT host, power_watts::BIGINT, count(*) FROM readings.gpu_1s GROUP BY ALL"
            ).fetchall()
            events = base.execute(
                "SELECT host, event_id, count(*) FROM events GROUP BY ALL"
            ).fetchall()
        doubled = [row for row in (*rows, *events) if row[2] != 1]
        if doubled:
            raise Broken(f"{len(doubled)} rows or events are there more than once: {doubled[:5]}")
        whole = {(h, n) for h, n, times in gpus if times == 2} & {(h, n) for h, n, _ in rows}
        in_part = {(h, n) for h, n, _ in (*gpus, *rows)} - whole
        if in_part - self.in_part and not may_lose:
            raise Broken(f"frames are there with some of their rows only: {sorted(in_part)[:5]}")
        self.in_part |= in_part
        numbers: dict[str, set[int]] = {}
        for host, number in whole:
            numbers.setdefault(host, set()).add(number)
        names: dict[str, set[str]] = {}
        for host, name, _ in events:
            names.setdefault(host, set()).add(name)
        return numbers, names

    def compare(self, told: dict[str, Memory], *, may_lose: bool = False) -> int:
        """Compare the store with the receipts in *told*; return the number of missing items, which
        are then written off.
        """
        numbers, names = self.stored(may_lose=may_lose)
        missing = 0
        for agent in self.fleet.agents:
            memory = told.get(agent.host, Memory())
            frames = memory.frames - numbers.get(agent.host, set())
            events = memory.events - names.get(agent.host, set()) - self.journaled()
            missing += len(frames) + len(events)
            if (frames or events) and not may_lose:
                raise Broken(
                    f"{agent.host}: acknowledged and not there: frames {sorted(frames)[:10]} "
                    f"({len(frames)}), events {sorted(events)[:5]} ({len(events)})"
                )
            if may_lose:
                agent.told.frames &= numbers.get(agent.host, set()) | set()
                agent.told.events &= names.get(agent.host, set()) | self.journaled()
        return missing

    def journaled(self) -> set[str]:
        """Return the events that wait in the journal of a killed aggregator."""
        from gangline.aggregator.store.journal import parse_records

        path = self.data / JOURNAL
        if not path.exists():
            return set()
        return {event.event.event_id for event, _ in parse_records(path.read_bytes())}

    def close(self) -> None:
        self.fleet.close()
        self.aggregator.kill()


def killed(world: World) -> None:
    """kill -9 at any moment: several times, also while it starts."""
    for _ in range(world.source.randint(1, 3)):
        world.pause()
        world.aggregator.kill()
        world.aggregator.start()
        world.pause(1.5)
        world.aggregator.kill()


def _sick_disk(world: World, mode: int, **how: int) -> None:
    world.faults.set(mode, **how)
    world.pause(1.0)
    if world.source.random() < 0.4:  # it dies of the fault, or its restart fails
        world.aggregator.kill()
        message = world.start()
        if not message:
            world.pause()
    if world.source.random() < 0.3:
        world.aggregator.kill()
    world.faults.set()


def disk_full(world: World) -> None:
    """The disk is full: no receipt until there is space."""
    if not world.small_disk:
        return _sick_disk(world, FULL)
    ballast = world.disk / "ballast"
    with suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    world.pause(1.5)
    if world.source.random() < 0.5:
        world.aggregator.kill()
        world.start()
    ballast.unlink()
    return None


def disk_read_only(world: World) -> None:
    """The kernel remounts a sick disk read-only."""
    _sick_disk(world, READ_ONLY)


def fsync_slow(world: World) -> None:
    """Make the disk slow: up to 1.5 s for each fsync."""
    world.faults.set(fsync_milliseconds=world.source.choice((50, 300, 1500)))
    world.pause(2.0)
    if world.source.random() < 0.3:
        world.aggregator.kill()
    world.faults.set()


def fsync_fails(world: World) -> None:
    """fsync fails with EIO: data written since may not be durable."""
    _sick_disk(world, FSYNC_FAILS)


def clock_jumps(world: World) -> None:
    """Step the wall clock by hours in both directions, with a restart now and then."""
    for _ in range(world.source.randint(1, 3)):
        world.faults.set(clock_seconds=world.source.uniform(-6 * 3600, 6 * 3600))
        world.pause(0.8)
        if world.source.random() < 0.3:
            world.aggregator.kill()
            world.running()
    world.faults.set()


def all_reconnect(world: World) -> None:
    """A switch reboots: every agent comes back in the same second, several times."""
    for _ in range(world.source.randint(2, 5)):
        world.fleet.reconnect()
        world.pause(0.3)
    if world.source.random() < 0.3:
        world.aggregator.kill()


def killed_in_upkeep(world: World) -> None:
    """Kill -9 of the aggregator while it compacts or is backed up; of the backup while it copies."""
    what = world.source.choice(("backup", "compact"))
    more = ["--to", str(world.place / "backups")] if what == "backup" else []
    upkeep = Process(
        ["admin", what, *more, "--data", str(world.data), "--aggregator", world.address],
        world.place / "upkeep.log",
    )
    upkeep.start()
    world.pause(1.5)
    (upkeep if world.source.random() < 0.4 else world.aggregator).kill()
    if upkeep.child is not None:
        upkeep.child.wait(GUARD_SECONDS)
        upkeep.child = None


def _damaged(world: World, name: str, harm: Callable[[Path, random.Random], str]) -> str:
    world.back_up()
    world.wait_receipts(10)
    world.pause()
    if world.source.random() < 0.7:
        world.aggregator.kill()
    else:
        world.aggregator.stop()
    path = world.data / name
    if not path.exists() or not path.stat().st_size:
        return ""
    return harm(path, world.source)


def store_damaged(world: World) -> str:
    return _damaged(world, STORE, world.source.choice((cut, cut, spoil)))


def wal_damaged(world: World) -> str:
    return _damaged(world, WAL, world.source.choice((cut, cut, spoil)))


def journal_damaged(world: World) -> str:
    """The journal lost its end, while it held what was not stored yet."""
    world.faults.set(FULL)
    world.pause()
    world.faults.set()
    return _damaged(world, JOURNAL, world.source.choice((cut, spoil)))


def snapshot_damaged(world: World) -> str:
    """Cut the operators' file: it is written again, and nothing depends on it."""
    return _damaged(world, "operators.duckdb", cut)


def segment_damaged(world: World) -> str:
    """Cut, overwrite or remove a Parquet file of readings or of a rollup."""
    until(lambda: world.parquet(), f"a Parquet file; see {world.log}")
    world.back_up()
    world.aggregator.kill()
    files, harm = world.parquet(), world.source.choice((cut, spoil, remove))
    return harm(world.source.choice(files), world.source)


#: After these nothing that was acknowledged may be missing.
KEPT: dict[str, Callable[[World], None]] = {
    "kill -9": killed,
    "disk full": disk_full,
    "disk read-only": disk_read_only,
    "fsync slow": fsync_slow,
    "fsync fails": fsync_fails,
    "clock jumps": clock_jumps,
    "all reconnect": all_reconnect,
    "killed in upkeep": killed_in_upkeep,
}
#: Faults after which data may be missing, if reported.
DESTROYED: dict[str, Callable[[World], str]] = {
    "store damaged": store_damaged,
    "WAL damaged": wal_damaged,
    "journal damaged": journal_damaged,
    "snapshot damaged": snapshot_damaged,
    "segment damaged": segment_damaged,
}


def round_of(world: World, name: str) -> None:
    """One round of the fault *name*. Raises FailedCollector."""
    begin = time.monotonic()
    world.running()
    world.wait_receipts(20)
    world.later()
    if name in KEPT:
        try:
            KEPT[name](world)
        finally:
            world.faults.set()
        world.running()
    else:
        _destroyed(world, name)
    world.settle()
    acknowledged = world.fleet.acknowledged()
    world.end()
    world.compare(acknowledged)
    world.counted.rounds[name] += 1
    world.counted.frames += 20
    world.counted.seconds[name] += round(time.monotonic() - begin, 1)  # type: ignore[assignment]


def _destroyed(world: World, name: str) -> None:
    did = DESTROYED[name](world)
    acknowledged = world.fleet.acknowledged()
    offset = len(world.aggregator.said())
    world.fleet.making = False
    try:
        refusal = world.start()
        if refusal:
            world.counted.refused[name] += 1
            world.restore()
            world.compare(world.backed_up)
            world.compare(acknowledged, may_lose=True)
            world.running()
            return
        message = world.aggregator.said()[offset:]
        world.aggregator.kill()
        missing = _compare_or_restore(world, acknowledged, name)
        is_said = _is_loss_said(message)
        if missing and not is_said:
            # A fleet has too many Parquet files to check before the start: the aggregator reports
            # damage soon after.
            world.running()
            until(
                lambda: _is_loss_said(world.aggregator.said()[offset:]),
                f"words on this: {did}; {missing} acknowledged frames and events are gone; see {world.log}",
            )
            world.aggregator.kill()
            is_said = True
        if name == "segment damaged" and not is_said:
            _restore_if_wrong(world, acknowledged, name)
        world.counted.said_lost[name] += is_said
        world.counted.written_off[name] += missing
        world.running()
    finally:
        world.fleet.making = True


def _is_loss_said(message: str) -> bool:
    return LOST in message or MISSING in message


def _compare_or_restore(world: World, told: dict[str, Memory], name: str) -> int:
    """Compare; restore a store that opened and cannot be read completely, after `verify` has reported it."""
    try:
        return world.compare(told, may_lose=True)
    except duckdb.Error:
        if not _restore_if_wrong(world, told, name):
            raise Broken("verify finds nothing wrong with what cannot be read") from None
        return 0


def _restore_if_wrong(world: World, told: dict[str, Memory], name: str) -> bool:
    """Restore the backup if `verify` finds damage: a file may differ from the written one, and be
    read without an error.
    """
    if "WRONG" not in world.admin("verify", "--data", str(world.data), wanted=None):
        return False
    world.counted.refused[name] += 1
    world.restore()
    world.compare(world.backed_up)
    world.compare(told, may_lose=True)
    return True
