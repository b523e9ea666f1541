"""The simulated section: named faults with delay and rule; results of the baselines; shared causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from . import intervals
from .markdown import counted, most_common, number, percent, table
from .simulated_baselines import BASELINES
from .simulated_feed import JUDGE, LIMITS
from .simulated_kinds import DOMAIN, RIGHT, CaseFinding, Shared
from .simulated_run import SimulatedRun, is_missed


def detection(run: SimulatedRun) -> str:
    rows = []
    for each, found in run.faults():
        rows.append([f"`{each.name}`", *_detected(found, run.seed)])
    head = [
        "class", "named", "right part", "delay s, median", "p90", "DEGRADED or worse", "before its job died", "by",
        "causes whose victims were blamed",
    ]  # fmt: skip
    return table(head, rows)


def _detected(found: Sequence[CaseFinding], seed: int) -> list[str]:
    named = [one for one in found if one.rule]
    with_part = [one for one in named if one.has_part]
    delays = [one.delay_seconds for one in named]
    middle, low, high = intervals.median(delays, seed)
    kills = [one for one in found if one.kills]
    rules = most_common(Counter(one.rule for one in named), 3)
    blamed, gangs = (
        sum(one.victims_blamed > 0 for one in found),
        sum(one.victims > 0 for one in found),
    )
    return [
        counted(len(named), len(found)),
        counted(sum(one.part_is_right for one in with_part), len(with_part)),
        f"{middle:.0f} [{low:.0f}, {high:.0f}]" if delays else "-",
        f"{np.quantile(delays, 0.9):.0f}" if delays else "-",
        counted(sum(one.is_blamed for one in found), len(found)),
        counted(sum(one.before_death for one in kills), len(kills)),
        ", ".join(f"{rule} {count}" for rule, count in rules) or "-",
        counted(blamed, gangs),
    ]


def not_detected(run: SimulatedRun) -> str:
    """Return the text about faults that are not detected."""
    missed = []
    for each, found in run.faults():
        if is_missed(found):
            why = "no symptoms, by design" if not RIGHT[each.name] else each.amount_is
            blamed = sum(one.is_blamed for one in found)
            other = (
                f"; {blamed} of {len(found)} were under suspicion for something else"
                if blamed
                else ""
            )
            missed.append(f"- `{each.name}` ({why}{other})")
    if not missed:
        return "Each class is named in at least half of its causes."
    return "**Not detected**, or in less than half of its causes:\n\n" + "\n".join(missed)


def baselines(run: SimulatedRun) -> str:
    rows = []
    names = list(BASELINES)
    for each, found in run.faults():
        if not found:
            continue
        hits = [sum(bool(one.rule) for one in found), sum(one.is_blamed for one in found)]
        hits += [sum(one.by_baseline[name] for one in found) for name in names]
        rows.append([f"`{each.name}`", *(counted(one, len(found)) for one in hits)])
    by = (JUDGE, *names)
    rows.append(["**named without a fault**", "-", *(_calm(run, name) for name in by)])
    rows.append(["- without a look-alike either", "-", *(_plain(run, name) for name in by)])
    text = """The table counts culprits that have any finding while the cause lasts. For the judge the finding needs the right reason, or, in the second column,
DEGRADED or worse for any reason.

- *Policy table alone*: codes and states that the driver or the kernel reports.
- *Fixed limits*: each GPU by itself against limits such as those of DCGM's health watches. A limit that is always exceeded is right by luck
  when a cause begins.
- *Slow clock*: a busy GPU below 0.9 of the fleet's median clock.

The last two rows are the price of each method. They count the hosts that were named in an hour of the fleet although they had no fault and reported
correctly (for the judge: DEGRADED or worse). Some of these hosts had look-alikes, such as a power cap at full load on one in ten. Hosts of the last row
had none. A host counts once in each hour. The intervals are for as many hosts as one hour has, because each hour has the same hosts and mostly names
the same ones."""
    return f"{text}\n\n{table(['class', 'judge', 'judge, DEGRADED or worse', *names], rows)}"


def _calm(run: SimulatedRun, by: str) -> str:
    hours = run.sampled()
    named, hosts = sum(one.calm_named[by] for one in hours), sum(one.calm_hosts for one in hours)
    return percent(named, hosts, max(len(hours), 1))


def _plain(run: SimulatedRun, by: str) -> str:
    hours = run.sampled()
    named, hosts = sum(one.plain_named[by] for one in hours), sum(one.plain_hosts for one in hours)
    return percent(named, hosts, max(len(hours), 1))


def shared_causes(run: SimulatedRun) -> str:
    rows = []
    for each, scores in run.of_sort("faults"):
        found = [one.shared for one in scores if one.shared and one.shared.hosts > 1]
        if each.name in DOMAIN and found:
            rows.append([f"`{each.name}`", *_attributed(found)])
    head = [
        "class", "causes", "hosts each", "hosts named", "one advisory for the cause", "of the right domain",
        "advisories for single hosts", "of them drains",
    ]  # fmt: skip
    text = f"""The table has causes that affected several hosts at once. Such a cause should become one advisory, for what the hosts share. `congestion` affects a job,
which is no domain: the right answer is no advisory for any single host. The limits in service
apply. Advisories for single hosts beyond {LIMITS.rack_hosts_max} of a rack or {LIMITS.job_hosts_max} of a job at once are held back, and not counted."""
    return f"{text}\n\n{table(head, rows)}"


def _attributed(found: Sequence[Shared]) -> list[str]:
    hosts, named = sum(one.hosts for one in found), sum(one.named for one in found)
    return [
        str(len(found)),
        number(float(np.median([one.hosts for one in found]))),
        f"{named} of {hosts}",
        counted(sum(one.shared == 1 for one in found), len(found)),
        counted(sum(one.right_domain for one in found), len(found)),
        f"{sum(one.alone for one in found)}, at most {max(one.alone for one in found)}",
        str(sum(one.drains for one in found)),
    ]
