"""The agent's own description, and when it is sent again."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from gangline.agent import registration as module
from gangline.agent.registration import InventoryCollector, Registration, version
from gangline.contract.signals import SIGNALS
from tests.processes import GUARD_SECONDS

RUN, BOOT = b"r" * 16, b"b" * 16


class StoppedClock:
    def boottime_ns(self) -> int:
        return 7

    def wall_ns(self) -> int:
        return 8


@dataclass
class Gpu:
    key: str
    kind: str = "gpu"
    attributes: dict[str, str] = field(default_factory=lambda: {"name": "H100", "serial": "1"})


@dataclass
class Found:
    devices: list[Gpu]
    labels: dict[str, str] = field(default_factory=lambda: {"kernel": "6.1"})
    reason: str = ""
    left_out: frozenset[str] | None = frozenset()


class Counted:
    """An inventory collector and the number of changes it reported."""

    def __init__(self) -> None:
        self.registration = Registration("gpu-7", RUN, BOOT, StoppedClock())
        self.found: Found | Exception = Found([Gpu("GPU-a")])
        self.changes = 0
        self.retries: list[float] = []
        self.gpus_read: frozenset[str] = frozenset()
        self.collector = InventoryCollector(
            self._read,
            self.registration,
            self._changed,
            lambda reason, seconds: self.retries.append(seconds),
            lambda: self.gpus_read,
        )

    def _read(self) -> Found:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def _changed(self) -> None:
        self.changes += 1

    def keys(self) -> list[str]:
        return [device.key for device in self.registration.request().devices]


def test_the_request_says_who_when_and_what_the_ids_mean() -> None:
    counted = Counted()
    assert counted.collector.collect() == ()
    request = counted.registration.request()
    assert (request.node, request.run_id, request.boot_id) == ("gpu-7", RUN, BOOT)
    assert (request.boottime_ns, request.wall_time_ns) == (7, 8)
    assert (request.protocol_version, request.simulated) == (1, False)
    assert len(request.signals) == len(SIGNALS)
    (device,) = request.devices
    assert (device.kind, device.key, device.attributes["name"]) == ("gpu", "GPU-a", "H100")
    assert dict(request.labels) == {"kernel": "6.1"}


def test_only_what_the_aggregator_was_not_told_is_told_again() -> None:
    """Agents reconnected every ten minutes for nothing; or never, after a GPU was swapped."""
    counted = Counted()
    counted.collector.collect()
    assert counted.changes == 0  # nothing was sent yet
    assert counted.keys() == ["GPU-a"]
    counted.collector.collect()
    assert counted.changes == 0
    counted.found = Found([Gpu("GPU-b")])
    counted.collector.collect()
    assert counted.changes == 1
    assert counted.keys() == ["GPU-b"]
    counted.collector.collect()
    assert counted.changes == 1


def test_what_an_operator_says_of_the_host_is_told_with_every_inventory() -> None:
    """Its rack was sent with the first request, and lost with the first inventory."""
    labels = {"gangline.rack": "r12"}
    registration = Registration("gpu-7", RUN, BOOT, StoppedClock(), labels)
    registration.stop_waiting()
    assert dict(registration.request().labels) == labels
    registration.update(Found([Gpu("GPU-a")]))
    assert dict(registration.request().labels) == labels | {"kernel": "6.1"}


def test_an_inventory_that_could_not_be_read_changes_nothing_and_is_an_outcome() -> None:
    """The child was killed for memory; the host's GPUs must remain."""
    counted = Counted()
    counted.collector.collect()
    assert counted.keys() == ["GPU-a"]
    counted.found = Found([], {}, "ended by signal 9")
    with pytest.raises(RuntimeError, match="ended by signal 9"):
        counted.collector.collect()
    counted.found = OSError("no more processes")
    with pytest.raises(OSError, match="no more processes"):
        counted.collector.collect()
    assert (counted.keys(), counted.changes) == (["GPU-a"], 0)


def test_a_part_of_an_inventory_is_taken_and_is_an_outcome() -> None:
    counted = Counted()
    counted.found = Found([Gpu("GPU-a")], {}, "network: pyroute2 is not installed")
    with pytest.raises(RuntimeError, match="pyroute2"):
        counted.collector.collect()
    assert counted.keys() == ["GPU-a"]


