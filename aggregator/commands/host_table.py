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

from ...contract.wire import score_pb2
from ..host_sets import fold_hosts
from .score_client import ScoreListing
from .terminal import cut, table

HEADINGS = ("HOST", "SCORE", "STATE", "HAZARD/DAY", "SPEED", "SLOWER", "HEARD", "JOB", "REASON")
#: Columns that are numbers, set to the right.
RIGHT = ("SCORE", "HAZARD/DAY", "SPEED", "SLOWER", "HEARD")
#: On a narrower terminal the reason gets the room of these columns: the score says what the first says, and the state
#: (STALE) what the second says.
NARROW_CHARACTERS, NOT_WHEN_NARROW = 100, ("HAZARD/DAY", "HEARD")
HOST_CHARACTERS_MAX, JOB_CHARACTERS_MAX = 32, 16
REASON_CHARACTERS_MIN = 24
#: Above this a hazard is said to be above it.
HAZARD_PER_DAY_MAX = 99.0
#: In place of a hazard, if the host interrupts any job: its state is UNHEALTHY and its score is below the limit.
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
    """Hosts in one row of the table, worst first: one shared cause, or HEALTHY and waiting for the same host, or well."""

    scores: tuple[score_pb2.NodeScore, ...]

    @property
    def state(self) -> score_pb2.HealthState:
        """The worst state of them."""
        return self.scores[0].state

    @property
    def simulated(self) -> bool:
        """Whether none of them is real."""
        return self.scores[0].simulated

    def cells(self) -> dict[str, str]:
        """Return the cells by heading: the worst number of all."""
        first, count = self.scores[0], len(self.scores)
        worst = row(
            max(self.scores, key=lambda one: one.data_age.ToNanoseconds())
            if all(one.HasField("data_age") for one in self.scores)
            else next(one for one in self.scores if not one.HasField("data_age"))
        )
        speeds = [one.relative_speed for one in self.scores if not math.isnan(one.relative_speed)]
        names = fold_hosts(map(host_of, self.scores))
        jobs = {one.job for one in self.scores}
        return worst | {
            "STATE": enum_name(score_pb2.HealthState, first.state),
            "HOST": f"{count} hosts" + (" (sim)" if first.simulated else ""),
            "SCORE": floor_text(min(one.score for one in self.scores), 4),
            "HAZARD/DAY": BROKEN
            if any(map(is_broken, self.scores))
            else hazard_per_day(max(one.hazard_per_hour for one in self.scores)),
            "SPEED": f"{min(speeds):.2f}" if speeds else "-",
            "JOB": row(first)["JOB"] if len(jobs) == 1 else "",
            "REASON": f"{_shared_reason(first)}: {names}",
        }


def _shared_reason(first: score_pb2.NodeScore) -> str:
    """Return why hosts share a row with *first*."""
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
    slowdowns: Mapping[str, float] | None = None,
) -> str:
    """Return the table of *hosts*, given worst first, no line longer than *width* characters (0: any).

    *slowdowns*: how much longer a step of a job would take, by host; without any the table has no such column.
    """
    scores = list(hosts)[::-1]
    if not scores:
        return "no hosts yet: none has registered with this aggregator"
    is_narrow = 0 < width < NARROW_CHARACTERS
    found = [one.cells() if isinstance(one, FoldedHosts) else row(one) for one in scores]
    for one, by_heading in zip(scores, found, strict=True):
        by_heading["SLOWER"] = _slower(one, slowdowns or {})
    left_out = NOT_WHEN_NARROW if is_narrow else ()
    if not slowdowns:
        left_out = (*left_out, "SLOWER")
    if not any(cells["JOB"] for cells in found):
        left_out = (*left_out, "JOB")
    shown = [h for h in HEADINGS if h not in left_out]
    rows = [[cells[heading] for heading in shown] for cells in found]
    others = [max(map(len, column)) for column in zip(shown, *rows, strict=True)][:-1]
    room = max(REASON_CHARACTERS_MIN, width - sum(others) - 2 * len(others))
    for score, cells in zip(scores, rows, strict=True):
        if width and not isinstance(score, FoldedHosts) and len(cells[-1]) > room:
            cells[-1] = _with_code(score, cells[-1])
    styles = [_STYLES.get(score.state, "") for score in scores] if colour else None
    return table([shown, *rows], width, right=RIGHT, one_line=True, styles=styles)


def _slower(one: Row, slowdowns: Mapping[str, float]) -> str:
    """Return how much longer a step would take, of several hosts on the slowest."""
    scores = one.scores if isinstance(one, FoldedHosts) else (one,)
    found = [slowdowns.get(host_of(score), math.nan) for score in scores]
    known = [slowdown for slowdown in found if not math.isnan(slowdown)]
    return f"{100 * max(known):.0f} %" if known else "-"


def enum_name(kind: Any, number: int) -> str:
    """Return the name of a value of the enumeration *kind*; of one that only a later aggregator knows, its number."""
    return str(kind.Name(number)) if number in kind.values() else str(number)


