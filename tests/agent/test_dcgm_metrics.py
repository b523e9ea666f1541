"""/metrics under the names of dcgm-exporter: name, unit and labels as its boards expect them."""

from __future__ import annotations

import re

import pytest

from gangline.agent.config import AgentConfig
from gangline.agent.latest import LatestReadings
from gangline.agent.local.dcgm_metrics import NAMES, ROWS, DcgmExposition
from gangline.agent.local.exposition import Exposition
from gangline.agent.local.host_status import judged_tables
from gangline.contract.exposition import ExpositionFormat, render_exposition
from gangline.contract.settings import load
from gangline.contract.signals import BY_NAME
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.agent.test_exposition import ABOUT, reading

UUID = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"
GPU = {"pci_address": "0000:9b:00.0", "minor_number": "3", "name": "NVIDIA A100-SXM4-80GB"}
LABELS = f'{{gpu="0",UUID="{UUID}",pci_bus_id="00000000:9B:00.0",device="nvidia3",modelName="NVIDIA A100-SXM4-80GB",Hostname="node-1"}}'  # fmt: skip
#: Rows of the list for which the agent has no reading.
WITHOUT_READING = ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_VGPU_LICENSE_STATUS")
#: The enabled rows of dcgm-exporter's default-counters.csv: name, type, and the unit of its help
#: text.
DEFAULT_LIST = {
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", "MHz"), "DCGM_FI_DEV_MEM_CLOCK": ("gauge", "MHz"),
    "DCGM_FI_DEV_MEMORY_TEMP": ("gauge", "C"), "DCGM_FI_DEV_GPU_TEMP": ("gauge", "C"),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", "W"), "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("counter", "mJ"),
    "DCGM_FI_DEV_PCIE_TX_THROUGHPUT": ("counter", "KB"), "DCGM_FI_DEV_PCIE_RX_THROUGHPUT": ("counter", "KB"),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("counter", ""), "DCGM_FI_DEV_GPU_UTIL": ("gauge", "%"),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("gauge", "%"), "DCGM_FI_DEV_ENC_UTIL": ("gauge", "%"),
    "DCGM_FI_DEV_DEC_UTIL": ("gauge", "%"), "DCGM_FI_DEV_XID_ERRORS": ("gauge", ""),
    "DCGM_FI_DEV_FB_FREE": ("gauge", "MiB"), "DCGM_FI_DEV_FB_USED": ("gauge", "MiB"),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": ("counter", ""), "DCGM_FI_DEV_VGPU_LICENSE_STATUS": ("gauge", ""),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("counter", ""),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ("counter", ""), "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("gauge", ""),
}  # fmt: skip


VALUES = {
    "gpu.sm_clock_hertz": 1.41e9, "gpu.memory_clock_hertz": 1.593e9, "gpu.temperature_celsius": 41.0,
    "gpu.memory_temperature_celsius": 52.0, "gpu.power_watts": 312.5, "gpu.energy_joules": 1234.567,
    "gpu.utilization_ratio": 0.29, "gpu.memory_utilization_ratio": 0.07, "gpu.memory_used_bytes": 3 * 2.0**30,
    "gpu.memory_free_bytes": 77 * 2.0**30, "gpu.memory_reserved_bytes": 2.0**30,
    "gpu.encoder_utilization_ratio": 0.0, "gpu.decoder_utilization_ratio": 0.5,
    "gpu.remapped_uncorrectable_rows": 2, "gpu.remapped_correctable_rows": 0, "gpu.remap_failed_state": 0,
    "gpu.pcie_replays_count": 17, "gpu_fast.pcie_transmitted_bytes_per_second": 2.5e9,
    "gpu_fast.pcie_received_bytes_per_second": 1e6,
}  # fmt: skip