def test_a_gpu_without_a_description_is_asked_again_for_ever_and_is_an_error() -> None:
    """An H200 had readings but no model for hours, and no finding reported that."""
    counted = Counted()
    counted.gpus_read = frozenset({"GPU-a", "GPU-b"})
    counted.found = Found(
        [Gpu("GPU-a"), Gpu("GPU-b", attributes={"problem": "NVML does not respond"})]
    )
    for _ in range(9):
        with pytest.raises(RuntimeError, match=r"no description .* of GPU GPU-b.*does not respond"):
            counted.collector.collect()
    assert counted.retries == [10, 20, 40, 80, 160, 320, 600, 600, 600]
    counted.found = Found([Gpu("GPU-a"), Gpu("GPU-b")])
    counted.collector.collect()
    counted.found = Found([Gpu("GPU-a")])
    with pytest.raises(RuntimeError, match="GPU-b, although it has readings"):
        counted.collector.collect()
    assert counted.retries[9:] == [10]


def test_a_gpu_that_is_not_read_and_does_not_answer_is_no_error_of_the_inventory() -> None:
    """A lost GPU has a finding of its own; the inventory only asks it again."""
    counted = Counted()
    counted.found = Found([Gpu("GPU-a", attributes={"problem": "NVML does not respond"})])
    assert counted.collector.collect() == ()
    assert counted.retries == [10]


def test_a_gpu_that_does_not_answer_once_keeps_its_description_and_its_parts() -> None:
    """One call returned NOT_FOUND: the GPU had no model, serial or links for ten minutes."""
    counted = Counted()
    link = Gpu("GPU-a/link0", "nvlink", {"gpu": "GPU-a", "active": "1"})
    counted.found = Found(
        [Gpu("GPU-a", attributes={"name": "H200", "pci_address": "0000:01:00.0"}), link]
    )
    counted.collector.collect()
    counted.found = Found(
        [Gpu("GPU-a", attributes={"problem": "silent", "pci_address": "0000:01:00.0"})]
    )
    counted.collector.collect()
    gpu, kept_link = counted.registration.request().devices
    assert dict(gpu.attributes) == {
        "name": "H200",
        "pci_address": "0000:01:00.0",
        "problem": "silent",
    }
    assert dict(kept_link.attributes) == link.attributes
    assert gpu.attributes["problem"] in counted.registration.undescribed_gpus(())["GPU-a"]


def test_the_first_connection_waits_for_an_inventory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two registrations a host at every start of a fleet; or none, if the inventory hangs."""
    counted = Counted()
    asked: list[int] = []
    client = threading.Thread(target=lambda: asked.append(len(counted.keys())))
    client.start()
    counted.collector.collect()
    client.join(GUARD_SECONDS)
    assert asked == [1]
    monkeypatch.setattr(module, "FIRST_INVENTORY_SECONDS_MAX", 0.0)
    assert Counted().keys() == []


def test_the_version_is_that_of_the_installed_package() -> None:
    from importlib.metadata import version as installed

    assert version() == installed("gangline")


def test_of_a_gpu_that_was_left_out_stands_what_was_known() -> None:
    """A released GPU lost its name, its links and its place in the rack at the aggregator."""
    counted = Counted()
    gpus = [
        Gpu("GPU-a", attributes={"pci_address": "0000:1b:00.0", "minor_number": "0"}),
        Gpu("GPU-b", attributes={"pci_address": "0000:1c:00.0", "minor_number": "1"}),
        Gpu("GPU-b/link0", "nvlink", {"gpu": "GPU-b"}),
        Gpu("0000:1c:00.0", "pcie", {"pci_address": "0000:1c:00.0"}),
    ]
    counted.found = Found(gpus)
    counted.collector.collect()
    assert counted.registration.nodes() == {"nvidia0": "0000:1b:00.0", "nvidia1": "0000:1c:00.0"}
    before = sorted(counted.keys())
    counted.found = Found([gpus[0], gpus[3]], left_out=frozenset(("0000:1c:00.0",)))
    counted.collector.collect()
    assert sorted(counted.keys()) == before
    counted.found = Found([gpus[3]], left_out=None)
    counted.collector.collect()
    assert sorted(counted.keys()) == before
    counted.found = Found([gpus[0], gpus[3]])
    counted.collector.collect()
    assert counted.keys() == ["GPU-a", "0000:1c:00.0"], "it is gone"
