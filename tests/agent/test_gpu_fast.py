"""The fast lane: eight samples a second of clock, power, reasons and GPM, and what a second amounts to."""

from __future__ import annotations

import ctypes
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.clock import SystemClock
from gangline.agent.collectors import gpu_fast
from gangline.agent.collectors.gpu_fast import PERIOD_NS, GpuFast, Sampler
from gangline.agent.hardware.roots import Roots
from gangline.agent.listening import Teller
from gangline.agent.ring import Ring
from gangline.agent.turn import NoData, Outcome, take_turn
from gangline.ext import nvml_gpm
from gangline.fingerprints.block import Block
from gangline.fingerprints.catalogue import BY_ID
from gangline.fingerprints.wire import telemetry_pb2
from tests.fake_nvml.build import build, compiler, header_folder
from tests.fake_nvml.parts_scenario import with_gpm
from tests.fake_nvml.scenario import Gpu, Scenario, gpus

GUARD_SECONDS = 60.0


class HandedClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def boottime_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns


class NoEvents:
    def put(self, event: telemetry_pb2.HealthEvent) -> None:
        raise AssertionError("this lane tells no events")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build(tmp_path_factory.mktemp("fake_nvml")))


def hoppers(count: int = 2) -> list[Gpu]:
    """Return GPUs that have GPM."""
    return [with_gpm(gpu) for gpu in gpus(count)]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scenario]:
    def write(devices: Sequence[Gpu], host: str = "") -> Scenario:
        monkeypatch.setenv("GANGLINE_FAKE_NVML", str(tmp_path / "scenario"))
        return Scenario(tmp_path / "scenario", devices, host=host)

    return write


@pytest.fixture
def roots(tmp_path: Path, library: str) -> Roots:
    (tmp_path / "proc").mkdir()
    return Roots(sys=tmp_path / "sys", proc=tmp_path / "proc", nvml_library=library)


class Lane:
    """The collector with its thread replaced by `sample`, and its clock handed in."""

    def __init__(self, roots: Roots) -> None:
        self.clock = HandedClock()
        self.sampler = Sampler(roots)
        self.fast = GpuFast(roots)
        self.fast._sampler, self.fast._clock = self.sampler, self.clock

    def second(self, act: Callable[[int], None] = lambda number: None) -> None:
        """Take the eight samples of a second; *act* is called before each."""
        for number in range(8):
            act(number)
            self.clock.now_ns += PERIOD_NS
            self.sampler.sample(self.clock.now_ns)

    def row(self, row: int = 0) -> dict[str, float]:
        """Return what the turn's block says of one GPU."""
        (block,) = self.fast.collect()
        return values(block, row)


def values(block: Block, row: int) -> dict[str, float]:
    return {BY_ID[s].column: float(v) for s, v in block.values(row) if v is not None}


@pytest.fixture
def lane(roots: Roots, play: Callable[..., Scenario]) -> Iterator[Callable[..., Lane]]:
    made: list[Lane] = []

    def make(devices: Sequence[Gpu] | None = None, host: str = "") -> Lane:
        play(hoppers() if devices is None else devices, host)
        made.append(Lane(roots))
        return made[-1]

    yield make
    for each in made:
        each.sampler.close()


def test_the_structs_are_those_of_the_header(tmp_path: Path) -> None:
    """A struct of another length has the driver write past ours, on ten thousand hosts."""
    source = tmp_path / "sizes.c"
    source.write_text(
        "#include <nvml.h>\n#include <stddef.h>\n#include <stdio.h>\n"
        'int main(void) { printf("%zu %zu %zu %d %d", sizeof(nvmlGpmSupport_t), '
        "sizeof(nvmlGpmMetric_t), offsetof(nvmlGpmMetricsGet_t, metrics), "
        "NVML_GPM_SUPPORT_VERSION, NVML_GPM_METRICS_GET_VERSION); }\n"
    )
    program = tmp_path / "sizes"
    subprocess.run(
        [*compiler(), f"-I{header_folder()}", str(source), "-o", str(program)], check=True
    )
    sizes = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    assert [int(size) for size in sizes] == [*nvml_gpm.LAYOUT.values(), 1, 1]


