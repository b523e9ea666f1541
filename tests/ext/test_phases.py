"""A GPU's use of time, derived only from its readings: against traces with known states."""

from __future__ import annotations

import csv
import math
import random
from array import array
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.ext.phases import (
    HISTORY_SIGNALS,
    JOB_COLUMNS,
    SECOND_COLUMNS,
    SIGNALS,
    PhaseTracker,
    SampleHistory,
)
from tests.ext.phase_traces import (
    BEGIN_NS,
    CHECKPOINT,
    COMPUTE,
    HOST_STALL,
    IDLE,
    NAN,
    NS,
    WAIT,
    Levels,
    Plan,
    Trace,
    follow,
    steps,
    trace,
    true_mean,
)

RECORDINGS = Path(__file__).parents[2] / "../shared/data/power"
#: Seconds until levels are learned and shares are right.
LEARNED_SECONDS = 20
H100, A100, SMALL, LARGE = (
    Levels(),
    Levels(300, 95, 75, 50),
    Levels(68, 36, 28, 10),
    Levels(1000, 330, 240, 140),
)


def job(tracker: PhaseTracker, made: Trace) -> dict[str, float]:
    return tracker.job(0, made.times[-1])


def checkpointing(times: int, every: int, seconds: float, shift: float = 0.0) -> Plan:
    """Return steps of a second, a checkpoint after each *every*, each *shift* longer."""
    plan: list[tuple[int, float]] = []
    for number in range(times):
        plan += [*steps(every, 0.8, 0.2), (CHECKPOINT, seconds + number * shift)]
    return plan


@pytest.mark.parametrize("gpm", [True, False], ids=["gpm", "power alone"])
@pytest.mark.parametrize(
    ("compute", "wait", "stall"),
    [(0.7, 0.3, 0), (2.1, 0.9, 0), (0.5, 0.5, 0), (0.6, 0.1, 0.3), (3.0, 0.5, 0.5)],
)
def test_shares_are_those_of_the_job(compute: float, wait: float, stall: float, gpm: bool) -> None:
    """Use reads 100 % while waiting: the victims of a straggler looked as busy as the straggler."""
    gpu_trace = trace(steps(int(90 / (compute + wait + stall)), compute, wait, stall), gpm=gpm)
    seen = follow(PhaseTracker(1), gpu_trace)
    for state in range(5):
        truth = true_mean(gpu_trace, state, LEARNED_SECONDS)
        assert seen.mean(state, LEARNED_SECONDS) == pytest.approx(truth, abs=0.03)


@pytest.mark.parametrize(
    "levels", [H100, A100, SMALL, LARGE], ids=["h100", "a100", "small", "large"]
)
@pytest.mark.parametrize("gpm", [True, False], ids=["gpm", "power alone"])
def test_both_levels_are_learned(levels: Levels, gpm: bool) -> None:
    """Watts of waiting of one model are wrong for every other."""
    gpu_trace = trace([(IDLE, 5), *steps(50, 1.5, 1.0)], levels=levels, gpm=gpm)
    tracker = PhaseTracker(1)
    follow(tracker, gpu_trace)
    result = job(tracker, gpu_trace)
    assert result["compute_watts"] == pytest.approx(levels.compute, rel=0.03)
    assert result["wait_watts"] == pytest.approx(levels.wait, rel=0.03)


@pytest.mark.parametrize("gpm", [True, False], ids=["gpm", "power alone"])
def test_a_straggler_that_comes_moves_time_from_work_to_waiting(gpm: bool) -> None:
    """A level that follows the mean would call the slower job as busy as before."""
    gpu_trace = trace([*steps(60, 0.9, 0.6), *steps(60, 0.9, 1.1)], gpm=gpm)
    seen = follow(PhaseTracker(1), gpu_trace)
    assert seen.mean(WAIT, 100) == pytest.approx(1.1 / 2.0, abs=0.03)


def test_without_two_levels_there_is_little_confidence() -> None:
    """A single level is work or waiting: it is ambiguous, and a verdict must not rely on a guess."""
    for plan in (steps(1, 60), steps(1, 0, 60)):
        seen = follow(PhaseTracker(1), trace(plan, gpm=False))
        assert max(seen.confidence) < 0.5


