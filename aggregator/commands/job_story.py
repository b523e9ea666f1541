"""Text output of `gangline job`: phases by host, pace, causes of slowdowns, and forecast."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from ...contract.client.terminal import printable, table
from ...contract.host_sets import fold_hosts

#: State -> (letter without color, terminal color code, color in a picture).
STATES: dict[str, tuple[str, int, str]] = {
    "compute": ("#", 32, "#2e9e6b"),
    "wait": (".", 33, "#e0a52f"),
    "host_stall": ("s", 31, "#d1495b"),
    "checkpoint": ("c", 34, "#4a7fd0"),
    "idle": ("_", 90, "#9aa0a6"),
}
#: Shown where no reading exists.
MISSING = " "
HOSTS_MAX = 16
BARS = "▁▂▃▄▅▆▇█"
BARS_ASCII = "_.-=+*#@"
#: Upper bound of a drawn pace, relative to the job's best minute.
PACE_MAX = 1.0
#: Shortest step in rows of the last minutes; longer stories have longer steps.
STEP_SECONDS = 10

Row = Mapping[str, Any]

#: Ranks that a story lists: stopped ranks first, then the slowest.
RANKS_SHOWN = 8
#: Parts of a step, from the columns `step_PART_ratio` of `gpu_fast_10s`.
STEP_PARTS = ("data_loading", "forward", "backward", "forward_backward", "optimizer")
#: Horizon of `ops.job_forecast` whose power is shown.
POWER_HORIZON_SECONDS = 60


@dataclass(slots=True)
class Timeline:
    """Phases of hosts, worst first, and the pace, in columns of equal time (Unix seconds)."""

    begin: float
    end: float
    columns: int
    hosts: list[str] = field(default_factory=list)
    #: Host -> per column the share of each state; None without readings.
    shares: dict[str, list[dict[str, float] | None]] = field(default_factory=dict)
    pace: list[float | None] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)

    def column(self, at: float) -> int:
        """Return the column of the Unix time *at*, limited to the picture."""
        share = (at - self.begin) / max(self.end - self.begin, 1.0)
        # A time on an edge belongs to the column that it begins.
        return min(self.columns - 1, max(0, int(share * self.columns + 1e-6)))


def seconds_of(time: datetime) -> float:
    """Return the Unix time of *time*; a time without a zone is UTC."""
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def rank_lines(ranks: Sequence[Row]) -> list[str]:
    """Return a table of the step times that ranks report, slowest first; empty without ranks."""
    if not ranks:
        return []

    def worst_first(row: Row) -> tuple[float, float]:
        return -(row["step_seconds"] or math.inf), -(row["since_seconds"] or 0.0)

    rows = [("RANK", "HOST", "STEP", "SPREAD", "STEPS", "LAST ENDED")]
    for row in sorted(ranks, key=worst_first)[:RANKS_SHOWN]:
        seconds, spread = row["step_seconds"], row["spread_seconds"]
        rows.append(
            (
                "-" if row["rank"] is None else str(row["rank"]),
                str(row["host"]),
                "stands" if seconds is None else f"{seconds:.4g} s",
                "-" if spread is None or not seconds else f"{100 * spread / seconds:.1f} %",
                str(row["steps_count"]),
                f"{row['since_seconds'] or 0.0:.0f} s ago",
            )
        )
    lines = table(rows).splitlines()
    if len(ranks) > RANKS_SHOWN:
        lines.append(f"{len(ranks) - RANKS_SHOWN} more ranks in ops.job_steps")
    return lines


def make_timeline(
    phases: Sequence[Row], pace: Sequence[Row], culprits: Sequence[str], columns: int
) -> Timeline:
    """Return the timeline of *phases* and *pace*. *culprits*: hosts to list first, worst first."""
    times = [seconds_of(row["time"]) for row in (*phases, *pace)]
    moments = sorted(set(times))
    step = min((b - a for a, b in pairwise(moments) if b - a >= STEP_SECONDS), default=STEP_SECONDS)
    begin, end = moments[0], moments[-1] + step
    columns = max(1, min(columns, round((end - begin) / step)))
    timeline = Timeline(begin, end, columns)
    cells: dict[tuple[str, int], dict[str, list[float]]] = {}
    for row in phases:
        key = (row["host"], timeline.column(seconds_of(row["time"])))
        cell = cells.setdefault(key, defaultdict(list))
        for state in STATES:
            cell[state].append(float(row[f"{state}_ratio"] or 0.0))
    hosts = sorted({host for host, _ in cells})
    for host in hosts:
        timeline.shares[host] = [
            {state: sum(v) / len(v) for state, v in cell.items()} if cell else None
            for cell in (cells.get((host, column)) for column in range(columns))
        ]
    rank = {host: index for index, host in reversed(list(enumerate(culprits)))}
    # The host that waits least delays the others.
    timeline.hosts = sorted(hosts, key=lambda h: (rank.get(h, len(rank)), _waited(timeline, h), h))
    timeline.pace = [None] * columns
    by_column: dict[int, list[float]] = defaultdict(list)
    for row in pace:
        column = timeline.column(seconds_of(row["time"]))
        if row["pace"] is not None:
            by_column[column].append(float(row["pace"]))
        if row["is_change"]:
            timeline.changes.append(column)
    for column, values in by_column.items():
        timeline.pace[column] = sum(values) / len(values)
    return timeline


def _waited(timeline: Timeline, host: str) -> float:
    seen = [cell["wait"] for cell in timeline.shares[host] if cell is not None]
    return sum(seen) / len(seen) if seen else 0.0


def main_state(cell: Mapping[str, float] | None) -> str:
    """Return the state with the largest share; "" without readings."""
    return "" if cell is None else max(STATES, key=lambda state: cell.get(state, 0.0))


def timeline_lines(timeline: Timeline, *, colour: bool, hosts_max: int = HOSTS_MAX) -> list[str]:
    """Return a line per host, worst first, then pace, times and legend."""
    shown = timeline.hosts[:hosts_max]
    width = max([len(host) for host in shown] + [4])
    lines = [
        f"{host:<{width}}  {''.join(_cell(cell, colour=colour) for cell in timeline.shares[host])}"
        for host in shown
    ]
    if more := len(timeline.hosts) - len(shown):
        lines.append(
            f"{'':<{width}}  … {more} more" if colour else f"{'':<{width}}  ... {more} more"
        )
    bars = BARS if colour else BARS_ASCII
    line = "".join(" " if p is None else bars[_level(p, len(bars))] for p in timeline.pace)
    lines.append(f"{'pace':<{width}}  {line}")
    if timeline.changes:
        marks = "".join(
            "^" if column in timeline.changes else " " for column in range(timeline.columns)
        )
        lines.append(f"{'':<{width}}  {marks.rstrip()}")
    first, last = clock(timeline.begin), clock(timeline.end)
    lines.append(f"{'':<{width}}  {first}{last.rjust(max(timeline.columns - len(first), 9))}")
    lines.append(
        f"{'':<{width}}  {_legend(colour=colour)}{'; ^ pace changed' if timeline.changes else ''}"
    )
    return lines


def clock(at: float) -> str:
    """Return the time of day of a Unix time, in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"


