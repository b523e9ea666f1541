"""`/metrics` as text: names and labels, priorities, stale readings, and unusual characters."""

from __future__ import annotations

import json
import math
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import parser as plain_parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from gangline.agent.latest import LatestReadings
from gangline.agent.local import metric_priority
from gangline.agent.local.exposition import META_SERIES, Exposition, labels_for, name_of, unit_of
from gangline.contract.block import Block, is_float
from gangline.contract.exposition import (
    ExpositionFormat,
    Family,
    format_labels,
    format_number,
    render_exposition,
)
from gangline.contract.signal import Kind
from gangline.contract.signals import BY_NAME, SIGNALS, TABLES
from tests.promtool import PROMTOOL, needs_promtool

HOSTS = Path(__file__).parent.parent / "hosts"
SECOND_NS = 1_000_000_000
GPU = "GPU-00000000-1111-2222-3333-444444444444"
ABOUT = {"version": "0.1.0", "host": "gpu-017"}

Sample = tuple[str, dict[str, str], float]

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def host(name: str) -> LatestReadings:
    """Return the last readings of a host of `tests/hosts`, all taken at boot time 0."""
    tables: dict[str, dict[str, dict[str, Any] | None]] = json.loads(
        (HOSTS / f"{name}.json").read_text()
    )["tables"]
    latest = LatestReadings()
    for table, rows in tables.items():
        block = Block(table, list(rows))
        for row, values in enumerate(rows.values()):
            for column, signal in enumerate(TABLES[table]):
                put(block, column, row, (values or {}).get(signal.column))
        latest.update(0, [block])
    return latest


def put(block: Block, column: int, row: int, value: float | None) -> None:
    if is_float(block.signal_ids[column]):
        block.put_float(column, row, value)
    else:
        block.put_int(column, row, None if value is None else int(value))


def reading(table: str, devices: list[str], **values: list[float | None]) -> Block:
    """Return a block of *table* with some of its columns filled, a value per device."""
    block = Block(table, devices)
    columns = {signal.column: index for index, signal in enumerate(TABLES[table])}
    for name, column_values in values.items():
        for row, value in enumerate(column_values):
            put(block, columns[name], row, value)
    return block


def exposition(latest: LatestReadings, series_max: int = 400, **more: Any) -> Exposition:
    arguments: dict[str, Any] = {"boottime_ns": lambda: 0, "attributes": dict} | more
    return Exposition(latest, info_labels=ABOUT, series_max=series_max, **arguments)


def samples(
    families: list[Family], form: ExpositionFormat = ExpositionFormat.OPENMETRICS
) -> list[Sample]:
    """Return the samples parsed by Prometheus' own Python client."""
    parse: Any = openmetrics_parser if form is ExpositionFormat.OPENMETRICS else plain_parser
    text = render_exposition(families, form).decode()
    return [
        (sample.name, sample.labels, sample.value)
        for family in parse.text_string_to_metric_families(text)
        for sample in family.samples
    ]


@pytest.mark.parametrize("form", ExpositionFormat)
@pytest.mark.parametrize("name", ["h100-ib", "h200-roce", "gb200-nvl72", "plain-vm"])
def test_every_host_is_parsed_by_prometheus_client(name: str, form: ExpositionFormat) -> None:
    """One family that Prometheus cannot read costs it the whole scrape of the host."""
    families = exposition(host(name), series_max=100_000).families()
    read = samples(families, form)
    assert len(read) == sum(len(family.samples) for family in families) > 90
    assert len({(name, tuple(labels.items())) for name, labels, _ in read}) == len(read)


@needs_promtool
@pytest.mark.parametrize("name", ["h100-ib", "h200-roce", "gb200-nvl72", "plain-vm"])
def test_every_host_is_parsed_by_promtool(name: str) -> None:
    """promtool uses Prometheus' own parser, and also lints names."""
    text = render_exposition(
        exposition(host(name), series_max=100_000).families(), ExpositionFormat.TEXT
    )
    checked = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=text, check=False, capture_output=True, timeout=60
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_names_are_those_of_the_catalogue_and_no_two_are_alike() -> None:
    names = Counter(name_of(signal) for signal in metric_priority.SIGNALS_BY_PRIORITY)
    assert names.most_common(1)[0][1] == 1
    assert len(names) == sum(
        signal.kind is not Kind.EVENT and signal.column != "counter_epoch_count"
        for signal in SIGNALS
    )
    named = {
        "gpu.sm_clock_hertz": ("gangline_gpu_sm_clock_hertz", "hertz"),
        "gpu.violation_power_nanoseconds": ("gangline_gpu_violation_power_seconds", "seconds"),
        "agent.reconnects_count": ("gangline_agent_reconnects", ""),
        "rdma.port_state": ("gangline_rdma_port_state", ""),
        "rdma.received_bytes": ("gangline_rdma_received_bytes", "bytes"),
    }
    for name, expected in named.items():
        assert (name_of(BY_NAME[name]), unit_of(BY_NAME[name])) == expected
    for signal in metric_priority.SIGNALS_BY_PRIORITY:
        assert name_of(signal).endswith(unit_of(signal))