def test_an_average_of_a_second_has_little_confidence_without_gpm() -> None:
    """A100 and H100 average power over a second, which hides steps of a second."""
    tracker, gpu_trace = PhaseTracker(1), trace(steps(90, 0.7, 0.3), gpm=False, smooth_seconds=1.0)
    seen = follow(tracker, gpu_trace)
    assert seen.confidence[-1] < 0.5
    assert math.isnan(job(tracker, gpu_trace)["wait_watts"])


def test_an_average_of_a_second_is_told_by_gpm() -> None:
    """With GPM the shares do not depend on the averaging of power."""
    gpu_trace = trace(steps(90, 0.7, 0.3), smooth_seconds=1.0)
    seen = follow(PhaseTracker(1), gpu_trace)
    assert seen.mean(COMPUTE, LEARNED_SECONDS) == pytest.approx(0.7, abs=0.03)


def test_power_smoothing_hides_waiting_from_power_but_not_from_gpm() -> None:
    """Blackwell can enforce a power floor: with 480 W while waiting it would seem to compute."""
    plan = steps(90, 0.7, 0.3)
    smoothed = follow(PhaseTracker(1), trace(plan, floor_watts=480))
    plain = follow(PhaseTracker(1), trace(plan))
    assert smoothed.mean(WAIT, LEARNED_SECONDS) == pytest.approx(0.3, abs=0.03)
    assert smoothed.confidence[-1] < plain.confidence[-1]
    blind = follow(PhaseTracker(1), trace(plan, floor_watts=480, gpm=False))
    assert max(blind.confidence) < 0.5


@pytest.mark.parametrize("gpm", [True, False], ids=["gpm", "power alone"])
@pytest.mark.parametrize("writer", [True, False], ids=["writer", "waits"])
@pytest.mark.parametrize(("every", "seconds"), [(24, 6.0), (45, 3.0), (16, 2.0), (40, 40.0)])
def test_checkpoints_of_any_cadence(every: int, seconds: float, writer: bool, gpm: bool) -> None:
    """A checkpoint is not a fault: waiting recognized as regular checkpoints needs no culprit."""
    gpu_trace = trace(checkpointing(6, every, seconds), writer=writer, gpm=gpm)
    tracker = PhaseTracker(1)
    seen = follow(tracker, gpu_trace)
    result = job(tracker, gpu_trace)
    assert result["checkpoint_interval_seconds"] == pytest.approx(every + seconds, rel=0.02)
    assert result["checkpoint_duration_seconds"] == pytest.approx(seconds, abs=0.4)
    # The fourth begins after three intervals; the first three cannot be recognized yet.
    first = int(3 * (every + seconds)) + every - 1
    pairs = [
        (t[CHECKPOINT], s[CHECKPOINT]) for t, s in zip(gpu_trace.truth, seen.shares, strict=True)
    ]
    hits = sum(min(pair) for pair in pairs[first:])
    f1 = 2 * hits / sum(map(sum, pairs[first:]))
    assert f1 >= 0.95
    assert result["next_checkpoint_probability_ratio"] > 0.7
    count, correct, brier = tracker.scores(0)
    assert count == correct >= 2
    assert brier < 0.1


def test_checkpoints_that_take_ever_longer() -> None:
    """In the H100 recording a checkpoint took 17 s, then 56 s, after the same steps."""
    gpu_trace = trace(checkpointing(8, 24, 6.0, shift=2.0))
    tracker = PhaseTracker(1)
    seen = follow(tracker, gpu_trace)
    assert tracker.scores(0)[:2] == (5, 5)
    assert seen.mean(CHECKPOINT, 120) == pytest.approx(
        true_mean(gpu_trace, CHECKPOINT, 120), abs=0.04
    )


def test_segments_of_the_past_are_called_checkpoints_once_that_is_known() -> None:
    """The first three look like waiting; a timeline that keeps this state accuses a host."""
    tracker = PhaseTracker(1)
    follow(tracker, trace([*checkpointing(4, 24, 6.0), *steps(3, 0.8, 0.2)]))
    result = [s for s in tracker.segments(0) if s[0] == "checkpoint" and s[2] - s[1] > 2 * NS]
    assert len(result) == 4
    assert all(watts == pytest.approx(150, rel=0.06) for *_, watts in result)
    seconds, watts = tracker.totals(0)["checkpoint"]
    assert seconds == pytest.approx(24, abs=1.5)
    assert watts == pytest.approx(150, rel=0.06)


