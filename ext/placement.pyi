"""Search for the nodes of a gang: minimizes the price under constraints. Releases the GIL."""

import numpy as np
from numpy.typing import NDArray

#: Tiers whose crossing has a price, and levels of the tree, the widest first.
TIERS_COUNT: int

def search(
    hazards: NDArray[np.float64],
    risks: NDArray[np.float64],
    costs: NDArray[np.float64],
    has_costs: bool,
    speeds: NDArray[np.float64],
    tree: NDArray[np.int32],
    domains: NDArray[np.int32],
    domain_counts: NDArray[np.int32],
    arenas: NDArray[np.int32],
    arena_count: int,
    spread: NDArray[np.int32],
    spread_count: int,
    spread_max: int,
    nodes: int,
    segment_nodes: int,
    segment_level: int,
    hazard_max: float,
    terms: NDArray[np.float64],
    options_max: int,
    steps_max: int,
    subsets_max: float,
) -> tuple[float, NDArray[np.int32], NDArray[np.float64]]:
    """Return (bound, members, measures).

    No choice costs less than *bound*, and no choice in the result is dominated by another. Members
    are rows of the columns; measures are price, hazard, speed, and domains and unknown by tier.

    Columns have a value per node. The order of nodes keeps the groups of each level of *tree*
    (TIERS_COUNT levels, the widest first) contiguous, and sorts by hazard last. *risks*: the
    hazards alone; *costs*: further GPU-hours of each node, at least 0. If *has_costs*, *hazards*
    are the search order: a risk plus at most the worth of a cost. *domains*: (TIERS_COUNT, nodes),
    -1 if unknown, below *domain_counts*. *arenas*: all members are in one; -1: not available.
    *spread*: at most *spread_max* members share a number; 0: any. Segments are whole within a group
    of level *segment_level*. *hazard_max*: limit of the sum of the members' hazards. *terms*:
    GPU-hours; share of the time lost regardless of the nodes; hours lost per interruption; per
    tier, the share by which a step is longer if all traffic crosses it; per tier, GPU-hours for
    each domain after the first. *options_max* 1: only the price counts; 0: any choice, without a
    bound; -1: only the bound. *steps_max*: limit of the work for swaps. *subsets_max*: if there are
    no more subsets, all are tried. Raises ValueError, MemoryError.
    """

def domains_spanned(
    tiers: NDArray[np.int32], counts: NDArray[np.int32], nodes: NDArray[np.intp]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return per tier the number of domains of *nodes*, and of *nodes* without a known domain.

    *tiers*: (tiers, nodes of the fleet), -1 if unknown, below *counts*. Raises ValueError,
    IndexError.
    """

def largest_domains(
    tiers: NDArray[np.int32],
    counts: NDArray[np.int32],
    free_nodes: NDArray[np.intp],
    nodes: NDArray[np.intp],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return per tier the most *free_nodes* of a domain, before and after taking *nodes*.

    Arguments as for `domains_spanned`.
    """
