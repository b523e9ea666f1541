"""NVLinks, C2C, MIG, processes and fabric: over a library that plays good and bad drivers."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.clock import SystemClock
from gangline.agent.collector import (
    MESSAGE_CHARACTERS_MAX,
    CollectOutcome,
    CollectResult,
)
from gangline.agent.collectors import gpu_processes
from gangline.agent.collectors.gpu_fabric import GpuFabric, health, values_of
from gangline.agent.collectors.gpu_parts import GpuPartsCollector
from gangline.agent.collectors.gpu_processes import (
    UNCHANGED_TURNS_MAX,
    GpuProcesses,
    merge_processes,
    process_key,
)
from gangline.agent.collectors.mig import MigDevices
from gangline.agent.collectors.nvlink import C2cLinkCollector, NvLinkCollector
from gangline.agent.collectors.nvml_open import RETRY_SECONDS
from gangline.agent.events import EventPublisher
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.mig_capabilities import (
    mig_monitor_line,
    parse_capability_minor,
    parse_is_administrator,
    sees_all_mig_instances,
)
from gangline.agent.hardware.processes import TaskStat
from gangline.contract.signals import TABLES
from gangline.ext import place
from gangline.ext.nvml_parts import COMPUTE, GRAPHICS, Fabric, Process
from tests.agent.fakes import Lane, named, turn
from tests.fake_nvml.fixtures import Play
from tests.fake_nvml.parts_scenario import (
    BLACKWELL,
    NO_MEMORY,
    hgx,
    mig_device,
    process,
    with_c2c,
    with_fabric,
    with_links,
    with_mig,
)
from tests.fake_nvml.scenario import Gpu, gpus
from tests.processes import GUARD_SECONDS

LaneKind = Callable[[Roots], GpuPartsCollector]
LANES: list[LaneKind] = [NvLinkCollector, C2cLinkCollector, MigDevices, GpuProcesses, GpuFabric]

PROCESSES = st.builds(
    Process,
    st.integers(1, 5),
    st.none() | st.integers(0, 100),
    st.none() | st.integers(0, 2),
    st.none() | st.integers(0, 2),
    st.sampled_from([1, 2, 4]),
)


def rows(said: CollectResult, table: str) -> dict[str, dict[str, float | int | None]]:
    block = next(block for block in said.blocks if block.table == table)
    return {device: named(block, row) for row, device in enumerate(block.devices)}


def present(values: dict[str, float | int | None]) -> dict[str, float | int]:
    return {name: value for name, value in values.items() if value is not None}


def everything(count: int = 3) -> list[Gpu]:
    devices = [with_fabric(with_mig(with_c2c(with_links(g, 2), 1))) for g in gpus(count)]
    for i, gpu in enumerate(devices):
        gpu.lines.append(process(4000 + i))
    return devices + [mig_device(i, 1) for i in range(count)]


@pytest.mark.parametrize("kind", LANES)
def test_each_lane_fills_its_tables(kind: LaneKind, lane: Lane, play: Play) -> None:
    """A table without a source would be missing on every host, unnoticed."""
    play(everything())
    collector = lane(kind)
    result = turn(collector)
    assert (result.outcome, result.message) == (CollectOutcome.OK, "")
    device_kind = collector.name.rpartition("_")[0]
    tables = {n for n, signals in TABLES.items() if signals[0].device_kind == device_kind}
    assert {block.table for block in result.blocks} == tables
    for block in result.blocks:
        assert block.rows and all(present(named(block, r)) for r in range(block.rows))
        assert all(device.startswith(("GPU-", "MIG-")) for device in block.devices)


@pytest.mark.parametrize("kind", LANES)
def test_no_library_is_no_data(kind: LaneKind, tmp_path: Path) -> None:
    """Most machines have no GPU, which is not an error."""
    result = turn(kind(Roots(nvml_library=str(tmp_path / "libnvidia-ml.so.1"))))
    assert result.outcome is CollectOutcome.NO_DATA
    assert result.message.startswith("no NVML: ")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (NvLinkCollector, "no GPU has an NVLink"),
        (C2cLinkCollector, "no GPU has a C2C link to a CPU"),
        (MigDevices, "no GPU can be cut into MIG instances"),
        (GpuFabric, "no GPU is part of an NVLink fabric"),
    ],
)
def test_gpus_without_it(
    kind: LaneKind, message: str, lane: Lane, play: Play, library: str
) -> None:
    """A PCIe card has no NVLink: not zero links, and not a request each second either."""
    devices = gpus(2)
    for gpu in devices:
        gpu.values.pop("mig_mode", None)
    play(devices)
    collector = lane(kind)
    assert (turn(collector).outcome, turn(collector).message) == (CollectOutcome.NO_DATA, message)
    counted = ctypes.CDLL(library).fake_nvml_calls
    before = counted(b"nvmlDeviceGetHandleByPciBusId_v2")
    assert turn(collector).message == message
    assert counted(b"nvmlDeviceGetHandleByPciBusId_v2") == before


def test_an_absent_part_is_reported_seldom_and_looked_for_as_before(lane: Lane, play: Play) -> None:
    """Each second the agent loaded half of its code to report that this host has no fabric."""
    devices = [with_fabric(gpu, state=(0, 3)) for gpu in gpus(2)]
    devices[0].lines.append("error nvmlDeviceGetGpuFabricInfoV 0 0 999")
    scenario = play(devices)
    collector = lane(GpuFabric)
    outcomes: dict[int, CollectOutcome] = {}
    for second in range(62):
        if not collector.skip():
            outcomes[second] = turn(collector).outcome
        scenario.step(1)
    nothing = dict.fromkeys(range(0, RETRY_SECONDS, 10), CollectOutcome.NO_DATA)
    assert outcomes == nothing | {60: CollectOutcome.OK, 61: CollectOutcome.OK}
    scenario.step(2)
    for _ in range(3):
        assert not collector.skip()  # one GPU fails: the other continues
        assert turn(collector).outcome is CollectOutcome.BLIND


def test_an_idle_collector_reports_once_nvml_is_opened_anew(lane: Lane, play: Play) -> None:
    """The driver was reloaded, with the fabric manager this time."""
    play(gpus(1))
    collector = lane(GpuFabric)
    assert (collector.skip(), turn(collector).outcome) == (False, CollectOutcome.NO_DATA)
    assert collector.skip()
    collector._session.reopen(driver_loaded=True)
    assert not collector.skip()


@pytest.mark.parametrize("kind", LANES)
def test_a_lost_gpu_costs_no_neighbour(kind: LaneKind, lane: Lane, play: Play) -> None:
    """XID 79 on one GPU: its parts are missing in the turn, those of seven others are read."""
    devices = everything()
    devices[1].lines.append("error * 0 15")
    scenario = play(devices)
    collector = lane(kind)
    assert turn(collector).outcome is CollectOutcome.OK
    scenario.step(1)
    result = turn(collector)
    assert (result.outcome, result.message) == (CollectOutcome.OK, "")
    for block in result.blocks:
        values = {d: present(named(block, row)) for row, d in enumerate(block.devices)}
        of_lost = [v for d, v in values.items() if "00000001" in d]
        assert not any(of_lost), block.table
        assert sum(map(bool, values.values())) == block.rows - len(of_lost)


@pytest.mark.parametrize("kind", LANES)
def test_a_gpu_that_answers_with_an_error_is_named(kind: LaneKind, lane: Lane, play: Play) -> None:
    """One GPU's driver returned `unknown error` for a week, hidden by its seven neighbors."""
    devices = everything()
    devices[1].lines.append("error * 0 999")
    scenario = play(devices)
    collector = lane(kind)
    turn(collector)
    scenario.step(1)
    result = turn(collector)
    assert result.outcome is CollectOutcome.BLIND and len(result.blocks) > 0
    assert result.message.startswith(f"GPU {devices[1].address}: nvml")


