"""The XIDs that still stand: one record per (host, device, code), however often it was written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ...fingerprints.xid import Clears, Xid, lookup

#: Distinct (device, code) pairs kept per host; the one seen longest ago goes first.
RECORDS_PER_HOST_MAX = 64
#: Words of the driver beyond this are cut.
MESSAGE_CHARACTERS_MAX = 200


@dataclass(slots=True)
class XidRecord:
    """A code that a device's driver reported, and has not been cleared."""

    host: int
    device: str
    row: Xid
    message: str
    count: int
    first_ns: int  # aggregator's clock
    last_ns: int
    boot: int
    resets: int  # of the device, when it came


class Resets(Protocol):
    """What a fleet knows of boots and resets."""

    def boot_of(self, host: int) -> int: ...
    def device_resets(self, host: int, device: str) -> int: ...


class XidRecords:
    """Records by host; `record` adds, `expire` ends those whose clearing condition came true."""

    def __init__(self) -> None:
        self._hosts: dict[int, dict[tuple[str, int], XidRecord]] = {}

    def record(
        self, host: int, device: str, code: int, message: str, now_ns: int, boot: int, resets: int
    ) -> None:
        """Count one report. A storm of the same code is one record."""
        records = self._hosts.setdefault(host, {})
        held = records.get((device, code))
        if held is not None and held.boot == boot:
            held.count += 1
            held.last_ns, held.resets = now_ns, resets
            return
        words = message[:MESSAGE_CHARACTERS_MAX]
        if len(records) >= RECORDS_PER_HOST_MAX:
            del records[min(records, key=lambda key: records[key].last_ns)]
        records[device, code] = XidRecord(
            host, device, lookup(code), words, 1, now_ns, now_ns, boot, resets
        )

    def expire(self, resets: Resets, now_ns: int) -> None:
        """Forget what a boot, a reset or time has cleared."""
        for host in list(self._hosts):
            records = self._hosts[host]
            for key in [k for k, r in records.items() if _is_over(r, resets, now_ns)]:
                del records[key]
            if not records:
                del self._hosts[host]

    def __iter__(self) -> Iterator[XidRecord]:
        for records in self._hosts.values():
            yield from records.values()


def _is_over(record: XidRecord, resets: Resets, now_ns: int) -> bool:
    row = record.row
    if row.clears is Clears.TIME:
        return now_ns - record.last_ns > row.clear_seconds * 1e9
    if resets.boot_of(record.host) != record.boot:
        return True
    by_reset = row.clears is Clears.RESET
    return by_reset and resets.device_resets(record.host, record.device) != record.resets
