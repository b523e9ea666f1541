"""The ring of samples: none is lost within its length or another GPU's; sums are right."""

from __future__ import annotations

import math
import os
import signal
import struct
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline.ext.nvml import Nvml, Sweep
from gangline.ext.nvml_gpm import Gpm
from gangline.ext.nvml_ring import COUNT, LEAST, MEAN, MOST, SHARE, SampleRing
from gangline.ext.phases import HISTORY_SIGNALS, SIGNALS, PhaseTracker, SampleHistory
from tests.fake_nvml.build import build, compiler
from tests.fake_nvml.scenario import Scenario, gpus

COLUMNS, ROWS, LENGTH = 2, 3, 5
BITS = 0x60
#: All doubles for column 0, some bits for column 1.
TARGETS = [(COUNT, 0, 0, 0.0, 0), (MEAN, 0, 0, 0.0, 1), (LEAST, 0, 0, 0.0, 2), (MOST, 0, 0, 9.0, 3)]
TARGETS += [(SHARE, 1, BITS, 0.0, 4)]

#: Value of each cell, or None if unknown.
cells = st.tuples(
    st.lists(st.none() | st.floats(0, 1e9), min_size=ROWS, max_size=ROWS),
    st.lists(st.none() | st.integers(0, 2**64 - 1), min_size=ROWS, max_size=ROWS),
)

