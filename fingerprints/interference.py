"""Predicts how much co-located workloads slow each other: physics, learned sensitivities, and a trained residual.

The slowdown is 1 plus the excess of the binding resource (`interference_pressure.py`), plus sensitivity times pressure
(`interference_effects.py`), times a residual of boosted trees. Each factor rises with the neighbors' pressure. numpy
only: scikit-learn trains the trees in a child process (`interference_training.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import nan
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .demand import QUANTILES, SHARED_RESOURCES
from .interference_effects import Effects, Floats, Indexes, Prior, standard_pace
from .interference_pressure import (
    IS_DIVIDED,
    SEPARATE,
    SHARINGS,
    SLOWDOWN_MAX,
    Flags,
    excess_by_resource,
    pressures,
)
from .interference_trees import Forest, ForestError, decode_forest

#: Rises when a number of the stored model changes its meaning.
MODEL_VERSION = 1
#: Limits of a call: groups, and workloads of a group.
GROUPS_MAX, MEMBERS_MAX = 64, 16
#: Pressure above the greatest pressure of the training, as a ratio, at which a prediction is still given.
SUPPORT_RATIO = 1.25
#: A resource with less excess than this does not bind.
BINDING_MIN = 0.01
#: Without co-locations: the interval of 90 % spans these shares of the excess by physics, and half of the slowdown that
#: physics cannot see (assumed).
PHYSICS_LOWER, PHYSICS_UPPER, UNSEEN_UPPER = 0.3, 1.5, 0.1
#: Features of the residual before the pressure of the neighbors by resource. Names with `+` rise with pressure, and the
#: residual is constrained to rise with them.
FEATURES = (
    "log_slowdown+", "neighbor_pressure+", "neighbor_uncertainty+", "sensitivity", "uncertainty", "pace",
    *(f"{name}+" for name in SHARED_RESOURCES),
)  # fmt: skip
RISES: tuple[int, ...] = tuple(int(name.endswith("+")) for name in FEATURES)
#: Limit of the residual, as a logarithm: a factor of 1.5.
RESIDUAL_MAX = 0.4


class InterferenceError(ValueError):
    """A request or a stored model that cannot be used."""


@dataclass(frozen=True, slots=True, eq=False)
class ColocatedWorkload:
    """A workload beside others. `demand`: (SHARED_RESOURCES, QUANTILES), NaN unknown.

    `key`: names its learned effects; `context`: its hardware, such as the GPU model. `pace_seconds`: a step alone.
    """

    key: str = ""
    context: str = ""
    pace_seconds: float = nan
    demand: Floats = field(
        default_factory=lambda: np.full((len(SHARED_RESOURCES), len(QUANTILES)), nan)
    )


class Colocation(NamedTuple):
    """Workloads that run together. `supply` (SHARED_RESOURCES): NaN unknown, infinite where nothing is shared."""

    workloads: Sequence[ColocatedWorkload]
    supply: Floats


class Slowdown(NamedTuple):
    """Slowdown of a workload, 1 for none, with its interval of 90 %; all NaN if `abstained` gives a reason.

    `binding`: the resource that causes most of it; "" if no known resource does.
    """

    ratio: float
    lower: float
    upper: float
    binding: str
    evidence: str
    abstained: str


@dataclass(frozen=True)
class InterferenceModel:
    """Learned from co-locations of one form of sharing.

    Intervals are logarithms around the slowdown before the residual, per context and, last, for an unknown context.
    `limits`: forests of the 5 % and 95 % limits, with the conformal correction `widening`. `unseen_width`: half of the
    interval if a workload has no co-location.
    `pressure_max` (SHARED_RESOURCES): greatest total pressure of the training; NaN for a resource never seen.
    """

    sharing: str
    keys: tuple[str, ...]
    contexts: tuple[str, ...]
    effects: Effects
    residual: Forest
    limits: tuple[Forest, Forest]
    widening: Floats
    unseen_width: Floats
    pressure_max: Floats

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Return the index of each key."""
        return {key: at for at, key in enumerate(self.keys)}


