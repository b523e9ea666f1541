"""NVML's answers: blanks, garbage, errors and losses affect only their own reading."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline.ext.nvml import READINGS
from gangline.ext.nvml_readings import NAMED, ROWS
from tests.ext.sweeping import LIBRARY_READINGS, OF_THE_SWEEP, Sweeping, addresses, missing
from tests.fake_nvml.fixtures import Play
from tests.fake_nvml.scenario import Gpu, gpus

BLANKS = {2**32 - 1, 2**64 - 1, *range(2**63 - 16, 2**63)}
UNSIGNED = (
    st.integers(0, 2**64 - 1) | st.sampled_from(sorted(BLANKS)) | st.integers(2**32 - 3, 2**32 + 3)
)

GARBAGE = [
    "error nvmlDeviceGetFieldValues 0 999",
    "processes 4294967295",
    "memory_total 18446744073709551615",
    "field 3 double nan",
    "field 4 sll -9223372036854775808",
    "field 83 double inf",
    "temperature -2147483648",
    "margin 2147483647",
    "bar1_used 18446744073709551614",
    "banks_none 4294967294",
    "mig_mode 77",
]
LOSSES = [
    "error * 0 15 0",
    "error nvmlDeviceGetComputeRunningProcesses_v3 0 15 0",
    "field 230 uint 0 !15 0",
]


Reading = Callable[[Gpu], dict[str, Any]]


@pytest.fixture
def reading(library: str, play: Play) -> Reading:
    """Return a function that plays one GPU, and returns its readings."""

    def read(gpu: Gpu) -> dict[str, Any]:
        play([gpu])
        with Sweeping(library, [gpu.address]) as sweeping:
            return sweeping.read()[0]

    return read


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(values=st.lists(UNSIGNED, min_size=1, max_size=64))
def test_blanks_are_missing_others_are_kept(values: list[int], library: str, play: Play) -> None:
    """An ECC count of 18446744073709551615 drained a healthy node."""
    gpu = gpus(1)[0]
    gpu.fields = {4: ("ull", values)}
    scenario = play([gpu])
    with Sweeping(library, [gpu.address], ["ecc_uncorrected_volatile_errors"]) as sweeping:
        for step, value in enumerate(values):
            scenario.step(step)
            readings = sweeping.read()[0]["ecc_uncorrected_volatile_errors"]
            assert readings == (None if value in BLANKS or value > 2**62 else value)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("sm_clock 4294967295", "sm_clock_hertz"),
        ("utilization 255", "utilization_ratio"),
        ("temperature 4294967295", "temperature_celsius"),
        ("temperature 2147483647", "temperature_celsius"),
        ("performance_state 32", "performance_state"),
        ("processes 4000000000", "processes_count"),
        ("pcie_width 4294967295", "pcie_width_lanes"),
        ("pcie_generation 255", "pcie_generation_number"),
        ("remapped_correctable 4294967294", "remapped_correctable_rows"),
        ("remap_pending 2", "remap_pending_state"),
        ("event_reasons 0xFFFFFFFFFFFFFFFF", "clock_event_reasons_flags"),
        ("field 186 uint 4294967295", "power_watts"),
        ("field 186 double nan", "power_watts"),
        ("field 82 double inf", "memory_temperature_celsius"),
        ("field 74 sll -1", "violation_power_nanoseconds"),
        ("field 75 double 1.5", "violation_thermal_nanoseconds"),
        ("field 82 uint 4294967295", "memory_temperature_celsius"),
        ("field 82 int -7", "memory_temperature_celsius"),
        ("field 83 sll -2147483648000", "energy_joules"),
        ("field 83 ull 18446744073709551611", "energy_joules"),
        ("field 185 double -0.5", "power_average_watts"),
        ("field 177 ull 18446744073709551611", "pcie_naks_sent_count"),
        ("field 77 ull 9223372036854775900", "violation_board_limit_nanoseconds"),
        ("field 230 uint 4000", "recovery_action_state"),
    ],
)
def test_what_cannot_be_is_missing(line: str, name: str, reading: Reading) -> None:
    """A broken sensor returns its largest number; as a temperature it would be the sun's."""
    gpu = gpus(1)[0]
    gpu.lines.append(line)
    readings = reading(gpu)
    assert missing(readings) == {name}
    assert readings["calls_failed_errors"] == 0


