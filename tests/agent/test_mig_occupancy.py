"""Occupancy of MIG instances, turn by turn, while instances appear and disappear."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gangline.agent.collector import CollectOutcome, run_collector
from gangline.agent.collectors.mig import SHARES, MigDevices
from gangline.agent.hardware.files import Roots
from gangline.ext.nvml_gpm import MIG_SYMBOL
from tests.agent.fakes import HandedClock, read
from tests.agent.gpu_host import SECOND
from tests.fake_nvml.build import build
from tests.fake_nvml.fixtures import Play
from tests.fake_nvml.parts_scenario import mig_device, with_gpm, with_mig
from tests.fake_nvml.scenario import Gpu, gpus

COLUMNS = {name for _, _, name in SHARES}
#: An instance's readings at each step: idle, at work.
IDLE, WORK = (0.0, 0.0, 0.0, 0.01), (0.97, 0.22, 0.51, 0.38)


class MigHost:
    """The collector, on a clock that advances ten seconds a turn."""

    def __init__(self, folder: Path, library: str) -> None:
        self.clock = HandedClock()
        roots = Roots(folder / "sys", folder / "proc", nvml_library=library, dev=folder / "dev")
        self.mig = MigDevices(roots, self.clock)
        self.outcome, self.message = CollectOutcome.OK, ""

    def turn(self, seconds: int = 10) -> dict[int, tuple[float, ...] | None]:
        """Run a turn, and return the shares of each instance by its number; None without shares."""
        self.clock.now_ns += seconds * SECOND
        result = run_collector(self.mig, self.clock)
        self.outcome, self.message = result.outcome, result.message
        shares: dict[int, tuple[float, ...] | None] = {}
        for row in read(result.blocks).values():
            values = tuple(row[name] for _, _, name in SHARES)
            number = row["gpu_instance_number"]
            assert isinstance(number, int)
            shares[number] = tuple(float(v) for v in values if v is not None) or None
        return shares


@pytest.fixture
def host(tmp_path: Path, library: str) -> Iterator[MigHost]:
    created = MigHost(tmp_path, library)
    yield created
    created.mig._session.close()
    assert ctypes.CDLL(library).fake_nvml_gpm_samples() == 0


def hopper(lines: Iterable[str] = ()) -> Gpu:
    gpu = with_gpm(with_mig(gpus(1)[0]))
    gpu.lines += lines
    return gpu


def instance(number: int, **where: int) -> Gpu:
    """Return a GPU instance that waits at step 0 and works later."""
    return with_gpm(mig_device(0, number, **where))


def test_each_instance_has_its_own_mean(host: MigHost, play: Play) -> None:
    """Seven tenants on one GPU, which as a whole reported `63 % busy`: the waiting one was unknown."""
    idle = instance(2, start=4)
    idle.values |= dict.fromkeys(idle.values.keys() & {"gpm_sm_util", "gpm_tensor_util"}, 0)
    idle.values |= {"gpm_sm_occupancy": 0, "gpm_dram_util": 1}
    play([hopper(), instance(1), idle]).step(1)
    assert host.turn() == {1: None, 2: None}
    assert host.turn() == {1: WORK, 2: IDLE}
    assert (host.outcome, host.message) == (CollectOutcome.OK, "")


def test_the_shares_are_those_that_the_whole_gpu_has() -> None:
    """An instance and its GPU are compared: the names must be the same."""
    assert {
        "sm_active_ratio",
        "sm_occupancy_ratio",
        "tensor_active_ratio",
        "memory_bandwidth_ratio",
    } == COLUMNS


def test_turns_that_are_too_close_say_nothing(host: MigHost, play: Play) -> None:
    """Two turns at once, after a hang: over no time GPM's mean is noise (nvml.h: 100 ms)."""
    play([hopper(), instance(1)])
    host.turn()
    assert host.turn(0) == {1: None}
    assert host.turn() == {1: IDLE}