def test_a_gpu_that_cannot_be_opened_is_named_at_each_turn(lane: Lane, play: Play) -> None:
    """It was reported once, at the start, and a day later unknown."""
    devices = everything()
    devices[1].lines.append("error nvmlDeviceGetHandleByPciBusId_v2 999")
    play(devices)
    collector = lane(GpuFabric)
    for _ in range(3):
        result = turn(collector)
        assert result.outcome is CollectOutcome.BLIND and result.blocks[0].rows == 2
        assert result.message.startswith(f"GPU {devices[1].address}: nvmlDeviceGetHandleByPciBusId")


@pytest.mark.parametrize("kind", LANES)
def test_a_gpu_that_comes_back_is_found_again(kind: LaneKind, lane: Lane, play: Play) -> None:
    """After a reset the GPU answers again; an agent that had abandoned it would need a restart."""
    devices = everything()
    devices[1].lines.append("error nvmlDeviceGetHandleByPciBusId_v2 15 0")
    devices[1].lines.append("error nvmlDeviceGetUUID 0 0")
    scenario = play(devices)
    collector = lane(kind)
    first = turn(collector)
    scenario.step(1)
    turns = [turn(collector) for _ in range(61 if collector.pace == "1s" else 7)]
    assert all(turn.outcome is CollectOutcome.OK for turn in turns)
    assert len(first.blocks[0].devices) < len(turns[-1].blocks[0].devices)


