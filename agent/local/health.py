"""The node health check of NVIDIA's resiliency extension: asked by its launcher before each rendezvous."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from google.protobuf.message import DecodeError

from ...fingerprints.wire.nvhcd_pb2 import HealthCheckRequest, HealthCheckResponse
from .calls import Method, Peer, Refused

PATH = "/nvhcd.HealthCheckService/RunHealthCheck"
ARGUMENTS_MAX = 64

log = logging.getLogger(__name__)


class Answer(Protocol):
    """The response's fields. `output` is JSON with an integer `fail_count`: without one some of the launcher's
    versions take a host for unhealthy."""

    @property
    def success(self) -> bool: ...
    @property
    def exit_code(self) -> int: ...
    @property
    def output(self) -> str: ...
    @property
    def error(self) -> str: ...


class Healthy(NamedTuple):
    """What is answered while nobody can tell more."""

    success: bool = True
    exit_code: int = 0
    output: str = json.dumps({"fail_count": 0, "failed_checks": []})
    error: str = ""


def healthy(arguments: Sequence[str]) -> Answer:
    """Return that all is well."""
    return Healthy()


def method(answer: Callable[[Sequence[str]], Answer]) -> Method:
    """Return the row of the server's table. *answer* is called for each question, in the server's thread.

    What it raises is not the host's fault: the answer is healthy, with the words in `error`. The same answer as
    the time before is not made into bytes anew.
    """
    told: tuple[Answer, bytes] | None = None

    def run(message: bytes, peer: Peer) -> bytes:
        nonlocal told
        try:
            request = HealthCheckRequest.FromString(message)
        except DecodeError as error:
            raise Refused("INVALID_ARGUMENT", f"no HealthCheckRequest: {error}") from error
        if len(request.args) > ARGUMENTS_MAX:
            raise Refused("INVALID_ARGUMENT", f"{len(request.args)} args, at most {ARGUMENTS_MAX}")
        try:
            said = answer(request.args)
            if told is None or told[0] is not said:
                told = said, _encoded(said)
            return told[1]
        except Exception as error:
            log.exception("the health check failed", extra={"cause": "local.health"})
            words = f"the agent cannot tell: {type(error).__name__}: {error}"
            return _encoded(Healthy(error=words))

    return Method(run)


def _encoded(said: Answer) -> bytes:
    response = HealthCheckResponse(success=said.success, exit_code=said.exit_code)
    response.output, response.error = said.output, said.error
    return response.SerializeToString()
