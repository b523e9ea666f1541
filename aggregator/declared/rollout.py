"""Which hosts a declaration reaches while it is rolled out: the same ones each time, and those of 1 % are among those of 10 %."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple


class Rollout(NamedTuple):
    """A threshold that counts on a share of the hosts only; on the others it is as `before`."""

    share: float
    before: float


@lru_cache(maxsize=65_536)
def place_in_line(host: str) -> float:
    """Return where *host* comes in every roll-out: 0 is first, and 1 is never reached before the end."""
    return int.from_bytes(blake2b(host.encode(), digest_size=6).digest()) / 2**48


def reaches(share: float, host: str) -> bool:
    """Say whether what is rolled out to *share* of the hosts counts on *host*."""
    return place_in_line(host) < share


def coming(share: float) -> str:
    """Return how far a roll-out is that has not reached a host, as its evidence says it."""
    return f"not rolled out to this host yet ({100 * share:g} % of hosts)"
