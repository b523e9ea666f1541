"""The GPUs that each host has ever had: kept across boots, agent restarts and aggregator restarts.

A host registers with the GPUs that it finds. GPUs that it had before and does not find are still expected (until when:
`contract/gpu_set.py`). The store keeps them among the host's devices, as a kind of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ...contract.gpu_set import PASSTHROUGH_DRIVERS, is_uuid, missing, update_expected
from ...contract.wire.telemetry_pb2 import Device
from ..model import EXPECTED_KIND

GpuSet = Mapping[str, str]
NO_GPUS: GpuSet = MappingProxyType({})
_NVIDIA = 0x10DE
#: PCI classes of GPUs: VGA and 3D controllers.
_DISPLAYS = ("0x0300", "0x0302")
#: Attributes of a GPU that an agent lists and does not read: it does not respond, or the agent may not query it.
PROBLEM, HIDDEN = "problem", "hidden"


class RegisteredGpus(NamedTuple):
    """What a host registered with. Mappings are of GPU -> PCI address."""

    found: GpuSet = NO_GPUS  # they answered
    hidden: GpuSet = NO_GPUS  # they are there, and the agent may not query them
    silent: GpuSet = NO_GPUS  # the driver lists them, and they do not answer
    on_bus: int = 0  # NVIDIA GPUs on the PCI bus that no virtual machine has
    passed_through: frozenset[str] = frozenset()  # PCI addresses of those that one may have


class ExpectedGpus(NamedTuple):
    """What is known of one host."""

    expected: GpuSet = NO_GPUS
    #: None: it has not registered with an inventory since our start.
    registered: RegisteredGpus | None = None

    @property
    def gpus(self) -> int:
        """How many GPUs it has, as far as anything tells."""
        return max(len(self.expected), self.registered.on_bus if self.registered else 0)

    @property
    def missing_gpus(self) -> dict[str, str]:
        """The GPUs that it had and does not find: those neither hidden nor given to a virtual machine."""
        if self.registered is None:
            return {}
        there = {*self.registered.found, *self.registered.hidden}
        at = {*self.registered.hidden.values(), *self.registered.passed_through}
        gone = missing(self.expected, self.registered.found)
        return {key: where for key, where in gone.items() if key not in there and where not in at}

    def stored(self, *, listed: bool) -> list[tuple[str, str, dict[str, str]]]:
        """Return the GPUs that it did not register with as devices of EXPECTED_KIND. *listed*: it reported any devices."""
        found = self.registered.found if self.registered and listed else NO_GPUS
        gone = missing(self.expected, found)
        return [(EXPECTED_KIND, key, {"last_pci_address": at}) for key, at in gone.items()]


_UNKNOWN = ExpectedGpus()


class KnownGpus:
    """By host name. Owned by the fleet's thread."""

    def __init__(self) -> None:
        self._hosts: dict[str, ExpectedGpus] = {}
        #: Hosts that lack GPUs which they had.
        self.hosts_missing_gpus: set[str] = set()

    def restore(self, host: str, expected: GpuSet) -> None:
        """Take over what the store knew of *host*."""
        self._hosts[host] = ExpectedGpus(expected)

    def register(self, host: str, devices: Sequence[Device]) -> ExpectedGpus:
        """Take over what *host* registered with, and return what is known of it now."""
        known = self.of(host)
        if not devices:  # its inventory is not there yet
            return known
        registered = registered_gpus(devices)
        known = self._hosts[host] = ExpectedGpus(
            update_expected(known.expected, registered.found), registered
        )
        (self.hosts_missing_gpus.add if known.missing_gpus else self.hosts_missing_gpus.discard)(
            host
        )
        return known

    def of(self, host: str) -> ExpectedGpus:
        """Return what is known of *host*."""
        return self._hosts.get(host, _UNKNOWN)

    def key_at(self, host: str, address: str) -> str:
        """Return the GPU that *host* has, or had last, at a PCI address; "" for none."""
        wanted = address.lower()
        return next((k for k, at in self.of(host).expected.items() if at.lower() == wanted), "")


def registered_gpus(devices: Iterable[Device]) -> RegisteredGpus:
    """Return which GPUs an inventory shows."""
    found: dict[str, str] = {}
    hidden: dict[str, str] = {}
    silent: dict[str, str] = {}
    on_bus, passed_through = 0, set[str]()
    for device in devices:
        attributes = device.attributes
        if device.kind == "gpu":
            kind = hidden if HIDDEN in attributes else silent if PROBLEM in attributes else found
            if is_uuid(device.key) or kind is not found:
                kind[device.key] = attributes.get("pci_address", "")
        elif device.kind == "pcie" and _is_nvidia_gpu(attributes):
            is_passed_through = attributes.get("driver", "") in PASSTHROUGH_DRIVERS
            on_bus += not is_passed_through
            passed_through.update([device.key] if is_passed_through else ())
    return RegisteredGpus(found, hidden, silent, on_bus, frozenset(passed_through))


def _is_nvidia_gpu(attributes: Mapping[str, str]) -> bool:
    vendor = attributes.get("vendor", "")
    return vendor.lower() == f"0x{_NVIDIA:04x}" and attributes.get("class", "").startswith(
        _DISPLAYS
    )
