"""The table of hosts as text: worst hosts last, next to the prompt, with a caption below."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any, TypeVar

from ...contract.client.score_client import ExpectedSlowdowns, ScoreListing
from ...contract.client.terminal import cut, table
from ...contract.host_sets import fold_hosts
from ...contract.text import counted
from ...contract.wire import score_pb2

HEADINGS = (
    "HOST", "SCORE", "STATE", "HAZARD/DAY", "SPEED", "SLOWER", "NEIGHBORS", "HEARD", "JOB", "REASON",
)  # fmt: skip
#: Columns of numbers, right-aligned.
RIGHT = ("SCORE", "HAZARD/DAY", "SPEED", "SLOWER", "HEARD")
#: Below this width the reason takes the space of these columns: the score implies the hazard, and
#: STALE implies the age.
NARROW_CHARACTERS, NOT_WHEN_NARROW = 100, ("HAZARD/DAY", "HEARD")
HOST_CHARACTERS_MAX, JOB_CHARACTERS_MAX, NEIGHBOR_CHARACTERS_MAX = 32, 16, 12
REASON_CHARACTERS_MIN = 24
#: A smaller slowdown by neighbors, as a ratio, does not keep a host out of a shared row.
SLOWED_MIN = 0.01
#: Larger hazards are printed as above this value.
HAZARD_PER_DAY_MAX = 99.0
#: Shown as hazard if the host is UNHEALTHY with a score below the limit: it interrupts any job.
BROKEN, BROKEN_SCORE_MAX = "broken now", 0.01

_STYLES = {
    score_pb2.UNHEALTHY: "red",
    score_pb2.SUSPECT: "magenta",
    score_pb2.DEGRADED: "yellow",
    score_pb2.WATCH: "cyan",
    score_pb2.STALE: "dim",
    score_pb2.UNKNOWN: "dim",
}


@dataclass(frozen=True, slots=True)
class FoldedHosts:
    """Hosts in a shared row, worst first: with a common cause, a common wait, or healthy."""

    scores: tuple[score_pb2.NodeScore, ...]

    @property
    def state(self) -> score_pb2.HealthState:
        """The worst state of the hosts."""
        return self.scores[0].state

    @property
    def simulated(self) -> bool:
        """Whether the hosts are simulated."""
        return self.scores[0].simulated

    def cells(self) -> dict[str, str]:
        """Return the cells by heading, each with the worst value of all hosts."""
        first, count = self.scores[0], len(self.scores)
        worst = row(
            max(self.scores, key=lambda score: score.data_age.ToNanoseconds())
            if all(score.HasField("data_age") for score in self.scores)
            else next(score for score in self.scores if not score.HasField("data_age"))
        )
        speeds = [s.relative_speed for s in self.scores if not math.isnan(s.relative_speed)]
        names = fold_hosts(map(host_of, self.scores))
        jobs = {score.job for score in self.scores}
        return worst | {
            "STATE": enum_name(score_pb2.HealthState, first.state),
            "HOST": f"{count} hosts" + (" (sim)" if first.simulated else ""),
            "SCORE": floor_text(min(score.score for score in self.scores), 4),
            "HAZARD/DAY": BROKEN
            if any(map(is_broken, self.scores))
            else hazard_per_day(max(score.hazard_per_hour for score in self.scores)),
            "SPEED": f"{min(speeds):.2f}" if speeds else "-",
            "JOB": row(first)["JOB"] if len(jobs) == 1 else "",
            "REASON": f"{_shared_reason(first)}: {names}",
        }


def _shared_reason(first: score_pb2.NodeScore) -> str:
    """Return the reason that the hosts in the row of *first* share."""
    if first.shared_cause:
        advisory = first.shared_cause_advisory.removeprefix("advisories/")
        return f"{first.shared_cause} (gangline advise show {advisory})"
    return f"wait for {_waited_for(first)}" if first.waits_for else "nothing wrong"


Row = score_pb2.NodeScore | FoldedHosts
AnyRow = TypeVar("AnyRow", bound=Row)


def render(
    hosts: Iterable[Row],
    width: int,
    *,
    colour: bool = False,
    slowdowns: ExpectedSlowdowns | None = None,
) -> str:
    """Return the table of *hosts*, given worst first, at most *width* wide (0: unlimited).

    *slowdowns*: a job's slowdowns; None: the table has no columns SLOWER and NEIGHBORS.
    """
    scores = list(hosts)[::-1]
    if not scores:
        return "no hosts"
    is_narrow = 0 < width < NARROW_CHARACTERS
    cell_rows = [host.cells() if isinstance(host, FoldedHosts) else row(host) for host in scores]
    for host, by_heading in zip(scores, cell_rows, strict=True):
        by_heading["SLOWER"] = _slower(host, slowdowns.by_host if slowdowns else {})
        by_heading["NEIGHBORS"] = _neighbors(host, slowdowns.neighbors if slowdowns else {})
    left_out = NOT_WHEN_NARROW if is_narrow else ()
    if not slowdowns:
        left_out = (*left_out, "SLOWER")
    if not any(cells["NEIGHBORS"] for cells in cell_rows):
        left_out = (*left_out, "NEIGHBORS")
    elif is_narrow:  # the neighbors are named, and SLOWER has the speed for this job
        left_out = (*left_out, "JOB", "SPEED")
    if not any(cells["JOB"] for cells in cell_rows):
        left_out = (*left_out, "JOB")
    shown = [h for h in HEADINGS if h not in left_out]
    rows = [[cells[heading] for heading in shown] for cells in cell_rows]
    others = [max(map(len, column)) for column in zip(shown, *rows, strict=True)][:-1]
    room = max(REASON_CHARACTERS_MIN, width - sum(others) - 2 * len(others))
    for score, cells in zip(scores, rows, strict=True):
        if width and not isinstance(score, FoldedHosts) and len(cells[-1]) > room:
            cells[-1] = _with_code(score, cells[-1])
    styles = [_STYLES.get(score.state, "") for score in scores] if colour else None
    return table([shown, *rows], width, right=RIGHT, one_line=True, styles=styles)


def _slower(row: Row, slowdowns: Mapping[str, float]) -> str:
    """Return the relative slowdown of a step; for a shared row, the slowest host's."""
    scores = row.scores if isinstance(row, FoldedHosts) else (row,)
    slowdowns_of_hosts = [slowdowns.get(host_of(score), math.nan) for score in scores]
    known = [slowdown for slowdown in slowdowns_of_hosts if not math.isnan(slowdown)]
    return f"{100 * max(known):.0f} %" if known else "-"


