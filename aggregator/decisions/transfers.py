"""How much longer a step takes on each node by the transfers of a member, at the node's present rates.

The full rate of a link is the fleet's: the median PCIe link, and the fastest disks and network file systems that were seen. The
present rate of a node is less if its link has fewer lanes, or if a symptom slows its PCIe or its storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np

from ...contract.text import counted
from ...fingerprints.demand import QUANTILES, SHARED_RESOURCES
from ...fingerprints.sensitivity import PCIE, SPEED_MIN, STORAGE
from ..arrays import Floats, Indexes
from ..scoring.evaluate import Judgement

#: Links of a node, their columns of `HostSupply.values`, and the components that they belong to.
LINKS = ("PCIe link", "disks", "network file systems")
_COLUMNS = tuple(SHARED_RESOURCES.index(name) for name in ("pcie_received", "disk", "network_fs"))
_COMPONENTS = (PCIE, STORAGE, STORAGE)
#: Share of the time that each of QUANTILES represents: from the middle between two quantiles to the next middle.
_WEIGHTS = np.array([0.725, 0.245, 0.03])
#: A link below this share of its full rate is named in the evidence; at most NAMES_MAX nodes are.
SHARE_SHOWN, NAMES_MAX = 0.95, 3


def _unknown() -> Floats:
    return np.full((len(LINKS), len(QUANTILES)), np.nan)


class Transfers(NamedTuple):
    """Transfers of a member by LINKS. `bytes_per_step`: declared, 0 if not. `rates`: quantiles of a known run, NaN unknown."""

    bytes_per_step: tuple[float, ...] = (0.0,) * len(LINKS)
    step_seconds: float = 1.0
    rates: Floats = _unknown()

    def uses(self, link: int) -> bool:
        """Return whether anything is known of the transfers over *link*."""
        return bool(self.bytes_per_step[link] or np.isfinite(self.rates[link]).any())

    @property
    def components(self) -> list[int]:
        """Return the components with declared transfers."""
        pairs = zip(_COMPONENTS, self.bytes_per_step, strict=True)
        return sorted({component for component, size in pairs if size})


NO_TRANSFERS = Transfers()


@dataclass(frozen=True, slots=True)
class TransferEffects:
    """Effects on all nodes. `longer`: component -> added step time as (nodes), with declared transfers (3, nodes): limits and value.

    `shares`: (LINKS, nodes) present rate over the full rate. `full_rates`: NaN if no host's supply is known.
    """

    transfers: Transfers
    longer: Mapping[int, Floats]
    shares: Floats
    full_rates: tuple[float, ...]

    @property
    def is_declared(self) -> bool:
        """Whether bytes per step are declared: how far they overlap with computing is assumed."""
        return any(self.transfers.bytes_per_step)

    def evidence(self, nodes: Indexes, names: Sequence[str]) -> str:
        """Describe the declared transfers and the slow links of *nodes*; "" without either."""
        parts: list[str] = []
        for link, size, rate in zip(
            LINKS, self.transfers.bytes_per_step, self.full_rates, strict=True
        ):
            if size and isfinite(rate):
                parts.append(
                    f"{size / 1e9:.4g} GB a step take {size / rate:.3g} s of {self.transfers.step_seconds:.4g} s at the "
                    f"full rate of the {link}, {rate / 1e9:.4g} GB/s; between none and all of it is assumed to overlap with computing"
                )
            elif size:
                parts.append(
                    f"the rate of the {link} is not known: {size / 1e9:.4g} GB a step have no price"
                )
        for link, shares in zip(LINKS, self.shares[:, nodes], strict=True):
            slow = np.flatnonzero(shares < SHARE_SHOWN)
            if slow.size:
                by_share = slow[np.argsort(shares[slow], kind="stable")]
                slowest: list[int] = nodes[by_share[:NAMES_MAX]].tolist()
                named = ", ".join(names[node] for node in slowest)
                more = ", ..." if slow.size > NAMES_MAX else ""
                parts.append(
                    f"{link} at {shares[by_share[0]]:.2f} of the full rate or more on {counted(slow.size, 'node')}: {named}{more}"
                )
        return "; ".join(parts)


def transfer_effects(snapshot: Judgement, transfers: Transfers = NO_TRANSFERS) -> TransferEffects:
    """Return the effects of *transfers* on all nodes of *snapshot*."""
    count = snapshot.columns.hazard_per_hour.size
    supplies = np.full((len(LINKS), count), np.nan)
    known = snapshot.supplies.values[:count, _COLUMNS]
    supplies[:, : known.shape[0]] = known.T
    speeds = snapshot.component_speeds.astype(np.float64)
    longer: dict[int, Floats] = {}
    shares = np.ones((len(LINKS), count))
    full_rates: list[float] = []
    for at, component in enumerate(_COMPONENTS):
        has_rate = supplies[at][np.isfinite(supplies[at]) & (supplies[at] > 0.0)]
        full = float("nan")
        if has_rate.size:
            full = float(np.median(has_rate) if component == PCIE else has_rate.max())
        full_rates.append(full)
        share = np.nan_to_num(speeds[:, component], nan=1.0)
        if component == PCIE and has_rate.size:
            share = np.fmin(share, supplies[at] / full)
        shares[at] = np.clip(share, SPEED_MIN, 1.0)
        if isfinite(full) and transfers.uses(at):
            added = _longer(transfers, at, full, full * shares[at])
            longer[component] = longer[component] + added if component in longer else added
    return TransferEffects(transfers, longer, shares, tuple(full_rates))


def _longer(transfers: Transfers, link: int, full: float, rates: Floats) -> Floats:
    """Return the added time of a step at each of *rates*, relative to the step at the rate *full*.

    Declared transfers: lower limit, value, upper limit.
    """
    if size := transfers.bytes_per_step[link]:
        at_full, now = size / full / transfers.step_seconds, size / rates / transfers.step_seconds
        apart = now - at_full
        hidden = np.maximum(now - 1.0, 0.0) - max(at_full - 1.0, 0.0)
        return np.stack((hidden, 0.5 * (hidden + apart), apart))
    demand = np.nan_to_num(transfers.rates[link])[:, None]
    added = np.maximum(demand / rates - 1.0, 0.0) - np.maximum(demand / full - 1.0, 0.0)
    return np.asarray(_WEIGHTS @ np.maximum(added, 0.0))
