"""Whether a gang should grow, shrink, move or stay: gain over the remaining hours against cost.

  gain = (price of staying - price of the change, per hour) x hours left after it - useful work of the gang while it stops

Prices are those of `elastic`: over the same hours, against the GPUs of the largest size, so a
returned node is worth as much as a free GPU. The hours left are limited to the remaining work at
the new speed. A change counts only if its gain is above a margin and certainly positive: each
change then lowers the price, and no two calls undo each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan

import numpy as np

from ..arrays import Indexes
from ..scoring.reported_factors import (
    CHECKPOINT_INTERVAL_MINUTES,
    RESTART_FACTOR,
    RESTART_MINUTES,
)
from . import elastic, node_search, planner
from .node_search import Candidates, SearchEffort
from .node_table import NodeTable
from .planner import PlacementChoice
from .price import CHECKPOINT_WRITE_MINUTES, GangPrice
from .quantity import Quantity, declared, duration_hours, weakest
from .requirements import GangRequirements
from .scaling import ElasticSizes
from .violations import violations

#: The groups of a running gang keep the set of nodes that is best for even traffic.
EVEN_TRAFFIC = SearchEffort(grouped_options=1)
#: Minutes to reshard the training state for another number of nodes, with 90 % interval (assumed).
RESHARD_MINUTES = (5.0, 1.0, 20.0)
#: A gain below this share of the largest size's GPUs x hours left does not justify a change, unless
#: the request has a limit.
GAIN_SHARE_MIN = 0.01


@dataclass(frozen=True, slots=True)
class ResizeTimes:
    """Times of the change in the request, in hours; NaN: unknown."""

    reshard_hours: float
    checkpoint_age_hours: float
    writes_on_demand: bool = False  #: a checkpoint can be written now


@dataclass(frozen=True, slots=True)
class ResizeChoice:
    """A change. `gain` in GPU-hours against staying; `reason` why it is not advised, or ""."""

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
    """The possible changes, the advised one first; `stay` is one of them."""

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
    """Return the choices for the gang on *current*, with `needs.hours` left at its current size.

    *gain_min*: in GPU-hours; 0: GAIN_SHARE_MIN applies. *current* is in rank order: with groups,
    staying is priced in that order, and each change in the best order of its own groups. Each size
    gets one set of nodes for them.
    """
    sizes = needs.elastic
    assert sizes is not None
    size, gpus = current.size, node_search.gpus_of(table, needs)
    every = replace(
        sizes, allowed=tuple(sorted({*sizes.allowed, size})), length_nodes=size
    )  # the cost of staying is known even for a size that is not allowed
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
        sized_needs = replace(needs, nodes=nodes, elastic=None)
        for choice in _placements(table, candidates, sized_needs, current, communication):
            if choice.nodes.size == size and np.isin(choice.nodes, current).all():
                continue
            price = elastic.sized_price(choice.price, every, nodes, gpus, needs.hours)
            priced = replace(choice, price=price)
            choices.append(_resize_choice(priced, now, current, every, needs, (wait, stop), gpus))
    choices = _fewest_moves(choices, margin)
    judged = [replace(choice, reason=_reason(choice, margin)) for choice in choices]
    judged.sort(key=lambda choice: (not choice.is_worth_it, -choice.gain.value, choice.joined.size))
    advised = [choice for choice in judged if choice.is_worth_it]
    if needs.elastic is not None and size not in needs.elastic.allowed:
        stay = replace(stay, reason=f"{size} nodes is not one of the requested sizes")
    rest = [choice for choice in judged if not choice.is_worth_it]
    return ResizePlan([*advised, stay, *rest], stay, margin)


def _placements(
    table: NodeTable,
    candidates: Candidates,
    needs: GangRequirements,
    current: Indexes,
    communication: Quantity | None,
) -> list[PlacementChoice]:
    """Return the best placement on the gang's and free nodes, and one with the fewest changes."""
    free = candidates.nodes.copy()
    free[current] = True
    both = replace(candidates, nodes=free)
    choices = planner.plan(table, both, needs, communication, EVEN_TRAFFIC)
    if needs.nodes <= current.size:
        own = np.zeros(len(table), dtype=bool)
        own[current] = True
        choices += planner.plan(
            table, replace(candidates, nodes=own), needs, communication, EVEN_TRAFFIC
        )
    elif choices:
        # keep all members, and add the best of the nodes that would join
        stays = current[~table.excluded[current]]
        joins = choices[0].nodes[~np.isin(choices[0].nodes, current)]
        joins = joins[np.argsort(table.hazard[joins], kind="stable")]
        nodes = np.concatenate((stays, joins[: needs.nodes - stays.size]))
        if nodes.size == needs.nodes and not violations(table, needs, nodes):
            if needs.has_groups:  # in the best order for the groups
                chosen = np.zeros(len(table), dtype=bool)
                chosen[nodes] = True
                choices += planner.plan(
                    table, replace(candidates, nodes=chosen), needs, communication, EVEN_TRAFFIC
                )
            else:
                choices.append(planner.evaluate_nodes(table, both, needs, nodes, communication))
    return choices


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
    # The stop delays the end of the job; effects that hasten the end are in the prices.
    costs = useful + needs.delay_rate
    value = saved * left - costs * stop.value
    # The members' own numbers are the same on both sides; the length of the stop and the scaling of
    # another size are uncertain.
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
    """Return half the width of the scaling cost, in GPU-hours."""
    part = next(price_part.gpu_hours for price_part in price.parts if price_part.name == "scaling")
    return 0.5 * (part.upper - part.lower)