def _neighbors(row: Row, neighbors: Mapping[str, score_pb2.NodeNeighbors]) -> str:
    """Return the jobs beside a job on a host and its slowdown, ~: predicted; for a shared row, the worst."""
    scores = row.scores if isinstance(row, FoldedHosts) else (row,)
    known = [neighbors[host] for host in map(host_of, scores) if host in neighbors]
    if not known:
        return ""
    worst = max(known, key=lambda own: -1.0 if math.isnan(own.slowdown) else own.slowdown)
    names = cut(worst.jobs[0] or "?", NEIGHBOR_CHARACTERS_MAX) if worst.jobs else "?"
    more = f" +{len(worst.jobs) - 1}" if len(worst.jobs) > 1 else ""
    if math.isnan(worst.slowdown):
        return f"{names}{more} ?"
    return f"{names}{more} {'' if worst.measured else '~'}{100 * worst.slowdown:.0f} %"


def enum_name(kind: Any, number: int) -> str:
    """Return the name of *number* in the enumeration *kind*; an unknown value's number."""
    return str(kind.Name(number)) if number in kind.values() else str(number)


def _with_code(score: score_pb2.NodeScore, text: str) -> str:
    """Return the reason's *text* after its code: long text is cut, and its cause is often last."""
    if score.state == score_pb2.HEALTHY or not score.reason:
        return text
    code = enum_name(score_pb2.ReasonCode, score.reason).removeprefix("REASON_")
    return f"{code.replace('_', ' ').lower()}: {text}"


