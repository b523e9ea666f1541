"""NVML as one process opens it: excluded GPUs, and releasing all at once."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline.agent.collector import Collector, CollectOutcome
from gangline.agent.collectors import COLLECTORS
from gangline.agent.collectors.nvlink import NvLinkCollector
from gangline.agent.hardware.nvidia import is_bound, pci_gpus
from gangline.ext import nvml, nvml_gpm, nvml_parts, place
from gangline.ext.nvml import Rows
from tests.agent.fakes import read
from tests.agent.gpu_host import GpuHost
from tests.fake_nvml.parts_scenario import with_links
from tests.fake_nvml.scenario import Gpu, gpus
from tests.fake_nvml.sick import blocks, crashes, is_lost, talks_garbage

NAMES = [
    "gpu_1s",
    "gpu_10s",
    "gpu_60s",
    "gpu_fast_1s",
    "gpu_fast_10s",
    "nvlink_10s",
    "c2c_10s",
    "mig_10s",
]
NAMES += ["gpu_process_1s", "gpu_fabric_1s", "nvml_events_10s"]


@pytest.fixture
def host(tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuHost]:
    gpu_host = GpuHost(tmp_path, library, monkeypatch)
    yield gpu_host
    gpu_host.session.close()


@pytest.fixture
def calls(library: str) -> Callable[[str], int]:
    counted = ctypes.CDLL(library).fake_nvml_calls
    return lambda name: int(counted(name.encode()))


def spare(host: GpuHost, *devices: Gpu) -> None:
    host.session.exclude(frozenset(gpu.address for gpu in devices))


@pytest.mark.parametrize("name", NAMES)
def test_every_collector_of_gpus_can_leave_some_alone(name: str, host: GpuHost) -> None:
    """One collector could not exclude only the eighth GPU: a takeover excluded seven."""
    collector = COLLECTORS[name](host.roots)
    assert collector.can_exclude and collector.enters_driver
    assert collector.has_idle_work == (name == "gpu_fast_1s")
    assert (type(collector).warm_up is not Collector.warm_up) == (name == "gpu_1s")


def test_nothing_that_sets_anything_is_even_looked_up() -> None:
    """A monitor that changes a GPU's profiling or persistence would itself damage the fleet."""
    symbols: set[str] = {*nvml.SYMBOLS, *nvml_parts.SYMBOLS, *nvml_gpm.SYMBOLS, nvml_gpm.MIG_SYMBOL}
    assert len(symbols) > 80
    harmless = {"nvmlEventSetCreate", "nvmlEventSetWait_v2", "nvmlEventSetFree"}
    harmless |= {"nvmlSystemEventSetCreate", "nvmlSystemEventSetWait", "nvmlSystemEventSetFree"}
    verbs = {"Set", "Clear", "Reset", "Create", "Destroy", "Modify", "Remove", "Discover", "Freeze"}
    verbs |= {"Enable", "Power", "Activate", "Write", "Start", "Stop", "Validate", "Streaming"}
    questions = {s for s in symbols if "Get" in s or "Query" in s}
    changing = {s for s in symbols - questions if any(verb in s for verb in verbs)}
    assert changing <= harmless
    for module in (nvml, nvml_parts, nvml_gpm):  # nor any symbol outside the tables
        text = Path(str(module.__file__)).read_bytes()
        for setter in (
            b"nvmlDeviceSet",
            b"nvmlGpmSetStreaming",
            b"nvmlDeviceClear",
            b"nvmlUnitSet",
        ):
            assert setter not in text


def test_to_be_warm_is_to_have_opened_no_gpu(host: GpuHost, calls: Callable[[str], int]) -> None:
    """A standby held eight handles of GPUs without need."""
    host.play(gpus(2))
    before = calls("nvmlDeviceGetHandleByPciBusId_v2") + calls("nvmlDeviceGetHandleByIndex_v2")
    lane = host.second()
    lane.warm_up()
    lane.warm_up()
    assert host.session.nvml is not None and not host.session.gpus
    attached = calls("nvmlDeviceGetHandleByPciBusId_v2") + calls("nvmlDeviceGetHandleByIndex_v2")
    assert attached == before
    assert host.turn(lane).outcome is CollectOutcome.OK


