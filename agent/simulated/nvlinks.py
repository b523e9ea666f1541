"""NVLinks of every GPU: the host's own part of each exchange, spread over links that are all well."""

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
    """All NVLinks of the fleet; arrays are (hosts, 8 * 18), a GPU's links beside each other."""

    def __init__(self, random: np.random.Generator, hosts: int) -> None:
        shape = hosts, GPUS * LINKS
        self._before = {
            way: random.integers(10**9, 10**12, shape).astype(np.float64)
            for way in ("received", "transmitted")
        }

    def publish(self, tables: Tables, nvlink_bytes: Floats) -> None:
        """Put the traffic; *nvlink_bytes*: (hosts, 8), moved by each GPU since the start."""
        moved = np.repeat(np.floor(nvlink_bytes / (LINKS * _KIB)), LINKS, axis=1)
        for way, before in self._before.items():
            tables.put(f"nvlink.{way}_data_bytes", (before + moved) * _KIB)

    @staticmethod
    def publish_constants(tables: Tables) -> None:
        """Put what does not change while the model runs."""
        tables.put("nvlink.link_state", 1)
        tables.put("nvlink.version_code", _VERSION_4)
        tables.put("nvlink.speed_bytes_per_second", SPEED_BYTES_PER_SECOND)
