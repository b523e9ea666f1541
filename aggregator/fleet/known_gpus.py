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
#: Attributes of a listed GPU that does not respond, or that the agent may not read.
PROBLEM, HIDDEN = "problem", "hidden"


class RegisteredGpus(NamedTuple):
    """GPUs in a host's registration. Mappings are GPU -> PCI address."""

    found: GpuSet = NO_GPUS  # read by the agent
    hidden: GpuSet = NO_GPUS  # present, but the agent is not permitted to read them
    silent: GpuSet = NO_GPUS  # listed by the driver without responding
    on_bus: int = 0  # NVIDIA GPUs on the PCI bus outside virtual machines
    passed_through: frozenset[str] = frozenset()  # PCI addresses of GPUs for virtual machines


class ExpectedGpus(NamedTuple):
    """Expected and registered GPUs of a host."""

    expected: GpuSet = NO_GPUS
    #: None: not registered with an inventory since the start.
    registered: RegisteredGpus | None = None

    @property
    def gpus(self) -> int:
        """Return the number of GPUs, the larger of both counts."""
        return max(len(self.expected), self.registered.on_bus if self.registered else 0)

    @property
    def missing_gpus(self) -> dict[str, str]:
        """Return absent expected GPUs, without hidden ones and those of virtual machines."""
        if self.registered is None:
            return {}
        listed_keys = {*self.registered.found, *self.registered.hidden}
        other_addresses = {*self.registered.hidden.values(), *self.registered.passed_through}
        gone = missing(self.expected, self.registered.found)
        return {
            key: address
            for key, address in gone.items()
            if key not in listed_keys and address not in other_addresses
        }

    def stored(self, *, listed: bool) -> list[tuple[str, str, dict[str, str]]]:
        """Return expected GPUs that the registration lacks, as devices of EXPECTED_KIND.

        *listed*: the registration has any devices.
        """
        found = self.registered.found if self.registered and listed else NO_GPUS
        gone = missing(self.expected, found)
        return [
            (EXPECTED_KIND, key, {"last_pci_address": address}) for key, address in gone.items()
        ]


_UNKNOWN = ExpectedGpus()


class KnownGpus:
    """Known GPUs by host name. Owned by the fleet's thread."""

    def __init__(self) -> None:
        self._hosts: dict[str, ExpectedGpus] = {}
        #: Hosts with missing GPUs.
        self.hosts_missing_gpus: set[str] = set()

    def restore(self, host: str, expected: GpuSet) -> None:
        """Set the expected GPUs of *host* from the store."""
        self._hosts[host] = ExpectedGpus(expected)

    def register(self, host: str, devices: Sequence[Device]) -> ExpectedGpus:
        """Update the GPUs of *host* from its registration, and return them."""
        known = self.of(host)
        if not devices:  # the inventory is not known yet
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
        return self._hosts.get(host, _UNKNOWN)

    def key_at(self, host: str, address: str) -> str:
        """Return the GPU that *host* has, or had last, at a PCI address; "" if unknown."""
        wanted = address.lower()
        return next((key for key, g in self.of(host).expected.items() if g.lower() == wanted), "")


def registered_gpus(devices: Iterable[Device]) -> RegisteredGpus:
    """Return the GPUs in an inventory."""
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
