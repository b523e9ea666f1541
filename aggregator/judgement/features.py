"""What is known of a host when its hazard is told: what models are trained on, and what is kept beside it.

One list of columns, `NAMES`: those of the history of faults and OBSERVED, what is measured, in the order of
`hazard.features`, and last what no model takes. All are stored with each score, and OBSERVED of each day's first for longer.
"""

from __future__ import annotations

import numpy as np

from ..fleet.arrays import Floats
from ..fleet.pace import slowest
from ..hazard import features as learned
from ..hazard.measured import MEASURED
from ..verdicts import Evidence, Reason
from .faults import Faults
from .model_queries import CORRECTED, LINK_DOWNS, LINK_ERRORS, REMAPS, query_of
from .present import Present

#: What is measured, as it is measured (`hazard/measured.py` has units and words), and the number of GPUs.
OBSERVED = (*(feature.name for feature in MEASURED), "gpus")
NAMES = (*learned.NAMES_OF_HISTORY, *OBSERVED)
COLUMN = {name: at for at, name in enumerate(NAMES)}


def assemble(
    present: Present, faults: Faults, names: tuple[str, ...], frozen: frozenset[int]
) -> Floats:
    """Return hosts x NAMES; NaN where something is not known: missing is not zero. *names*: of the hosts.

    *frozen*: whose silence is more likely ours, and tells nothing of them, now or to a model that learns of this day.
    """
    fleet, now_us = present.fleet, present.now_ns // 1000
    hosts, gpus = len(fleet), fleet.devices["gpu"]
    observed: dict[str, Floats] = {
        "gpus": fleet.gpus.astype(np.float64),
        "corrected_errors": _worst(present, CORRECTED),
        "remaps_waiting": _remaps(present),
        "link_errors": _worst(present, LINK_ERRORS),
        "link_downs": _worst(present, LINK_DOWNS),
        "speed": slowest(present.speeds.relative, gpus.host, hosts),
        "headroom_celsius": slowest(_headroom(present), gpus.host, hosts),
        "silent_seconds": _silent(present, frozen),
        "gpus_unread": _unread(present),
        "faults_of_others": faults.of_others(now_us),
    }
    beside = np.stack([observed[name] for name in OBSERVED], axis=1)
    return np.hstack([learned.features_of(faults.state(names, now_us)), beside])


def evidence_of(
    at: int, host: str, value: float, delta: float, score_delta: float, at_ns: int
) -> Evidence:
    """Return the column *at*, of those that models take, as one contribution to the hazard of *host*."""
    feature = learned.FEATURES[at]
    return Evidence(
        signal=f"hazard.{feature.name}",
        device="host",
        value=value,
        unit=feature.unit,
        normal=feature.normal,
        log_hazard_delta=delta,
        relative_speed_factor=1.0,
        score_delta=score_delta,
        reason=Reason.LEMON,  # by its own name advice would act on it: a model calls for nothing
        words=feature.said(value),
        observed_ns=at_ns,
        sql=query_of(feature.name, host, at_ns),
    )


def _silent(present: Present, frozen: frozenset[int]) -> Floats:
    known = np.isfinite(present.silent_seconds)
    known[list(frozen)] = False
    return np.where(known, present.silent_seconds, np.nan)


def _worst(present: Present, counters: tuple[tuple[str, str], ...]) -> Floats:
    """Return the most that any device of each host counted within ten minutes; of a host that is not heard it is not known."""
    worst = np.zeros(len(present.fleet))
    for table, column in counters:
        rows, events = present.counting(table, column, 0.1, slow=True)
        np.maximum.at(worst, present.fleet.tables[table].devices.host[rows], events)
    return np.where(present.awake, worst, np.nan)


def _remaps(present: Present) -> Floats:
    waiting = np.zeros(present.fleet.devices["gpu"].count, dtype=bool)
    for column in REMAPS:
        waiting[present.where("gpu_10s_changes", column, lambda cells: cells > 0)] = True
    hosts = present.fleet.devices["gpu"].host[waiting]
    counts = np.bincount(hosts, minlength=len(present.fleet))
    return np.where(present.awake, counts, np.nan)


def _headroom(present: Present) -> Floats:
    die = present.gauge("gpu_1s", "temperature_celsius")
    own = present.gauge("gpu_1s", "temperature_margin_celsius")
    return np.where(
        np.isfinite(own), own, present.gauge("gpu_10s", "temperature_slowdown_celsius") - die
    )


def _unread(present: Present) -> Floats:
    fresh = present.fleet.devices["gpu"].host[present.fresh("gpu_1s")]
    read = np.bincount(fresh, minlength=len(present.fleet))[: len(present.fleet)]
    missing = np.maximum(present.fleet.gpus - read, 0).astype(np.float64)
    return np.where(present.awake, missing, np.nan)
