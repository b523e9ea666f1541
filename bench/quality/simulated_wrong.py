"""False reports: reports about hosts without a fault."""

from __future__ import annotations

from collections.abc import Sequence

from bench.quality.simulated_feed import JUDGE, NamedState, SimulatedAdvice
from bench.quality.simulated_kinds import BLAMED, DRAINS, RIGHT, Wrong
from bench.quality.simulated_truth import GroundTruth, TrueFault
from gangline.aggregator.advisories.advisory import Action, Basis

#: Kinds of wrong advice about one host, by rising severity; "": right.
GRAVITY = ("", "look", "avoid", "alone", "astray", "drain")


def wrong_names(named: Sequence[NamedState], truth: GroundTruth) -> list[Wrong]:
    """Return each host without a fault in a state that keeps work off it.

    Each source counts once per episode for all causes active at the same time; a host named before
    a cause began may be named again for it.
    """
    result: dict[tuple[str, str, tuple[str, ...]], Wrong] = {}
    for state in named:
        if (
            state.state in BLAMED
            and truth.has(state.host)
            and not truth.is_ill(state.host, state.begin)
        ):
            wrong = _wrong(truth, state.by, "name", state.host, state.rule, "", state.begin)
            result.setdefault((state.by, state.host, wrong.about), wrong)
    return list(result.values())


def wrong_advice(advised: Sequence[SimulatedAdvice], truth: GroundTruth) -> list[Wrong]:
    """Return advice about one host without a fault; each advisory once, with its greatest severity.

    Also: "astray", drains of a host with a fault, for a reason of another fault; "alone", drains
    for a fault shared with other hosts; "cause", advice for a shared cause if no fault affected two
    of the hosts at once.
    """
    gravest: dict[str, Wrong] = {}
    for advice in advised:
        if advice.basis is Basis.SHARED_CAUSE:
            if not truth.share_a_cause(advice.hosts, advice.seconds):
                host = advice.hosts[0]
                wrong = _wrong(
                    truth, JUDGE, "cause", host, advice.reason, advice.message, advice.seconds
                )
                gravest.setdefault(advice.name, wrong)
            continue
        if advice.action is Action.RETURN_TO_SERVICE:
            continue
        host = advice.hosts[0]
        what = "avoid" if advice.action is Action.AVOID else "look"
        if advice.action in DRAINS:
            what = "drain"
        if faults := truth.active_faults(host, advice.seconds, "faults"):
            what = _of_ill(faults, advice.reason) if what == "drain" else ""
        known = gravest[advice.name].what if advice.name in gravest else ""
        if truth.has(host) and GRAVITY.index(what) > GRAVITY.index(known):
            gravest[advice.name] = _wrong(
                truth, JUDGE, what, host, advice.reason, advice.message, advice.seconds
            )
    return list(gravest.values())


def _of_ill(faults: Sequence[TrueFault], reason: str) -> str:
    """Return the kind of a drain for *reason* of a host with *faults*; "" if it is right."""
    intended = [
        fault
        for fault in faults
        if reason in {expected.name for expected in RIGHT[fault.each.name]}
    ]
    if not intended:
        return "astray"
    return "alone" if all(state.is_shared for state in intended) else ""


def _wrong(
    truth: GroundTruth, by: str, what: str, host: str, rule: str, message: str, seconds: float
) -> Wrong:
    active = [
        fault.each.name
        for sort in ("monitoring", "benign")
        for fault in truth.active_faults(host, seconds, sort)
    ]
    mistold = bool(truth.active_faults(host, seconds, "monitoring"))
    return Wrong(by, what, host, rule, message, tuple(sorted({*active})), mistold)