@pytest.mark.parametrize("kind", LANES)
def test_the_turn_after_a_release_opens_again(kind: LaneKind, lane: Lane, play: Play) -> None:
    """An open handle defeats a GPU reset."""
    play(everything())
    collector = lane(kind)
    before = [block.devices for block in turn(collector).blocks]
    collector._session.close()
    assert collector._session.nvml is None and collector._parts is None
    assert [block.devices for block in turn(collector).blocks] == before


def test_a_hang_is_named(lane: Lane, play: Play, tmp_path: Path) -> None:
    """A MIG look-up that does not return: the operator must see its GPU and call."""
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    devices = everything()
    devices[1].lines.append(f"block nvmlDeviceGetMaxMigDeviceCount fifo {fifo}")
    play(devices)
    memory = bytearray(place.SIZE_BYTES)
    place.use(memory)
    thread = threading.Thread(target=turn, args=(lane(MigDevices),), daemon=True)
    thread.start()
    held = os.open(fifo, os.O_WRONLY)
    seen = place.read(memory)
    assert (seen.device, seen.call) == (devices[1].address, "nvmlDeviceGetMaxMigDeviceCount")
    os.close(held)
    thread.join(GUARD_SECONDS)
    assert place.read(memory).entered_ns == 0


def test_an_hgx_board_has_all_its_links(lane: Lane, play: Play) -> None:
    """Eight GPUs with eighteen links: 144 rows, in the units of their names."""
    play(hgx()).step(1)
    result = turn(lane(NvLinkCollector))
    changes = rows(result, "nvlink_10s_changes")
    assert len(changes) == len(rows(result, "nvlink_10s")) == 144
    key = "GPU-00000003-1111-2222-3333-444444444444/link17"
    assert present(changes[key]) == {
        "link_state": 1,
        "version_code": 6,
        "speed_bytes_per_second": 26_562e6,
        "replay_errors": 3,
        "recovery_errors": 0,
        "crc_errors": 1,
    }
    assert present(rows(result, "nvlink_10s")[key]) == {
        "transmitted_data_bytes": 5_120_000_000,
        "received_data_bytes": 6_144_000_000,
    }


