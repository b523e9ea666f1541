"""Requirements that the caller's own nodes violate."""

from __future__ import annotations

import numpy as np

from ...contract.text import counted
from ..arrays import Indexes
from .node_search import has_memory
from .node_table import NodeTable
from .price import hazard_sum_max, shared_hazard
from .requirements import GangRequirements


def violations(table: NodeTable, needs: GangRequirements, nodes: Indexes) -> list[str]:
    """Return the requirements that the caller's nodes violate, in their rank order."""
    violated: list[str] = []
    if needs.elastic is not None and nodes.size not in needs.elastic.allowed:
        violated.append(f"{counted(nodes.size, 'node')} is not one of the requested sizes")
    domains = table.facts.domains
    if out := int(table.excluded[nodes].sum()):
        violated.append(f"UNHEALTHY, in maintenance, or gone: {counted(out, 'node')}")
    below = table.snapshot.columns.score[nodes] < np.float32(needs.score_min)
    if below.any():
        violated.append(
            f"below the floor of {needs.score_min:.4g}: {counted(int(below.sum()), 'node')}"
        )
    if (table.facts.gpus[nodes] < max(needs.gpus_per_node, 1)).any():
        violated.append(f"a node has fewer than {counted(max(needs.gpus_per_node, 1), 'GPU')}")
    if (small := int((~has_memory(table, needs)[nodes]).sum())) and needs.memory.is_requested:
        violated.append(f"less memory than requested: {counted(small, 'node')}")
    if needs.within is not None:
        ids = domains.ids[needs.within.row][nodes]
        if (ids < 0).any() or np.unique(ids).size > 1:
            violated.append(f"the nodes are not within one {needs.within.title}")
    if needs.same_rails:
        rails = domains.rails[nodes]
        if (rails < 0).any() or np.unique(rails).size > 1:
            violated.append("the nodes are not of the same rails")
    if needs.segment_nodes > 1 and needs.segment_tier is not None:
        ids = domains.ids[needs.segment_tier.row][nodes]
        apart = nodes.size % needs.segment_nodes or (ids < 0).any()
        if (
            apart
            or (ids.reshape(-1, needs.segment_nodes) != ids[:: needs.segment_nodes, None]).any()
        ):
            violated.append(
                f"segments of {needs.segment_nodes} nodes are not each within one {needs.segment_tier.title}"
            )
    if needs.spread_over is not None:
        ids = domains.ids[needs.spread_over.row][nodes]
        if (ids < 0).any() or np.bincount(ids).max() > needs.spread_nodes_max:
            violated.append(
                f"more than {counted(needs.spread_nodes_max, 'node')} in one {needs.spread_over.title}"
            )
    hazard = float(table.hazard[nodes].sum())
    if hazard > hazard_sum_max(needs, shared_hazard(nodes.size)):
        violated.append(
            f"the gang survives {needs.hours:g} h with less than {needs.survival_min:.4g}"
        )
    return violated
