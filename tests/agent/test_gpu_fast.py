"""The fast lane: ten samples a second of clock, power and use, five of GPM, and the summary."""

from __future__ import annotations

import ctypes
import math
import re
import subprocess
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gangline.agent.clock import SystemClock
from gangline.agent.collector import NoData
from gangline.agent.collectors import gpu_fast
from gangline.agent.collectors.gpu_fast import (
    COLUMN_NAMES,
    PERIOD_NS,
    SECOND_NS,
    GpuFast,
    GpuFastJobs,
    Samples,
    StepPeriods,
)
from gangline.agent.collectors.nvml_session import session_of
from gangline.agent.hardware.files import Roots
from gangline.contract.block import Block
from gangline.contract.recording import decode_recording
from gangline.contract.signals import BY_ID
from gangline.ext import nvml_gpm, place
from gangline.ext.nvml_gpm import Gpm
from gangline.ext.nvml_ring import SampleRing
from gangline.ext.phases import HISTORY_SIGNALS, STATES, PhaseTracker, SampleHistory
from tests.agent.fakes import HandedClock
from tests.fake_nvml.build import build, compiler, header_folder
from tests.fake_nvml.fixtures import Play
from tests.fake_nvml.parts_scenario import with_gpm
from tests.fake_nvml.scenario import Gpu, Scenario, gpus
from tests.processes import GUARD_SECONDS

#: The ring's column of GPM's first metric.
ACTIVE = COLUMN_NAMES.index("sm_active_ratio")


def hoppers(count: int = 2) -> list[Gpu]:
    return [with_gpm(gpu) for gpu in gpus(count)]


@pytest.fixture
def roots(tmp_path: Path, library: str) -> Roots:
    (tmp_path / "proc").mkdir()
    return Roots(sys=tmp_path / "sys", proc=tmp_path / "proc", nvml_library=library)


class Lane:
    """The collector, with samples at the test's clock."""

    def __init__(self, roots: Roots) -> None:
        self.clock = HandedClock()
        session_of(roots).clock = self.clock
        self.fast = GpuFast(roots)
        self.fast._session.clock = self.clock
        self.jobs = GpuFastJobs(roots)
        self.fast.collect()

    @property
    def ring(self) -> SampleRing:
        assert self.fast.samples is not None
        return self.fast.samples.ring

    @property
    def samples(self) -> Samples:
        assert self.fast.samples is not None
        return self.fast.samples

    @property
    def gpm(self) -> Gpm:
        assert self.fast.samples is not None
        return self.fast.samples.gpm

    def second(self, act: Callable[[int], None] = lambda number: None) -> None:
        """Take the ten samples of a second; *act* is called before each."""
        for number in range(10):
            act(number)
            self.clock.now_ns += PERIOD_NS
            if self.fast.samples is not None:
                self.ring.sample(self.clock.now_ns)

    def known(self, column: int, row: int) -> list[int]:
        return [value for value in self.ring.samples(column, row) if value is not None]

    def jobs_after_a_second(self) -> Block:
        self.second()
        self.fast.collect()
        (block,) = self.jobs.collect()
        return block

    def row(self, row: int = 0) -> dict[str, float]:
        (block,) = self.fast.collect()
        return values(block, row)


def values(block: Block, row: int) -> dict[str, float]:
    return {BY_ID[s].column: float(v) for s, v in block.values(row) if v is not None}


@pytest.fixture
def lane(roots: Roots, play: Play) -> Iterator[Callable[..., Lane]]:
    result: list[Lane] = []

    def make(devices: Sequence[Gpu] | None = None, host: str = "") -> Lane:
        play(hoppers() if devices is None else devices, host)
        result.append(Lane(roots))
        return result[-1]

    yield make
    for opened in result:
        opened.fast._session.close()