def _level(pace: float, count: int) -> int:
    return round(min(max(pace / PACE_MAX, 0.0), 1.0) * (count - 1))


def _cell(cell: Mapping[str, float] | None, *, colour: bool) -> str:
    state = main_state(cell)
    if not state:
        return MISSING
    letter, code, _ = STATES[state]
    return f"\x1b[{code}m█\x1b[0m" if colour else letter


def _legend(*, colour: bool) -> str:
    return "  ".join(
        f"\x1b[{code}m█\x1b[0m {name.replace('_', ' ')}"
        if colour
        else f"{letter} {name.replace('_', ' ')}"
        for name, (letter, code, _) in STATES.items()
    )


def culprits_of(verdicts: Iterable[Row]) -> list[str]:
    """Return the hosts at fault, the worst verdict first."""
    hosts = (host for v in verdicts for host in (v.get("hosts") or [v["host"]]) if host)
    return list(dict.fromkeys(hosts))


def verdict_text(verdict: Row) -> str:
    """Return a line on a verdict: the shared cause or the host, the slowdown, the reason."""
    hosts = verdict.get("hosts") or ([verdict["host"]] if verdict["host"] else [])
    names = fold_hosts(hosts)
    slow = verdict["slowdown_ratio"]
    by = "" if not slow else ", stops it" if slow >= 1 else f", {100 * slow:.0f} % slow"
    if not slow and verdict["verdict"] in ("node", "link"):
        by = " is broken, and the job goes on"
    if verdict.get("shared_cause"):
        return f"{verdict['shared_cause']} ({names}){by}: {verdict['message']}"
    if verdict["verdict"] == "neighbor":  # the host is not at fault
        return str(verdict["message"])
    return f"{names or verdict['verdict']}{by}: {verdict['message']}"


def straggler_lines(verdicts: Iterable[Row]) -> list[str]:
    """Return a paragraph for each verdict: party, slowdown, times, loss, reason, next command."""
    lines = []
    for verdict in verdicts:
        slow, lower, upper = (
            verdict[f"{name}_ratio"] for name in ("slowdown", "slowdown_lower", "slowdown_upper")
        )
        by = "" if slow is None else ", stops it" if slow >= 1 else f", {100 * slow:.0f} % slow"
        if by and lower is not None and upper is not None:
            by += f" (90 % interval {100 * lower:.0f} to {100 * upper:.0f})"
        since = clock(seconds_of(verdict["since"]))
        if verdict["until"] is None:
            when = f"since {since}"
        else:
            when = f"{since} to {clock(seconds_of(verdict['until']))}"
        lost = verdict["lost_gpu_hours"] or 0.0
        hosts = fold_hosts(verdict.get("hosts") or ([verdict["host"]] if verdict["host"] else []))
        party = verdict.get("shared_cause") or hosts or "no host"
        of_hosts = f" of {hosts}" if verdict.get("shared_cause") and hosts else ""
        lines.append(
            f"{party}{of_hosts}: {verdict['verdict']}, {verdict['cause']}{by}, {when}, {lost:.2f} GPU-hours lost"
        )
        if verdict["message"]:
            lines.append(f"   {verdict['message']}")
        if verdict.get("next"):
            lines.append(f"   next: {verdict['next']}")
    return lines


