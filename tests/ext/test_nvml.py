"""Our NVML binding against NVIDIA's header, against nvidia-ml-py, and against what drivers get up to."""

from __future__ import annotations

import ctypes
import json
import math
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline.ext import nvml
from gangline.ext.nvml import READINGS, Nvml, NvmlAbsent, NvmlError, Sweep
from tests.fake_nvml.build import build, compiler, header_folder
from tests.fake_nvml.scenario import Gpu, Scenario, Steps, gpus

ABI = Path(nvml.__file__).with_name("nvml_abi.pxd")
REFERENCE = Path(__file__).parents[1] / "fake_nvml" / "reference.py"
#: What NVML gives; the rest is what the sweep says of NVML.
LIBRARY_READINGS = set(READINGS) - {"calls_failed_errors", "slow_calls_failed_errors", "lost_state"}
#: A wait that is longer than this is a failed test; nothing is timed by it.
GUARD_SECONDS = 60.0

Play = Callable[..., Scenario]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fake_nvml")


@pytest.fixture(scope="module")
def library(folder: Path) -> str:
    return str(build(folder))


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Return a function that writes a scenario and makes the library play it."""

    def write(devices: Iterable[Gpu] = (), *, host: str = "") -> Scenario:
        monkeypatch.setenv("GANGLINE_FAKE_NVML", str(tmp_path / "scenario"))
        return Scenario(tmp_path / "scenario", devices, host=host)

    return write


class Sweeping:
    """A sweep of every reading of some GPUs, with memory of its own."""

    def __init__(
        self, library: str, addresses: Iterable[str], readings: Iterable[str] = READINGS
    ) -> None:
        self.addresses, self.readings = list(addresses), list(readings)
        count = len(self.addresses) * len(self.readings)
        self.cells, self.valid = bytearray(8 * count), bytearray(count)
        self.nvml = Nvml(library)
        targets = {name: (self.cells, self.valid, i) for i, name in enumerate(self.readings)}
        self.sweep = Sweep(self.nvml, self.addresses, targets)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.nvml.close()

    def read(self) -> list[dict[str, float | int | None]]:
        """Sweep once, and return what each GPU says."""
        self.sweep.run()
        return [self.row(i) for i in range(len(self.addresses))]

    def row(self, row: int) -> dict[str, float | int | None]:
        """Return one GPU's readings as they stand in memory."""
        ints, floats = memoryview(self.cells).cast("Q"), memoryview(self.cells).cast("d")
        said: dict[str, float | int | None] = {}
        for column, name in enumerate(self.readings):
            cell = column * len(self.addresses) + row
            cells: memoryview[float] | memoryview[int] = floats if READINGS[name] is float else ints
            said[name] = cells[cell] if self.valid[cell] else None
        return said


def missing(said: Mapping[str, float | int | None]) -> set[str]:
    """Return the names of the readings without a value."""
    return {name for name, value in said.items() if value is None}


def addresses(devices: Iterable[Gpu]) -> list[str]:
    return [gpu.address for gpu in devices]


# ---- the header ---------------------------------------------------------------------------------


