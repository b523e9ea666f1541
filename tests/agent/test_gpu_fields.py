"""Field ids that moved between drivers: no wrong quantity is published, for any driver version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.collector import CollectOutcome
from gangline.agent.collectors.gpu_field_check import (
    CONFIRMATIONS_MIN,
    REASONLESS_STEPS_MAX,
    FieldState,
    FieldValidator,
)
from gangline.ext import nvml
from tests.agent.gpu_host import GpuHost
from tests.fake_nvml.drivers import CAUSES, COUNTERS_AT, SECOND, Throttling, behave_as, throttling
from tests.fake_nvml.scenario import gpus

STEPS = 50
FLAG = 0x40

#: A second of a true counter: throttled share, and whether the flag is seen at its end.
EPISODES = st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=40)
CONTRADICTIONS = {
    "decreased": ([5, 4], [0, 0]),
    "faster": ([0, 3 * SECOND], [FLAG, FLAG]),
    "reason": (
        [n * SECOND for n in range(2 + REASONLESS_STEPS_MAX)],
        [0] * (2 + REASONLESS_STEPS_MAX),
    ),
}


@pytest.fixture
def host(tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuHost]:
    gpu_host = GpuHost(tmp_path, library, monkeypatch)
    yield gpu_host
    gpu_host.close()


def sample(
    proof: FieldValidator, values: Sequence[int | None], flags: Sequence[int | None]
) -> list[int | None]:
    """Take a sample a second, and return the published values."""
    return [
        value if proof.observe((1 + i) * SECOND, value, reasons) else None
        for i, (value, reasons) in enumerate(zip(values, flags, strict=True))
    ]


def state(proof: FieldValidator) -> FieldState:
    return proof.state


def test_a_zero_is_published_unverified_and_more_once_it_has_proved_itself() -> None:
    """Two zeros prove nothing: a healthy H200's counters were always refused because of them."""
    proof = FieldValidator(FLAG)
    assert state(proof) is FieldState.UNSUPPORTED  # never read
    rest = sample(proof, [0, 0, 0], [4, 4, 4])
    assert (rest, state(proof)) == ([0] * 3, FieldState.UNVERIFIED)
    held = [n * SECOND // 2 for n in range(1, CONFIRMATIONS_MIN + 2)]
    published = [proof.observe((4 + i) * SECOND, value, 4 | FLAG) for i, value in enumerate(held)]
    assert published == [False] * (CONFIRMATIONS_MIN - 1) + [True, True]
    assert state(proof) is FieldState.VERIFIED


@pytest.mark.parametrize("message", CONTRADICTIONS)
def test_what_contradicts_is_out_for_good(message: str) -> None:
    """A setting that an operator lowered, or another counter."""
    proof = FieldValidator(FLAG)
    values, flags = CONTRADICTIONS[message]
    sample(proof, list(values), list(flags))
    assert message in proof.contradiction
    sample(proof, [0] * 3 + [n * SECOND // 2 for n in range(9)], [0] * 3 + [FLAG] * 9)
    assert state(proof) is FieldState.UNSUPPORTED
    proof.restart()
    assert state(proof) is FieldState.UNSUPPORTED


def test_a_jump_is_no_time_however_long_the_agent_runs() -> None:
    """A ramp rate was set to a billion: less than the time since the start, but not than a second."""
    proof = FieldValidator(FLAG)
    sample(proof, [0] * 1000, [0] * 1000)
    assert not proof.observe(1001 * SECOND, 900 * SECOND, FLAG)
    assert "faster" in proof.contradiction


def test_a_count_that_comes_late_is_no_contradiction() -> None:
    """The driver updates its counts once a second: throttled time shows after the flag is cleared."""
    proof = FieldValidator(FLAG)
    values: list[int | None] = [0, 0]
    flags: list[int | None] = [0, 0]
    for episode in range(50):
        total = 2 * episode * SECOND
        values += [total, total + SECOND, total + 2 * SECOND, total + 2 * SECOND]
        flags += [FLAG, 0, 0, 0]
    sample(proof, values, flags)
    assert (proof.contradiction, state(proof)) == ("", FieldState.VERIFIED)


def test_in_months_of_throttling_chance_is_no_contradiction() -> None:
    """Three throttles in a year fell between two samples, and the field was refused permanently."""
    proof, total = FieldValidator(FLAG), 0
    values: list[int | None] = [0, 0]
    flags: list[int | None] = [0, 0]
    for minute in range(200):
        for second in range(30):
            between = second == 25 and minute % 9 == 0
            total += SECOND if second < 20 else 6 * SECOND // 10 if between else 0
            values.append(total)
            flags.append(FLAG * (second < 20))
    sample(proof, values, flags)
    assert (proof.contradiction, state(proof)) == ("", FieldState.VERIFIED)


def test_after_a_reset_it_proves_itself_again() -> None:
    """A reset GPU counts from zero: this is not a contradiction if the reset was noticed."""
    proof = FieldValidator(FLAG)
    sample(proof, [0, 0, *(n * SECOND for n in range(1, 6))], [0, 0] + [FLAG] * 5)
    assert state(proof) is FieldState.VERIFIED
    proof.restart()
    assert sample(proof, [0, 0], [0, 0]) == [0, 0]
    assert state(proof) is FieldState.UNVERIFIED


def test_a_value_that_is_missing_now_and_then_changes_nothing() -> None:
    """A field with occasional failures must neither be judged by the gap nor forgotten."""
    proof = FieldValidator(FLAG)
    values = [0, None, 0, SECOND, None, 3 * SECOND, 4 * SECOND, None]
    published = sample(proof, values, [0, 0, 0, FLAG, FLAG, FLAG, FLAG, FLAG])
    assert published == [0, None, 0] + [None] * 3 + [4 * SECOND, None]
    assert state(proof) is FieldState.VERIFIED


@given(EPISODES)
def test_a_true_counter_is_never_taken_for_another(episodes: list[tuple[float, bool]]) -> None:
    """Short throttles fall between two samples of the flags; the counter remains valid."""
    proof, total = FieldValidator(FLAG), 0
    values: list[int | None] = [0]
    flags: list[int | None] = [0]
    for share, seen in episodes:
        # seen at one end at least, because it lasts for more than half of a second
        total += int(share * SECOND)
        values.append(total)
        flags.append(FLAG if share > 0 and (seen or share >= 0.5) else 0)
    published = sample(proof, values, flags)
    assert not proof.contradiction
    assert all(logged in (None, value) for logged, value in zip(published, values, strict=True))


@given(st.lists(st.tuples(st.integers(0, 2**63), st.sampled_from([0, FLAG, None])), max_size=60))
def test_a_setting_is_never_published(changes: list[tuple[int, int | None]]) -> None:
    """Any setting, changed up to one time less than the number of confirmations."""
    proof = FieldValidator(FLAG)
    values: list[int | None] = []
    changed = 0
    for value, _ in changes:
        is_other = bool(values) and value != values[-1]
        if is_other and changed == CONFIRMATIONS_MIN - 1:
            value = values[-1]  # type: ignore[assignment]
        changed += is_other
        values.append(value)
    assert set(sample(proof, values, [flags for _, flags in changes])) <= {None, 0}


@given(st.lists(st.tuples(st.integers(0, 2**63), st.sampled_from([0, 4, 0x23, None])), max_size=60))
def test_nothing_is_published_without_its_reason(samples: list[tuple[int, int | None]]) -> None:
    """It counts something else than the flag."""
    proof = FieldValidator(FLAG)
    values: list[int | None] = [value for value, _ in samples]
    assert set(sample(proof, values, [flags for _, flags in samples])) <= {None, 0}


def test_nothing_is_said_of_a_field_that_could_not_be_asked_for(host: GpuHost) -> None:
    """A driver with the field was `unsupported`, because the GPU was lost at the agent's start."""
    devices = gpus(2)
    devices[0].lines.append("error * 0 15 0")
    scenario = host.play(devices)
    lane = host.second()
    for step, expected in ((0, (1, 1)), (1, (None, 1)), (2, (1, 1))):
        scenario.step(step)
        rows = host.read(lane)
        states = tuple(rows[gpu.uuid]["violation_hw_thermal_field_state"] for gpu in devices)
        assert states == expected, step


def test_a_field_that_is_read_in_turns_is_judged_by_all_that_was_seen_meanwhile() -> None:
    """A slow field has a turn a minute: its reason was set only between two turns."""
    proof = FieldValidator(FLAG)
    values: list[int | None] = []
    flags: list[int | None] = []
    for turn in range(12):
        values += [max(turn - 1, 0) * 20 * SECOND, *[None] * 59]
        flags += [0] * 20 + [FLAG * (turn > 0)] * 25 + [0] * 15
    published = sample(proof, values, flags)
    assert (proof.contradiction, state(proof)) == ("", FieldState.VERIFIED)
    assert published[-60] == 10 * 20 * SECOND


@pytest.mark.parametrize(
    ("line", "published"),
    [
        ("", 0),
        ("field 270 uint 0", None),  # of another type
        ("field 270 ull -", None),  # a neighbor that the driver does not have
        ("field 270 ull 5000", None),  # not zero, and not verified
    ],
)
def test_zeros_of_an_idle_gpu(line: str, published: int | None, host: GpuHost) -> None:
    gpu = gpus(1)[0]
    gpu.values["event_reasons"] = 1
    gpu.lines.append(line)
    host.play([gpu])
    lane = host.second()
    host.turn(lane, 3)
    row = host.read(lane)[gpu.uuid]
    assert row["violation_hw_thermal_nanoseconds"] == published
    neighbor = row["violation_sw_thermal_nanoseconds"]
    assert neighbor == (0 if published == 0 or "5000" in line else None)
    assert row["violation_sw_thermal_field_state"] == FieldState.UNVERIFIED


def played(
    host: GpuHost, says: str, behaves: str, course: Throttling
) -> list[dict[str, float | int | None]]:
    """Run a GPU that reports one driver and behaves like another; return its rows, step by step."""
    gpu = behave_as(gpus(1)[0], behaves, course)
    scenario = host.play([gpu], host=f"driver {says}")
    lane = host.second()
    rows = []
    for step in range(STEPS):
        scenario.step(step)
        rows.append(host.read(lane)[gpu.uuid])
    return rows


@pytest.mark.parametrize("behaves", COUNTERS_AT)
@pytest.mark.parametrize("says", COUNTERS_AT)
def test_no_wrong_quantity_is_published(says: str, behaves: str, host: GpuHost) -> None:
    """`580` is ambiguous, and a wrong id returns SUCCESS: a percentage was read as minutes."""
    course = throttling(STEPS)
    rows = played(host, says, behaves, course)
    for cause in CAUSES:
        published = [row[f"violation_{cause}_nanoseconds"] for row in rows]
        for step, value in enumerate(published):
            assert value in (None, course.counters[cause][step])
        right = COUNTERS_AT[says] == COUNTERS_AT[behaves] != 0
        assert (published[-1] is not None) == right
        states = [row[f"violation_{cause}_field_state"] for row in rows]
        assert states[-1] == FieldState.VERIFIED if right else FieldState.VERIFIED not in states


@pytest.mark.parametrize("says", ["", "garbage", "999.12.34", "580.65", "600.1.2"])
@pytest.mark.parametrize("behaves", COUNTERS_AT)
def test_an_unknown_driver_must_prove_itself(says: str, behaves: str, host: GpuHost) -> None:
    """A branch newer than this table, and an invalid version."""
    course = throttling(STEPS)
    rows = played(host, says or "x", behaves, course)
    for cause in CAUSES:
        for step, row in enumerate(rows):
            assert row[f"violation_{cause}_nanoseconds"] in (None, course.counters[cause][step])


def test_the_stable_fields_are_published_at_once(host: GpuHost) -> None:
    """Power, heat and sync boost have the same ids in every branch: they need no verification."""
    rows = played(host, "580.65.06", "590.48.01", throttling(STEPS))
    assert rows[0]["violation_power_nanoseconds"] == 10_000_000_000
    assert rows[0]["violation_thermal_nanoseconds"] == 6_000_000_001


def test_a_contradiction_is_said_once(host: GpuHost, caplog: pytest.LogCaptureFixture) -> None:
    """The operator gets the wrong field and its GPU, but not every second for a year."""
    course = throttling(STEPS)
    falling = Throttling(course.flags, course.counters | {"hw_thermal": tuple(range(STEPS, 0, -1))})
    devices = gpus(2)
    behave_as(devices[0], "590.48.01", falling)
    behave_as(devices[1], "590.48.01", course)
    scenario = host.play(devices)
    lane = host.second()
    for step in range(STEPS):
        scenario.step(step)
        turn = host.turn(lane)
        assert turn.outcome is CollectOutcome.OK
    logged = [r.getMessage() for r in caplog.records if "is not published" in r.getMessage()]
    field = "gpu.violation_hw_thermal_nanoseconds is not published"
    assert logged == [f"GPU {devices[0].uuid}: {field}: it decreased without a reset"]
    rows = host.read(lane)
    assert rows[devices[0].uuid]["violation_hw_thermal_field_state"] == FieldState.UNSUPPORTED
    assert rows[devices[0].uuid]["violation_sw_thermal_field_state"] == FieldState.VERIFIED
    assert rows[devices[1].uuid]["violation_hw_thermal_field_state"] == FieldState.VERIFIED


def test_what_a_field_has_proved_the_next_process_knows(host: GpuHost) -> None:
    """After a takeover the counters of seven neighbors were missing until each throttled again."""
    version, name = "590.48.01", "violation_sw_thermal_nanoseconds"
    course = throttling(60)

    def first(driver: str) -> float | int | None:
        host.session.close()
        host.begin(anew=False)
        devices = [behave_as(gpu, driver, course) for gpu in gpus(1)]
        host.play(devices, host=f"driver {driver}").step(45)
        return host.read(host.second())[devices[0].uuid][name]

    devices = [behave_as(gpu, version, course) for gpu in gpus(1)]
    scenario = host.play(devices, host=f"driver {version}")
    lane = host.second()
    for step in range(44):
        scenario.step(step)
        host.turn(lane)
    scenario.step(44)
    assert host.read(lane)[devices[0].uuid][name] == course.counters["sw_thermal"][44]
    assert first(version) == course.counters["sw_thermal"][45]
    assert first("580.126.09") is None
    assert first(version) is None


def test_what_is_known_of_a_gpu_is_not_of_another_in_its_slot() -> None:
    """The board was replaced, and the new one `answered again`, with the field proofs of the old."""
    nvml.remember("0000:19:00.0", uuid="GPU-1", lost=True, proofs=3, epoch=2)
    nvml.remember("0000:19:00.0", uuid="GPU-1")
    assert nvml.account("0000:19:00.0")[4:] == (2, True, (None,) * 4, 3)
    nvml.remember("0000:19:00.0", uuid="GPU-2")
    assert nvml.account("0000:19:00.0")[4:] == (2, False, (None,) * 4, 0)