def _with_code(score: score_pb2.NodeScore, text: str) -> str:
    """Return the reason's *text* behind its code: they will be cut, and often end in the cause."""
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
    """Return why the host has its place in the table.

    What moved nothing is for `gangline explain`: beside real reasons it is noise. That a host is
    silent, and its state frozen, is a real one; so is that it waits for another of its job.
    """
    if score.state != score_pb2.HEALTHY or score.reason == score_pb2.REASON_STALE_TELEMETRY:
        return score.reason_words
    if score.waits_for:
        return f"waits for {_waited_for(score)}"
    return "nothing wrong (a note)" if score.reason_words else "nothing wrong"


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
    """Return how many hosts stand how, how they are sorted, and what SCORE means: lines of *width*.

    *hidden*: how many of them the table above leaves out (`fitting`). *is_folded*: some share a row. *explain_command*: the command
    that explains a host, to be named with the worst one; "" for none.
    """
    if not listing.scores:
        return ""
    counts = Counter(score.state for score in listing.scores)
    states = ", ".join(
        f"{counts[state]} {enum_name(score_pb2.HealthState, state)}"
        for state in dict.fromkeys(score.state for score in listing.scores[::-1])
    )
    first = listing.scores[0]
    at = first.compute_time.ToDatetime(UTC).astimezone()
    hours = first.horizon.ToNanoseconds() / 3600e9
    count = len(listing.scores)
    parts = [
        f"{count} host{'' if count == 1 else 's'} at {at:%H:%M:%S %Z}: {states}",
        "by state, then score",
        f"SCORE: chance of {hours:g} h without a fault of the host",
    ]
    if hidden:
        parts.insert(1, f"{hidden} more not shown (healthy first)")
    if is_folded:
        parts.append("--all lists every host")
    if any(score.state == score_pb2.HEALTHY and score.reason_words for score in listing.scores):
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

    HEALTHY simulated hosts are left out first, then HEALTHY real ones, then simulated ones, then real
    ones: of each the best first.
    """

    def worth(at: int) -> tuple[bool, bool, int]:
        score = scores[at]
        return score.state != score_pb2.HEALTHY, not score.simulated, -at

    chosen = sorted(range(len(scores)), key=worth, reverse=True)[: max(0, count_max)]
    return [scores[at] for at in sorted(chosen)]


def fold_causes(scores: Sequence[score_pb2.NodeScore]) -> list[Row]:
    """Return *scores*, worst first, with the hosts of each shared cause in one row, where the worst of them was."""
    groups: dict[str, list[score_pb2.NodeScore]] = {}
    for one in scores:
        groups.setdefault(one.shared_cause_advisory or one.node, []).append(one)
    return [FoldedHosts(tuple(group)) if len(group) > 1 else group[0] for group in groups.values()]


def folded(scores: Sequence[score_pb2.NodeScore], count_max: int | None) -> list[Row]:
    """Return *scores*, worst first, folded by shared cause; and HEALTHY hosts: simulated ones, and real ones too where
    there would be more than *count_max* rows. Hosts that wait for the same host of their job share a row, and so do all
    others."""
    rows = _folded(scores, lambda one: one.simulated)
    if count_max is not None and len(rows) > count_max:
        rows = _folded(scores, lambda one: True)
    return rows


def _folded(
    scores: Sequence[score_pb2.NodeScore], may_fold: Callable[[score_pb2.NodeScore], bool]
) -> list[Row]:
    alone: list[score_pb2.NodeScore] = []
    groups: dict[tuple[bool, bool, str, str], list[score_pb2.NodeScore]] = {}
    real: list[Row] = []
    for one in scores:
        is_well = one.state == score_pb2.HEALTHY and one.reason != score_pb2.REASON_STALE_TELEMETRY
        if is_well and may_fold(one):
            key = not one.waits_for, not one.simulated, one.waits_for, one.waits_for_job
            groups.setdefault(key, []).append(one)
        else:
            (real if is_well else alone).append(one)
    several = [
        FoldedHosts(tuple(group)) if len(group) > 1 else group[0]
        for _, group in sorted(groups.items())
    ]
    return [*fold_causes(alone), *several, *real]


def host_of(score: score_pb2.NodeScore) -> str:
    """Return the host's name without its collection."""
    return score.node.removeprefix("nodes/")


def floor_text(value: float, digits: int) -> str:
    """Return *value* cut, not rounded, to *digits*: what is not certain must not read 1.0000."""
    scale = 10.0**digits
    return f"{math.floor(value * scale + 1e-6) / scale:.{digits}f}"


def hazard_per_day(per_hour: float) -> str:
    """Return a hazard as people read it: expected interruptions per day."""
    per_day = 24.0 * per_hour
    if per_day > HAZARD_PER_DAY_MAX:
        return f">{HAZARD_PER_DAY_MAX:.0f}"
    return f"{per_day:.4f}" if per_day < 0.1 else f"{per_day:.2f}"


def age(score: score_pb2.NodeScore) -> str:
    """Return how old the last live reading is."""
    if not score.HasField("data_age"):
        return "never"
    seconds = score.data_age.seconds + score.data_age.nanos / 1e9
    if seconds < 100:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 6000 else f"{seconds / 3600:.0f} h ago"
