"""Reports a changing list (GPU processes, GPU allocations) as one event with rising revisions.

An event's id is derived from its subject, so it stays the same after a restart of the reporter. After a restart the
reporter has no memory, so it cannot report an end that it missed. It therefore sends ANEW once, with the time since
which it has reported everything present. Events last reported before that time have ended.
"""

from __future__ import annotations

import re
from pathlib import Path

from ...contract.token_bucket import TokenBucket
from ...contract.wire.telemetry_pb2 import HealthEvent
from ..hardware.files import read_text

RESYNC_NAME = "gpu.full_report"
#: Active events are reported again at this interval: the aggregator may be new or have lost its
#: data.
REPEAT_NS = 1_800_000_000_000
#: A revision counts tenths of a second since boot: 32 bits last for 13 years.
_REVISION_NS = 100_000_000
_BOOT = re.compile("[0-9a-f]{32}")
#: Rate limit, so that short processes cannot fill the aggregator: a burst (a job that starts on
#: every instance of a large host), then one event per REFILL_SECONDS.
AT_ONCE_MAX = 512
REFILL_SECONDS = 5.0


def revision_at(now_ns: int) -> int:
    """Return the revision of a report at boot time *now_ns*."""
    return now_ns // _REVISION_NS


def boot_of(proc: Path) -> str:
    """Return the boot id as 32 hex digits; "" if the kernel does not show it."""
    boot = (read_text(proc / "sys/kernel/random/boot_id") or "").replace("-", "")
    return boot if _BOOT.fullmatch(boot) else ""


def resync_event(
    boot: str, name: str, kind: str, device: str, since_ns: int, now_ns: int
) -> HealthEvent:
    """Return the event which says that all active events *name* of *device* were reported since *since_ns*."""
    return HealthEvent(
        event_id=f"{boot}/anew/{name}/{device[:48]}",
        device_kind=kind,
        device=device,
        name=RESYNC_NAME,
        message=f"every {name} that is active here was reported again",
        boottime_ns=since_ns,
        last_boottime_ns=now_ns,
        revision=revision_at(now_ns),
        attributes={"what": name},
    )


def event_bucket() -> TokenBucket:
    """Return the rate limit of a collector's events."""
    return TokenBucket(1 / REFILL_SECONDS, AT_ONCE_MAX, 0.0)
