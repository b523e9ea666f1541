"""Recordings of faults, and models of hazard, as they come from a file and from a table, and then not."""

from __future__ import annotations

import random

import numpy as np

from gangline.aggregator.hazard.events import EventsError, parse_events
from gangline.aggregator.hazard.history import units_of
from gangline.aggregator.hazard.model import HazardModel, ModelError, prior
from tests.aggregator.hazard.fleets import data_of, event, fault
from tests.fuzzing.damage import ACCEPTED, REFUSED, damaged, text

EVENTS = data_of(
    [*fault("a", 1.5, 3.25), *fault("b", 9.0, None), event("c", 2.0, False), *fault("a", 8.0, 9.0)]
)
MODEL = prior().to_text().encode()


def fuzz_events(source: random.Random) -> str:
    """A file of faults: faults that end after they start, units of active nodes, or an error."""
    try:
        faults = parse_events(damaged(EVENTS, source))
        units = units_of(faults)
    except EventsError as error:
        assert str(error), "no words"
        return REFUSED
    assert (faults.end >= faults.start).all()
    assert (units.state.since_return_days >= 0).all()
    assert np.isfinite(units.state.count).all()
    return ACCEPTED


def fuzz_hazard_model(source: random.Random) -> str:
    """A model's text: a model with finite hazards, or an error."""
    try:
        model = HazardModel.from_text(text(damaged(MODEL, source)))
    except ModelError as error:
        assert str(error), "no words"
        return REFUSED
    logs, _ = model.contributions(np.ones((1, len(model.weights))))
    assert np.isfinite(logs).all()
    assert HazardModel.from_text(model.to_text()) == model
    return ACCEPTED


TARGETS = {"fault-events": fuzz_events, "hazard-model": fuzz_hazard_model}
