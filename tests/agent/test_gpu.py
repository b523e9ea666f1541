"""The GPU collectors, over a library that plays a healthy and a faulty driver."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.agent.clock import SystemClock
from gangline.agent.collector import CollectOutcome
from gangline.agent.collectors.gpu import GpuMinute, GpuSecond, GpuTenSeconds
from gangline.agent.collectors.nvml_collector import NvmlCollector
from gangline.agent.collectors.nvml_open import RETRY_SECONDS
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.nvidia import device_rules_deny, driver_gpus, parse_uuid
from gangline.contract.block import is_float
from gangline.contract.signal import PERIOD_SECONDS, Kind, Pace
from gangline.contract.signals import TABLES
from gangline.contract.signals.gpu import GPU_SIGNALS
from gangline.ext import place
from gangline.ext.nvml import READINGS, NvmlError
from tests.agent.fakes import HandedClock, Lane, named, turn
from tests.agent.gpu_host import INFORMATION, SECOND
from tests.fake_nvml.fixtures import Play
from tests.fake_nvml.scenario import gpus
from tests.processes import GUARD_SECONDS

LANES: list[Callable[[Roots], NvmlCollector]] = [GpuSecond, GpuTenSeconds, GpuMinute]
#: Columns about the agent's own reading.
OF_THE_AGENT = {
    "counter_epoch_count",
    "driver_updating_state",
    "driver_calls_count",
    "driver_calls_left_out_count",
} | {f"violation_{cause}_field_state" for cause in ("sw_thermal", "hw_thermal", "hw_power_brake")}
#: Withheld until they are verified (test_gpu_fields.py).
UNPROVEN = {
    f"violation_{cause}_nanoseconds" for cause in ("sw_thermal", "hw_thermal", "hw_power_brake")
}
#: A lane's class in the table of collectors.
LaneKind = Callable[[Roots], NvmlCollector]

#: Signals without a counterpart in NVML.
OF_AMD = {f"violation_{part}_thermal_nanoseconds" for part in ("socket", "regulator", "memory")}
#: Field ids 7 to 28, in the order of nvml.h, have a value of 100 more than their number.
ECC = {
    f"ecc_{kind}_{span}_{place}_errors": 107
    + 11 * far
    + 2 * index
    + (kind == "uncorrected" and place != "cbu")
    for far, span in enumerate(("volatile", "lifetime"))
    for index, place in enumerate(("l1", "l2", "device", "register", "texture", "cbu"))
    for kind in ("corrected", "uncorrected")
    if (kind, place) != ("corrected", "cbu")
}
#: In the order of the struct, except for the aggregates, which come second here.
SRAM = {
    f"sram_{name}_errors": 21 + i
    for i, name in enumerate(
        (
            "corrected_volatile", "parity_volatile", "secded_volatile", "corrected_lifetime",
            "parity_lifetime", "secded_lifetime", "l2_lifetime", "sm_lifetime", "pcie_lifetime",
            "microcontroller_lifetime", "other_lifetime",
        )
    )
}  # fmt: skip
#: Fields 173 to 182 have their number as value.
PCIE_ERRORS = {
    "pcie_correctable_errors": 173, "pcie_naks_received_count": 174, "pcie_receiver_errors": 175,
    "pcie_bad_tlp_errors": 176, "pcie_naks_sent_count": 177, "pcie_bad_dllp_errors": 178,
    "pcie_nonfatal_errors": 179, "pcie_fatal_errors": 180, "pcie_unsupported_request_errors": 181,
    "pcie_lcrc_errors": 182,
}  # fmt: skip
#: The second GPU's values at the second step, by subject.
VALUES: dict[str, dict[str, float | int | None]] = {
    "clocks": {
        "sm_clock_hertz": 1_965_000_000.0, "memory_clock_hertz": 2_619_000_000.0,
        "sm_clock_max_hertz": 1_980_000_000.0, "clock_event_reasons_flags": 0x4,
        "graphics_clock_hertz": 1_965_000_000.0, "video_clock_hertz": 1_545_000_000.0,
        "graphics_clock_max_hertz": 1_995_000_000.0, "memory_clock_max_hertz": 2_619_000_000.0,
        "video_clock_max_hertz": 1_560_000_000.0, "sm_application_clock_hertz": 1_755_000_000.0,
        "memory_application_clock_hertz": 2_600_000_000.0,
    },
    "throttling": {
        "violation_power_nanoseconds": 10_400_000_000,
        "violation_thermal_nanoseconds": 6_000_000_001, "violation_sync_boost_nanoseconds": 0,
        "violation_board_limit_nanoseconds": 7_000_000_001,
        "violation_low_utilization_nanoseconds": 7_000_000_002,
        "violation_reliability_nanoseconds": 7_000_000_003,
        "violation_base_clocks_nanoseconds": 7_000_000_004,
        "violation_thermal_check_nanoseconds": 6_000_000_002,
        "violation_sw_thermal_nanoseconds": 0, "violation_hw_thermal_nanoseconds": 0,
        "violation_hw_power_brake_nanoseconds": 0, "violation_sw_thermal_field_state": 1,
        "violation_hw_thermal_field_state": 1, "violation_hw_power_brake_field_state": 1,
    },
    "power and heat": {
        "power_watts": 588.391, "power_average_watts": 629.45, "power_limit_watts": 700.0,
        "energy_joules": 5_000_629.573, "temperature_celsius": 67.0,
        "memory_temperature_celsius": 77.0, "temperature_margin_celsius": -2.0,
        "temperature_slowdown_celsius": 89.0, "module_power_watts": 890.0,
        "power_limit_requested_watts": 690.0, "power_limit_default_watts": 701.0,
        "power_limit_min_watts": 200.0, "power_limit_max_watts": 702.0,
        "temperature_shutdown_celsius": 92.0, "temperature_max_celsius": 87.0,
        "memory_temperature_max_celsius": 95.0, "margin_at_shutdown_celsius": -8.0,
        "margin_at_slowdown_celsius": -2.0, "margin_at_memory_max_celsius": -1.0,
        "margin_at_max_celsius": 0.0,
    },
    "work": {
        "utilization_ratio": 1.0, "memory_utilization_ratio": 0.43, "performance_state": 0,
        "processes_count": 3.0, "encoder_utilization_ratio": 0.11,
        "decoder_utilization_ratio": 0.12, "jpeg_utilization_ratio": 0.13,
        "optical_flow_utilization_ratio": 0.14,
    },
    "memory": {
        **ECC, **SRAM,
        "memory_used_bytes": 69_221_810_176.0, "memory_total_bytes": 85_520_809_984.0,
        "memory_reserved_bytes": 502_333_440.0, "ecc_corrected_volatile_errors": 7,
        "ecc_uncorrected_volatile_errors": 0, "ecc_corrected_lifetime_errors": 19,
        "ecc_uncorrected_lifetime_errors": 1, "remapped_correctable_rows": 2,
        "remapped_uncorrectable_rows": 1, "remap_pending_state": 1, "remap_failed_state": 0,
        "memory_free_bytes": 85_520_809_984.0 - 69_221_810_176.0, "bar1_used_bytes": 9_437_184.0,
        "bar1_total_bytes": 137_438_953_472.0, "sram_threshold_exceeded_state": 1,
        "sram_unique_uncorrected_count": 5, "sram_unique_uncorrected_errors": 35,
        "sram_unique_parity_count": 2, "remap_banks_max_count": 2555.0,
        "remap_banks_high_count": 3.0, "remap_banks_partial_count": 2.0,
        "remap_banks_low_count": 1.0, "remap_banks_none_count": 0.0, "retired_corrected_pages": 4,
        "retired_uncorrected_pages": 5, "retirement_pending_state": 1,
        "repair_channel_pending_state": 1, "repair_tpc_pending_state": 0,
        "unrepairable_memory_state": 0,
    },
    "PCIe": {
        **PCIE_ERRORS,
        "pcie_generation_number": 5.0, "pcie_generation_max_number": 5.0, "pcie_width_lanes": 16.0,
        "pcie_width_max_lanes": 16.0, "pcie_replays_count": 9, "pcie_replay_rollovers_count": 10,
        "pcie_recoveries_count": 11, "pcie_transmitted_bytes": 4_020_371_497,
        "pcie_received_bytes": 93_142_393,
    },
    "states": {
        "recovery_action_state": 0, "mig_mode_state": 0, "mig_mode_pending_state": 1,
        "ecc_mode_state": 1, "ecc_mode_pending_state": 0, "persistence_mode_state": 1,
        "compute_mode_state": 3,
    },
    "what we do": {
        "driver_updating_state": 0, "driver_calls_left_out_count": 0, "calls_failed_errors": 0,
        "slow_calls_failed_errors": 0, "lost_state": 0, "error_code_state": 0, "counter_epoch_count": 0,
        "settings_calls_failed_errors": 0,
    },
}  # fmt: skip


def list_in_proc(roots: Roots, address: str, uuid: str) -> None:
    folder = roots.proc / "driver/nvidia/gpus" / address
    folder.mkdir(parents=True)
    (folder / "information").write_text(INFORMATION.format(uuid=uuid))


def test_every_gpu_signal_has_a_reading_of_its_type() -> None:
    """A column without a source would be missing on every host, unnoticed."""
    signals = [s for s in GPU_SIGNALS if s.kind is not Kind.EVENT]
    assert {s.column for s in signals} == set(READINGS) | OF_THE_AGENT | OF_AMD
    for signal in signals:
        if signal.column in OF_THE_AGENT | OF_AMD:
            continue
        assert (READINGS[signal.column] is float) == is_float(signal.signal_id), signal.name


def test_lanes_fill_all_gpu_tables(roots: Roots, lane: Lane, play: Play) -> None:
    """The lanes together carry every GPU signal, for every GPU, keyed by UUID."""
    devices = gpus(8)
    play(devices).step(1)
    blocks = [block for kind in LANES for block in turn(lane(kind)).blocks]
    paces = {f"gpu_{kind(roots).pace}" for kind in LANES}
    tables = {name for name in TABLES if name.removesuffix("_changes") in paces}
    assert {block.table for block in blocks} == tables
    for block in blocks:
        assert block.devices == tuple(gpu.uuid for gpu in devices)
        for row in range(block.rows):
            missing = {name for name, value in named(block, row).items() if value is None}
            assert missing <= UNPROVEN | OF_AMD, block.table


@pytest.fixture
def said(lane: Lane, play: Play) -> dict[str, float | int | None]:
    """Return all collectors' values of the second GPU at the second step."""
    play(gpus(2)).step(1)
    result: dict[str, float | int | None] = {}
    for kind in LANES:
        for block in turn(lane(kind)).blocks:
            result |= named(block, 1)
    return result