def test_the_structs_are_those_of_the_header(tmp_path: Path) -> None:
    """With a struct of another length the driver would write past its end, on ten thousand hosts."""
    source = tmp_path / "sizes.c"
    source.write_text(
        "#include <nvml.h>\n#include <stddef.h>\n#include <stdio.h>\n"
        'int main(void) { printf("%zu %zu %zu %d %d %zu", sizeof(nvmlGpmSupport_t), '
        "sizeof(nvmlGpmMetric_t), offsetof(nvmlGpmMetricsGet_t, metrics), "
        "NVML_GPM_SUPPORT_VERSION, NVML_GPM_METRICS_GET_VERSION, sizeof(nvmlGpmMetricsGet_t)); }\n"
    )
    program = tmp_path / "sizes"
    subprocess.run(
        [*compiler(), f"-I{header_folder()}", str(source), "-o", str(program)], check=True
    )
    sizes = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    *ours, room = nvml_gpm.LAYOUT.values()
    assert [int(size) for size in sizes[:-1]] == [*ours, 1, 1]
    assert int(sizes[-1]) <= room, "a driver may write as much as the header's array has"


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
    """Half a second of waiting and half of work: the mean alone would show neither."""
    fast_lane = lane()
    scenario = Scenario(tmp_path / "scenario", hoppers())
    fast_lane.second(lambda number: scenario.step(0 if number < 5 else 1))
    row = fast_lane.row()
    assert row["samples_count"] == 10
    assert (row["sm_clock_min_hertz"], row["sm_clock_max_hertz"]) == (345e6, 1980e6)
    assert row["sm_clock_mean_hertz"] == (345e6 + 1980e6) / 2
    assert (row["power_min_watts"], row["power_max_watts"]) == (69.62, 588.39)
    assert (row["power_cap_ratio"], row["thermal_ratio"], row["power_brake_ratio"]) == (0.5, 0, 0)
    # GPM looks back: four spans between the five samples 0, 2, 4, 6, 8, the last two of them at
    # work.
    assert row["sm_active_ratio"] == pytest.approx(0.97 * 2 / 4)
    assert (row["sm_active_min_ratio"], row["sm_active_max_ratio"]) == (0, 0.97)
    assert row["pcie_received_bytes_per_second"] == pytest.approx((2 * 2 + 2 * 640) / 4 * 2**20)
    assert row["nvlink_transmitted_bytes_per_second"] == pytest.approx(2 / 4 * 119_000 * 2**20)


def test_a_sample_is_told_once(lane: Callable[..., Lane]) -> None:
    fast_lane = lane()
    fast_lane.second()
    assert fast_lane.row()["samples_count"] == 10
    assert fast_lane.fast.collect() == ()
    fast_lane.second()
    assert fast_lane.row()["samples_count"] == 10


def test_a_gpu_without_gpm_has_the_rest(lane: Callable[..., Lane]) -> None:
    """An A100 next to an H100: missing GPM means neither an error nor idleness."""
    older, newer = hoppers()
    older.values["gpm_supported"] = 0
    fast_lane = lane([older, newer])
    fast_lane.second()
    block = fast_lane.fast.collect()[0]
    assert "sm_active_ratio" not in values(block, 0)
    assert values(block, 0)["sm_clock_mean_hertz"] == 345e6
    assert values(block, 1)["sm_active_ratio"] == 0.0
    assert fast_lane.gpm.failed == 0


