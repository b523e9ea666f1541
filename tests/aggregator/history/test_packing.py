"""The process that sorts, rolls up and writes: it is killed, it hangs, its aggregator is killed; nothing is lost."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.aggregator.history.packing import PackerError, Packing

READINGS = "SELECT host, device, time, power_watts FROM readings.gpu_1s ORDER BY ALL"
SUMS = (
    "SELECT sum(readings_count), sum(violation_power_nanoseconds_increase) FROM rollups.gpu_1s_1m"
)


class Mortal(Packing):
    """Is killed by *number* before the next call of *doomed*."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 1000, 64 << 20)
        self.number, self.doomed, self.seconds = int(signal.SIGKILL), "", 60.0

    def call(self, name: str, *arguments: Any, memory: int | None = None) -> Any:
        if name == self.doomed:
            self.doomed = ""
            os.kill(self.pid, self.number)
            if self._control is not None:
                self._control.settimeout(self.seconds)
        return super().call(name, *arguments, memory=memory)


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Mortal]:
    """A packer of an empty folder."""
    one = Mortal(tmp_path / "data")
    yield one
    one.kill()
    one.rest()


def test_killed_before_every_call(make_past: Any, tmp_path: Path, mortal: Mortal) -> None:
    """The kernel was short of memory and ended what had most: five minutes were there twice, an hour not at all."""
    past = make_past(tmp_path / "data", packing=mortal).open()
    exporting = "begin", "readings", "end", "discard"
    merging = "ranges", "write", "begin", "end", "discard"
    for half, names in enumerate((exporting, merging)):
        for at in range(half * 6, half * 6 + 6):
            values = {"power_watts": float(at), "violation_power_nanoseconds": at * 10**6}
            past.put(values=values, devices=("G0", "G1"))
            past.later(300)
        expected = past.ask(READINGS)
        for name in names:
            past.later(61)
            mortal.doomed = name
            past.history.turn(past.now_ns, 1e9)
            assert mortal.doomed == ""
            assert past.ask(READINGS) == expected
        assert past.live_tables() == []  # a `discard` that fails costs nothing
    past.later(61)
    past.turn()
    assert past.ask(SUMS) == [(24, 22 * 10**6)]
    kept = [one for one in past.files() if one.startswith("segments")]
    assert kept == ["segments/gpu_1s/2026112010/2026112010-0.parquet"]
    assert past.findings == [] and mortal.pid == 0
    past.close()


def test_one_that_hangs_is_killed(make_past: Any, tmp_path: Path, mortal: Mortal) -> None:
    """A disk that did not answer held the packer up for ever, and history with it."""
    past = make_past(tmp_path / "data", packing=mortal).open()
    past.put(values={"power_watts": 1.0})
    past.later(306)
    mortal.doomed, mortal.number, mortal.seconds = "readings", signal.SIGSTOP, 0.1
    past.history.turn(past.now_ns, 1e9)
    assert "did not answer" in past.history.failing
    past.later(61)
    past.turn()
    assert past.live_tables() == [] and past.ask(READINGS)[0][3] == 1.0
    past.close()


def test_its_words_when_it_cannot(mortal: Mortal, tmp_path: Path) -> None:
    """`failing` said "error": nobody knew that the disk was full, or of what table."""
    mortal.start()
    with pytest.raises(PackerError, match="nowhere"):
        mortal.call("ranges", "read_parquet('nowhere.parquet')", 10)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/segments").write_text("a file")
    with pytest.raises(PackerError, match="segments"):
        mortal.call("begin", {"raw": "segments/gpu_1s/2026112010/202611201000-0.parquet"}, {})
    limits = Path(f"/proc/{mortal.pid}/limits").read_text()
    assert "Max address space         unlimited" not in limits
    assert os.getpriority(os.PRIO_PROCESS, mortal.pid) == 19
    mortal.is_behind = True
    mortal.start()
    assert os.getpriority(os.PRIO_PROCESS, mortal.pid) < 19
    mortal.rest()
    with pytest.raises(PackerError, match="has ended"):
        mortal.call("end")


def test_none_is_left_behind(tmp_path: Path) -> None:
    """kill -9 of the aggregator: its packer went on writing where the next one's wrote too."""
    program = (
        "import sys, time; from pathlib import Path; from gangline.aggregator.history.packing import Packing\n"
        "one = Packing(Path(sys.argv[1]), 1000, 64 << 20); one.start(); one.call('discard')\n"
        "print(one.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    with os.fdopen(child) as gone:
        assert select.select([gone], [], [], 20)[0]