@pytest.mark.parametrize(
    ("field", "name", "value"),
    [
        ("margin -1", "temperature_margin_celsius", -1.0),  # a blank in other calls
        ("field 196 int -7", "margin_at_max_celsius", -7.0),
        ("field 196 sll -9", "margin_at_max_celsius", -9.0),
        ("field 196 ushort 65", "margin_at_max_celsius", 65.0),
        ("field 196 ulong 66", "margin_at_max_celsius", 66.0),
        ("field 196 double 67.5", "margin_at_max_celsius", 67.5),
        ("field 4 unknown 12", "ecc_uncorrected_volatile_errors", None),  # a newer driver's type
    ],
)
def test_values_of_any_type(field: str, name: str, value: float | None, reading: Reading) -> None:
    """The driver chooses the value type; read by another member of the union it is noise."""
    gpu = gpus(1)[0]
    kind, *words = field.split()
    if kind == "field":
        gpu.fields[int(words[0])] = (words[1], words[2])
    else:
        gpu.values[kind] = int(words[0])
    assert reading(gpu)[name] == value


def test_not_supported_is_missing_and_no_failure(library: str, play: Play) -> None:
    """A GPU without HBM sensors must not look like a failing driver."""
    devices = gpus(2)
    devices[1].values, devices[1].fields = {}, {}
    play(devices)
    with Sweeping(library, addresses(devices)) as sweeping:
        full, empty = sweeping.read()
    assert missing(full) == set()
    assert missing(empty) == LIBRARY_READINGS
    assert (empty["lost_state"], empty["calls_failed_errors"]) == (0, 0)


@pytest.mark.parametrize("error", [14, 16, 21, 999])
def test_an_error_costs_its_reading_and_is_counted(error: int, library: str, play: Play) -> None:
    """A broken InfoROM must hide neither the rest of that GPU nor its neighbors."""
    devices = gpus(3)
    devices[1].lines.append(f"error nvmlDeviceGetClockInfo 0 {error}")
    devices[1].fields[82] = ("uint", f"48 !{error}")
    scenario = play(devices)
    with Sweeping(library, addresses(devices)) as sweeping:
        assert [missing(row) for row in sweeping.read()] == [set(), set(), set()]
        scenario.step(1)
        before, sick, after = sweeping.read()
        assert missing(before) == missing(after) == set()
        clocks = {f"{name}_clock_hertz" for name in ("sm", "memory", "graphics", "video")}
        assert missing(sick) == clocks | {"memory_temperature_celsius"}
        assert [row["calls_failed_errors"] for row in sweeping.read()] == [0, 10, 0]
        assert (sweeping.sweep.ended, sweeping.sweep.refusals()) == (0, {})


def test_what_is_not_permitted_is_named_and_no_failure(library: str, play: Play) -> None:
    """An agent without a capability counted ten failures a minute, and its host looked faulty."""
    devices = gpus(2)
    devices[1].lines.append("error nvmlDeviceGetSramEccErrorStatus 4 4 0")
    scenario = play(devices)
    with Sweeping(library, addresses(devices)) as sweeping:
        full, blind = sweeping.read()
        assert missing(full) == set()
        assert missing(blind) == {
            name for name in READINGS if name.startswith("sram_") and "unique" not in name
        }
        assert blind["calls_failed_errors"] == 0
        refused = {devices[1].address: "nvmlDeviceGetSramEccErrorStatus"}
        assert sweeping.sweep.refusals() == refused
        scenario.step(2)
        sweeping.sweep.run()
        assert sweeping.sweep.refusals() == {}


@pytest.mark.parametrize("code", [1, 9, 18])
def test_an_end_of_nvml_is_no_gpus_fault(code: int, library: str, play: Play) -> None:
    """The driver was unloaded under the agent: eight GPUs seemed to fall off the bus in one second."""
    devices = gpus(3)
    for gpu in devices:
        gpu.lines.append(f"error * 0 {code} 0")
    scenario = play(devices, host=f"error nvmlDeviceGetCount_v2 0 {code} 0")
    with Sweeping(library, addresses(devices)) as sweeping:
        sweeping.read()
        before = sweeping.sweep.calls
        scenario.step(1)
        assert [missing(row) for row in sweeping.read()] == [set(READINGS)] * 3
        assert (sweeping.sweep.ended, sweeping.sweep.calls - before) == (
            code,
            2,
        )  # the call itself, and NVML
        scenario.step(2)
        assert [missing(row) for row in sweeping.read()] == [set()] * 3
        assert sweeping.sweep.ended == 0