def compile_and_run(source: str, folder: Path) -> str:
    """Compile a C program against NVIDIA's header, and return what it prints."""
    (folder / "check.c").write_text("#define NVML_NO_UNVERSIONED_FUNC_DEFS\n" + source)
    program = str(folder / "check")
    options = ["-Werror", "-Wall", f"-I{header_folder()}"]
    subprocess.run([*compiler(), *options, str(folder / "check.c"), "-o", program], check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout


def test_layouts_and_version_words_are_nvidias(tmp_path: Path) -> None:
    """Two bindings can share one wrong struct: both then agree on the wrong bytes."""
    ours = nvml.abi()
    prints = "".join(f'printf("%lu\\n", (unsigned long)({key}));' for key in ours)
    source = (
        f"#include <nvml.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void){{{prints}}}"
    )
    theirs = compile_and_run(source, tmp_path).split()
    assert ours == dict(zip(ours, map(int, theirs), strict=True))


def test_constants_are_nvidias(tmp_path: Path) -> None:
    """A field id that moved between headers answers NVML_SUCCESS with another quantity."""
    ours = dict(re.findall(r"^    (NVML_\w+) = (\d+)$", ABI.read_text(), re.MULTILINE))
    assert len(ours) > 40
    prints = "".join(f'printf("%d\\n", (int)({name}));' for name in ours)
    source = f"#include <nvml.h>\n#include <stdio.h>\nint main(void){{{prints}}}"
    assert list(ours.values()) == compile_and_run(source, tmp_path).split()


def test_prototypes_are_nvidias(tmp_path: Path) -> None:
    """A pointer to 32 bits where the driver writes 64 destroys the variable beside it, now and then."""
    declared = re.findall(
        r"^    (.+?)\(\*(nvml\w+)\)\((.*)\) noexcept nogil$", ABI.read_text(), re.MULTILINE
    )
    assert tuple(name for _, name, _ in declared) == nvml.SYMBOLS
    lines = [
        f"static {result}(*check_{name})({args or 'void'});" for result, name, args in declared
    ]
    uses = "".join(f"check_{name} = {name};(void)check_{name};" for _, name, _ in declared)
    source = "#include <nvml.h>\n" + "\n".join(lines) + f"\nvoid check(void){{{uses}}}\n"
    (tmp_path / "prototypes.c").write_text("#define NVML_NO_UNVERSIONED_FUNC_DEFS\n" + source)
    command = [*compiler(), "-Werror", "-Wall", f"-I{header_folder()}", "-c", "prototypes.c"]
    subprocess.run(command, check=True, cwd=tmp_path)


# ---- nvidia-ml-py as the reference ----------------------------------------------------------------


def random_gpu(gpu: Gpu, rng: random.Random, steps: int) -> Gpu:
    """Give every value of *gpu* a random course, some of it not supported; fields agree with calls."""
    limits = {"temperature": 120, "slowdown": 120, "utilization": 100, "memory_utilization": 100}
    limits |= {
        "pcie_generation": 7,
        "pcie_generation_max": 7,
        "pcie_width": 32,
        "pcie_width_max": 32,
    }
    limits |= {"performance_state": 15, "processes": 40, "remap_pending": 1, "remap_failed": 1}
    limits |= {"sm_clock": 99_999, "memory_clock": 99_999, "sm_clock_max": 99_999}
    limits |= {"event_reasons": 2**63 - 100, "energy": 2**52, "margin": 120}
    limits |= {name: 2**24 for name in ("remapped_correctable", "remapped_uncorrectable")}
    limits |= {
        name: 2**45 for name in gpu.values if name.startswith(("memory_t", "memory_r", "ecc"))
    }
    limits |= {name: 10**7 for name in gpu.values if name.startswith("power")} | {
        "pcie_replays": 2**32 - 2
    }

    def course(name: str) -> Steps:
        low = -20 if name == "margin" else 0
        limit = limits.get(name, 2**40)
        return [rng.randint(low, limit) if rng.random() < 0.9 else "-" for _ in range(steps)]

    gpu.values = {name: course(name) for name in gpu.values}
    same = {
        3: "ecc_corrected_volatile",
        4: "ecc_uncorrected_volatile",
        5: "ecc_corrected_aggregate",
    }
    same |= {6: "ecc_uncorrected_aggregate", 83: "energy", 94: "pcie_replays", 185: "power"}
    other = {74: 2**62, 75: 2**62, 76: 2**62, 82: 120, 186: 10**7, 230: 4}
    for number, (kind, _) in gpu.fields.items():
        if number in same:
            gpu.fields[number] = (kind, gpu.values[same[number]])
        else:
            # power_watts falls back to another call where the field is not: never missing here
            gpu.fields[number] = (kind, [rng.randint(0, other[number]) for _ in range(steps)])
    return gpu


def by_nvidia(library: str, scenario: Scenario, steps: int) -> dict[str, object]:
    """Return what nvidia-ml-py, in a process of its own, makes of the same library and scenario."""
    environment = os.environ | {"LD_LIBRARY_PATH": str(Path(library).parent)}
    command = [sys.executable, str(REFERENCE), str(scenario.path), str(steps)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    said = json.loads(done.stdout)
    assert isinstance(said, dict)
    return said


@pytest.mark.parametrize("seed", range(3))
def test_every_value_is_what_nvidias_own_binding_reads(seed: int, library: str, play: Play) -> None:
    """A unit, a struct or a field mixed up would be wrong on every host of the fleet alike."""
    steps, devices = 24, gpus(4)
    scenario = play(
        [random_gpu(gpu, random.Random(f"{seed} {gpu.uuid}"), steps) for gpu in devices]
    )
    theirs = by_nvidia(library, scenario, steps)["steps"]
    ours = []
    with Sweeping(library, addresses(devices), LIBRARY_READINGS) as sweeping:
        for step in range(steps):
            scenario.step(step)
            rows = sweeping.read()
            ours.append({gpu.uuid: row for gpu, row in zip(devices, rows, strict=True)})
    assert ours == theirs


def test_devices_are_what_nvidias_own_binding_finds(library: str, play: Play) -> None:
    """Inventory and collectors must speak of the same GPU."""
    theirs = by_nvidia(library, play(gpus(8)), 0)
    ours = Nvml(library)
    found = ours.devices()
    assert [(f"0000{d.address}".upper(), d.uuid, d.name, d.serial) for d in found] == [
        tuple(device)
        for device in theirs["devices"]  # type: ignore[attr-defined]
    ]
    assert ours.driver_version() == theirs["driver"]
    assert ours.device(found[3].address) == found[3]
    ours.close()


# ---- what an answer is worth -----------------------------------------------------------------------

BLANKS = {2**32 - 1, 2**64 - 1, *range(2**63 - 16, 2**63)}
UNSIGNED = (
    st.integers(0, 2**64 - 1) | st.sampled_from(sorted(BLANKS)) | st.integers(2**32 - 3, 2**32 + 3)
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(values=st.lists(UNSIGNED, min_size=1, max_size=64))
def test_a_blank_is_missing_and_all_else_is_kept(
    values: list[int], library: str, play: Play
) -> None:
    """An ECC count of 18446744073709551615 drained a healthy node."""
    gpu = gpus(1)[0]
    gpu.fields = {4: ("ull", values)}
    scenario = play([gpu])
    with Sweeping(library, [gpu.address], ["ecc_uncorrected_volatile_errors"]) as sweeping:
        for step, value in enumerate(values):
            scenario.step(step)
            said = sweeping.read()[0]["ecc_uncorrected_volatile_errors"]
            assert said == (None if value in BLANKS else value)


@pytest.mark.parametrize(
    ("line", "reading"),
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
        ("field 230 uint 4000", "recovery_action_state"),
    ],
)
def test_what_cannot_be_is_missing(line: str, reading: str, library: str, play: Play) -> None:
    """A broken sensor says the largest number it has; as a temperature it would be the sun's."""
    gpu = gpus(1)[0]
    gpu.lines.append(line)
    play([gpu])
    with Sweeping(library, [gpu.address]) as sweeping:
        said = sweeping.read()[0]
    assert missing(said) == {reading}
    assert said["calls_failed_errors"] == 0


def test_a_margin_of_minus_one_is_a_value(library: str, play: Play) -> None:
    """One degree past its limit is when the margin matters, and -1 is everyone else's blank."""
    gpu = gpus(1)[0]
    gpu.values["margin"] = -1
    play([gpu])
    with Sweeping(library, [gpu.address]) as sweeping:
        assert sweeping.read()[0]["temperature_margin_celsius"] == -1.0


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("int", "-7", -7.0),
        ("sll", "-9", -9.0),
        ("ushort", "65", 65.0),
        ("ulong", "66", 66.0),
        ("double", "67.5", 67.5),
    ],
)
def test_a_field_may_come_as_any_type(
    kind: str, text: str, value: float, library: str, play: Play
) -> None:
    """The value type belongs to the driver; read by another member of the union it is noise."""
    gpu = gpus(1)[0]
    gpu.fields[82] = (kind, text)
    play([gpu])
    with Sweeping(library, [gpu.address]) as sweeping:
        assert sweeping.read()[0]["memory_temperature_celsius"] == value