@pytest.mark.parametrize("symbol", nvml_gpm.SYMBOLS)
def test_a_missing_symbol_costs_gpm(symbol: str, roots: Roots, play: Play, tmp_path: Path) -> None:
    """Drivers before 520 do not export them."""
    play(hoppers())
    (tmp_path / "older").mkdir()
    older = Roots(roots.sys, roots.proc, str(build(tmp_path / "older", missing=[symbol])))
    lane = Lane(older)
    lane.second()
    row = lane.row()
    lane.fast._session.close()
    assert row["sm_clock_mean_hertz"] == 345e6
    assert "sm_active_ratio" not in row


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("101", 1.0), ("102", None), ("4294967295", None), ("!15", None), ("-", None)),
        ("!1000", None),  # the driver omits it from its answer: not 0 % busy
    ],
)
def test_impossible_shares(value: str, expected: float | None, lane: Callable[..., Lane]) -> None:
    """A driver rounds 100.02 up; a share of four billion is garbage, and must not raise a mean."""
    gpu, neighbour = hoppers()
    gpu.values["gpm_sm_util"] = value
    fast_lane = lane([gpu, neighbour])
    fast_lane.second()
    block = fast_lane.fast.collect()[0]
    assert values(block, 0).get("sm_active_ratio") == expected
    assert values(block, 0)["tensor_active_ratio"] == 0.0
    assert values(block, 1)["sm_active_ratio"] == 0.0


def test_a_failed_gpu_restarts_alone(lane: Callable[..., Lane], tmp_path: Path) -> None:
    """A GPU was reset: its first sample afterwards must not be compared with an earlier one."""
    sick, well = hoppers()
    sick.lines.append("error nvmlGpmSampleGet 0 999 0")
    fast_lane = lane([sick, well])
    scenario = Scenario(tmp_path / "scenario", [sick, well])
    fast_lane.second()
    scenario.step(1)
    fast_lane.second()
    block = fast_lane.fast.collect()[0]
    assert fast_lane.gpm.failed == 5
    assert len(fast_lane.known(ACTIVE, 1)) == 9
    assert len(fast_lane.known(ACTIVE, 0)) == 4
    assert values(block, 1)["samples_count"] == 20
    scenario.step(2)
    fast_lane.second()
    assert len(fast_lane.known(ACTIVE, 0)) == 4 + 4


def test_useless_handles_are_opened_anew(lane: Callable[..., Lane], tmp_path: Path) -> None:
    """The driver was reloaded: old handles only return errors."""
    devices = hoppers()
    for gpu in devices:
        gpu.lines.append("error * 0 999")
    fast_lane = lane(devices)
    scenario = Scenario(tmp_path / "scenario", devices)
    fast_lane.second()
    last_ns = fast_lane.clock.now_ns
    assert fast_lane.ring.well_ns == last_ns
    scenario.step(1)
    fast_lane.second()
    assert fast_lane.ring.well_ns == last_ns


def test_samples_that_are_too_close_are_left_out(lane: Callable[..., Lane]) -> None:
    """One sample came late, the next in time: over 15 ms GPM's mean is noise (nvml.h: 100 ms)."""
    fast_lane = lane()
    for after_ns in (PERIOD_NS, PERIOD_NS, PERIOD_NS, PERIOD_NS, 110_000_000, 7_000_000, 8_000_000):
        fast_lane.clock.now_ns += after_ns
        fast_lane.ring.sample(fast_lane.clock.now_ns)
    # At every second sample; the first has no predecessor, the last is 15 ms after its predecessor.
    known = [value is not None for value in fast_lane.ring.samples(ACTIVE, 0)]
    assert known == [False, False, True, False, True, False, False]
    assert None not in fast_lane.ring.samples(0, 0)
    assert fast_lane.gpm.failed == 0


