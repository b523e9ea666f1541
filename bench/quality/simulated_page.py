"""Assembles the simulated section: summary, method, tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.quality.markdown import counted, number
from bench.quality.simulated_false import (
    BUDGET,
    advice,
    drains_text,
    is_drain,
    look_alikes,
    reporting,
    verdict,
)
from bench.quality.simulated_kinds import AFTER_ONSET_SECONDS, DOMAIN, NEAR_MAX, RIGHT
from bench.quality.simulated_run import SimulatedRun, is_missed
from bench.quality.simulated_tables import baselines, detection, not_detected, shared_causes
from gangline.simulator.truth import BEFORE_SECONDS, LENGTH_SECONDS_MAX
from gangline.simulator.world import STEP_SECONDS

EVALUATIONS = Path(__file__).with_name("looks.md")


def page(run: SimulatedRun) -> str:
    """Return the section."""
    return "\n\n".join(
        [
            "## Simulated",
            _in_short(run),
            _method(run),
            "### What is named, and how soon",
            detection(run),
            not_detected(run),
            "### What simpler means name",
            baselines(run),
            "### False advice",
            advice(run),
            "### What looks like a fault and is none",
            look_alikes(run),
            "### When only the telling goes wrong",
            reporting(run),
            "### Causes that hosts share",
            shared_causes(run),
            _evaluations(),
        ]
    )


def _in_short(run: SimulatedRun) -> str:
    """Return what a reader in a hurry is to know."""
    found = [one.found for one in run.scores if one.found]
    shown = [one for one in found if RIGHT[one.class_name]]
    named = [one for one in shown if one.rule]
    gangs = [one for one in found if one.victims]
    single, single_around = (
        sum(one.what == "alone" for each in some for one in each.wrong)
        for some in (run.sampled(), run.fault_scores())
    )
    shared = [one.shared for one in run.scores if one.shared and DOMAIN[one.shared.class_name]]
    shared = [one for one in shared if one.hosts > 1]
    around = sum(is_drain(one) for each in run.fault_scores() for one in each.wrong)
    causes, causes_around = (
        sum(one.what == "cause" for each in some for one in each.wrong)
        for some in (run.sampled(), run.fault_scores())
    )
    missed = [f"`{each.name}`" for each, those in run.faults() if is_missed(those)]
    middle = float(np.median([one.delay_seconds for one in named])) if named else float("nan")
    return f"""In short, of a fleet that does not exist:

- **Found**: {counted(len(named), len(shown))} of the causes drawn that show at all, as many of a rare class as of a common one; half of them within {number(middle)} s. Not detected: {", ".join(missed) or "no class"}.
- **Victims blamed**: in {counted(sum(one.victims_blamed > 0 for one in gangs), len(gangs))} of the causes for which others had to wait.
- **False drains**: in hours of the whole fleet {drains_text(run)}; the budget is {BUDGET:g}. {verdict(run)} Around the causes drawn, {around} seen.
- **Shared causes**: {counted(sum(one.shared == 1 for one in shared), len(shared))} ended in exactly one advisory for what the hosts share; {sum(one.right_domain for one in shared)} of them named the right thing.
  {single} drains of the hours, and {single_around} around causes, were of a single host for what it shares with others. {causes} advisories of the hours, and {causes_around} around causes, were for a cause that no two of their hosts share."""


def _method(run: SimulatedRun) -> str:
    steps = sum(one.steps for one in run.scores)
    degraded_count = sum(sum(one.degraded.values()) for one in run.scores)
    reasons = sorted({reason for one in run.scores for reason in one.degraded})
    doubts = (
        f"In {degraded_count:,} of {steps:,} steps the picture was in doubt and nothing was proposed: {'; '.join(reasons[:3])}."
        if degraded_count
        else f"In none of the {steps:,} steps was the picture in doubt."
    )
    return f"""    python -m bench.quality --only simulated --seed {run.seed} --scenario {run.scenario} --per-class {run.per_class} --hours {run.hours}

*All of this is simulated*: the world of [simulation](simulation.md), scenario `{run.scenario}` ({run.hosts:,} hosts, {run.days:g} days), seed {run.seed}.
A good result here shows that the judge reads the signatures of that page, and no more. The same people wrote both. Rules and limits were tuned
on seeds 1 to 9; which other seeds were looked at, and what was changed after, stands [below](#what-was-looked-at-before).

- **Fed** is the aggregator itself, in process: frames as on the wire every {STEP_SECONDS:g} s -> fleet -> judge -> advice. Advice is in shadow mode: nobody accepts anything.
  Of two kinds. *Hours*: {len(run.sampled())} of the whole fleet, at random; false drains are estimated from them alone. *Around causes*: up to {run.per_class} of each class, drawn by the
  seed, with up to {NEAR_MAX} hosts of their gangs and racks and others as peers, from some three minutes before to {AFTER_ONSET_SECONDS / 60:.0f} minutes after the onset (what is no fault:
  [below](#what-looks-like-a-fault-and-is-none), as long as it stands, up to {LENGTH_SECONDS_MAX / 60:.0f} minutes; a fault that stands for ever, `slow_host`, {(BEFORE_SECONDS + AFTER_ONSET_SECONDS) / 60:.0f} minutes at random); of the other hosts the judge
  hears that they are there, and no more.
  What is named, and how soon, is from these.
- **At {STEP_SECONDS:g} s steps** the limits are those in service, but for one: hosts that fall within 2 s of each other may be seen a step apart, so that 12 s are taken for a
  shared cause. A host is STALE after 15 s, which here is the second step that it misses. A cause begins at random between two steps.
Its effect is seen half a step later on average, a whole step at most; real agents report every second. A cause that lasts two seconds
is mostly not seen at all.
- **Named** is a culprit in a state worse than HEALTHY by a rule whose reason is the cause's. Only the scorer reads the truth log. `right part`: that GPU or port.
- **Victims** are hosts that shared a job with a culprit while the fault lasted and the job ran. The row counts whether they were blamed, over the causes that had any.
- **Delay** is from the cause's begin, which may be minutes before anything shows: heat builds up over its onset. Of `slow_host`, which stood before, it is from our
  first look, and so never below the minute and a half in which rules about gangs say nothing of hosts that are new to them.
- **Intervals** are of 90 %: Wilson's for shares, Garwood's (Fay and Feuer's) for rates, a bootstrap by cause for medians.
- {doubts}"""


def _evaluations() -> str:
    """Return what is on record of looks at seeds that nothing was tuned on: written by hand, and nowhere else."""
    return f"### What was looked at before\n\n{EVALUATIONS.read_text().strip()}"