def test_nvlink_5_is_read_whole(lane: Lane, play: Play) -> None:
    """Blackwell has other counters: recoveries, error ratios, a history of the error correction."""
    play([with_links(gpus(1)[0], 18, BLACKWELL)]).step(1)
    result = turn(lane(NvLinkCollector))
    key = "GPU-00000000-1111-2222-3333-444444444444/link0"
    errors = rows(result, "nvlink_10s_changes")[key]
    assert (errors["malformed_packets_errors"], errors["transmit_discards_packets"]) == (0, 6)
    assert (errors["link_recovery_events"], errors["effective_errors"]) == (2, 5)
    assert errors["effective_bit_error_ratio"] == pytest.approx(3e-12)
    assert errors["symbol_bit_error_ratio"] == pytest.approx(1e-9)
    assert errors["replay_errors"] is None
    traffic = rows(result, "nvlink_10s")[key]
    assert (traffic["fec_history_0_count"], traffic["fec_history_15_count"]) == (10**12, 1)
    assert (traffic["received_bytes"], traffic["transmitted_data_bytes"]) == (2**41, None)


def test_an_older_driver_has_the_links_in_its_own_way(lane: Lane, play: Play) -> None:
    """A field for each link instead of a scope, the state by a call: an A100 under driver 470."""
    gpu = with_links(gpus(1)[0], 12, {})
    gpu.fields |= {
        46: ("ull", 1),
        113: ("ull", 2),
        58: ("ull", 3),
        32: ("ull", 4),
        90: ("uint", 25_000),
    }
    gpu.lines.append("link_state 7 0")
    play([gpu])
    links = list(rows(turn(lane(NvLinkCollector)), "nvlink_10s_changes").values())
    assert (links[0]["replay_errors"], links[11]["replay_errors"]) == (1, 2)
    assert (links[5]["recovery_errors"], links[0]["crc_flit_errors"]) == (3, 4)
    assert [link["speed_bytes_per_second"] for link in links] == [25e9] * 12
    assert [link["link_state"] for link in links] == [1] * 7 + [0] + [1] * 4


def test_a_link_that_goes_down_is_seen(lane: Lane, play: Play) -> None:
    """A link that is down has no visible effect; the collective is slower by one eighteenth."""
    gpu = with_links(gpus(1)[0], 2)
    gpu.lines = [line for line in gpu.lines if not line.startswith("scoped 1 165")]
    gpu.lines.append("scoped 1 165 uint 1 0")
    scenario = play([gpu])
    collector = lane(NvLinkCollector)
    turn(collector)
    scenario.step(1)
    states = [row["link_state"] for row in rows(turn(collector), "nvlink_10s_changes").values()]
    assert states == [1, 0]


def test_a_gpu_that_does_not_tell_its_links_is_said_and_asked_again(lane: Lane, play: Play) -> None:
    """The count of links was refused once: the GPU had none until a restart, unnoticed."""
    devices = [with_links(gpu, 2) for gpu in gpus(2)]
    devices[0].lines.append("error nvmlDeviceGetFieldValues 4 0")
    scenario = play(devices)
    collector = lane(NvLinkCollector)
    for _ in range(2):
        result = turn(collector)
        assert result.outcome is CollectOutcome.BLIND
        assert f"GPU {devices[0].address}: no permission" in result.message
        assert len(result.blocks[0].devices) == 2
    scenario.step(1)
    result = [turn(collector) for _ in range(8)][-1]
    assert result.outcome is CollectOutcome.OK
    assert len(result.blocks[0].devices) == 4


def test_c2c_links_of_a_superchip(lane: Lane, play: Play) -> None:
    """Grace and its GPU are connected by links of their own, with their own failures."""
    play([with_c2c(gpus(1)[0], 10)])
    links = rows(turn(lane(C2cLinkCollector)), "c2c_10s_changes")
    assert len(links) == 10
    assert links["GPU-00000000-1111-2222-3333-444444444444/c2c9"] == {
        "link_state": 1,
        "speed_max_bytes_per_second": 44_712e6,
        "crc_errors": 9,
        "replay_errors": 29,
        "replay_back_to_back_errors": 30,
        "power_state": 0,
    }