@pytest.mark.parametrize("seed", range(1, 6))
def test_stalls_at_random_are_no_checkpoints(seed: int) -> None:
    """A full file system stalls all jobs at times: random pauses cannot be predicted."""
    draw = random.Random(seed)
    plan: list[tuple[int, float]] = []
    for _ in range(14):
        plan += steps(int(draw.expovariate(1 / 25)) + 2, 0.8, 0.2)
        plan.append((HOST_STALL, round(1 + draw.expovariate(1 / 3), 1)))
    seen = follow(PhaseTracker(1), trace(plan))
    assert seen.mean(CHECKPOINT) < 0.06


@pytest.mark.parametrize(("has_steps", "low", "high"), [(False, 0.5, 0.9), (True, 0.9, 1.0)])
def test_pauses_between_steps_are_surer(has_steps: bool, low: float, high: float) -> None:
    """The exchanges of a step of 28 s were checkpoints with a probability of .97."""
    tracker = PhaseTracker(1)
    gpu_trace = trace(checkpointing(20, 23, 5.0) if has_steps else steps(20, 23.0, 5.0))
    follow(tracker, gpu_trace)
    assert low < job(tracker, gpu_trace)["next_checkpoint_probability_ratio"] <= high


def test_a_wait_in_each_step_is_no_checkpoint() -> None:
    """Steps of 11 s in which the victims wait for 3 s: the straggler would be missed."""
    tracker = PhaseTracker(1)
    tracker.begin_job(0)
    tracker.set_step(0, 11.0)
    gpu_trace = trace(steps(16, 8.0, 3.0))
    seen = follow(tracker, gpu_trace)
    assert seen.mean(CHECKPOINT) == 0
    assert math.isnan(job(tracker, gpu_trace)["checkpoint_interval_seconds"])


def test_idle_until_a_job_comes_and_half_a_minute_after_it_went() -> None:
    """Without its processes, a job that ended looks like a host stall until 30 s are over."""
    gpu_trace = trace([(IDLE, 20), *steps(40, 0.7, 0.3), (IDLE, 60)])
    tracker = PhaseTracker(1)
    seen = follow(tracker, gpu_trace)
    assert seen.mean(IDLE, 0) == pytest.approx(50 / 120, abs=0.02)
    assert all(second[IDLE] == 1 for second in [*seen.shares[:20], *seen.shares[92:]])
    assert [name for name, *_ in tracker.segments(0)][-1] == "idle"
    assert job(tracker, gpu_trace)["job_changes_count"] == 1
    assert math.isnan(job(tracker, gpu_trace)["compute_watts"])


def test_a_host_stall_of_a_known_job_never_becomes_idle() -> None:
    """Reserved but unused: the processes exist, whatever the GPU does."""
    tracker = PhaseTracker(1)
    tracker.begin_job(0)
    seen = follow(tracker, trace([(HOST_STALL, 90)]))
    assert seen.mean(HOST_STALL) == 1
    tracker.end_job(0)
    seen = follow(tracker, trace([(IDLE, 5)], begin_ns=BEGIN_NS + 90 * NS))
    assert seen.mean(IDLE) == 1


def test_a_gpu_that_works_without_a_process_has_a_job_all_the_same() -> None:
    """In a container the agent sees no process of the others: that is not idle."""
    tracker = PhaseTracker(1)
    tracker.end_job(0)
    seen = follow(tracker, trace(steps(60, 0.7, 0.3)))
    assert seen.mean(COMPUTE, LEARNED_SECONDS) == pytest.approx(0.7, abs=0.03)


def test_levels_are_forgotten_with_the_job() -> None:
    """The next job is of another kind: 300 W are its work, but were half of the first job's."""
    first, second = Levels(), Levels(compute=300, wait=120)
    tracker = PhaseTracker(1)
    follow(tracker, trace(steps(60, 1.4, 0.6), levels=first))
    tracker.begin_job(0)
    gpu_trace = trace(steps(60, 1.4, 0.6), levels=second, begin_ns=BEGIN_NS + 120 * NS)
    follow(tracker, gpu_trace)
    assert job(tracker, gpu_trace)["compute_watts"] == pytest.approx(300, rel=0.03)
    assert job(tracker, gpu_trace)["job_changes_count"] == 2
    tracker.begin_job(0, is_known=False)  # the agent's first list
    assert job(tracker, gpu_trace)["job_changes_count"] == 2


