"""Metrics of dcgm-exporter's default list under its names, labels and units (`metrics_names`).

Dashboards and alerts made for dcgm-exporter keep working. The rows are those that its
`default-counters.csv` enables: `dcgm` up to 4.8.2, `dcgm-4.8` in 4.8.3 and 4.8.4, `dcgm-4.9` since
4.9.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ...contract.exposition import Family, format_labels, format_number
from ...contract.signal import PERIOD_SECONDS
from ...contract.signals import BY_NAME
from ...contract.wire.telemetry_pb2 import HealthEvent
from ..latest import TableSnapshot

#: GPUs exposed. A host has at most 16.
GPUS_MAX = 32
#: A reading is exposed for this number of its periods plus the slack.
STALE_PERIODS, STALE_SLACK_SECONDS = 3, 2
SECOND_NS = 1_000_000_000

#: XIDs come as events: `_XIDS` is the name of an event, not of a signal.
_XIDS = "gpu.xid"
#: Name up to 4.8 -> name since 4.9; if the unit changed: the new unit and help text too.
_RENAMED = {
    "DCGM_FI_DEV_SM_CLOCK": ("DCGM_FI_DEV_SM_CLOCK_HERTZ", "Hz", "SM clock, Hz"),
    "DCGM_FI_DEV_MEM_CLOCK": ("DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", "Hz", "memory clock, Hz"),
    "DCGM_FI_DEV_MEMORY_TEMP": ("DCGM_FI_DEV_MEMORY_TEMP_CELSIUS",),
    "DCGM_FI_DEV_GPU_TEMP": ("DCGM_FI_DEV_GPU_TEMP_CELSIUS",),
    "DCGM_FI_DEV_POWER_USAGE": ("DCGM_FI_DEV_BOARD_POWER_WATTS",),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", "J", "energy since the driver was loaded, J"),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("DCGM_FI_DEV_PCIE_REPLAY_TOTAL",),
    "DCGM_FI_DEV_GPU_UTIL": ("DCGM_FI_DEV_GPU_UTIL_RATIO", "ratio", "GPU utilization, 0 to 1"),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("DCGM_FI_DEV_MEMORY_UTIL_RATIO", "ratio", "memory utilization, 0 to 1"),
    "DCGM_FI_DEV_ENC_UTIL": ("DCGM_FI_DEV_ENC_UTIL_RATIO", "ratio", "encoder utilization, 0 to 1"),
    "DCGM_FI_DEV_DEC_UTIL": ("DCGM_FI_DEV_DEC_UTIL_RATIO", "ratio", "decoder utilization, 0 to 1"),
    "DCGM_FI_DEV_XID_ERRORS": ("DCGM_FI_DEV_XID_ERROR",),
    "DCGM_FI_DEV_FB_FREE": ("DCGM_FI_DEV_FB_FREE_BYTES", "B", "memory free, bytes"),
    "DCGM_FI_DEV_FB_USED": ("DCGM_FI_DEV_FB_USED_BYTES", "B", "memory used without what the driver reserves, bytes"),
    "DCGM_FI_DEV_FB_RESERVED": ("DCGM_FI_DEV_FB_RESERVED_BYTES", "B", "memory that the driver reserves, bytes"),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL",),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ("DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL",),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("DCGM_FI_DEV_ROW_REMAP_FAILED",),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("DCGM_FI_PROF_TENSOR_UTIL_RATIO",),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("DCGM_FI_PROF_DRAM_UTIL_RATIO",),
}  # fmt: skip
_USED, _RESERVED = "gpu.memory_used_bytes", "gpu.memory_reserved_bytes"


class DcgmRow(NamedTuple):
    """A row of the list. The value of *signal* times *factor* is exposed."""

    name: str
    kind: str
    unit: str
    signal: str
    factor: float
    help: str


ROWS = (
    DcgmRow("DCGM_FI_DEV_SM_CLOCK", "gauge", "MHz", "gpu.sm_clock_hertz", 1e-6, "SM clock, MHz"),
    DcgmRow("DCGM_FI_DEV_MEM_CLOCK", "gauge", "MHz", "gpu.memory_clock_hertz", 1e-6, "memory clock, MHz"),
    DcgmRow("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "C", "gpu.memory_temperature_celsius", 1, "memory temperature, C"),
    DcgmRow("DCGM_FI_DEV_GPU_TEMP", "gauge", "C", "gpu.temperature_celsius", 1, "GPU temperature, C"),
    DcgmRow("DCGM_FI_DEV_POWER_USAGE", "gauge", "W", "gpu.power_watts", 1, "power, W"),
    DcgmRow("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "mJ", "gpu.energy_joules", 1e3, "energy since the driver was loaded, mJ"),
    DcgmRow("DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "counter", "KB", "gpu_fast.pcie_transmitted_bytes_per_second", 1e-3, "PCIe traffic from the GPU, KB/s"),
    DcgmRow("DCGM_FI_DEV_PCIE_RX_THROUGHPUT", "counter", "KB", "gpu_fast.pcie_received_bytes_per_second", 1e-3, "PCIe traffic to the GPU, KB/s"),
    DcgmRow("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "", "gpu.pcie_replays_count", 1, "PCIe packets resent"),
    DcgmRow("DCGM_FI_DEV_GPU_UTIL", "gauge", "%", "gpu.utilization_ratio", 100, "GPU utilization, %"),
    DcgmRow("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "%", "gpu.memory_utilization_ratio", 100, "memory utilization, %"),
    DcgmRow("DCGM_FI_DEV_ENC_UTIL", "gauge", "%", "gpu.encoder_utilization_ratio", 100, "encoder utilization, %"),
    DcgmRow("DCGM_FI_DEV_DEC_UTIL", "gauge", "%", "gpu.decoder_utilization_ratio", 100, "decoder utilization, %"),
    DcgmRow("DCGM_FI_DEV_XID_ERRORS", "gauge", "", _XIDS, 1, "last XID that the agent has seen; 0: none"),
    DcgmRow("DCGM_FI_DEV_FB_FREE", "gauge", "MiB", "gpu.memory_free_bytes", 2**-20, "memory free, MiB"),
    DcgmRow("DCGM_FI_DEV_FB_USED", "gauge", "MiB", "gpu.memory_used_bytes", 2**-20, "memory used without what the driver reserves, MiB"),
    DcgmRow("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "", "gpu.remapped_uncorrectable_rows", 1, "rows remapped for uncorrectable errors"),
    DcgmRow("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "", "gpu.remapped_correctable_rows", 1, "rows remapped for correctable errors"),
    DcgmRow("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "", "gpu.remap_failed_state", 1, "whether a row could not be remapped"),
)  # fmt: skip

#: Rows since 4.8.3. They replace NVML's PCIe throughputs.
_ROWS_SINCE_4_8 = (
    DcgmRow("DCGM_FI_DEV_FB_RESERVED", "gauge", "MiB", "gpu.memory_reserved_bytes", 2**-20, "memory that the driver reserves, MiB"),
    DcgmRow("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "", "gpu_fast.tensor_active_ratio", 1, "share of cycles in which a tensor pipe was active"),
    DcgmRow("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "", "gpu_fast.memory_bandwidth_ratio", 1, "share of cycles in which the memory interface was active"),
    DcgmRow("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "B/s", "gpu_fast.pcie_transmitted_bytes_per_second", 1, "PCIe traffic from the GPU, bytes per second"),
    DcgmRow("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", "B/s", "gpu_fast.pcie_received_bytes_per_second", 1, "PCIe traffic to the GPU, bytes per second"),
)  # fmt: skip


def _renamed(row: DcgmRow) -> DcgmRow:
    """Return the row of 4.9. The units that changed in 4.9 equal our signals' units: factor 1."""
    name, *unit_and_help = _RENAMED.get(row.name, (row.name,))
    if not unit_and_help:
        return row._replace(name=name)
    unit, message = unit_and_help
    return row._replace(name=name, unit=unit, factor=1, help=message)


