"""The hazard model in use, the trained models, and the choice between two."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ..arrays import Floats
from ..model import TransactionalStore
from .events import EventsError
from .history import ALL, WINDOW_DAYS, Units, units_of
from .model import HazardModel, ModelError, prior
from .store_history import HOST_DAYS_MAX, Recording, days_back, read_recording
from .training import train

log = logging.getLogger(__name__)

#: A new model is compared with the current one on the last days, without training on them.
LAST_DAYS = 28
#: Bound of probabilities away from 0 and 1, so that a single surprise does not decide.
CHANCE_MIN = 1e-9
_NEWEST = "SELECT model FROM models WHERE accepted ORDER BY time DESC LIMIT 1"
#: Stores a model after the current one, even if the clock was ahead before: the newest counts.
_INSERT = (
    "INSERT INTO models VALUES (greatest(make_timestamp(?), (SELECT max(time) + INTERVAL 1 MICROSECOND "
    "FROM models WHERE accepted)), ?, ?, ?, ?, ?, ?, ?, map(?, ?), ?, ?)"
)


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A new model, and whether it replaced the current one."""

    model: HazardModel
    accepted: bool
    reason: str  # for the acceptance or rejection


class ModelRegistry:
    """Holds the newest accepted model, else the prior. Any thread may read `in_use`."""

    def __init__(self, store: TransactionalStore, wall_ns: Callable[[], int]) -> None:
        self._store, self._wall_ns = store, wall_ns
        self._training = threading.Lock()
        #: Replaced as a whole; judging reads it once per turn.
        self.in_use = prior()

    def load(self) -> None:
        """Load the newest accepted model; an unreadable one is logged, and the prior is used."""
        with self._store.reading() as cursor:
            row = cursor.execute(_NEWEST).fetchone()
        try:
            self.in_use = HazardModel.from_text(row[0]) if row else prior()
        except ModelError as error:
            log.error("the stored hazard model is not used, a prior is used instead: %s", error)

    def train(self, *, simulated: bool = False) -> TrainingResult:
        """Train on the stored record, store the model, and use it unless it is worse. Blocks.

        Raises EventsError if there is too little data to train or compare; then nothing is stored.
        """
        with self._training:
            now_us = self._wall_ns() // 1000
            with self._store.reading() as cursor:
                recording = read_recording(cursor, now_us, simulated=simulated)
            if not len(recording.faults.node):
                raise EventsError(
                    "no fault is on record; expected findings that cost a host its state"
                )
            result = train_and_compare(recording, self.in_use)
            self._store.in_transaction(lambda connection: store_model(connection, now_us, result))
            if result.accepted:
                self.in_use = result.model
            return result


def train_and_compare(found: Recording, in_use: HazardModel) -> TrainingResult:
    """Return the model of all of *found*, with the decision whether to accept it.

    The decision compares *in_use* with a model trained without the last weeks, by the mean log loss
    of P(a fault within 7 days) of their units. Raises EventsError.
    """
    faults, days_measured = found.faults, found.days_measured
    cut = int(faults.end_days) - LAST_DAYS
    if cut < LAST_DAYS:
        hosts = len(faults.nodes)
        if days_back(hosts) < 2 * LAST_DAYS:  # waiting gives no more days
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
    if in_use.is_prior:
        kind = "the prior of published rates"
    else:
        kind = f"the one in use (of {in_use.last_time})"
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
    """Insert a model into the table `models`, accepted or not."""
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
