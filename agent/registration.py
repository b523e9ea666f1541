"""The agent's registration message, the inventory's collector, and the machine's fingerprint."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from ..contract.block import Block
from ..contract.gpu_set import GPUS_MAX, PASSTHROUGH_DRIVERS, is_uuid
from ..contract.recording import SECONDS_MAX
from ..contract.signal import Pace
from ..contract.wire import telemetry_pb2
from .clock import Clock
from .collector import Collector
from .frame_builder import signal_dictionary
from .gpu_list import GpuInventory
from .hardware.files import read_text

PROTOCOL_VERSION = 1
#: Wait of the first connection for the first inventory, to avoid a second registration.
FIRST_INVENTORY_SECONDS_MAX = 5.0
#: Delay before another inventory if a GPU has no description; doubled up to the inventory's period.
RETRY_SECONDS, RETRY_SECONDS_MAX = 10.0, 600.0

#: UUIDs of boards whose maker set none: different machines would seem the same.
_PLACEHOLDERS = frozenset(
    (
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "03000200-0400-0500-0006-000700080009",
    )
)
#: /sys/class/net/*/addr_assign_type: 0 is the card's permanent address (if_link.h).
_NET_ADDR_PERM = "0"


class DeviceRecord(Protocol):
    """A device of the host."""

    @property
    def kind(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, str]: ...


class InventoryResult(Protocol):
    """Result of `agent.inventory.read`; *reason* says why it is incomplete."""

    @property
    def devices(self) -> Sequence[DeviceRecord]: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def reason(self) -> str: ...
    @property
    def left_out(self) -> frozenset[str] | None: ...  # GPUs that were not queried; None: all


def version() -> str:
    """Return the installed version of gangline, or `unknown`.

    From the name of its dist-info folder: importlib.metadata would take 2.6 MB of memory.
    """
    for folder in sys.path:
        for info in Path(folder).glob("gangline-*.dist-info"):
            return info.name.removeprefix("gangline-").removesuffix(".dist-info")
    return "unknown"


class Registration:
    """The request of this run. `request` is for the client's thread, `update` for the inventory's."""

    def __init__(
        self,
        host: str,
        run_id: bytes,
        boot_id: bytes,
        clock: Clock,
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """*labels*: set by the operator, in addition to the inventory's."""
        self._labels = labels
        self._request = telemetry_pb2.RegisterNodeRequest(
            protocol_version=PROTOCOL_VERSION,
            node=host,
            run_id=run_id,
            boot_id=boot_id,
            agent_version=version(),
            signals=signal_dictionary(),
            labels=labels,
            recording_seconds_max=SECONDS_MAX,
        )
        self._clock = clock
        self._lock = threading.Lock()
        self._inventory_read = threading.Event()
        self._sent: bytes | None = None  # devices and labels of the last request
        self._gpus: dict[str, str] = {}
        #: _gpus, and earlier GPUs at addresses where no other GPU is now.
        self._known_gpus: Mapping[str, str] = {}
        self._gpu_inventory: GpuInventory | None = None

    def request(self) -> telemetry_pb2.RegisterNodeRequest:
        """Return the present request. Waits up to 5 s for the first inventory."""
        self._inventory_read.wait(FIRST_INVENTORY_SECONDS_MAX)
        with self._lock:
            request = telemetry_pb2.RegisterNodeRequest()
            request.CopyFrom(self._request)
            self._sent = self._request.SerializeToString(deterministic=True)
        request.boottime_ns = self._clock.boottime_ns()
        request.wall_time_ns = self._clock.wall_ns()
        return request

    def update(self, inventory: InventoryResult) -> bool:
        """Use the inventory's devices and labels; return whether the last request had others.

        GPUs that were left out or did not respond keep their earlier data.
        """
        problems = {
            self._key(device): device.attributes["problem"]
            for device in inventory.devices
            if device.kind == "gpu" and "problem" in device.attributes
        }
        with self._lock:
            before = list(_copies_of_gpus(self._request.devices, inventory.left_out, problems))
            retained = {(device.kind, device.key) for device in before}
            described = [
                device
                for device in inventory.devices
                if (device.kind, self._key(device)) not in retained
            ]
            del self._request.devices[:]
            for device in [*described, *before]:
                self._request.devices.add(
                    kind=device.kind, key=self._key(device), attributes=device.attributes
                )
            for device in self._request.devices:
                if device.kind == "gpu" and device.key in problems:
                    device.attributes["problem"] = problems[device.key]
            self._request.labels.clear()
            self._request.labels.update(inventory.labels)
            self._request.labels.update(self._labels)
            now = self._request.SerializeToString(deterministic=True)
            outdated = self._sent is not None and self._sent != now
            self._gpus = {
                device.key: device.attributes.get("pci_address", "")
                for device in self._request.devices
                if device.kind == "gpu"
            }
            self._known_gpus = _merged_gpus(self._gpus, self._known_gpus)
            self._gpu_inventory = _gpu_inventory_of(inventory, self._request.devices)
        self._inventory_read.set()
        return outdated

    def attributes(self) -> dict[tuple[str, str], dict[str, str]]:
        """Return (kind, key) -> attributes of the devices. For any thread."""
        with self._lock:
            return {
                (device.kind, device.key): dict(device.attributes)
                for device in self._request.devices
            }

    def undescribed_gpus(self, keys: Iterable[str]) -> dict[str, str]:
        """Return key -> reason of GPUs without a description, in the inventory or *keys*."""
        gpus = {key: has for (kind, key), has in self.attributes().items() if kind == "gpu"}
        missing = dict.fromkeys(sorted({*keys} - gpus.keys()), "the inventory did not find it")
        silent = {key: has["problem"] for key, has in gpus.items() if "problem" in has}
        return missing | silent

    def gpu_serials(self) -> dict[str, str]:
        """Return serial number -> UUID of GPUs that report a serial number. For any thread."""
        known = self.attributes().items()
        return {
            has["serial"]: key for (kind, key), has in known if kind == "gpu" and has.get("serial")
        }

    def gpus(self) -> Mapping[str, str]:
        """Return UUID -> PCI address of the last inventory's GPUs; a new object after a change."""
        return self._gpus

    def known_gpus(self) -> Mapping[str, str]:
        """Return UUID -> PCI address, also of missing GPUs; a new object after a change."""
        return self._known_gpus

    def restore_gpus(self, gpus: Mapping[str, str]) -> None:
        """Add UUID -> PCI address from before this agent was started."""
        with self._lock:
            self._known_gpus = _merged_gpus(self._gpus, {**gpus, **self._known_gpus})

    def gpu_inventory(self) -> GpuInventory | None:
        """Return the GPUs that responded to the last inventory; None if it could not query GPUs."""
        return self._gpu_inventory

    def _key(self, device: DeviceRecord) -> str:
        """Return the device's key; without a UUID, the key of the last GPU at its address."""
        if device.kind != "gpu" or is_uuid(device.key):
            return device.key
        return self._gpu_at(device.attributes.get("pci_address", "")) or device.key

    def _gpu_at(self, address: str) -> str:
        return next(
            (
                key
                for key, known_address in self._known_gpus.items()
                if known_address and known_address == address
            ),
            "",
        )

    def nodes(self) -> dict[str, str]:
        """Return device node (`nvidia3`) -> PCI address of the last inventory's GPUs."""
        known = self.attributes().items()
        gpus = [attributes for (kind, _), attributes in known if kind == "gpu"]
        return {
            f"nvidia{gpu['minor_number']}": gpu["pci_address"]
            for gpu in gpus
            if {"minor_number", "pci_address"} <= gpu.keys()
        }

    def gpu_key(self, address: str) -> str:
        """Return the UUID of the present or last GPU at *address*; else *address*."""
        return self._gpu_at(address) or address

    def stop_waiting(self) -> None:
        """Stop waiting for an inventory: none can be made now."""
        self._inventory_read.set()


