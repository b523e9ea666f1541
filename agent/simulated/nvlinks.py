"""NVLinks of every GPU: the host's own part of each exchange, spread over its links."""

from __future__ import annotations

import numpy as np

from .parts import GPUS, LINKS
from .tables import Floats, Tables

#: Bytes that an exchange moves over NVLink for each byte that it moves over the GPU's port (assumed: a
#: collective in two levels does seven eighths of its steps within the host, some of them twice).
BYTES_PER_PORT_BYTE = 4.0
SPEED_BYTES_PER_SECOND = 26.562e9  # as NVML says it of a link of the fourth generation
_VERSION_4 = 6  # nvmlNvlinkVersion_t
_KIB = 1024


class NvLinks:
    """All NVLinks; arrays are (hosts, 8 * 18), a GPU's links beside each other."""

    def __init__(self, random: np.random.Generator, hosts: int) -> None:
        shape = hosts, GPUS * LINKS
        self._before = {
            way: np.floor(random.uniform(1e9, 1e12, shape)) for way in ("received", "transmitted")
        }

    def publish(self, tables: Tables, moved_bytes: Floats) -> None:
        """Put the traffic; *moved_bytes*: (hosts, 8), by each GPU's port since the boot."""
        kib = np.floor(moved_bytes * BYTES_PER_PORT_BYTE / (LINKS * _KIB))
        for way, before in self._before.items():
            tables.put(f"nvlink.{way}_data_bytes", (before + np.repeat(kib, LINKS, axis=1)) * _KIB)


#: Signal -> its value on every link.
CONSTANTS: dict[str, float] = {
    "nvlink.link_state": 1,
    "nvlink.version_code": _VERSION_4,
    "nvlink.speed_bytes_per_second": SPEED_BYTES_PER_SECOND,
}