class GroupRows(NamedTuple):
    """A row per workload of a group. `own`, `others`: pressures (rows, resources, quantiles); `group` by row.

    `known`: index of learned effects, -1 without; `unknown`: resources that a demand needs and whose supply is unknown.
    """

    own: Floats
    others: Floats
    excess: Floats
    group: Indexes
    known: Indexes
    pace: Floats
    context: Indexes
    unknown: Indexes


class BaseSlowdowns(NamedTuple):
    """Slowdown before the residual, the features of the residual, and the excess by resource."""

    ratio: Floats
    features: Floats
    by_resource: Floats
    has_unseen: Indexes


def learned_key(workload_id: str, gpu_model: str) -> str:
    """Return the key under which a workload is learned: its effects differ between GPU models."""
    return f"{workload_id} on {gpu_model}" if workload_id and gpu_model else ""


def predict(
    workloads: Sequence[ColocatedWorkload],
    supply: Floats,
    sharing: str,
    model: InterferenceModel | None = None,
) -> list[Slowdown]:
    """Return the slowdown of each of *workloads* that run together."""
    return predict_groups([Colocation(workloads, supply)], sharing, model)[0]


def predict_groups(
    groups: Sequence[Colocation], sharing: str, model: InterferenceModel | None = None
) -> list[list[Slowdown]]:
    """Return the slowdowns of all groups, in their order. Raises InterferenceError for a wrong request.

    *model*: learned under *sharing*; None: physics alone.
    """
    check_request(groups, sharing, model)
    if not groups:
        return []
    rows = build_rows(groups, sharing, model)
    if sharing == SEPARATE:
        apart = Slowdown(1.0, 1.0, 1.0, "", "separate hosts share nothing", "")
        return [[apart] * len(group.workloads) for group in groups]
    slowdowns = _physics_alone(rows, sharing) if model is None else _learned(rows, model)
    result: list[list[Slowdown]] = [[] for _ in groups]
    for at, slowdown in zip(rows.group.tolist(), slowdowns, strict=True):
        result[at].append(slowdown)
    return result


def check_request(
    groups: Sequence[Colocation], sharing: str, model: InterferenceModel | None
) -> None:
    """Raise InterferenceError if a limit is exceeded or an array has a wrong shape."""
    if sharing not in SHARINGS:
        raise InterferenceError(f"sharing {sharing!r}: expected one of {', '.join(SHARINGS)}")
    if model is not None and sharing not in (model.sharing, SEPARATE):
        raise InterferenceError(
            f"the model was learned under {model.sharing}: it has nothing on {sharing}"
        )
    if len(groups) > GROUPS_MAX:
        raise InterferenceError(f"{len(groups)} groups: at most {GROUPS_MAX} in a call")
    shape = (len(SHARED_RESOURCES), len(QUANTILES))
    for group in groups:
        if not 1 <= len(group.workloads) <= MEMBERS_MAX:
            raise InterferenceError(
                f"a group of {len(group.workloads)} workloads: expected 1 to {MEMBERS_MAX}"
            )
        if np.shape(group.supply) != shape[:1]:
            raise InterferenceError(
                f"supply of shape {np.shape(group.supply)}: expected {shape[:1]}"
            )
        for workload in group.workloads:
            if np.shape(workload.demand) != shape:
                raise InterferenceError(
                    f"demand of {workload.key!r} of shape {np.shape(workload.demand)}: expected {shape}"
                )