def _fewest_moves(choices: Sequence[ResizeChoice], margin: float) -> list[ResizeChoice]:
    """Return one change per size: the fewest moved nodes among those with nearly the best gain."""
    by_size: dict[int, list[ResizeChoice]] = {}
    for choice in choices:
        by_size.setdefault(choice.choice.nodes.size, []).append(choice)
    result: list[ResizeChoice] = []
    for same_size in by_size.values():
        best = max(choice.gain.value for choice in same_size)
        near = [choice for choice in same_size if choice.gain.value >= best - 0.5 * margin]
        result.append(min(near, key=lambda choice: (choice.joined.size, -choice.gain.value)))
    return result


def _reason(choice: ResizeChoice, margin: float) -> str:
    """Return why the change is not worth its cost; "" if it is."""
    gain = choice.gain
    if gain.value <= margin:
        return f"gains {gain.value:.1f} GPU-hours, not more than the margin of {margin:.1f}"
    if gain.lower <= 0.0:
        return f"gains {gain.lower:.0f} to {gain.upper:.0f} GPU-hours: it may also lose"
    return ""


def _stop(needs: GangRequirements, times: ResizeTimes) -> Quantity:
    """Return the hours of the stop: restart, reshard, and a checkpoint on demand."""
    reports = needs.reports
    parts = [
        duration_hours("restart", needs.restart_hours, RESTART_MINUTES, reports, RESTART_FACTOR),
        duration_hours("reshard", times.reshard_hours, RESHARD_MINUTES, reports),
    ]
    if times.writes_on_demand:
        write = needs.checkpoint_write_hours
        parts.append(duration_hours("checkpoint write", write, CHECKPOINT_WRITE_MINUTES, reports))
    return Quantity(
        sum(part.value for part in parts),
        sum(part.lower for part in parts),
        sum(part.upper for part in parts),
        weakest(part.source for part in parts),
        "; ".join(part.evidence for part in parts),
    )


def _wait_hours(needs: GangRequirements, times: ResizeTimes) -> float:
    if times.writes_on_demand:
        return 0.0
    interval = duration_hours(
        "interval", needs.checkpoint_interval_hours, CHECKPOINT_INTERVAL_MINUTES, needs.reports
    ).value
    age = times.checkpoint_age_hours
    return 0.5 * interval if isnan(age) else max(interval - age, 0.0)
