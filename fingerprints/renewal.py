"""Predicts recurring events (checkpoints, bursts of data loading): when the next comes, and whether it lasts.

The event is an alternating renewal process. The interval between onsets is a mixture: regular (a Student t distribution
around the mean of past intervals), regular with one onset left out, or memoryless (exponential). The weights follow how
many past intervals were of each kind. The answer comes from a fixed number of paths drawn by quantiles, so equal input
gives equal output. numpy only, no clock, no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from math import exp, isfinite, nan, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Number of paths, and limit of the onsets in each path.
PATHS, ONSETS_MAX = 128, 32
#: Limit of the past intervals and durations that count: the last of them.
EVENTS_MAX = 24
#: An interval is regular if it is off the median, or off a multiple of it up to MULTIPLE_MAX, by at most three times
#: the usual scatter. This tolerance is at least and at most these shares of the median.
TOLERANCE_MIN, TOLERANCE_MAX, MULTIPLE_MAX = 0.2, 0.5, 3
#: Assumed spread of a cadence, as a share and at least in seconds, with a weight in intervals.
SPREAD_PRIOR, SPREAD_PRIOR_SECONDS, SPREAD_PRIOR_WEIGHT = 0.03, 0.7, 1.5
#: Prior counts of regular intervals, of intervals with one onset left out, and of memoryless intervals.
KINDS_PRIOR = (1.0, 0.1, 0.25)
#: Assumed relative spread of the durations before any duration is known.
DURATION_SPREAD_PRIOR = 0.3
#: Events that make a cadence, and the greatest ratio of their longest duration to the shortest.
REGULAR_MIN, DURATION_RATIO_MAX = 3, 4.0
#: With this number of regular intervals, past intervals are repeated unchanged.
SEEN_MIN = 6
#: With more intervals the last interval may replace their mean: steps of a job can become longer while it runs.
COMPARED_MIN = 4
#: With this many degrees of freedom or more, a t distribution counts as normal.
DEGREES_MAX = 40

_MIDDLES = (np.arange(PATHS) + 0.5) / PATHS
#: Quantiles of an exponential distribution of mean 1.
_EXPONENTIAL = -np.log1p(-_MIDDLES)
#: Orders of the quantiles, so that an onset of a path is independent of the next onset.
_ORDERS = np.random.default_rng(20).permuted(np.tile(np.arange(PATHS), (2 * ONSETS_MAX, 1)), axis=1)
#: Two of three paths repeat a past interval.
_IS_SEEN = np.arange(PATHS) % 3 > 0


class Span(NamedTuple):
    """A past event, in seconds; `end` is NaN while it lasts. Within a `watch` no event is missing."""

    begin: float
    end: float = nan
    watch: int = 0

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class Cadence(NamedTuple):
    """Recurrence of an event, in seconds. `regular`, `skipped`, `irregular`: numbers of past intervals of each kind."""

    interval: float = nan
    spread: float = nan
    regular: int = 0
    skipped: int = 0
    irregular: int = 0
    duration: float = nan
    duration_spread: float = nan
    #: The interval counts from the end of the previous event: a fixed amount of work comes between two events.
    is_from_end: bool = False
    #: Mean of all intervals, however irregular.
    mean_interval: float = nan
    degrees: int = 1
    #: Taken from an earlier run or from learned data of hosts, not from events of this run.
    is_prior: bool = False
    #: The regular intervals.
    seen: tuple[float, ...] = ()

    @property
    def is_known(self) -> bool:
        return isfinite(self.interval)

    @property
    def weights(self) -> tuple[float, float, float]:
        """Return the probabilities that the next interval is regular, leaves an onset out, or is memoryless."""
        counts = np.add((self.regular, self.skipped, self.irregular), KINDS_PRIOR)
        regular, skipped, irregular = (counts / counts.sum()).tolist()
        return regular, skipped, irregular


class NextOnset(NamedTuple):
    """Time of the next event, in seconds from now. Windows: the middle 50 % and 90 % of the probability.

    `probability`: of an onset within a tenth of the interval around `seconds`.
    """

    seconds: float = nan
    window_50: tuple[float, float] = (nan, nan)
    window_90: tuple[float, float] = (nan, nan)
    probability: float = nan


def cadence_of(spans: Sequence[Span], prior_interval: float = nan) -> Cadence:
    """Return the cadence of *spans*, oldest first. *prior_interval*: of an earlier run, seconds, or NaN.

    The prior counts as one interval until two intervals of this run are known.
    """
    spans = spans[-EVENTS_MAX:]
    pairs = [(a, b) for a, b in pairwise(spans) if a.watch == b.watch and isfinite(a.end)]
    from_begin = _regularity([b.begin - a.begin for a, b in pairs], prior_interval)
    from_end = _regularity([b.begin - a.end for a, b in pairs], nan)
    found, is_from_end = from_begin, False
    # For jobs that save every n steps, the time of the save is not part of the interval.
    if from_end.regular >= 3 and from_end.spread < 0.8 * from_begin.spread:
        found, is_from_end = from_end, True
    durations = np.array([span.seconds for span in spans if isfinite(span.end)])
    if not durations.size:
        return found
    mean = float(np.mean(durations))
    prior = DURATION_SPREAD_PRIOR * mean
    variance = (prior**2 + float(((durations - mean) ** 2).sum())) / durations.size
    return found._replace(duration=mean, duration_spread=sqrt(variance), is_from_end=is_from_end)


def regular_longest(spans: Sequence[Span], interval_min: float) -> list[Span]:
    """Return the largest set of longest *spans* (ended, oldest first) that recurs regularly; empty below REGULAR_MIN.

    The pauses of a job include checkpoints, and shorter pauses at any time. *interval_min*: seconds.
    """
    spans = list(spans[-EVENTS_MAX:])
    found: list[Span] = []
    for least in sorted({round(span.seconds) for span in spans}, reverse=True):
        longest = [span for span in spans if round(span.seconds) >= least]
        if len(longest) < REGULAR_MIN:
            continue
        if max(span.seconds for span in longest) > DURATION_RATIO_MAX * max(least, 1):
            break
        cadence = cadence_of(longest)
        regular, missed = cadence.regular, cadence.skipped + cadence.irregular
        is_regular = regular >= REGULAR_MIN - 1 and regular >= 3 * missed
        if (
            is_regular
            and cadence.interval >= interval_min
            and cadence.spread < 0.2 * cadence.interval
        ):
            found = longest
    return found


def _regularity(intervals: Sequence[float], prior: float) -> Cadence:
    values = [one for one in intervals if one > 0]
    if isfinite(prior) and prior > 0 and len(values) < 2:
        values = [prior, *values]
    if not values:
        return Cadence()
    middle = float(np.median(values))
    scatter = 1.4826 * float(np.median(np.abs(np.array(values) - middle)))
    tolerance = min(max(3 * scatter, TOLERANCE_MIN * middle), TOLERANCE_MAX * middle)
    regular: list[float] = []
    skipped = irregular = 0
    for value in values:
        times = max(1, round(value / middle))
        if times > MULTIPLE_MAX or abs(value - times * middle) > tolerance:
            irregular += 1
            continue
        regular.append(value / times)
        skipped += times - 1
    expected = float(np.mean(regular)) if regular else middle
    errors = [value - expected for value in regular]
    widening = sqrt(1 + 1 / max(len(regular), 1))
    if _last_is_better(regular):
        expected, errors, widening = regular[-1], [b - a for a, b in pairwise(regular)], 1.0
    prior_spread = max(SPREAD_PRIOR * expected, SPREAD_PRIOR_SECONDS)
    freedom = SPREAD_PRIOR_WEIGHT + max(len(regular) - 1, 0)
    squares = sum(error**2 for error in errors)
    spread = widening * sqrt((SPREAD_PRIOR_WEIGHT * prior_spread**2 + squares) / freedom)
    return Cadence(
        expected, spread, len(regular), skipped, irregular, mean_interval=float(np.mean(values)), degrees=round(freedom),
        seen=tuple(expected + error for error in errors),
    )  # fmt: skip


def _last_is_better(intervals: Sequence[float]) -> bool:
    """Return whether the last interval predicted the next interval better than the mean of all earlier ones."""
    if len(intervals) <= COMPARED_MIN:
        return False
    values = np.array(intervals)
    means = np.cumsum(values)[:-1] / np.arange(1, values.size)
    after = values[1:]
    return bool(np.abs(after - values[:-1])[1:].sum() < np.abs(after - means)[1:].sum())


@cache
def _t_quantiles(degrees: int) -> Floats:
    """Return PATHS quantiles of Student's t distribution at equal steps of probability."""
    grid = np.sinh(np.linspace(-8.0, 8.0, 4001))
    density = (1 + grid**2 / degrees) ** (-(degrees + 1) / 2)
    mass = np.concatenate([[0.0], np.cumsum(np.diff(grid) * (density[1:] + density[:-1]) / 2)])
    return np.asarray(np.interp(_MIDDLES, mass / mass[-1], grid))