# ---- errors stay where they are ------------------------------------------------------------------


def test_not_supported_is_missing_and_no_failure(library: str, play: Play) -> None:
    """A GPU without HBM sensors must not look like one whose driver is failing."""
    devices = gpus(2)
    devices[1].values, devices[1].fields = {}, {}
    play(devices)
    with Sweeping(library, addresses(devices)) as sweeping:
        full, empty = sweeping.read()
    assert missing(full) == set()
    assert missing(empty) == LIBRARY_READINGS
    assert (empty["lost_state"], empty["calls_failed_errors"]) == (0, 0)


@pytest.mark.parametrize("error", [1, 4, 14, 16, 21, 999])
def test_an_error_costs_its_reading_and_is_counted(error: int, library: str, play: Play) -> None:
    """One InfoROM gone bad must hide neither the rest of that GPU nor its neighbours."""
    devices = gpus(3)
    devices[1].lines.append(f"error nvmlDeviceGetClockInfo 0 {error}")
    devices[1].fields[82] = ("uint", f"48 !{error}")
    scenario = play(devices)
    with Sweeping(library, addresses(devices)) as sweeping:
        assert [missing(row) for row in sweeping.read()] == [set(), set(), set()]
        scenario.step(1)
        before, sick, after = sweeping.read()
        assert missing(before) == missing(after) == set()
        assert missing(sick) == {
            "sm_clock_hertz",
            "memory_clock_hertz",
            "memory_temperature_celsius",
        }
        assert [row["calls_failed_errors"] for row in sweeping.read()] == [0, 6, 0]