@pytest.mark.parametrize("what", VALUES)
def test_values_are_in_their_units(what: str, said: dict[str, float | int | None]) -> None:
    """Megahertz, milliwatts and percent occur only inside NVML."""
    assert {name: said[name] for name in VALUES[what]} == VALUES[what]


def test_no_value_goes_unproved(said: dict[str, float | int | None]) -> None:
    """A signal without a test was read in kilobytes for a release."""
    proved = {name for values in VALUES.values() for name in values}
    assert said.keys() == proved | OF_AMD | {"driver_calls_count"}
    assert said["driver_calls_count"]


@pytest.mark.parametrize("kind", LANES)
def test_blocks_are_made_once_and_refilled(kind: LaneKind, lane: Lane, play: Play) -> None:
    """Memory left behind by a turn makes the daemon grow."""
    scenario = play(gpus(2))
    collector = lane(kind)
    first = turn(collector).blocks
    before = [bytes(block.cells) for block in first]
    scenario.step(1)
    second = turn(collector).blocks
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert [bytes(b.cells) for b in second] != before or kind is GpuMinute  # set once for all


def test_names_paces_and_the_driver(roots: Roots) -> None:
    """The daemon calls collectors that enter a driver from a thread that it can abandon."""
    assert [(k(roots).name, k(roots).pace, k(roots).enters_driver) for k in LANES] == [
        ("gpu_1s", Pace.SECOND, True),
        ("gpu_10s", Pace.TEN_SECONDS, True),
        ("gpu_60s", Pace.MINUTE, True),
    ]


