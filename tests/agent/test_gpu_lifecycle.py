"""GPUs that fall off the bus, come back, move, are exchanged or reset; replaced drivers."""

from __future__ import annotations

import ctypes
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.collector import CollectOutcome, NoData, RestartRequired
from gangline.agent.collectors.gpu import GpuSecond
from gangline.agent.collectors.gpu_lifecycle import IDENTITY_SECONDS, GpuLifecycle, GpuStateChange
from gangline.agent.collectors.nvml_open import RETRY_SECONDS, RETRY_SOON_SECONDS, RetryTimer
from gangline.agent.collectors.nvml_session import REOPEN_SECONDS, REOPEN_SECONDS_MAX, NvmlSession
from gangline.agent.hardware.nvidia import parse_kernel_driver_version
from gangline.ext import nvml
from gangline.ext.nvml import NvmlError
from tests.agent.fakes import read
from tests.agent.gpu_host import SECOND, VERSION, GpuHost
from tests.fake_nvml.build import build
from tests.fake_nvml.scenario import Gpu, gpus

KEYS: list[str] = ["GPU-a", "GPU-b", "GPU-c"]
FINDS = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(["1", "2", "3"]), max_size=3)
LOOKS = st.dictionaries(st.sampled_from(KEYS), st.booleans(), max_size=3)

OTHER = "GPU-99999999-1111-2222-3333-444444444444"


@pytest.fixture
def host(tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuHost]:
    gpu_host = GpuHost(tmp_path, library, monkeypatch)
    yield gpu_host
    gpu_host.close()


def epochs(rows: dict[str, dict[str, float | int | None]]) -> dict[str, float | int | None]:
    return {key: row["counter_epoch_count"] for key, row in rows.items()}


def told(host: GpuHost) -> list[tuple[str, str, str]]:
    """Return the events so far: name, address, state."""
    return [(event.name, event.device, event.attributes["state"]) for event in host.events]


def test_a_loss_is_told_at_once_and_once(host: GpuHost) -> None:
    """XID 79: the event was sent every second for a night, and hid a second lost GPU."""
    devices = gpus(3)
    devices[1].lines.append("error * 0 15 15 15 0")
    scenario = host.play(devices)
    lane = host.second()
    assert epochs(host.read(lane)) == {gpu.uuid: 0 for gpu in devices}
    assert host.events == []
    for step in (1, 2, 3):
        scenario.step(step)
        assert host.read(lane)[devices[1].uuid]["lost_state"] == 1
    assert told(host) == [("gpu.lost", devices[1].address, "lost")]
    assert host.events[0].attributes["uuid"] == devices[1].uuid
    assert (host.events[0].code, host.events[0].device_kind) == (0, "gpu")
    assert "fell off the bus" in host.teller.take_inventory_request()
    scenario.step(4)
    rows = host.read(lane)
    assert told(host)[1:] == [("gpu.lost", devices[1].address, "back")]
    assert epochs(rows) == {devices[0].uuid: 0, devices[1].uuid: 1, devices[2].uuid: 0}
    assert "answers again" in host.teller.take_inventory_request()
    assert host.read(lane)[devices[1].uuid]["lost_state"] == 0
    assert len(host.events) == 2


def test_a_gpu_that_is_lost_from_the_start_is_told(host: GpuHost) -> None:
    """The agent was restarted by the very reboot that did not bring the GPU back."""
    devices = gpus(2)
    devices[0].lines.append("error * 15")
    host.play(devices)
    host.list_in_proc(devices)
    rows = host.read(host.second())
    assert rows[devices[0].uuid]["lost_state"] == 1
    assert told(host) == [("gpu.lost", devices[0].address, "lost")]