def _merged_gpus(gpus: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """Return *gpus* (UUID -> PCI address), and GPUs of *before* whose address is free now."""
    now = {key: address for key, address in gpus.items() if is_uuid(key)}
    occupied = frozenset(now.values())
    removed = {
        key: address
        for key, address in before.items()
        if key not in now and address not in occupied
    }
    return {**dict(list(removed.items())[:GPUS_MAX]), **now}


def _gpu_inventory_of(
    inventory: InventoryResult, devices: Iterable[telemetry_pb2.Device]
) -> GpuInventory | None:
    """Return which of *devices* are GPUs that respond; None if *inventory* could not query them."""
    if inventory.left_out is None or "GPUs" in inventory.reason:
        return None
    responding: dict[str, str] = {}
    unqueried = set(inventory.left_out)
    for device in devices:
        attributes = device.attributes
        if device.kind == "gpu" and "hidden" in attributes:
            unqueried.add(attributes.get("pci_address", ""))
        elif device.kind == "gpu" and "problem" not in attributes and is_uuid(device.key):
            responding[device.key] = attributes.get("pci_address", "")
        elif device.kind == "pcie" and attributes.get("driver", "") in PASSTHROUGH_DRIVERS:
            unqueried.add(device.key)
    return GpuInventory(responding, frozenset(unqueried))


def _copies_of_gpus(
    devices: Iterable[telemetry_pb2.Device],
    addresses: frozenset[str] | None,
    silent: Collection[str],
) -> Iterator[telemetry_pb2.Device]:
    """Yield copies of GPUs at *addresses* (None: all) or in *silent*, with their parts."""
    keys: set[str] = set()
    for device in devices:
        address = device.attributes.get("pci_address", "")
        is_wanted = addresses is None or address in addresses or device.key in silent
        if device.kind == "gpu" and is_wanted:
            keys.add(device.key)
    for device in devices:
        if (device.key if device.kind == "gpu" else device.attributes.get("gpu")) in keys:
            copy = telemetry_pb2.Device()
            copy.CopyFrom(device)
            yield copy


class InventoryCollector(Collector):
    """Reads the inventory as a collector's turn, every 600 s in a thread, without a block.

    If a GPU has no description it reads again sooner. A GPU with readings but without a description
    is an error.
    """

    name = "inventory"
    pace = Pace.BOOT
    enters_driver = True

    def __init__(
        self,
        read: Callable[[], InventoryResult],
        registration: Registration,
        on_change: Callable[[], None],
        retry: Callable[[str, float], None] = lambda reason, seconds: None,
        gpus_read: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """*on_change* is called if devices or labels differ from the last request.

        *retry* requests another inventory (reason, seconds from now). *gpus_read* returns the keys
        of GPUs that have readings.
        """
        self._read = read
        self._registration = registration
        self._on_change = on_change
        self._retry, self._gpus_read = retry, gpus_read
        self._retry_seconds = RETRY_SECONDS

    def collect(self) -> Sequence[Block]:
        try:
            inventory = self._read()
        except BaseException:
            self._registration.stop_waiting()
            raise
        if inventory.reason and not inventory.devices:
            # Nothing was read, so the earlier data stay.
            self._registration.stop_waiting()
        elif self._registration.update(inventory):
            self._on_change()
        problems = [inventory.reason] if inventory.reason else []
        problems += self._undescribed()
        if problems:
            raise RuntimeError("; ".join(problems))
        return ()

    def _undescribed(self) -> list[str]:
        """Request a retry for undescribed GPUs; return an error for those that have readings."""
        gpus_read = self._gpus_read()
        undescribed = self._registration.undescribed_gpus(gpus_read)
        if not undescribed:
            self._retry_seconds = RETRY_SECONDS
            return []
        self._retry(f"{len(undescribed)} GPUs have no description", self._retry_seconds)
        self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS_MAX)
        silent = {key: reason for key, reason in undescribed.items() if key in gpus_read}
        if not silent:
            return []
        key, reason = next(iter(silent.items()))
        more = f", and {len(silent) - 1} more" if len(silent) > 1 else ""
        return [
            f"no description (model, serial) of GPU {key}{more}, although it has readings: {reason}"
        ]


def machine_owner(sys_root: Path = Path("/sys"), proc_root: Path = Path("/proc")) -> str:
    """Return a fingerprint of this machine, the same at every start. Never raises.

    It is the board's UUID (DMI product_uuid, readable by root), else the lowest address of the
    physical network cards; and the host's name. So the same disk in another machine gives another
    fingerprint. Only a single address counts, so that a failed network card, which the agent must
    report, does not make the spool foreign to its machine. An assigned address counts only if no
    card has a permanent address: the slaves of a bond have the bond's address.
    """
    board = _text(sys_root / "class/dmi/id/product_uuid").lower()
    if board and board not in _PLACEHOLDERS:
        machine = f"board {board}"
    else:
        permanent, other = _addresses(sys_root)
        machine = "network card " + min(permanent or other or ["none"])
    name = _text(proc_root / "sys/kernel/hostname") or "unnamed"
    return f"{machine}, host {name}"


def _addresses(sys_root: Path) -> tuple[list[str], list[str]]:
    permanent: list[str] = []
    other: list[str] = []
    for card in _physical_cards(sys_root):
        address = _text(card / "address").lower()
        if not address.strip("0:"):
            continue
        made_with = _text(card / "addr_assign_type") in (_NET_ADDR_PERM, "")
        (permanent if made_with else other).append(address)
    return permanent, other


def _physical_cards(sys_root: Path) -> Iterator[Path]:
    """Yield the /sys/class/net/* with a device: no bridges, bonds, tunnels, veths."""
    try:
        cards = list((sys_root / "class/net").iterdir())
    except OSError:
        return
    for card in cards:
        if (card / "device").exists():
            yield card


def _text(path: Path) -> str:
    return read_text(path) or ""
