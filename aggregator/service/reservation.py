"""ReservationService: checks a plan's nodes against the present state, and reserves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from google.protobuf.duration_pb2 import Duration

from ...contract.wire import placement_pb2
from ...contract.wire import reservation_pb2 as wire
from ...contract.wire.reservation_pb2_grpc import ReservationServiceServicer
from ..arrays import Indexes
from ..decisions.requirements import NODES_MAX
from ..errors import InvalidArgument
from ..principal import Principal, Role, current_principal
from ..reservations import (
    HOSTS_MAX,
    LOGIN_NODES_SHARE_MAX,
    SECOND_NS,
    TTL_SECONDS_MAX,
    HostReservation,
    Reservations,
)
from ..scoring.evaluate import Judgement
from ..store.decision_records import ChoiceRecord
from . import placement_messages as messages
from .idempotency import ID_CHARACTERS_MAX
from .placement import PlacementService
from .validation import actor_with_login, check_range, check_text

OWNER_CHARACTERS_MAX, WORKLOAD_CHARACTERS_MAX = 128, 256
TTL_SECONDS_DEFAULT, TTL_SECONDS_MIN = 300, 1
#: Maximum nodes named in an answer; `changed_count` has the total.
CHANGES_MAX = 100
#: Upper bound of a decision's options.
OPTION_MAX = 100


class ReservationService(ReservationServiceServicer):
    """Coroutines of grpc.aio. A `ServiceError` becomes its status in the interceptor."""

    def __init__(
        self,
        reservations: Reservations,
        placement: PlacementService,
        wall_ns: Callable[[], int],
        choose: Callable[[ChoiceRecord], None] = lambda _: None,
    ) -> None:
        """*placement*: has the snapshot, with excluded nodes. *choose*: records a chosen option."""
        self._reservations, self._placement, self._wall_ns = reservations, placement, wall_ns
        self._choose = choose

    async def Reserve(self, request: wire.ReserveRequest, context: Any) -> wire.ReserveResponse:
        """Reserve all nodes or none.

        Raises InvalidArgument, FailedPrecondition, ResourceExhausted, ServiceUnavailable.
        """
        who, owner = current_principal(context), _owner_of(request, context)
        ttl_ns = _ttl_ns(request.ttl)
        check_text("workload", request.workload, WORKLOAD_CHARACTERS_MAX)
        check_text("decision_id", request.decision_id, messages.REQUEST_ID_CHARACTERS_MAX)
        _check_option(request)
        check_text("request_id", request.request_id, ID_CHARACTERS_MAX)
        snapshot = self._placement.snapshot()
        messages.check_epoch("dictionary_version", request.dictionary_version, snapshot)
        nodes = _nodes_of(request, len(snapshot.names))
        hosts = [snapshot.names[node] for node in nodes.tolist()]
        reply = wire.ReserveResponse(score_version=snapshot.version)
        before = self._reservations.of_request(owner, request.request_id)
        if before is not None and before.hosts != tuple(hosts):
            raise InvalidArgument(
                "request_id",
                f"{request.request_id!r} already made {before.name} of other nodes. Use a new "
                "id for each request",
            )
        if before is None:
            self._add_changes(reply, snapshot, nodes)
            if reply.changed_count or request.validate_only:
                return reply
            before = self._reservations.reserve(
                owner, hosts, ttl_ns, workload=request.workload, decision=request.decision_id,
                option=request.option, request_id=request.request_id, login=who.login, by_token=who.is_token,
                login_nodes_max=_nodes_max(who, len(snapshot.names)),
            )  # fmt: skip
        await self._reservations.persisted()
        self._record_choice(before)
        reply.reservation.CopyFrom(self._message(before, snapshot))
        return reply

    async def Renew(self, request: wire.RenewReservationRequest, context: Any) -> wire.Reservation:
        """Change the expiry of a reservation.

        Raises InvalidArgument, NotFound, PermissionDenied, EtagMismatch, ServiceUnavailable.
        """
        owner, snapshot = _owner_of(request, context), self._placement.snapshot()
        reservation = self._reservations.renew(
            request.name,
            owner,
            request.fencing_token,
            _ttl_ns(request.ttl),
            _nodes_max(current_principal(context), len(snapshot.names)),
        )
        await self._reservations.persisted()
        return self._message(reservation, snapshot)

    async def Release(
        self, request: wire.ReleaseReservationRequest, context: Any
    ) -> wire.ReleaseReservationResponse:
        """End a reservation; operators and admins may end any.

        Raises InvalidArgument, PermissionDenied, EtagMismatch, ServiceUnavailable.
        """
        who, owner = current_principal(context), _owner_of(request, context)
        known = self._reservations.release(
            request.name, owner, request.fencing_token, by_operator=_is_operator(who)
        )
        await self._reservations.persisted()
        return wire.ReleaseReservationResponse(known=known)

    async def ListReservations(
        self, request: wire.ListReservationsRequest, context: Any
    ) -> wire.ListReservationsResponse:
        """Return the active reservations. Raises InvalidArgument, ServiceUnavailable."""
        check_text("owner", request.owner, 2 * OWNER_CHARACTERS_MAX)
        snapshot = self._placement.snapshot()
        active = self._reservations.active(request.owner)
        return wire.ListReservationsResponse(
            reservations=[self._message(reservation, snapshot) for reservation in active]
        )

    def record_choices(self) -> None:
        """Record the options of active reservations again: a crash may have prevented it."""
        for reservation in self._reservations.active():
            self._record_choice(reservation)

    def _record_choice(self, reservation: HostReservation) -> None:
        if reservation.decision:
            expire_ns = self._reservations.expire_wall_ns(reservation)
            self._choose(
                ChoiceRecord(
                    reservation=reservation.name,
                    decision=reservation.decision,
                    option=reservation.option,
                    owner=reservation.owner,
                    time_ns=self._wall_ns(),
                    expire_ns=expire_ns,
                    nodes=len(reservation.hosts),
                )
            )

    def _add_changes(
        self, reply: wire.ReserveResponse, snapshot: Judgement, nodes: Indexes
    ) -> None:
        """Add the changes that prevent reserving *nodes* to *reply*."""
        table, _ = self._placement.table(snapshot, placement_pb2.GangRequirements())
        for node in nodes.tolist():
            holder = self._reservations.of_host(snapshot.names[node])
            if holder is not None:
                change, message = wire.NODE_RESERVED, f"{holder.name} of {holder.owner}"
                left = (self._reservations.expire_wall_ns(holder) - self._wall_ns()) / SECOND_NS
                message += f", for {left:.0f} s more"
            elif table.excluded[node]:
                change = wire.NODE_UNHEALTHY
                message = "UNHEALTHY, or out of service; see GetNodeScore"
            else:
                continue
            reply.changed_count += 1
            if len(reply.changes) < CHANGES_MAX:
                reply.changes.add(node_index=node, change=change, message=message)

    def _message(self, reservation: HostReservation, snapshot: Judgement) -> wire.Reservation:
        index = self._placement.node_index(snapshot)
        message = wire.Reservation(
            name=reservation.name, owner=reservation.owner, dictionary_version=snapshot.dictionary_version,
            node_index=[index[host] for host in reservation.hosts if host in index],
            fencing_token=reservation.token, workload=reservation.workload, decision_id=reservation.decision, option=reservation.option,
        )  # fmt: skip
        message.expire_time.FromNanoseconds(self._reservations.expire_wall_ns(reservation))
        return message


def _is_operator(who: Principal) -> bool:
    return who.is_authenticated and who.role in (Role.OPERATOR, Role.ADMIN)


def _nodes_max(who: Principal, count: int) -> int:
    """Return the number of nodes that the login may reserve, of *count*."""
    return HOSTS_MAX if _is_operator(who) else max(1, int(LOGIN_NODES_SHARE_MAX * count))


def _owner_of(
    request: wire.ReserveRequest | wire.RenewReservationRequest | wire.ReleaseReservationRequest,
    context: Any,
) -> str:
    """Return the owner, with the login. Raises InvalidArgument."""
    if not request.owner:
        raise InvalidArgument("owner", "empty, expected the name of the owner, such as slurm-main")
    check_text("owner", request.owner, OWNER_CHARACTERS_MAX)
    return actor_with_login(current_principal(context), request.owner)


def _check_option(request: wire.ReserveRequest) -> None:
    """Raise InvalidArgument for an option number without decision or out of range."""
    check_range("option", request.option, 0, OPTION_MAX)
    if request.option and not request.decision_id:
        reason = f"{request.option} without decision_id, expected the decision whose option it is"
        raise InvalidArgument("option", reason)


def _ttl_ns(ttl: Duration) -> int:
    if not ttl.ByteSize():
        return TTL_SECONDS_DEFAULT * SECOND_NS
    if not TTL_SECONDS_MIN <= ttl.seconds <= TTL_SECONDS_MAX or not 0 <= ttl.nanos < SECOND_NS:
        raise InvalidArgument(
            "ttl",
            f"{ttl.seconds} s, expected {TTL_SECONDS_MIN} to {TTL_SECONDS_MAX} s, which is a day",
        )
    return ttl.seconds * SECOND_NS + ttl.nanos


def _nodes_of(request: wire.ReserveRequest, count: int) -> Indexes:
    nodes = np.array(request.node_index, dtype=np.intp)
    if not 1 <= nodes.size <= NODES_MAX:
        raise InvalidArgument("node_index", f"{nodes.size} nodes, expected 1 to {NODES_MAX}")
    if int(nodes.max()) >= count:
        raise InvalidArgument(
            "node_index", f"{int(nodes.max())}, expected below {count}, the number of nodes"
        )
    if np.unique(nodes).size != nodes.size:
        raise InvalidArgument("node_index", "a node is listed twice, expected each once")
    return nodes
