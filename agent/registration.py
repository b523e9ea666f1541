"""Builds the agent's registration message from its inventory."""

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
#: The first connection waits this long for the first inventory, rather than being made twice.
FIRST_INVENTORY_SECONDS_MAX = 5.0
#: A GPU without a description is asked again after this time, which doubles up to the inventory's own pace.
RETRY_SECONDS, RETRY_SECONDS_MAX = 10.0, 600.0


class DeviceRecord(Protocol):
    """A part of the host."""

    @property
    def kind(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, str]: ...


class InventoryResult(Protocol):
    """What `agent.inventory.read` returns; *reason* say why it is not whole."""

    @property
    def devices(self) -> Sequence[DeviceRecord]: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def reason(self) -> str: ...
    @property
    def left_out(self) -> frozenset[str] | None: ...  # GPUs that nobody was asked about; None: all


def version() -> str:
    """Return the installed version of gangline, or `unknown`.

    From the name of its dist-info folder: importlib.metadata would cost the daemon 2.6 MB.
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
        """*labels*: what an operator says of the host, beside what its inventory does."""
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
        self._sent: bytes | None = None  # what the last request said of devices and labels
        self._gpus: dict[str, str] = {}
        #: The same, with GPUs of before at addresses where no other is now.
        self._known_gpus: Mapping[str, str] = {}
        self._gpu_inventory: GpuInventory | None = None

    def request(self) -> telemetry_pb2.RegisterNodeRequest:
        """Return the request as of now. Waits up to 5 s for the first inventory, and no longer."""
        self._inventory_read.wait(FIRST_INVENTORY_SECONDS_MAX)
        with self._lock:
            request = telemetry_pb2.RegisterNodeRequest()
            request.CopyFrom(self._request)
            self._sent = self._request.SerializeToString(deterministic=True)
        request.boottime_ns = self._clock.boottime_ns()
        request.wall_time_ns = self._clock.wall_ns()
        return request

    def update(self, inventory: InventoryResult) -> bool:
        """Take over devices and labels; return whether the last request, if any, had others.

        For a GPU that was left out or did not answer, the earlier data stay.
        """
        problems = {
            self._key(device): device.attributes["problem"]
            for device in inventory.devices
            if device.kind == "gpu" and "problem" in device.attributes
        }
        with self._lock:
            before = list(_copies_of_gpus(self._request.devices, inventory.left_out, problems))
            retained = {(device.kind, device.key) for device in before}
            found = [d for d in inventory.devices if (d.kind, self._key(d)) not in retained]
            del self._request.devices[:]
            for device in [*found, *before]:
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
        """Return (kind, key) -> attributes of the devices as last known. For any thread."""
        with self._lock:
            return {(d.kind, d.key): dict(d.attributes) for d in self._request.devices}

    def undescribed_gpus(self, keys: Iterable[str]) -> dict[str, str]:
        """Return key -> reason of the GPUs that have no description: those of the inventory, and those of *keys*."""
        gpus = {key: has for (kind, key), has in self.attributes().items() if kind == "gpu"}
        missing = dict.fromkeys(sorted({*keys} - gpus.keys()), "the inventory did not find it")
        silent = {key: has["problem"] for key, has in gpus.items() if "problem" in has}
        return missing | silent

    def gpu_serials(self) -> dict[str, str]:
        """Return serial number -> UUID of the GPUs that say one. For any thread."""
        known = self.attributes().items()
        return {
            has["serial"]: key for (kind, key), has in known if kind == "gpu" and has.get("serial")
        }

    def gpus(self) -> Mapping[str, str]:
        """Return UUID -> PCI address of the GPUs that the last inventory found; another one when that changes."""
        return self._gpus

    def known_gpus(self) -> Mapping[str, str]:
        """Return the same with GPUs that are gone, by where they were; another one when that changes."""
        return self._known_gpus

    def restore_gpus(self, gpus: Mapping[str, str]) -> None:
        """Take which GPU (UUID) was at which PCI address before this agent was started."""
        with self._lock:
            self._known_gpus = _merged_gpus(self._gpus, {**gpus, **self._known_gpus})

    def gpu_inventory(self) -> GpuInventory | None:
        """Return which GPUs answer, by the last inventory; None where it could not tell."""
        return self._gpu_inventory

    def _key(self, device: DeviceRecord) -> str:
        """Return the key of *device*; of a GPU that does not say who it is, that of the one that was at its address."""
        if device.kind != "gpu" or is_uuid(device.key):
            return device.key
        return self._gpu_at(device.attributes.get("pci_address", "")) or device.key

    def _gpu_at(self, address: str) -> str:
        return next((key for key, at in self._known_gpus.items() if at and at == address), "")

    def nodes(self) -> dict[str, str]:
        """Return `nvidia3` -> PCI address of the GPUs whose minor number the last inventory found."""
        known = self.attributes().items()
        gpus = [attributes for (kind, _), attributes in known if kind == "gpu"]
        return {
            f"nvidia{gpu['minor_number']}": gpu["pci_address"]
            for gpu in gpus
            if {"minor_number", "pci_address"} <= gpu.keys()
        }

    def gpu_key(self, address: str) -> str:
        """Return the UUID of the GPU at a PCI address, or of the one that was there last; else the address."""
        return self._gpu_at(address) or address

    def stop_waiting(self) -> None:
        """Do not wait for an inventory any more: there is none to be had now."""
        self._inventory_read.set()


def _merged_gpus(gpus: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """Return *gpus* (UUID -> PCI address), and those of *before* at whose address none of them is."""
    now = {key: at for key, at in gpus.items() if is_uuid(key)}
    occupied = frozenset(now.values())
    removed = {key: at for key, at in before.items() if key not in now and at not in occupied}
    return {**dict(list(removed.items())[:GPUS_MAX]), **now}


def _gpu_inventory_of(
    inventory: InventoryResult, devices: Iterable[telemetry_pb2.Device]
) -> GpuInventory | None:
    """Return which of *devices* are GPUs that answer; None where *inventory* could not ask."""
    if inventory.left_out is None or "GPUs" in inventory.reason:
        return None
    found: dict[str, str] = {}
    unqueried = set(inventory.left_out)
    for device in devices:
        attributes = device.attributes
        if device.kind == "gpu" and "hidden" in attributes:
            unqueried.add(attributes.get("pci_address", ""))
        elif device.kind == "gpu" and "problem" not in attributes and is_uuid(device.key):
            found[device.key] = attributes.get("pci_address", "")
        elif device.kind == "pcie" and attributes.get("driver", "") in PASSTHROUGH_DRIVERS:
            unqueried.add(device.key)
    return GpuInventory(found, frozenset(unqueried))


def _copies_of_gpus(
    devices: Iterable[telemetry_pb2.Device],
    addresses: frozenset[str] | None,
    silent: Collection[str],
) -> Iterator[telemetry_pb2.Device]:
    """Yield copies of the GPUs at *addresses* (None: all) and of those named in *silent*, with their parts."""
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
    """Reads the inventory as a collector takes its turn: every 600 s, in a thread of its own, with
    its seconds and its outcome in `collector_10s`. It fills no block.

    While a GPU has no description it is read again sooner. A GPU that has readings and no description is an error.
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
        """*on_change* is called when devices or labels differ from those of the last request. *retry*: ask for another
        inventory (reason, seconds from now). *gpus_read*: keys of the GPUs that have readings."""
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
            # Nothing was read: the earlier data stay.
            self._registration.stop_waiting()
        elif self._registration.update(inventory):
            self._on_change()
        problems = [inventory.reason] if inventory.reason else []
        problems += self._undescribed()
        if problems:
            raise RuntimeError("; ".join(problems))
        return ()

    def _undescribed(self) -> list[str]:
        """Return the finding about GPUs that have readings and no description; see to it that all are asked again."""
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


