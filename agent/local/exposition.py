"""The agent's readings as families of Prometheus, with labels from the inventory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...contract.exposition import Family, format_labels, format_number
from ...contract.signal import PERIOD_SECONDS, Kind, Signal
from ...contract.signals import TABLES
from ..latest import LatestReadings, TableSnapshot

if TYPE_CHECKING:
    from .dcgm_metrics import DcgmExposition
from .metric_priority import RESERVED_SERIES, SIGNALS_BY_PRIORITY

# Names of the families (`agent/local/metrics_http.py`): `gpu.sm_clock_hertz` of the catalog becomes
# `gangline_gpu_sm_clock_hertz`. Three rules of the format change names: a counter ends in `_total`;
# time is in seconds; `_count`, which the format reserves for histograms, is removed.
PREFIX = "gangline_"
#: Unit -> decimal digits of a second.
_SECOND_DIGITS = {"milliseconds": 3, "microseconds": 6, "nanoseconds": 9}
#: Endings of names that are not units.
_NO_UNITS = frozenset(("", "count", "state", "flags", "code", "number"))

SECOND_NS = 1_000_000_000
#: A table is left out when its readings are older than this number of its periods plus the slack.
STALE_PERIODS = 3
STALE_SLACK_SECONDS = 2
#: Number of series that this module adds.
META_SERIES = 3
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_KEY_PART = re.compile(r"(?P<word>link|c2c|gi|ci|)(?P<number>[0-9]{1,10})")
_PART_LABELS = {
    "link": "link",
    "c2c": "link",
    "gi": "gpu_instance",
    "ci": "compute_instance",
    "": "pid",
}
#: Kinds with a single device per host, so that the key adds nothing.
_ONE_PER_HOST = frozenset(
    (
        "agent",
        "clock",
        "host",
        "kernel_log",
        "kubelet",
        "nvml_events",
        "rtnetlink",
        "settings",
        "tasks",
    )
)
#: Label of the key by kind. The default is `device`.
_KEY_LABELS = {
    "collector": "collector",
    "filesystem": "mountpoint",
    "nfs": "mountpoint",
    "lustre": "mountpoint",
    "lustre_target": "target",
    "service": "service",
}
#: Kind -> the kind's name in the inventory, if different.
_INVENTORIED_AS = {"nic": "net", "link": "net", "bond": "net"}


def name_of(signal: Signal) -> str:
    """Return the family's name: the signal's name with units of the format."""
    name = PREFIX + signal.name.replace(".", "_")
    if signal.unit in _SECOND_DIGITS:
        return name.removesuffix(signal.unit) + "seconds"
    return name.removesuffix("_count") if signal.unit == "count" else name


def unit_of(signal: Signal) -> str:
    """Return the unit at the end of the family's name; "" without a unit."""
    if signal.unit in _SECOND_DIGITS:
        return "seconds"
    return "" if signal.unit in _NO_UNITS else signal.unit


def family_of(signal: Signal, samples: Sequence[tuple[str, str]]) -> Family:
    kind = "counter" if signal.kind is Kind.COUNTER else "gauge"
    return Family(name_of(signal), kind, unit_of(signal), signal.description, samples)


def value_of(signal: Signal, value: float) -> str:
    """Return a reading in the format's notation; an integer keeps all of its digits."""
    digits = _SECOND_DIGITS.get(signal.unit, 0)
    if isinstance(value, int):
        if not digits:
            return str(value)
        whole, part = divmod(value, 10**digits)
        return f"{whole}.{part:0{digits}}"
    return format_number(value / 10**digits if digits else value)


#: (kind, key) of a device -> its attributes in the inventory.
Attributes = Mapping[tuple[str, str], Mapping[str, str]]


def labels_for(kind: str, key: str, attributes: Attributes) -> dict[str, str]:
    """Return the labels of a device: UUID, PCI address, name and port, never an index alone."""
    first, _, rest = key.partition("/")
    if kind in _ONE_PER_HOST:
        return {}
    if first.startswith(("GPU-", "MIG-")):
        return {"uuid": first} | _address("gpu", first, attributes) | _part_labels(rest)
    if _PCI_ADDRESS.fullmatch(key):
        return {"pci_address": key}
    if kind == "rdma":
        return {"device": first, "port": rest} | _address(kind, key, attributes)
    inventoried = _INVENTORIED_AS.get(kind, kind)
    return {_KEY_LABELS.get(kind, "device"): key} | _address(inventoried, key, attributes)


def _part_labels(rest: str) -> dict[str, str]:
    """Return the labels for the key after a GPU's UUID: `link3`, `gi1/ci0/PID`."""
    parts = rest.split("/") if rest else []
    matches = [match for part in parts if (match := _KEY_PART.fullmatch(part))]
    labels = {_PART_LABELS[match["word"]]: match["number"] for match in matches}
    return labels if len(labels) == len(parts) else {"device": rest}


def _address(kind: str, key: str, attributes: Attributes) -> dict[str, str]:
    """Return the PCI address if the inventory has it; a MIG device has its GPU's address."""
    known = attributes.get((kind, key)) or attributes.get(("mig", key)) or {}
    address = known.get("pci_address", "")
    if not address and (gpu := known.get("gpu", "")):
        address = attributes.get(("gpu", gpu), {}).get("pci_address", "")
        return {"gpu_uuid": gpu} | ({"pci_address": address} if address else {})
    return {"pci_address": address} if address else {}


