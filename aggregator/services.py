"""Which services a port of the aggregator answers. To add one: a file in `service/`, and a row here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ..fingerprints.wire import (
    admin_pb2,
    advisory_pb2,
    outcome_pb2,
    permit_pb2,
    query_pb2,
    score_pb2,
    telemetry_pb2,
)
from ..fingerprints.wire.admin_pb2_grpc import add_AdminServiceServicer_to_server
from ..fingerprints.wire.advisory_pb2_grpc import add_AdvisoryServiceServicer_to_server
from ..fingerprints.wire.outcome_pb2_grpc import add_OutcomeServiceServicer_to_server
from ..fingerprints.wire.permit_pb2_grpc import add_PermitServiceServicer_to_server
from ..fingerprints.wire.query_pb2_grpc import add_QueryServiceServicer_to_server
from ..fingerprints.wire.score_pb2_grpc import add_ScoreServiceServicer_to_server
from ..fingerprints.wire.telemetry_pb2_grpc import add_TelemetryServiceServicer_to_server


def _name(file: Any) -> str:
    """Return the full name of the one service of a .proto."""
    (service,) = file.DESCRIPTOR.services_by_name.values()
    return str(service.full_name)


TELEMETRY, SCORE, PERMIT = _name(telemetry_pb2), _name(score_pb2), _name(permit_pb2)
ADVISORY, OUTCOME = _name(advisory_pb2), _name(outcome_pb2)
QUERY, ADMIN = _name(query_pb2), _name(admin_pb2)

#: Service -> what puts one on a server.
_ADD: Mapping[str, Callable[[Any, Any], None]] = {
    TELEMETRY: add_TelemetryServiceServicer_to_server,
    SCORE: add_ScoreServiceServicer_to_server,
    PERMIT: add_PermitServiceServicer_to_server,
    ADVISORY: add_AdvisoryServiceServicer_to_server,
    OUTCOME: add_OutcomeServiceServicer_to_server,
    QUERY: add_QueryServiceServicer_to_server,
    ADMIN: add_AdminServiceServicer_to_server,
}


def serve_on(server: Any, services: Mapping[str, Any], state: Any) -> None:
    """Put *services*, by name, on *server*; and gRPC's own: *state*, a health servicer, and reflection."""
    for name, service in services.items():
        _ADD[name](service, server)
    health_pb2_grpc.add_HealthServicer_to_server(state, server)
    names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