#: Replaces libc's clock in a process of its own: the boot clock's behavior while a sampler sleeps.
CLOCKS = {
    "nights": "ahead += 8 * 3600; return 0;",
    "none": "static int calls; if (++calls > 9) _exit(70); return 22; /* EINVAL */",
}
CLOCK = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static long long ahead;
int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = syscall(SYS_clock_gettime, clock, now);
    now->tv_sec += clock == CLOCK_BOOTTIME ? ahead : 0;
    return failed;
}
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) { SLEEP }
"""
RESTING = """
import sys, time
from gangline.ext.nvml import Nvml
from tests.ext.test_nvml_ring import Filled
ring = Filled(Nvml(sys.argv[1])).ring
ring.rest(time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 10 * 3600 * 1_000_000_000)
print(ring.count)
"""


class Summary:
    """A stand-in of a Block with the targets."""

    def __init__(self) -> None:
        self.cells, self.valid = bytearray(8 * 5 * ROWS), bytearray(b"\1" * 5 * ROWS)

    def value(self, column: int, row: int) -> float | None:
        at = column * ROWS + row
        return memoryview(self.cells).cast("d")[at] if self.valid[at] else None


class Filled:
    """A ring with cells filled by a test: its sweep reads nothing into them."""

    def __init__(self, nvml: Nvml, **more: Any) -> None:
        self.cells, self.valid = bytearray(8 * COLUMNS * ROWS), bytearray(COLUMNS * ROWS)
        sweep, gpm = (
            Sweep(nvml, [f"0000:0{i}:00.0" for i in range(ROWS)], {}),
            Gpm(nvml, [0] * ROWS, []),
        )
        self.ring = SampleRing(
            sweep, gpm, self.cells, self.valid, ROWS, TARGETS, 125_000_000, LENGTH, **more
        )
        self.now_ns = 0

    def put(self, sample: tuple[Sequence[float | None], Sequence[int | None]]) -> None:
        doubles, flags = sample
        packed = b"".join(struct.pack("<d", v or 0.0) for v in doubles)
        self.cells[:] = packed + b"".join(struct.pack("<Q", v or 0) for v in flags)
        self.valid[:] = bytes(v is not None for v in (*doubles, *flags))
        self.now_ns += 125_000_000
        self.ring.sample(self.now_ns)


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nvml]:
    folder = tmp_path_factory.mktemp("fake_nvml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GANGLINE_FAKE_NVML", str(folder / "scenario"))
        Scenario(folder / "scenario", gpus(1))
        created = Nvml(str(build(folder)))
        yield created
        created.close()


several = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@several
@given(st.lists(cells, max_size=12))
def test_last_samples(nvml: Nvml, taken: list[tuple[list[float | None], list[int | None]]]) -> None:
    """A ring that overwrites a sample too early would lose the second that an operator requests."""
    filled = Filled(nvml)
    for sample in taken:
        filled.put(sample)
    assert filled.ring.count == len(taken)
    for row in range(ROWS):
        expected = [sample[1][row] for sample in taken[-LENGTH:]]
        assert filled.ring.samples(1, row) == expected


@several
@given(st.lists(cells, min_size=1, max_size=LENGTH))
def test_sums_of_ring(nvml: Nvml, taken: list[tuple[list[float | None], list[int | None]]]) -> None:
    filled, summary = Filled(nvml), Summary()
    for sample in taken:
        filled.put(sample)
    assert filled.ring.summarise(summary) == len(taken)
    for row in range(ROWS):
        known = [v for v in (sample[0][row] for sample in taken) if v is not None]
        flags = [v for v in (sample[1][row] for sample in taken) if v is not None]
        answers = sum(s[0][row] is not None or s[1][row] is not None for s in taken)
        assert summary.value(0, row) == answers
        if known:
            mean = summary.value(1, row)
            assert mean is not None and math.isclose(mean, math.fsum(known) / len(known))
            assert summary.value(2, row) == min(known)
            assert summary.value(3, row) == min(9.0, max(known))
        else:
            assert [summary.value(column, row) for column in (1, 2, 3)] == [None] * 3
        share = sum(bool(f & BITS) for f in flags) / len(flags) if flags else None
        assert summary.value(4, row) == share
    assert filled.ring.summarise(summary) == 0  # each counts once


def test_what_does_not_fit_is_refused(nvml: Nvml) -> None:
    """A column too many would be written over memory behind the block."""
    cells, valid = bytearray(8 * 2), bytearray(2)
    sweep, gpm = Sweep(nvml, ["0000:01:00.0"], {}), Gpm(nvml, [0], [])
    for rows, targets, period, length in (
        (0, [], 1, 1),
        (3, [], 1, 1),
        (1, [], 0, 1),
        (1, [], 1, 0),
        (1, [(MEAN, 2, 0, 0.0, 0)], 1, 1),
        (1, [(COUNT + 1, 0, 0, 0.0, 0)], 1, 1),
        (1, [(MEAN, 0, 0, 0.0, 0)] * 33, 1, 1),
    ):
        with pytest.raises(ValueError, match=r"cells|column|columns"):
            SampleRing(sweep, gpm, cells, valid, rows, targets, period, length)
    wrong: tuple[dict[str, Any], ...] = (
        {"gpm_every": 0},
        {"sources": [0]},
        {"sources": [2] * len(SIGNALS)},
        {"tracker": PhaseTracker(2)},
        {"history": SampleHistory(2)},
    )
    for more in wrong:
        with pytest.raises(ValueError, match=r"GPM at each|rows beside"):
            SampleRing(sweep, gpm, cells, valid, 1, [], 1, **more)
    ring = SampleRing(sweep, gpm, cells, valid, 1, [(MEAN, 0, 0, 0.0, 40)], 1)
    with pytest.raises(ValueError, match="column 40 of 1 rows lies outside"):
        ring.summarise(Summary())
    with pytest.raises(IndexError):
        ring.samples(2, 0)


@several
@given(st.lists(cells, min_size=1, max_size=LENGTH))
def test_follow_ring(nvml: Nvml, taken: list[tuple[list[float | None], list[int | None]]]) -> None:
    """A history that is off by one sample or GPU would find another period."""
    tracker, history = PhaseTracker(ROWS), SampleHistory(ROWS, LENGTH)
    sources = [0 if name == "power_watts" else -1 for name in SIGNALS]
    filled = Filled(nvml, tracker=tracker, history=history, sources=sources)
    for sample in taken:
        filled.put(sample)
    buffer = array("f", bytes(4 * LENGTH))
    for row in range(ROWS):
        assert history.copy_to(row, HISTORY_SIGNALS.index("power_watts"), buffer) == len(taken)
        for value, sample in zip(buffer, taken, strict=False):
            expected = sample[0][row]
            if expected is None:
                assert math.isnan(value)
            else:
                assert math.isclose(value, expected, rel_tol=1e-6, abs_tol=1e-30)
        watts = [sample[0][row] for sample in taken]
        believed = [watt for watt in watts if watt is not None and watt < 99_999]
        if believed or all(watt is None for watt in watts):
            assert (tracker.take_second(row) is not None) == bool(believed)


@pytest.mark.parametrize(("clock", "samples"), [("nights", 2), ("none", 0)])
def test_a_rest_by_a_faulty_clock(clock: str, samples: int, nvml: Nvml, tmp_path: Path) -> None:
    """A suspended host called its GPUs 460,800 times; in a sandbox a sampler never slept."""
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(CLOCK.replace("SLEEP", CLOCKS[clock]))
    subprocess.run([*compiler(), "-shared", "-fPIC", source, "-o", library], check=True)
    rested = subprocess.run(
        [sys.executable, "-c", RESTING, nvml.path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "LD_PRELOAD": str(library)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(rested.stdout) == samples


def test_a_signal_ends_no_rest(nvml: Nvml) -> None:
    """A signal made a sampler take its next turn at once, with samples missing until then."""
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: heard.append(number))
    until_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 50_000_000
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        Filled(nvml).ring.rest(until_ns)
        assert time.clock_gettime_ns(time.CLOCK_BOOTTIME) >= until_ns
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert heard