@dataclass(slots=True)
class _ValidCells:
    """The cells of a table that were ever valid since its set of devices changed."""

    devices: tuple[str, ...]
    signal_ids: tuple[int, ...]
    valid: bytes

    def count(self, signal_id: int) -> int:
        rows = len(self.devices)
        start = self.signal_ids.index(signal_id) * rows if signal_id in self.signal_ids else -1
        return self.valid.count(1, start, start + rows) if start >= 0 else 0


class Exposition:
    """Selects and names the series. For a single thread; it reads `LatestReadings` without a lock.

    A signal is exposed for all of its devices or for none. Every device that ever had a value
    counts: a device without a value keeps its capacity, so that series do not come and go.
    """

    def __init__(
        self,
        latest: LatestReadings,
        boottime_ns: Callable[[], int],
        attributes: Callable[[], Attributes],
        info_labels: Mapping[str, str],
        series_max: int,
        dcgm: DcgmExposition | None = None,
    ) -> None:
        """*attributes* returns the devices' attributes; *info_labels*: agent version and host.

        *dcgm* adds dcgm-exporter's metrics, beyond *series_max*.
        """
        self._dcgm = dcgm
        self._latest = latest
        self._boottime_ns = boottime_ns
        self._attributes = attributes
        self._info_labels = dict(info_labels)
        self._series_max = series_max
        self._valid_cells: dict[str, _ValidCells] = {}

    def families(self) -> list[Family]:
        """Return the families to expose, with at most `series_max` samples."""
        now_ns, tables = self._boottime_ns(), dict(self._latest.tables)
        for readings in tables.values():
            self._remember_valid(readings)
        chosen, left_out = self._select_signals()
        fresh = {name: table for name, table in tables.items() if _is_fresh(table, now_ns)}
        labelled = _Labels(self._attributes())
        shown = (self._family(signal, fresh.get(signal.table), labelled) for signal in chosen)
        families = [*self._meta_families(left_out, len(tables) - len(fresh)), *filter(None, shown)]
        return [*families, *self._dcgm.families(tables)] if self._dcgm else families

    def _remember_valid(self, readings: TableSnapshot) -> None:
        """Add the valid cells; another set of devices starts over."""
        known = self._valid_cells.get(readings.table)
        shape = (readings.devices, readings.signal_ids)
        if known is None or (known.devices, known.signal_ids) != shape:
            self._valid_cells[readings.table] = _ValidCells(*shape, readings.valid)
        elif known.valid != readings.valid:
            both = int.from_bytes(known.valid, "little") | int.from_bytes(readings.valid, "little")
            known.valid = both.to_bytes(len(known.valid), "little")

    def _select_signals(self) -> tuple[list[Signal], int]:
        """Return the signals to expose and the number of series left out.

        A signal whose series do not all fit is left out, and the next signal is tried.
        """
        capacity, left_out, chosen = self._series_max - META_SERIES, 0, list[Signal]()
        for signal in SIGNALS_BY_PRIORITY:
            cells = self._valid_cells.get(signal.table)
            count = cells.count(signal.signal_id) if cells else 0
            series = max(count, RESERVED_SERIES.get(signal.name, 0))
            if series > capacity:
                left_out += count
            else:
                capacity -= series
                chosen += [signal] if count else []
        return chosen, left_out

    def _family(
        self, signal: Signal, readings: TableSnapshot | None, labelled: _Labels
    ) -> Family | None:
        if readings is None:
            return None
        samples = [
            (labelled(signal.device_kind, device), value_of(signal, value))
            for device, value in readings.values(signal.signal_id)
        ]
        return family_of(signal, samples) if samples else None

    def _meta_families(self, left_out: int, stale: int) -> Iterator[Family]:
        yield Family(
            "gangline_agent",
            "info",
            "",
            "identity of this agent",
            [(format_labels(self._info_labels), "1")],
        )
        help_text = "series left out because of metrics_series_max, the least important first"
        yield Family(
            "gangline_metrics_left_out_series", "gauge", "", help_text, [("", str(left_out))]
        )
        help_text = "tables left out because their last readings are old"
        yield Family("gangline_metrics_stale_tables", "gauge", "", help_text, [("", str(stale))])


class _Labels:
    """Cached label texts per device of an exposition."""

    def __init__(self, attributes: Attributes) -> None:
        self._attributes = attributes
        self._cache: dict[tuple[str, str], str] = {}

    def __call__(self, kind: str, key: str) -> str:
        labels = self._cache.get((kind, key))
        if labels is None:
            labels = format_labels(labels_for(kind, key, self._attributes))
            self._cache[kind, key] = labels
        return labels


def _is_fresh(readings: TableSnapshot, now_ns: int) -> bool:
    signals = TABLES.get(readings.table)
    if not signals:
        return False
    seconds = STALE_PERIODS * PERIOD_SECONDS[signals[0].pace] + STALE_SLACK_SECONDS
    return now_ns - readings.boottime_ns <= seconds * SECOND_NS