LOSSES = [
    "error * 0 15 0",
    "error nvmlDeviceGetComputeRunningProcesses_v3 0 15 0",
    "field 230 uint 0 !15 0",
]


@pytest.mark.parametrize("line", LOSSES)
def test_a_lost_gpu_is_lost_and_nothing_else(line: str, library: str, play: Play) -> None:
    """XID 79: the GPU fell off the bus in the middle of a sweep; what was read before is void."""
    devices = gpus(3)
    devices[1].lines.append(line)
    scenario = play(devices)
    with Sweeping(library, addresses(devices)) as sweeping:
        assert [row["lost_state"] for row in sweeping.read()] == [0, 0, 0]
        scenario.step(1)
        before, lost, after = sweeping.read()
        assert missing(lost) == LIBRARY_READINGS
        assert (lost["lost_state"], lost["calls_failed_errors"]) == (1, 0)
        assert missing(before) == missing(after) == set()
        scenario.step(2)
        assert missing(sweeping.read()[1]) == set()


def test_a_lost_gpu_is_asked_once_a_sweep(library: str, play: Play) -> None:
    """A call to a GPU that is gone can take seconds; thirty of them are a missed deadline."""
    devices = gpus(2)
    devices[0].lines.append("error nvmlDeviceGetFieldValues 15")
    play(devices)
    with Sweeping(library, addresses(devices)) as sweeping:
        sweeping.sweep.run()
        healthy = sweeping.sweep.calls
        sweeping.sweep.run()
        assert sweeping.sweep.calls - healthy == 1 + (
            healthy - 3
        )  # 2 opens and 1 question came before


def test_a_gpu_that_cannot_be_opened_is_tried_again(library: str, play: Play) -> None:
    """After a reset the GPU comes back; an agent that had given it up would need a restart."""
    devices = gpus(2)
    devices[0].lines.append("error nvmlDeviceGetHandleByPciBusId_v2 15 0")
    scenario = play(devices)
    with Sweeping(library, addresses(devices)) as sweeping:
        lost, healthy = sweeping.read()
        assert (lost["lost_state"], missing(lost), missing(healthy)) == (1, LIBRARY_READINGS, set())
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
        said = sweeping.read()[0]
    assert missing(said) == LIBRARY_READINGS | {"lost_state"}
    assert said["calls_failed_errors"] == 1


# ---- drivers that lack something --------------------------------------------------------------------

