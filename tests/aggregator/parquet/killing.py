"""A program of `test_killed.py`: kills (SIGKILL) each step of a scenario, and checks the store.

    python -m tests.aggregator.parquet.killing SCENARIO FOLDER [all]

With `all` a process is killed at each step. Otherwise one process keeps a copy of the folder after
each change on disk, and a second merge, with the same steps, is not checked. Each life is a process
(`tests/killed_processes.py`). Prints a JSON object: all steps, the killed steps, and the faults
after each step (empty without faults).
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import duckdb

from gangline.aggregator.store import duckdb_file
from gangline.aggregator.store.snapshot_file import OpsFile
from tests.aggregator.parquet.conftest import Past
from tests.killed_processes import Killer, LifeError, again, as_killed, dying, life, worth_killing

READINGS = "SELECT host, device, time, power_watts FROM readings.gpu_1s ORDER BY ALL"
SUMS = (
    "SELECT sum(readings_count), sum(violation_power_nanoseconds_increase) FROM rollups.gpu_1s_1m"
)


class Exporting:
    """Thirteen parts: the last is exported, twelve of the closed hour are merged and unlinked."""

    def prepare(self, past: Any) -> None:
        for at in range(13):
            self._put(past, at)
            past.later(300)
            if at == 11:
                past.later(6)
                past.turn()
        past.later(60)
        past.settings["expected"] = past.ask(READINGS)

    def _put(self, past: Any, at: int) -> None:
        values = {"power_watts": float(at), "violation_power_nanoseconds": at * 10**6}
        past.put(values=values, devices=("G0", "G1"))

    def act(self, past: Any) -> None:
        past.turn()
        past.later(61)
        past.turn()

    def wrong(self, past: Any, expected: list[Any], *, finished: bool) -> list[str]:
        """List wrong results and, once the work is *finished*, wrong files."""
        wrong = []
        readings = json.loads(json.dumps(past.ask(READINGS), default=str))
        if readings != expected:
            wrong.append(f"{len(readings)} readings, not the {len(expected)}")
        if finished:
            sums = past.ask(SUMS)[0]
            if sums != (26, 24 * 10**6):
                wrong.append(f"rolled up {sums}")
            recorded = [path for (path,) in past.ask("SELECT path FROM segments ORDER BY path")]
            if recorded != past.files():
                wrong.append(f"recorded {recorded}, there {past.files()}")
            if past.live_tables():
                wrong.append(f"still live: {past.live_tables()}")
            if past.findings:
                wrong.append(f"finding {past.findings}")
        return wrong


class Expiring(Exporting):
    """Readings past their age are removed, and their files are unlinked a minute later."""

    def prepare(self, past: Any) -> None:
        self._put(past, 1)
        past.later(306)
        past.turn()
        past.settings["expected"] = past.ask(READINGS)

    def act(self, past: Any) -> None:
        past.later(30 * 3600)
        super().act(past)

    def wrong(self, past: Any, expected: list[Any], *, finished: bool) -> list[str]:
        readings = json.loads(json.dumps(past.ask(READINGS), default=str))
        if readings not in ([[]] if finished else [expected, []]) and (readings or not finished):
            return [f"shows {readings}"]
        remaining = [path for path in past.files() if path.startswith(("segments", "aside"))]
        return [f"left {remaining}"] if finished and remaining else []


def run(scenario: Exporting, base: Path) -> dict[str, Any]:
    """Kill at every step of *scenario*; return the steps and the faults after each."""
    settings = {"segments_hours": 24}

    def prepare() -> Any:
        past = Past(base / "before", settings=dict(settings)).open()
        past.settings.pop("expected", None)
        scenario.prepare(past)
        expected = past.settings.pop("expected")
        now_ns, sequence = past.now_ns, past.sequence
        past.close()
        return json.loads(json.dumps([expected, now_ns, sequence], default=str))

    expected, now_ns, sequence = life(prepare)
    before, work = base / "before", base / "work"

    def begin(killer: Killer) -> Any:
        past = Past(work, now_ns=now_ns, settings=dict(settings), sequence=sequence)
        past.step = killer
        return past.open()

    def act(at: int, kept: Path | None) -> Any:
        killer = Killer(work, at, kept)
        scenario.act(begin(killer))
        return killer.steps, killer.states

    def look() -> list[str]:
        past = begin(Killer(work))
        wrong = scenario.wrong(past, expected, finished=False)
        scenario.act(past)
        return wrong + scenario.wrong(past, expected, finished=True)

    return killed(before, work, act, look, times_max=2)


def killed(
    before: Path,
    work: Path,
    act: Callable[[int, Path | None], Any],
    look: Callable[[], list[str]],
    times_max: int,
) -> dict[str, Any]:
    """Kill *act* at steps with changes, at most *times_max* times per name; *look* after each."""
    kept, is_all = work.with_name("kept"), "all" in sys.argv
    steps, states = again(before, work, lambda: act(-1, kept))
    worth = [at for at in worth_killing(states) if steps[:at].count(steps[at]) < times_max]

    def leave(at: int) -> Any:
        """Make *work* the state after a kill at step *at*."""
        if is_all:
            return again(before, work, lambda: act(at, None))
        return as_killed(kept, at, work)

    wrong = {}
    at_all: Sequence[int] = range(len(steps)) if is_all else worth
    for at in at_all:
        end = leave(at)
        try:
            faults = life(look) if end == signal.SIGKILL else [f"lived: {end}"]
        except LifeError as error:
            faults = [str(error)]
        wrong[f"{at} {steps[at]}"] = faults
    return {
        "steps": steps,
        "killed": [steps[at] for at in at_all],
        "wrong": {name: faults for name, faults in wrong.items() if faults},
    }


def migrate(base: Path) -> dict[str, Any]:
    """Kill in the first two migrations of a store of version 2, which has hours in tables.

    Kills in all migrations: `tests/upgrade/test_stores.py`.
    """
    path, work = base / "before" / "gangline.duckdb", base / "work"

    def prepare() -> None:
        path.parent.mkdir()
        known = duckdb_file.migrations
        duckdb_file.migrations = cache(lambda: known()[:2])
        connection = duckdb_file.open_store(path)
        connection.execute("CREATE TABLE hours.gpu_1s__2026112009 (host VARCHAR, device VARCHAR, "
                           "time TIMESTAMP, boottime_ns UBIGINT, power_watts DOUBLE)")  # fmt: skip
        connection.execute("INSERT INTO hours.gpu_1s__2026112009 VALUES "
                           "('a', 'G', '2026-11-20 09:00:01', 1, 7.0)")  # fmt: skip
        connection.close()

    def act(at: int, kept: Path | None) -> Any:
        killer = Killer(work, at, kept)
        duckdb.__dict__["connect"] = dying(duckdb.connect, killer)
        duckdb_file.open_store(work / "gangline.duckdb")
        return killer.steps, killer.states

    def look() -> list[str]:
        past = Past(work).open()
        wrong = [] if past.ask("SELECT power_watts FROM readings.gpu_1s") == [(7.0,)] else ["lost"]
        past.later(6)
        past.turn()
        if past.live_tables() or past.ask("SELECT power_watts FROM readings.gpu_1s") != [(7.0,)]:
            wrong.append(f"not exported: {past.live_tables()}")
        return wrong

    life(prepare)
    return killed(base / "before", work, act, look, times_max=2)


if __name__ == "__main__":
    OpsFile.write = lambda *_: None  # type: ignore[method-assign]  # nobody looks at it: half of each life
    base = Path(sys.argv[2])
    what = {"export": lambda: run(Exporting(), base), "expire": lambda: run(Expiring(), base),
            "migrate": lambda: migrate(base)}  # fmt: skip
    print(json.dumps(what[sys.argv[1]]()))
