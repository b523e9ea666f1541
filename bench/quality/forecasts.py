"""Forecasts of a job against what happened: state, next checkpoint and host stall, power and traffic."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.quality import forecast_runs
from bench.quality.forecast_runs import KnownRun
from bench.quality.markdown import number, table
from bench.quality.progress import Progress
from gangline.fingerprints.forecast import (
    CHECKPOINT,
    DEMANDS,
    HORIZONS_SECONDS,
    HOST_STALL,
    STATES,
    EventForecast,
    JobForecaster,
    JobSecond,
)

Floats = NDArray[np.float64]
RECORDINGS = (
    Path(__file__).parents[2] / "../shared/data/power/h100x8_ckpt_every_10.csv",
    Path(__file__).parents[2] / "../shared/data/power/h100x8_ckpt_every_100.csv",
)
#: Seconds between two forecasts that are scored, and before the first.
EVERY_SECONDS, FIRST_SECONDS = 10, 60
#: Drawn workloads, and gangs of each kind.
WORKLOADS, GANGS = 16, 3
#: Resolution of a correct window: readings are of seconds.
RESOLUTION_SECONDS = 1.0
#: Bounds of the bands of stated probabilities.
STATED = (0.0, 0.5, 0.7, 0.85, 0.95, 1.01)
_POWER, _NIC = DEMANDS.index("power_watts"), DEMANDS.index("nic_bytes_per_second")
KINDS = {CHECKPOINT: "checkpoint", HOST_STALL: "host stall"}

PREDICTORS = ("forecast", "persistence", "period alone", "mix so far")


@dataclass
class Scores:
    """Scores of the forecasts of several runs, by horizon."""

    count: dict[int, int] = field(default_factory=lambda: dict.fromkeys(HORIZONS_SECONDS, 0))
    abstained: int = 0
    asked: int = 0
    brier: dict[str, dict[int, float]] = field(default_factory=dict)
    #: Horizon -> squared errors of "a checkpoint begins within": forecast, cadence, base rate.
    within: dict[int, list[tuple[float, float, float]]] = field(default_factory=dict)
    #: Kind of pause -> per onset (true in 50 %, true in 90 %, width of 90 %, error, error of the
    #: last interval again), and the count without a window.
    windows: dict[int, list[tuple[bool, bool, float, float, float]]] = field(default_factory=dict)
    unpredicted: dict[int, int] = field(default_factory=dict)
    #: Kind -> seconds before each onset since which every window of 90 % contained it; 0: the last
    #: window did not.
    lead: dict[int, list[float]] = field(default_factory=dict)
    #: (stated probability, whether it came within a tenth of the interval).
    stated: list[tuple[float, bool]] = field(default_factory=list)
    #: (demand, horizon) -> per forecast (error, error of persistence, error of the mean of 10 s,
    #: held, width), as shares of the mean.
    demands: dict[tuple[int, int], list[tuple[float, float, float, bool, float]]] = field(
        default_factory=dict
    )

    def add_brier(self, name: str, horizon: int, probabilities: Floats, state: int) -> None:
        """Add the squared distance of *probabilities* from the outcome, over all states."""
        outcome = np.eye(len(STATES))[state]
        by_horizon = self.brier.setdefault(name, dict.fromkeys(HORIZONS_SECONDS, 0.0))
        by_horizon[horizon] += float(((probabilities - outcome) ** 2).sum())


def score(runs: Iterable[KnownRun]) -> Scores:
    """Return the scores of *runs*."""
    scores = Scores()
    for run in runs:
        _score_run(run, scores)
    return scores


def _score_run(run: KnownRun, scores: Scores) -> None:
    forecaster = JobForecaster()
    seen = np.zeros(len(STATES))
    events: dict[int, list[tuple[int, EventForecast]]] = {kind: [] for kind in run.onsets}
    last = max(HORIZONS_SECONDS)
    hint, duration = (np.nan, np.nan), np.nan
    known = np.isfinite(run.demands)
    mean = np.where(known, run.demands, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    for second, summary in enumerate(run.seconds):
        forecaster.observe(second, summary)
        if isfinite(sum(summary.shares)):
            seen[int(np.argmax(summary.shares))] += 1
        if isfinite(summary.next_checkpoint_seconds):
            hint = second + summary.next_checkpoint_seconds, summary.checkpoint_interval_seconds
            duration = _checkpoint_seconds(run.seconds[: second + 1])
        if second < FIRST_SECONDS or second % EVERY_SECONDS:
            continue
        scores.asked += 1
        forecast = forecaster.forecast(second)
        if forecast[0].reason:
            scores.abstained += 1
            continue
        for kind, event_forecast in events.items():
            event_forecast.append((second, forecast[0].checkpoint if kind == CHECKPOINT else forecast[0].host_stall))  # fmt: skip
        now = int(np.argmax(summary.shares))
        for index, horizon in enumerate(HORIZONS_SECONDS):
            if second + horizon >= len(run.seconds):
                continue
            scores.count[horizon] += 1
            state = int(run.state[second + horizon])
            alone = _by_period(second + horizon, hint, duration, seen)
            for name, probabilities in (
                ("forecast", np.array(forecast[index].probabilities)), ("persistence", np.eye(len(STATES))[now]),
                ("period alone", alone), ("mix so far", seen / seen.sum()),
            ):  # fmt: skip
                scores.add_brier(name, horizon, probabilities, state)
            _score_demands(run, scores, second, horizon, forecast[index].demands, mean)
            _score_within(run, scores, second, horizon, forecast[index].checkpoint.within, hint)
    for kind, event_forecast in events.items():
        _score_onsets(run, scores, kind, event_forecast, len(run.seconds) - last)


def _checkpoint_seconds(seconds: Sequence[JobSecond]) -> float:
    is_on = np.array([int(np.argmax(second.shares)) == CHECKPOINT for second in seconds])
    begins = int((np.diff(np.concatenate([[0], is_on.astype(int)])) == 1).sum())
    return float(is_on.sum() / begins) if begins else 0.0


def _by_period(at: float, hint: tuple[float, float], duration: float, seen: Floats) -> Floats:
    """Return the forecast from the interval of checkpoints alone.

    A checkpoint is certain when due; else the usual state is.
    """
    due, interval = hint
    usual = seen.copy()
    usual[CHECKPOINT] = 0.0
    is_on = isfinite(due) and interval > 0 and at >= due and (at - due) % interval < duration
    return np.asarray(np.eye(len(STATES))[CHECKPOINT if is_on else int(np.argmax(usual))])


def _score_within(
    run: KnownRun, scores: Scores, second: int, horizon: int, within: float, hint: tuple[float, float]
) -> None:  # fmt: skip
    due, interval = hint
    if not isfinite(within) or not isfinite(due):
        return
    came = any(second < onset <= second + horizon for onset in run.onsets.get(CHECKPOINT, ()))
    while due <= second:
        due += max(interval, 1.0)
    alone = float(due <= second + horizon)
    before = [onset for onset in run.onsets.get(CHECKPOINT, ()) if onset <= second]
    base = min(1.0, horizon * len(before) / (second + 1))
    scores.within.setdefault(horizon, []).append(
        ((within - came) ** 2, (alone - came) ** 2, (base - came) ** 2)
    )


def _score_demands(
    run: KnownRun, scores: Scores, second: int, horizon: int, found: Sequence[tuple[float, float, float]], mean: Floats
) -> None:  # fmt: skip
    for demand in (_POWER, _NIC):
        true, now = run.demands[second + horizon, demand], run.seconds[second].demands[demand]
        middle, low, high = found[demand]
        if not (isfinite(true) and isfinite(now) and isfinite(middle) and mean[demand] > 0):
            continue
        recent = float(
            np.nanmean([past.demands[demand] for past in run.seconds[second - 9 : second + 1]])
        )
        scores.demands.setdefault((demand, horizon), []).append((
            abs(middle - true) / mean[demand], abs(now - true) / mean[demand], abs(recent - true) / mean[demand],
            low * (1 - 1e-6) <= true <= high * (1 + 1e-6),
            (high - low) / mean[demand],
        ))  # fmt: skip


def _score_onsets(
    run: KnownRun, scores: Scores, kind: int, told: list[tuple[int, EventForecast]], end: float
) -> None:
    """Score each onset by the forecast made in the middle of the interval before it.

    Later forecasts, up to the onset, give the lead.
    """
    windows, leads = scores.windows.setdefault(kind, []), scores.lead.setdefault(kind, [])
    scores.unpredicted.setdefault(kind, 0)
    before, again = 0.0, np.nan
    for onset in run.onsets[kind]:
        off_again = abs(again - onset)
        again = 2 * onset - before if before else np.nan
        own = [(made_at, forecast) for made_at, forecast in told if before < made_at <= onset - 1]
        middle = (before + onset) / 2
        before = onset
        if not own:
            continue
        made_at, nearest = min(own, key=lambda pair: abs(pair[0] - middle))
        if not isfinite(nearest.onset.seconds):
            scores.unpredicted[kind] += 1
            continue
        off = onset - made_at
        windows.append((
            _holds(nearest.onset.window_50, off), _holds(nearest.onset.window_90, off),
            nearest.onset.window_90[1] - nearest.onset.window_90[0], abs(nearest.onset.seconds - off), off_again,
        ))  # fmt: skip
        near = abs(nearest.onset.seconds - off) <= max(
            0.1 * nearest.interval_seconds, RESOLUTION_SECONDS
        )
        scores.stated.append((nearest.onset.probability, near))
        lead = 0.0
        for made_at, nearest in reversed(own):
            if not isfinite(nearest.onset.seconds) or not _holds(
                nearest.onset.window_90, onset - made_at
            ):
                break
            lead = onset - made_at
        leads.append(lead)


def _holds(window: tuple[float, float], seconds: float) -> bool:
    return window[0] - RESOLUTION_SECONDS <= seconds <= window[1] + RESOLUTION_SECONDS


def _tables(scores: Scores) -> list[str]:
    lines = [f"{scores.asked:,} forecasts, {scores.abstained:,} without an answer.", ""]
    for part in (_brier_table, _within_table, _onsets_table, _stated_table, _demands_table):
        if text := part(scores):
            lines += [text, ""]
    return lines


def _brier_table(scores: Scores) -> str:
    rows = [
        [f"{horizon} s", f"{count:,}", *(f"{scores.brier[name][horizon] / count:.3f}" for name in PREDICTORS)]
        for horizon, count in scores.count.items()
        if count
    ]  # fmt: skip
    return table(("Brier score of the state in", "forecasts", *PREDICTORS), rows) if rows else ""


def _within_table(scores: Scores) -> str:
    rows = [
        [f"{horizon} s", f"{len(errors):,}", *(f"{mean:.3f}" for mean in np.mean(errors, axis=0))]
        for horizon, errors in sorted(scores.within.items())
    ]
    heads = ("Brier score of a checkpoint within", "forecasts", "forecast", "period alone", "base rate")  # fmt: skip
    return table(heads, rows) if rows else ""


def _onsets_table(scores: Scores) -> str:
    rows = []
    for kind, errors in scores.windows.items():
        if not errors and not scores.unpredicted[kind]:
            continue
        result = np.array(errors, dtype=np.float64).reshape(-1, 5)
        leads = np.array(scores.lead[kind])
        shares, middles = [np.nan] * 2, [np.nan] * 3
        if len(result):
            shares, middles = result[:, :2].mean(axis=0).tolist(), np.nanmedian(result[:, 2:], axis=0).tolist()  # fmt: skip
        rows.append([
            KINDS[kind], str(len(result)), str(scores.unpredicted[kind]), *(_percent(share) for share in shares),
            *(f"{number(middle)} s" for middle in middles), f"{number(float(np.median(leads)))} s" if len(leads) else "-",
            str(int((leads == 0).sum())),
        ])  # fmt: skip
    heads = ("onset of", "predicted", "no prediction", "in the window of 50 %", "of 90 %", "width of 90 %, median", "error, median", "of the last interval again", "lead, median", "missed")  # fmt: skip
    return table(heads, rows) if rows else ""


def _stated_table(scores: Scores) -> str:
    rows = []
    for low, high in itertools.pairwise(STATED):
        pairs = [(p, float(is_near)) for p, is_near in scores.stated if low <= p < high]
        if pairs:
            stated, came = np.mean(pairs, axis=0).tolist()
            rows.append([f"{low:.2f} to {min(high, 1):.2f}", str(len(pairs)), f"{stated:.2f}", f"{came:.2f}"])  # fmt: skip
    heads = ("stated probability that an onset is near its time", "onsets", "stated, mean", "came true")  # fmt: skip
    return table(heads, rows) if rows else ""


def _demands_table(scores: Scores) -> str:
    rows = []
    for (demand, horizon), errors in sorted(scores.demands.items()):
        means = np.mean(np.array(errors, dtype=np.float64), axis=0).tolist()
        name = "power" if demand == _POWER else "bytes of NICs"
        rows.append([name, f"{horizon} s", f"{len(errors):,}", *(_percent(mean) for mean in means)])
    heads = ("demand", "in", "forecasts", "mean error", "of persistence", "of the mean of 10 s", "in the interval of 90 %", "its width")  # fmt: skip
    return table(heads, rows) if rows else ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if isfinite(share) else "-"


def section(seed: int, progress: Progress) -> str:
    kinds = [(kind, offset) for kind in forecast_runs.GANG_KINDS for offset in range(GANGS)]
    gangs = []
    for number_, (kind, offset) in enumerate(kinds):
        progress(f"forecasts: {kind}", number_ / len(kinds))
        gangs.append(forecast_runs.gang(kind, seed * 100 + offset))
    available = [path for path in RECORDINGS if path.exists()]
    lines = [
        "## What comes next", "", "    python -m bench.quality.jobs --only forecasts", "",
        str(forecast_runs.__doc__).split("\n\n", 1)[1].strip(), "",
        f"A forecast is made every {EVERY_SECONDS} s from second {FIRST_SECONDS} on. An onset is scored once, by the forecast made in the middle of the interval",
        "before it. Windows are widened by 1 s on both sides, because readings have a resolution of seconds.",
        "",
        "- *Brier score*: squared distance of the probabilities to the outcome, summed over five states. 0 is perfect; 2 is certain and",
        "  wrong.",
        "- *Persistence*: the state stays.",
        "- *Period alone*: a certain checkpoint if the interval that hosts learned says so, and else the usual state.",
        "- *Mix so far*: how often each state was until now.",
        "- *Lead*: the time before an onset for which every window of 90 % contained it. *Missed*: the last window did not contain it.",
        "- Errors of demands are shares of their mean over the run.",
        "",
        "### Simulated gangs, through the tracker", "", *_tables(score(gangs)),
        "### Simulated workloads, second by second", "", *_tables(score(forecast_runs.workloads(seed, WORKLOADS))),
    ]  # fmt: skip
    if available:
        recorded = [forecast_runs.recording(path) for path in available]
        lines += [
            "### Recorded: 8 H100s that train", "",
            f"{', '.join(f'`{path.name}`' for path in available)}: the pauses of these jobs are irregular, and few.", "",
            *_tables(score(recorded)),
        ]  # fmt: skip
    return "\n".join(lines)
