"""Weights of nodes: a hint by which the scheduler takes healthier nodes first. It refuses no job. No I/O.

A node's weight becomes what it was, plus its bucket: 0 for the best, 3 for the worst. What it was is in the ledger, and comes back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .ledger import ExecutorLedger, WeightChange
from .model import Node, SetWeight

#: Buckets of scores, 0 the best.
BUCKETS = 4
#: The advisory that steps about weights name: none.
NO_ADVISORY = ""


def weight_steps(
    nodes: Mapping[str, Node],
    buckets: Mapping[str, int],
    preferred: Collection[str],
    ledger: ExecutorLedger,
) -> list[SetWeight]:
    """Return one step for each weight that nodes are to get. Nodes in neither *buckets* nor *preferred* get back what they had."""
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
    """Return what the weight was before ours. One that is not of ours is a person's, or the configuration's after a restart: it counts."""
    if change is None or weight not in (change.before, change.given, change.earlier):
        return weight
    return change.before


def record_weight_intent(
    step: SetWeight, nodes: Mapping[str, Node], ledger: ExecutorLedger
) -> None:
    """Note in *ledger* what is about to be set, and what stood there before."""
    for name in step.nodes:
        node = nodes.get(name)
        if node is None or node.weight is None:
            continue
        before = base_weight(node.weight, ledger.weights.get(name))
        ledger.weights[name] = WeightChange(before, step.weight, node.weight)


def forget_restored(nodes: Mapping[str, Node], ledger: ExecutorLedger) -> bool:
    """Forget nodes that have what they had before, or a weight of somebody else's; return whether there were any."""
    done = [
        name
        for name, change in ledger.weights.items()
        if (node := nodes.get(name)) is not None
        and node.weight is not None
        and (node.weight == change.given == change.before or node.weight not in (change.given, change.earlier))
    ]  # fmt: skip
    for name in done:
        del ledger.weights[name]
    return bool(done)


def restore_steps(nodes: Mapping[str, Node], ledger: ExecutorLedger) -> list[SetWeight]:
    """Return the steps that give nodes back what they had; a weight that a person set since stays."""
    return weight_steps(nodes, {}, (), ledger)