def row(score: score_pb2.NodeScore) -> dict[str, str]:
    """Return a host's cells by heading."""
    return {
        "HOST": cut(host_of(score), HOST_CHARACTERS_MAX) + (" (sim)" if score.simulated else ""),
        "SCORE": floor_text(score.score, 4),
        "STATE": enum_name(score_pb2.HealthState, score.state),
        "HAZARD/DAY": BROKEN if is_broken(score) else hazard_per_day(score.hazard_per_hour),
        "SPEED": "-" if math.isnan(score.relative_speed) else f"{score.relative_speed:.2f}",
        "HEARD": age(score),
        "JOB": cut(score.job, JOB_CHARACTERS_MAX),
        "REASON": reason(score),
    }


def is_broken(score: score_pb2.NodeScore) -> bool:
    """Return whether the host interrupts any job that starts there."""
    return score.state == score_pb2.UNHEALTHY and score.score < BROKEN_SCORE_MAX


def reason(score: score_pb2.NodeScore) -> str:
    """Return the reason for the host's position in the table.

    Reasons that moved nothing are omitted, see `gangline explain`. Silence with a frozen state is a
    reason, and so is waiting for another host of the job.
    """
    if score.state != score_pb2.HEALTHY or score.reason == score_pb2.REASON_STALE_TELEMETRY:
        return score.reason_message
    if score.waits_for:
        return f"waits for {_waited_for(score)}"
    return "nothing wrong (a note)" if score.reason_message else "nothing wrong"


def _waited_for(score: score_pb2.NodeScore) -> str:
    job = f" (job {cut(score.waits_for_job, JOB_CHARACTERS_MAX)})" if score.waits_for_job else ""
    return f"{score.waits_for.removeprefix('nodes/')}{job}"


def caption(
    listing: ScoreListing,
    width: int,
    hidden: int = 0,
    *,
    is_folded: bool = False,
    explain_command: str = "",
) -> str:
    """Return why there are no hosts, or host counts by state, their order, and the meaning of SCORE, wrapped to *width*.

    *hidden*: hosts that `fitting` omitted. *is_folded*: hosts share rows. *explain_command*: shown
    for the worst host, unless "".
    """
    if not listing.scores:
        if listing.ended_hosts is None:
            return ""
        text = "none has registered with this aggregator yet"
        if count := listing.ended_hosts:
            text = f"{counted(count, 'host')}, all simulated, ended: no reading for 60 s. `gangline explain HOST` and `gangline sql` show them"
        return "\n".join(textwrap.wrap(text, width))
    counts = Counter(score.state for score in listing.scores)
    states = ", ".join(
        f"{counts[state]} {enum_name(score_pb2.HealthState, state)}"
        for state in dict.fromkeys(score.state for score in listing.scores[::-1])
    )
    first = listing.scores[0]
    computed_at = first.compute_time.ToDatetime(UTC).astimezone()
    hours = first.horizon.ToNanoseconds() / 3600e9
    count = len(listing.scores)
    parts = [
        f"{counted(count, 'host')} at {computed_at:%H:%M:%S %Z}: {states}",
        "by state, then score",
        f"SCORE: chance of {hours:g} h without a fault of the host",
    ]
    if hidden:
        parts.insert(1, f"{hidden} more not shown (healthy first)")
    if is_folded:
        parts.append("--all lists every host")
    if any(score.state == score_pb2.HEALTHY and score.reason_message for score in listing.scores):
        parts.append("notes: gangline explain HOST")
    lines = textwrap.wrap(parts[0], width)
    for part in parts[1:]:
        joined = f"{lines[-1]}; {part}"
        lines[-1:] = [joined] if len(joined) <= width else [lines[-1], part]
    if explain_command and first.state not in (score_pb2.HEALTHY, score_pb2.UNKNOWN):
        lines.append(f"next: {explain_command} {shlex.quote(host_of(first))}")
    return "\n".join(cut(line, width) for line in lines)


