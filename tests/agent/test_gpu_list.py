"""The GPUs that a host ever had, over boots: missing GPUs, and look-alikes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gangline.agent.collector import CollectOutcome, run_collector
from gangline.agent.collectors.gpu import GpuSecond
from gangline.agent.config import AgentConfig
from gangline.agent.gpu_list import FILE_NAME, GpuInventory, GpuList, parse_gpus
from gangline.agent.hardware.files import Roots
from gangline.agent.inventory import HostDevice, Inventory
from gangline.agent.latest import LatestReadings
from gangline.agent.local.host_status import HostStatus, judged_tables
from gangline.agent.registration import Registration
from gangline.contract.faults.policy import FindingSeverity
from tests.agent.fakes import HandedClock
from tests.agent.local_world import BOOT, SECOND
from tests.fake_nvml.scenario import Scenario, gpus

MINUTE = 60 * SECOND
UPTIME = 10_000 * SECOND
EIGHT = {f"GPU-{number}": f"0000:{number:02x}:00.0" for number in range(8)}


class Machine:
    """A host whose agent is started repeatedly, in one boot after the other."""

    def __init__(self, folder: Path) -> None:
        self._config = AgentConfig(
            state_folder=folder / "state", run_folder=str(folder / "run"), host="h"
        )
        self.list = self._config.state_folder / FILE_NAME
        self.boots = 0
        self.boot()

    def boot(self, uptime_ns: int = UPTIME) -> None:
        self.boots += 1
        self.clock = HandedClock(uptime_ns)
        self.start()

    def start(self) -> None:
        boot_id = bytes([self.boots]) * 16
        self.registration = Registration("h", b"r" * 16, boot_id, self.clock)
        self.answers = HostStatus(
            self._config, LatestReadings(judged_tables(self._config)), self.clock, boot_id,
            gpus=self.registration.known_gpus, gpu_inventory=self.registration.gpu_inventory,
        )  # fmt: skip
        self.registration.restore_gpus(self.answers.gpu_list.expected)

    def finds(
        self, gpus: Mapping[str, str], *others: HostDevice, message: str = "", **more: object
    ) -> None:
        """Set the inventory to these GPUs, and a disk."""
        found = [HostDevice("gpu", key, {"pci_address": address}) for key, address in gpus.items()]
        devices = (*found, *others, HostDevice("disk", "sda"))
        self.registration.update(Inventory(devices, {}, message, **more))  # type: ignore[arg-type]

    def after(self, minutes: float) -> list[str]:
        """Advance the time; return the missing GPUs."""
        for _ in range(round(minutes * 6)):
            self.clock.now_ns += 10 * SECOND
            self.answers.update()
        return [
            finding.device
            for finding in self.answers.findings.findings
            if finding.name == "gpu_missing"
        ]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    created = Machine(tmp_path)
    created.finds(EIGHT)
    assert created.after(5) == []
    return created


def without(*numbers: int) -> dict[str, str]:
    return {
        key: address for key, address in EIGHT.items() if key not in {f"GPU-{n}" for n in numbers}
    }


@pytest.mark.parametrize("boots", [True, False])
@pytest.mark.parametrize("numbers", [(3,), tuple(range(8))], ids=["7 of 8", "0 of 8"])
def test_an_earlier_gpu_is_missing(machine: Machine, numbers: tuple[int, ...], boots: bool) -> None:
    """A host booted with 7 of 8 GPUs: `gangline check` reported that nothing is wrong."""
    if boots:
        machine.boot(20 * SECOND)
    else:
        machine.start()
    machine.finds(without(*numbers))
    assert machine.after(1.5 if not boots else 4) == [], (
        "a driver that is loaded again takes as long"
    )
    gone = {f"GPU-{number}" for number in numbers}
    assert set(machine.after(2)) == gone
    first = machine.answers.findings.findings[0]
    assert (first.severity, first.enforceable) == (FindingSeverity.FATAL, True)
    machine.start()
    machine.finds(without(*numbers))
    assert set(machine.after(1)) == gone, "another agent of the same boot says so at once"
    machine.finds(EIGHT)
    assert machine.after(1) == []


def _is_replaced(machine: Machine) -> None:
    machine.boot()
    machine.finds(without(3) | {"GPU-new": EIGHT["GPU-3"]})


def _has_no_inventory(machine: Machine) -> None:
    machine.boot()


def _is_not_shown(machine: Machine) -> None:
    machine.boot()
    machine.finds({}, message="GPUs: NVMLError_NoPermission: Insufficient Permissions")


def _is_left_alone(machine: Machine) -> None:
    machine.start()
    machine.finds(without(3), left_out=frozenset({EIGHT["GPU-3"]}))


def _is_released(machine: Machine) -> None:
    machine.start()
    machine.finds({}, left_out=None)


def _is_hidden(machine: Machine) -> None:
    machine.boot()
    reported = {"pci_address": EIGHT["GPU-3"], "hidden": "no permission"}
    machine.finds(without(3), HostDevice("gpu", "GPU-3", reported))


def _is_passed_through(machine: Machine) -> None:
    machine.boot()
    machine.finds(without(3), HostDevice("pcie", EIGHT["GPU-3"], {"driver": "vfio-pci"}))


def _boots_slowly(machine: Machine) -> None:
    machine.boot(10 * SECOND)
    machine.finds({})
    assert machine.after(4.6) == []
    machine.finds(EIGHT)


def _is_retired(machine: Machine) -> None:
    machine.boot()
    machine.finds(without(3))
    assert machine.after(3) == ["GPU-3"]
    machine.list.unlink()


def _has_a_damaged_list(machine: Machine) -> None:
    machine.list.write_bytes(b'{"gpus": 7}')
    machine.boot()
    assert "does not contain a list of GPUs" in machine.answers.gpu_list.last_error
    machine.finds(without(3))


@pytest.mark.parametrize(
    "what",
    [
        _is_replaced, _has_no_inventory, _is_not_shown, _is_left_alone, _is_released, _is_hidden,
        _is_passed_through, _boots_slowly, _is_retired, _has_a_damaged_list,
    ],
)  # fmt: skip
def test_gpus_that_are_not_missing(machine: Machine, what: Callable[[Machine], None]) -> None:
    """A repair, a released GPU, a virtual machine, a driver that is loading: nothing is missing."""
    what(machine)
    assert machine.after(10) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"gpus": [1]}', b'{"gpus": {"GPU-1": 7}}', b'{"gpus": {"sda": "x"}}', b"\xff" * 9,
     b'{"gpus": {' + b", ".join(b'"GPU-%d": ""' % n for n in range(300)) + b"}}"],
)  # fmt: skip
def test_what_is_no_list_is_refused(content: bytes, tmp_path: Path) -> None:
    """Half a file after a power cut must not prevent the agent's start."""
    with pytest.raises(ValueError):
        parse_gpus(content)
    (tmp_path / FILE_NAME).write_bytes(content)
    gpu_list = GpuList(tmp_path)
    assert gpu_list.last_error and not list(gpu_list.check(GpuInventory(EIGHT), (), UPTIME))
    assert parse_gpus((tmp_path / FILE_NAME).read_bytes()) == EIGHT and not gpu_list.last_error