def test_what_is_named_as_important_is_in_the_catalogue_once() -> None:
    """A signal was renamed, and the alarm on it lost its series to a fan's speed."""
    assert len(set(metric_priority.METRIC_PRIORITY)) == len(metric_priority.METRIC_PRIORITY)
    shown = [signal.name for signal in metric_priority.SIGNALS_BY_PRIORITY]
    assert shown[: len(metric_priority.METRIC_PRIORITY)] == list(metric_priority.METRIC_PRIORITY)


@pytest.mark.parametrize(
    ("kind", "key", "labels"),
    [
        ("gpu", GPU, {"uuid": GPU, "pci_address": "0000:9b:00.0"}),
        ("gpu", "0000:9c:00.0", {"pci_address": "0000:9c:00.0"}),
        ("nvlink", f"{GPU}/link3", {"uuid": GPU, "pci_address": "0000:9b:00.0", "link": "3"}),
        ("gpu_process", f"{GPU}/47", {"uuid": GPU, "pci_address": "0000:9b:00.0", "pid": "47"}),
        (
            "gpu_process",
            "GPU-x/gi1/ci0/47",
            {"uuid": "GPU-x", "gpu_instance": "1", "compute_instance": "0", "pid": "47"},
        ),
        ("gpu_process", "GPU-x/gi1/odd", {"uuid": "GPU-x", "device": "gi1/odd"}),
        ("mig", "MIG-x", {"uuid": "MIG-x", "gpu_uuid": GPU, "pci_address": "0000:9b:00.0"}),
        ("rdma", "mlx5_0/1", {"device": "mlx5_0", "port": "1", "pci_address": "0000:03:00.0"}),
        ("nic", "ens1", {"device": "ens1", "pci_address": "0000:04:00.0"}),
        ("net", "host", {"device": "host"}),
        ("host", "host", {}),
        ("collector", "gpu_1s", {"collector": "gpu_1s"}),
        ("filesystem", "/scratch disk", {"mountpoint": "/scratch disk"}),
    ],
)
def test_a_device_is_known_by_what_stays(kind: str, key: str, labels: dict[str, str]) -> None:
    """GPU 3 was GPU 2 after a reboot; the graph of a healthy GPU continued the faulty one's."""
    attributes = {
        ("gpu", GPU): {"pci_address": "0000:9b:00.0"},
        ("mig", "MIG-x"): {"gpu": GPU},
        ("rdma", "mlx5_0/1"): {"pci_address": "0000:03:00.0"},
        ("net", "ens1"): {"pci_address": "0000:04:00.0"},
    }
    assert labels_for(kind, key, attributes) == labels


def test_values_keep_their_digits_and_missing_is_not_zero() -> None:
    latest = LatestReadings()
    big = 2**64 - 1
    latest.update(
        0,
        [
            reading("gpu_1s", ["GPU-a", "GPU-b"], sm_clock_hertz=[1.98e9, None]),
            reading("rdma_1s", ["mlx5_0/1"], received_bytes=[big], port_state=[4]),
            reading("gpu_1s_changes", ["GPU-a"], violation_base_clocks_nanoseconds=[5_000_000_001]),
        ],
    )
    lines = (
        render_exposition(exposition(latest).families(), ExpositionFormat.OPENMETRICS)
        .decode()
        .splitlines()
    )
    assert 'gangline_gpu_sm_clock_hertz{uuid="GPU-a"} 1980000000.0' in lines
    assert 'gangline_gpu_violation_base_clocks_seconds_total{uuid="GPU-a"} 5.000000001' in lines
    assert f'gangline_rdma_received_bytes_total{{device="mlx5_0",port="1"}} {big}' in lines
    assert 'gangline_rdma_port_state{device="mlx5_0",port="1"} 4' in lines
    assert "# UNIT gangline_rdma_received_bytes bytes" in lines
    assert "# TYPE gangline_rdma_received_bytes counter" in lines
    assert not any("GPU-b" in line for line in lines)
    assert lines[-1] == "# EOF"


def test_old_readings_are_left_out_and_counted() -> None:
    """A GPU had fallen off the bus an hour ago; its last, normal temperature was still shown."""
    now = [0]
    latest = LatestReadings()
    latest.update(0, [reading("gpu_1s", ["GPU-a"], temperature_celsius=[50.0])])
    latest.update(0, [reading("rdma_10s", ["mlx5_0/1"], link_layer_code=[1])])
    created = exposition(latest, boottime_ns=lambda: now[0])

    def shown() -> tuple[set[str], float]:
        read = {name: value for name, _, value in samples(created.families())}
        return set(read) & {
            "gangline_gpu_temperature_celsius",
            "gangline_rdma_link_layer_code",
        }, read["gangline_metrics_stale_tables"]

    now[0] = 5 * SECOND_NS
    assert shown() == ({"gangline_gpu_temperature_celsius", "gangline_rdma_link_layer_code"}, 0)
    now[0] += 1
    assert shown() == ({"gangline_rdma_link_layer_code"}, 1)
    now[0] = 32 * SECOND_NS + 1
    assert shown() == (set(), 2)


