"""`gangline admin health` against a health service, and against other services."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from gangline.aggregator.commands import admin_health
from gangline.cli import FAILED, NO_ANSWER, NOT_FOUND, OK
from tests.processes import free_port


@pytest.fixture
def serving() -> Iterator[tuple[health.HealthServicer, str]]:
    server = grpc.server(ThreadPoolExecutor(1))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_it_serves_or_not(
    serving: tuple[health.HealthServicer, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A probe reads the exit code alone."""
    servicer, address = serving
    status = health_pb2.HealthCheckResponse
    for state, code in ((status.SERVING, OK), (status.NOT_SERVING, NO_ANSWER)):
        servicer.set("", state)
        assert admin_health.main(["--aggregator", address]) == code
        assert capsys.readouterr().out == f"{address}: {status.ServingStatus.Name(state)}\n"


def test_a_service_that_is_not_there(
    serving: tuple[health.HealthServicer, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The line was empty."""
    assert admin_health.main(["--aggregator", serving[1], "--service", "nope"]) == NOT_FOUND
    assert capsys.readouterr().err == "gangline admin health: no service 'nope'\n"


def test_it_needs_no_login(
    serving: tuple[health.HealthServicer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing token file would restart the pod."""
    monkeypatch.setenv("GANGLINE_TOKEN_FILE", "/nowhere/token")
    serving[0].set("", health_pb2.HealthCheckResponse.SERVING)
    assert admin_health.main(["--aggregator", serving[1]]) == OK


def test_nobody_and_wrong_words(capsys: pytest.CaptureFixture[str]) -> None:
    """3 restarts a pod; 1, TLS that fails, does not (the chart's liveness probe)."""
    address = f"127.0.0.1:{free_port()}"
    assert admin_health.main(["--aggregator", address]) == NO_ANSWER
    assert "no aggregator answers" in capsys.readouterr().err
    assert admin_health.main(["--aggregator", address, "--ca", "/nowhere/ca.pem"]) == FAILED
    assert "/nowhere/ca.pem" in capsys.readouterr().err
