"""The simulated section: what was advised about hosts on which no fault stood; look-alikes; faults of the telling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from . import intervals
from .markdown import number, table
from .simulated_feed import JUDGE
from .simulated_kinds import BLAMED, Score, Wrong
from .simulated_moments import KINDS
from .simulated_run import Run

#: Drains for hosts on which no fault stands, a thousand node-days: fixed before anything was tuned.
BUDGET = 1.0
#: Kinds of false drains that are listed.
LISTED_MAX = 12
WORDS_CHARACTERS_MAX = 160


def advice(run: Run) -> str:
    """Return the table of false advice, and what was behind it."""
    far = sum(one.far_days for one in run.scores)
    near = sum(one.near_days for one in run.scores)
    kinds: list[tuple[str, Callable[[Wrong], bool]]] = [
        ("**drains, all**", lambda one: one.what == "drain"),
        ("- nothing stood on the host", lambda one: one.what == "drain" and not one.about),
        (
            "- a look-alike stood on it",
            lambda one: one.what == "drain" and bool(one.about) and not one.is_mistold,
        ),
        ("- its telling was wrong", lambda one: one.what == "drain" and one.is_mistold),
        ("AVOID", lambda one: one.what == "avoid"),
        ("INSPECT and the like", lambda one: one.what == "look"),
    ]
    rows = [[name, *_estimated(run, wanted)] for name, wanted in kinds]
    head = [
        "advice for a host on which no fault stood", "near a cause", "a 1,000 node-days", "elsewhere",
        "a 1,000 node-days", "together",
    ]  # fmt: skip
    text = f"""Budget, fixed before anything was tuned: **{BUDGET:g} false drain a 1,000 node-days**, in all.

- A *drain* is whatever takes the host from its work (DRAIN_*, EVICT_NOW, RESET_GPU, REBOOT, RUN_DIAGNOSTIC). It is *false* where no fault stood on that
  host then, nor within the ten minutes before. Victims of another's fault are such hosts.
- *Near*: gangs and racks around causes of all sorts, {number(near)} node-days. *Elsewhere*: hosts that nothing stood on, {number(far)} node-days. Each is weighted by how much of
  the world's {number(run.node_days)} node-days it stands for.
- A host is looked at for some ten minutes, by a judge that meets it for the first time: what lasts counts each time, and so more often than in service.
- Where none was seen the upper end says how little was looked at, not what was seen: a single one would come to up to {number(_largest(run) * 1000.0 / run.node_days)} near a cause, and to
  {number(_elsewhere(run) * 1000.0 / run.node_days)} elsewhere. `make evaluate PER_CLASS=200 QUIET=2000` looks at ten times as much, in an hour or so."""
    return f"{text}\n\n{table(head, rows)}\n\n{_behind(run)}"


def drains_estimated(run: Run) -> str:
    """Return false drains a 1,000 node-days, with their interval."""
    return _estimated(run, lambda one: one.what == "drain")[-1]


def _estimated(run: Run, wanted: Callable[[Wrong], bool]) -> list[str]:
    """Return (seen near a cause, what that comes to), the same elsewhere, and what both come to."""
    elsewhere = _elsewhere(run)
    near, far = list[float](), list[float]()
    for one in run.scores:
        for wrong in one.wrong:
            if wrong.by != JUDGE or not wanted(wrong):
                continue
            if wrong.near:
                near.append(one.weight)
            elif not wrong.is_mistold:  # that is another stratum's
                far.append(elsewhere)
    largest = _largest(run)
    return [
        str(len(near)),
        _rate(run, near, largest),
        str(len(far)),
        _rate(run, far, elsewhere),
        _rate(run, [*near, *far], max(largest, elsewhere)),
    ]


def _elsewhere(run: Run) -> float:
    """Return how many of the world's hosts one elsewhere stands for, at the time that it was looked at."""
    return run.quiet_days / max(sum(one.far_days for one in run.scores), 1e-9)


def _largest(run: Run) -> float:
    """Return for how many causes the episode of the commonest class stands."""
    return max((one.weight for one in run.scores if one.class_name), default=0.0)


