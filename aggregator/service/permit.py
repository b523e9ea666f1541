"""PermitService: an operator grants, shows and revokes the fleet's permit to enforce."""

from __future__ import annotations

from typing import Any

from ...fingerprints.wire import permit_pb2
from ...fingerprints.wire.permit_pb2_grpc import PermitServiceServicer
from ..access.caller import Caller, caller
from ..permits import Permits
from ..refusals import NotReady
from .repeated import Answers


class PermitService(PermitServiceServicer):
    """Three calls of grpc.aio. A `Refusal` becomes its status at the edge."""

    def __init__(self, permits: Permits) -> None:
        self._permits, self._answers = permits, Answers()

    async def GetPermit(
        self, request: permit_pb2.GetPermitRequest, context: Any
    ) -> permit_pb2.FleetPermit:
        """Say what is granted, and whether hosts are given it."""
        return self._shown()

    async def GrantPermit(self, request: permit_pb2.GrantPermitRequest, context: Any) -> bytes:
        """Grant it. Raises Invalid, NotReady. Who may is `access/methods.py`'s to say."""
        seconds, reason = request.seconds, reason_with_login(caller(context), request.reason)
        return await self._answers.once(
            request, context, lambda: self._granted(seconds, reason), _at_once,
            would=lambda: self._would_be(seconds, reason), now=self._shown,
        )  # fmt: skip

    def _granted(self, seconds: int, reason: str) -> permit_pb2.FleetPermit:
        try:
            self._permits.grant(seconds, reason)
        except OSError as error:
            raise NotReady(f"the grant cannot be kept: {error.strerror}") from error
        return self._shown()

    def _would_be(self, seconds: int, reason: str) -> permit_pb2.FleetPermit:
        self._permits.check(seconds, reason)
        withheld = self._permits.withheld()
        return permit_pb2.FleetPermit(seconds_left=seconds, reason=reason, withheld_reason=withheld)

    async def RevokePermit(
        self, request: permit_pb2.RevokePermitRequest, context: Any
    ) -> permit_pb2.FleetPermit:
        """Take it back, at once. Raises NotReady when a restart would bring it back."""
        try:
            self._permits.revoke(reason_with_login(caller(context), request.reason))
        except OSError as error:
            raise NotReady(
                f"it is revoked, but the disk does not know: {error.strerror}; a restart of the "
                "aggregator would grant it again until it runs out"
            ) from error
        return self._shown()

    def _shown(self) -> permit_pb2.FleetPermit:
        permits, seconds = self._permits, self._permits.seconds_left()
        return permit_pb2.FleetPermit(
            seconds_left=seconds,
            reason=permits.grant_now.reason,
            withheld_reason=permits.withheld() if seconds else "",
            granted_wall_time_ns=permits.grant_now.granted_ns,
        )


async def _at_once() -> None:
    """A grant is on disk before it is granted."""


def reason_with_login(who: Caller, reason: str) -> str:
    """Return *reason* with the login that it came by, where there is one: the name in it anybody can write."""
    return f"{who.role} {who.name}: {reason}" if who.known and reason else reason