@pytest.mark.parametrize("kind", LANES)
def test_no_library_is_no_data(kind: LaneKind, tmp_path: Path) -> None:
    """Most machines have no GPU, which is not an error."""
    result = turn(kind(Roots(nvml_library=str(tmp_path / "libnvidia-ml.so.1"))))
    assert result.outcome is CollectOutcome.NO_DATA
    assert result.message.startswith("no NVML: ")


def test_a_host_that_is_a_folder_has_no_driver(tmp_path: Path) -> None:
    """A test of a foreign /sys must not show the GPUs of the machine it runs on."""
    result = turn(GpuSecond(Roots(sys=tmp_path, proc=tmp_path)))
    assert (result.outcome, result.message) == (
        CollectOutcome.NO_DATA,
        "this host is a folder: it has no driver",
    )


@pytest.mark.parametrize(
    ("host", "outcome", "message"),
    [
        ("", CollectOutcome.NO_DATA, "has no GPU"),
        ("error nvmlInitWithFlags 9", CollectOutcome.NO_DATA, "driver is not loaded"),
        ("error nvmlInitWithFlags 4", CollectOutcome.BLIND, "let the agent open /dev/nvidiactl"),
        ("error nvmlInitWithFlags 18", CollectOutcome.ERROR, "the driver is being updated"),
        ("error nvmlInitWithFlags 999", CollectOutcome.ERROR, "Unknown Error"),
        ("error nvmlDeviceGetCount_v2 999", CollectOutcome.ERROR, "nvmlDeviceGetCount"),
        ("error nvmlDeviceGetCount_v2 28", CollectOutcome.NO_DATA, "has no GPU"),
    ],
)
def test_no_gpus(host: str, outcome: CollectOutcome, message: str, lane: Lane, play: Play) -> None:
    """`GPU lost` was reported by a whole fleet while its driver was being updated."""
    play(host=host)
    result = turn(lane(GpuSecond))
    assert result.outcome is outcome
    assert message in result.message


