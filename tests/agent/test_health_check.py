"""The health check of NVIDIA's resiliency extension, called like its launcher does."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
import pytest

from gangline.agent.local.agent_service import (
    ARGUMENTS_MAX,
    HEALTH_CHECK_PATH,
    HealthCheckResult,
    HealthyResult,
    health_check_method,
    healthy_result,
)
from gangline.agent.local.grpc_session import CallRefused, Peer
from gangline.agent.local.server import LocalServer
from gangline.contract.wire import nvhcd_pb2, nvhcd_pb2_grpc
from tests.processes import GUARD_SECONDS


def asked(
    folder: Path, answer: Callable[[Sequence[str]], HealthCheckResult]
) -> nvhcd_pb2.HealthCheckResponse:
    """Call it by the generated stub of another client, over `unix:`."""
    server = LocalServer(folder / "agent.sock", {HEALTH_CHECK_PATH: health_check_method(answer)})
    server.start()
    try:
        with grpc.insecure_channel(f"unix://{folder / 'agent.sock'}") as channel:
            stub = nvhcd_pb2_grpc.HealthCheckServiceStub(channel)  # type: ignore[no-untyped-call]
            request = nvhcd_pb2.HealthCheckRequest(args=["--no-slurm"])
            got = stub.RunHealthCheck(request, timeout=GUARD_SECONDS)
            assert isinstance(got, nvhcd_pb2.HealthCheckResponse)
            return got
    finally:
        server.close()


def read_as_the_launcher_does(answer: nvhcd_pb2.HealthCheckResponse) -> bool:
    """Apply the launcher's strictest version: success, and a `fail_count` of integer 0."""
    if not answer.success:
        return False
    output = json.loads(answer.output)
    return type(output["fail_count"]) is int and output["fail_count"] == 0


def test_a_healthy_host(tmp_path: Path) -> None:
    answer = asked(tmp_path, healthy_result)
    assert read_as_the_launcher_does(answer)
    assert (answer.exit_code, answer.error) == (0, "")
    assert json.loads(answer.output) == {"fail_count": 0, "failed_checks": []}


def test_a_host_that_is_not(tmp_path: Path) -> None:
    output = json.dumps({"fail_count": 1, "failed_checks": ["xid79 0000:9b:00.0"]})
    asked_with: list[list[str]] = []

    def barred(arguments: Sequence[str]) -> HealthCheckResult:
        asked_with.append(list(arguments))
        return HealthyResult(False, 1, output)

    answer = asked(tmp_path, barred)
    assert not read_as_the_launcher_does(answer)
    assert (answer.exit_code, answer.output) == (1, output)
    assert asked_with == [["--no-slurm"]]


def test_an_agent_that_cannot_tell_is_no_reason_to_fail_a_job(tmp_path: Path) -> None:
    """Every host of a gang asks before each rendezvous: a bug of the agent would stop the fleet."""

    def broken(arguments: Sequence[str]) -> HealthCheckResult:
        raise KeyError("gpu_1s")

    answer = asked(tmp_path, broken)
    assert read_as_the_launcher_does(answer)
    assert answer.error == "the agent cannot tell: KeyError: 'gpu_1s'"


def test_a_missing_socket_is_healthy_on_their_side(tmp_path: Path) -> None:
    """The launcher treats UNAVAILABLE as healthy; it must receive this code, and at once."""
    with grpc.insecure_channel(f"unix://{tmp_path / 'none.sock'}") as channel:
        stub = nvhcd_pb2_grpc.HealthCheckServiceStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError) as raised:
            stub.RunHealthCheck(nvhcd_pb2.HealthCheckRequest(), timeout=GUARD_SECONDS)
    assert isinstance(raised.value, grpc.Call)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_new_answer_is_told_at_once_and_the_same_one_made_into_bytes_once() -> None:
    answers = [HealthyResult(), HealthyResult(False, 1), HealthyResult()]
    check = health_check_method(lambda arguments: answers[0]).handler
    peer = Peer(1, 2, 3)
    first = check(b"", peer)
    assert check(b"", peer) is first
    answers.pop(0)
    second = check(b"", peer)
    assert isinstance(second, bytes)
    assert not nvhcd_pb2.HealthCheckResponse.FromString(second).success
    answers.pop(0)
    assert check(b"", peer) == first


@pytest.mark.parametrize("message", [b"\xff", b"\x0a\x00" * (ARGUMENTS_MAX + 1)])
def test_what_is_no_question_is_refused(message: bytes) -> None:
    with pytest.raises(CallRefused, match="INVALID_ARGUMENT"):
        health_check_method(healthy_result).handler(message, Peer(1, 2, 3))
