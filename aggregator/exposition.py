"""Prometheus text format by prometheus_client; `metrics_server` serves it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from .metrics import Histogram

#: Suffixes of family names that are units.
UNITS = ("seconds", "bytes", "ratio")
#: Label values, and the sample's value.
Sample = tuple[Sequence[str], float]


def gauge(
    name: str, description: str, samples: float | Iterable[Sample], labels: Sequence[str] = ()
) -> Metric:
    """Return a gauge of a single value, or of samples with *labels*."""
    return _filled(GaugeMetricFamily(name, description, labels=labels, unit=_unit(name)), samples)


def counter(
    name: str, description: str, samples: float | Iterable[Sample], labels: Sequence[str] = ()
) -> Metric:
    """Return a counter of a value, or of samples with *labels*; *name* is without `_total`."""
    return _filled(CounterMetricFamily(name, description, labels=labels, unit=_unit(name)), samples)


def histogram(name: str, description: str, observed: Histogram) -> Metric:
    """Return a histogram of the observed values."""
    total, buckets = 0, list[tuple[str, float]]()
    for bound, count in zip(
        [*map(str, observed.bounds), "+Inf"], list(observed.counts), strict=True
    ):
        total += count
        buckets.append((bound, total))
    return HistogramMetricFamily(name, description, buckets, observed.sum, unit=_unit(name))


def exposition(families: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """Return (*families* in the format of the `Accept` header, media type)."""
    encode, media_type = choose_encoder(accept)
    return encode(cast(Any, SimpleNamespace(collect=lambda: families))), media_type


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, samples: float | Iterable[Sample]
) -> Metric:
    for values, value in samples if isinstance(samples, Iterable) else [((), samples)]:
        family.add_metric(values, value)
    return family


def _unit(name: str) -> str:
    unit = name.rpartition("_")[2]
    return unit if unit in UNITS else ""