#: The same for 4.8.4 and 4.9.0, from NVIDIA's metrics reference and release notes.
OF_4_8 = {
    **{name: row for name, row in DEFAULT_LIST.items() if "THROUGHPUT" not in name},
    "DCGM_FI_DEV_FB_RESERVED": ("gauge", "MiB"), "DCGM_FI_PROF_PCIE_TX_BYTES": ("gauge", "B/s"),
    "DCGM_FI_PROF_PCIE_RX_BYTES": ("gauge", "B/s"), "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("gauge", ""),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("gauge", ""), "DCGM_FI_PROF_DRAM_ACTIVE": ("gauge", ""),
}  # fmt: skip
OF_4_9 = {
    "DCGM_FI_DEV_SM_CLOCK_HERTZ": ("gauge", "Hz"), "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ": ("gauge", "Hz"),
    "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS": ("gauge", "C"), "DCGM_FI_DEV_GPU_TEMP_CELSIUS": ("gauge", "C"),
    "DCGM_FI_DEV_BOARD_POWER_WATTS": ("gauge", "W"), "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": ("counter", "J"),
    "DCGM_FI_DEV_PCIE_REPLAY_TOTAL": ("counter", ""), "DCGM_FI_DEV_GPU_UTIL_RATIO": ("gauge", "ratio"),
    "DCGM_FI_DEV_MEMORY_UTIL_RATIO": ("gauge", "ratio"), "DCGM_FI_DEV_ENC_UTIL_RATIO": ("gauge", "ratio"),
    "DCGM_FI_DEV_DEC_UTIL_RATIO": ("gauge", "ratio"), "DCGM_FI_DEV_XID_ERROR": ("gauge", ""),
    "DCGM_FI_DEV_FB_FREE_BYTES": ("gauge", "B"), "DCGM_FI_DEV_FB_USED_BYTES": ("gauge", "B"),
    "DCGM_FI_DEV_FB_RESERVED_BYTES": ("gauge", "B"), "DCGM_FI_DEV_FB_CAPACITY_BYTES": ("gauge", "B"),
    "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND": ("gauge", ""), "DCGM_FI_DEV_VGPU_LICENSE_STATUS": ("gauge", ""),
    "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL": ("counter", ""),
    "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL": ("counter", ""), "DCGM_FI_DEV_ROW_REMAP_FAILED": ("gauge", ""),
    "DCGM_FI_PROF_PCIE_TX_BYTES": ("gauge", "B/s"), "DCGM_FI_PROF_PCIE_RX_BYTES": ("gauge", "B/s"),
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO": ("gauge", ""), "DCGM_FI_PROF_TENSOR_UTIL_RATIO": ("gauge", ""),
    "DCGM_FI_PROF_DRAM_UTIL_RATIO": ("gauge", ""),
}  # fmt: skip
#: Rows of both versions without a reading.
MISSING = re.compile("NVLINK|VGPU|GR_ENGINE")


@pytest.fixture
def latest() -> LatestReadings:
    latest_readings, tables = LatestReadings(), dict[str, dict[str, list[float | None]]]()
    for name, value in VALUES.items():
        tables.setdefault(BY_NAME[name].table, {})[BY_NAME[name].column] = [value]
    for table, values in tables.items():
        latest_readings.update(0, [reading(table, [UUID], **values)])
    return latest_readings


def text(latest: LatestReadings, form: ExpositionFormat, *events: HealthEvent) -> str:
    attributes = {("gpu", UUID): GPU}
    dcgm = DcgmExposition("node-1", lambda: 0, lambda: attributes)
    for event in events:
        dcgm.observe(event)
    shown = Exposition(latest, lambda: 0, lambda: attributes, ABOUT, 400, dcgm)
    return render_exposition(shown.families(), form).decode()


@pytest.mark.parametrize(("version", "listed"), [("dcgm-4.8", OF_4_8), ("dcgm-4.9", OF_4_9)])
def test_every_row_of_newer_lists(version: str, listed: dict[str, tuple[str, str]]) -> None:
    """4.9 renamed 23 fields, and a dashboard for it found nothing."""
    ours = {row.name: (row.kind, row.unit) for row in NAMES[version].rows}
    assert ours == {name: row for name, row in listed.items() if not MISSING.search(name)}


def test_names_units_and_labels_of_newer_versions(latest: LatestReadings) -> None:
    """`Hostname` became `hostname` in 4.8.3; clocks and energy have base units since 4.9."""
    attributes = {("gpu", UUID): GPU, ("host", "node-1"): {"nvidia_driver_version": "580.159.04"}}
    lines: dict[str, list[str]] = {}
    for version in ("dcgm-4.8", "dcgm-4.9"):
        dcgm = DcgmExposition("node-1", lambda: 0, lambda: attributes, NAMES[version])
        shown = Exposition(latest, lambda: 0, lambda: attributes, ABOUT, 400, dcgm)
        lines[version] = (
            render_exposition(shown.families(), ExpositionFormat.TEXT).decode().splitlines()
        )
    of_4_8 = LABELS.replace(
        'Hostname="node-1"', 'hostname="node-1",DCGM_FI_DRIVER_VERSION="580.159.04"'
    )
    of_4_9 = of_4_8.replace("DCGM_FI_DRIVER", "DCGM_FI_SYSTEM_DRIVER")
    assert {
        f"DCGM_FI_DEV_SM_CLOCK{of_4_8} 1410.0", f"DCGM_FI_DEV_FB_USED{of_4_8} 2048.0",
        f"DCGM_FI_DEV_FB_RESERVED{of_4_8} 1024.0", f"DCGM_FI_PROF_PCIE_TX_BYTES{of_4_8} 2500000000.0",
    } <= set(lines["dcgm-4.8"])  # fmt: skip
    assert {
        f"DCGM_FI_DEV_SM_CLOCK_HERTZ{of_4_9} 1410000000.0", f"DCGM_FI_DEV_FB_USED_BYTES{of_4_9} {2 * 2.0**30}",
        f"DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL{of_4_9} 1234.567", f"DCGM_FI_DEV_GPU_UTIL_RATIO{of_4_9} 0.29",
        f"DCGM_FI_DEV_BOARD_POWER_WATTS{of_4_9} 312.5", f"DCGM_FI_DEV_XID_ERROR{of_4_9} 0.0",
    } <= set(lines["dcgm-4.9"])  # fmt: skip
    assert "# TYPE DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL counter" in lines["dcgm-4.9"]