_NORMAL = _t_quantiles(DEGREES_MAX)


def _intervals(cadence: Cadence, elapsed: float) -> Floats:
    """Return PATHS intervals longer than *elapsed*, at equal steps of probability, rising."""
    regular, skipped, irregular = cadence.weights
    t = _t_quantiles(min(cadence.degrees, DEGREES_MAX))
    memoryless = max(cadence.mean_interval, 1.0)
    past = max(elapsed, 0.0)
    # A job that saves at the end of a step has only two or three different intervals: past intervals count, if enough.
    seen = cadence.interval + cadence.spread * t
    if len(cadence.seen) >= SEEN_MIN:
        width = max(SPREAD_PRIOR_SECONDS, 0.25 * cadence.spread)
        every = np.array(cadence.seen)[np.arange(PATHS) % len(cadence.seen)]
        seen = np.where(_IS_SEEN, every + width * _NORMAL[_ORDERS[0]], seen)
    values = np.concatenate(
        [
            seen,
            2 * cadence.interval + sqrt(2) * cadence.spread * t,
            past + memoryless * _EXPONENTIAL,
        ]
    )
    # A memoryless interval becomes less probable while no event comes.
    weights = np.repeat([regular, skipped, irregular * np.exp(-past / memoryless)], PATHS)
    weights = np.where(values > past, weights, 0.0)
    if weights.sum() <= 0:
        return np.asarray(past + memoryless * _EXPONENTIAL)
    return weighted_quantiles(values, weights, _MIDDLES)


