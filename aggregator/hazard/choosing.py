"""Which form a model has: the time since return ranks hosts, unless another plainly ranks better on days ahead."""

from __future__ import annotations

from dataclasses import dataclass

from .events import EventsError
from .folds import Ahead, folds_of
from .forms import RICHER, SIMPLE, WITH_MEASURED, Form
from .history import Units

#: Of AUC and of recall. Less is what the draw of nodes makes of two rankings that are as good.
GAINS_MIN = (0.005, 0.01)
#: Of the units before a fold's cut: with fewer known, the weights of what is measured are of the last weeks alone, and a
#: unit of which nothing is known counts as one where all is normal.
KNOWN_SHARE_MIN = 0.2
#: Figures that differ by less are the same, summed in another order.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Tried:
    """How one form did out of fold."""

    form: Form
    auc: float
    recall: float
    ece: float
    calibration: tuple[tuple[float, float], ...]


def choose(daily: Units, weekly: Units, outcome: str, end_days: float, nodes: int) -> Tried:
    """Return the first simple form, the best of the simple ones that plainly rank better than it, a richer one that
    plainly ranks better than those, or the one with what is measured where that plainly ranks better than all.

    *daily*, *weekly*: units with windows of a day and of a week; *nodes*: of the fleet. Raises EventsError where there
    is no fold to choose by.
    """
    forms = (*SIMPLE, *RICHER)
    folds = folds_of(daily, weekly, outcome, end_days, forms)
    if not folds:
        raise EventsError(
            "no fault in the second half of the days to learn from, or none before it: nothing to choose a ranking by"
        )
    ahead = [Ahead(folds, at, nodes) for at in range(len(forms))]
    best, *others = range(len(SIMPLE))
    above = [at for at in others if ranks_better(ahead[at], ahead[best])]
    best = max(above, key=lambda at: sum(ahead[at].figures), default=best)
    for at in range(len(SIMPLE), len(forms)):
        best = at if ranks_better(ahead[at], ahead[best]) else best
    measured = _with_measured(daily, weekly, outcome, end_days, nodes, forms[best])
    return measured or _tried(forms[best], ahead[best])


def _with_measured(
    daily: Units, weekly: Units, outcome: str, end_days: float, nodes: int, best: Form
) -> Tried | None:
    """Return the form with what is measured if it plainly ranks better than *best*, and than itself without it.

    Judged on the folds before whose cut enough was measured.
    """
    if daily.state.measured is None:
        return None
    # RICHER[0] is the same without it, so that no gain is of the history's.
    forms = (best, RICHER[0], WITH_MEASURED)
    folds = folds_of(daily, weekly, outcome, end_days, forms, KNOWN_SHARE_MIN)
    if not folds:
        return None
    *others, measured = (Ahead(folds, at, nodes) for at in range(len(forms)))
    if all(ranks_better(measured, other) for other in others):
        return _tried(WITH_MEASURED, measured)
    return None


def _tried(form: Form, ahead: Ahead) -> Tried:
    return Tried(form, *ahead.figures, *ahead.calibration())


def ranks_better(one: Ahead, other: Ahead) -> bool:
    """Say whether *one* plainly ranks better than *other*.

    In AUC or in recall it gains at least GAINS_MIN and the whole 90 % interval of the difference lies above zero; in the
    other of the two it is not below. Of so few nodes that failed that there is no interval, nothing is plainly better.
    """
    gains = [mine - theirs for mine, theirs in zip(one.figures, other.figures, strict=True)]
    if min(gains) < -ROUNDING or all(
        gain < least for gain, least in zip(gains, GAINS_MIN, strict=True)
    ):
        return False  # before anything is drawn
    return any(
        gain >= least and mine.less(theirs).estimate().lower > ROUNDING
        for gain, least, mine, theirs in zip(gains, GAINS_MIN, one.drawn, other.drawn, strict=True)
    )
