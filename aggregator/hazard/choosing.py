"""Which form a model has: the time since return ranks hosts, unless another plainly ranks better on days ahead."""

from __future__ import annotations

from dataclasses import dataclass

from .events import EventsError
from .folds import Ahead, folds_of
from .forms import RICHER, SIMPLE, Form
from .history import Units

#: Of AUC and of recall. Less is what the draw of nodes makes of two rankings that are as good.
GAINS_MIN = (0.005, 0.01)
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
    """Return the first simple form, the best of the simple ones that plainly rank better than it, or a richer one that
    plainly ranks better than those.

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
    return Tried(forms[best], *ahead[best].figures, *ahead[best].calibration())


def ranks_better(one: Ahead, other: Ahead) -> bool:
    """Say whether *one* plainly ranks better than *other*.

    In AUC or in recall it gains at least GAINS_MIN and the whole 90 % interval of the difference lies above zero; in the
    other of the two it is not below.
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