FIELD_ONLY = {name for name in READINGS if name.startswith("violation")}
FIELD_ONLY |= {"power_average_watts", "memory_temperature_celsius", "recovery_action_state"}
#: Function -> the readings that nothing else can give. What is not named here costs nothing.
COSTS: dict[str, set[str]] = {
    "nvmlDeviceGetFieldValues": FIELD_ONLY,
    "nvmlDeviceGetClockInfo": {"sm_clock_hertz", "memory_clock_hertz"},
    "nvmlDeviceGetMaxClockInfo": {"sm_clock_max_hertz"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_watts"},
    "nvmlDeviceGetTemperatureThreshold": {"temperature_slowdown_celsius"},
    "nvmlDeviceGetMarginTemperature": {"temperature_margin_celsius"},
    "nvmlDeviceGetUtilizationRates": {"utilization_ratio", "memory_utilization_ratio"},
    "nvmlDeviceGetMemoryInfo": {"memory_used_bytes"},
    "nvmlDeviceGetMemoryInfo_v2": {"memory_reserved_bytes"},
    "nvmlDeviceGetRemappedRows": {name for name in READINGS if name.startswith("remap")},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"pcie_generation_number"},
    "nvmlDeviceGetMaxPcieLinkGeneration": {"pcie_generation_max_number"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"pcie_width_lanes"},
    "nvmlDeviceGetMaxPcieLinkWidth": {"pcie_width_max_lanes"},
    "nvmlDeviceGetPerformanceState": {"performance_state"},
    "nvmlDeviceGetComputeRunningProcesses_v3": {"processes_count"},
}


@pytest.mark.parametrize("symbol", sorted(set(nvml.SYMBOLS) - set(nvml.REQUIRED)))
def test_a_missing_symbol_costs_its_reading_only(symbol: str, folder: Path, play: Play) -> None:
    """A binding linked at build time does not even start under a driver one branch older."""
    gpu = gpus(1)[0]
    play([gpu])
    with Sweeping(str(build(folder, missing=[symbol])), [gpu.address]) as sweeping:
        assert sweeping.nvml.missing_symbols == {symbol}
        assert len(sweeping.nvml.devices()) == 1
        assert sweeping.nvml.driver_version() in ("590.48.01", "")
        said = sweeping.read()[0]
    assert missing(said) == COSTS.get(symbol, set())
    assert said["calls_failed_errors"] == 0