def test_only_utilization_and_power_or_either() -> None:
    """A driver with only one of the two must cause neither an exception nor a confident result."""
    plan = [(IDLE, 5), *steps(60, 1.4, 0.6)]
    alone = follow(PhaseTracker(1), trace(plan, gpm=False, uses=False))
    assert alone.mean(COMPUTE, LEARNED_SECONDS) == pytest.approx(0.7, abs=0.04)
    without = follow(PhaseTracker(1), trace(plan, gpm=False, power=False))
    assert max(without.confidence[10:]) <= 0.2


def test_nothing_known_is_nothing_said() -> None:
    """All missing: no share of anything, not 100 % idle."""
    tracker = PhaseTracker(2)
    assert tracker.take_second(0) is None
    tracker.push(0, BEGIN_NS)
    tracker.push(0, BEGIN_NS + NS, power=NAN, utilization=-1.0, sm_active=7.0)
    assert tracker.take_second(0) is None
    tracker.push(1, BEGIN_NS, power=70.0)
    assert tracker.take_second(0) is None
    assert tracker.take_second(1) is not None
    assert tracker.take_second(1) is None  # each sample counts once


def test_duplicates_and_what_comes_late_are_left_out() -> None:
    """Time counted twice would make shares of more than a second."""
    gpu_trace = trace(steps(60, 0.7, 0.3))
    tracker, twice = PhaseTracker(1), PhaseTracker(1)
    follow(tracker, gpu_trace)
    for index in range(len(gpu_trace.times)):
        twice.push_samples(
            0, gpu_trace.times[index : index + 1], gpu_trace.samples[index : index + 1]
        )
        if index >= 3:
            twice.push_samples(
                0, gpu_trace.times[index - 3 : index + 1], gpu_trace.samples[index - 3 : index + 1]
            )
    assert twice.left_out(0) == 4 * (len(gpu_trace.times) - 3)
    assert job(twice, gpu_trace) == pytest.approx(job(tracker, gpu_trace), nan_ok=True)
    assert twice.totals(0)["compute"] == tracker.totals(0)["compute"]


def test_a_clock_that_steps_back_begins_time_again() -> None:
    """An hour back: without this, an hour of samples would be ignored."""
    tracker = PhaseTracker(1)
    follow(tracker, trace(checkpointing(4, 24, 6.0)))
    gpu_trace = trace(steps(30, 0.7, 0.3), begin_ns=BEGIN_NS - 900 * NS)
    seen = follow(tracker, gpu_trace)
    assert seen.mean(COMPUTE) == pytest.approx(0.7, abs=0.03)
    assert math.isnan(job(tracker, gpu_trace)["checkpoint_interval_seconds"])


def test_a_gap_is_nobodys_time() -> None:
    """The agent stopped for an hour: that was neither work nor waiting."""
    tracker = PhaseTracker(1)
    follow(tracker, trace(steps(60, 0.7, 0.3)))
    follow(tracker, trace(steps(60, 0.7, 0.3), begin_ns=BEGIN_NS + 3600 * NS))
    assert sum(seconds for seconds, _ in tracker.totals(0).values()) == pytest.approx(120, abs=1)
    assert all(end - begin < 61 * NS for _, begin, end, *_ in tracker.segments(0))


readings = st.floats(width=32) | st.just(NAN) | st.floats(0, 1, width=32)
samples = st.tuples(
    st.integers(-(2**62), 2**62) | st.integers(0, 10**11),
    st.lists(readings, min_size=len(SIGNALS), max_size=len(SIGNALS)),
)


@given(st.lists(samples, max_size=60), st.integers(0, 60))
def test_shares_of_any_samples(given_samples: list[tuple[int, list[float]]], job_at: int) -> None:
    """Garbage in any order: the five shares add up to 1, or are missing."""
    tracker = PhaseTracker(1)
    for index, (now_ns, values) in enumerate(given_samples):
        if index == job_at:
            tracker.begin_job(0)
        tracker.push_samples(
            0,
            array("q", [now_ns]),
            memoryview(array("f", values)).cast("B").cast("f", (1, len(SIGNALS))),
        )
        taken = tracker.take_second(0)
        if taken is not None:
            assert sum(taken[:5]) == pytest.approx(1)
            assert all(0 <= share <= 1 for share in taken)
        tracker.job(0, now_ns)
    assert len(tracker.segments(0)) <= 128


class PhaseBlock:
    """A stand-in of a Block with *columns* columns."""

    def __init__(self, columns: int, rows: int) -> None:
        self.rows = rows
        self.cells, self.valid = bytearray(8 * columns * rows), bytearray(b"\1" * columns * rows)

    def value(self, column: int, row: int) -> float | None:
        at = column * self.rows + row
        return memoryview(self.cells).cast("d")[at] if self.valid[at] else None