def test_the_metrics_are_those_of_the_header() -> None:
    """A metric's number from memory would publish tensor use as memory bandwidth."""
    header = (Path(header_folder()) / "nvml.h").read_text()
    ids = {
        name: int(number)
        for name, number in re.findall(r"NVML_GPM_METRIC_(\w+)\s*=\s*(\d+)", header)
    }
    names = "SM_UTIL SM_OCCUPANCY ANY_TENSOR_UTIL DRAM_BW_UTIL PCIE_TX_PER_SEC PCIE_RX_PER_SEC"
    wanted = [*names.split(), "NVLINK_TOTAL_RX_PER_SEC", "NVLINK_TOTAL_TX_PER_SEC"]
    assert [ids[name] for name in wanted] == [metric for metric, _, _ in gpu_fast.METRICS]


def test_a_second_is_summarised(lane: Callable[..., Lane], tmp_path: Path) -> None:
    """Half a second of waiting and half of work: the mean alone would tell of neither."""
    made = lane()
    scenario = Scenario(tmp_path / "scenario", hoppers())
    made.second(lambda number: scenario.step(0 if number < 4 else 1))
    row = made.row()
    assert row["samples_count"] == 8
    assert (row["sm_clock_min_hertz"], row["sm_clock_max_hertz"]) == (345e6, 1980e6)
    assert row["sm_clock_mean_hertz"] == (345e6 + 1980e6) / 2
    assert (row["power_min_watts"], row["power_max_watts"]) == (69.62, 588.39)
    assert (row["power_cap_ratio"], row["thermal_ratio"], row["power_brake_ratio"]) == (0.5, 0, 0)
    # GPM looks back: seven spans between eight samples, the last four of them at work.
    assert row["sm_active_ratio"] == pytest.approx(0.97 * 4 / 7)
    assert (row["sm_active_min_ratio"], row["sm_active_max_ratio"]) == (0, 0.97)
    assert row["pcie_received_bytes_per_second"] == pytest.approx((3 * 2 + 4 * 640) / 7 * 2**20)
    assert row["nvlink_transmitted_bytes_per_second"] == pytest.approx(4 / 7 * 119_000 * 2**20)


def test_a_sample_is_told_once(lane: Callable[..., Lane]) -> None:
    made = lane()
    made.second()
    assert made.row()["samples_count"] == 8
    assert made.fast.collect() == ()
    made.second()
    assert made.row()["samples_count"] == 8


def test_a_gpu_without_gpm_has_the_rest(lane: Callable[..., Lane]) -> None:
    """An A100 beside an H100: no GPM is no error, and not nothing at work either."""
    older, newer = hoppers()
    older.values["gpm_supported"] = 0
    made = lane([older, newer])
    made.second()
    block = made.fast.collect()[0]
    assert "sm_active_ratio" not in values(block, 0)
    assert values(block, 0)["sm_clock_mean_hertz"] == 345e6
    assert values(block, 1)["sm_active_ratio"] == 0.0
    assert made.sampler._gpm.failed == 0


@pytest.mark.parametrize("symbol", nvml_gpm.SYMBOLS)
def test_a_driver_that_lacks_a_symbol_costs_gpm_alone(
    symbol: str, roots: Roots, play: Callable[..., Scenario], tmp_path: Path
) -> None:
    """Drivers before 520 export none of them."""
    play(hoppers())
    (tmp_path / "older").mkdir()
    older = Roots(roots.sys, roots.proc, str(build(tmp_path / "older", missing=[symbol])))
    made = Lane(older)
    made.second()
    row = made.row()
    made.sampler.close()
    assert row["sm_clock_mean_hertz"] == 345e6
    assert "sm_active_ratio" not in row


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("101", 1.0), ("102", None), ("4294967295", None), ("!15", None), ("-", None)),
        ("!1000", None),  # the driver leaves it out of its answer: not 0 % busy
    ],
)
def test_a_share_that_cannot_be_is_no_reading(
    value: str, expected: float | None, lane: Callable[..., Lane]
) -> None:
    """A driver rounds 100.02 up; a share of four billion is garbage, and must not raise a mean."""
    gpu, neighbour = hoppers()
    gpu.values["gpm_sm_util"] = value
    made = lane([gpu, neighbour])
    made.second()
    block = made.fast.collect()[0]
    assert values(block, 0).get("sm_active_ratio") == expected
    assert values(block, 0)["tensor_active_ratio"] == 0.0
    assert values(block, 1)["sm_active_ratio"] == 0.0