def build_rows(
    groups: Sequence[Colocation], sharing: str, model: InterferenceModel | None
) -> GroupRows:
    """Return a row per workload, in the order of the groups."""
    sizes = np.array([len(group.workloads) for group in groups])
    group_index = np.repeat(np.arange(len(groups)), sizes)
    workloads = [workload for group in groups for workload in group.workloads]
    supply = np.array([group.supply for group in groups], dtype=np.float64)[group_index]
    demand = np.array([workload.demand for workload in workloads], dtype=np.float64)
    own = pressures(demand, supply)
    filled = np.where(np.isnan(own), 0.0, own)
    starts = np.cumsum(sizes) - sizes
    others = _others(filled, starts, group_index)
    needs_supply = (demand[:, :, -1] > 0.0) & np.isnan(supply) & IS_DIVIDED[sharing]
    is_contested = needs_supply & (_others(needs_supply.astype(np.intp), starts, group_index) > 0)
    known, context = np.full(len(workloads), -1), np.full(len(workloads), -1)
    if model is not None:
        at = {name: index for index, name in enumerate(model.contexts)}
        known = np.array([model.index.get(workload.key, -1) for workload in workloads])
        context = np.array([at.get(workload.context, -1) for workload in workloads])
    return GroupRows(
        own, others, excess_by_resource(filled, others, sharing),
        group_index, known, np.array([workload.pace_seconds for workload in workloads]), context,
        np.where(is_contested.any(axis=1), is_contested.argmax(axis=1), -1),
    )  # fmt: skip


def base_of(rows: GroupRows, effects: Effects) -> BaseSlowdowns:
    """Return the slowdown by physics and learned effects, and the features of the residual."""
    known, is_known = rows.known, rows.known >= 0
    pace = standard_pace(rows.pace, rows.context, effects.pace_center, effects.pace_spread)
    sensitivity, own_variance = _side(
        known, effects.sensitivity, effects.sensitivity_variance, effects.sensitivity_prior,
        effects.sensitivity_prior.mean(pace, rows.context),
    )  # fmt: skip
    pressure, other_variance = _side(
        known, effects.pressure, effects.pressure_variance, effects.pressure_prior,
        effects.pressure_prior.mean(pace, rows.context),
    )  # fmt: skip
    resource = np.where(is_known[:, None], effects.resource_sensitivity[known], 1.0)
    starts = np.flatnonzero(np.diff(rows.group, prepend=-1))
    pressure = _others(pressure, starts, rows.group)
    other_variance = _others(other_variance, starts, rows.group)
    unseen = np.add.reduceat(~is_known, starts, dtype=np.intp)[rows.group]
    by_resource = resource * rows.excess
    latent = (sensitivity * pressure).sum(axis=1)
    ratio = np.minimum(1.0 + by_resource.max(axis=1, initial=0.0) + latent, SLOWDOWN_MAX)
    others_known = _others((~np.isnan(rows.own[:, :, 0])).astype(np.float64), starts, rows.group)
    columns = [
        np.log(ratio), pressure.sum(axis=1), np.sqrt(other_variance.sum(axis=1)),
        sensitivity.sum(axis=1), np.sqrt(own_variance.sum(axis=1)), pace,
    ]  # fmt: skip
    by_pressure = np.where(others_known > 0.0, rows.others.mean(axis=2), np.nan)
    features = np.concatenate([np.stack(columns, axis=1), by_pressure], axis=1)
    return BaseSlowdowns(ratio, features, by_resource, np.minimum(unseen, 1))


def _side(
    known: Indexes, mean: Floats, variance: Floats, prior: Prior, expected: Floats
) -> tuple[Floats, Floats]:
    """Return the effects of one side and their variances; the prior for a workload without co-locations."""
    is_known = (known >= 0)[:, None]
    return np.where(is_known, mean[known], expected), np.where(
        is_known, variance[known], prior.variance
    )


def _others(values: npt.NDArray[Any], starts: Indexes, group: Indexes) -> npt.NDArray[Any]:
    """Return per row the sum over the other rows of its group; never below 0 by rounding."""
    return np.asarray(np.maximum(np.add.reduceat(values, starts, axis=0)[group] - values, 0))


