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
from gangline.simulator.sampled_episodes import BEFORE_SECONDS, LENGTH_SECONDS_MAX
from gangline.simulator.world import STEP_SECONDS

EVALUATIONS = Path(__file__).with_name("looks.md")


def page(run: SimulatedRun) -> str:
    parts = {
        "## Simulated": (_in_short, _method),
        "### What is named, and how soon": (detection, not_detected),
        "### What simpler methods name": (baselines,),
        "### False advice": (advice,),
        "### What looks like a fault and is none": (look_alikes,),
        "### When only the reporting goes wrong": (reporting,),
        "### Causes that hosts share": (shared_causes, _evaluations),
    }
    texts = ((title, *(part(run) for part in made)) for title, made in parts.items())
    return "\n\n".join(text for section in texts for text in section)


def _in_short(run: SimulatedRun) -> str:
    findings = [score.found for score in run.scores if score.found]
    shown = [finding for finding in findings if RIGHT[finding.class_name]]
    named = [finding for finding in shown if finding.rule]
    gangs = [finding for finding in findings if finding.victims]
    single, single_around = (
        sum(wrong.what == "alone" for score in scores for wrong in score.wrong)
        for scores in (run.sampled(), run.fault_scores())
    )
    shared = [
        score.shared for score in run.scores if score.shared and DOMAIN[score.shared.class_name]
    ]
    shared = [cause for cause in shared if cause.hosts > 1]
    around = sum(is_drain(wrong) for score in run.fault_scores() for wrong in score.wrong)
    causes, causes_around = (
        sum(wrong.what == "cause" for score in scores for wrong in score.wrong)
        for scores in (run.sampled(), run.fault_scores())
    )
    missed = [f"`{score.name}`" for score, those in run.faults() if is_missed(those)]
    middle = (
        float(np.median([finding.delay_seconds for finding in named])) if named else float("nan")
    )
    return f"""In short, for a simulated fleet:

- **Found**: {counted(len(named), len(shown))} of the drawn causes that have any symptom; half of them within {number(middle)} s. Rare and common classes have equally many causes. Not detected: {", ".join(missed) or "no class"}.
- **Victims blamed**: in {counted(sum(gang.victims_blamed > 0 for gang in gangs), len(gangs))} of the causes that made other hosts wait.
- **False drains**: in hours of the whole fleet {drains_text(run)}; the budget is {BUDGET:g}. {verdict(run)} Around the drawn causes: {around}.
- **Shared causes**: {counted(sum(gang.shared == 1 for gang in shared), len(shared))} ended in exactly one advisory for what the hosts share; {sum(gang.right_domain for gang in shared)} of them named the right domain.
  {single} drains of the hours, and {single_around} around causes, were of a single host for a shared cause. {causes} advisories of the hours, and {causes_around} around causes, were for a cause that no two of their hosts share."""


def _method(run: SimulatedRun) -> str:
    steps = sum(score.steps for score in run.scores)
    degraded_count = sum(sum(score.degraded.values()) for score in run.scores)
    reasons = sorted({reason for score in run.scores for reason in score.degraded})
    doubts = (
        f"In {degraded_count:,} of {steps:,} steps the picture was degraded and nothing was proposed: {'; '.join(reasons[:3])}."
        if degraded_count
        else f"The picture was degraded in none of the {steps:,} steps."
    )
    return f"""    python -m bench.quality --only simulated --seed {run.seed} --scenario {run.scenario} --per-class {run.per_class} --hours {run.hours}

*All of this is simulated*: the world of [simulation](simulation.md), scenario `{run.scenario}` ({run.hosts:,} hosts, {run.days:g} days), seed {run.seed}.
A good result here only shows that the judge reads the signatures of that page. The same people wrote both. Rules and limits were tuned
on seeds 1 to 9. [Below](#what-was-looked-at-before) is which other seeds were looked at, and what was changed after that.

- **The aggregator** itself runs in process: frames as on the wire every {STEP_SECONDS:g} s -> fleet -> judge -> advice. Advice is in shadow mode: nobody accepts it.
- **Hours** are {len(run.sampled())} random hours of the whole fleet. The rate of false drains comes from them alone.
- **Around causes** are up to {run.per_class} causes of each class, drawn by the seed. Up to {NEAR_MAX} hosts of their gangs and racks, and others as peers, are played
  from some three minutes before to {AFTER_ONSET_SECONDS / 60:.0f} minutes after the onset. Of the other hosts the judge only knows that they are up. The tables of what
  is named, and how soon, come from these.
- **Other lengths**: look-alikes ([below](#what-looks-like-a-fault-and-is-none)) are played while they last, up to {LENGTH_SECONDS_MAX / 60:.0f} minutes. `slow_host`, which
  never ends, is played for {(BEFORE_SECONDS + AFTER_ONSET_SECONDS) / 60:.0f} random minutes.
- **Steps** are {STEP_SECONDS:g} s. The limits are those in service, with one exception: hosts that fall within 2 s of each other may appear a step apart,
  so 12 s count as a shared cause. A host is STALE after 15 s, which here is the second step that it misses. A cause begins at random between two steps.
  Its effect appears half a step later on average, and a whole step at most; real agents report every second. A cause that lasts two seconds
  is mostly invisible.
- **Named** is a culprit in a state worse than HEALTHY by a rule whose reason is the cause's. Only the scorer reads the truth log. `right part`: that GPU or port.
- **Victims** are hosts that shared a job with a culprit while the fault lasted and the job ran. The row counts whether they were blamed, over the causes that had any.
- **Delay** is from the begin of the cause, which may be minutes before any symptom: heat builds up over its onset. For `slow_host`, which began earlier, it is from
  the first step played. It is then at least 90 s, in which rules about gangs ignore hosts that are new to them.
- **Intervals** are of 90 %: Wilson's for shares, Garwood's (Fay and Feuer's) for rates, a bootstrap by cause for medians.
- {doubts}"""


def _evaluations(_: SimulatedRun) -> str:
    """Return looks.md: the hand-written record of evaluations at untuned seeds."""
    return f"### What was looked at before\n\n{EVALUATIONS.read_text().strip()}"