def test_a_gpu_that_fails_begins_anew_and_its_neighbour_does_not_notice(
    lane: Callable[..., Lane], tmp_path: Path
) -> None:
    """A GPU that was reset: the first sample after it must not be compared with one from before."""
    sick, well = hoppers()
    sick.lines.append("error nvmlGpmSampleGet 0 999 0")
    made = lane([sick, well])
    scenario = Scenario(tmp_path / "scenario", [sick, well])
    made.second()
    scenario.step(1)
    made.second()
    block = made.fast.collect()[0]
    assert made.sampler._gpm.failed == 8
    assert len(made.sampler.ring.floats(made.sampler.ring.since(0), 3, 1)) == 15
    assert len(made.sampler.ring.floats(made.sampler.ring.since(0), 3, 0)) == 7
    assert values(block, 1)["samples_count"] == 16
    scenario.step(2)
    made.second()
    assert len(made.sampler.ring.floats(made.sampler.ring.since(0), 3, 0)) == 7 + 7


def test_what_is_of_no_use_any_more_is_opened_anew(
    lane: Callable[..., Lane], tmp_path: Path
) -> None:
    """The driver was reloaded: handles of before answer nothing but errors, for ever."""
    devices = hoppers()
    for gpu in devices:
        gpu.lines.append("error * 0 999")
    made = lane(devices)
    scenario = Scenario(tmp_path / "scenario", devices)
    made.second()
    last_ns = made.clock.now_ns
    assert made.sampler.well_ns == last_ns
    scenario.step(1)
    made.second()
    assert made.sampler.well_ns == last_ns


def test_samples_that_are_too_close_are_left_out(lane: Callable[..., Lane]) -> None:
    """One sample came 110 ms late, the next in time: over 15 ms GPM's mean is noise (nvml.h: 100 ms)."""
    made = lane()
    for after_ns in (PERIOD_NS, PERIOD_NS, PERIOD_NS + 110_000_000, 15_000_000, PERIOD_NS):
        made.clock.now_ns += after_ns
        made.sampler.sample(made.clock.now_ns)
    ring = made.sampler.ring
    assert [len(ring.floats([n], 3, 0)) for n in ring.since(0)] == [0, 1, 1, 0, 1]
    assert [len(ring.floats([n], 0, 0)) for n in ring.since(0)] == [1] * 5
    assert made.sampler._gpm.failed == 0


class Ticking(threading.Event):
    """Never waits: the clock goes on by as much as was to be waited, until the end of the test."""

    def __init__(self, clock: HandedClock, seconds: int) -> None:
        super().__init__()
        self.clock, self.end_ns = clock, clock.now_ns + seconds * 1_000_000_000

    def wait(self, timeout: float | None = None) -> bool:
        self.clock.now_ns += round((timeout or 0) * 1e9)
        if self.clock.now_ns >= self.end_ns:
            self.set()
        return self.is_set()


