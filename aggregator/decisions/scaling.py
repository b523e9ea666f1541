"""Throughput of a gang of n nodes, interpolated from known sizes, and its value in GPU-hours.

  throughput(n) = n / (a + b n + c log2 n), with a, b and c of 0 or more

`a` is the work of a step that is divided among the nodes, `b` the undivided work (Amdahl, 1967),
and `c` communication that takes one round per doubling (Thakur et al., Optimization of Collective
Communication Operations in MPICH, 2005). Between known sizes, the value is the geometric mean of
this fit and of the straight line in logarithms between the two neighbors: the fit smooths noise,
the line follows steps of a topology. If the fit misses the known sizes by more than noise, the line
weighs more (for example for a gang that slows down with more nodes, which the fit cannot express).
The distance of each known size from the line between its own neighbors shows the possible error at
an unknown size: the interval is at least that wide. Beyond the known sizes several forms are tried,
and their spread is the interval. Beyond twice the largest known size the value is the lower end of
the interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import exp

import numpy as np

from ..arrays import Floats
from .quantity import Quantity, QuantitySource, assumed

SIZES_MAX, POINTS_MAX = 64, 256
#: Without two known sizes: throughput ~ nodes ** this, with its 90 % interval. The exponents of
#: seven workloads of public training results (MLPerf v4.0 and v5.0, from 8 nodes on) are 0.44 to
#: 0.99, with a median of 0.84.
EXPONENT_ASSUMED = (0.85, 0.45, 1.0)
#: Relative error of a throughput that was measured once, and its weight in points (assumed).
NOISE_ASSUMED, NOISE_POINTS = 0.03, 2
#: Uncertainty of a throughput for each doubling away from the known sizes, in logarithms (assumed).
REACH_PER_DOUBLING = 0.15
#: Beyond this multiple of the largest known size the value is the lower end of the interval.
REACH_VALUE = 2.0
#: Above this root mean square of the distances, in logarithms, the curve is reported as not smooth.
IRREGULARITY_MIN = 0.05
#: The 95 % quantiles of Student's t from 1 degree of freedom on; beyond these the quantile of the
#: normal distribution applies.
_T_QUANTILES = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81, 1.80, 1.78, 1.77, 1.76)

#: Forms with `a`: a gang of one node always does its work.
_WHOLE = tuple((0, *rest) for count in (0, 1, 2) for rest in combinations((1, 2), count))
_DIVIDED, _ROUNDS = ((0,), (0, 1)), ((0,), (0, 2))


def _columns(nodes: Floats) -> Floats:
    """Return 1, n and log2 n: factors of the divided work, the undivided work, and the rounds."""
    return np.stack((np.ones_like(nodes), nodes, np.log2(nodes)), axis=1)


def _fit(nodes: Floats, throughput: Floats, forms: Sequence[tuple[int, ...]]) -> Floats:
    """Return (a, b, c) of the form with the smallest relative errors, all at least 0."""
    columns = _columns(nodes) * (throughput / nodes)[:, None]  # relative: each target is 1
    best, minimum = np.array([float(np.mean(nodes / throughput)), 0.0, 0.0]), np.inf
    for form in forms:
        if len(form) > nodes.size:
            continue
        part = columns[:, form]
        coefficients = np.linalg.lstsq(part, np.ones(nodes.size), rcond=None)[0]
        error = float(np.square(part @ coefficients - 1.0).sum())
        if (coefficients >= 0.0).all() and error < minimum * (1.0 - 1e-9) - 1e-18:
            minimum, best = error, np.zeros(3)
            best[list(form)] = coefficients
    return best


@dataclass(frozen=True)
class ScalingCurve:
    """Throughput by ascending size, in the unit of the reported points.

    With two or more sizes there are fits, the best first.
    """

    nodes: Floats
    throughput: Floats
    source: QuantitySource
    fits: tuple[Floats, ...] = ()  #: (a, b, c) each
    half_width: float = 0.0  #: half of a 90 % interval between known sizes, in logarithms
    line_weight: float = 0.5  #: weight of the straight line between known sizes, against the fit
    irregularity: float = (
        0.0  #: root mean square distance of a known size from its two neighbors, in logarithms
    )

    @property
    def evidence(self) -> str:
        """The points behind the estimates, as text."""
        if not self.nodes.size:
            return "no throughput is known"
        if self.nodes.size == 1:
            return f"throughput of one size only, {self.nodes[0]:.0f} nodes"
        text = f"fitted over {self.nodes.size} sizes of {self.nodes[0]:.0f} to {self.nodes[-1]:.0f} nodes"
        return f"{text}; {self.warning}" if self.warning else text

    @property
    def warning(self) -> str:
        """The irregularity of the known sizes as text; "" for a smooth curve."""
        if self.irregularity < IRREGULARITY_MIN:
            return ""
        return (
            f"not smooth: a known size is {exp(self.irregularity) - 1.0:.0%} off its two neighbors"
        )

    def estimates(self, nodes: Sequence[int]) -> list[Quantity]:
        """Return the throughput at each size."""
        sizes = np.asarray(nodes, dtype=np.float64)
        if self.nodes.size < 2:
            return [self._assumed(float(size)) for size in sizes]
        smallest, largest = self.nodes[0], self.nodes[-1]
        result: list[Quantity] = []
        for size, value, lower, upper in zip(
            nodes, *(bounds.tolist() for bounds in self._fitted(sizes)), strict=True
        ):
            evidence, source = self.evidence, self.source
            if size > REACH_VALUE * largest:
                evidence += f"; {size} is beyond twice the largest: the value is the lower end"
                value, source = lower, QuantitySource.ASSUMED
            elif not smallest <= size <= largest:
                evidence += f"; {size} is outside of these"
            result.append(Quantity(value, lower, upper, source, evidence))
        return result

    def _assumed(self, nodes: float) -> Quantity:
        """Return the throughput without a fit: a power of the size, through any single point."""
        base, scale, noise = 1.0, 1.0, 1.0
        if self.nodes.size:
            base, scale = float(self.nodes[0]), float(self.throughput[0])
            noise = exp(_t_quantile(NOISE_POINTS) * NOISE_ASSUMED)
            if nodes == base:
                return Quantity(scale, scale / noise, scale * noise, self.source, self.evidence)
        value, *ends = (scale * (nodes / base) ** exponent for exponent in EXPONENT_ASSUMED)
        lower, upper = min(ends) / noise, max(ends) * noise
        evidence = "{}; assumed: nodes ** {:g}, {:g} to {:g}".format(
            self.evidence, *EXPONENT_ASSUMED
        )
        if nodes > REACH_VALUE * base and self.nodes.size:
            value = lower
            evidence += "; beyond twice the largest known size the value is the lower end"
        return assumed(value, lower, upper, evidence)

    def _fitted(self, sizes: Floats) -> tuple[Floats, Floats, Floats]:
        """Return value, lower and upper end at each size."""
        inside = np.clip(sizes, self.nodes[0], self.nodes[-1])
        line = np.exp(np.interp(np.log(inside), np.log(self.nodes), np.log(self.throughput)))
        # Beyond the known sizes the forms start between the line and the fit at the last size.
        weight = self.line_weight
        middle = line**weight * _throughput(self.fits[0], inside) ** (1.0 - weight)
        forms = np.stack(
            [middle * _throughput(fit, sizes) / _throughput(fit, inside) for fit in self.fits]
        )
        linear = middle * sizes / inside
        half = self.half_width + np.abs(np.log(line / middle))
        away = REACH_PER_DOUBLING * np.abs(np.log2(sizes / inside))
        lower = np.minimum(forms.min(axis=0), linear) * np.exp(-half - away)
        upper = np.maximum(forms.max(axis=0), linear) * np.exp(
            half + np.where(sizes < inside, away, 0.0)
        )
        return forms[0], lower, upper


def _throughput(fit: Floats, nodes: Floats) -> Floats:
    return np.asarray(nodes / (_columns(nodes) @ fit))


def _t_quantile(freedom: int) -> float:
    return _T_QUANTILES[freedom - 1] if freedom <= len(_T_QUANTILES) else 1.70


def scaling_curve(
    points: Sequence[tuple[int, float]], source: QuantitySource = QuantitySource.DECLARED
) -> ScalingCurve:
    """Return the curve of *points*: nodes, and a throughput above 0; medians per size."""
    sizes: dict[int, list[float]] = {}
    for size, value in points:
        sizes.setdefault(size, []).append(value)
    nodes = np.array(sorted(sizes), dtype=np.float64)
    throughput = np.array([float(np.median(sizes[int(size)])) for size in nodes])
    if nodes.size < 2:
        return ScalingCurve(nodes, throughput, source)
    # With two sizes each form of two coefficients is exact, so none is better.
    best = _fit(nodes, throughput, _WHOLE)
    fits = (best, _fit(nodes, throughput, _DIVIDED), _fit(nodes, throughput, _ROUNDS))
    errors = np.log(throughput / _throughput(best, nodes))
    freedom = max(int(nodes.size) - int(np.count_nonzero(best)), 0)
    variance = (float(np.square(errors).sum()) + NOISE_POINTS * NOISE_ASSUMED**2) / (
        freedom + NOISE_POINTS
    )
    missed = float(np.square(errors).mean())
    half_width = _t_quantile(freedom + NOISE_POINTS) * variance**0.5
    irregularity = 0.0
    if nodes.size > 2:
        # Use the errors of the fit, so that a smooth bend between distant sizes is not a jump.
        jumps = errors[1:-1] - _between_neighbors(np.log(nodes), errors)
        irregularity = float(np.square(jumps).mean() ** 0.5)
        half_width = max(half_width, _t_quantile(max(jumps.size, 2)) * irregularity)
    return ScalingCurve(
        nodes=nodes,
        throughput=throughput,
        source=source,
        fits=fits,
        half_width=half_width,
        line_weight=max(0.5, missed / (missed + NOISE_ASSUMED**2)),
        irregularity=irregularity,
    )


def _between_neighbors(sizes: Floats, values: Floats) -> Floats:
    """Return for each inner point the value of the line between its two neighbors."""
    share = (sizes[1:-1] - sizes[:-2]) / (sizes[2:] - sizes[:-2])
    return np.asarray(values[:-2] + share * (values[2:] - values[:-2]))


@dataclass(frozen=True)
class ElasticSizes:
    """The sizes that a gang may have, in ascending order, and the value of a size."""

    allowed: tuple[int, ...]
    curve: ScalingCurve
    #: Value of a free GPU-hour to others, in GPU-hours: 0 to 1.
    free_gpu_value: float = 0.0
    #: The size at which the job takes its declared length; 0: the largest.
    length_nodes: int = 0
    #: Requested sizes that are omitted, because groups do not add up to them.
    left_out: tuple[int, ...] = ()

    @cached_property
    def _estimates(self) -> dict[int, Quantity]:
        return dict(zip(self.allowed, self.curve.estimates(self.allowed), strict=True))

    def throughput(self, nodes: int) -> Quantity:
        """Return the throughput of any size."""
        return self._estimates.get(nodes) or self.curve.estimates((nodes,))[0]

    @cached_property
    def _per_node(self) -> float:
        return max(estimate.value / nodes for nodes, estimate in self._estimates.items())

    def efficiency(self, nodes: int) -> Quantity:
        """Return the throughput per node of a size; 1: that of the most efficient allowed size."""
        throughput, per_node = self.throughput(nodes), nodes * self._per_node
        return Quantity(
            throughput.value / per_node,
            throughput.lower / per_node,
            throughput.upper / per_node,
            throughput.source,
            throughput.evidence,
        )

    def unplaced_gpu_hours(self, nodes: int, gpus_per_node: int, hours: float) -> float:
        """Return the lost GPU-hours of GPUs that only the largest size would have."""
        unplaced = (self.allowed[-1] - nodes) * gpus_per_node * hours
        return unplaced * (1.0 - self.free_gpu_value)

    def ideal_hours(self, nodes: int, hours: float) -> float:
        """Return the ideal hours, at an efficiency of 1, of *hours* at `length_nodes`."""
        length = self.throughput(self.length_nodes or self.allowed[-1])
        return hours * length.value / (nodes * self._per_node)