def test_a_lost_gpu_has_one_name(machine: Machine) -> None:
    """A host without /proc/driver/nvidia: GPU 3 was listed under its UUID and its address."""
    address = EIGHT["GPU-3"]
    machine.boot()
    assert machine.registration.gpu_key(address) == "GPU-3"
    machine.finds(without(3))
    assert machine.registration.gpu_key(address) == "GPU-3"
    assert machine.registration.known_gpus()["GPU-3"] == address
    assert "GPU-3" not in machine.registration.gpus()
    # The driver lists it without its UUID.
    machine.finds(
        without(3), HostDevice("gpu", address, {"pci_address": address, "problem": "no answer"})
    )
    keys = [key for kind, key in machine.registration.attributes() if kind == "gpu"]
    assert sorted(keys) == sorted(EIGHT)
    machine.finds(without(3) | {"GPU-new": address})
    assert machine.registration.gpu_key(address) == "GPU-new"


def function(sys: Path, address: str, driver: str = "", vendor: str = "0x10de") -> None:
    folder = sys / "bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text("0x030200\n")
    if driver:
        (folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")


@pytest.mark.parametrize("why", ["no library", "error nvmlInitWithFlags 9", ""])
@pytest.mark.parametrize(
    ("functions", "outcome", "message"),
    [
        ({}, CollectOutcome.NO_DATA, ""),
        ({"0000:17:00.0": ""}, CollectOutcome.BLIND, "1 NVIDIA GPUs are on the PCI bus, the first at 0000:17:00.0"),
        ({"0000:17:00.0": "nouveau"}, CollectOutcome.BLIND, "bound to nouveau"),
        ({"0000:17:00.0": "vfio-pci"}, CollectOutcome.NO_DATA, "passed through to virtual machines (vfio-pci)"),
        ({"0000:17:00.0": "vfio-pci", "0000:18:00.0": ""}, CollectOutcome.BLIND, "the first at 0000:18:00.0"),
    ],
)  # fmt: skip
def test_gpus_on_the_bus_without_a_driver_are_blind(
    why: str, functions: dict[str, str], outcome: CollectOutcome, message: str, library: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A host whose driver did not start had "none of it", and looked the healthiest of the fleet."""
    sys = tmp_path / "sys"
    for address, driver in functions.items():
        function(sys, address, driver)
    function(sys, "0000:01:00.0", "mgag200", vendor="0x102b")
    Scenario(tmp_path / "scenario", gpus(0), host=why if why.startswith("error") else "")
    monkeypatch.setenv("GANGLINE_FAKE_NVML", str(tmp_path / "scenario"))
    nvml = str(tmp_path / "none.so") if why == "no library" else library
    turn = run_collector(GpuSecond(Roots(sys, tmp_path / "proc", nvml)), HandedClock(UPTIME))
    assert turn.outcome is outcome and message in turn.message


assert BOOT and MINUTE