def _rate(run: Run, weights: Sequence[float], largest: float) -> str:
    """Return what events of these weights come to in a thousand node-days."""
    scale = 1000.0 / run.node_days
    scaled = [weight * scale for weight in weights]
    low, high = intervals.weighted_rate(scaled, largest * scale)
    return f"{number(sum(scaled))} [{number(low)}, {number(high)}]"


def _behind(run: Run) -> str:
    """Say which reasons were behind false drains, around what, with the words of the first."""
    kinds: Counter[tuple[str, str, str]] = Counter()
    words: dict[tuple[str, str, str], str] = {}
    for one in run.scores:
        for wrong in one.wrong:
            if wrong.what == "drain":
                around = f"an episode of `{one.class_name}`" if one.class_name else "a quiet span"
                where = around if wrong.near else f"elsewhere beside {around}"
                kind = wrong.rule, ", ".join(wrong.about) or "nothing", where
                kinds[kind] += 1
                words.setdefault(kind, wrong.words)
    if not kinds:
        return "No false drain was seen."
    listed = kinds.most_common(LISTED_MAX)
    rows = [[str(count), *kind, _cell(words[kind])] for kind, count in listed]
    head = ["false drains", "reason", "what stood on the host", "where", "for example"]
    more = len(kinds) - len(listed)
    return table(head, rows) + (f"\n\n{more} kinds more, of one or few each." if more > 0 else "")


def _cell(words: str) -> str:
    return words.replace("|", "/")[:WORDS_CHARACTERS_MAX]


def look_alikes(run: Run) -> str:
    """Return the table of benign classes."""
    text = (
        "Hosts on which a look-alike stood and no fault did, and all that the judge said of them while it stood.\n"
        "WATCH and STALE keep nothing off a host for good; HEALTHY is a finding that costs nothing."
    )
    return f"{text}\n\n{_struck(run, 'benign')}\n\n{_passing(run)}"


def _passing(run: Run) -> str:
    """Return the table of what no class is: it passes on hosts everywhere."""
    rows = []
    for kind in KINDS:
        said: Counter[str] = Counter()
        grave = 0
        for one in run.scores:
            for (what, rule, state), count in one.said_in_passing.items():
                if what == kind:
                    said[f"{rule} {state.name}"] += count
                    grave += count * (state in BLAMED)
        times = sum(one.passed[kind] for one in run.scores)
        rows.append([kind, f"{times:,}", _counted(said), str(grave)])
    text = (
        "And what passes on healthy hosts that are no part of an episode's cause, with what was said while it did, or\n"
        "within a minute:"
    )
    return f"{text}\n\n{table(['what', 'times, by host', 'said of how many of them', 'DEGRADED or worse'], rows)}"


def _counted(said: Counter[str]) -> str:
    return ", ".join(f"{words} {count}" for words, count in said.most_common(5)) or "nothing"


def telling(run: Run) -> str:
    """Return the table of what goes wrong in the telling alone."""
    text = (
        "Nothing is wrong with these hosts, and little can be seen of them. STALE, UNKNOWN and a finding about the collector are right answers; a drain\n"
        "is false, though a driver that hangs for half an hour may deserve one."
    )
    return f"{text}\n\n{_struck(run, 'monitoring')}"


def _struck(run: Run, sort: str) -> str:
    rows = []
    for each, scores in run.of_sort(sort):
        said: Counter[str] = Counter()
        for one in scores:
            for (rule, state), count in one.said_of.items():
                said[f"{rule} {state.name}"] += count
        counts = [_of_class(scores, each.name, what) for what in ("name", "drain", "avoid")]
        hosts = sum(one.hosts for one in scores)
        rows.append(
            [f"`{each.name}`", str(len(scores)), str(hosts), _counted(said), *map(str, counts)]
        )
    head = [
        "class",
        "episodes",
        "hosts",
        "said of how many of them",
        "DEGRADED or worse",
        "false drains",
        "AVOID",
    ]
    return table(head, rows)


def _of_class(scores: Sequence[Score], name: str, what: str) -> int:
    return sum(
        one.by == JUDGE and one.what == what and name in one.about
        for each in scores
        for one in each.wrong
    )