class Asked:
    """Records a collector's requests."""

    def __init__(self) -> None:
        self.teller = EventPublisher(SystemClock(), self, lambda: None)

    def put(self, event: object) -> None:
        raise AssertionError("MIG tells no events")


def test_each_instance_is_a_device(lane: Lane, play: Play) -> None:
    """Two tenants on one GPU: each has its memory, its placement and its errors."""
    devices = gpus(2)
    with_mig(devices[0])
    with_mig(devices[1], 0, 1)
    play([*devices, mig_device(0, 1), mig_device(0, 2, profile=14, start=4)]).step(1)
    result = turn(lane(MigDevices))
    assert len(rows(result, "mig_10s")) == 2
    second = "MIG-00000000-0002-0014-0000-000000000000"
    assert present(rows(result, "mig_10s")[second]) == {"memory_used_bytes": float(1 << 30)}
    assert rows(result, "mig_10s_changes")[second] == {
        "gpu_instance_number": 2,
        "compute_instance_number": 0,
        "profile_number": 14,
        "placement_start_number": 4,
        "placement_slices_count": 3,
        "gpu_slices_count": 3,
        "compute_slices_count": 3,
        "multiprocessors_count": 60,
        "ecc_sram_uncorrected_errors": 2,
        "memory_total_bytes": 42e9,
    }


def test_nothing_is_looked_up_where_the_mode_is_off(lane: Lane, play: Play, library: str) -> None:
    """MIG look-ups used ten cores on a host whose GPUs were never split."""
    play([with_mig(gpu, 0, 0) for gpu in gpus(8)])
    counted = ctypes.CDLL(library).fake_nvml_calls
    names = (b"nvmlDeviceGetMigDeviceHandleByIndex", b"nvmlDeviceGetMaxMigDeviceCount")
    before = [counted(name) for name in names]
    assert turn(lane(MigDevices)).outcome is CollectOutcome.OK
    assert [counted(name) for name in names] == before


def test_a_reconfiguration_is_noticed_and_leaves_no_stale_rows(lane: Lane, play: Play) -> None:
    """The instance was destroyed and recreated, larger: the old one's memory seemed in use forever."""
    gpu = with_mig(gpus(1)[0])
    scenario = play(
        [gpu, mig_device(0, 1, last=0), mig_device(0, 2), mig_device(0, 1, first=1, profile=5)]
    )
    collector, asked = lane(MigDevices), Asked()
    collector.start(asked.teller)
    first = turn(collector)
    assert turn(collector).blocks[0] is first.blocks[0]  # nothing changed: the same memory
    assert asked.teller.take_inventory_request() == ""
    before = set(rows(first, "mig_10s"))
    scenario.step(1)
    after = set(rows(turn(collector), "mig_10s"))
    assert before - after == {"MIG-00000000-0001-0009-0000-000000000000"}
    assert after - before == {"MIG-00000000-0001-0005-0000-000000000000"}
    assert "MIG" in asked.teller.take_inventory_request()
    collector.close()


def test_the_mode_that_is_switched_asks_for_a_new_inventory(lane: Lane, play: Play) -> None:
    """A GPU was put into MIG mode: as a whole it is no longer available."""
    scenario = play([with_mig(gpus(1)[0], (0, 1), 1), mig_device(0, 1)])
    collector, asked = lane(MigDevices), Asked()
    assert isinstance(collector, MigDevices)
    collector.start(asked.teller)
    turn(collector)
    scenario.step(1)
    assert len(rows(turn(collector), "mig_10s")) == 1
    assert asked.teller.take_inventory_request()


