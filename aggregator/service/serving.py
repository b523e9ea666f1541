"""A server of gRPC as the house makes them, in whichever process: errors as statuses, a guard, and limits."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from ..access.door import Door
from ..access.guard import Denied, Guard
from ..config import AggregatorConfig
from ..health.calls import Calls
from .errors import Errors


def make_server(
    config: AggregatorConfig,
    door: Door,
    calls: Calls,
    *,
    by_token: bool = False,
    denied: Mapping[str, Denied] | None = None,
) -> grpc.aio.Server:
    """Return one without services. *calls*: where they are counted; the rest is the guard's."""
    return grpc.aio.server(
        interceptors=[Errors(calls), Guard(door, by_token=by_token, denied=denied)],
        options=[
            ("grpc.so_reuseport", 0),  # else two aggregators share one port, unnoticed
            ("grpc.max_receive_message_length", config.message_bytes_max),
            ("grpc.max_concurrent_streams", config.streams_per_connection_max),
            ("grpc.max_allowed_incoming_connections", config.connections_max),
            ("grpc.server_handshake_timeout_ms", int(1000 * config.login_seconds_max)),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            # Its pings would wake each of ten thousand agents about once a second.
            ("grpc.http2.bdp_probe", 0),
        ],
    )