def test_a_block_has_what_is_known_of_each_row() -> None:
    """A neighbor's shares in a GPU's row would accuse the wrong one."""
    tracker = PhaseTracker(3)
    gpu_trace = trace(checkpointing(5, 24, 6.0))
    follow(tracker, gpu_trace, row=1)
    tracker.push(1, gpu_trace.times[-1] + NS, power=550.0, utilization=1.0, sm_active=0.9)
    block, jobs = PhaseBlock(len(SECOND_COLUMNS), 3), PhaseBlock(len(JOB_COLUMNS), 3)
    tracker.summarise(block, range(len(SECOND_COLUMNS)))
    tracker.summarise_jobs(jobs, range(len(JOB_COLUMNS)), gpu_trace.times[-1])
    assert [block.value(0, row) for row in range(3)] == [None, pytest.approx(1, abs=0.01), None]
    expected = job_of_row(tracker, gpu_trace)
    assert [jobs.value(column, 1) for column in range(len(JOB_COLUMNS))] == pytest.approx(expected)
    assert [jobs.value(column, 0) for column in range(len(JOB_COLUMNS))] == [0.0] + [None] * 6
    for bad in (PhaseBlock(5, 3), PhaseBlock(6, 2)):
        with pytest.raises(ValueError, match="lies outside its memory"):
            tracker.summarise(bad, range(6))
    with pytest.raises(ValueError, match="columns"):
        tracker.summarise(block, range(5))


def job_of_row(tracker: PhaseTracker, made: Trace) -> list[float]:
    return list(tracker.job(1, made.times[-1]).values())


def test_what_cannot_be_is_refused() -> None:
    """A row too many would be read from memory behind the block."""
    for rows in (0, -1, 257):
        with pytest.raises(ValueError, match="rows"):
            PhaseTracker(rows)
        with pytest.raises(ValueError, match="rows"):
            SampleHistory(rows)
    tracker = PhaseTracker(2)
    for row in (-1, 2):
        with pytest.raises(IndexError):
            tracker.push(row, 1)
        with pytest.raises(IndexError):
            tracker.take_second(row)
        with pytest.raises(IndexError):
            tracker.segments(row)
    with pytest.raises(ValueError, match="samples of"):
        tracker.push_samples(0, array("q", [1]), memoryview(bytes(8)).cast("f", (1, 2)))


def test_the_history_has_the_last_samples_oldest_first() -> None:
    """The period of a step is derived from it: a misplaced sample would be another period."""
    history = SampleHistory(2, 4)
    with pytest.raises(ValueError, match="no sample"):
        history.put(0, 0, 1.0)
    for number in range(6):
        history.begin(number * NS)
        history.put(1, 0, float(number))
    values, times = array("f", bytes(40)), array("q", bytes(80))
    assert history.copy_to(1, 0, values) == 4
    assert list(values[:4]) == [2, 3, 4, 5]
    assert history.copy_times_to(times) == 4
    assert list(times[:4]) == [2 * NS, 3 * NS, 4 * NS, 5 * NS]
    assert history.copy_to(1, 0, values[:2]) == 2
    assert history.copy_to(0, 0, values) == 4
    assert all(math.isnan(value) for value in values[:4])
    assert (history.count, history.length) == (6, 4)
    for row, column in ((2, 0), (-1, 0), (0, len(HISTORY_SIGNALS)), (0, -1)):
        with pytest.raises(IndexError):
            history.copy_to(row, column, values)


