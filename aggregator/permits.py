"""The fleet's enforcement permit: granted by an operator for a time, leased to hosts for a minute.

A granted permit is withheld while the fleet as a whole looks wrong: a policy or a driver that
condemns many hosts at once is itself a fault, and must not take the fleet out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..contract.wire import telemetry_pb2
from .errors import InvalidArgument
from .model import HealthState, Snapshot
from .scoring.score_columns import columns_of

#: Maximum length of a grant, so that operators must renew it.
GRANT_SECONDS_MAX = 7 * 86_400
#: Hosts keep the permit for this time after our last message.
LEASE_SECONDS = 60
REASON_CHARACTERS_MAX = 200
FILE_NAME, FILE_BYTES_MAX = "permit.json", 4096
SECOND_NS = 1_000_000_000

log = logging.getLogger(__name__)


class Grant(NamedTuple):
    """A grant, with wall-clock times in ns. `reason`: who granted or ended it, and why."""

    granted_ns: int = 0
    until_ns: int = 0
    reason: str = "none has ever been granted"

    def seconds_left(self, now_ns: int) -> int:
        """Return the seconds left, rounded up; 0 if expired, or if the clock was set back."""
        if not self.granted_ns <= now_ns < self.until_ns:
            return 0
        return min(-(-(self.until_ns - now_ns) // SECOND_NS), GRANT_SECONDS_MAX)


class Permits:
    """The active grant, stored to survive a restart.

    A reboot ends the grant, because after a power cut the disk may lack a revocation.
    """

    def __init__(
        self,
        folder: Path,
        unhealthy_share_max: float,
        snapshot: Callable[[], Snapshot | None],
        wall_ns: Callable[[], int],
        boot_id: str | None = None,
    ) -> None:
        """*unhealthy_share_max*: withhold the permit above this share of UNHEALTHY hosts.

        One UNHEALTHY host is always allowed. *boot_id*: this machine's; None: read from the kernel.
        """
        self._path = folder / FILE_NAME
        self._boot_id = _boot_id() if boot_id is None else boot_id
        self._share_max, self._snapshot, self._wall_ns = unhealthy_share_max, snapshot, wall_ns
        self._withheld_cache: tuple[Snapshot | None, str] = (None, "")
        self.active_grant = _load(self._path, self._boot_id)

    def seconds_left(self) -> int:
        """Return the seconds left of the active grant."""
        return self.active_grant.seconds_left(self._wall_ns())

    def grant(self, seconds: int, reason: str) -> None:
        """Grant the permit from now. Raises InvalidArgument, OSError if it cannot be stored."""
        self.check(seconds, reason)
        now_ns = self._wall_ns()
        self._store(Grant(now_ns, now_ns + seconds * SECOND_NS, reason))
        log.warning("hosts may enforce for %d s: %s", seconds, reason)

    def check(self, seconds: int, reason: str) -> None:
        """Raise InvalidArgument for an invalid length or reason."""
        if not 0 < seconds <= GRANT_SECONDS_MAX:
            raise InvalidArgument(
                "seconds", f"expected 1 to {GRANT_SECONDS_MAX}, which is seven days"
            )
        if not 0 < len(reason) <= REASON_CHARACTERS_MAX or not reason.isprintable():
            raise InvalidArgument(
                "reason", f"the name and reason, 1 to {REASON_CHARACTERS_MAX} characters"
            )

    def revoke(self, reason: str) -> None:
        """Revoke the permit. Raises OSError if that cannot be stored: a restart grants it again."""
        printable = "".join(c if c.isprintable() else " " for c in reason[:REASON_CHARACTERS_MAX])
        self.active_grant = Grant(reason=printable or "revoked")
        log.warning("hosts may no longer enforce: %s", self.active_grant.reason)
        self._store(self.active_grant)

    def lease(self) -> telemetry_pb2.Permit | None:
        """Return the lease for a host's next message; None: no permit."""
        seconds = self.seconds_left()
        if not seconds or self.withheld_reason():
            return None
        return telemetry_pb2.Permit(
            seconds=min(seconds, LEASE_SECONDS), reason=self.active_grant.reason
        )

    def withheld_reason(self) -> str:
        """Return why no host gets the permit now; "" if nothing prevents it."""
        snapshot = self._snapshot()
        if snapshot is None:
            return "no host has been judged yet"
        if self._withheld_cache[0] is not snapshot:
            self._withheld_cache = snapshot, self._evaluate_fleet(snapshot)
        return self._withheld_cache[1]

    def _evaluate_fleet(self, snapshot: Snapshot) -> str:
        if snapshot.degraded_reason:
            return f"the fleet's state is degraded: {snapshot.degraded_reason}"
        columns = columns_of(snapshot)
        count = int((~columns.ended).sum())
        bad = int(((columns.state == HealthState.UNHEALTHY) & ~columns.ended).sum())
        limit = max(1.0, self._share_max * count)
        if bad > limit:
            return (
                f"{bad} of {count} hosts are UNHEALTHY, which is more than "
                f"{100 * self._share_max:g} %: a fault that many hosts share is not caused by each "
                "host"
            )
        return ""

    def _store(self, grant: Grant) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({**grant._asdict(), "boot_id": self._boot_id}))
        new.replace(self._path)
        self.active_grant = grant


def _boot_id() -> str:
    """Return the kernel's boot id, "" if unavailable."""
    with suppress(OSError, ValueError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _load(path: Path, boot_id: str) -> Grant:
    """Return the stored grant; an empty one if it is missing, from another boot, or invalid."""
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        with open(path, "rb") as file:
            fields = json.loads(file.read(FILE_BYTES_MAX))
        grant = Grant(fields["granted_ns"], fields["until_ns"], fields["reason"])
        is_typed = type(grant.granted_ns) is int and type(grant.until_ns) is int
        is_within_limit = (
            is_typed and grant.until_ns - grant.granted_ns <= GRANT_SECONDS_MAX * SECOND_NS
        )
        if fields["boot_id"] != boot_id:
            return Grant(reason="none has been granted since this machine booted")
        if (
            is_within_limit
            and isinstance(grant.reason, str)
            and len(grant.reason) <= REASON_CHARACTERS_MAX
        ):
            return grant
    return Grant()