@pytest.mark.parametrize("whole", [True, False])
def test_hidden_mig_has_a_remedy(whole: bool, lane: Lane, play: Play, roots: Roots) -> None:
    """Without mig/monitor an agent sees only its own instances: `no errors` was a guess."""
    grant(roots, minor=2)
    gpu, device = with_mig(gpus(1)[0]), mig_device(0, 1)
    if whole:
        gpu.lines.append("error nvmlDeviceGetMigDeviceHandleByIndex 4")
    else:
        device.lines.append("error nvmlDeviceGetMemoryInfo 4")
    play([gpu, device])
    result = turn(lane(MigDevices))
    assert result.outcome is CollectOutcome.BLIND
    assert f"GPU {gpu.address}" in result.message
    assert len(result.message) <= MESSAGE_CHARACTERS_MAX
    line = mig_monitor_line(replace(roots, proc=Path("/proc"), dev=Path("/dev")))
    assert len(f"GPU {gpu.address}: MIG: no permission; {line}") <= MESSAGE_CHARACTERS_MAX
    assert bool(result.blocks) != whole


def grant(roots: Roots, *, minor: int, node: bool = False, capabilities: int = 0) -> None:
    """Create the driver's capability file, its device node, and this process' capabilities."""
    file = roots.proc / "driver/nvidia/capabilities/mig/monitor"
    file.parent.mkdir(parents=True)
    file.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
    (roots.proc / "self").mkdir()
    (roots.proc / "self/status").write_text(f"Name:\tagent\nCapEff:\t{capabilities:016x}\n")
    if node:
        (roots.dev / "nvidia-caps").mkdir(parents=True)
        (roots.dev / f"nvidia-caps/nvidia-cap{minor}").write_bytes(b"")


@pytest.mark.parametrize(
    ("node", "capabilities", "sees"),
    [
        (False, 0, False),
        (True, 0, True),
        (False, 1 << 21, True),
        (False, ~(1 << 21) % 2**41, False),
    ],
)
def test_who_sees_mig_instances(node: bool, capabilities: int, sees: bool, roots: Roots) -> None:
    """The driver does not refuse, it shows less: the agent itself must know its rights."""
    grant(roots, minor=12, node=node, capabilities=capabilities)
    assert sees_all_mig_instances(roots) is sees
    assert mig_monitor_line(roots).endswith(f"{roots.dev}/nvidia-caps/nvidia-cap12")


def test_a_host_without_the_capability_file(tmp_path: Path) -> None:
    """A driver that was never loaded has no such file; the message still names its path."""
    nothing = Roots(proc=tmp_path, dev=tmp_path)
    assert not sees_all_mig_instances(nothing)
    assert "driver/nvidia/capabilities/mig/monitor" in mig_monitor_line(nothing)


@given(st.text())
def test_capability_texts_are_read_or_refused(text: str) -> None:
    minor = parse_capability_minor(text)
    assert minor is None or 0 <= minor < 10_000_000
    assert parse_is_administrator(text) in (True, False)


def list_in_proc(roots: Roots, pid: int, start_ticks: int) -> None:
    folder = roots.proc / str(pid)
    folder.mkdir(exist_ok=True)
    fields = ["S", "1", *["0"] * 17, str(start_ticks), "0", "0"]
    (folder / "stat").write_text(f"{pid} (python3) {' '.join(fields)}\n")


def test_processes_with_memory_and_start(lane: Lane, play: Play, roots: Roots) -> None:
    """The zombie of a job that ended yesterday still held 60 GB, and its owner was unknown."""
    gpu = gpus(1)[0]
    gpu.lines += [process(4242, 60 << 30), process(4242, 60 << 30, which=1), process(77, NO_MEMORY)]
    play([gpu])
    list_in_proc(roots, 4242, 123_456)
    ticks = os.sysconf("SC_CLK_TCK")
    assert rows(turn(lane(GpuProcesses)), "gpu_process_1s_changes") == {
        f"{gpu.uuid}/4242": {
            "memory_used_bytes": float(60 << 30),
            "kinds_flags": COMPUTE | GRAPHICS,
            "start_nanoseconds": 123_456 * 1_000_000_000 // ticks,
            "gpu_instance_number": None,
            "compute_instance_number": None,
        },
        f"{gpu.uuid}/77": {
            "memory_used_bytes": None,
            "kinds_flags": COMPUTE,
            "start_nanoseconds": None,
            "gpu_instance_number": None,
            "compute_instance_number": None,
        },
    }