def test_instances_that_come_and_go_begin_anew(host: MigHost, play: Play, library: str) -> None:
    """A recreated instance's first mean contained the previous tenant's work."""
    alive = ctypes.CDLL(library).fake_nvml_gpm_samples
    scenario = play(
        [hopper(), instance(1, last=0), instance(1, first=1, profile=5), instance(2, last=1)]
    )
    host.turn()
    assert (host.turn(), alive()) == ({1: IDLE, 2: IDLE}, 4)
    scenario.step(1)
    assert (host.turn(), alive()) == ({1: None, 2: WORK}, 4)  # the neighbor lost nothing
    scenario.step(2)
    assert (host.turn(), alive()) == ({1: WORK}, 2)
    assert (host.outcome, host.message) == (CollectOutcome.OK, "")


def test_a_missing_permission_costs_shares_only(host: MigHost, play: Play) -> None:
    """Without mig/monitor the occupancy is not shown; `0 % busy` would have moved the tenant."""
    devices = [hopper(["error nvmlGpmMigSampleGet 4"]), instance(1), instance(2)]
    play(devices)
    host.turn()
    assert host.turn() == {1: None, 2: None}
    assert host.outcome is CollectOutcome.BLIND
    assert host.message.startswith(f"GPU {devices[0].address}: no permission; ")
    assert host.message.count("no permission") == 1


def test_what_is_permitted_later_is_seen_without_a_restart(host: MigHost, play: Play) -> None:
    """mig/monitor was granted to the running agent, and the instances stayed dark until a restart."""
    scenario = play([hopper(["error nvmlGpmQueryDeviceSupport 4 0"]), instance(1)])
    host.turn()
    assert (host.turn(), host.outcome) == ({1: None}, CollectOutcome.BLIND)
    scenario.step(1)
    assert [host.turn(), host.turn()] == [{1: None}, {1: WORK}]
    assert (host.outcome, host.message) == (CollectOutcome.OK, "")


@pytest.mark.parametrize("line", ["gpm_supported 0", "error nvmlGpmMigSampleGet 3"])
def test_a_gpu_without_gpm_has_no_remedy(line: str, host: MigHost, play: Play) -> None:
    """An A100 was always reported blind, although no permission was missing."""
    play([hopper([line]), instance(1)])
    host.turn()
    assert host.turn() == {1: None}
    assert (host.outcome, host.message) == (CollectOutcome.OK, "")


@pytest.mark.parametrize("code", [999, 15])
def test_a_sample_that_fails_costs_its_gpu_alone(code: int, host: MigHost, play: Play) -> None:
    """One GPU was reset between two turns; its neighbor's instances must continue unchanged."""
    sick, well = hopper([f"error nvmlGpmMigSampleGet 0 {code} 0"]), with_gpm(with_mig(gpus(2)[1]))
    scenario = play([sick, well, instance(1), with_gpm(mig_device(1, 3))])
    host.turn()
    scenario.step(1)
    assert host.turn() == {1: None, 3: WORK}
    named = f"GPU {sick.address}: GPM: " if code == 999 else ""
    assert host.message.startswith(named) and bool(host.message) == bool(named)
    scenario.step(2)
    assert host.turn() == {1: None, 3: WORK}
    assert host.turn() == {1: WORK, 3: WORK}


def test_a_driver_without_the_function_costs_the_shares_alone(tmp_path: Path, play: Play) -> None:
    """Drivers before 520 have MIG but not GPM."""
    (tmp_path / "older").mkdir()
    older = MigHost(tmp_path, str(build(tmp_path / "older", missing=[MIG_SYMBOL])))
    play([hopper(), instance(1)])
    older.turn()
    assert older.turn() == {1: None}
    assert (older.outcome, older.message) == (CollectOutcome.OK, "")
    older.mig._session.close()


def test_a_release_frees_the_samples(host: MigHost, play: Play, library: str) -> None:
    """A GPU was reset while its old samples were held, which the library had freed."""
    play([hopper(), instance(1)])
    host.turn()
    assert host.turn() == {1: IDLE}
    host.mig._session.close()
    assert ctypes.CDLL(library).fake_nvml_gpm_samples() == 0
    assert [host.turn(), host.turn()] == [{1: None}, {1: IDLE}]
