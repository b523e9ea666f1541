"""Thresholds that are rolled out in steps: a rule is asked twice, with each, and what hosts are not told yet is shown.

Rules know nothing of this: `Present.threshold` notes what each asks for, and answers as of before where it is told to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ..declared.rollout import coming, reaches
from .present import Present
from .symptoms import Symptom

Rule = Callable[[Present], Iterator[Symptom]]


def looked(rule: Rule, present: Present) -> list[Symptom]:
    """Return what *rule* sees; on hosts that a roll-out has not reached, by the thresholds of before."""
    rollouts = present.fleet.declared.rollouts
    present.asked.clear()
    now = list(rule(present))
    asked = present.asked & rollouts.keys()
    if not asked:
        return now
    share = min(rollouts[name].share for name in asked)
    with present.as_before():
        before = list(rule(present))
    return list(_chosen(present, share, now, before))


def _chosen(
    present: Present, share: float, now: Sequence[Symptom], before: Sequence[Symptom]
) -> Iterator[Symptom]:
    """Yield *now* of hosts that are reached and *before* of the others, of these with what would be else."""
    stays = {(one.host, one.key) for one in now}
    was = {(one.host, one.key) for one in before}
    names = present.fleet.names
    for one in now:
        if reaches(share, names[one.host]):
            yield one
        elif (one.host, one.key) not in was:
            yield _in_shadow(one, share)
    for one in before:
        if reaches(share, names[one.host]):
            continue
        gone = (one.host, one.key) not in stays
        words = f"{one.words}; no longer, by a threshold {coming(share)}" if gone else one.words
        yield replace(one, words=words)


def _in_shadow(symptom: Symptom, share: float) -> Symptom:
    """Return *symptom* as evidence that weighs nothing: it would count, were its host reached."""
    rule = replace(symptom.rule, enter_seconds=0.0, leave_seconds=0.0)
    words = f"{symptom.words}, by a threshold {coming(share)}"
    return replace(symptom, rule=rule).without_weight(
        words, "the roll-out reaches this host, or ends"
    )
