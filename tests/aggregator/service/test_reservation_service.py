"""ReservationService over a judged fleet: plans are checked again, and nodes are exclusive."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from grpc_health.v1 import health

from gangline.aggregator.auth.access import AccessControl
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from gangline.aggregator.metrics import CallCounters
from gangline.aggregator.principal import LOCAL, Principal, Role, set_principal
from gangline.aggregator.reservations import SECOND_NS, Reservations
from gangline.aggregator.service import reservation
from gangline.aggregator.service.grpc_server import (
    PLACEMENT,
    RECOVERY,
    RESERVATION,
    SCORE,
    make_server,
    serve_on,
)
from gangline.aggregator.service.placement import PlacementService
from gangline.aggregator.service.recovery import RecoveryService
from gangline.aggregator.service.reservation import ReservationService
from gangline.aggregator.service.score import ScoreService
from gangline.aggregator.store.decision_records import ChoiceRecord
from gangline.contract.wire import placement_pb2, recovery_pb2
from gangline.contract.wire import reservation_pb2 as wire
from tests.aggregator.service.test_placement_service import (
    SnapshotStandIn,
    everyone,
    gang,
    placed_world,
)
from tests.processes import GUARD_SECONDS


class ReservedFleet:
    """Services over eight hosts; the fourth is broken."""

    def __init__(self, folder: Path) -> None:
        self.world, self.principal = placed_world(), LOCAL
        self.now_ns = 1_700_000_000 * SECOND_NS
        self.source = SnapshotStandIn(self.world.run(20))
        self.reservations = Reservations(folder, lambda: self.now_ns, lambda: self.now_ns)
        self.placement = PlacementService(self.source)
        self.service = ReservationService(self.reservations, self.placement, lambda: self.now_ns)
        self.recovery = RecoveryService(self.placement)

    def judge(self) -> None:
        """Publish the reservations with the next snapshot, as the aggregator does each second."""
        snapshot = self.world.run(1)
        reserved = self.reservations.node_indexes(self.world.fleet.index, len(snapshot.names))
        self.source.snapshot = replace(snapshot, reservations=reserved)

    def call(self, method: Callable[..., Any], request: Any) -> Any:
        async def guarded() -> Any:
            set_principal(self.principal)
            return await method(request, None)

        return asyncio.run(guarded())

    def reserve(self, owner: str, *nodes: int, **fields: Any) -> wire.ReserveResponse:
        request = wire.ReserveRequest(owner=owner, node_index=nodes, **fields)
        response: wire.ReserveResponse = self.call(self.service.Reserve, request)
        return response

    def planned(self, nodes: int, *own: str) -> placement_pb2.PlanPlacementResponse:
        request = placement_pb2.PlanPlacementRequest(gang=gang(nodes), candidates=everyone(8))
        request.candidates.reservation.extend(own)
        response: placement_pb2.PlanPlacementResponse = self.call(
            self.placement.PlanPlacement, request
        )
        return response


def test_a_reserved_node_is_in_nobody_elses_plan(tmp_path: Path) -> None:
    """A reserved plan is only offered to its owner until it ends."""
    fleet = ReservedFleet(tmp_path)
    first = fleet.planned(4)
    nodes = list(first.options[0].node_index)
    held = fleet.reserve("slurm", *nodes, decision_id=first.decision_id).reservation
    assert list(held.node_index) == nodes and held.decision_id == first.decision_id
    fleet.judge()
    other = fleet.planned(3)
    assert not set(other.options[0].node_index) & set(nodes)
    assert "without 4 that others have reserved" in other.candidates_source
    assert set(other.options[0].spare_node_index).isdisjoint(nodes)
    assert not fleet.planned(4).options  # seven are healthy, four of them reserved
    assert set(fleet.planned(4, held.name).options[0].node_index) == set(nodes)
    fleet.now_ns += 301 * SECOND_NS  # not renewed
    fleet.judge()
    assert fleet.planned(4).options


def test_two_incidents_never_get_one_spare(tmp_path: Path) -> None:
    """Two incidents plan with the same spare; the second is refused, and plans without it."""
    fleet = ReservedFleet(tmp_path)

    def incident(*members: int) -> recovery_pb2.PlanRecoveryResponse:
        request = recovery_pb2.PlanRecoveryRequest(
            gang=placement_pb2.GangRequirements(gpus_per_node=2), current_node_index=members,
            failed_node_index=members[:1], hot_spare_node_index=[6], candidates=everyone(8),
        )  # fmt: skip
        request.candidates.node_bitmap = bytes([1 << 6])
        request.gang.length.FromSeconds(3600)
        reply: recovery_pb2.PlanRecoveryResponse = fleet.call(fleet.recovery.PlanRecovery, request)
        return reply

    def spares(reply: recovery_pb2.PlanRecoveryResponse) -> set[int]:
        return {
            replacement.by_node_index
            for option in reply.options
            for replacement in option.replacements
        }

    assert 6 in spares(incident(0, 1)) and 6 in spares(incident(4, 5))
    assert fleet.reserve("incident-a", 6).HasField("reservation")
    refused = fleet.reserve("incident-b", 6)
    assert not refused.HasField("reservation") and refused.changes[0].change == wire.NODE_RESERVED
    fleet.judge()
    assert 6 not in spares(incident(4, 5))


def test_what_changed_since_the_plan_is_named(tmp_path: Path) -> None:
    """The response names broken and taken nodes; no part is reserved."""
    fleet = ReservedFleet(tmp_path)
    fleet.reserve("other", 5)
    reply = fleet.reserve("slurm", 2, 3, 5)
    assert not reply.HasField("reservation") and reply.changed_count == 2
    assert {change.node_index: change.change for change in reply.changes} == {
        3: wire.NODE_UNHEALTHY, 5: wire.NODE_RESERVED
    }  # fmt: skip
    assert fleet.reserve("slurm", 2, validate_only=True) == wire.ReserveResponse(
        score_version=reply.score_version
    )
    assert fleet.reservations.of_host("h2") is None


def test_a_request_that_comes_again_reserves_once(tmp_path: Path) -> None:
    """A repeated id gets the same reservation; with other nodes it is an error."""
    fleet = ReservedFleet(tmp_path)
    first = fleet.reserve("slurm", 1, 2, request_id="one")
    assert fleet.reserve("slurm", 1, 2, request_id="one").reservation == first.reservation
    with pytest.raises(InvalidArgument, match="of other nodes"):
        fleet.reserve("slurm", 4, request_id="one")
    held = first.reservation
    fields: dict[str, Any] = {
        "name": held.name,
        "owner": "slurm",
        "fencing_token": held.fencing_token,
    }
    fleet.now_ns += 100 * SECOND_NS
    renewed = fleet.call(fleet.service.Renew, wire.RenewReservationRequest(**fields))
    assert renewed.expire_time.ToNanoseconds() == held.expire_time.ToNanoseconds() + 100 * SECOND_NS
    release = wire.ReleaseReservationRequest(**fields)
    assert fleet.call(fleet.service.Release, release).known
    assert not fleet.call(fleet.service.Release, release).known
    assert not fleet.call(
        fleet.service.ListReservations, wire.ListReservationsRequest()
    ).reservations


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"owner": ""}, "owner: empty"),
        ({"owner": "x" * 129}, "owner: 129 characters"),
        ({"owner": "a\nb"}, "owner: one line"),
        ({"node_index": []}, "node_index: 0 nodes"),
        ({"node_index": [8]}, "node_index: 8, expected below 8"),
        ({"node_index": [1, 1]}, "node_index: a node is listed twice"),
        ({"ttl": 86_401}, "ttl: 86401 s, expected 1 to 86400"),
        ({"ttl": -5}, "ttl: -5 s"),
        ({"request_id": "x" * 65}, "request_id: 65 characters"),
        ({"workload": "x" * 257}, "workload: 257 characters"),
        ({"decision_id": "x" * 129}, "decision_id: 129 characters"),
        ({"decision_id": "d1", "option": 101}, "option: 101, expected 0 to 100"),
        ({"option": 1}, "option: 1 without decision_id"),
    ],
)  # fmt: skip
def test_mistakes_are_named_by_field(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    """An invalid request is refused with the correct form."""
    fleet = ReservedFleet(tmp_path)
    ttl = fields.pop("ttl", None)
    request = wire.ReserveRequest(**{"owner": "slurm", "node_index": [1], **fields})
    if ttl is not None:
        request.ttl.seconds = ttl
    with pytest.raises(InvalidArgument) as refused:
        fleet.call(fleet.service.Reserve, request)
    assert message in f"{refused.value.field}: {refused.value.field_message}"


def test_indexes_of_another_epoch_are_refused(tmp_path: Path) -> None:
    """Indexes of an earlier dictionary name other hosts."""
    with pytest.raises(FailedPrecondition, match="call GetNodeDictionary again"):
        ReservedFleet(tmp_path).reserve("slurm", 1, dictionary_version=99)


def test_which_option_was_taken_is_noted_again_after_a_restart(tmp_path: Path) -> None:
    """A crash between the durable reservation and the commit must not lose the choice."""
    fleet = ReservedFleet(tmp_path)
    noted: list[ChoiceRecord] = []

    def service(reservations: Reservations) -> ReservationService:
        return ReservationService(
            reservations, fleet.placement, lambda: fleet.now_ns, noted.append
        )  # fmt: skip

    fleet.service = service(fleet.reservations)
    held = fleet.reserve("slurm", 1, 2, decision_id="d1", option=2).reservation
    fleet.reserve("slurm", 5)  # without a decision
    expected = ChoiceRecord(
        held.name, "d1", 2, "slurm", fleet.now_ns, fleet.now_ns + 300 * SECOND_NS, 2
    )
    assert noted == [expected]
    again = Reservations(tmp_path, lambda: fleet.now_ns, lambda: fleet.now_ns)
    service(again).record_choices()
    assert noted == [expected, expected]


def login(name: str, role: Role = Role.SCHEDULER) -> Principal:
    return Principal(role, name, auth_method=f"token {name}", proof=(1, 1))


def test_one_login_reserves_a_share_and_an_operator_more(tmp_path: Path) -> None:
    """A scheduler's token reserved the whole fleet, under many owner names."""
    fleet = ReservedFleet(tmp_path)
    fleet.principal = login("a")
    for node in (0, 1, 2, 4, 5, 6):
        assert fleet.reserve(f"owner-{node}", node).reservation.name
    with pytest.raises(ResourceExhausted, match="at most 500 of 6, so that others can reserve"):
        fleet.reserve("another", 7)
    fleet.principal = login("b")
    assert fleet.reserve("b", 7).reservation.name
    fleet.principal = login("o", Role.OPERATOR)
    for held in fleet.reservations.active():
        request = wire.ReleaseReservationRequest(name=held.name, owner="night shift")
        assert fleet.call(fleet.service.Release, request).known
    assert fleet.reserve("o", 0, 1, 2, 4, 5, 6, 7).reservation.name