def makings(made: Lane, seconds: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Advance by *seconds*, and return the seconds at which the GPUs' handles were requested."""
    result: list[int] = []
    original = Samples.__init__
    begin_ns = made.clock.now_ns

    def noted(self: Samples, *arguments: Any) -> None:
        result.append((made.clock.now_ns - begin_ns) // 1_000_000_000)
        original(self, *arguments)

    monkeypatch.setattr(Samples, "__init__", noted)
    for _ in range(seconds):
        made.second()
        made.fast.collect()
    return result


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], []),
        # for example a lost GPU
        (["error nvmlDeviceGetClockInfo 999", "error nvmlGpmSampleGet 999"], []),
        (["error nvmlGpmSampleGet 999"], [10, 30, 70, 150, 310, 630, 1230, 1830]),
    ],
)
def test_one_sick_gpu_disturbs_its_neighbours_ever_more_rarely(
    lines: list[str],
    expected: list[int],
    lane: Callable[..., Lane],
    library: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight GPUs were reopened every ten seconds, for a month, because GPM failed on one."""
    devices = hoppers()
    devices[1].lines += lines
    fast_lane = lane(devices)
    assert makings(fast_lane, 1900, monkeypatch) == expected
    fast_lane.fast._session.close()
    assert ctypes.CDLL(library).fake_nvml_users() == 0
    assert ctypes.CDLL(library).fake_nvml_gpm_samples() == 0


def test_a_silent_driver(lane: Callable[..., Lane], monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may not read its GPU's clock: NVML was reopened every ten seconds."""
    devices = hoppers(1)
    devices[0].lines.append("error nvmlDeviceGetClockInfo 4")
    assert makings(lane(devices), 700, monkeypatch) == [10, 30, 70, 150, 310, 630]


def test_phases_travel_with_the_second(lane: Callable[..., Lane], tmp_path: Path) -> None:
    """Half a second of work and half of nothing: shares appear once both levels are known."""
    fast_lane, scenario = lane(), Scenario(tmp_path / "scenario", hoppers())
    for _ in range(10):
        fast_lane.second(lambda number: scenario.step(0 if number < 5 else 1))
    row = fast_lane.row()
    states = [row[f"{state}_ratio"] for state in STATES]
    assert sum(states) == pytest.approx(1)
    assert states[0] == pytest.approx(0.5, abs=0.11)
    (block,) = fast_lane.jobs.collect()
    assert values(block, 0)["job_changes_count"] == 1
    assert values(block, 0)["compute_watts"] == pytest.approx(588.39, rel=0.01)
    assert "step_seconds" not in values(block, 0)


def test_another_set_of_processes_is_another_job(lane: Callable[..., Lane]) -> None:
    """With the old job's levels the next one seems to wait; a health check must not reset them."""
    fast_lane = lane()
    changes = []
    for pids in ((), (1, 2), (1, 2, 3), (2, 3), (7,), (), None, (9,)):
        if pids is not None:
            fast_lane.fast._session.compute_processes = {fast_lane.samples.keys[0]: frozenset(pids)}
        block = fast_lane.jobs_after_a_second()
        changes.append(values(block, 0)["job_changes_count"])
    assert changes == [0, 1, 1, 1, 2, 2, 2, 3]
    assert fast_lane.samples.tracker.state(1)[0] == "idle"  # no data about the neighbor


def test_what_was_learned_outlives_the_handles(lane: Callable[..., Lane]) -> None:
    """A neighbor is excluded, NVML is reopened: the job continues with its levels."""
    fast_lane = lane()
    fast_lane.fast._session.compute_processes = {fast_lane.samples.keys[0]: frozenset({1})}
    fast_lane.second()
    fast_lane.fast.collect()
    tracker, history = fast_lane.samples.tracker, fast_lane.samples.history
    fast_lane.fast._session.close()
    with pytest.raises(NoData, match="no samples"):
        fast_lane.jobs.collect()
    fast_lane.fast.collect()
    assert (fast_lane.samples.tracker, fast_lane.samples.history) == (tracker, history)
    block = fast_lane.jobs_after_a_second()
    assert values(block, 0)["job_changes_count"] == 1


def test_other_gpus_begin_with_nothing(lane: Callable[..., Lane], play: Play) -> None:
    """A GPU was removed: the next one must not inherit its row."""
    fast_lane = lane(hoppers(3))
    fast_lane.fast._session.compute_processes = {
        key: frozenset({1}) for key in fast_lane.samples.keys
    }
    fast_lane.second()
    fast_lane.fast.collect()
    tracker = fast_lane.samples.tracker
    fast_lane.fast._session.close()
    play(hoppers(2))
    fast_lane.fast._session.compute_processes = {}
    fast_lane.fast.collect()
    assert fast_lane.samples.tracker is not tracker
    block = fast_lane.jobs_after_a_second()
    assert [values(block, row)["job_changes_count"] for row in range(2)] == [0, 0]


def test_the_history_has_each_sample(lane: Callable[..., Lane]) -> None:
    """It is the source for the step period: power of each sample, GPM of every second one."""
    fast_lane = lane()
    fast_lane.second()
    buffer = array("f", bytes(4 * 20))
    assert fast_lane.samples.history.copy_to(1, HISTORY_SIGNALS.index("power_watts"), buffer) == 10
    assert buffer[9] == pytest.approx(69.621)
    fast_lane.samples.history.copy_to(1, HISTORY_SIGNALS.index("sm_active_ratio"), buffer)
    assert [math.isnan(value) for value in buffer[:10]] == [True] * 2 + [False, True] * 4
    fast_lane.samples.history.copy_to(0, HISTORY_SIGNALS.index("state"), buffer)
    assert set(buffer[:10]) == {STATES.index("idle")}


class StepWorld:
    """Samples of two GPUs whose jobs have the given step: ten a second, until the clock stops."""

    def __init__(self) -> None:
        self.history, self.tracker = SampleHistory(2), PhaseTracker(2)
        self.periods = StepPeriods(self.history, self.tracker)
        self.now_ns = SECOND_NS

    def begin_job(self, row: int) -> None:
        self.tracker.begin_job(row)

    def run(self, seconds: float, *steps: float) -> None:
        """Continue for *seconds*; a step of 0 seconds hangs."""
        for number in range(int(seconds * 10)):
            self.now_ns += PERIOD_NS
            self.history.begin(self.now_ns)
            for row, step in enumerate(steps):
                watts = 550.0 if step and (self.now_ns / SECOND_NS) % step < 0.7 * step else 120.0
                self.history.put(row, 0, watts)
                self.tracker.push(row, self.now_ns, power=watts, utilization=1.0)
            if number % 20 == 0:
                self.periods.estimate_next()

    def steps(self) -> list[float | None]:
        return [step and round(step[0], 1) for step in map(self.periods.step, range(2))]


def test_each_job_has_its_step_and_the_next_job_does_not_inherit_it() -> None:
    """A new job showed the period of the last one for half a minute, and a hung process kept it."""
    world = StepWorld()
    world.begin_job(0)
    world.begin_job(1)
    world.run(15, 1.3, 2.0)
    assert world.steps() == [None, None]  # too few samples
    world.run(60, 1.3, 2.0)
    assert world.steps() == [1.3, 2.0]
    world.begin_job(0)
    assert world.steps() == [None, 2.0]
    world.run(60, 0.8, 0.0)
    assert world.steps() == [0.8, None]


def test_a_job_keeps_its_step_until_its_signals_have_another() -> None:
    """A minute of evaluation, or a multiple of the step, was reported as a new pace."""
    world = StepWorld()
    world.begin_job(0)
    world.run(200, 1.3, 0.0)
    world.run(60, 0.5, 0.0)
    assert world.steps()[0] == 1.3
    world.run(60, 1.3, 0.0)
    assert world.steps()[0] == 1.3
    world.run(700, 0.5, 0.0)
    assert world.steps()[0] == 0.5


def test_samples_are_freed(lane: Callable[..., Lane], library: str) -> None:
    alive = ctypes.CDLL(library).fake_nvml_gpm_samples
    before = alive()
    fast_lane = lane()
    assert alive() == before + 4
    fast_lane.fast._session.close()
    fast_lane.fast._session.close()
    assert alive() == before


def test_without_a_driver_there_is_no_data(tmp_path: Path) -> None:
    fast = GpuFast(Roots(tmp_path, tmp_path, "no-nvml-here.so"))
    with pytest.raises(NoData, match="no NVML"):
        fast.collect()
    fast.idle(SystemClock().boottime_ns() + int(GUARD_SECONDS * 1e9))  # nothing to do: at once


def test_it_samples_while_its_sampler_rests(roots: Roots, play: Play) -> None:
    """With the machine's clock: a sample at each grid point, including the end of the rest."""
    play(hoppers())
    fast, clock = GpuFast(roots), SystemClock()
    assert fast.collect() == ()
    until_ns = (clock.boottime_ns() // PERIOD_NS + 4) * PERIOD_NS
    fast.idle(until_ns)
    assert clock.boottime_ns() >= until_ns
    (block,) = fast.collect()
    assert values(block, 1)["samples_count"] in (3, 4)  # a busy machine may miss one
    fast._session.close()


def test_a_rest_ends_when_somebody_calls(roots: Roots, play: Play) -> None:
    """A sampler that receives a command only after its rest cannot release a GPU at once."""
    play(hoppers())
    fast, clock = GpuFast(roots), SystemClock()
    fast.collect()
    assert fast.samples is not None
    memory = bytearray(place.SIZE_BYTES)
    place.use(memory)
    place.call(memory)
    far_ns = clock.boottime_ns() + int(GUARD_SECONDS * 1e9)
    fast.idle(far_ns)
    assert clock.boottime_ns() < far_ns
    assert fast.samples.ring.count == 0  # the command may be to stop using a GPU
    assert (place.called(), place.called()) == (True, False)
    fast._session.close()


def test_an_excluded_gpu_is_not_asked(roots: Roots, play: Play, library: str) -> None:
    """The hanging GPU must not be called ten times a second either."""
    devices = hoppers()
    devices[1].lines.append("block * crash -")
    for gpu in devices:
        folder = roots.proc / "driver/nvidia/gpus" / gpu.address
        folder.mkdir(parents=True)
    play(devices)
    created = Lane.__new__(Lane)
    created.clock, created.fast = HandedClock(), GpuFast(roots)
    created.fast._session.clock = created.clock
    created.fast.exclude(frozenset({devices[1].address}))
    created.fast.collect()
    created.second()
    (block,) = created.fast.collect()
    assert values(block, 0)["samples_count"] == 10
    assert values(block, 1) == {}
    created.fast._session.close()
    assert ctypes.CDLL(library).fake_nvml_gpm_samples() == 0


def test_a_recording_has_the_last_samples_and_no_more_than_fit(roots: Roots, play: Play) -> None:
    """The newest samples of all GPUs; the oldest do not fit. Empty before the first sample."""
    play(hoppers(2))
    with pytest.raises(NoData, match="no GPU of this host"):
        GpuFast(roots).record(5, 1 << 20)
    lane = Lane(roots)
    with pytest.raises(NoData, match="in that time"):
        lane.fast.record(5, 1 << 20)
    for _ in range(4):
        lane.second()
    whole = decode_recording(lane.fast.record(300, 1 << 20))
    assert (whole.devices, whole.signals, whole.states) == (
        lane.samples.keys,
        HISTORY_SIGNALS,
        STATES,
    )
    assert whole.samples == 40 and whole.seconds == pytest.approx(3.9)
    assert whole.boottime_ns + whole.offsets_ns[-1] == lane.clock.boottime_ns()
    power = whole.column(1, HISTORY_SIGNALS.index("power_watts"))
    assert all(map(math.isfinite, power))
    assert decode_recording(lane.fast.record(2, 1 << 20)).samples == 21
    row_bytes = 8 + 4 * len(HISTORY_SIGNALS) * 2
    small = decode_recording(lane.fast.record(300, gpu_fast.RECORDING_HEADER_BYTES + 7 * row_bytes))
    assert list(small.offsets_ns) == [PERIOD_NS * index for index in range(7)]
    assert small.column(1, 0) == power[-7:]
    lane.fast._session.close()
