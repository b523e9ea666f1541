"""From a recording to a model: its form is chosen within the recording alone, its weights are of all of it."""

from __future__ import annotations

import numpy as np

from .choosing import choose
from .events import EventsError, Faults
from .features import features_of
from .fitting import fit
from .history import HARDWARE, units_of
from .hostdays import HostDays
from .model import HazardModel
from .spread import spread_of

#: Fewer fault starts teach nothing: the prior stays.
STARTS_MIN = 20


def train(
    faults: Faults, outcome: str, source: str, days_measured: HostDays | None = None
) -> HazardModel:
    """Return the model of *faults*, and of what was measured beside them. Raises EventsError if they are too few."""
    which = np.isfinite(faults.start)
    if outcome == HARDWARE:
        which = which & faults.hardware
    if which.sum() < STARTS_MIN:
        raise EventsError(
            f"{int(which.sum())} fault starts ({outcome}); expected at least {STARTS_MIN} to learn from"
        )
    daily = units_of(faults, 1, days_measured)
    weekly = units_of(faults, days_measured=days_measured)
    best = choose(daily, weekly, outcome, faults.end_days, len(faults.nodes))
    form = best.form
    base, weights = fit(
        features_of(daily.state), daily.came(outcome), form.ridge, form.names, form.ordered_by
    )
    return HazardModel(
        source=f"{source}; ranking: {form.name}",
        is_prior=False,
        outcome=outcome,
        base_log_hazard_per_day=base,
        weights=weights,
        nodes=len(faults.nodes),
        faults=int(which.sum()),
        ridge=form.ridge,
        metrics={"auc": best.auc, "recall": best.recall, "ece": best.ece},
        calibration=best.calibration,
        spread=spread_of(daily, outcome),
    )
