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
    found: dict[tuple[str, str, tuple[str, ...]], Wrong] = {}
    for one in named:
        if one.state in BLAMED and truth.has(one.host) and not truth.is_ill(one.host, one.begin):
            wrong = _wrong(truth, one.by, "name", one.host, one.rule, "", one.begin)
            found.setdefault((one.by, one.host, wrong.about), wrong)
    return list(found.values())


def wrong_advice(advised: Sequence[SimulatedAdvice], truth: GroundTruth) -> list[Wrong]:
    """Return advice about one host without a fault; each advisory once, with its greatest severity.

    Also: "astray", drains of a host with a fault, for a reason of another fault; "alone", drains
    for a fault shared with other hosts; "cause", advice for a shared cause if no fault affected two
    of the hosts at once.
    """
    gravest: dict[str, Wrong] = {}
    for one in advised:
        if one.basis is Basis.SHARED_CAUSE:
            if not truth.share_a_cause(one.hosts, one.seconds):
                host = one.hosts[0]
                wrong = _wrong(truth, JUDGE, "cause", host, one.reason, one.message, one.seconds)
                gravest.setdefault(one.name, wrong)
            continue
        if one.action is Action.RETURN_TO_SERVICE:
            continue
        host = one.hosts[0]
        what = (
            "drain" if one.action in DRAINS else "avoid" if one.action is Action.AVOID else "look"
        )
        if faults := truth.active_faults(host, one.seconds, "faults"):
            what = _of_ill(faults, one.reason) if what == "drain" else ""
        known = gravest[one.name].what if one.name in gravest else ""
        if truth.has(host) and GRAVITY.index(what) > GRAVITY.index(known):
            gravest[one.name] = _wrong(
                truth, JUDGE, what, host, one.reason, one.message, one.seconds
            )
    return list(gravest.values())


def _of_ill(faults: Sequence[TrueFault], reason: str) -> str:
    """Return the kind of a drain for *reason* of a host with *faults*; "" if it is right."""
    intended = [one for one in faults if reason in {each.name for each in RIGHT[one.each.name]}]
    if not intended:
        return "astray"
    return "alone" if all(one.is_shared for one in intended) else ""


def _wrong(
    truth: GroundTruth, by: str, what: str, host: str, rule: str, message: str, seconds: float
) -> Wrong:
    active = [
        one.each.name
        for sort in ("monitoring", "benign")
        for one in truth.active_faults(host, seconds, sort)
    ]
    mistold = bool(truth.active_faults(host, seconds, "monitoring"))
    return Wrong(by, what, host, rule, message, tuple(sorted({*active})), mistold)
