"""The last readings as families of samples: which series are shown, and by what labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ...fingerprints.catalogue import PERIOD_SECONDS, TABLES, Signal
from ...fingerprints.openmetrics import Family, labels_of
from ..latest import Latest, Readings
from .importance import IN_ORDER, RESERVED
from .openmetrics import family_of, value_of

SECOND_NS = 1_000_000_000
#: A table is left out once its readings are older than this many of its periods and this much more.
STALE_PERIODS = 3
STALE_SLACK_SECONDS = 2
#: The series that this module adds of its own.
OWN_SERIES = 3

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PART = re.compile(r"(?P<word>link|c2c|gi|ci|)(?P<number>[0-9]{1,10})")
_PART_LABELS = {
    "link": "link",
    "c2c": "link",
    "gi": "gpu_instance",
    "ci": "compute_instance",
    "": "pid",
}
#: Of these kinds there is one on a host, and its key says nothing more.
_ONE_A_HOST = frozenset(
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
#: What other keys are called; all that are not here are a `device`.
_KEY_LABELS = {
    "collector": "collector",
    "filesystem": "mountpoint",
    "nfs": "mountpoint",
    "lustre": "mountpoint",
    "lustre_target": "target",
    "service": "service",
}
#: Kinds whose inventory goes by another name.
_INVENTORIED_AS = {"nic": "net", "link": "net", "bond": "net"}

#: (kind, key) of a device -> its attributes, as the inventory has them.
Attributes = Mapping[tuple[str, str], Mapping[str, str]]


def labels_for(kind: str, key: str, attributes: Attributes) -> dict[str, str]:
    """Return the labels of a device: by UUID, PCI address, name and port, never by an index alone."""
    first, _, rest = key.partition("/")
    if kind in _ONE_A_HOST:
        return {}
    if first.startswith(("GPU-", "MIG-")):
        return {"uuid": first} | _address("gpu", first, attributes) | _within(rest)
    if _PCI_ADDRESS.fullmatch(key):
        return {"pci_address": key}
    if kind == "rdma":
        return {"device": first, "port": rest} | _address(kind, key, attributes)
    inventoried = _INVENTORIED_AS.get(kind, kind)
    return {_KEY_LABELS.get(kind, "device"): key} | _address(inventoried, key, attributes)


def _within(rest: str) -> dict[str, str]:
    """Return the labels of what follows a GPU's UUID: `link3`, `gi1/ci0/PID`."""
    parts = rest.split("/") if rest else []
    matches = [match for part in parts if (match := _PART.fullmatch(part))]
    labels = {_PART_LABELS[match["word"]]: match["number"] for match in matches}
    return labels if len(labels) == len(parts) else {"device": rest}


def _address(kind: str, key: str, attributes: Attributes) -> dict[str, str]:
    """Return the PCI address, where the inventory knows it; a MIG device has that of its GPU."""
    known = attributes.get((kind, key)) or attributes.get(("mig", key)) or {}
    address = known.get("pci_address", "")
    if not address and (gpu := known.get("gpu", "")):
        address = attributes.get(("gpu", gpu), {}).get("pci_address", "")
        return {"gpu_uuid": gpu} | ({"pci_address": address} if address else {})
    return {"pci_address": address} if address else {}


@dataclass(slots=True)
class _Known:
    """Which cells of a table were ever valid, since its devices are these."""

    devices: tuple[str, ...]
    signal_ids: tuple[int, ...]
    valid: bytes

    def count(self, signal_id: int) -> int:
        rows = len(self.devices)
        at = self.signal_ids.index(signal_id) * rows if signal_id in self.signal_ids else -1
        return self.valid.count(1, at, at + rows) if at >= 0 else 0


