"""What the agent tells the aggregator of itself, and the inventory that this is made from."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from ..fingerprints.block import Block
from ..fingerprints.catalogue import Pace
from ..fingerprints.wire import telemetry_pb2
from .clock import Clock
from .framing import dictionary

PROTOCOL_VERSION = 1
#: The first connection waits this long for the first inventory, rather than being made twice.
FIRST_INVENTORY_SECONDS_MAX = 5.0


class Device(Protocol):
    """A part of the host."""

    @property
    def kind(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, str]: ...


class Inventory(Protocol):
    """What `agent.inventory.read` returns; *words* say why it is not whole."""

    @property
    def devices(self) -> Sequence[Device]: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def words(self) -> str: ...
    @property
    def left_out(self) -> frozenset[str] | None: ...  # GPUs of which nobody was asked; None: all


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
            signals=dictionary(),
            labels=labels,
        )
        self._clock = clock
        self._lock = threading.Lock()
        self._known = threading.Event()
        self._told: bytes | None = None  # what the last request said of devices and labels
        self._gpus: dict[str, str] = {}

    def request(self) -> telemetry_pb2.RegisterNodeRequest:
        """Return the request as of now. Waits up to 5 s for the first inventory, and no longer."""
        self._known.wait(FIRST_INVENTORY_SECONDS_MAX)
        with self._lock:
            request = telemetry_pb2.RegisterNodeRequest()
            request.CopyFrom(self._request)
            self._told = self._request.SerializeToString(deterministic=True)
        request.boottime_ns = self._clock.boottime_ns()
        request.wall_time_ns = self._clock.wall_ns()
        return request

    def update(self, inventory: Inventory) -> bool:
        """Take over devices and labels; return whether the last request, if any, told others.

        Of a GPU that was left out stands what was known before.
        """
        with self._lock:
            before = list(_of_gpus(self._request.devices, inventory.left_out))
            del self._request.devices[:]
            for device in [*inventory.devices, *before]:
                self._request.devices.add(
                    kind=device.kind, key=device.key, attributes=device.attributes
                )
            self._request.labels.clear()
            self._request.labels.update(inventory.labels)
            self._request.labels.update(self._labels)
            now = self._request.SerializeToString(deterministic=True)
            outdated = self._told is not None and self._told != now
            self._gpus = {
                device.key: device.attributes.get("pci_address", "")
                for device in self._request.devices
                if device.kind == "gpu"
            }
        self._known.set()
        return outdated

    def attributes(self) -> dict[tuple[str, str], dict[str, str]]:
        """Return (kind, key) -> attributes of the devices as last known. For any thread."""
        with self._lock:
            return {(d.kind, d.key): dict(d.attributes) for d in self._request.devices}

    def gpus(self) -> Mapping[str, str]:
        """Return UUID -> PCI address of the GPUs that the last inventory found; another one when that changes."""
        return self._gpus

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
        """Return the UUID of the GPU at a PCI address, as the last inventory had it; else the address."""
        with self._lock:
            found = (
                device.key
                for device in self._request.devices
                if device.kind == "gpu" and device.attributes.get("pci_address") == address
            )
            return next(found, address)

    def proceed(self) -> None:
        """Do not wait for an inventory any more: there is none to be had now."""
        self._known.set()


def _of_gpus(
    devices: Iterable[telemetry_pb2.Device], addresses: frozenset[str] | None
) -> Iterator[telemetry_pb2.Device]:
    """Yield the GPUs at *addresses* (None: all), and their parts; copies, that outlive the originals."""
    keys: set[str] = set()
    for device in devices:
        address = device.attributes.get("pci_address", "")
        if device.kind == "gpu" and (addresses is None or address in addresses):
            keys.add(device.key)
    for device in devices:
        if (device.key if device.kind == "gpu" else device.attributes.get("gpu")) in keys:
            copy = telemetry_pb2.Device()
            copy.CopyFrom(device)
            yield copy


class InventoryCollector:
    """Reads the inventory as a collector takes its turn: every 600 s, in a thread of its own, with
    its seconds and its outcome in `collector_10s`. It fills no block."""

    name = "inventory"
    pace = Pace.BOOT
    enters_driver = True

    def __init__(
        self,
        read: Callable[[], Inventory],
        registration: Registration,
        changed: Callable[[], None],
    ) -> None:
        """*changed* is called when devices or labels are not those that the last request told."""
        self._read = read
        self._registration = registration
        self._changed = changed

    def collect(self) -> Sequence[Block]:
        try:
            inventory = self._read()
        except BaseException:
            self._registration.proceed()
            raise
        if inventory.words and not inventory.devices:
            # Nothing was read: what was known before stands.
            self._registration.proceed()
        elif self._registration.update(inventory):
            self._changed()
        if inventory.words:
            raise RuntimeError(inventory.words)
        return ()
