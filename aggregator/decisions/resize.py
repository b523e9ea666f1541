"""Whether a running gang should grow, shrink, move or stay: gain over the remaining hours against the cost of the change.

    gain = (price of staying - price of the change, per hour) x hours left after it - useful work of the gang while it stops

Prices are those of `elastic`: over the same hours, against the GPUs of the largest size, so a returned node is worth as much
as a free GPU. The hours left are limited to the remaining work at the new speed. A change counts only if its gain is above a
margin and certainly positive: each change then lowers the price, and no two calls undo each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan

import numpy as np

from ..counter_deltas import Indexes
from . import elastic, planner
from .node_table import NodeTable
from .planner import Candidates, PlacementChoice
from .price import (
    CHECKPOINT_INTERVAL_MINUTES,
    CHECKPOINT_WRITE_MINUTES,
    RESTART_FACTOR,
    RESTART_MINUTES,
    GangPrice,
)
from .quantity import Quantity, declared, duration_hours, weakest
from .requirements import GangRequirements
from .scaling import ElasticSizes

#: Of laying out the state of training for another number of nodes, in minutes, with its 90 % interval (assumed).
RESHARD_MINUTES = (5.0, 1.0, 20.0)
#: A gain below this share of the largest size's GPUs x hours left is not worth a change, unless the request says otherwise.
GAIN_SHARE_MIN = 0.01


@dataclass(frozen=True, slots=True)
class ResizeTimes:
    """What the request says of the change, in hours; NaN: nobody said."""

    reshard_hours: float
    checkpoint_age_hours: float
    writes_on_demand: bool = False  #: a checkpoint can be written now


@dataclass(frozen=True, slots=True)
class ResizeChoice:
    """One way. `gain` in GPU-hours against staying; `reason` says why it is not the first one, or why it is."""

    choice: PlacementChoice
    joined: Indexes
    left: Indexes
    wait_hours: float  #: until the checkpoint from which it continues
    stop: Quantity  #: hours that the gang is stopped
    gain: Quantity
    reason: str = ""

    @property
    def is_worth_it(self) -> bool:
        """Whether it may be advised: see `plan_resize`."""
        return not self.reason


@dataclass(frozen=True, slots=True)
class ResizePlan:
    """the ways, the advised one first; `stay` is one of them."""

    choices: list[ResizeChoice]
    stay: ResizeChoice
    margin_gpu_hours: float


def plan_resize(
    table: NodeTable,
    candidates: Candidates,
    needs: GangRequirements,
    current: Indexes,
    times: ResizeTimes,
    communication: Quantity | None = None,
    gain_min: float = 0.0,
) -> ResizePlan:
    """Return the choices for the gang on *current*, whose `needs.hours` are left at its size of now. *gain_min*: in GPU-hours; 0: by share.

    *current* is in rank order: where groups are asked for, staying is priced in that order, and each change in the order that
    is best for its own groups. Of each size one set of nodes is tried for them.
    """
    sizes = needs.elastic
    assert sizes is not None
    size, gpus = current.size, planner.gpus_of(table, needs)
    every = replace(
        sizes, allowed=tuple(sorted({*sizes.allowed, size})), length_nodes=size
    )  # also of a size that is not allowed it is known what staying costs
    margin = gain_min or GAIN_SHARE_MIN * every.allowed[-1] * gpus * needs.hours
    now = elastic.evaluate_nodes(
        table, candidates, replace(needs, nodes=size, elastic=every), current, communication
    )
    stop, wait = _stop(needs, times), _wait_hours(needs, times)
    nothing, zero = np.zeros(0, dtype=np.intp), declared(0.0, "nothing changes")
    stay = ResizeChoice(now, nothing, nothing, 0.0, zero, zero)
    choices: list[ResizeChoice] = []
    for nodes in sizes.allowed:
        if not needs.groups_make_up(nodes * gpus):
            continue
        one = replace(needs, nodes=nodes, elastic=None)
        for choice in _placements(table, candidates, one, current, communication):
            if choice.nodes.size == size and np.isin(choice.nodes, current).all():
                continue
            price = elastic.sized_price(choice.price, every, nodes, gpus, needs.hours)
            choices.append(
                _resize_choice(
                    replace(choice, price=price), now, current, every, needs, (wait, stop), gpus
                )
            )
    choices = _fewest_moves(choices, margin)
    judged = [replace(one, reason=_reason(one, margin)) for one in choices]
    judged.sort(key=lambda one: (not one.is_worth_it, -one.gain.value, one.joined.size))
    advised = [one for one in judged if one.is_worth_it]
    if needs.elastic is not None and size not in needs.elastic.allowed:
        stay = replace(stay, reason=f"{size} nodes is not one of the requested sizes")
    rest = [one for one in judged if not one.is_worth_it]
    return ResizePlan([*advised, stay, *rest], stay, margin)


def _placements(
    table: NodeTable,
    candidates: Candidates,
    needs: GangRequirements,
    current: Indexes,
    communication: Quantity | None,
) -> list[PlacementChoice]:
    """Return the best nodes among the gang's and the free ones; and, where they hold, the gang's nodes with as few changes as can be."""
    free = candidates.nodes.copy()
    free[current] = True
    both = replace(candidates, nodes=free)
    found = planner.plan(table, both, needs, communication, grouped_options=1)
    if needs.nodes <= current.size:
        own = np.zeros(len(table), dtype=bool)
        own[current] = True
        found += planner.plan(
            table, replace(candidates, nodes=own), needs, communication, grouped_options=1
        )
    elif found:
        # All members stay, and the best of those that would join do.
        stays = current[~table.excluded[current]]
        joins = found[0].nodes[~np.isin(found[0].nodes, current)]
        joins = joins[np.argsort(table.hazard[joins], kind="stable")]
        nodes = np.concatenate((stays, joins[: needs.nodes - stays.size]))
        if nodes.size == needs.nodes and not planner.violations(table, needs, nodes):
            if needs.has_groups:  # in the order that is best for them
                chosen = np.zeros(len(table), dtype=bool)
                chosen[nodes] = True
                found += planner.plan(
                    table, replace(candidates, nodes=chosen), needs, communication, grouped_options=1
                )  # fmt: skip
            else:
                found.append(planner.evaluate_nodes(table, both, needs, nodes, communication))
    return found


def _resize_choice(
    choice: PlacementChoice,
    now: PlacementChoice,
    current: Indexes,
    sizes: ElasticSizes,
    needs: GangRequirements,
    delays: tuple[float, Quantity],
    gpus: int,
) -> ResizeChoice:
    wait, stop = delays
    hours = needs.hours
    lasts = elastic.work_hours(sizes, choice.price, choice.nodes.size, hours).value
    left = max(min(hours, lasts) - wait - stop.value, 0.0)
    saved = (now.price.total.value - choice.price.total.value) / hours
    useful = current.size * gpus * now.price.goodput.value
    # The job ends later by the time that it is stopped; what ends it earlier is in the prices.
    costs = useful + needs.delay_rate
    value = saved * left - costs * stop.value
    # The members' own numbers are the same on both sides; how long the gang is stopped is not, nor is how another size scales.
    unsure = 0.0
    if choice.nodes.size != current.size:
        unsure = (_scaling_reach(now.price) + _scaling_reach(choice.price)) / hours * left
    gain = Quantity(
        value,
        value - unsure - costs * (stop.upper - stop.value),
        value + unsure + costs * (stop.value - stop.lower),
        weakest((stop.source, choice.price.goodput.source)),
        f"{saved:+.2f} GPU-hours an hour over {left:.1f} h; {useful:.0f} useful GPUs stop for "
        f"{stop.value * 60:.0f} min",
    )
    return ResizeChoice(
        choice,
        choice.nodes[~np.isin(choice.nodes, current)],
        current[~np.isin(current, choice.nodes)],
        wait,
        stop,
        gain,
    )


def _scaling_reach(price: GangPrice) -> float:
    """Return half the width of what scaling costs, in GPU-hours."""
    part = next(each.gpu_hours for each in price.parts if each.name == "scaling")
    return 0.5 * (part.upper - part.lower)


def _fewest_moves(choices: Sequence[ResizeChoice], margin: float) -> list[ResizeChoice]:
    """Return of each size one way: that which moves the fewest nodes among those that gain about as much as the best."""
    by_size: dict[int, list[ResizeChoice]] = {}
    for one in choices:
        by_size.setdefault(one.choice.nodes.size, []).append(one)
    found: list[ResizeChoice] = []
    for some in by_size.values():
        best = max(one.gain.value for one in some)
        near = [one for one in some if one.gain.value >= best - 0.5 * margin]
        found.append(min(near, key=lambda one: (one.joined.size, -one.gain.value)))
    return found


def _reason(one: ResizeChoice, margin: float) -> str:
    """Return why it is not worth it; "" where it is."""
    gain = one.gain
    if gain.value <= margin:
        return f"gains {gain.value:.1f} GPU-hours, not more than the margin of {margin:.1f}"
    if gain.lower <= 0.0:
        return f"gains {gain.lower:.0f} to {gain.upper:.0f} GPU-hours: it may also lose"
    return ""


def _stop(needs: GangRequirements, times: ResizeTimes) -> Quantity:
    """Return how long the gang is stopped, in hours: it restarts, lays out its state, and writes first where it does so on demand."""
    reports = needs.reports
    parts = [
        duration_hours("restart", needs.restart_hours, RESTART_MINUTES, reports, RESTART_FACTOR),
        duration_hours("reshard", times.reshard_hours, RESHARD_MINUTES, reports),
    ]
    if times.writes_on_demand:
        write = needs.checkpoint_write_hours
        parts.append(duration_hours("checkpoint write", write, CHECKPOINT_WRITE_MINUTES, reports))
    return Quantity(
        sum(each.value for each in parts), sum(each.lower for each in parts), sum(each.upper for each in parts),
        weakest(each.source for each in parts), "; ".join(each.evidence for each in parts),
    )  # fmt: skip


def _wait_hours(needs: GangRequirements, times: ResizeTimes) -> float:
    """Return the hours until the checkpoint from which it continues."""
    if times.writes_on_demand:
        return 0.0
    interval = duration_hours(
        "interval", needs.checkpoint_interval_hours, CHECKPOINT_INTERVAL_MINUTES, needs.reports
    ).value
    age = times.checkpoint_age_hours
    return 0.5 * interval if isnan(age) else max(interval - age, 0.0)
