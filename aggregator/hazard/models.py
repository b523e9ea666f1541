"""The hazard model in use, the models trained here, and the choice between two. Other threads may read `in_use`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ..model import TransactionalStore
from .events import EventsError, Floats
from .history import ALL, WINDOW_DAYS, Units, units_of
from .model import HazardModel, ModelError, prior
from .store_history import HOST_DAYS_MAX, Recording, days_back, read_recording
from .training import train

log = logging.getLogger(__name__)

#: A new model is compared with the one in use on this many days, from which it did not learn.
LAST_DAYS = 28
#: Chances are held away from 0 and 1 by this, so that one surprise is not all that counts.
CHANCE_MIN = 1e-9
_NEWEST = "SELECT model FROM models WHERE accepted ORDER BY time DESC LIMIT 1"
#: After the one that is in use, though our clock may have been ahead when that was trained: the newest is the next one.
_INSERT = (
    "INSERT INTO models VALUES (greatest(make_timestamp(?), (SELECT max(time) + INTERVAL 1 MICROSECOND "
    "FROM models WHERE accepted)), ?, ?, ?, ?, ?, ?, ?, map(?, ?), ?, ?)"
)


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A new model, and whether it took the place of the one in use."""

    model: HazardModel
    accepted: bool
    reason: str  # why, or why not


class ModelRegistry:
    """Holds the model in use: the newest that was accepted, else the prior."""

    def __init__(self, store: TransactionalStore, wall_ns: Callable[[], int]) -> None:
        self._store, self._wall_ns = store, wall_ns
        self._training = threading.Lock()
        #: Swapped whole; judging takes it once a round.
        self.in_use = prior()

    def load(self) -> None:
        """Take the newest accepted model of the store. One that cannot be read is logged, and the prior stays."""
        with self._store.reading() as cursor:
            row = cursor.execute(_NEWEST).fetchone()
        try:
            self.in_use = HazardModel.from_text(row[0]) if row else prior()
        except ModelError as error:
            log.error("the stored hazard model is not used, a prior is used instead: %s", error)

    def train(self, *, simulated: bool = False) -> TrainingResult:
        """Train on what is on record, keep it, and use it unless it is worse. Blocks.

        Raises EventsError, with words, where there is too little to learn from or to compare on; nothing is kept then.
        """
        with self._training:
            now_us = self._wall_ns() // 1000
            with self._store.reading() as cursor:
                found = read_recording(cursor, now_us, simulated=simulated)
            if not len(found.faults.node):
                raise EventsError(
                    "no fault is on record; expected findings that cost a host its state"
                )
            result = train_and_compare(found, self.in_use)
            self._store.in_transaction(lambda connection: store_model(connection, now_us, result))
            if result.accepted:
                self.in_use = result.model
            return result


def train_and_compare(found: Recording, in_use: HazardModel) -> TrainingResult:
    """Return the model of all of *found*, and whether one of all but the last weeks did as well there as *in_use*.

    Compared by the mean log loss of P(a fault within 7 days) of the last weeks' units. Raises EventsError.
    """
    faults, days_measured = found.faults, found.days_measured
    cut = int(faults.end_days) - LAST_DAYS
    if cut < LAST_DAYS:
        hosts = len(faults.nodes)
        if days_back(hosts) < 2 * LAST_DAYS:  # more will never be
            raise EventsError(
                f"of {hosts} hosts no more than {days_back(hosts)} days are used ({HOST_DAYS_MAX} "
                "hosts x days); expected "
                f"at least {2 * LAST_DAYS} days, and so at most {HOST_DAYS_MAX // (2 * LAST_DAYS)} hosts"
            )
        raise EventsError(
            f"{faults.end_days:.1f} days are on record; expected at least {2 * LAST_DAYS}: half to learn from, "
            "half to compare with the model in use"
        )
    last = units_of(faults, days_measured=days_measured).between(cut, cut + LAST_DAYS)
    if not last.positives(ALL).any():
        raise EventsError(
            f"no host failed within the last {LAST_DAYS} days: nothing to compare with the model in use"
        )
    try:
        candidate = train(faults.before(float(cut)), ALL, "the store", days_measured)
    except EventsError as error:
        raise EventsError(
            f"before the last {LAST_DAYS} days, which are kept to compare on: {error}"
        ) from error
    losses = [_loss(model, last) for model in (candidate, in_use)]
    better = losses[0] <= losses[1]
    kind = (
        "the prior of published rates"
        if in_use.is_prior
        else f"the one in use (of {in_use.last_time})"
    )
    reason = f"log loss of the last {LAST_DAYS} days {losses[0]:.5f}, {kind} {losses[1]:.5f}" + (
        "" if better else ": worse, so the one in use stays"
    )
    whole = train(faults, ALL, "the store", days_measured)
    metrics = {
        **whole.metrics,
        "hazard_spread": whole.spread,
        "log_loss": losses[0],
        "log_loss_of_the_one_in_use": losses[1],
    }
    model = replace(
        whole, first_time=_iso(found.first_us), last_time=_iso(found.last_us), metrics=metrics
    )
    return TrainingResult(model, better, reason)


def _loss(model: HazardModel, units: Units) -> float:
    positive: Floats = units.positives(ALL)
    chance = np.clip(model.probability(units.state, WINDOW_DAYS), CHANCE_MIN, 1.0 - CHANCE_MIN)
    return float(-np.mean(positive * np.log(chance) + (1.0 - positive) * np.log1p(-chance)))


def _iso(at_us: int) -> str:
    return datetime.fromtimestamp(at_us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def store_model(connection: Any, now_us: int, result: TrainingResult) -> None:
    """Put it into the table `models`, accepted or not."""
    model = result.model
    connection.execute(
        _INSERT,
        [
            now_us, model.outcome, result.accepted, result.reason, model.first_time, model.last_time,
            model.nodes, model.faults, list(model.metrics), list(model.metrics.values()),
            [{"told": predicted, "observed": observed} for predicted, observed in model.calibration],
            model.to_text(),
        ],
    )  # fmt: skip
