"""`gangline admin health`: whether the aggregator's event loop responds, for probes."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ...cli import NO_ANSWER, NOT_FOUND, OK, json_object
from ...contract.client.command_line import add_options
from ...contract.client.connection import (
    DEADLINE_SECONDS,
    CommandError,
    command_error,
    open_channel,
    read_connection_options,
)


def main(arguments: list[str]) -> int:
    """Print the health status. Exit codes: 0 serving, 3 not serving or no answer."""
    options = _parser().parse_args(arguments)
    try:
        # Health needs no login; a revoked token must not restart a pod.
        connection_options = replace(read_connection_options(options), token_file="")
        with open_channel(connection_options) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service=options.service)
            try:
                status = stub.Check(request, timeout=DEADLINE_SECONDS).status
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.NOT_FOUND:
                    raise CommandError(f"no service {options.service!r}", NOT_FOUND) from error
                raise command_error(error, connection_options) from error
    except CommandError as error:
        print(f"gangline admin health: {error}", file=sys.stderr)
        return error.code
    answer = health_pb2.HealthCheckResponse.ServingStatus.Name(status)
    if options.json:
        print(json_object({"aggregator": connection_options.aggregator, "status": answer}))
    else:
        print(f"{connection_options.aggregator}: {answer}")
    return OK if status == health_pb2.HealthCheckResponse.SERVING else NO_ANSWER


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline admin health",
        description="Ask the aggregator for its health (grpc.health.v1). It needs no login: a certificate only where "
        "tls_client_ca_file requires one.",
        epilog="exit codes: 0 it serves, 1 failed, 2 wrong usage, 3 it does not serve, or no aggregator answers, "
        "4 no such service",
    )
    parser.add_argument(
        "--service",
        default="",
        metavar="NAME",
        help="one service, such as gangline.v1.ScoreService; default: the aggregator as a whole",
    )
    add_options(parser)
    return parser