def test_gpus_of_the_kernels_list(host: GpuHost, calls: Callable[[str], int]) -> None:
    """A handle by number attaches every GPU, including the hung one."""
    devices = gpus(3)
    host.play(devices)
    before = calls("nvmlDeviceGetHandleByIndex_v2")
    for gpu in devices:
        (host.roots.sys / "bus/pci/drivers/nvidia" / gpu.address).mkdir(parents=True)
    assert pci_gpus(host.roots.sys) == [gpu.address for gpu in devices]
    assert is_bound(host.roots.sys, devices[0].address) is True
    assert is_bound(host.roots.sys, "0000:ff:00.0") is False
    assert is_bound(host.roots.proc, devices[0].address) is None
    rows = host.read(host.second())
    assert set(rows) == {gpu.uuid for gpu in devices}
    assert calls("nvmlDeviceGetHandleByIndex_v2") == before


def test_a_gpu_that_kills_whoever_asks_it_is_left_alone(host: GpuHost) -> None:
    """SIGSEGV at its first call: the standby that took over died of it as well, and the next one."""
    devices = gpus(4)
    crashes(devices[2], step=0)
    host.play(devices)
    host.list_in_proc(devices)
    nvml.remember(devices[2].address, uuid=devices[2].uuid)  # as read by the process before
    spare(host, devices[2])
    for lane in (host.second(), host.ten_seconds(), host.minute()):
        rows = read(host.turn(lane).blocks)
        assert list(rows) == [gpu.uuid for gpu in devices]
        readings = {name for name, value in rows[devices[2].uuid].items() if value is not None}
        assert readings <= {"counter_epoch_count", "driver_updating_state"} | {
            "driver_calls_count",
            "driver_calls_left_out_count",
        }
        assert rows[devices[0].uuid] != rows[devices[2].uuid]
    assert nvml.account(devices[2].address).calls == 0


def test_gpus_that_only_nvml_knows(host: GpuHost, calls: Callable[[str], int]) -> None:
    """In a container /proc/driver is empty: finding the neighbors attached the faulty GPU again."""
    devices = gpus(3)
    host.play(devices)
    lane = host.second()
    assert len(host.read(lane)) == 3
    before, own = calls("nvmlDeviceGetHandleByIndex_v2"), nvml.account(devices[1].address).calls
    spare(host, devices[1])
    rows = host.read(lane)
    assert [row["lost_state"] for row in rows.values()] == [0, None, 0]
    assert list(rows) == [gpu.uuid for gpu in devices]
    assert calls("nvmlDeviceGetHandleByIndex_v2") == before
    assert nvml.account(devices[1].address).calls == own


def test_an_open_gpu_is_excluded_and_taken_back(host: GpuHost, library: str) -> None:
    """One GPU is reset: its handle is closed, its neighbors are sampled, and it comes back."""
    devices = [with_links(gpu, 2) for gpu in gpus(3)]
    host.play(devices)
    host.list_in_proc(devices)
    lane, links = host.second(), NvLinkCollector(host.roots)
    everyone = host.read(lane)
    assert host.turn(links).blocks[0].rows == 6
    users = ctypes.CDLL(library).fake_nvml_users
    spare(host, devices[0])
    assert users() == 0  # the whole library: nothing else closes the descriptor of one GPU
    rows = host.read(lane)
    assert rows.keys() == everyone.keys() and rows[devices[0].uuid]["lost_state"] is None
    assert {key[:12] for key in host.turn(links).blocks[0].devices} == {
        gpu.uuid[:12] for gpu in devices[1:]
    }
    before = host.session.nvml
    spare(host)
    rows = host.read(lane)
    assert host.session.nvml is before  # its return does not disturb the others
    assert rows[devices[0].uuid]["temperature_celsius"] == 41
    assert [row["counter_epoch_count"] for row in rows.values()] == [0, 0, 0]  # no reset
    assert host.turn(links).blocks[0].rows == 6
    assert host.events == []