def test_a_pid_that_is_dealt_again_is_another_process(lane: Lane, play: Play, roots: Roots) -> None:
    """Another user's job got the same PID, and was charged with the first one's memory."""
    gpu = gpus(1)[0]
    gpu.lines.append(process(4242))
    play([gpu])
    collector, starts = lane(GpuProcesses), []
    for ticks in (100, 900):
        list_in_proc(roots, 4242, ticks)
        reported = [
            turn(collector) for _ in range(UNCHANGED_TURNS_MAX + 1)
        ]  # NVML's list is the same
        row = rows(reported[-1], "gpu_process_1s_changes")[f"{gpu.uuid}/4242"]
        starts.append(row["start_nanoseconds"])
    assert starts[0] != starts[1]


def test_unfilled_rows_come_next(lane: Lane, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of descriptors when a job began: for ten seconds its GPU had no process."""
    gpu = gpus(1)[0]
    gpu.lines += [process(1, last=0), process(2, first=1)]
    scenario = play([gpu])
    collector = lane(GpuProcesses)
    turn(collector)
    scenario.step(1)
    with monkeypatch.context() as patch:
        patch.setattr(gpu_processes, "read_tasks", _no_descriptor)
        assert turn(collector).outcome is CollectOutcome.ERROR
    assert turn(collector).blocks[0].devices == (f"{gpu.uuid}/2",)


def _no_descriptor(*_: object) -> list[TaskStat]:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_process_that_ends_leaves_no_row(lane: Lane, play: Play) -> None:
    """Rows of ended processes look like memory in use."""
    gpu = gpus(1)[0]
    gpu.lines += [process(1, last=0), process(2)]
    scenario = play([gpu])
    collector = lane(GpuProcesses)
    first = turn(collector).blocks[0]
    assert first.rows == 2
    scenario.step(1)
    assert turn(collector).blocks[0].devices == (f"{gpu.uuid}/2",)
    assert turn(collector).blocks[0] is turn(collector).blocks[0]


def test_no_process_is_an_empty_table_not_no_data(lane: Lane, play: Play) -> None:
    """An idle GPU has no process, which is known."""
    play(gpus(2))
    result = turn(lane(GpuProcesses))
    assert result.outcome is CollectOutcome.OK and result.blocks[0].rows == 0


def test_mig_processes_are_kept_apart_by_instance(lane: Lane, play: Play) -> None:
    """Two instances of one GPU, one process in each, and one in both."""
    gpu = gpus(1)[0]
    gpu.lines += [process(5, 1, instance=1, compute=0), process(5, 2, instance=2, compute=0)]
    play([gpu])
    result = rows(turn(lane(GpuProcesses)), "gpu_process_1s_changes")
    assert {device: row["memory_used_bytes"] for device, row in result.items()} == {
        f"{gpu.uuid}/gi1/ci0/5": 1.0,
        f"{gpu.uuid}/gi2/ci0/5": 2.0,
    }


def test_a_garbage_count_costs_its_gpu_only(lane: Lane, play: Play) -> None:
    """A driver that reports four thousand million processes on one GPU is still read for the other."""
    devices = gpus(2)
    devices[0].values["mps_count"] = 4_294_967_294
    devices[1].lines.append(process(9))
    play(devices)
    result = turn(lane(GpuProcesses))
    assert result.outcome is CollectOutcome.BLIND and "4294967294 processes" in result.message
    assert result.blocks[0].devices == (f"{devices[1].uuid}/9",)


@given(st.lists(PROCESSES))
def test_merging_loses_no_process_and_adds_no_memory(processes: list[Process]) -> None:
    """A process in two lists holds its memory once."""
    whole = merge_processes(processes)
    places = [(p.pid, p.gpu_instance, p.compute_instance) for p in whole]
    assert len(places) == len(set(places))
    assert set(places) == {(p.pid, p.gpu_instance, p.compute_instance) for p in processes}
    for merged in whole:
        same = [p for p in processes if (p.pid, *p[2:4]) == (merged.pid, *merged[2:4])]
        known = [p.memory_bytes for p in same if p.memory_bytes is not None]
        assert merged.memory_bytes == (max(known) if known else None)
        assert all(merged.kinds & p.kinds for p in same)


@given(st.lists(PROCESSES, unique_by=lambda p: (p.pid, p.gpu_instance, p.compute_instance)))
def test_keys_are_as_many_as_processes(processes: list[Process]) -> None:
    """Two rows with one key are one row too few."""
    reported = [p for p in processes if p.gpu_instance is not None or p.compute_instance is None]
    keys = [process_key("GPU-1", p) for p in reported]
    assert len(set(keys)) == len(reported)
    assert all(key.rpartition("/")[2] == str(p.pid) for key, p in zip(keys, reported, strict=True))


def test_health_of_the_fabric_is_told_as_it_changes(lane: Lane, play: Play) -> None:
    """A tray at degraded bandwidth: the job ran at half its pace, and every counter was zero."""
    scenario = play([with_fabric(gpu, health=(0x1AA, 0x2A9)) for gpu in gpus(4)])
    collector = lane(GpuFabric)
    healthy = next(iter(rows(turn(collector), "gpu_fabric_1s_changes").values()))
    scenario.step(1)
    degraded = next(iter(rows(turn(collector), "gpu_fabric_1s_changes").values()))
    assert healthy["degraded_bandwidth_state"] == 0
    assert degraded == {
        "registration_state": 3,
        "registration_status_code": 0,
        "clique_number": 1,
        "health_flags": 0x2A9,
        "degraded_bandwidth_state": 1,
        "route_recovery_state": 0,
        "route_unhealthy_state": 0,
        "access_timeout_recovery_state": 0,
        "incorrect_configuration_code": 2,
        "health_summary_code": None,
    }


def test_a_registration_that_is_not_done_has_no_clique(lane: Lane, play: Play) -> None:
    """Fabric Manager was not running: clique 0 of an unfinished registration is meaningless."""
    play([with_fabric(gpus(1)[0], state=2, health=0)])
    row = next(iter(rows(turn(lane(GpuFabric)), "gpu_fabric_1s_changes").values()))
    assert present(row) == {"registration_state": 2, "health_flags": 0}


@given(st.integers(0, 2**32 - 2))
def test_any_mask_is_decoded_or_missing(mask: int) -> None:
    """Unknown bits of a header stay in the raw mask, and change nothing else."""
    raw, *states, configuration = health(mask)
    assert raw == mask
    expected = [{1: 1, 2: 0}.get((mask >> shift) % 4) for shift in (0, 2, 4, 6)]
    assert states == expected
    assert configuration == ((mask >> 8) % 16 or None)


def test_no_mask_is_no_health() -> None:
    """An older driver reports the state without the health, or blanks: unknown, not healthy."""
    assert health(None) == health(2**32 - 1) == (None,) * 6


@given(st.integers(0, 255), st.integers(-1, 2**32 - 1), st.integers(0, 255))
def test_a_fabric_of_garbage_has_no_state(state: int, clique: int, summary: int) -> None:
    """A GPU whose memory reads as ones had `registration state 255`, and looked healthy."""
    reported = values_of(Fabric(bytes(16), state, 0, clique, 2**32 - 1, summary))
    assert reported[0] == (state if state <= 3 else None)
    assert reported[2] in (None, clique) and reported[2] != 2**32 - 1
    assert reported[-1] == (summary if summary in (1, 2, 3) else None)