# ----------------------------------------------------------------------
# Which machine this is, and which boot of it.

#: What boards report whose maker never set a UUID; it would make strangers look alike.
_PLACEHOLDERS = frozenset(
    (
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "03000200-0400-0500-0006-000700080009",
    )
)
#: /sys/class/net/*/addr_assign_type: 0 is the address the card was made with (if_link.h).
_NET_ADDR_PERM = "0"


def machine_owner(sys_root: Path = Path("/sys"), proc_root: Path = Path("/proc")) -> str:
    """Return a fingerprint of this machine, the same at every start. Never raises.

    It is the board's UUID (DMI product_uuid, readable by root) or, where that is not to be had, the
    lowest address of the physical network cards; and the host's name. The same disk in another
    machine therefore gives another fingerprint. Only one address counts, so that a failed network card, which the
    agent must report, does not make the spool foreign to its machine; an
    address that somebody set counts only if there is none a card was made with (the slaves of a
    bond bear the bond's).
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
    """Yield /sys/class/net/* that have a device behind them: no bridges, bonds, tunnels, veths."""
    try:
        cards = list((sys_root / "class/net").iterdir())
    except OSError:
        return
    for card in cards:
        if (card / "device").exists():
            yield card


def _text(path: Path) -> str:
    return read_text(path) or ""
