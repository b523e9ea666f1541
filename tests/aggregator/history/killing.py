"""A program of `test_killed.py`: kills itself (SIGKILL) at each step of a scenario, and looks at what is left.

    python killing.py SCENARIO FOLDER [all]

Without `all` the second merge, whose steps are those of the first, is let live, and so is a migration before its COMMIT. Each life is a process of its own, forked before any thread runs. Prints a JSON object: the steps, and per
step what was wrong after it (nothing, if all is well).
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from gangline.aggregator.store import storefile
from gangline.aggregator.store.opsfile import OpsFile

_spec = importlib.util.spec_from_file_location("past", Path(__file__).with_name("conftest.py"))
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules["past"] = _module
_spec.loader.exec_module(_module)
Past: Any = _module.Past

READINGS = "SELECT host, device, time, power_watts FROM readings.gpu_1s ORDER BY ALL"
SUMS = (
    "SELECT sum(readings_count), sum(violation_power_nanoseconds_increase) FROM rollups.gpu_1s_1m"
)


def life(act: Callable[[], Any]) -> Any:
    """Run *act* in a process of its own; return what it returned, the signal's number if it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            text = json.dumps(act())
        except BaseException:  # noqa: BLE001 - told to the one who looks
            text = json.dumps(["raised: " + traceback.format_exc()])
        with os.fdopen(writing, "w") as pipe:
            pipe.write(text)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else json.loads(text)


class Killer:
    """Counts steps, and kills this process at one of them."""

    def __init__(self, at: int = -1) -> None:
        self.at, self.seen = at, list[str]()

    def __call__(self, name: str) -> None:
        self.seen.append(name)
        if len(self.seen) - 1 == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


class Exporting:
    """Thirteen parts: the last is exported, the twelve of the closed hour are merged, the old unlinked."""

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
        """Say what is wrong with what is shown, and once all is *finished* with the files."""
        wrong = []
        found = json.loads(json.dumps(past.ask(READINGS), default=str))
        if found != expected:
            wrong.append(f"{len(found)} readings, not the {len(expected)}")
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
    """Readings past their age: they go, and their files are unlinked a minute later."""

    def prepare(self, past: Any) -> None:
        self._put(past, 1)
        past.later(306)
        past.turn()
        past.later(30 * 3600)
        past.settings["expected"] = past.ask(READINGS)

    def wrong(self, past: Any, expected: list[Any], *, finished: bool) -> list[str]:
        found = json.loads(json.dumps(past.ask(READINGS), default=str))
        if found not in ([[]] if finished else [expected, []]) and (found or not finished):
            return [f"shows {found}"]
        left = [path for path in past.files() if path.startswith(("segments", "aside"))]
        return [f"left {left}"] if finished and left else []


def run(scenario: Exporting, base: Path) -> dict[str, Any]:
    """Kill at every step of *scenario*; return the steps and what was wrong after each."""
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

    def begin(killer: Killer) -> Any:
        past = Past(base / "work", now_ns=now_ns, settings=dict(settings), sequence=sequence)
        past.step = killer
        return past.open()

    def act(at: int) -> list[str]:
        killer = Killer(at)
        scenario.act(begin(killer))
        return killer.seen

    def look() -> list[str]:
        past = begin(Killer())
        wrong = scenario.wrong(past, expected, finished=False)
        scenario.act(past)
        return wrong + scenario.wrong(past, expected, finished=True)

    def again(act: Callable[[], Any]) -> Any:
        shutil.rmtree(base / "work", ignore_errors=True)
        shutil.copytree(base / "before", base / "work")
        return life(act)

    steps = again(lambda: act(-1))
    wrong = {}
    for at, name in enumerate(steps):
        if steps[:at].count(name) > 1 and "all" not in sys.argv:
            continue
        killed = again(lambda at=at: act(at))  # type: ignore[misc]
        wrong[f"{at} {name}"] = life(look) if killed == signal.SIGKILL else [f"lived: {killed}"]
    return {"steps": steps, "wrong": {name: words for name, words in wrong.items() if words}}


class Dying:
    """A DuckDB connection that is killed before one of its statements."""

    def __init__(self, connection: Any, at: int) -> None:
        self._connection, self._killer = connection, Killer(at)

    def execute(self, query: str, *parameters: Any) -> Any:
        self._killer(query)
        return self._connection.execute(query, *parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def migrate(base: Path) -> dict[str, Any]:
    """Kill before each statement that brings a store of version 2 to the version of now."""
    path = base / "before" / "gangline.duckdb"

    def prepare() -> None:
        path.parent.mkdir()
        known = storefile.migrations
        storefile.migrations = lambda: known()[:2]
        connection = storefile.open_store(path)
        connection.execute("CREATE TABLE hours.gpu_1s__2026112009 (host VARCHAR, device VARCHAR, "
                           "time TIMESTAMP, boottime_ns UBIGINT, power_watts DOUBLE)")  # fmt: skip
        connection.execute("INSERT INTO hours.gpu_1s__2026112009 VALUES "
                           "('a', 'G', '2026-11-20 09:00:01', 1, 7.0)")  # fmt: skip
        connection.close()

    def act(at: int) -> list[str]:
        honest: Any = duckdb.connect
        dying: Any = lambda *a, **k: Dying(honest(*a, **k), at)
        duckdb.connect = dying
        one = storefile.open_store(base / "work" / "gangline.duckdb")
        return [query[:40] for query in one._killer.seen]  # type: ignore[attr-defined]

    def look() -> list[str]:
        past = Past(base / "work").open()
        wrong = [] if past.ask("SELECT power_watts FROM readings.gpu_1s") == [(7.0,)] else ["lost"]
        past.later(6)
        past.turn()
        if past.live_tables() or past.ask("SELECT power_watts FROM readings.gpu_1s") != [(7.0,)]:
            wrong.append(f"not exported: {past.live_tables()}")
        return wrong

    life(prepare)

    def again(act: Callable[[], Any]) -> Any:
        shutil.rmtree(base / "work", ignore_errors=True)
        shutil.copytree(base / "before", base / "work")
        return life(act)

    steps = again(lambda: act(-1))
    wrong = {}
    for at, name in enumerate(steps):
        if name not in ("BEGIN", "COMMIT", "CHECKPOINT") and "all" not in sys.argv:
            continue  # nothing of it is on disk before its COMMIT; `tests/upgrade` kills there too
        killed = again(lambda at=at: act(at))  # type: ignore[misc]
        wrong[f"{at} {name}"] = life(look) if killed == signal.SIGKILL else [f"lived: {killed}"]
    return {"steps": steps, "wrong": {name: words for name, words in wrong.items() if words}}


if __name__ == "__main__":
    OpsFile.write = lambda *_: None  # type: ignore[method-assign]  # nobody looks at it: half of each life
    base = Path(sys.argv[2])
    what = {"export": lambda: run(Exporting(), base), "expire": lambda: run(Expiring(), base),
            "migrate": lambda: migrate(base)}  # fmt: skip
    print(json.dumps(what[sys.argv[1]]()))