def test_a_late_sampler_makes_no_step_shorter() -> None:
    """A turn of 300 ms lost three samples of ten: the step of a second was found at 0.7 s."""
    history = SampleHistory(1, 8)
    for at in (0, 1, 2, 6, 7, 7.2, 8):
        history.begin(round(at * NS / 10))
        history.put(0, 0, at)
    cells = array("f", bytes(4 * 10))
    buffer = memoryview(cells).cast("B").cast("f", (1, 10))
    history.resample_to(0, [0], NS // 10, buffer)
    assert [None if math.isnan(v) else round(v, 1) for v in cells] == [
        *(None, 0, 1, 2, None, None, None, 6, 7.2, 8)
    ]
    with pytest.raises(ValueError, match="period"):
        history.resample_to(0, [0], 0, buffer)
    with pytest.raises(ValueError, match="2 columns into 1 rows"):
        history.resample_to(0, [0, 1], NS // 10, buffer)
    with pytest.raises(IndexError):
        history.resample_to(1, [0], 1, buffer)
    history.begin(-(10**15))  # another clock: no old sample is near it
    history.resample_to(0, [0], NS // 10, buffer)
    assert all(math.isnan(value) for value in cells)


@pytest.mark.parametrize("has_gpm", [True, False])
def test_a_kernel_that_is_bound_by_memory_computes(has_gpm: bool) -> None:
    """An H200 at 89 % of its memory bandwidth was waiting, at confidence 0.82."""
    tracker, now_ns = PhaseTracker(1), 10 * NS

    def run(seconds: int, watts: float, active: float, tensor: float, bandwidth: float) -> None:
        nonlocal now_ns
        for number in range(10 * seconds):
            now_ns += NS // 10
            gpm = {"sm_active": active, "tensor": tensor, "bandwidth": bandwidth}
            tracker.push(
                0, now_ns, power=watts, utilization=1.0, **(gpm if has_gpm and number % 2 else {})
            )

    tracker.begin_job(0)
    run(30, 694.0, 0.98, 0.9, 0.3)
    run(30, 130.0, 0.97, 0.0, 0.9)
    run(30, 694.0, 0.98, 0.9, 0.3)
    tracker.take_second(0)
    run(20, 300.0, 0.99, 0.0, 0.89)
    shares = tracker.take_second(0)
    assert shares is not None
    if has_gpm:
        assert shares[COMPUTE] > 0.95 and shares[-1] > 0.9
    else:
        assert shares[WAIT] < 0.9 or shares[-1] <= 0.5


def test_memory_is_bounded() -> None:
    """The phases may use two megabytes of a host's memory."""
    assert SampleHistory(8).memory_bytes + PhaseTracker(8).memory_bytes < 1_500_000


def recording(name: str) -> list[Trace]:
    """Return the trace of each GPU; rows cycle over the GPUs."""
    path = RECORDINGS / name
    if not path.exists():
        pytest.skip(f"no recording {path.name}: ../shared/data is not there")
    rows = list(csv.reader(path.read_text().splitlines(), skipinitialspace=True))[1:]
    result = []
    for gpu in range(8):
        times, values = array("q"), array("f")
        for stamp, watts, used, _ in rows[gpu : len(rows) // 8 * 8 : 8]:
            at = datetime.fromisoformat(stamp.replace("/", "-") + "+00:00")
            times.append(round(at.timestamp() * 1000) * 1_000_000)
            row = [NAN] * len(SIGNALS)
            row[0], row[3] = float(watts.split()[0]), float(used.split()[0]) / 100
            values.extend(row)
        shaped = memoryview(values).cast("B").cast("f", (len(times), len(SIGNALS)))
        result.append(Trace(times, shaped, []))
    return result


@pytest.mark.parametrize("name", ["h100x8_ckpt_every_100.csv", "h100x8_ckpt_every_10.csv"])
def test_recorded_h100s_compute_and_wait(name: str) -> None:
    """Levels of real GPUs, waiting for checkpoints; the second recording is held out."""
    for gpu, gpu_trace in enumerate(recording(name)):
        tracker = PhaseTracker(1)
        seen = follow(tracker, gpu_trace)
        result = job(tracker, gpu_trace)
        assert result["compute_watts"] == pytest.approx(550, rel=0.05)
        if gpu:  # the first GPU writes, and shows no kernel meanwhile
            assert result["wait_watts"] == pytest.approx(150, rel=0.06)
        else:
            assert seen.mean(HOST_STALL) > seen.mean(WAIT)
        assert result["job_changes_count"] == 1
        assert 0.05 < seen.mean(COMPUTE) < 0.4
        assert 0.1 < seen.mean(IDLE) < 0.25


def test_recorded_checkpoints_are_found_and_predicted() -> None:
    """After each 23 s of work a checkpoint of 17 to 56 s; recording of the development."""
    for gpu_trace in recording("h100x8_ckpt_every_100.csv"):
        tracker = PhaseTracker(1)
        seen = follow(tracker, gpu_trace)
        result = job(tracker, gpu_trace)
        work = result["checkpoint_interval_seconds"] - result["checkpoint_duration_seconds"]
        assert work == pytest.approx(23.3, abs=0.3)
        assert seen.mean(CHECKPOINT) > 0.4
        count, correct, brier = tracker.scores(0)
        assert correct == count >= 6
        assert brier < 0.05
