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
    for fault_class, findings in run.faults():
        rows.append([f"`{fault_class.name}`", *_detected(findings, run.seed)])
    head = (
        "class | named | right part | delay s, median | p90 | DEGRADED or worse | before its job "
        "died | by | causes whose victims were blamed"
    )
    return table(head, rows)


def _detected(found: Sequence[CaseFinding], seed: int) -> list[str]:
    named = [finding for finding in found if finding.rule]
    with_part = [finding for finding in named if finding.has_part]
    delays = [finding.delay_seconds for finding in named]
    middle, low, high = intervals.median(delays, seed)
    kills = [finding for finding in found if finding.kills]
    rules = most_common(Counter(finding.rule for finding in named), 3)
    blamed = sum(finding.victims_blamed > 0 for finding in found)
    gangs = sum(finding.victims > 0 for finding in found)
    return [
        counted(len(named), len(found)),
        counted(sum(finding.part_is_right for finding in with_part), len(with_part)),
        f"{middle:.0f} [{low:.0f}, {high:.0f}]" if delays else "-",
        f"{np.quantile(delays, 0.9):.0f}" if delays else "-",
        counted(sum(finding.is_blamed for finding in found), len(found)),
        counted(sum(finding.before_death for finding in kills), len(kills)),
        ", ".join(f"{rule} {count}" for rule, count in rules) or "-",
        counted(blamed, gangs),
    ]


def not_detected(run: SimulatedRun) -> str:
    """Return the text about faults that are not detected."""
    missed = []
    for fault_class, findings in run.faults():
        if is_missed(findings):
            why = "no symptoms, by design" if not RIGHT[fault_class.name] else fault_class.amount_is
            blamed = sum(finding.is_blamed for finding in findings)
            other = (
                f"; {blamed} of {len(findings)} were under suspicion for something else"
                if blamed
                else ""
            )
            missed.append(f"- `{fault_class.name}` ({why}{other})")
    if not missed:
        return "Each class is named in at least half of its causes."
    return "**Not detected**, or in less than half of its causes:\n\n" + "\n".join(missed)


def baselines(run: SimulatedRun) -> str:
    rows = []
    names = list(BASELINES)
    for fault_class, findings in run.faults():
        if not findings:
            continue
        named, blamed = sum(bool(f.rule) for f in findings), sum(f.is_blamed for f in findings)
        by_baseline = (sum(f.by_baseline[name] for f in findings) for name in names)
        hits = (named, blamed, *by_baseline)
        rows.append([f"`{fault_class.name}`", *(counted(hit, len(findings)) for hit in hits)])
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
    named = sum(hour.calm_named[by] for hour in hours)
    return percent(named, sum(hour.calm_hosts for hour in hours), max(len(hours), 1))


def _plain(run: SimulatedRun, by: str) -> str:
    hours = run.sampled()
    named = sum(hour.plain_named[by] for hour in hours)
    return percent(named, sum(hour.plain_hosts for hour in hours), max(len(hours), 1))


def shared_causes(run: SimulatedRun) -> str:
    rows = []
    for fault_class, scores in run.of_sort("faults"):
        findings = [score.shared for score in scores if score.shared and score.shared.hosts > 1]
        if fault_class.name in DOMAIN and findings:
            rows.append([f"`{fault_class.name}`", *_attributed(findings)])
    head = (
        "class | causes | hosts each | hosts named | one advisory for the cause | of the right "
        "domain | advisories for single hosts | of them drains"
    )
    text = f"""The table has causes that affected several hosts at once. Such a cause should become one advisory, for what the hosts share. `congestion` affects a job,
which is no domain: the right answer is no advisory for any single host. The limits in service
apply. Advisories for single hosts beyond {LIMITS.rack_hosts_max} of a rack or {LIMITS.job_hosts_max} of a job at once are held back, and not counted."""
    return f"{text}\n\n{table(head, rows)}"


def _attributed(found: Sequence[Shared]) -> list[str]:
    hosts, named = sum(finding.hosts for finding in found), sum(finding.named for finding in found)
    return [
        str(len(found)),
        number(float(np.median([finding.hosts for finding in found]))),
        f"{named} of {hosts}",
        counted(sum(finding.shared == 1 for finding in found), len(found)),
        counted(sum(finding.right_domain for finding in found), len(found)),
        f"{sum(finding.alone for finding in found)}, at most {max(finding.alone for finding in found)}",
        str(sum(finding.drains for finding in found)),
    ]
