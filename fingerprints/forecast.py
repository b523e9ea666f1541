"""Forecasts a job: its state, its next checkpoint and host stall, its power and its traffic.

A forecaster takes one summary of the whole gang per second. Pauses (stretches in which the gang does not compute) are
renewal processes (`renewal.py`), one for each kind. Between pauses, a state is predicted from the current state, by how
often that state led to each state after the same number of seconds in this job. Power and traffic follow from the
states: the mean of each state so far, weighted by its probability. All forecasts assume that the job continues; its end
is not predicted. numpy only; the caller passes the time; memory is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import isfinite, nan
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .renewal import (
    EVENTS_MAX,
    Cadence,
    NextOnset,
    RenewalPaths,
    Span,
    cadence_of,
    memoryless_is_on,
    regular_longest,
)

Floats = npt.NDArray[np.float64]

STATES = ("compute", "wait", "host_stall", "checkpoint", "idle")
COMPUTE, WAIT, HOST_STALL, CHECKPOINT, IDLE = range(len(STATES))
#: Predicted quantities besides the state, in the order of `JobSecond.demands`.
DEMANDS = ("power_watts", "pcie_bytes_per_second", "nic_bytes_per_second", "disk_pressure_ratio")
#: Horizons at which the state is learned.
HORIZONS_SECONDS = (10, 30, 60, 300)
#: Limit of the horizons.
HORIZON_SECONDS_MAX = 3600
#: Known seconds needed for a forecast, and the confidence of phases below which a second counts as unknown.
SEEN_SECONDS_MIN, CONFIDENCE_MIN = 60, 0.3
#: Onsets of a pause needed for a prediction of its next onset; an earlier run of the same workload counts as one onset.
ONSETS_MIN = 3
#: A summary older than the last by at most this time is late or a duplicate, and left out; by more, the clock was set
#: back.
LATE_SECONDS_MAX = 60
#: After a longer gap between summaries the pauses on both sides do not count as neighbors, and there is no forecast.
GAP_SECONDS_MAX = 30
#: A pause: the gang computes below PAUSE_SHARE of its usual share for PAUSE_SECONDS_MIN; it ends above RESUME_SHARE.
PAUSE_SHARE, RESUME_SHARE, PAUSE_SECONDS_MIN = 0.3, 0.5, 2
#: Below this share of the usual share, the second before a pause counts as part of the pause.
PARTIAL_SHARE = 0.85
#: Pauses with a shorter interval are not checkpoints, in seconds.
CHECKPOINT_INTERVAL_MIN = 10.0
#: Time constant of the usual share of computing.
USUAL_SECONDS = 120.0
#: Limit of the stored readings of each state, and of the pairs of states, above which older pairs lose weight.
READINGS_MAX, PAIRS_MAX = 96, 1200.0
#: Larger power and traffic values are errors of a driver and are ignored.
DEMAND_MAX = 1e15
#: Weight, in pairs, of the job's overall mix of states against the states that followed the current state.
PAIRS_PRIOR = 8.0
#: Interval at which forecasts of demands are stored, to be compared with "as now" later.
PENDING_SECONDS = 10
#: "As now" replaces the forecast by states if its mean error was less than NAIVE_SHARE of the other's mean error.
#: Number of comparisons: at least COMPARED_MIN, the last COMPARED_MAX.
NAIVE_SHARE, COMPARED_MIN, COMPARED_MAX = 0.8, 18, 60
#: Probability reserved for unexpected states.
SURPRISE = 0.01
_HISTORY = max(HORIZONS_SECONDS) + 1
_NO_STATE = -1
_PAUSES = (CHECKPOINT, HOST_STALL, WAIT)


class JobSecond(NamedTuple):
    """One second of a gang. `shares`: mean share of each of STATES over its GPUs, NaN if unknown; `demands`: DEMANDS.

    `checkpoint_interval_seconds`, `next_checkpoint_seconds`: learned by the hosts, for a forecaster that begins later
    than the job; NaN where unknown.
    """

    shares: Sequence[float]
    demands: Sequence[float] = (nan,) * len(DEMANDS)
    confidence: float = 1.0
    checkpoint_interval_seconds: float = nan
    next_checkpoint_seconds: float = nan


class DemandForecast(NamedTuple):
    """Median and 90 % interval."""

    median: float = nan
    lower: float = nan
    upper: float = nan


class EventForecast(NamedTuple):
    """The next onset of a pause, seconds from now; `reason`: why there is no forecast."""

    onset: NextOnset = NextOnset()
    interval_seconds: float = nan
    duration_seconds: float = nan
    within: float = nan
    reason: str = ""


class JobForecast(NamedTuple):
    """Forecast for `horizon_seconds` from now. `reason`: why all values are NaN."""

    horizon_seconds: float
    probabilities: tuple[float, ...] = (nan,) * len(STATES)
    checkpoint: EventForecast = EventForecast()
    host_stall: EventForecast = EventForecast()
    demands: tuple[DemandForecast, ...] = (DemandForecast(),) * len(DEMANDS)
    reason: str = ""


class _DemandComparison:
    """Running errors of two forecasts of the demands at one horizon: by states, and "as now". Bounded."""

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        #: Forecasts that are not due: (due time, median by states, "as now").
        self._pending: deque[tuple[int, Floats, Floats]] = deque(
            maxlen=horizon // PENDING_SECONDS + 1
        )
        #: A ring of absolute errors (by states, as now), by DEMANDS.
        self._errors = np.full((COMPARED_MAX, 2, len(DEMANDS)), nan)
        self._count = 0

    def clear(self) -> None:
        """Drop the forecasts that are not due yet, because seconds are missing."""
        self._pending.clear()

    def add(self, now: int, by_states: Sequence[DemandForecast], current: Floats) -> None:
        """Store a forecast made at *now*, at most one in PENDING_SECONDS."""
        if not self._pending or now + self.horizon >= self._pending[-1][0] + PENDING_SECONDS:
            medians = np.array([demand.median for demand in by_states])
            self._pending.append((now + self.horizon, medians, current))

    def compare(self, now: int, current: Floats) -> None:
        while self._pending and self._pending[0][0] <= now:
            due, by_states, as_now = self._pending.popleft()
            if due < now:
                continue
            self._errors[self._count % COMPARED_MAX] = np.abs(
                np.stack([by_states, as_now]) - current
            )
            self._count += 1

    def better(
        self, by_states: Sequence[DemandForecast], current: Floats
    ) -> tuple[DemandForecast, ...]:
        """Return for each demand the forecast that had the smaller errors."""
        errors = self._errors[: self._count]
        is_known = np.asarray(np.isfinite(errors).all(axis=1))
        count = is_known.sum(axis=0)
        by_states_sum, naive_sum = np.where(is_known[:, None], errors, 0.0).sum(axis=0)
        is_naive = (count >= COMPARED_MIN) & (naive_sum < NAIVE_SHARE * by_states_sum)
        result = list(by_states)
        for at in np.flatnonzero(is_naive & np.isfinite(current)).tolist():
            now = float(current[at])
            reach = np.quantile(errors[is_known[:, at], 1, at], 0.9)
            # The interval covers both: errors of a few minutes do not show how far a job can fall.
            lower = np.fmin(now - reach, result[at].lower)
            upper = np.fmax(now + reach, result[at].upper)
            result[at] = DemandForecast(now, max(float(lower), 0.0), float(upper))
        return tuple(result)


class _Pause(NamedTuple):
    span: Span
    shares: tuple[float, ...]

    @property
    def is_stall(self) -> bool:
        return self.shares[HOST_STALL] > self.shares[WAIT] + self.shares[CHECKPOINT]

    @property
    def is_labeled(self) -> bool:
        return self.shares[CHECKPOINT] >= 0.5 * sum(self.shares)


class JobForecaster:
    """Learns one job, a second at a time. Never raises on odd numbers. One thread."""

    def __init__(self, prior_checkpoint_interval_seconds: float = nan) -> None:
        """*prior_checkpoint_interval_seconds*: from an earlier run of the same workload; NaN if unknown."""
        self.prior_checkpoint_interval_seconds = prior_checkpoint_interval_seconds
        #: Seconds that were left out: late, duplicate, or without known phases.
        self.left_out_count = 0
        self.seen_seconds = 0
        self._last: int | None = None
        #: The forecaster's own time, which never goes back.
        self._now = 0
        self._states: deque[int] = deque(maxlen=_HISTORY)
        self._pairs = {h: [[0.0] * len(STATES) for _ in STATES] for h in HORIZONS_SECONDS}
        self._pair_count = dict.fromkeys(HORIZONS_SECONDS, 0.0)
        self._mix = [0.0] * len(STATES)
        #: Usual share of computing; the share of the last second, divided by the usual share.
        self._usual = 0.5
        self._last_part = 1.0
        #: (states, readings, demands): a ring for each state.
        self._readings = np.zeros((len(STATES), READINGS_MAX, len(DEMANDS)), dtype=np.float32)
        self._readings_count = [0] * len(STATES)
        self._pauses: deque[_Pause] = deque(maxlen=len(_PAUSES) * EVENTS_MAX)
        #: The present or possible pause: its first second, its begin, and the seconds of each state; empty: none.
        self._pause_second = 0
        self._pause_begin = nan
        self._pause_shares: list[float] = []
        #: Incremented when events may have been missed.
        self._watch = 0
        self._hint = nan, nan  # interval of checkpoints, and due time of the next, in our time
        self._current: Floats = np.full(len(DEMANDS), nan)
        self._comparisons = [_DemandComparison(horizon) for horizon in HORIZONS_SECONDS]
        self._spans: dict[int, list[Span]] | None = None
        self._cadences: dict[int, Cadence] = {}
        self._open_kind = _NO_STATE

    def observe(self, second: int, summary: JobSecond) -> None:
        """Take in a second. *second*: its begin, by any clock. Late and repeated seconds are left out."""
        last = self._last
        if last is not None and last - LATE_SECONDS_MAX <= second <= last:
            self.left_out_count += 1
            return
        step = 1 if last is None or second < last else second - last
        self._last = second
        if step > GAP_SECONDS_MAX:  # the hosts were silent, or the clock was set forward
            self._interrupt()
            step = GAP_SECONDS_MAX
        self._now += step
        self._states.extend([_NO_STATE] * (step - 1))
        if step > 1:
            self._last_part = 1.0
        shares = summary.shares
        is_known = (
            len(shares) == len(STATES)
            and all(0.0 <= share <= 1.0 + 1e-6 for share in shares)
            and sum(shares) > 0.5
            and summary.confidence >= CONFIDENCE_MIN
        )
        if not is_known:
            self.left_out_count += 1
            self._states.append(_NO_STATE)
            self._last_part = 1.0
            return
        state = max(range(len(STATES)), key=shares.__getitem__)
        self.seen_seconds += 1
        self._states.append(state)
        self._remember(state, summary.demands)
        if isfinite(summary.next_checkpoint_seconds) and summary.checkpoint_interval_seconds > 0:
            due = self._now + 1 + summary.next_checkpoint_seconds
            self._hint = summary.checkpoint_interval_seconds, due
        is_paused = self._follow_pause(shares)
        if not is_paused:
            self._count(state)

    def _remember(self, state: int, demands: Sequence[float]) -> None:
        place = self._readings_count[state] % READINGS_MAX
        known = [value if 0 <= value <= DEMAND_MAX else nan for value in demands]
        self._current = np.array(known if len(known) == len(DEMANDS) else [nan] * len(DEMANDS))
        self._readings[state, place] = self._current
        self._readings_count[state] += 1
        for comparison in self._comparisons:
            comparison.compare(self._now, self._current)

    def _interrupt(self) -> None:
        """Forget state that spans a gap: the present pause, and whether the next pause follows the last."""
        self._states.clear()
        self._pause_shares = []
        for comparison in self._comparisons:
            comparison.clear()
        self._watch += 1

    def _follow_pause(self, shares: Sequence[float]) -> bool:
        """Return whether the gang pauses, and note where pauses begin and end."""
        compute = shares[COMPUTE]
        part = min(compute / self._usual, 1.0) if self._usual > 0 else 1.0
        before, self._last_part = self._last_part, part
        if not self._pause_shares:
            if part >= PAUSE_SHARE or shares[IDLE] > 0.5:
                self._usual += (compute - self._usual) / min(USUAL_SECONDS, self.seen_seconds + 1)
                return False
            # Work ends within a second: in the second before the pause, or in its first second.
            self._pause_begin = self._now + (before - 1.0 if before < PARTIAL_SHARE else part)
            self._pause_second, self._pause_shares = self._now, [0.0] * len(STATES)
        elif part >= RESUME_SHARE or shares[IDLE] > 0.5:
            if self._is_paused:
                end = self._now if shares[IDLE] > 0.5 else self._now + 1.0 - part
                pause = Span(self._pause_begin, end, self._watch)
                self._pauses.append(_Pause(pause, tuple(self._pause_shares)))
                self._spans = None
            self._pause_shares = []
            return False
        for at, share in enumerate(shares):
            self._pause_shares[at] += share
        return self._is_paused

    @property
    def _is_paused(self) -> bool:
        return bool(self._pause_shares) and self._now + 1 - self._pause_second >= PAUSE_SECONDS_MIN

    def _count(self, state: int) -> None:
        """Count the pairs of states at each horizon, outside pauses."""
        self._mix[state] += 1.0
        if sum(self._mix) > PAIRS_MAX:
            self._mix = [count / 2 for count in self._mix]
        states = self._states
        for horizon in HORIZONS_SECONDS:
            if len(states) <= horizon:
                break
            before = states[-1 - horizon]
            if before == _NO_STATE:
                continue
            pairs = self._pairs[horizon]
            pairs[before][state] += 1.0
            self._pair_count[horizon] += 1.0
            if self._pair_count[horizon] > PAIRS_MAX:
                self._pair_count[horizon] /= 2
                for row in pairs:
                    row[:] = [count / 2 for count in row]

    def forecast(
        self, now: int, horizons_seconds: Sequence[float] = HORIZONS_SECONDS
    ) -> list[JobForecast]:
        """Return the forecast for each horizon from *now*, a time of the clock of `observe`.

        With too little data all values are NaN, and `reason` names the lack.
        """
        if reason := self._missing(now):
            return [JobForecast(horizon, reason=reason) for horizon in horizons_seconds]
        at = self._now + max(0, now - (self._last or 0))
        horizon_max = min(max(horizons_seconds), HORIZON_SECONDS_MAX)
        paths: dict[int, RenewalPaths] = {}
        reasons: dict[int, str] = {}
        for kind, (cadence, last) in self._known_cadences().items():
            if cadence.regular + cadence.irregular + 1 < ONSETS_MIN and not cadence.is_prior:
                reasons[kind] = (
                    f"{len((self._spans or {}).get(kind, ()))} of {ONSETS_MIN} onsets seen"
                )
                continue
            paths[kind] = RenewalPaths(cadence, last, at, horizon_max)
        found: list[tuple[float, ...]] = []
        for horizon in horizons_seconds:
            known = horizon <= HORIZON_SECONDS_MAX
            found.append(self._probabilities(paths, horizon) if known else (nan,) * len(STATES))
        demands = self._demands(np.array(found))
        for place, horizon in enumerate(horizons_seconds):
            for comparison in self._comparisons:
                if comparison.horizon == horizon:
                    by_states = demands[place]
                    demands[place] = comparison.better(by_states, self._current)
                    comparison.add(at, by_states, self._current)
        nexts = {kind: one.next_onset() for kind, one in paths.items()}
        return [
            JobForecast(
                horizon,
                found[place],
                self._event(CHECKPOINT, paths, nexts, reasons, horizon),
                self._event(HOST_STALL, paths, nexts, reasons, horizon),
                demands[place],
                "" if horizon <= HORIZON_SECONDS_MAX else f"beyond {HORIZON_SECONDS_MAX} s",
            )
            for place, horizon in enumerate(horizons_seconds)
        ]

    def _missing(self, now: int) -> str:
        if self._last is None or self.seen_seconds < SEEN_SECONDS_MIN:
            return f"{self.seen_seconds} of {SEEN_SECONDS_MIN} s with known phases seen"
        silent = now - self._last
        if silent > GAP_SECONDS_MAX:
            return f"no reading for {silent} s"
        return ""

    @staticmethod
    def _event(
        kind: int,
        paths: dict[int, RenewalPaths],
        nexts: dict[int, NextOnset],
        reasons: dict[int, str],
        horizon: float,
    ) -> EventForecast:
        if kind not in paths:
            return EventForecast(reason=reasons.get(kind, "none seen"))
        one = paths[kind]
        within = one.begins_within(horizon) if horizon <= HORIZON_SECONDS_MAX else nan
        return EventForecast(nexts[kind], one.cadence.interval, one.cadence.duration, within)

    def _known_cadences(self) -> dict[int, tuple[Cadence, Span | None]]:
        """Return the cadence and the last event of each kind of pause."""
        if self._spans is None:
            self._spans = self._classified()
        found: dict[int, tuple[Cadence, Span | None]] = {}
        for kind, spans in self._spans.items():
            found[kind] = self._cadences[kind], spans[-1] if spans else None
        cadence, last = found[CHECKPOINT]
        for interval, due in (self._hint, (self.prior_checkpoint_interval_seconds, nan)):
            # A checkpoint interval that three intervals did not confirm is ignored.
            if cadence.regular + 1 >= ONSETS_MIN or not interval > 0 or self._now > 3.2 * interval:
                continue
            if isfinite(due) and (last is None or due - interval > last.begin + 0.5 * interval):
                last = Span(due - interval, due - interval + 1.0)
            learned = cadence_of([], interval)
            cadence = learned._replace(
                regular=max(cadence.regular, 1),
                duration=cadence.duration,
                duration_spread=cadence.duration_spread,
                is_prior=True,
            )
            found[CHECKPOINT] = cadence, last or Span(0.0, 0.0)
            break
        self._open_kind = _NO_STATE
        if self._is_paused:
            self._open_kind = kind = self._kind_of_open(found)
            found[kind] = found[kind][0], Span(self._pause_begin, nan, self._watch)
        return found

    def _classified(self) -> dict[int, list[Span]]:
        """Return the pauses by kind, and find the cadence of each kind.

        Hosts call a regular pause a checkpoint from its third occurrence, each GPU separately, and miss some. Here the
        checkpoints of the gang are the longest regular pauses with a resident kernel; without regular pauses, the
        pauses that hosts call checkpoints.
        """
        quiet = [pause for pause in self._pauses if not pause.is_stall]
        checkpoints = regular_longest([pause.span for pause in quiet], CHECKPOINT_INTERVAL_MIN)
        if not checkpoints:
            checkpoints = [pause.span for pause in quiet if pause.is_labeled]
        chosen = set(checkpoints)
        found = {
            CHECKPOINT: checkpoints,
            HOST_STALL: [pause.span for pause in self._pauses if pause.is_stall],
            WAIT: [pause.span for pause in quiet if pause.span not in chosen],
        }
        self._cadences = {kind: cadence_of(spans) for kind, spans in found.items()}
        return found

    def _kind_of_open(self, cadences: dict[int, tuple[Cadence, Span | None]]) -> int:
        """Return the kind of the present pause: a checkpoint if it is due or the pause is long enough."""
        if _Pause(Span(0.0), tuple(self._pause_shares)).is_stall:
            return HOST_STALL
        cadence, last = cadences[CHECKPOINT]
        if not cadence.is_known:
            return WAIT
        is_long = self._now - self._pause_begin >= 0.7 * cadence.duration
        if last is None:
            return CHECKPOINT if is_long else WAIT
        origin = last.end if cadence.is_from_end else last.begin
        times = max(1, round((self._pause_begin - origin) / cadence.interval))
        off = abs(self._pause_begin - origin - times * cadence.interval)
        is_due = off <= max(3 * cadence.spread, 0.1 * cadence.interval)
        return CHECKPOINT if is_long or is_due else WAIT

    def _probabilities(self, paths: dict[int, RenewalPaths], horizon: float) -> tuple[float, ...]:
        between = self._between(horizon)
        left, found = 1.0, np.zeros(len(STATES))
        open_kind = self._open_kind
        for kind in _PAUSES:
            if kind in paths:
                is_on = paths[kind].is_on(horizon + 0.5)  # in the middle of that second
            else:
                open_seconds = self._now - self._pause_begin if kind == open_kind else nan
                spans = (self._spans or {}).get(kind, [])
                is_on = memoryless_is_on(spans, open_seconds, self._now, horizon)
            found[kind] += left * is_on
            left -= left * is_on
        found += left * between
        found = (1 - SURPRISE) * found + SURPRISE / len(STATES)
        return tuple((found / found.sum()).tolist())

    def _between(self, horizon: float) -> Floats:
        """Return the probability of each state *horizon* seconds from now, if the gang does not pause then."""
        mix: Floats = np.array(self._mix)
        mix = (mix + 0.2) / (mix.sum() + 0.2 * len(STATES))
        if not self._states or self._states[-1] == _NO_STATE:
            return mix
        learned = min(HORIZONS_SECONDS, key=lambda one: abs(one - horizon))
        if abs(learned - horizon) > 0.5:
            return mix
        counts = np.array(self._pairs[learned][self._states[-1]])
        return np.asarray((counts + PAIRS_PRIOR * mix) / (counts.sum() + PAIRS_PRIOR))

    def _demands(self, probabilities: Floats) -> list[tuple[DemandForecast, ...]]:
        """Return the demands for each row of *probabilities*, from the past demands of each state."""
        counts_seen = np.minimum(self._readings_count, READINGS_MAX)
        states = np.repeat(np.arange(len(STATES)), counts_seen)
        values = np.concatenate(
            [rows[:count] for rows, count in zip(self._readings, counts_seen, strict=True)]
        ).astype(np.float64)
        found: list[list[DemandForecast]] = [[] for _ in probabilities]
        for at in range(len(DEMANDS)):
            column = values[:, at]
            known = np.isfinite(column)
            counts = np.bincount(states[known], minlength=len(STATES))
            if not known.any():
                for demands in found:
                    demands.append(DemandForecast())
                continue
            order = np.argsort(column[known], kind="stable")
            ordered, of = column[known][order], states[known][order]
            weight = (probabilities / np.maximum(counts, 1))[:, of]
            totals = np.cumsum(weight, axis=1)
            for place, total in enumerate(totals):
                # States without any known demand must not decide.
                if not total[-1] >= 0.5:
                    found[place].append(DemandForecast())
                    continue
                picks = np.searchsorted(total, np.array([0.5, 0.05, 0.95]) * total[-1])
                found[place].append(
                    DemandForecast(*ordered[np.minimum(picks, ordered.size - 1)].tolist())
                )
        return [tuple(demands) for demands in found]