def _physics_alone(rows: GroupRows, sharing: str) -> list[Slowdown]:
    """Return the slowdowns by physics, with an assumed interval: no co-location was seen."""
    excess = np.minimum(rows.excess.max(axis=1, initial=0.0), SLOWDOWN_MAX - 1.0)
    is_unknown = ~_has_demand(rows, sharing)
    reasons = _supply_reasons(rows)
    for at in np.flatnonzero(is_unknown).tolist():
        reasons.setdefault(at, "the demand is unknown, and no co-location of the workload was seen")
    upper = np.minimum(1.0 + PHYSICS_UPPER * excess + UNSEEN_UPPER, SLOWDOWN_MAX)
    limits = (1.0 + excess, 1.0 + PHYSICS_LOWER * excess, upper)
    evidence = ["physics alone: no co-location was seen"] * excess.size
    return _slowdowns(limits, rows.excess, evidence, reasons)


def _learned(rows: GroupRows, model: InterferenceModel) -> list[Slowdown]:
    """Return the slowdowns by physics, effects and residual; an interval by calibration."""
    base = base_of(rows, model.effects)
    starts = np.flatnonzero(np.diff(rows.group, prepend=-1))
    residual = np.clip(model.residual.predict(base.features), -RESIDUAL_MAX, RESIDUAL_MAX)
    widening, width = model.widening[rows.context], model.unseen_width[rows.context]
    below, above = (
        np.where(
            base.has_unseen,
            residual + sign * width,
            forest.predict(base.features) + sign * widening,
        )
        for forest, sign in zip(model.limits, (-1.0, 1.0), strict=True)
    )
    is_alone = np.bincount(rows.group)[rows.group] < 2
    ratio, lower, upper = (
        np.where(is_alone, 1.0, base.ratio * np.exp(factor)) for factor in (residual, below, above)
    )
    ratio = np.clip(ratio, 1.0, SLOWDOWN_MAX)
    limits = (ratio, np.clip(lower, 1.0, ratio), np.clip(upper, ratio, SLOWDOWN_MAX))
    runs = np.where(rows.known >= 0, model.effects.runs[rows.known], 0)
    neighbor_runs = _others(runs, starts, rows.group)
    evidence = list(map(_evidence, runs.tolist(), neighbor_runs.tolist()))
    return _slowdowns(limits, base.by_resource, evidence, _reasons(rows, model))


def _slowdowns(
    limits: tuple[Floats, Floats, Floats],
    by_resource: Floats,
    evidence: Sequence[str],
    reasons: Mapping[int, str],
) -> list[Slowdown]:
    """Return the answer of each row; an abstention for the rows of *reasons*."""
    binding = [
        SHARED_RESOURCES[at] if excess >= BINDING_MIN else ""
        for at, excess in zip(
            by_resource.argmax(axis=1).tolist(),
            by_resource.max(axis=1, initial=0.0).tolist(),
            strict=True,
        )
    ]
    ratio, lower, upper = (column.tolist() for column in limits)
    abstained = [""] * len(evidence)
    result = list(map(Slowdown, ratio, lower, upper, binding, evidence, abstained))
    for at, reason in reasons.items():
        result[at] = Slowdown(nan, nan, nan, "", "", reason)
    return result


def _has_demand(rows: GroupRows, sharing: str) -> Flags:
    """Return whether the demand of each row on any of the divided resources is known."""
    return np.asarray(np.isfinite(rows.own[:, IS_DIVIDED[sharing], -1]).any(axis=1))


def _reasons(rows: GroupRows, model: InterferenceModel) -> dict[int, str]:
    """Return why each row is outside of the training. Only a resource with an excess counts."""
    pressure_max = model.pressure_max
    reasons = _supply_reasons(rows)
    total = np.nan_to_num(rows.own[:, :, -1], nan=0.0) + rows.others[:, :, -1]
    is_beyond = (rows.excess > BINDING_MIN) & ~(total <= SUPPORT_RATIO * pressure_max)
    worst = np.where(is_beyond, rows.excess, -1.0).argmax(axis=1)
    for at in np.flatnonzero(is_beyond.any(axis=1)).tolist():
        resource, greatest = int(worst[at]), float(np.nan_to_num(pressure_max[worst[at]]))
        reasons.setdefault(
            at,
            f"{SHARED_RESOURCES[resource]}: the demand is {total[at, resource]:.2f} of the supply, and the greatest of the co-locations seen is {greatest:.2f}",
        )
    has_facts = (rows.known >= 0) | np.isfinite(rows.pace) | _has_demand(rows, model.sharing)
    for at in np.flatnonzero(~has_facts).tolist():
        reasons.setdefault(
            at, "neither demand nor pace is known, and no co-location of the workload was seen"
        )
    return reasons


