"""Servers of `bench.local_socket`, one process each: the agent's, and a bare one of grpcio."""

from __future__ import annotations

import sys
from concurrent import futures
from pathlib import Path

import grpc

from gangline.agent.local import agent_service
from gangline.agent.local.grpc_session import Method
from gangline.agent.local.server import LocalServer

ECHO = "/bench.Bench/Echo"


class _Echo(grpc.GenericRpcHandler):
    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)


def main() -> None:
    """Serve `agent` or `grpcio` at a socket until stdin ends."""
    kind, path = sys.argv[1], Path(sys.argv[2])
    if kind == "agent":
        methods = {
            agent_service.HEALTH_CHECK_PATH: agent_service.health_check_method(
                agent_service.healthy_result
            ),
            ECHO: Method(lambda message, peer: message),
        }
        server = LocalServer(path, methods)
        server.start()
    else:
        other = grpc.server(futures.ThreadPoolExecutor(1), [_Echo()])
        other.add_insecure_port(f"unix:{path}")
        other.start()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
