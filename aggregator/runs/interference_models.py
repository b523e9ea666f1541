"""The models of interference in use: trained in a child process on the co-locations of real runs, and compared with physics alone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from ...fingerprints.interference import (
    InterferenceError,
    InterferenceModel,
    decode_model,
    encode_model,
)
from ...fingerprints.interference_check import CheckedModel, check_in_child
from ...fingerprints.interference_pressure import HOST
from ..model import TransactionalStore
from .colocation_inputs import read_measured

log = logging.getLogger(__name__)

_NEWEST = (
    "SELECT accepted, model FROM interference_models WHERE sharing = ? ORDER BY time DESC LIMIT 1"
)
#: Stores a model after the current one, even if the clock was ahead before: the newest counts.
_INSERT = (
    "INSERT INTO interference_models VALUES (greatest(make_timestamp(?), (SELECT max(time) + INTERVAL 1 MICROSECOND "
    "FROM interference_models)), ?, ?, ?, ?, ?, ?, ?, ?)"
)


class TrainedInterferenceModel(NamedTuple):
    """A new model with its errors, and whether it is used. `reason`: for people."""

    checked: CheckedModel
    pairs: int
    accepted: bool
    reason: str


class InterferenceModels:
    """Holds the newest model of each form of sharing if it was accepted, else none. Any thread may read `in_use`."""

    def __init__(self, store: TransactionalStore, wall_ns: Callable[[], int]) -> None:
        self._store, self._wall_ns = store, wall_ns
        self._training = threading.Lock()
        #: Replaced as a whole; judging reads it once per turn. Empty: physics alone.
        self.in_use: tuple[InterferenceModel, ...] = ()

    def load(self) -> None:
        """Load the newest model; an unreadable one is logged, and physics alone is used."""
        with self._store.reading() as cursor:
            row = cursor.execute(_NEWEST, [HOST]).fetchone()
        try:
            self.in_use = (decode_model(row[1]),) if row and row[0] else ()
        except InterferenceError as error:
            self.in_use = ()
            log.error("the stored model of interference is not used, physics alone is: %s", error)

    def train(self) -> TrainedInterferenceModel:
        """Train on the stored co-locations, store the model, and use it if it is better than physics alone. Blocks.

        Raises InterferenceError if there are too few co-locations, or the training fails; then nothing is stored.
        """
        with self._training:
            with self._store.reading() as cursor:
                measured = read_measured(cursor, HOST)
            checked = check_in_child(measured, HOST)
            result = _decided(checked, len(measured))
            now_us = self._wall_ns() // 1000
            self._store.in_transaction(lambda connection: _insert(connection, now_us, result))
            self.in_use = (checked.model,) if result.accepted else ()
            return result


def _decided(checked: CheckedModel, pairs: int) -> TrainedInterferenceModel:
    reason = (
        f"error of the throughput on held-out pairs {100 * checked.error:.1f} %, physics alone {100 * checked.physics_error:.1f} % "
        f"({checked.answered} of {checked.rows} slowdowns predicted)"
    )
    if not checked.is_better:
        reason += ": not better, so physics alone is used"
    return TrainedInterferenceModel(checked, pairs, checked.is_better, reason)


def _insert(connection: Any, now_us: int, result: TrainedInterferenceModel) -> None:
    checked = result.checked
    connection.execute(
        _INSERT,
        [
            now_us, checked.model.sharing, result.accepted, result.reason, result.pairs, len(checked.model.keys),
            checked.error, checked.physics_error, encode_model(checked.model),
        ],
    )  # fmt: skip