def _supply_reasons(rows: GroupRows) -> dict[int, str]:
    """Return the rows that share a resource of unknown supply."""
    return {
        at: f"{SHARED_RESOURCES[rows.unknown[at]]}: several workloads use it, and the host's supply is unknown"
        for at in np.flatnonzero(rows.unknown >= 0).tolist()
    }


def _evidence(runs: int, neighbor_runs: int) -> str:
    own = f"{runs} co-locations of the workload" if runs else "its pace and demand"
    neighbor = (
        f"{neighbor_runs} of its neighbors" if neighbor_runs else "its neighbors' pace and demand"
    )
    return f"from {own} and {neighbor}"


def encode_model(model: InterferenceModel) -> str:
    """Return the model as JSON."""
    effects = model.effects._asdict() | {
        "sensitivity_prior": model.effects.sensitivity_prior._asdict(),
        "pressure_prior": model.effects.pressure_prior._asdict(),
    }
    stored = {
        "version": MODEL_VERSION, "sharing": model.sharing, "keys": model.keys, "contexts": model.contexts,
        "resources": SHARED_RESOURCES, "effects": effects, "residual": model.residual.columns(),
        "limits": [forest.columns() for forest in model.limits], "widening": model.widening, "unseen_width": model.unseen_width,
        "pressure_max": model.pressure_max,
    }  # fmt: skip
    return json.dumps(stored, default=lambda array: array.tolist())


def decode_model(text: str) -> InterferenceModel:
    """Return the model that `encode_model` gave. Raises InterferenceError for another version or wrong arrays."""
    try:
        stored = json.loads(text)
        if stored["version"] != MODEL_VERSION or tuple(stored["resources"]) != SHARED_RESOURCES:
            raise InterferenceError(
                f"a model of version {stored['version']}: this is version {MODEL_VERSION}; train the model again"
            )
        low, high = (decode_forest(columns, len(FEATURES)) for columns in stored["limits"])
        model = InterferenceModel(
            str(stored["sharing"]), tuple(stored["keys"]), tuple(stored["contexts"]), _decode_effects(stored["effects"]),
            decode_forest(stored["residual"], len(FEATURES)), (low, high),
            *(np.array(stored[name], dtype=np.float64) for name in ("widening", "unseen_width", "pressure_max")),
        )  # fmt: skip
    except ForestError as error:
        raise InterferenceError(str(error)) from None
    except (KeyError, TypeError, IndexError, ValueError) as error:
        if isinstance(error, InterferenceError):
            raise
        raise InterferenceError(
            f"not a model of interference: {error!r}; train the model again"
        ) from None
    count, rank = len(model.keys), model.effects.sensitivity_prior.variance.size
    shapes = ((count, rank),) * 4 + ((count, len(SHARED_RESOURCES)), (count,))
    by_context = (len(model.contexts) + 1,)
    if tuple(array.shape for array in model.effects[:6]) != shapes or not (
        model.widening.shape == model.unseen_width.shape == by_context
    ):
        raise InterferenceError(
            "not a model of interference: its arrays differ in length; train the model again"
        )
    return model


def _decode_effects(stored: dict[str, Any]) -> Effects:
    arrays = {
        name: np.array(stored[name], dtype=np.float64)
        for name in Effects._fields
        if not name.endswith("_prior")
    }
    priors = {
        name: Prior(*(np.array(stored[name][part], dtype=np.float64) for part in Prior._fields))
        for name in ("sensitivity_prior", "pressure_prior")
    }
    numbers = {name: float(arrays.pop(name)) for name in ("pace_spread", "noise")}
    runs = arrays.pop("runs").astype(np.intp)
    return Effects(**arrays, **priors, **numbers, runs=runs)  # type: ignore[arg-type]
