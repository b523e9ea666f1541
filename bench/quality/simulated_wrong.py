"""False reports: what was reported about hosts without a fault."""

from __future__ import annotations

from collections.abc import Sequence

from bench.quality.simulated_feed import JUDGE, NamedState, SimulatedAdvice
from bench.quality.simulated_kinds import BLAMED, DRAINS, RIGHT, Wrong
from bench.quality.simulated_truth import GroundTruth, TrueFault
from gangline.aggregator.advisories.advisory import Action, Basis

#: What advice about one host may be, the gravest last; "": right.
GRAVITY = ("", "look", "avoid", "alone", "astray", "drain")


def wrong_names(named: Sequence[NamedState], truth: GroundTruth) -> list[Wrong]:
    """Return each host that a state keeps work off without a fault: of each that says so, once an episode for all that
    stood on it at one time; who was named before something began may be named for it as well."""
    found: dict[tuple[str, str, tuple[str, ...]], Wrong] = {}
    for one in named:
        if one.state in BLAMED and truth.has(one.host) and not truth.is_ill(one.host, one.begin):
            wrong = _wrong(truth, one.by, "name", one.host, one.rule, "", one.begin)
            found.setdefault((one.by, one.host, wrong.about), wrong)
    return list(found.values())


def wrong_advice(advised: Sequence[SimulatedAdvice], truth: GroundTruth) -> list[Wrong]:
    """Return advice about one host on which no fault stood; each advisory once, as the gravest that it was.

    And, as "astray", drains of a host on which a fault stood, for a reason that is none of that fault's; as "alone",
    those for what its host shares with others; as "cause", advice for what several hosts share where no fault struck
    two of them at once.
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
    """Return what a drain for *reason* is of a host on which *faults* stood; "" for right."""
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