@pytest.mark.parametrize("code", [1, 9, 18])
def test_one_gpus_garbage_does_not_end_nvml(code: int, library: str, play: Play) -> None:
    """A GPU that always answered `Uninitialized` would have silenced seven others."""
    devices = gpus(3)
    devices[1].lines.append(f"error nvmlDeviceGetClockInfo {code}")
    play(devices)
    with Sweeping(library, addresses(devices)) as sweeping:
        before, sick, after = sweeping.read()
    assert missing(before) == missing(after) == set()
    assert sick["violation_power_nanoseconds"] == 10_000_000_000  # read before its first error
    assert sick["temperature_celsius"] is None
    assert (sick["calls_failed_errors"], sick["lost_state"]) == (1, 0)


@pytest.mark.parametrize("line", GARBAGE)
def test_garbage_of_one_gpu_costs_no_neighbour(line: str, library: str, play: Play) -> None:
    """The value of one GPU's broken InfoROM was once written over its neighbor's."""
    devices = gpus(3)
    healthy = gpus(3)
    play(healthy)
    with Sweeping(library, addresses(healthy)) as sweeping:
        expected = sweeping.read()
    word = line.split()[0]
    devices[1].values.pop(word, None)
    devices[1].fields.pop(int(line.split()[1]) if word == "field" else 0, None)
    devices[1].lines.append(line)
    play(devices)
    with Sweeping(library, addresses(devices)) as sweeping:
        readings = sweeping.read()
    assert (readings[0], readings[2]) == (expected[0], expected[2])
    wrong = {n: v for n, v in readings[1].items() if v is not None and v != expected[1][n]}
    assert set(wrong) <= OF_THE_SWEEP | {"power_average_watts"}


@pytest.mark.parametrize("versioned", [0, 1])
@pytest.mark.parametrize("flag", [0, 1])
def test_unrepairable_memory_layouts(versioned: int, flag: int, reading: Reading) -> None:
    """NVIDIA's header and its Python binding disagree: one layout would miss the fault."""
    gpu = gpus(1)[0]
    gpu.values |= {"unrepairable": flag, "unrepairable_versioned": versioned}
    assert reading(gpu)["unrepairable_memory_state"] == flag


@pytest.mark.parametrize(
    ("places", "parity", "each", "said"),
    [
        (0, 0, 0, (0, 0, 0)),
        (1, 1, 2**32 - 2, (1, 2**32 - 2, 1)),
        (4096, 4096, 1000, (4096, 4_096_000, 4096)),
        (4097, 0, 1, (None, None, None)),
        (2**32 - 1, 0, 1, (None, None, None)),
        (3, 1, 2**32 - 1, (3, None, 1)),
    ],
)
def test_places_of_lost_data_are_counted_within_bounds(
    places: int, parity: int, each: int, said: tuple[int | None, ...], library: str, play: Play
) -> None:
    """A driver claimed four thousand million places; their buffer would have been 120 GB."""
    devices = gpus(2)
    devices[0].values |= {"sram_unique": places, "sram_unique_parity": parity}
    devices[0].values["sram_unique_each"] = each
    play(devices)
    names = ("uncorrected_count", "uncorrected_errors", "parity_count")
    with Sweeping(library, addresses(devices)) as sweeping:
        sick, neighbour = sweeping.read()
    assert tuple(sick[f"sram_unique_{name}"] for name in names) == said
    assert tuple(neighbour[f"sram_unique_{name}"] for name in names) == (0, 0, 0)
    assert (sick["calls_failed_errors"], missing(neighbour)) == (0, set())


def test_a_place_that_the_driver_passes_over_is_no_zero(reading: Reading) -> None:
    """Three places were reported, but two counts: the third counted as zero."""
    gpu = gpus(1)[0]
    gpu.values |= {"sram_unique": 3, "sram_unique_passed": 1}
    readings = reading(gpu)
    assert readings["sram_unique_uncorrected_count"] == 3
    assert (
        readings["sram_unique_uncorrected_errors"] is readings["sram_unique_parity_count"] is None
    )


