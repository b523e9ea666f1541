"""Metric families and their exposition by prometheus_client, and the histogram that fills one."""

from __future__ import annotations

from bisect import bisect_left
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

#: Suffixes of family names that are units.
UNITS = ("seconds", "bytes", "ratio")
#: Label values, and the sample's value.
Sample = tuple[Sequence[str], float]


class Histogram:
    """A histogram in Prometheus' form, written by one thread.

    Other threads may read it, and may see an observation in only some of its numbers.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        """*bounds*: ascending upper bounds of the buckets; a last bucket has no bound."""
        self.bounds = tuple(bounds)
        #: Observations by bucket.
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0
        self.max = 0.0

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Count *value*."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        self.max = max(self.max, value)

    def quantile(self, share: float, before: Sequence[int] = ()) -> float | None:
        """Return the upper bound of the bucket with the quantile *share*.

        None without observations.

        *before*: an earlier `counts`, whose observations are excluded. For the last bucket, which
        has no bound, return the maximum ever observed.
        """
        earlier = before or [0] * len(self.counts)
        added = [now - then for now, then in zip(self.counts, earlier, strict=True)]
        wanted, cumulative = share * sum(added), 0
        for index, count in enumerate(added):
            cumulative += count
            if count and cumulative >= wanted:
                return self.bounds[index] if index < len(self.bounds) else self.max
        return None


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