def test_every_row_of_the_default_list_is_thought_of() -> None:
    ours = {row.name: (row.kind, row.unit) for row in ROWS}
    assert ours | {name: DEFAULT_LIST[name] for name in WITHOUT_READING} == DEFAULT_LIST


def test_values_are_in_the_units_of_the_list(latest: LatestReadings) -> None:
    """The same PromQL has the same result for both: names, labels, units, no `_total`."""
    lines = text(latest, ExpositionFormat.TEXT).splitlines()
    result = {
        m[1]: (m[2], float(m[3]))
        for line in lines
        if (m := re.fullmatch(r"(DCGM_\w+)(\{.*\}) (\S+)", line))
    }
    assert {name: value for name, (_, value) in result.items()} == {
        "DCGM_FI_DEV_SM_CLOCK": 1410, "DCGM_FI_DEV_MEM_CLOCK": 1593, "DCGM_FI_DEV_MEMORY_TEMP": 52,
        "DCGM_FI_DEV_GPU_TEMP": 41, "DCGM_FI_DEV_POWER_USAGE": 312.5,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1_234_567, "DCGM_FI_DEV_PCIE_TX_THROUGHPUT": 2_500_000,
        "DCGM_FI_DEV_PCIE_RX_THROUGHPUT": 1000, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 17,
        "DCGM_FI_DEV_GPU_UTIL": 29, "DCGM_FI_DEV_MEM_COPY_UTIL": 7, "DCGM_FI_DEV_ENC_UTIL": 0,
        "DCGM_FI_DEV_DEC_UTIL": 50, "DCGM_FI_DEV_XID_ERRORS": 0, "DCGM_FI_DEV_FB_FREE": 78848,
        "DCGM_FI_DEV_FB_USED": 2048, "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 2,
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 0, "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0,
    }  # fmt: skip
    assert {labels for labels, _ in result.values()} == {LABELS}
    for name, (kind, _) in DEFAULT_LIST.items():
        assert name in WITHOUT_READING or f"# TYPE {name} {kind}" in lines
    assert any(line.startswith("gangline_gpu_sm_clock_hertz") for line in lines), (
        "ours are beside them"
    )


def test_openmetrics_has_the_same_names(latest: LatestReadings) -> None:
    """A counter of OpenMetrics ends in `_total`: dcgm-exporter's boards do not find that name."""
    lines = text(latest, ExpositionFormat.OPENMETRICS).splitlines()
    assert f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{LABELS} 1234567.0" in lines
    assert "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION unknown" in lines


def test_the_last_xid_is_shown(latest: LatestReadings) -> None:
    event = HealthEvent(name="gpu.xid", device=UUID, code=79)
    assert f"DCGM_FI_DEV_XID_ERRORS{LABELS} 79.0" in text(latest, ExpositionFormat.TEXT, event)


def test_an_xid_of_the_kernel_log_names_the_gpu_by_its_address(latest: LatestReadings) -> None:
    """The kernel log reports an XID first, without a UUID: the metric stayed 0."""
    of_log = HealthEvent(name="gpu.xid", device=GPU["pci_address"], code=95)
    of_nvml = HealthEvent(name="gpu.xid", device=UUID, code=79)
    for events, code in (((of_log,), 95), ((of_nvml, of_log), 95), ((of_log, of_nvml), 79)):
        assert f"DCGM_FI_DEV_XID_ERRORS{LABELS} {code}.0" in text(
            latest, ExpositionFormat.TEXT, *events
        )


def test_amds_gpus_do_not_shift_the_numbers_of_nvidias(latest: LatestReadings) -> None:
    """`gpu` is the number that nvidia-smi gives: an AMD GPU at a lower address took it."""
    amd = ("gpu", "GPU-8f3c9c1d2e4a5b60")
    attributes = {("gpu", UUID): GPU, amd: {"vendor": "AMD", "pci_address": "0000:01:00.0"}}
    dcgm = DcgmExposition("node-1", lambda: 0, lambda: attributes)
    shown = Exposition(latest, lambda: 0, lambda: attributes, ABOUT, 400, dcgm)
    lines = render_exposition(shown.families(), ExpositionFormat.TEXT).decode()
    assert f"DCGM_FI_DEV_GPU_TEMP{LABELS} 41.0" in lines
    assert 'DCGM_FI_DEV_XID_ERRORS{gpu="1",UUID="GPU-8f3c9c1d2e4a5b60"' in lines


def test_old_readings_are_not_shown(latest: LatestReadings) -> None:
    dcgm = DcgmExposition("node-1", lambda: 3600 * 10**9, lambda: {("gpu", UUID): GPU})
    names = [family.name for family in dcgm.families(latest.tables)]
    assert names == ["DCGM_FI_DEV_XID_ERRORS"]


def test_their_tables_are_kept_where_they_are_asked_for() -> None:
    asked = load(AgentConfig, None, ["metrics_listen=127.0.0.1:9476", "metrics_names=dcgm"])
    wanted = judged_tables(asked)
    tables = {BY_NAME[row.signal].table for row in ROWS if row.signal != "gpu.xid"}
    assert wanted is None or all(table in wanted for table in tables)