def openings(roots: Roots, seconds: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the thread's work run for so long, and return the seconds at which it opened the GPUs."""
    opened: list[int] = []
    original = Sampler._open
    clock = HandedClock()

    def noted(self: Sampler, roots: Roots) -> None:
        opened.append(clock.now_ns // 1_000_000_000 - 1)
        original(self, roots)

    monkeypatch.setattr(Sampler, "_open", noted)
    fast = GpuFast(roots)
    fast._clock, fast._stop = clock, Ticking(clock, seconds)
    fast._wanted.set()
    fast._run()
    assert fast._sampler is None
    return opened


@pytest.mark.parametrize(
    ("lines", "gaps"),
    [
        ([], []),
        (["error nvmlDeviceGetClockInfo 999", "error nvmlGpmSampleGet 999"], []),  # is lost, say
        (["error nvmlGpmSampleGet 999"], [10, 20, 40, 80, 160, 320, 600, 600]),
    ],
)
def test_one_sick_gpu_disturbs_its_neighbours_ever_more_rarely(
    lines: list[str],
    gaps: list[int],
    roots: Roots,
    play: Callable[..., Scenario],
    library: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight GPUs were closed and attached again every ten seconds, for a month, because GPM failed on one."""
    devices = hoppers()
    devices[1].lines += lines
    play(devices)
    opened = openings(roots, 1900, monkeypatch)
    assert [round(b - a, -1) for a, b in pairwise(opened)] == gaps
    assert ctypes.CDLL(library).fake_nvml_users() == 0
    assert ctypes.CDLL(library).fake_nvml_gpm_samples() == 0


def test_a_driver_that_answers_nothing_is_asked_ever_more_rarely(
    roots: Roots, play: Callable[..., Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU whose clock nobody may read, in a container: NVML was opened anew every ten seconds."""
    devices = hoppers(1)
    devices[0].lines.append("error nvmlDeviceGetClockInfo 4")
    play(devices)
    opened = openings(roots, 700, monkeypatch)
    assert [round(b - a, -1) for a, b in pairwise(opened)] == [10, 20, 40, 80, 160, 320]


def test_whatever_ends_the_sampling_nothing_stays_open(
    roots: Roots,
    play: Callable[..., Scenario],
    library: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error that nobody had thought of left one more user of NVML each minute."""
    play(hoppers())

    def broken(self: Sampler, now_ns: int) -> None:
        raise MemoryError

    monkeypatch.setattr(Sampler, "sample", broken)
    assert len(openings(roots, 200, monkeypatch)) == 4
    assert ctypes.CDLL(library).fake_nvml_users() == 0
    assert ctypes.CDLL(library).fake_nvml_gpm_samples() == 0


def test_samples_are_freed(lane: Callable[..., Lane], library: str) -> None:
    alive = ctypes.CDLL(library).fake_nvml_gpm_samples
    before = alive()
    made = lane()
    assert alive() == before + 4
    made.sampler.close()
    made.sampler.close()
    assert alive() == before


def test_without_a_driver_there_is_no_data(tmp_path: Path) -> None:
    with pytest.raises(NoData, match="no NVML"):
        Sampler(Roots(tmp_path, tmp_path, "no-nvml-here.so"))


def test_its_own_thread_samples_and_ends(roots: Roots, play: Callable[..., Scenario]) -> None:
    """The thread as the daemon has it, with the machine's clock: it samples, tells, and lets go."""
    play(hoppers())
    enough = threading.Event()
    fast = GpuFast(roots)
    sample = Sampler.sample

    def counted(self: Sampler, now_ns: int) -> None:
        sample(self, now_ns)
        if self.ring.count >= 3:
            enough.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sampler, "sample", counted)
        fast.listen(Teller(SystemClock(), NoEvents(), lambda: None))
        assert enough.wait(GUARD_SECONDS)
        (block,) = fast.collect()
        assert values(block, 1)["samples_count"] >= 3
        assert fast._thread
        fast.close()
        fast._thread.join(GUARD_SECONDS)
        assert not fast._thread.is_alive()


def test_a_sample_that_does_not_return_is_named_and_stops_nobody(
    roots: Roots, play: Callable[..., Scenario], tmp_path: Path
) -> None:
    """One sick GPU: the loop must not wait for it, and an operator must read which GPU and call it is."""
    gate = tmp_path / "gate"
    devices = hoppers()
    devices[1].lines.append(f"block nvmlDeviceGetClockInfo file {gate}")
    play(devices)
    clock = HandedClock()
    fast = GpuFast(roots)
    fast.listen(Teller(clock, NoEvents(), lambda: None))
    try:
        entered = threading.Event()
        while not entered.wait(0.01):  # until the thread is in the call; the library has no bell
            sampler = fast._sampler
            if sampler and sampler._sweep.stuck_at():
                entered.set()
        clock.now_ns += gpu_fast.DEADLINE_NS + 1
        turn = take_turn(fast, clock)
        assert turn.outcome is Outcome.HUNG
        assert re.search(r"0000:2a:00\.0 in nvmlDeviceGetClockInfo", turn.words), turn.words
    finally:
        gate.touch()
        fast.close()


@given(
    st.lists(st.tuples(st.floats(0, 3e9), st.integers(0, 2**64 - 1)), min_size=1, max_size=12),
)
def test_shares_are_shares_and_means_lie_between(samples: list[tuple[float, int]]) -> None:
    """Whatever the flags, whatever the clocks."""
    ring = Ring(gpu_fast.COLUMNS, 1)
    for at, (clock, flags) in enumerate(samples, start=1):
        block = Block("gpu_fast_1s", ["g"], [1301, 1304, 1307])
        block.put_float(0, 0, clock)
        block.ints[2], block.valid[2] = flags, 1
        pad = gpu_fast.COLUMNS - 3
        ring.put(at, block.cells + bytearray(8 * pad), block.valid + bytearray(pad))
    out = Block("gpu_fast_1s", ["g"])
    gpu_fast.summarise(ring, ring.since(0), out)
    row = values(out, 0)
    low, high = row["sm_clock_min_hertz"], row["sm_clock_max_hertz"]
    assert low <= high
    assert low * (1 - 1e-12) <= row["sm_clock_mean_hertz"] <= high * (1 + 1e-12)
    assert "power_mean_watts" not in row
    for name in gpu_fast.REASONS:
        assert 0 <= row[name] <= 1