@pytest.mark.slow
@pytest.mark.parametrize("series_max", [10, 100, 400, 3000])
@pytest.mark.parametrize("name", ["h100-ib", "h200-roce", "gb200-nvl72"])
def test_no_more_series_than_asked_for(name: str, series_max: int) -> None:
    """Ten thousand hosts with five thousand series each overloaded a Prometheus."""
    everything = len(samples(exposition(host(name), 100_000).families()))
    read = samples(exposition(host(name), series_max).families())
    assert len(read) <= series_max
    left_out = {name: value for name, _, value in read}["gangline_metrics_left_out_series"]
    assert len(read) + left_out == everything
    if series_max == 400:
        assert len(read) > 390 - sum(metric_priority.RESERVED_SERIES.values())


def test_what_fails_and_what_is_slow_comes_before_what_is_there() -> None:
    shown = {name for name, _, _ in samples(exposition(host("h100-ib")).families())}
    assert shown >= {
        "gangline_gpu_lost_state",
        "gangline_gpu_ecc_uncorrected_volatile_errors_total",
        "gangline_rdma_link_downed_events_total",
        "gangline_gpu_clock_event_reasons_flags",
        "gangline_gpu_sm_clock_hertz",
        "gangline_rdma_received_bytes_total",
    }
    assert not shown & {"gangline_gpu_bar1_total_bytes", "gangline_nvlink_version_code"}


def test_a_silent_device_makes_no_room_for_others() -> None:
    """Each time a GPU hung, eight other series appeared, and each alarm on an absent series rang."""
    gpus = [f"GPU-{n}" for n in range(4)]
    latest = LatestReadings()
    hot = [reading("gpu_1s", gpus, temperature_celsius=[50.0] * 4, memory_free_bytes=[1.0] * 4)]
    latest.update(0, hot)
    shown = exposition(latest, META_SERIES + sum(metric_priority.RESERVED_SERIES.values()) + 4)
    before = {name for name, _, _ in samples(shown.families())}
    assert "gangline_gpu_temperature_celsius" in before
    assert "gangline_gpu_memory_free_bytes" not in before
    hung = reading(
        "gpu_1s", gpus, temperature_celsius=[None] * 3 + [50.0], memory_free_bytes=[1.0] * 4
    )
    latest.update(0, [hung])
    after = samples(shown.families())
    assert {name for name, _, _ in after} == before
    assert sum(name == "gangline_gpu_temperature_celsius" for name, _, _ in after) == 1
    assert {n: v for n, _, v in after}["gangline_metrics_left_out_series"] == 4


def test_what_begins_to_hang_moves_nothing_else() -> None:
    """Each time a call hung, the series of other devices disappeared when they were needed."""
    latest = host("h100-ib")
    shown = exposition(latest)
    before = {name for name, _, _ in samples(shown.families())}
    latest.update(0, [reading("probe_1s", ["gpu 0000:9b:00.0"], hung_seconds=[3.5], state=[1])])
    after = {name for name, _, _ in samples(shown.families())}
    assert after == before | {"gangline_probe_hung_seconds", "gangline_probe_state"}


def test_the_same_readings_are_the_same_text() -> None:
    first = render_exposition(
        exposition(host("h200-roce")).families(), ExpositionFormat.OPENMETRICS
    )
    assert (
        render_exposition(exposition(host("h200-roce")).families(), ExpositionFormat.OPENMETRICS)
        == first
    )


@given(WORDS, WORDS, st.floats(), st.sampled_from(ExpositionFormat))
def test_any_label_comes_back(
    label: str, message: str, value: float, form: ExpositionFormat
) -> None:
    """A mount point with a quote in its name; the host vanished from all graphs."""
    family = Family(
        "gangline_x",
        "gauge",
        "",
        message,
        [(format_labels({"a": label}), format_number(value))],
    )
    ((name, labels, read),) = samples([family], form)
    assert (name, labels) == ("gangline_x", {"a": label})
    assert read == value or (math.isnan(read) and math.isnan(value))


def test_bytes_that_are_no_text_are_spelt_out() -> None:
    """Two mount points that differed in such a byte became one series twice."""
    latest = LatestReadings()
    latest.update(0, [reading("filesystem_60s", ["/\udcff", "/\udcfe"], size_bytes=[1.0, 2.0])])
    labels = [labels for _, labels, _ in samples(exposition(latest).families()) if labels]
    assert {"mountpoint": "/\\udcff"} in labels
    assert {"mountpoint": "/\\udcfe"} in labels