def test_an_old_driver_gives_what_it_has(folder: Path, play: Play) -> None:
    """No fields, no versioned calls, the older name of the clock reasons: the older calls give the same."""
    lacks = ["nvmlDeviceGetFieldValues", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetMemoryInfo_v2"]
    lacks += [
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetMarginTemperature",
        "nvmlInitWithFlags",
    ]
    gpu = gpus(1)[0]
    play([gpu]).step(1)
    with Sweeping(str(build(folder, missing=lacks)), [gpu.address]) as sweeping:
        said = sweeping.read()[0]
    assert missing(said) == FIELD_ONLY | {"temperature_margin_celsius", "memory_reserved_bytes"}
    assert said["power_watts"] == 629.45
    assert said["energy_joules"] == 5000629.573
    assert said["ecc_corrected_volatile_errors"] == 7
    assert said["ecc_corrected_lifetime_errors"] == 19
    assert said["pcie_replays_count"] == 9
    assert said["temperature_celsius"] == 67
    assert said["clock_event_reasons_flags"] == 4


def test_a_driver_that_does_not_know_a_version_is_asked_the_older_call(
    library: str, play: Play
) -> None:
    """ARGUMENT_VERSION_MISMATCH is an old driver, not a failing one."""
    gpu = gpus(1)[0]
    gpu.lines.append("error nvmlDeviceGetTemperatureV 25")
    play([gpu])
    with Sweeping(library, [gpu.address]) as sweeping:
        said = sweeping.read()[0]
    assert (said["temperature_celsius"], said["calls_failed_errors"]) == (41, 0)


def test_no_library_is_said_in_words(tmp_path: Path) -> None:
    """Most machines have no NVIDIA driver; that is not an error of theirs."""
    with pytest.raises(NvmlAbsent, match="cannot open shared object file"):
        Nvml(str(tmp_path / "libnvidia-ml.so.1"))
    (tmp_path / "text.so").write_text("not a library, but something of that name is there\n" * 4)
    with pytest.raises(NvmlAbsent, match=r"text\.so"):
        Nvml(str(tmp_path / "text.so"))


def test_a_library_that_is_no_nvml_is_refused(folder: Path) -> None:
    """A stub package for containers once shipped a library of that name with nothing in it."""
    with pytest.raises(NvmlAbsent, match="lacks nvmlDeviceGetCount_v2"):
        Nvml(str(build(folder, missing=["nvmlDeviceGetCount_v2"])))


@pytest.mark.parametrize(("code", "words"), [(9, "Driver Not Loaded"), (18, "version mismatch")])
def test_a_driver_that_will_not_start_says_why(
    code: int, words: str, library: str, play: Play
) -> None:
    """A driver being updated (18) is no dead GPU."""
    play(gpus(1), host=f"error nvmlInitWithFlags {code}")
    with pytest.raises(NvmlError, match=words) as caught:
        Nvml(library)
    assert caught.value.code == code


# ---- finding GPUs -----------------------------------------------------------------------------------


def test_a_garbage_count_is_bounded(library: str, play: Play) -> None:
    """A count of four thousand million must not be four thousand million calls."""
    counted = ctypes.CDLL(library).fake_nvml_calls
    for count in (4294967295, 100):
        play(gpus(2), host=f"count {count}")
        before = counted(b"nvmlDeviceGetHandleByIndex_v2")
        found = Nvml(library)
        assert len(found.devices()) == 2
        assert counted(b"nvmlDeviceGetHandleByIndex_v2") - before <= nvml.GPUS_MAX
        found.close()


def test_a_gpu_that_cannot_be_found_does_not_hide_the_others(library: str, play: Play) -> None:
    """One sick GPU, and the list of GPUs of that host was empty."""
    devices = gpus(4)
    devices[1].lines.append("error nvmlDeviceGetHandleByIndex_v2 15")
    devices[2].lines.append("error nvmlDeviceGetUUID 999")
    play(devices)
    found = Nvml(library)
    assert [d.uuid for d in found.devices()] == [devices[0].uuid, "", devices[3].uuid]
    with pytest.raises(NvmlError, match="Not Found"):
        found.device("0000:ff:00.0")
    found.close()


def test_a_sweep_attaches_only_the_gpus_it_is_given(library: str, play: Play) -> None:
    """A GPU set aside for repair must stay closed: an open handle defeats its reset."""
    counted = ctypes.CDLL(library).fake_nvml_calls
    devices = gpus(8)
    play(devices)
    names = (b"nvmlDeviceGetHandleByPciBusId_v2", b"nvmlDeviceGetHandleByIndex_v2")
    before = [counted(name) for name in names]
    with Sweeping(library, [devices[5].address]) as sweeping:
        assert sweeping.read()[0]["sm_clock_hertz"] == (345 + 15 * 5) * 1e6
        sweeping.read()
    assert [counted(name) - b for name, b in zip(names, before, strict=True)] == [1, 0]


# ---- the pass itself ----------------------------------------------------------------------------------


def test_one_call_gives_all_fields_of_a_gpu(library: str, play: Play) -> None:
    """Real calls take 0.1 to 20 ms: what matters is how many there are."""
    counted = ctypes.CDLL(library).fake_nvml_calls
    devices = gpus(8)
    play(devices)
    fields, whole = counted(b"nvmlDeviceGetFieldValues"), counted(b"nvmlDeviceGetTotalEccErrors")
    with Sweeping(library, addresses(devices)) as sweeping:
        sweeping.sweep.run()
    assert counted(b"nvmlDeviceGetFieldValues") - fields == 8
    assert counted(b"nvmlDeviceGetTotalEccErrors") - whole == 0


def test_only_what_is_wanted_is_called(library: str, play: Play) -> None:
    """Each lane pays for its own readings only."""
    gpu = gpus(1)[0]
    play([gpu])
    with Sweeping(library, [gpu.address], ["power_limit_watts", "lost_state"]) as sweeping:
        assert sweeping.read() == [{"power_limit_watts": 700.0, "lost_state": 0}]
        assert sweeping.sweep.calls == 2  # one of them opened the GPU


def test_a_sweep_allocates_nothing(library: str, play: Play) -> None:
    """A leak of a hundred bytes a second is 8 MB a day on each of ten thousand hosts."""
    devices = gpus(8)
    devices[3].lines.append("error * 15")
    play(devices)
    with Sweeping(library, addresses(devices)) as sweeping:
        run = sweeping.sweep.run
        for _ in range(10):
            run()
        before = sys.getallocatedblocks()
        for _ in range(1000):
            run()
        assert sys.getallocatedblocks() - before < 10


def test_while_a_call_blocks_python_goes_on(library: str, play: Play, tmp_path: Path) -> None:
    """A sick GPU held a call for 45 s; the agent that held the GIL with it went silent as well.

    The fifo makes both sides meet: opening it returns when the call is being made, and the call
    returns when it is closed.
    """
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    devices = gpus(2)
    devices[1].lines.append(f"block nvmlDeviceGetPerformanceState fifo {fifo}")
    play(devices)
    with Sweeping(library, addresses(devices)) as sweeping:
        assert sweeping.sweep.stuck_at() is None
        thread = threading.Thread(target=sweeping.sweep.run, daemon=True)
        thread.start()
        held = os.open(fifo, os.O_WRONLY)
        assert sweeping.sweep.stuck_at() == (1, "nvmlDeviceGetPerformanceState")
        assert (
            sweeping.sweep.words() == f"GPU {devices[1].address} in nvmlDeviceGetPerformanceState"
        )
        assert missing(sweeping.row(0)) == set()  # the neighbour was read before
        with pytest.raises(RuntimeError, match=r"has not returned: GPU .* in nvmlDeviceGetPerf"):
            sweeping.sweep.run()
        with Sweeping(library, [devices[0].address]) as successor:  # the healthy one, meanwhile
            assert missing(successor.read()[0]) == set()
        assert thread.is_alive()
        os.close(held)
        thread.join(GUARD_SECONDS)
        assert not thread.is_alive()
        assert [missing(sweeping.row(row)) for row in range(2)] == [set(), set()]
        assert sweeping.sweep.stuck_at() is None


def test_closed_is_closed(library: str, play: Play) -> None:
    """`gangline release` lets go of every handle, so that a GPU can be reset."""
    play(gpus(1))
    with Sweeping(library, ["0000:19:00.0"]) as sweeping:
        sweeping.read()
        sweeping.nvml.close()
        sweeping.nvml.close()
        for act in (sweeping.sweep.run, sweeping.nvml.devices, sweeping.nvml.driver_version):
            with pytest.raises(NvmlError, match="let go of"):
                act()


def test_memory_outside_the_block_is_refused(library: str, play: Play) -> None:
    """A column too many would be written over whatever lies behind the block."""
    play(gpus(1))
    found = Nvml(library)
    cells, valid = bytearray(16), bytearray(2)
    Sweep(found, ["0000:19:00.0"], {"lost_state": (cells, valid, 1)}).run()
    assert valid == b"\0\1"
    for column in (2, -1):
        with pytest.raises(ValueError, match=f"column {column} of 1 rows lies outside"):
            Sweep(found, ["0000:19:00.0"], {"lost_state": (cells, valid, column)})
    with pytest.raises(KeyError):
        Sweep(found, ["0000:19:00.0"], {"no_such_reading": (cells, valid, 0)})
    with pytest.raises(ValueError, match="PCI address"):
        Sweep(found, ["0000:19:00.0" * 3], {})
    found.close()


def test_memory_in_use_cannot_be_moved(library: str, play: Play) -> None:
    """A bytearray that grows under a sweep would leave it writing into freed memory."""
    play(gpus(1))
    found = Nvml(library)
    cells, valid = bytearray(8), bytearray(1)
    sweep = Sweep(found, ["0000:19:00.0"], {"lost_state": (cells, valid, 0)})
    for memory in (cells, valid):
        with pytest.raises(BufferError):
            memory.extend(b"more")
    sweep.run()
    assert not math.isnan(cells[0])
    found.close()
