"""Weights of nodes: a hint to the scheduler to prefer healthier nodes. A weight refuses no job. No I/O.

A node's weight is set to its original weight plus its bucket: 0 for the best, 3 for the worst. The ledger keeps the
original weight, which is restored afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .ledger import ExecutorLedger, WeightChange
from .mirror_format import BUCKETS
from .model import Node, SetWeight

#: `advisory` of steps about weights: they belong to no advisory.
NO_ADVISORY = ""


def weight_steps(
    nodes: Mapping[str, Node],
    buckets: Mapping[str, int],
    preferred: Collection[str],
    ledger: ExecutorLedger,
) -> list[SetWeight]:
    """Return a step for each new weight, with the nodes that get it.

    Nodes in neither *buckets* nor *preferred* get back their original weight.
    """
    groups: dict[int, list[str]] = {}
    for name in sorted({*buckets, *preferred, *ledger.weights}):
        node = nodes.get(name)
        if node is None or node.weight is None:
            continue
        base = base_weight(node.weight, ledger.weights.get(name))
        wanted = base + min(max(buckets.get(name, 0), 0), BUCKETS - 1)
        if name in preferred:
            wanted = max(0, base - 1)
        if wanted != node.weight:
            groups.setdefault(wanted, []).append(name)
    return [
        SetWeight(NO_ADVISORY, _why(weight, preferred, names), tuple(names), weight)
        for weight, names in sorted(groups.items())
    ]


def _why(weight: int, preferred: Collection[str], names: list[str]) -> str:
    if any(name in preferred for name in names):
        return "a plan has a requeued job run there"
    return f"weight {weight} by the buckets of their scores"


def base_weight(weight: int, change: WeightChange | None) -> int:
    """Return the node's weight without the executor's change.

    A *weight* that the executor did not set is kept: a person set it, or the scheduler read it from its configuration at a
    restart.
    """
    if change is None or weight not in (change.before, change.given, change.earlier):
        return weight
    return change.before


def record_weight_intent(
    step: SetWeight, nodes: Mapping[str, Node], ledger: ExecutorLedger
) -> None:
    """Record in *ledger* the weight that is about to be set, and the original weight."""
    for name in step.nodes:
        node = nodes.get(name)
        if node is None or node.weight is None:
            continue
        before = base_weight(node.weight, ledger.weights.get(name))
        ledger.weights[name] = WeightChange(before, step.weight, node.weight)


def forget_restored(nodes: Mapping[str, Node], ledger: ExecutorLedger) -> bool:
    """Forget nodes with their original weight or a weight that no executor set; return whether there were any."""
    done = [
        name
        for name, change in ledger.weights.items()
        if (node := nodes.get(name)) is not None
        and node.weight is not None
        and (
            node.weight == change.given == change.before
            or node.weight not in (change.given, change.earlier)
        )
    ]
    for name in done:
        del ledger.weights[name]
    return bool(done)


def restore_steps(nodes: Mapping[str, Node], ledger: ExecutorLedger) -> list[SetWeight]:
    """Return the steps that restore the original weights; a weight that a person has set since stays."""
    return weight_steps(nodes, {}, (), ledger)