def refuse_devices(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    kernel_open = os.open

    def opened(path: str | Path, *arguments: int) -> int:
        if Path(path).name == "nvidiactl":
            raise OSError(code, os.strerror(code))
        return kernel_open(path, *arguments)

    monkeypatch.setattr(os, "open", opened)


@pytest.mark.parametrize("host", ["error nvmlInitWithFlags 999", "error nvmlInitWithFlags 9", ""])
def test_denied_devices(host: str, lane: Lane, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-docker #1671: containers lose /dev/nvidia*, and good nodes were drained."""
    refuse_devices(monkeypatch, errno.EPERM)
    play(host=host)
    result = turn(lane(GpuSecond))
    assert result.outcome is CollectOutcome.BLIND
    assert "no GPU is at fault" in result.message and "daemon-reload" in result.message
    assert len(result.message) < 300  # limit of a status document
    assert not result.blocks


def test_only_a_cgroup_answers_with_eperm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode of a file is another fault with another remedy; without a device there is no driver."""
    assert not device_rules_deny(tmp_path)
    (tmp_path / "nvidiactl").touch()
    assert not device_rules_deny(tmp_path)
    refuse_devices(monkeypatch, errno.EACCES)
    assert not device_rules_deny(tmp_path)
    refuse_devices(monkeypatch, errno.EPERM)
    assert device_rules_deny(tmp_path)


@pytest.mark.parametrize("kind", LANES)
def test_absent(kind: LaneKind, lane: Lane, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is loaded after the agent started: no restart, but no search every second either."""
    play(gpus(1))
    collector = lane(kind)
    scenario = os.environ["GANGLINE_FAKE_NVML"]
    monkeypatch.delenv("GANGLINE_FAKE_NVML")
    assert turn(collector).outcome is CollectOutcome.NO_DATA
    monkeypatch.setenv("GANGLINE_FAKE_NVML", scenario)
    clock = HandedClock()
    collector._session.clock = clock
    clock.now_ns = SystemClock().boottime_ns()
    period, outcomes = PERIOD_SECONDS[collector.pace], []
    while CollectOutcome.OK not in outcomes:
        clock.now_ns += period * SECOND
        outcomes.append(turn(collector).outcome)
    assert outcomes == [CollectOutcome.NO_DATA] * (len(outcomes) - 1) + [CollectOutcome.OK]
    assert RETRY_SECONDS <= len(outcomes) * period <= RETRY_SECONDS + period


def test_a_lost_gpu_costs_no_neighbour(lane: Lane, play: Play) -> None:
    """XID 79 on one GPU: its row shows it, the seven others are unchanged."""
    devices = gpus(8)
    devices[4].lines.append("error * 0 15")
    scenario = play(devices)
    collector = lane(GpuSecond)
    assert turn(collector).outcome is CollectOutcome.OK
    scenario.step(1)
    fast, changes = turn(collector).blocks
    assert fast.devices == tuple(gpu.uuid for gpu in devices)
    for row in range(8):
        present = {name for name, value in named(fast, row).items() if value is not None}
        assert named(fast, row)["lost_state"] == (row == 4)
        assert present == (
            {"lost_state", "calls_failed_errors", "counter_epoch_count"}
            if row == 4
            else set(named(fast, row))
        )
        assert (named(changes, row)["ecc_corrected_volatile_errors"] is None) == (row == 4)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        *((f"error * 0 {code} {code} 0", code) for code in (8, 10, 16, 17, 19, 20, 23, 999)),
        (
            "error nvmlDeviceGetUtilizationRates 0 16 16 0",
            16,
        ),  # a reset is required, from any call
        ("error nvmlDeviceGetUtilizationRates 0 999 999 0", 0),  # the other calls answer
        ("error * 0 3 3 0", 0),  # not supported
    ],
)
def test_a_silent_gpu_has_its_code(fault: str, code: int, lane: Lane, play: Play) -> None:
    """A GPU that must be reset answered 16 to every call, and only a counter rose."""
    devices = gpus(3)
    devices[1].lines.append(fault)
    scenario = play(devices)
    collector = lane(GpuSecond)
    for step, expected in enumerate((0, code, code, 0)):
        scenario.step(step)
        _, changes = turn(collector).blocks
        states = [named(changes, row)["error_code_state"] for row in range(3)]
        assert states == [0, expected, 0], step