@pytest.mark.parametrize("which", ["each", "the driver as a whole"])
def test_all_excluded_nvml_is_not_opened(which: str, host: GpuHost, library: str) -> None:
    """The driver's lock: each caller of nvmlInit hangs behind the others."""
    devices = gpus(2)
    host.play(devices, host="block nvmlInitWithFlags crash -")
    host.list_in_proc(devices)
    host.session.exclude(
        frozenset({""}) if which != "each" else frozenset(gpu.address for gpu in devices)
    )
    lane = host.second()
    for _ in range(3):
        rows = host.read(lane)
        assert [row["lost_state"] for row in rows.values()] == [None, None]
    assert ctypes.CDLL(library).fake_nvml_users() == 0
    readings = host.turn(NvLinkCollector(host.roots))
    assert (readings.outcome, readings.message) == (CollectOutcome.NO_DATA, "all GPUs are skipped")
    host.play(devices)
    spare(host)
    assert [row["lost_state"] for row in host.read(lane).values()] == [0, 0]


def test_what_one_process_knew_of_a_gpu_the_next_one_knows(host: GpuHost) -> None:
    """Another sampler took over: the epoch of a GPU fell, and a loss was reported a second time."""
    devices = gpus(3)
    is_lost(devices[1])
    devices[2].fields[83] = ("ull", (5_000_000, 200))
    scenario = host.play(devices)
    host.list_in_proc(devices)
    lane = host.second()
    host.read(lane)
    scenario.step(1)
    host.read(lane)
    host.read(lane)
    assert len(host.events) == 1
    lane._session.close()
    del lane
    host.begin(anew=False)
    host.play([gpus(3)[0], is_lost(gpus(3)[1], step=0), gpus(3)[2]]).step(1)
    rows = host.read(host.second())
    assert [row["counter_epoch_count"] for row in rows.values()] == [0, 0, 1]
    assert [row["lost_state"] for row in rows.values()] == [0, 1, 0]
    assert len(host.events) == 1


def test_accounts_are_shared_with_the_processes_that_come_after() -> None:
    """Counts of calls fell at each takeover, and the cap started again with each sampler."""
    nvml.remember("0000:19:00.0", uuid="GPU-1", epoch=3, lost=True)
    child = os.fork()
    if not child:
        nvml.remember("0000:2a:00.0", uuid="GPU-2", epoch=4)
        os._exit(nvml.account("0000:19:00.0").epoch)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert nvml.account("0000:2a:00.0")[:2] == ("0000:2a:00.0", "GPU-2")
    assert nvml.account("0000:19:00.0").lost
    with pytest.raises(ValueError, match="PCI address"):
        nvml.account("0" * 32)


def test_who_dies_in_a_call_has_told_which(host: GpuHost) -> None:
    """A sampler died of SIGSEGV, and the GPU of its call was unknown: all eight were excluded."""
    devices = gpus(2)
    scenario = host.play([devices[0], crashes(devices[1], "nvmlDeviceGetMemoryInfo")])
    memory = memoryview(mmap.mmap(-1, place.SIZE_BYTES))
    child = os.fork()
    if not child:
        faulthandler.disable()  # the crash is intended
        place.use(memory)
        lane = host.second()
        host.turn(lane)
        scenario.step(1)
        host.turn(lane)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV
    seen = place.read(memory)
    assert (seen.device, seen.call) == (devices[1].address, "nvmlDeviceGetMemoryInfo")
    assert seen.entered_ns > 0


def test_garbage_of_one_gpu_costs_no_neighbour(host: GpuHost) -> None:
    """Blanks, error codes and worse in every value: missing, and only in its own row."""
    devices = gpus(3)
    talks_garbage(devices[1])
    host.play(devices)
    for lane in (host.second(), host.ten_seconds(), host.minute()):
        readings = host.turn(lane)
        assert readings.outcome in (CollectOutcome.OK, CollectOutcome.BLIND)
        rows = read(readings.blocks)
        assert len(rows) == 3
        for name, value in rows[devices[1].uuid].items():
            assert value is None or value < 2**63 or name.endswith("_flags"), name


