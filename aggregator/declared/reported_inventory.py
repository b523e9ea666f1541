"""Location and hardware that hosts report when they register. Equal values are stored once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ...contract.topology import FIELDS, LABEL_PREFIX, NAME_CHARACTERS_MAX, RAILS_MAX
from ...contract.wire.telemetry_pb2 import Device
from .host_placement import NOWHERE, PLACE_FIELDS, HostPlacement, PlaceSource

#: Field of a location -> its labels by priority: Gangline's, Topograph's, earlier Topograph's.
LABELS: dict[str, tuple[str, ...]] = {
    name: (f"{LABEL_PREFIX}{name}", *others)
    for name, others in {
        "rack": (),
        "power_domain": (),
        "cooling_domain": (),
        "leaf": (
            "fabric.topograph.run/tier-0",
            "network.topology.nvidia.com/leaf",
            "network.topology.nvidia.com/block",
        ),
        "spine": ("fabric.topograph.run/tier-1", "network.topology.nvidia.com/spine"),
        "nvlink_domain": (
            "accelerator.topograph.run/domain",
            "network.topology.nvidia.com/accelerator",
        ),
        "rails": (),
        "core": (
            "fabric.topograph.run/tier-2",
            "network.topology.nvidia.com/core",
            "network.topology.nvidia.com/datacenter",
        ),
        "nvlink_subdomain": ("accelerator.topograph.run/sub-domain",),
    }.items()
}
#: All labels.
LABEL_NAMES = frozenset(name for names in LABELS.values() for name in names)
#: Maximum number of shared hardware values; more would be an attack.
HARDWARE_SHARED_MAX = 20_000


class GpuHardware(NamedTuple):
    """A kind of GPU; 0 and "" if not reported."""

    model: str
    memory_bytes: int
    nvlinks: int
    vbios: str


class HostHardware(NamedTuple):
    """The hardware of a host; None and "" if not reported."""

    gpus: tuple[tuple[GpuHardware, int], ...] = ()  # each with its number, the most frequent first
    numa_nodes: int | None = None
    nvme_drives: int | None = None
    cpu_cores: int | None = None
    memory_bytes: int | None = None
    driver: str = ""
    kernel: str = ""
    is_known: bool = False  # an inventory came with it

    @property
    def model(self) -> str:
        """The most frequent model of its GPUs."""
        return self.gpus[0][0].model if self.gpus else ""


def hardware_of(devices: Iterable[Device], labels: Mapping[str, str]) -> HostHardware:
    """Return the hardware in *devices* and *labels*. Raises nothing for any content."""
    gpus: Counter[GpuHardware] = Counter()
    kinds: Counter[str] = Counter()
    for device in devices:
        kinds[device.kind] += 1
        if device.kind == "gpu":
            attributes = device.attributes
            memory_bytes = _number(attributes.get("memory_bytes")) or 0
            nvlinks = _number(attributes.get("nvlink_count")) or 0
            name, vbios = attributes.get("name", ""), attributes.get("vbios", "")
            gpus[GpuHardware(name, memory_bytes, nvlinks, vbios)] += 1
    return HostHardware(
        gpus=tuple(sorted(gpus.items(), key=lambda item: (-item[1], item[0]))),
        numa_nodes=kinds["numa"] or None,
        nvme_drives=kinds["nvme"] if kinds else None,
        cpu_cores=_number(labels.get("cpu_cores")),
        memory_bytes=_number(labels.get("memory_bytes")),
        driver=labels.get("nvidia_driver_version", ""),
        kernel=labels.get("kernel", ""),
        is_known=bool(kinds),
    )


def _number(text: str | None) -> int | None:
    good = text is not None and text.isascii() and text.isdigit() and len(text) <= 18
    return int(text) if good and text is not None else None


def characters_max(label: str) -> int:
    """Return the maximum length of *label*'s value: rails are several names."""
    return NAME_CHARACTERS_MAX * (RAILS_MAX if label in LABELS["rails"] else 1)


def place_of(labels: Mapping[str, str]) -> HostPlacement:
    """Return the location by *labels*, without values too long or not printable."""
    values: dict[str, str] = {}
    for field, names in LABELS.items():
        values_found = (labels.get(name, "").strip() for name in names)
        value = next((text for text in values_found if text), "")
        if value and len(value) <= characters_max(names[0]) and value.isprintable():
            values[field] = value
    rails = tuple(
        text for text in values.pop("rails", "").split() if len(text) <= NAME_CHARACTERS_MAX
    )
    rails = rails[:RAILS_MAX]
    return HostPlacement(**values, rails=rails) if values or rails else NOWHERE


def fabric_of(devices: Iterable[Device]) -> HostPlacement:
    """Return the NVLink domain in which the GPUs are registered; NOWHERE if they disagree."""
    domains = {
        f"{cluster}.{device.attributes.get('fabric_clique', '')}"[:NAME_CHARACTERS_MAX]
        for device in devices
        if device.kind == "gpu" and (cluster := device.attributes.get("fabric_cluster"))
    }
    return HostPlacement(nvlink_domain=domains.pop()) if len(domains) == 1 else NOWHERE


class ReportedInventory:
    """The last report of each host. For a single thread."""

    def __init__(self) -> None:
        self._shared: dict[HostHardware, HostHardware] = {}
        self._hardware: dict[str, HostHardware] = {}
        #: Host -> its reported location. Replaced whenever it changed.
        self.places: Mapping[str, tuple[PlaceSource, ...]] = {}
        self._changed: dict[str, tuple[PlaceSource, ...]] = {}
        #: Grows when some host's hardware changed.
        self.version = 0

    def register(self, host: str, devices: Iterable[Device], labels: Mapping[str, str]) -> None:
        """Record the registration of *host*."""
        devices = list(devices)
        hardware = hardware_of(devices, labels)
        if len(self._shared) < HARDWARE_SHARED_MAX:
            hardware = self._shared.setdefault(hardware, hardware)
        if self._hardware.get(host) != hardware:
            self._hardware[host] = hardware
            self.version += 1
        sources = (("label", place_of(labels)), ("hardware", fabric_of(devices)))
        place_sources = tuple(PlaceSource(s, "", p) for s, p in sources if p != NOWHERE)
        if place_sources != self._changed.get(host, self.places.get(host, ())):
            self._changed[host] = place_sources

    def restore(self, places: Mapping[str, tuple[PlaceSource, ...]]) -> None:
        """Restore reported locations from before our restart, until each host registers again."""
        self.places = {**places, **self.places}

    def hardware(self, host: str) -> HostHardware:
        """Return the hardware of *host*, as far as it was reported."""
        return self._hardware.get(host, _UNKNOWN)

    def apply_changes(self) -> Mapping[str, tuple[PlaceSource, ...]]:
        """Return `places` with the changes since the last call."""
        if self._changed:
            self.places = {**self.places, **self._changed}
            self._changed = {}
        return self.places


_UNKNOWN = HostHardware()
assert set(LABELS) == set(PLACE_FIELDS) == set(FIELDS)
