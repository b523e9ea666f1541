"""What was once well: only then is it a fault that it is not. A port never cabled is not down."""

from __future__ import annotations

import numpy as np

from .arrays import Flags
from .tables import DeviceTable

PORT_ACTIVE = 4


class Seen:
    """Flags per device row that once set stay set, for as long as we run."""

    def __init__(self) -> None:
        none = np.zeros(0, dtype=bool)
        self.ports_up: Flags = none
        self.carriers: Flags = none
        self.writable: Flags = none

    def advance(self, tables: dict[str, DeviceTable]) -> None:
        """Take note of what is well now."""
        ports, net, files = tables["rdma_1s"], tables["net_1s"], tables["filesystem_60s"]
        self.ports_up = _or(self.ports_up, ports.state("port_state") == PORT_ACTIVE)
        self.carriers = _or(self.carriers, net.state("carrier_state") == 1)
        read_only = files.state("read_only_state", missing=1)
        self.writable = _or(self.writable, read_only == 0)


def _or(before: Flags, now: Flags) -> Flags:
    now[: before.size] |= before
    return now