def weighted_quantiles(values: Floats, weights: Floats, shares: Floats) -> Floats:
    """Return the quantiles of *values* at *shares*; the sum of *weights* must be above 0."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    at = np.searchsorted(total, shares * total[-1])
    return np.asarray(values[order][np.minimum(at, values.size - 1)])


class RenewalPaths:
    """Possible futures of an event: `begins`, `ends` are (PATHS, onsets), in seconds from now."""

    def __init__(
        self, cadence: Cadence, last: Span | None, now: float, horizon_seconds: float
    ) -> None:
        """*last*: the newest event, None without events. All times share the clock of the spans; *cadence* is known."""
        self.cadence = cadence
        is_on = last is not None and not isfinite(last.end)
        origin = now
        if last is not None:
            origin = last.end if cadence.is_from_end and not is_on else last.begin
        count = int(min(ONSETS_MAX, np.ceil(horizon_seconds / max(cadence.interval, 1.0)) + 1))
        elapsed = now - origin
        first = _intervals(cadence, elapsed) - elapsed
        if is_on and cadence.is_from_end:
            first = first + max(cadence.duration, 0.0)
        later = _intervals(cadence, 0.0)
        if cadence.is_from_end and isfinite(cadence.duration):
            later = later + cadence.duration
        steps = np.stack([first, *(later[order] for order in _ORDERS[: count - 1])], axis=1)
        self.begins: Floats = np.cumsum(np.maximum(steps, 0.0), axis=1)
        lengths = self._lengths(count)
        self.ends: Floats = self.begins + lengths
        #: Remaining seconds of the present event, per path.
        self.lasts_seconds: Floats = np.zeros(PATHS)
        if is_on and last is not None:
            age = now - last.begin
            usual = lengths[:, 0]
            over = usual[usual > age]
            # An event longer than almost all before continues, in the mean, for as long as its age.
            self.lasts_seconds = (
                np.quantile(over, _MIDDLES) - age
                if over.size >= 4
                else max(age, 1.0) * _EXPONENTIAL
            )

    def _lengths(self, count: int) -> Floats:
        duration, spread = self.cadence.duration, self.cadence.duration_spread
        if not isfinite(duration):
            duration, spread = SPREAD_PRIOR_SECONDS, 0.0
        quantiles = np.maximum(duration + spread * _t_quantiles(DEGREES_MAX), 0.5)
        return np.stack([quantiles[order] for order in _ORDERS[ONSETS_MAX : ONSETS_MAX + count]], 1)

    def is_on(self, seconds: float) -> float:
        """Return the probability that the event is active in *seconds* from now."""
        on = ((self.begins <= seconds) & (seconds < self.ends)).any(axis=1)
        return float(np.mean(on | (self.lasts_seconds > seconds)))

    def begins_within(self, seconds: float) -> float:
        """Return the probability that the event begins within *seconds*."""
        return float(np.mean(self.begins[:, 0] <= seconds))

    def next_onset(self) -> NextOnset:
        first = self.begins[:, 0]
        low_90, low_50, middle, high_50, high_90 = np.quantile(
            first, (0.05, 0.25, 0.5, 0.75, 0.95)
        ).tolist()
        near = np.abs(first - middle) <= 0.1 * self.cadence.interval
        return NextOnset(middle, (low_50, high_50), (low_90, high_90), float(np.mean(near)))


def memoryless_is_on(
    spans: Sequence[Span], open_seconds: float, watched_seconds: float, seconds: float
) -> float:
    """Return the probability that an event without a known cadence is active in *seconds* from now.

    *spans*: ended events; *open_seconds*: age of the present event, NaN for none.
    """
    is_open = isfinite(open_seconds)
    if not spans and not is_open:
        return 0.0
    ended = sum(span.seconds for span in spans)
    duration = max((ended + (open_seconds if is_open else 0.0)) / max(len(spans), 1), 1.0)
    begins = (len(spans) + is_open) / max(watched_seconds - ended, duration)
    ends = 1.0 / duration
    usual = begins / (begins + ends)
    return usual + (float(is_open) - usual) * exp(-(begins + ends) * seconds)