def test_what_nvml_lost_is_found_again_by_opening_it_anew(host: GpuHost) -> None:
    """NVML returns `lost` even after a reset until it is closed."""
    devices = gpus(2)
    devices[1].lines.append("error * 0 15")
    scenario = host.play(devices)
    host.list_in_proc(devices)
    fast, slow = host.second(), host.ten_seconds()
    host.turn(slow)
    host.turn(fast)
    scenario.step(1)
    assert host.read(fast)[devices[1].uuid]["lost_state"] == 1
    host.play(gpus(2)).step(1)  # the GPU is healthy; a new first user of NVML sees it
    for _ in range(REOPEN_SECONDS - 1):
        assert host.read(fast)[devices[1].uuid]["lost_state"] == 1
    rows = host.read(fast)
    assert rows[devices[1].uuid]["lost_state"] == 0
    assert rows[devices[1].uuid]["temperature_celsius"] == 67
    assert epochs(rows) == {devices[0].uuid: 0, devices[1].uuid: 1}
    assert told(host) == [
        ("gpu.lost", devices[1].address, "lost"),
        ("gpu.lost", devices[1].address, "back"),
    ]
    assert host.turn(slow).outcome is CollectOutcome.OK


def test_a_lost_gpu_disturbs_others_rarely(host: GpuHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reopening attaches eight GPUs; a repair may take a week."""
    devices = gpus(2)
    devices[1].lines.append("error * 15")
    host.play(devices)
    host.list_in_proc(devices)
    lane = host.second()
    opened: list[int] = []
    original = NvmlSession._find

    def noted(self: NvmlSession) -> None:
        opened.append(host.clock.now_ns // SECOND)
        original(self)

    monkeypatch.setattr(NvmlSession, "_find", noted)
    for _ in range(3000):
        assert epochs(host.read(lane))[devices[0].uuid] == 0
    gaps = [after - before for before, after in pairwise(opened)]
    assert gaps == [60, 120, 240, 480, REOPEN_SECONDS_MAX, REOPEN_SECONDS_MAX, REOPEN_SECONDS_MAX]
    assert len(host.events) == 1


@pytest.mark.parametrize("code", [1, 9])
def test_a_driver_that_was_loaded_again(code: int, host: GpuHost) -> None:
    """`Uninitialized` until the agent was restarted, on four hundred hosts after a driver update."""
    devices = gpus(2)
    for gpu in devices:
        gpu.lines.append(f"error * 0 {code}")
    lines = f"driver 580.65.06\nerror nvmlDeviceGetCount_v2 0 {code}"
    scenario = host.play(devices, host=lines)
    lane, slow = host.second(), host.ten_seconds()
    host.turn(lane)
    host.turn(slow)
    scenario.step(1)
    gone = host.turn(lane)
    assert (gone.blocks, host.events) == ((), [])  # nothing outdated, and no GPU is lost
    assert gone.outcome is (CollectOutcome.NO_DATA if code == 9 else CollectOutcome.ERROR)
    fresh = gpus(2)
    for gpu in fresh:
        gpu.fields[83] = ("ull", 1000)
        gpu.fields[74] = ("ull", 0)
    host.play(fresh, host="driver 590.48.01").step(1)
    rows = host.read(lane)
    assert epochs(rows) == {gpu.uuid: 1 for gpu in devices}
    assert rows[devices[0].uuid]["energy_joules"] == 1.0
    assert "driver 580.65.06 is now 590.48.01" in host.teller.take_inventory_request()
    assert host.turn(slow).outcome is CollectOutcome.OK
    assert host.events == []


def test_library_and_driver_of_two_versions_is_an_update(host: GpuHost) -> None:
    """`GPU lost` was reported by a whole fleet while its driver was being updated."""
    devices = gpus(2)
    for gpu in devices:
        gpu.lines.append("error * 0 18")
    scenario = host.play(devices, host="error nvmlDeviceGetCount_v2 0 18")
    host.list_in_proc(devices, "595.45.04")
    lane = host.second()
    host.turn(lane)
    scenario.step(1)
    updating = host.turn(lane)
    assert updating.outcome is CollectOutcome.ERROR
    assert "the driver is being updated" in updating.message
    assert "the kernel has 595.45.04 loaded" in updating.message
    host.play(devices, host="error nvmlInitWithFlags 18")
    for _ in range(3):
        still = host.turn(lane)
        assert still.outcome is CollectOutcome.BLIND
        assert "the driver is being updated" in still.message
        rows = read(still.blocks)
        assert [row["driver_updating_state"] for row in rows.values()] == [1, 1]
        assert [row["lost_state"] for row in rows.values()] == [None, None]
    host.play(gpus(2)).step(1)
    done = host.turn(lane, RETRY_SOON_SECONDS)
    assert done.outcome is CollectOutcome.OK
    assert [row["driver_updating_state"] for row in read(done.blocks).values()] == [0, 0]
    assert host.events == []


def test_the_new_library_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded library stays loaded: the old one never fits the new driver."""
    older = build(tmp_path / "older", version="580.65.06")
    newer = build(tmp_path / "newer", version="590.48.01")
    installed = tmp_path / "libnvidia-ml.so.1"
    shutil.copy(older, installed)
    host = GpuHost(tmp_path, str(installed), monkeypatch)
    host.play(gpus(1), host="driver 580.65.06")
    lane = host.second()
    assert host.turn(lane).outcome is CollectOutcome.OK
    lane._session.close()  # the operator replaces the driver
    host.play(gpus(1), host="driver 590.48.01")
    assert "is being updated" in host.turn(lane).message
    shutil.copy(newer, tmp_path / "new")
    (tmp_path / "new").rename(installed)
    for _ in range(RETRY_SECONDS - 1):
        assert "is being updated" in host.turn(lane).message
    assert host.turn(lane).outcome is CollectOutcome.OK
    assert "driver 580.65.06 is now 590.48.01" in host.teller.take_inventory_request()
    host.close()


def test_a_library_that_stays_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else in the process held the old library: no attempt succeeded until a restart."""
    installed = build(tmp_path, version="580.65.06")
    host = GpuHost(tmp_path, str(installed), monkeypatch)
    host.play(gpus(1), host="driver 580.65.06")
    lane = host.second()
    assert host.turn(lane).outcome is CollectOutcome.OK
    held = ctypes.CDLL(str(installed))
    lane._session.close()
    host.play(gpus(1), host="driver 590.48.01")
    with pytest.raises(RestartRequired, match="cannot be unloaded"):
        host.turn(lane)
    fresh = GpuSecond(replace(host.roots, run=tmp_path), host.clock)  # like a new process
    assert "is being updated" in host.turn(fresh).message
    host.close()
    assert held.fake_nvml_users() == 0


def test_nvml_is_opened_again_early_and_not_in_the_way_of_a_repair(tmp_path: Path) -> None:
    """Half of the lanes stayed dark for a minute; but opening NVML may load an unloaded driver."""
    driver = tmp_path / "driver/nvidia/version"
    driver.parent.mkdir(parents=True)

    def load(version: str) -> None:
        driver.write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue\n")

    def first_due(seconds: int) -> int | None:
        due = [again.is_due((1000 + after) * SECOND) for after in range(seconds)]
        return due.index(True) if True in due else None

    again = RetryTimer(tmp_path)
    again.start(NoData("the NVIDIA driver is not loaded"), 1000 * SECOND)
    assert first_due(100) == RETRY_SECONDS
    again.start(NoData("the NVIDIA driver is not loaded"), 1000 * SECOND)
    load("590.48.01")
    assert not again.is_due(1000 * SECOND + 1)  # tried a moment ago
    assert first_due(100) == 1  # at once
    again.start(NvmlError("not yet", 9), 1000 * SECOND)
    assert first_due(100) == RETRY_SOON_SECONDS
    again.start(NoData("the NVIDIA driver has no GPU"), 1000 * SECOND)
    assert first_due(RETRY_SECONDS) is None


def test_a_kernel_with_another_driver_is_noticed(host: GpuHost) -> None:
    """The library continued with old data, and its field ids were those of the previous driver."""
    devices = gpus(1)
    host.play(devices)
    host.list_in_proc(devices, "590.48.01")
    lane = host.second()
    host.turn(lane)
    host.list_in_proc(devices, "595.45.04")
    assert "the kernel has driver 595.45.04" in noticed(host, lane)
    assert epochs(host.read(lane)) == {devices[0].uuid: 1}
    assert "the driver was loaded again" in host.teller.take_inventory_request()


def noticed(host: GpuHost, lane: GpuSecond) -> str:
    """Run turns until the identities are checked; return the message."""
    for _ in range(IDENTITY_SECONDS):
        turn = host.turn(lane)
        if turn.outcome is CollectOutcome.ERROR:  # its readings have no device
            assert turn.blocks == ()
            return turn.message
    raise AssertionError("not noticed")


def opened_anew(
    host: GpuHost, before: list[Gpu], after: list[Gpu]
) -> dict[str, dict[str, float | int | None]]:
    """Read *before*, then plug in *after*, until it is detected; return the readings."""
    host.play(before)
    host.list_in_proc(before)
    lane = host.second()
    assert set(host.read(lane)) == {gpu.uuid for gpu in before}
    host.play(after)
    host.list_in_proc(after)
    noticed(host, lane)
    return host.read(lane)


@pytest.mark.parametrize("is_other", [False, True])
def test_a_gpu_in_another_slot(host: GpuHost, is_other: bool) -> None:
    """The same GPU keeps its history; a replaced board continued the broken one's."""
    before = gpus(2)
    uuid = OTHER if is_other else before[0].uuid
    after = [replace(before[0], uuid=uuid, address="0000:9b:00.0"), before[1]]
    rows = opened_anew(host, before, after)
    message = host.teller.take_inventory_request()
    if is_other:
        assert set(rows) == {OTHER, before[1].uuid}
        assert f"GPU {OTHER} appeared" in message and f"GPU {before[0].uuid} is gone" in message
    else:
        assert epochs(rows) == {uuid: 1, before[1].uuid: 0}
        assert f"GPU {uuid} moved from {before[0].address} to 0000:9b:00.0" in message


def test_another_gpu_at_the_same_address_is_noticed(host: GpuHost) -> None:
    """Same slot, same handle, another board: only its UUID differs."""
    devices = gpus(2)
    other = "GPU-99999999-1111-2222-3333-444444444444"
    devices[0].lines.append(f"uuid_at 1 {other}")
    scenario = host.play(devices)
    lane = host.second()
    host.turn(lane)
    scenario.step(1)
    assert f"GPU {other} is where {devices[0].uuid} was" in noticed(host, lane)
    assert set(host.read(lane)) == {other, devices[1].uuid}


def test_a_reset_gpu_has_another_epoch(host: GpuHost) -> None:
    """Its counters fell to zero, and the rate over the gap was 18 quintillion joules a second."""
    devices = gpus(2)
    devices[0].fields[83] = ("ull", (5_000_000, 5_100_000, 200, 900))
    scenario = host.play(devices)
    lane = host.second()
    seen = []
    for step in range(4):
        scenario.step(step)
        seen.append([epochs(host.read(lane))[gpu.uuid] for gpu in devices])
    assert seen == [[0, 0], [0, 0], [1, 0], [1, 0]]
    assert f"GPU {devices[0].uuid} was reset" in host.teller.take_inventory_request()


@pytest.mark.parametrize("was_reset", [True, False])
def test_a_released_gpu_has_another_epoch_if_reset(was_reset: bool, host: GpuHost) -> None:
    """XID 119: a GPU's return was taken for a reset; after a true reset nothing knew of it."""
    devices = gpus(2)
    host.play(devices).step(1)
    host.list_in_proc(devices)
    lane = host.second()
    host.turn(lane)
    host.session.exclude(frozenset({devices[0].address}))
    rows = host.read(lane)
    assert rows[devices[0].uuid]["energy_joules"] is None
    fresh = gpus(2)
    if was_reset:
        fresh[0].fields[83] = ("ull", 1000)
    lane._session.close()
    host.begin(anew=False)  # another process takes over
    host.play(fresh).step(1)
    host.session.exclude(frozenset({devices[0].address}))
    lane = host.second()
    host.turn(lane, 2)
    host.session.exclude(frozenset())
    host.turn(lane)
    assert epochs(host.read(lane)) == {devices[0].uuid: int(was_reset), devices[1].uuid: 0}
    assert ("was reset" in host.teller.take_inventory_request()) is was_reset


def test_a_driver_that_was_replaced_between_two_processes_is_noticed(host: GpuHost) -> None:
    """The old library could not be unloaded: the next sampler continued the old counters."""
    devices = gpus(2)
    host.play(devices, host="driver 580.65.06")
    lane = host.second()
    assert set(epochs(host.read(lane)).values()) == {0}
    lane._session.close()
    host.begin(anew=False)
    host.play(devices, host="driver 590.48.01")
    rows = host.read(host.second())
    assert set(epochs(rows).values()) == {1}
    assert "driver 580.65.06 is now 590.48.01" in host.teller.take_inventory_request()


def test_a_driver_is_loaded_again_while_a_gpu_is_left_alone(host: GpuHost) -> None:
    """The operator reloaded the driver for a hung GPU: the first call used this GPU."""
    devices = gpus(3)
    host.play(devices, host="driver 580.65.06")
    host.list_in_proc(devices, "580.65.06")
    lane = host.second()
    host.turn(lane)
    calls = nvml.account(devices[1].address).calls
    host.session.exclude(frozenset({devices[1].address}))
    host.turn(lane)
    fresh = gpus(3)
    for gpu in fresh:
        gpu.fields[83] = ("ull", 1000)
    fresh[1].lines.append("block * crash -")
    host.list_in_proc(fresh, "590.48.01")
    host.play(fresh, host="driver 590.48.01")
    noticed(host, lane)
    host.turn(lane, 3)
    assert nvml.account(devices[1].address).calls == calls
    well = gpus(3)
    for gpu in well:
        gpu.fields[83] = ("ull", 2000)
    host.session.close()
    host.play(well, host="driver 590.48.01")
    host.session.exclude(frozenset())
    host.turn(lane)
    assert epochs(host.read(lane)) == {gpu.uuid: 1 for gpu in devices}
    assert host.events == []


def test_what_a_trial_sees_of_a_loss_is_told_by_the_lane(host: GpuHost) -> None:
    """A single-GPU sampler's events are dropped: its loss counted as told, and never arrived."""
    devices = gpus(2)
    devices[0].lines.append("error * 15")
    host.play(devices)
    host.list_in_proc(devices)
    trial = GpuSecond(host.roots, host.clock)  # without event sink
    assert host.read(trial)[devices[0].uuid]["lost_state"] == 1
    trial._session.close()
    host.begin(anew=False)
    lane = host.second()
    host.turn(lane)
    assert told(host) == [("gpu.lost", devices[0].address, "lost")]
    lane._session.close()
    host.begin(anew=False)
    host.turn(host.second())
    assert len(host.events) == 1  # and not repeated


def test_a_gpu_that_nvml_does_not_show_is_said(host: GpuHost) -> None:
    """A container that was given seven of eight GPUs reported a complete host."""
    devices = gpus(3)
    host.list_in_proc(devices)
    host.play(devices[:2])
    turn = host.turn(host.second())
    assert turn.outcome is CollectOutcome.BLIND
    assert (
        turn.message
        == f"NVML does not show GPU {devices[2].address}; let the agent open /dev/nvidia[0-9]*"
    )
    assert turn.blocks[0].devices == tuple(gpu.uuid for gpu in devices[:2])


def test_a_refused_call_is_blind_with_the_line_that_opens_it(host: GpuHost) -> None:
    """SRAM counts need a capability: without it `no errors` was reported."""
    devices = gpus(2)
    devices[1].lines.append("error nvmlDeviceGetSramEccErrorStatus 4")
    host.play(devices)
    turn = host.turn(host.ten_seconds())
    assert turn.outcome is CollectOutcome.BLIND
    assert (
        f"GPU {devices[1].address}: no permission for nvmlDeviceGetSramEccErrorStatus"
        in turn.message
    )
    assert "CAP_SYS_ADMIN" in turn.message
    assert len(turn.blocks) == 2


def test_a_split_gpu_names_the_capability_to_grant(host: GpuHost) -> None:
    """Under MIG an unprivileged agent cannot read the whole GPU, and reported a GPU without memory."""
    devices = gpus(2)
    devices[1].values |= {
        "mig_mode": 1,
        "memory_used": "!4",
        "memory_total": "!4",
        "ecc_mode": "!3",
    }
    scenario = host.play(devices)
    slow, fast = host.ten_seconds(), host.second()
    for lane in (slow, fast):
        turn = host.turn(lane)
        assert turn.outcome is CollectOutcome.BLIND
        assert f"GPU {devices[1].address} is split (MIG)" in turn.message
        assert "driver/nvidia/capabilities/mig/monitor" in turn.message
    monitor = host.roots.proc / "driver/nvidia/capabilities/mig/monitor"
    monitor.parent.mkdir(parents=True)
    monitor.write_text("DeviceFileMinor: 2\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    node = host.roots.dev / "nvidia-caps/nvidia-cap2"
    node.parent.mkdir(parents=True)
    node.touch()  # granted: other missing values need no permission
    assert "MIG" not in host.turn(fast).message
    scenario.step(1)


def test_a_mig_mode_that_changed_renews_the_inventory(host: GpuHost) -> None:
    """A GPU was split while the scheduler still placed whole-GPU jobs on it."""
    devices = gpus(2)
    devices[0].values["mig_mode"] = (0, 1)
    scenario = host.play(devices)
    slow = host.ten_seconds()
    host.turn(slow)
    assert host.teller.take_inventory_request() == ""
    scenario.step(1)
    host.turn(slow)
    assert (
        host.teller.take_inventory_request()
        == f"MIG was switched on or off at GPU {devices[0].uuid}"
    )
    host.turn(slow)
    assert host.teller.take_inventory_request() == ""


@given(st.lists(FINDS | LOOKS, max_size=30))
def test_epochs_rise_losses_alternate(history: list[dict[str, str] | dict[str, bool]]) -> None:
    """Different counts would be subtracted if an epoch fell."""
    machine, seen, states = GpuLifecycle(), dict.fromkeys(KEYS, 0), dict.fromkeys(KEYS, "back")
    for step in history:
        if any(isinstance(value, bool) for value in step.values()):
            for change in machine.update_lost({key: bool(lost) for key, lost in step.items()}):
                assert change.state != states[change.key]
                states[change.key] = change.state
        else:
            machine.update({key: str(at) for key, at in step.items()}, "590.48.01", 0)
        for key, epoch in machine.epochs.items():
            assert epoch >= seen[key]
            seen[key] = epoch


def test_finds_in_words() -> None:
    """The log messages for an operator when a board was moved."""
    machine = GpuLifecycle()
    assert machine.update({"GPU-a": "1", "GPU-b": "2"}, "580.65.06", 0) == []
    assert machine.update({"GPU-b": "2", "GPU-a": "1"}, "580.65.06", 0) == []
    assert machine.update({"GPU-a": "2", "GPU-c": "1"}, "580.65.06", 0) == [
        "GPU GPU-a moved from 1 to 2",
        "GPU GPU-c appeared at 1",
        "GPU GPU-b is gone from 2",
    ]
    assert machine.update({"GPU-a": "2"}, "590.48.01", 1) == [
        "driver 580.65.06 is now 590.48.01",
        "the driver was loaded again",
        "GPU GPU-c is gone from 1",
    ]
    assert machine.update_lost({"GPU-a": True, "GPU-b": False}) == [
        GpuStateChange("GPU-a", "2", "lost")
    ]
    assert machine.epochs == {"GPU-a": 2, "GPU-b": 0, "GPU-c": 1}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (VERSION.format(version="590.48.01"), "590.48.01"),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 2025\n",
            "570.86.15",
        ),
        ("GCC version: 13.3.0 (Ubuntu)\n", ""),
        ("", ""),
    ],
)
def test_the_kernels_driver_version(text: str, version: str) -> None:
    """The open and the closed kernel module format it differently."""
    assert parse_kernel_driver_version(text) == version


@given(st.text())
def test_a_kernels_version_is_one_or_none(text: str) -> None:
    """The agent continues with any content of that file."""
    for said in (text, VERSION.format(version=text)):
        assert re.fullmatch(r"(\d{1,4}(\.\d{1,4}){1,2})?", parse_kernel_driver_version(said))