@pytest.mark.parametrize(
    ("more", "said"), [(2, (5, 35, 4)), (4094, (None, None, None))], ids=["a few", "no end"]
)
def test_added_places(more: int, said: tuple[int | None, ...], reading: Reading) -> None:
    """Data was lost in a new place between the count and the list: all counts went missing."""
    gpu = gpus(1)[0]
    gpu.values |= {"sram_unique": 3, "sram_unique_more": more, "sram_unique_parity": 4}
    row = reading(gpu)
    names = ("uncorrected_count", "uncorrected_errors", "parity_count")
    assert tuple(row[f"sram_unique_{name}"] for name in names) == said


@pytest.mark.parametrize("blank", [2**32 - 1, 2**64 - 1, 2**63 - 13])
def test_a_blank_is_missing_wherever_it_stands(blank: int, reading: Reading) -> None:
    """`N/A` is all ones in one call and a count in another: 4294967295 W were reported."""
    gpu = gpus(1)[0]
    gpu.values = dict.fromkeys(gpu.values, blank)
    gpu.fields = {number: ("ull", blank) for number in gpu.fields}
    readings = reading(gpu)
    narrow = {  # 32-bit values: they cannot hold the larger blanks, and show another value
        row.name for row in ROWS if row.shape != "long" or row.name in NAMED
    }
    # a margin may be -1; the stand-in adds used and reserved memory
    present = (
        LIBRARY_READINGS - missing(readings) - {"temperature_margin_celsius", "memory_used_bytes"}
    )
    assert present <= (narrow if blank > 2**32 else set())
    assert all(readings[name] != blank for name in present)


@pytest.mark.parametrize("line", LOSSES)
def test_a_lost_gpu_is_lost_and_nothing_else(line: str, library: str, play: Play) -> None:
    """XID 79: the GPU fell off the bus in the middle of a sweep; its earlier readings are void."""
    devices = gpus(3)
    devices[1].lines.append(line)
    scenario = play(devices)
    with Sweeping(library, addresses(devices)) as sweeping:
        assert [row["lost_state"] for row in sweeping.read()] == [0, 0, 0]
        scenario.step(1)
        before, lost, after = sweeping.read()
        assert missing(lost) == LIBRARY_READINGS | {"error_code_state"}
        assert (lost["lost_state"], lost["calls_failed_errors"]) == (1, 0)
        assert missing(before) == missing(after) == set()
        scenario.step(2)
        assert missing(sweeping.read()[1]) == set()


def test_a_lost_gpu_is_asked_once_a_sweep(library: str, play: Play) -> None:
    """A call to a lost GPU can take seconds; thirty of them are a missed deadline."""
    devices = gpus(2)
    devices[0].lines.append("error nvmlDeviceGetFieldValues 15")
    play(devices)
    with Sweeping(library, addresses(devices)) as sweeping:
        sweeping.sweep.run()
        healthy = sweeping.sweep.calls
        sweeping.sweep.run()
        assert sweeping.sweep.calls - healthy == 1 + (healthy - 3)  # preceded by 2 opens and 1 call


def test_a_gpu_that_cannot_be_opened_is_tried_again(library: str, play: Play) -> None:
    """After a reset the GPU comes back; an agent that had abandoned it would need a restart."""
    devices = gpus(2)
    devices[0].lines.append("error nvmlDeviceGetHandleByPciBusId_v2 15 0")
    scenario = play(devices)
    with Sweeping(library, addresses(devices)) as sweeping:
        lost, healthy = sweeping.read()
        assert (lost["lost_state"], missing(healthy)) == (1, set())
        assert missing(lost) == LIBRARY_READINGS | {"error_code_state"}
        scenario.step(1)
        states = [sweeping.read()[0]["lost_state"] for _ in range(60)]
        assert states == [1] * 59 + [0]
        assert missing(sweeping.row(0)) == set()


def test_a_gpu_we_may_not_open_is_missing_not_lost(library: str, play: Play) -> None:
    """A device node closed to the agent was once reported as a dead GPU."""
    gpu = gpus(1)[0]
    gpu.lines.append("error nvmlDeviceGetHandleByPciBusId_v2 4")
    play([gpu])
    with Sweeping(library, [gpu.address]) as sweeping:
        readings = sweeping.read()[0]
        refused = {gpu.address: "nvmlDeviceGetHandleByPciBusId_v2"}
        assert (sweeping.sweep.refusals(), sweeping.read()) == (refused, [readings])
        assert sweeping.sweep.refusals() == refused  # also between two tries
    assert missing(readings) == LIBRARY_READINGS | {"lost_state", "error_code_state"}
    assert readings["calls_failed_errors"] == 0
