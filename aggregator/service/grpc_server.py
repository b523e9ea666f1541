"""Creates every gRPC server of Gangline: error statuses, login checks, limits and services."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ...contract.wire import (
    admin_pb2,
    advisory_pb2,
    decision_pb2,
    interference_pb2,
    job_pb2,
    outcome_pb2,
    permit_pb2,
    placement_pb2,
    query_pb2,
    recording_pb2,
    recovery_pb2,
    reservation_pb2,
    score_pb2,
    telemetry_pb2,
)
from ...contract.wire.admin_pb2_grpc import add_AdminServiceServicer_to_server
from ...contract.wire.advisory_pb2_grpc import add_AdvisoryServiceServicer_to_server
from ...contract.wire.decision_pb2_grpc import add_DecisionServiceServicer_to_server
from ...contract.wire.interference_pb2_grpc import add_InterferenceServiceServicer_to_server
from ...contract.wire.job_pb2_grpc import add_JobServiceServicer_to_server
from ...contract.wire.outcome_pb2_grpc import add_OutcomeServiceServicer_to_server
from ...contract.wire.permit_pb2_grpc import add_PermitServiceServicer_to_server
from ...contract.wire.placement_pb2_grpc import add_PlacementServiceServicer_to_server
from ...contract.wire.query_pb2_grpc import add_QueryServiceServicer_to_server
from ...contract.wire.recording_pb2_grpc import add_RecordingServiceServicer_to_server
from ...contract.wire.recovery_pb2_grpc import add_RecoveryServiceServicer_to_server
from ...contract.wire.reservation_pb2_grpc import add_ReservationServiceServicer_to_server
from ...contract.wire.score_pb2_grpc import add_ScoreServiceServicer_to_server
from ...contract.wire.telemetry_pb2_grpc import add_TelemetryServiceServicer_to_server
from ..auth.access import AccessControl, AuthInterceptor, DeniedCallback
from ..config import AggregatorConfig
from ..metrics import CallCounters
from .status import ErrorInterceptor

if TYPE_CHECKING:
    from ..ingest.agent_refusals import AgentRefusals


def make_server(
    config: AggregatorConfig,
    access_control: AccessControl,
    calls: CallCounters,
    *,
    refusals: AgentRefusals | None = None,
    by_token: bool = False,
    denied: Mapping[str, DeniedCallback] | None = None,
) -> grpc.aio.Server:
    """Return a server without services.

    *calls*: counters; *refusals*: gets refused calls of agents; later arguments: for the login check.
    """
    return grpc.aio.server(
        interceptors=[
            ErrorInterceptor(calls, refusals),
            AuthInterceptor(access_control, by_token=by_token, on_denied=denied),
        ],
        options=[
            ("grpc.so_reuseport", 0),  # otherwise two aggregators could share a port, unnoticed
            ("grpc.max_receive_message_length", config.message_bytes_max),
            ("grpc.max_concurrent_streams", config.streams_per_connection_max),
            ("grpc.max_allowed_incoming_connections", config.connection_limit),
            ("grpc.server_handshake_timeout_ms", int(1000 * config.login_seconds_max)),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            # Its pings would wake each of ten thousand agents about once per second.
            ("grpc.http2.bdp_probe", 0),
        ],
    )


def _name(file: Any) -> str:
    """Return the full name of the only service in a .proto."""
    (service,) = file.DESCRIPTOR.services_by_name.values()
    return str(service.full_name)


TELEMETRY, SCORE, PERMIT = _name(telemetry_pb2), _name(score_pb2), _name(permit_pb2)
ADVISORY, OUTCOME = _name(advisory_pb2), _name(outcome_pb2)
QUERY, ADMIN = _name(query_pb2), _name(admin_pb2)
RECORDING, PLACEMENT = _name(recording_pb2), _name(placement_pb2)
RECOVERY, RESERVATION = _name(recovery_pb2), _name(reservation_pb2)
DECISION, JOB = _name(decision_pb2), _name(job_pb2)
INTERFERENCE = _name(interference_pb2)

#: Service -> function that adds it to a server. A new service needs a file here and a row.
_ADD: Mapping[str, Callable[[Any, Any], None]] = {
    TELEMETRY: add_TelemetryServiceServicer_to_server,
    SCORE: add_ScoreServiceServicer_to_server,
    PERMIT: add_PermitServiceServicer_to_server,
    ADVISORY: add_AdvisoryServiceServicer_to_server,
    OUTCOME: add_OutcomeServiceServicer_to_server,
    QUERY: add_QueryServiceServicer_to_server,
    ADMIN: add_AdminServiceServicer_to_server,
    RECORDING: add_RecordingServiceServicer_to_server,
    PLACEMENT: add_PlacementServiceServicer_to_server,
    RECOVERY: add_RecoveryServiceServicer_to_server,
    RESERVATION: add_ReservationServiceServicer_to_server,
    DECISION: add_DecisionServiceServicer_to_server,
    INTERFERENCE: add_InterferenceServiceServicer_to_server,
    JOB: add_JobServiceServicer_to_server,
}


def serve_on(server: Any, services: Mapping[str, Any], state: Any) -> None:
    """Add *services* by name to *server*, and health (*state*) and reflection."""
    for name, service in services.items():
        _ADD[name](service, server)
    health_pb2_grpc.add_HealthServicer_to_server(state, server)
    names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