@pytest.mark.parametrize("code", [16, 999])
def test_an_unopened_gpu_has_its_code(code: int, roots: Roots, lane: Lane, play: Play) -> None:
    """nvidia-smi: "Unable to determine the device handle ..."; the agent skipped that GPU."""
    devices = gpus(3)
    for gpu in devices:
        list_in_proc(roots, gpu.address, gpu.uuid)
    devices[1].lines.append(f"error nvmlDeviceGetHandleByPciBusId_v2 {code}")
    play(devices)
    fast, changes = turn(lane(GpuSecond)).blocks
    assert fast.devices == tuple(gpu.uuid for gpu in devices)
    assert [named(changes, row)["error_code_state"] for row in range(3)] == [0, code, 0]


def test_errors_are_counted_apart_by_lane(lane: Lane, play: Play) -> None:
    """A call that fails every 10 s must not be hidden by calls that succeed every second."""
    devices = gpus(2)
    devices[0].lines.append("error nvmlDeviceGetEnforcedPowerLimit 999")
    devices[1].lines.append("error nvmlDeviceGetUtilizationRates 999")
    play(devices)
    fast, slow = lane(GpuSecond), lane(GpuTenSeconds)
    turns = [(turn(fast).blocks, turn(slow).blocks) for _ in range(3)]
    (quick, _), (limits, lifetime) = turns[-1]
    assert [named(quick, row)["calls_failed_errors"] for row in range(2)] == [0, 3]
    assert [named(lifetime, row)["slow_calls_failed_errors"] for row in range(2)] == [3, 0]
    assert [named(limits, row)["power_limit_watts"] for row in range(2)] == [None, 700.0]


def test_a_gpu_lost_before_the_agent_started_is_named(roots: Roots, lane: Lane, play: Play) -> None:
    """NVML does not name a GPU that it cannot open, and a host with seven of eight looked complete."""
    devices = gpus(4)
    for gpu, uuid in zip(
        devices, (devices[0].uuid, devices[1].uuid, "GPU-????????-????", ""), strict=True
    ):
        list_in_proc(roots, gpu.address, uuid)
    for gpu in devices[1:3]:
        gpu.lines.append("error * 15")
    devices[3].lines.append("error * 4")  # another container's: no permission
    play(devices)
    fast, _ = turn(lane(GpuSecond)).blocks
    assert fast.devices == (devices[0].uuid, devices[1].uuid, devices[2].address)
    assert [named(fast, row)["lost_state"] for row in range(3)] == [0, 1, 1]
    assert named(fast, 0)["temperature_celsius"] == 41.0