class Exposition:
    """Chooses and names the series. For one thread; it reads `Latest` and blocks nobody.

    A signal is shown for all of its devices or for none. It counts with every device that ever had a
    value of it, also while there is none: what falls silent for a moment makes no room for others,
    so that series do not come and go.
    """

    def __init__(
        self,
        latest: Latest,
        boottime_ns: Callable[[], int],
        attributes: Callable[[], Attributes],
        about: Mapping[str, str],
        series_max: int,
    ) -> None:
        """*attributes*: those of the devices as of now; *about*: the agent's version and host."""
        self._latest = latest
        self._boottime_ns = boottime_ns
        self._attributes = attributes
        self._about = dict(about)
        self._series_max = series_max
        self._known: dict[str, _Known] = {}

    def families(self) -> list[Family]:
        """Return what is to be shown now, of at most `series_max` samples."""
        now_ns, tables = self._boottime_ns(), dict(self._latest.tables)
        for readings in tables.values():
            self._learn(readings)
        chosen, left_out = self._chosen()
        fresh = {name: each for name, each in tables.items() if _is_fresh(each, now_ns)}
        labelled = _Labels(self._attributes())
        shown = (self._family(signal, fresh.get(signal.table), labelled) for signal in chosen)
        return [*self._own(left_out, len(tables) - len(fresh)), *filter(None, shown)]

    def _learn(self, readings: Readings) -> None:
        """Add to what was ever valid. Another set of devices begins anew."""
        known = self._known.get(readings.table)
        shape = (readings.devices, readings.signal_ids)
        if known is None or (known.devices, known.signal_ids) != shape:
            self._known[readings.table] = _Known(*shape, readings.valid)
        elif known.valid != readings.valid:
            both = int.from_bytes(known.valid, "little") | int.from_bytes(readings.valid, "little")
            known.valid = both.to_bytes(len(known.valid), "little")

    def _chosen(self) -> tuple[list[Signal], int]:
        """Return the signals to show and how many series are left out. One that does not fit whole
        is left out, and the next is tried."""
        room, left_out, chosen = self._series_max - OWN_SERIES, 0, list[Signal]()
        for signal in IN_ORDER:
            known = self._known.get(signal.table)
            count = known.count(signal.signal_id) if known else 0
            wanted = max(count, RESERVED.get(signal.name, 0))
            if wanted > room:
                left_out += count
            else:
                room -= wanted
                chosen += [signal] if count else []
        return chosen, left_out

    def _family(
        self, signal: Signal, readings: Readings | None, labelled: _Labels
    ) -> Family | None:
        if readings is None:
            return None
        samples = [
            (labelled(signal.device_kind, device), value_of(signal, value))
            for device, value in readings.values(signal.signal_id)
        ]
        return family_of(signal, samples) if samples else None

    def _own(self, left_out: int, stale: int) -> Iterator[Family]:
        yield Family(
            "gangline_agent", "info", "", "which agent this is", [(labels_of(self._about), "1")]
        )
        words = "series that metrics_series_max left out, the least important first"
        yield Family("gangline_metrics_left_out_series", "gauge", "", words, [("", str(left_out))])
        words = "tables left out because their last readings are old"
        yield Family("gangline_metrics_stale_tables", "gauge", "", words, [("", str(stale))])


class _Labels:
    """Labels as text, made once for each device of an exposition."""

    def __init__(self, attributes: Attributes) -> None:
        self._attributes = attributes
        self._made: dict[tuple[str, str], str] = {}

    def __call__(self, kind: str, key: str) -> str:
        made = self._made.get((kind, key))
        if made is None:
            made = labels_of(labels_for(kind, key, self._attributes))
            self._made[kind, key] = made
        return made


def _is_fresh(readings: Readings, now_ns: int) -> bool:
    signals = TABLES.get(readings.table)
    if not signals:
        return False
    seconds = STALE_PERIODS * PERIOD_SECONDS[signals[0].pace] + STALE_SLACK_SECONDS
    return now_ns - readings.boottime_ns <= seconds * SECOND_NS