def test_a_slow_gpu_has_a_share_of_the_time_and_is_swept_last(host: GpuHost) -> None:
    """One GPU was a hundred times slower: the others were sampled every three seconds."""
    devices = gpus(4)
    blocks(devices[0], 0.03)
    scenario = host.play(devices)
    lane = host.second()
    host.read(lane)
    scenario.step(1)
    turns = [host.read(lane) for _ in range(4)]
    assert {rows[gpu.uuid]["temperature_celsius"] for rows in turns for gpu in devices[1:]} == {67}
    rows = turns[-1]
    assert rows[devices[0].uuid]["sm_clock_hertz"] == 1980e6  # its first calls
    assert rows[devices[0].uuid]["temperature_celsius"] is None  # beyond its share of time
    assert lane.slow_devices() == {devices[0].address}
    scenario.step(0)
    rows = host.read(lane)
    assert rows[devices[0].uuid]["temperature_celsius"] == 41
    assert lane.slow_devices() == frozenset()


def test_one_that_is_alone_has_all_the_time_and_is_slow_all_the_same(host: GpuHost) -> None:
    """A slow GPU alone in a sampler was taken to be fast, and moved back and forth."""
    devices = gpus(8)
    blocks(devices[0], 0.02, step=0)
    host.play(devices)
    host.list_in_proc(devices)
    spare(host, *devices[1:])
    lane = host.second()
    rows = read(host.turn(lane, 3).blocks)
    assert rows[devices[0].uuid]["processes_count"] == 0
    assert lane.slow_devices() == {devices[0].address}
    host.play([gpus(8)[0]])
    host.session.close()
    host.turn(lane)
    assert lane.slow_devices() == frozenset()


def test_calls_are_capped_counted_and_the_cap_is_told_once(host: GpuHost) -> None:
    """A bug called one GPU a thousand times a second, and its job ran at half its speed."""
    devices = gpus(2)
    host.play(devices)
    lane, slow = host.second(), host.ten_seconds()
    host.read(slow)
    at_work = nvml.account(devices[0].address).calls
    nvml.cap(1)  # the bucket is practically never refilled in this test
    rows = read(host.turn(lane, 60).blocks)
    account = nvml.account(devices[0].address)
    assert account.calls <= at_work + nvml.CALLS_AT_ONCE_MAX + 60
    assert account.left_out > 100
    # skipped: missing, but not a failure
    assert rows[devices[0].uuid]["temperature_celsius"] is None
    assert rows[devices[0].uuid]["calls_failed_errors"] == 0
    readings = read(host.turn(slow, 2).blocks)[devices[0].uuid]
    assert (readings["driver_calls_left_out_count"] or 0) > account.left_out
    assert readings["driver_calls_count"] == nvml.account(devices[0].address).calls
    capped = [event for event in host.events if event.name == "gpu.driver_calls_capped"]
    assert [event.device for event in capped] == [gpu.uuid for gpu in devices]
    links = NvLinkCollector(host.roots)
    links._session.open()
    message = host.turn(links).message
    assert "left out, over 120 calls a second" in message
    nvml.cap(0)
    assert host.read(lane)[devices[0].uuid]["temperature_celsius"] == 41


def test_what_is_over_the_cap_is_left_out_of_others_first(host: GpuHost) -> None:
    """Repeated MIG look-ups used up the calls that detect a lost GPU."""
    devices = gpus(1)
    host.play(devices)
    lane, slow = host.second(), host.ten_seconds()
    host.turn(lane)
    host.turn(slow)
    nvml.cap(1)
    host.turn(slow, 40)
    assert host.read(slow)[devices[0].uuid]["power_limit_watts"] is None
    assert nvml.account(devices[0].address).left_out > 0
    rows = host.read(lane)[devices[0].uuid]
    assert (rows["temperature_celsius"], rows["lost_state"]) == (41, 0)


