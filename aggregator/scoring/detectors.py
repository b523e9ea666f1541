"""Detectors of rules, and their evaluation while a threshold is being rolled out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ..declared.thresholds import is_rolled_out, rollout_message
from ..rule_declaration import Rule, RuleRow, ThresholdRule
from .rule_rows import rate_symptoms, threshold_symptoms
from .symptom import Symptom
from .view import FleetView

RuleFunction = Callable[[FleetView], Iterator[Symptom]]


class Detector:
    """A function that finds symptoms of *rules*, distinguished by the same readings."""

    def __init__(self, name: str, rules: frozenset[str], find: RuleFunction) -> None:
        self.__name__, self.rules, self._find = name, rules, find

    def __call__(self, view: FleetView) -> Iterator[Symptom]:
        """Yield the symptoms that are active now."""
        return self._find(view)


def detects(*rules: Rule | RuleRow) -> Callable[[RuleFunction], Detector]:
    """Make a function the detector of *rules* (`rules/__init__.py` collects detectors)."""
    names = frozenset(rule.name if isinstance(rule, Rule) else rule.rule.name for rule in rules)
    return lambda function: Detector(function.__name__, names, function)


def row_detector(row: RuleRow) -> Detector:
    """Return the detector of a rule that is only a row."""

    def find(view: FleetView) -> Iterator[Symptom]:
        if isinstance(row, ThresholdRule):
            return threshold_symptoms(view, (row,))
        return rate_symptoms(view, (row,))

    return Detector(row.rule.name, frozenset((row.rule.name,)), find)


def evaluate_with_rollout(rule: RuleFunction, view: FleetView) -> list[Symptom]:
    """Return the symptoms of *rule*, by the previous thresholds where a roll-out has not arrived.

    Evaluate the rule twice: `FleetView.threshold` notes the thresholds that it reads, and returns
    previous values on request.
    """
    rollouts = view.fleet.declared.rollouts
    view.requested_thresholds.clear()
    now = list(rule(view))
    requested = view.requested_thresholds & rollouts.keys()
    if not requested:
        return now
    share = min(rollouts[name].share for name in requested)
    with view.with_previous_thresholds():
        before = list(rule(view))
    return list(_merge_rollout(view, share, now, before))


def _merge_rollout(
    view: FleetView, share: float, now: Sequence[Symptom], before: Sequence[Symptom]
) -> Iterator[Symptom]:
    """Yield *now* of hosts that are reached, and *before* of others, with their differences."""
    stays = {(symptom.host, symptom.key) for symptom in now}
    was = {(symptom.host, symptom.key) for symptom in before}
    names = view.fleet.names
    for symptom in now:
        if is_rolled_out(share, names[symptom.host]):
            yield symptom
        elif (symptom.host, symptom.key) not in was:
            yield _without_effect(symptom, share)
    for symptom in before:
        if is_rolled_out(share, names[symptom.host]):
            continue
        clears_later = (symptom.host, symptom.key) not in stays
        if clears_later:
            message = f"{symptom.message}; no longer, by a threshold {rollout_message(share)}"
        else:
            message = symptom.message
        yield replace(symptom, message=message)


def _without_effect(symptom: Symptom, share: float) -> Symptom:
    """Return *symptom* as evidence without weight, on a host beyond the roll-out."""
    rule = replace(symptom.rule, enter_seconds=0.0, leave_seconds=0.0)
    message = f"{symptom.message}, by a threshold {rollout_message(share)}"
    return replace(symptom, rule=rule).without_weight(
        message, "the roll-out reaches this host, or ends"
    )
