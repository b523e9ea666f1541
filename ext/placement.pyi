"""Search for the nodes of a gang: minimizes the price under constraints. Without the GIL and without a clock."""

import numpy as np
from numpy.typing import NDArray

#: Tiers of which crossing has a price, and the levels of the tree; the widest first.
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
    """Return (bound, members, measures): no choice costs less than *bound*, and no two of the choices are as good in all.

    Columns have a value a node, in an order in which the groups of each level of *tree* (TIERS_COUNT levels, the widest
    first) are contiguous and which ends with the hazard.
    *risks*: the hazards alone; *costs*: GPU-hours that each node costs beside, at least 0. Where *has_costs*, *hazards* are what
    the search orders by: a risk and what of a cost it is worth, at most. *domains*: (TIERS_COUNT, nodes), -1 where not known; numbers
    below *domain_counts*. *arenas*: members are all of one; -1: never. *spread*: at most *spread_max* members have one
    number; 0: any. Segments are whole within a group of level *segment_level*. *hazard_max*: of the sum of the members'.
    *terms*: GPU-hours; share of the time lost to what the nodes do not decide; hours lost per interruption; by tier, the
    share that a step takes longer where all traffic crosses it; by tier, GPU-hours for each domain after the first.
    *options_max* 1: only the price counts; 0: any choice will do, and the bound is none;
    -1: only the bound is asked for. *steps_max*: of work spent on swaps. *subsets_max*: where there are no more,
    each is tried. Members are rows of the columns; measures are price, hazard, speed, domains and unknown by tier.
    Raises ValueError, MemoryError.
    """

def domains_spanned(
    tiers: NDArray[np.int32], counts: NDArray[np.int32], nodes: NDArray[np.intp]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return of each tier how many domains *nodes* are in, and how many of them are in none that is known.

    *tiers*: (tiers, nodes of the fleet), -1 where not known, below *counts*. Raises ValueError, IndexError.
    """

def largest_domains(
    tiers: NDArray[np.int32],
    counts: NDArray[np.int32],
    free_nodes: NDArray[np.intp],
    nodes: NDArray[np.intp],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return of each tier the most *free_nodes* of one domain, before *nodes* are taken and after. As `domains_spanned`."""