def test_rows_do_not_depend_on_the_order_of_enumeration(lane: Lane, play: Play) -> None:
    """Indices change at each boot; a GPU identified by its index is another GPU tomorrow."""
    devices = gpus(4)
    play(devices)
    collector = lane(GpuSecond)
    first, _ = turn(collector).blocks
    collector._session.close()  # closed by its last user: the library reads the scenario again
    play(reversed(devices)).step(1)
    second, _ = turn(collector).blocks
    assert named(first, 3)["sm_clock_hertz"] == 390e6
    assert named(second, 3)["sm_clock_hertz"] == 1935e6
    assert first.devices == second.devices == tuple(gpu.uuid for gpu in devices)


def test_two_gpus_of_one_uuid_are_known_by_their_address(lane: Lane, play: Play) -> None:
    """A misflashed board claimed its neighbor's UUID; their readings must not be mixed."""
    devices = gpus(3)
    devices[1].uuid = devices[0].uuid
    play(devices)
    fast, _ = turn(lane(GpuSecond)).blocks
    assert fast.devices == (devices[0].address, devices[1].address, devices[2].uuid)


def test_the_turn_after_a_release_opens_again(lane: Lane, play: Play) -> None:
    """An open handle defeats a GPU reset."""
    play(gpus(1))
    collector = lane(GpuSecond)
    turn(collector)
    sweep = collector._sweep
    collector._session.close()
    assert sweep is not None
    with pytest.raises(NvmlError, match="let go of"):
        sweep.run()
    assert turn(collector).outcome is CollectOutcome.OK


def test_a_hang_names_gpu_and_call(lane: Lane, play: Play, tmp_path: Path) -> None:
    """The event only named `gpu_1s`: eight GPUs, and no hint which one to drain."""
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    devices = gpus(2)
    devices[1].lines.append(f"block nvmlDeviceGetUtilizationRates fifo {fifo}")
    play(devices)
    memory = bytearray(place.SIZE_BYTES)
    place.use(memory)
    thread = threading.Thread(target=turn, args=(lane(GpuSecond),), daemon=True)
    thread.start()
    held = os.open(fifo, os.O_WRONLY)
    seen = place.read(memory)
    assert (seen.device, seen.call) == (devices[1].address, "nvmlDeviceGetUtilizationRates")
    assert 0 < seen.entered_ns <= SystemClock().boottime_ns()
    os.close(held)
    thread.join(GUARD_SECONDS)
    assert place.read(memory)[:1] + place.read(memory)[3:] == (0, "", "")  # empty again


def test_the_drivers_list_is_read_with_care(tmp_path: Path) -> None:
    """Other files in that folder are not GPUs."""
    assert driver_gpus(tmp_path) == []
    for name in ("0000:3b:00.0", "0000:19:00.0", "README", "0000:3b:00.0.bak"):
        (tmp_path / "driver/nvidia/gpus" / name).mkdir(parents=True)
    assert driver_gpus(tmp_path) == ["0000:19:00.0", "0000:3b:00.0"]


@pytest.mark.parametrize(
    ("information", "uuid"),
    [
        (
            INFORMATION.format(uuid="GPU-8a2b0c1d-1111-2222-3333-444444444444"),
            "GPU-8a2b0c1d-1111-2222-3333-444444444444",
        ),
        (INFORMATION.format(uuid="GPU-????????-????-????-????-????????????"), ""),
        ("", ""),
        ("GPU UUID:\n", ""),
    ],
)
def test_a_uuid_is_one_or_none(information: str, uuid: str) -> None:
    """A GPU that was never attached has question marks; two of them would be one device."""
    assert parse_uuid(information) == uuid
    assert re.fullmatch(r"(GPU-[0-9a-f-]+)?", uuid)