def pace_text(job: Row) -> str:
    """Return a clause on a job's pace and its reference; "" if unknown."""
    if job.get("pace") is None or not job.get("pace_reference"):
        return ""
    reference_time = job.get("pace_reference_time")
    when = f" (at {reference_time:%H:%M:%S})" if reference_time else ""
    return f"; pace {100 * min(job['pace'], 1.0):.0f} % of the {job['pace_reference']}{when}, by {job['pace_measure']}"


def run_line(run: Row) -> str:
    """Return a line that compares a run with earlier runs of its workload.

    The comparison also shows a job that was slow from its first step.
    """
    kind = str(run["workload_class"] or "unknown").replace("_", " ")
    line = f"workload: {kind}"
    if kind != "unknown" and run["class_confidence"]:
        # Earlier versions stored confidences up to 1.
        line += f" ({100 * min(run['class_confidence'], 0.98):.0f} % sure)"
    count = run["earlier_runs"] or 0
    if not count:
        return f"{line}; no earlier run of it is known"
    runs = "earlier run" if count == 1 else "earlier runs"
    if run["pace_ratio"] is None:
        return f"{line}; {count} {runs} of it, none with a comparable pace"
    slow = ", slower than before" if run["slower_than_before"] else ""
    if run["slow_hosts"]:
        names = [printable(str(host)) for host in run["slow_hosts"]]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        slow += f": on {', '.join(names[:3])}{more} other workloads were slow, too"
    elif run["verdict"] == "slower: the workload changed":
        slow += ": each step has more work than before"
    bounds = run["pace_ratio_lower"], run["pace_ratio_upper"]
    interval = (
        "" if None in bounds else f" (90 % interval {100 * bounds[0]:.0f} to {100 * bounds[1]:.0f})"
    )
    return f"{line}; it runs at {100 * run['pace_ratio']:.0f} % of the pace of {count} {runs}{interval}{slow}"


def parts_text(step: Row) -> str:
    """Return the known parts of a step, in parentheses; "" for none."""
    parts = [
        f"{part.replace('_', ' ')} {100 * share:.0f} %"
        for part in STEP_PARTS
        if (share := step.get(f"step_{part}_ratio")) is not None
    ]
    confidence = step.get("step_parts_confidence_ratio")
    sure = "" if confidence is None else f"; {100 * confidence:.0f} % sure"
    return f" ({', '.join(parts)}{sure})" if parts else ""


def forecast_line(forecast: Sequence[Row]) -> str:
    """Return the job's forecast. *forecast*: rows of `ops.job_forecast`, nearest horizon first."""
    first = forecast[0]
    if first["reason"]:
        return f"Next: not known yet ({first['reason']})"
    parts = [
        part
        for name, label in (("checkpoint", "checkpoint"), ("host_stall", "host stall"))
        if (part := _onset_text(first, name, label))
    ]
    if not parts:
        parts.append(f"no checkpoint is predicted ({first['checkpoint_reason']})")
    power_row = min(forecast, key=lambda row: abs(row["horizon_seconds"] - POWER_HORIZON_SECONDS))
    if power_row["power_watts"] is not None:
        low = _watts_text(power_row["power_watts_lower"])
        high = _watts_text(power_row["power_watts_upper"])
        parts.append(
            f"power in {power_row['horizon_seconds']:.0f} s {_watts_text(power_row['power_watts'])} (90 %: {low} to {high})"
        )
    return "Next: " + ", ".join(parts)


def _onset_text(row: Row, name: str, phrase: str) -> str:
    """Return the time and certainty of the next onset; "" if unknown."""
    times = [row[f"next_{name}_{part}"] for part in ("at", "from", "until")]
    if None in times:
        return ""
    now = seconds_of(row["now"])
    expected, begin, end = (max(0.0, seconds_of(time) - now) for time in times)
    probability = 100 * row[f"next_{name}_probability"]
    return f"{phrase} in {expected:.0f} s (90 %: {begin:.0f} to {end:.0f} s, {probability:.0f} % sure of the cadence)"


def _watts_text(watts: float) -> str:
    for unit, size in (("MW", 1e6), ("kW", 1e3)):
        if watts >= size:
            return f"{watts / size:.3g} {unit}"
    return f"{watts:.0f} W"


def lost_by_cause(stragglers: Iterable[Row]) -> dict[str, float]:
    """Return GPU-hours lost by cause, most first; a moment counts for its slowest member only."""
    lost: dict[str, float] = defaultdict(float)
    for straggler in stragglers:
        lost[str(straggler["cause"])] += float(straggler["lost_gpu_hours"] or 0.0)
    return dict(sorted(((c, h) for c, h in lost.items() if h > 0), key=lambda pair: -pair[1]))
