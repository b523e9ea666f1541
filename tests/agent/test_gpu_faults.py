"""A fault at each call in turn: the only effect is missing cells, of one GPU, until the fault ends."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.agent.collector import CollectOutcome, CollectResult, run_collector
from gangline.agent.collectors.gpu import GpuMinute, GpuSecond, GpuTenSeconds
from gangline.agent.collectors.gpu_fabric import GpuFabric
from gangline.agent.collectors.gpu_parts import GpuPartsCollector
from gangline.agent.collectors.gpu_processes import GpuProcesses
from gangline.agent.collectors.mig import MigDevices
from gangline.agent.collectors.nvlink import C2cLinkCollector, NvLinkCollector
from gangline.agent.collectors.nvml_collector import NvmlCollector
from gangline.agent.collectors.nvml_open import RETRY_SECONDS
from gangline.contract.signals import BY_ID
from tests.agent.gpu_host import SECOND, GpuHost
from tests.fake_nvml.parts_scenario import (
    host_lines,
    mig_device,
    process,
    with_c2c,
    with_fabric,
    with_links,
    with_mig,
)
from tests.fake_nvml.scenario import Gpu, gpus

Kind = Callable[[GpuHost], NvmlCollector | GpuPartsCollector]
KINDS: dict[str, Kind] = {
    "gpu_1s": lambda host: GpuSecond(host.roots, host.clock),
    "gpu_10s": lambda host: GpuTenSeconds(host.roots),
    "gpu_60s": lambda host: GpuMinute(host.roots),
    "nvlink_10s": lambda host: NvLinkCollector(host.roots),
    "c2c_10s": lambda host: C2cLinkCollector(host.roots),
    "mig_10s": lambda host: MigDevices(host.roots),
    "gpu_process_1s": lambda host: GpuProcesses(host.roots),
    "gpu_fabric_1s": lambda host: GpuFabric(host.roots),
}
#: Columns that record the fault itself.
OF_THE_AGENT = {
    *("calls_failed_errors", "slow_calls_failed_errors", "settings_calls_failed_errors"),
    *("counter_epoch_count", "lost_state", "error_code_state"),
    *("driver_calls_count", "driver_calls_left_out_count"),
}
LOST = 15
Cells = dict[tuple[str, str, str], float | int | None]


@pytest.fixture
def host(tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch) -> GpuHost:
    return GpuHost(tmp_path, library, monkeypatch)


class Faulty:
    """The library with injected faults."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._library.fake_nvml_entered.restype = ctypes.c_ulong
        self._library.fake_nvml_fault.argtypes = [ctypes.c_ulong, ctypes.c_int, ctypes.c_char_p]

    def at(self, call: int, code: int) -> None:
        """Make the *call*th call from now return *code*; 0: none."""
        self._library.fake_nvml_fault(call, code, None)

    def calls(self) -> int:
        return int(self._library.fake_nvml_entered())

    def users(self) -> int:
        return int(self._library.fake_nvml_users())


def everything() -> list[Gpu]:
    devices = [with_fabric(with_mig(with_c2c(with_links(gpu, 2), 1))) for gpu in gpus(2)]
    for i, gpu in enumerate(devices):
        gpu.lines.append(process(4000 + i))
        gpu.values["power"] = gpu.fields[186][1]  # the same by its own call
    return devices + [mig_device(i, 1) for i in range(2)]


def cells(turn: CollectResult) -> Cells:
    return {
        (block.table, key, BY_ID[number].column): value
        for block in turn.blocks
        for row, key in enumerate(block.devices)
        for number, value in block.values(row)
        if BY_ID[number].column not in OF_THE_AGENT
    }


def turn(host: GpuHost, lane: NvmlCollector | GpuPartsCollector) -> CollectResult:
    host.clock.now_ns += SECOND
    return run_collector(lane, host.clock)


def rises(said: CollectResult) -> set[float | int | None]:
    return {
        value
        for block in said.blocks
        for row in range(len(block.devices))
        for number, value in block.values(row)
        if BY_ID[number].column == "counter_epoch_count"
    }


@pytest.mark.parametrize("code", [3, 4, LOST, 999])
@pytest.mark.parametrize("name", KINDS)
def test_a_fault_at_any_call(name: str, code: int, host: GpuHost, library: str) -> None:
    """A request for a UUID failed: a GPU was named by its address until a restart."""
    devices = everything()
    host.list_in_proc(devices[:2])
    host.play(devices, host=host_lines(devices))
    faulty = Faulty(library)
    lane, began = KINDS[name](host), faulty.calls()
    well = cells(turn(host, lane))
    assert cells(turn(host, lane)) == well
    calls = faulty.calls() - began
    lane._session.close()
    for call in range(1, calls + 1):
        host.begin()
        lane = KINDS[name](host)
        faulty.at(call, code)
        for _ in range(3):
            result = turn(host, lane)
            wrong = {c: v for c, v in cells(result).items() if v is not None and v != well.get(c)}
            assert not wrong, (call, wrong)
            assert rises(result) <= ({0} if code != LOST else {0, 1})
        result, turns = turn(host, lane), 0
        while result.outcome is not CollectOutcome.OK or cells(result) != well:
            result, turns = turn(host, lane), turns + 1
            assert turns < RETRY_SECONDS + 3, (call, result.outcome, result.message)
        lane._session.close()
        assert faulty.users() == 0, call


@pytest.mark.parametrize("name", ["gpu_1s", "gpu_10s", "gpu_fabric_1s"])
def test_a_gpu_without_a_name_is_asked_again(name: str, host: GpuHost, library: str) -> None:
    """In a container without the driver's files in /proc only NVML knows its UUID."""
    devices = everything()
    host.play(devices, host=host_lines(devices))
    faulty, lane = Faulty(library), KINDS[name](host)
    uuids = {gpu.uuid for gpu in devices[:2]}
    began = faulty.calls()
    turn(host, lane)
    calls = faulty.calls() - began
    lane._session.close()
    seen: set[str] = set()
    for call in range(1, calls + 1):
        host.begin()
        lane = KINDS[name](host)
        faulty.at(call, 999)
        turns = [turn(host, lane) for _ in range(RETRY_SECONDS + 3)]
        seen |= {key for block in turns[0].blocks for key in block.devices}
        assert {key for block in turns[-1].blocks for key in block.devices} == uuids, call
        lane._session.close()
    assert seen == uuids | {gpu.address for gpu in devices[:2]}