def test_more_gpus_than_there_is_room_for_are_told_apart() -> None:
    """A hang beyond the table was blamed on the whole driver, and two GPUs had one UUID."""
    addresses = [f"{number:04x}:01:00.0" for number in range(140)]
    for number, address in enumerate(addresses):
        nvml.remember(address, uuid=f"GPU-{number}")
    assert [nvml.account(a).uuid for a in addresses] == [f"GPU-{n}" for n in range(140)]
    assert len(nvml.accounts()) == 129
    for address in (addresses[0], addresses[-1]):
        assert ctypes.string_at(nvml.account_address(address)).decode() == address


def test_processes_that_open_accounts_at_the_same_time_mix_up_none() -> None:
    """Two samplers took the same free account for two GPUs: one then had the other's UUID."""
    gate = mmap.mmap(-1, 1)
    children = []
    for number in range(4):
        child = os.fork()
        if not child:
            while not gate[0]:
                pass
            for gpu in range(30):
                nvml.remember(f"{number:04x}:{gpu:02x}:00.0", uuid=f"GPU-{number}-{gpu}")
            os._exit(0)
        children.append(child)
    gate[0] = 1
    assert {os.waitpid(child, 0)[1] for child in children} == {0}
    result = {account.address: account.uuid for account in nvml.accounts() if account.address}
    assert result == {
        f"{number:04x}:{gpu:02x}:00.0": f"GPU-{number}-{gpu}"
        for number in range(4)
        for gpu in range(30)
    }


values = st.lists(st.none() | st.integers(0, 2**64 - 1), min_size=6, max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(values, max_size=12), st.sampled_from([nvml.ALL_BITS, 0xE0]))
def test_changed_rows_are_looked_at(turns: list[list[int | None]], mask: int) -> None:
    """A GPU that was lost while its row was not checked would look healthy forever."""
    nvml.forget_accounts()
    addresses = [f"0000:0{row}:00.0" for row in range(3)]
    cells, valid = bytearray(8 * 6), bytearray(6)
    ints = memoryview(cells).cast("Q")
    watched = [(cells, valid, 0, mask), (cells, valid, 1, mask)]
    never_fall = [(*w[:3], nvml.ALL_BITS) for w in watched]
    rows, counts = Rows(3, watched), Rows(3, never_fall, addresses)
    last: list[int | None] | None = None
    known: list[int | None] = [None] * 6
    for turn in turns:
        for index, value in enumerate(turn):
            ints[index], valid[index] = value or 0, value is not None
        seen = [None if value is None else value & mask for value in turn]
        differ = [
            r
            for r in range(3)
            if last is None or any(seen[r + 3 * c] != last[r + 3 * c] for c in (0, 1))
        ]
        assert list(rows.changed()) == differ
        fell = [
            r
            for r in range(3)
            if any(
                new is not None and old is not None and new < old
                for new, old in ((turn[r + 3 * c], known[r + 3 * c]) for c in (0, 1))
            )
        ]
        assert list(counts.fallen()) == fell
        last = seen
        known = [old if new is None else new for new, old in zip(turn, known, strict=True)]
        kept = [nvml.account(address).counts[:2] for address in addresses]
        assert kept == [(known[r], known[r + 3]) for r in range(3)]
        counts = Rows(3, never_fall, addresses)  # another process continues
    counts.forget(1)
    assert [nvml.account(address).counts[:2] for address in addresses] == [
        (known[0], known[3]),
        (None, None),
        (known[2], known[5]),
    ]


def test_rows_outside_their_memory_are_refused() -> None:
    """A column too many would be read from memory behind the block."""
    with pytest.raises(ValueError, match="column 2 of 3 rows"):
        Rows(3, [(bytearray(48), bytearray(6), 2, 0)])
    rows = Rows(3, [(bytearray(48), bytearray(6), 1, 0)])
    with pytest.raises(IndexError):
        rows.forget(3)
    with pytest.raises(ValueError, match="1 counts of 3 rows, at most 4"):
        Rows(3, [(bytearray(48), bytearray(6), 1, 0)], ["0000:01:00.0"])
    with pytest.raises(ValueError, match="5 counts of 1 rows, at most 4"):
        Rows(1, [(bytearray(48), bytearray(6), 1, 0)] * 5, ["0000:01:00.0"])