def test_a_reservation_counts_as_free_for_its_own_login_only(tmp_path: Path) -> None:
    """B named A's reservation in its request, and A's nodes were in B's plan."""
    fleet = ReservedFleet(tmp_path)
    fleet.principal = login("a")
    name = fleet.reserve("a", 0, 1, 2, 4).reservation.name
    fleet.judge()
    assert fleet.planned(5, name).options
    fleet.principal = login("b")
    for claimed in (name, f"{name} scheduler a"):
        assert not fleet.planned(5, claimed).options
    with pytest.raises(InvalidArgument, match="reservation"):
        fleet.planned(5, *[name] * 17)


def test_the_second_client_on_the_page_works(tmp_path: Path) -> None:
    """The client in docs/placement.md reads scores, watches, reserves and plans a recovery."""
    page = (Path(reservation.__file__).parents[2] / "docs/placement.md").read_text()
    code = page.split("```python\n")[2].partition("```")[0]
    fleet = ReservedFleet(tmp_path)

    async def scenario() -> tuple[str, str]:
        config = AggregatorConfig(data=tmp_path)
        server = make_server(config, AccessControl(config), CallCounters())
        services = {
            SCORE: ScoreService(fleet.source), PLACEMENT: fleet.placement, RECOVERY: fleet.recovery,
            RESERVATION: fleet.service,
        }  # fmt: skip
        serve_on(server, services, cast(Any, health).aio.HealthServicer())
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd="/",
            env={**os.environ, "GANGLINE_AGGREGATOR": f"127.0.0.1:{port}"},
        )  # fmt: skip
        out, errors = await asyncio.wait_for(child.communicate(), GUARD_SECONDS)
        await server.stop(None)
        return out.decode(), errors.decode()

    out, errors = asyncio.run(scenario())
    assert "snapshot 8 nodes" in out and "reserved: reservations/" in out, errors
    assert "RECOVERY_" in out and fleet.reservations.active() == [], errors