def fitting(scores: Sequence[AnyRow], count_max: int) -> list[AnyRow]:
    """Return at most *count_max* of *scores*, in their order, worst first.

    HEALTHY simulated hosts are omitted first, then HEALTHY real ones, other simulated ones, and
    other real ones; within a group the best first.
    """

    def worth(at: int) -> tuple[bool, bool, int]:
        score = scores[at]
        return score.state != score_pb2.HEALTHY, not score.simulated, -at

    chosen = sorted(range(len(scores)), key=worth, reverse=True)[: max(0, count_max)]
    return [scores[index] for index in sorted(chosen)]


def fold_causes(scores: Sequence[score_pb2.NodeScore]) -> list[Row]:
    """Return *scores*, worst first; hosts with a shared cause form a row at their worst host."""
    groups: dict[str, list[score_pb2.NodeScore]] = {}
    for score in scores:
        groups.setdefault(score.shared_cause_advisory or score.node, []).append(score)
    return [FoldedHosts(tuple(group)) if len(group) > 1 else group[0] for group in groups.values()]


def folded(
    scores: Sequence[score_pb2.NodeScore],
    count_max: int | None,
    slowdowns: ExpectedSlowdowns | None = None,
) -> list[Row]:
    """Return *scores*, worst first, with shared rows by cause and for HEALTHY simulated hosts.

    HEALTHY real hosts also share rows if there would be more than *count_max* rows. Hosts that wait
    for the same host of their job share a row, and so do all others. *slowdowns*: a job's; hosts on which
    a neighbor slows the job have rows of their own.
    """
    neighbors = slowdowns.neighbors if slowdowns else {}
    slowed = {host for host, own in neighbors.items() if own.slowdown >= SLOWED_MIN}
    rows = _folded(scores, lambda score: score.simulated and host_of(score) not in slowed)
    if count_max is not None and len(rows) > count_max:
        rows = _folded(scores, lambda score: host_of(score) not in slowed)
    return rows


def _folded(
    scores: Sequence[score_pb2.NodeScore], may_fold: Callable[[score_pb2.NodeScore], bool]
) -> list[Row]:
    alone: list[score_pb2.NodeScore] = []
    groups: dict[tuple[bool, bool, str, str], list[score_pb2.NodeScore]] = {}
    real: list[Row] = []
    for score in scores:
        is_well = (
            score.state == score_pb2.HEALTHY and score.reason != score_pb2.REASON_STALE_TELEMETRY
        )
        if is_well and may_fold(score):
            key = not score.waits_for, not score.simulated, score.waits_for, score.waits_for_job
            groups.setdefault(key, []).append(score)
        else:
            (real if is_well else alone).append(score)
    healthy = [
        FoldedHosts(tuple(group)) if len(group) > 1 else group[0]
        for _, group in sorted(groups.items())
    ]
    return [*fold_causes(alone), *healthy, *real]


def host_of(score: score_pb2.NodeScore) -> str:
    """Return the host's name without the `nodes/` prefix."""
    return score.node.removeprefix("nodes/")


def floor_text(value: float, digits: int) -> str:
    """Return *value* truncated, not rounded: an uncertain score must not read 1.0000."""
    scale = 10.0**digits
    return f"{math.floor(value * scale + 1e-6) / scale:.{digits}f}"


def hazard_per_day(per_hour: float) -> str:
    """Return a hazard as expected interruptions per day."""
    per_day = 24.0 * per_hour
    if per_day > HAZARD_PER_DAY_MAX:
        return f">{HAZARD_PER_DAY_MAX:.0f}"
    return f"{per_day:.4f}" if per_day < 0.1 else f"{per_day:.2f}"


def age(score: score_pb2.NodeScore) -> str:
    """Return the age of the last live reading."""
    if not score.HasField("data_age"):
        return "never"
    seconds = score.data_age.seconds + score.data_age.nanos / 1e9
    if seconds < 100:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 6000 else f"{seconds / 3600:.0f} h ago"
