"""Eviction of disappeared devices: a host has at most DEVICES_PER_HOST_MAX of a kind in memory.

The mounts of a Kubernetes node come and go with its pods, and so do its interfaces. A new device gets the row of the
device that was reported longest ago. GPUs keep their rows: a snapshot that is read elsewhere names them by row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from ..arrays import Codes, Times
from .devices import DEVICES_PER_HOST_MAX, Devices
from .tables import DeviceTable

log = logging.getLogger(__name__)

#: Returns whether a device has an active finding.
HasFindings = Callable[[str], bool]

#: A device not reported for this long has disappeared: every table is more frequent, and no
#: reading is valid for longer.
GONE_NS = 180_000_000_000
#: Candidates chosen at once, because this examines all rows of the host.
CANDIDATES_MAX = 64
#: A host without free rows is examined again after this time.
RETRY_NS = 60_000_000_000
#: Devices of this kind keep their rows.
PINNED_KIND = "gpu"


class Evictions:
    """Rows of each host that may be reassigned. Owned by the fleet's thread."""

    def __init__(self, tables: Sequence[DeviceTable]) -> None:
        self._tables: dict[str, list[DeviceTable]] = {}
        for table in tables:
            if table.is_tracked:
                self._tables.setdefault(table.devices.kind, []).append(table)
        #: (host, kind) -> all its rows, and the candidates for eviction, the next one last.
        self._rows: dict[tuple[int, str], Codes] = {}
        self._candidates: dict[tuple[int, str], list[int]] = {}
        #: (host, kind) -> table -> devices of its last frame without a row: rules ignore them.
        self.untracked: dict[tuple[int, str], dict[str, int]] = {}
        self._retried_ns = 0
        self._logged: set[tuple[int, str]] = set()
        #: Evicted devices since the start.
        self.count = 0

    def row(
        self,
        host: int,
        devices: Devices,
        now: tuple[int, int],
        has_findings: HasFindings,
        using: set[int],
    ) -> int:
        """Return a row of *host* whose device has disappeared, -1 without such a row.

        *now*: the host's boot, and its CLOCK_BOOTTIME in ns. *has_findings*: whether a device has
        an active finding. *using*: rows in the current frame.
        """
        if devices.kind == PINNED_KIND:
            return -1
        key = host, devices.kind
        for is_new in (False, True):
            if is_new:
                self._candidates[key] = self._longest_gone(key, devices, now, has_findings, using)
            candidates = self._candidates.setdefault(key, [])
            while candidates:
                row = candidates.pop()
                gone = self._ages_ns(devices, np.array([row], dtype=np.int32), now)[0] > GONE_NS
                if gone and row not in using and not has_findings(devices.names[row]):
                    self.count += 1
                    return row
        return -1

    def _longest_gone(
        self,
        key: tuple[int, str],
        devices: Devices,
        now: tuple[int, int],
        has_findings: HasFindings,
        using: set[int],
    ) -> list[int]:
        rows = self._rows.get(key)
        if rows is None:  # constant: rows never change their host
            rows = np.flatnonzero(devices.host == key[0]).astype(np.int32)
            self._rows[key] = rows
        ages_ns = self._ages_ns(devices, rows, now)
        result: list[int] = []
        for index in np.argsort(-ages_ns, kind="stable").tolist():
            if ages_ns[index] <= GONE_NS or len(result) == CANDIDATES_MAX:
                break
            row = int(rows[index])
            if row not in using and not has_findings(devices.names[row]):
                result.append(row)
        return result[::-1]

    def _ages_ns(self, devices: Devices, rows: Codes, now: tuple[int, int]) -> Times:
        """Return the time since each row was reported, or since the current boot began."""
        boot, boottime_ns = now
        last_ns = np.zeros(rows.size, dtype=np.int64)
        for table in self._tables[devices.kind]:
            last_ns = np.maximum(last_ns, table.last_ns(rows, boot))
        return boottime_ns - last_ns

    def note_untracked(self, host: str, key: tuple[int, str], table: str, untracked: int) -> None:
        """Store the number of *table*'s devices without a row; log the first time."""
        if untracked:
            if key not in self._logged:
                self._logged.add(key)
                log.warning(
                    "%s reports more than %d devices of kind %s at once: %d of %s are not judged (the store has all)",
                    host, DEVICES_PER_HOST_MAX, key[1], untracked, table,
                )  # fmt: skip
            self.untracked.setdefault(key, {})[table] = untracked
        elif key in self.untracked:
            self.untracked[key].pop(table, None)
            if not self.untracked[key]:
                del self.untracked[key]

    def forget(self, host: int) -> None:
        """Forget the counts of *host*, which began a new boot."""
        for key in [key for key in self.untracked if key[0] == host]:
            del self.untracked[key]

    def hosts_to_retry(self, now_ns: int) -> set[int]:
        """Return the hosts without free rows that are due for a retry, each RETRY_NS."""
        if not self.untracked or 0 <= now_ns - self._retried_ns < RETRY_NS:
            return set()
        self._retried_ns = now_ns
        return {host for host, _ in self.untracked}