class DcgmNames(NamedTuple):
    """Names of a dcgm-exporter version: rows, and the labels of host and driver version."""

    rows: Sequence[DcgmRow]
    host_label: str
    driver_label: str


_NO_NVML_THROUGHPUT = [
    row for row in ROWS if not row.name.startswith("DCGM_FI_DEV_PCIE_") or row.unit != "KB"
]
_ROWS_4_8 = (*_NO_NVML_THROUGHPUT, *_ROWS_SINCE_4_8)
_CAPACITY = DcgmRow(
    "DCGM_FI_DEV_FB_CAPACITY_BYTES", "gauge", "B", "gpu.memory_total_bytes", 1, "memory, bytes"
)
#: Value of the setting `metrics_names` -> names.
NAMES = {
    "dcgm": DcgmNames(ROWS, "Hostname", ""),
    "dcgm-4.8": DcgmNames(_ROWS_4_8, "hostname", "DCGM_FI_DRIVER_VERSION"),
    "dcgm-4.9": DcgmNames(
        (*map(_renamed, _ROWS_4_8), _CAPACITY), "hostname", "DCGM_FI_SYSTEM_DRIVER_VERSION"
    ),
}

Attributes = Mapping[tuple[str, str], Mapping[str, str]]


class DcgmExposition:
    """Makes the families. `observe` is for any thread, `families` for a single thread."""

    def __init__(
        self,
        host: str,
        boottime_ns: Callable[[], int],
        attributes: Callable[[], Attributes],
        names: DcgmNames = NAMES["dcgm"],
    ) -> None:
        self._host, self._boottime_ns, self._attributes = host, boottime_ns, attributes
        self._names = names
        #: Device -> the event's ordinal number, and the XID.
        self._xids: dict[str, tuple[int, int]] = {}
        self._xids_count = 0

    def observe(self, event: HealthEvent) -> None:
        """Store a GPU's last XID, by UUID (NVML, DCGM) or PCI address (kernel log)."""
        if event.name == _XIDS and (event.device in self._xids or len(self._xids) < 2 * GPUS_MAX):
            self._xids_count += 1
            self._xids[event.device] = self._xids_count, event.code

    def families(self, tables: Mapping[str, TableSnapshot]) -> Iterator[Family]:
        """Yield the families for which there are fresh readings. Never raises."""
        attributes = self._attributes()
        # AMD GPUs come last: nvidia-smi does not count them.
        gpus = sorted(
            (has.get("vendor") == "AMD", has.get("pci_address", ""), key)
            for (kind, key), has in attributes.items()
            if kind == "gpu"
        )[:GPUS_MAX]
        of_host = {self._names.host_label: self._host}
        driver = next(
            (
                has.get("nvidia_driver_version")
                for (kind, _), has in attributes.items()
                if kind == "host"
            ),
            "",
        )
        if self._names.driver_label and driver:
            of_host[self._names.driver_label] = driver
        labels = {
            key: _labels(number, key, attributes["gpu", key], of_host)
            for number, (_, _, key) in enumerate(gpus)
        }
        xids = {
            key: float(max(self._xids.get(name, (0, 0)) for name in (key, address))[1])
            for _, address, key in gpus
        }
        for row in self._names.rows:
            values = self._values(row, tables, xids)
            samples = [
                (labels[key], format_number(value)) for key, value in values if key in labels
            ]
            if samples:
                kind = "bare_counter" if row.kind == "counter" else row.kind
                yield Family(row.name, kind, "", row.help, samples)

    def _values(
        self, row: DcgmRow, tables: Mapping[str, TableSnapshot], xids: Mapping[str, float]
    ) -> list[tuple[str, float]]:
        if row.signal == _XIDS:
            return list(xids.items())
        values = self._fresh(row.signal, tables)
        if row.signal == _USED:
            reserved = self._fresh(_RESERVED, tables)
            values = {
                key: max(0.0, value - reserved.get(key, 0.0)) for key, value in values.items()
            }
        return [(key, _rounded(value * row.factor)) for key, value in values.items()]

    def _fresh(self, name: str, tables: Mapping[str, TableSnapshot]) -> dict[str, float]:
        signal = BY_NAME[name]
        table = tables.get(signal.table)
        # A signal sent on change is sent in full once a minute.
        period = 60 if signal.on_change else PERIOD_SECONDS[signal.pace]
        seconds = STALE_PERIODS * period + STALE_SLACK_SECONDS
        if table is None or self._boottime_ns() - table.boottime_ns > seconds * SECOND_NS:
            return {}
        return {key: float(value) for key, value in table.values(signal.signal_id)}


def _rounded(value: float) -> float:
    """Return *value*, rounded if a binary fraction such as 0.1 moved it off a whole number."""
    return float(round(value)) if abs(value - round(value)) < 1e-6 * max(1.0, abs(value)) else value


def _labels(number: int, uuid: str, has: Mapping[str, str], of_host: Mapping[str, str]) -> str:
    """Return dcgm-exporter's labels. *number*: the GPU's number in nvidia-smi."""
    domain, _, rest = has.get("pci_address", "").partition(":")
    return format_labels(
        {
            "gpu": str(number),
            "UUID": uuid,
            "pci_bus_id": f"{domain:0>8}:{rest}".upper() if rest else "",
            "device": f"nvidia{has.get('minor_number', number)}",
            "modelName": has.get("name", ""),
            **of_host,
        }
    )
