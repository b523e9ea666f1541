"""Input at the agent's socket from any process of the host, and GPU names of an operator."""

from __future__ import annotations

import random

from h2.connection import H2Connection

from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.open_handles import node_of, parse_gpu_minor
from gangline.agent.local.agent_service import (
    HEALTH_CHECK_PATH,
    NotAGpu,
    canonical_name,
    health_check_method,
    healthy_result,
)
from gangline.agent.local.grpc_session import (
    HEADER_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    STREAMS_MAX,
    CallRefused,
    ServerSession,
    parse_timeout,
)
from gangline.agent.transport.http2 import SessionError
from gangline.contract.wire.nvhcd_pb2 import HealthCheckRequest
from tests.fuzzing.damage import ACCEPTED, REFUSED, check, damaged, flipped

CHECK = health_check_method(healthy_result)


def _asked(source: random.Random) -> bytes:
    """Return a few calls as a client sends them, some with invalid headers or lengths."""
    client = H2Connection()
    client.initiate_connection()
    for number in range(1, 2 * source.randrange(1, 5), 2):
        message = HealthCheckRequest(args=["--no-slurm"]).SerializeToString()
        length = source.choice((len(message),) * 8 + (0, 1, 2**32 - 1, MESSAGE_BYTES_MAX + 1))
        headers = [
            (":method", source.choice(("POST",) * 8 + ("GET",))),
            (":scheme", "http"),
            (":path", source.choice((HEALTH_CHECK_PATH,) * 8 + ("/", "/x/y", "*"))),
            (":authority", "localhost"),
            ("content-type", source.choice(("application/grpc",) * 8 + ("text/html",))),
            ("grpc-timeout", source.choice(("5S",) * 8 + ("x", "99999999H", "0n"))),
            ("x-long", "x" * source.choice((0,) * 8 + (HEADER_BYTES_MAX + 1,))),
        ]
        client.send_headers(number, headers)
        body = source.choice(b"\0" * 8 + b"\1").to_bytes(1, "big") + length.to_bytes(4, "big")
        client.send_data(number, body + message, end_stream=source.random() < 0.9)
        if source.random() < 0.1:
            client.reset_stream(number)
        if source.random() < 0.1:
            client.ping(bytes(8))
    return client.data_to_send()


def fuzz_local_session(source: random.Random) -> str:
    """Calls to the agent's socket, damaged: answered, refused with a status, or the end of that one connection."""
    data = _asked(source)
    data = source.choice((flipped, lambda data, _: data))(data, source)
    session = ServerSession()
    answered = 0
    try:
        for index in range(0, len(data), step := source.choice((1, 7, 100, 1 << 16))):
            for call in session.receive(data[index : index + step]):
                assert len(call.message) <= MESSAGE_BYTES_MAX
                answered += _answer(session, call.stream, call.message)
            assert session.waiting <= STREAMS_MAX
    except SessionError:
        session.data_to_send()
        return REFUSED
    assert session.data_to_send()
    return ACCEPTED if answered else REFUSED


def _answer(session: ServerSession, stream: int, message: bytes) -> int:
    try:
        answer = CHECK.handler(message, None)  # type: ignore[arg-type]  # it does not look who asks
    except CallRefused as refused:
        session.refuse(stream, refused.status, refused.message)
        return 0
    assert isinstance(answer, bytes)
    session.respond(stream, answer)
    return 1


def fuzz_gpu_words(source: random.Random) -> str:
    """Names of GPUs, the driver's file of a GPU, links of descriptors, timeouts: parsed, or an error."""
    word = damaged(
        source.choice((b"0000:9b:00.0", b"GPU-8f6d2a1c-0b3e-4d5f-9a7b-1c2d3e4f5a6b", b"0")), source
    )
    text = word.decode(errors="replace")
    minor = parse_gpu_minor(
        damaged(b"Model: H100\nDevice Minor: \t 3\n", source).decode(errors="replace")
    )
    assert minor is None or 0 <= minor <= 9999
    check(node_of(damaged(b"/dev/nvidia3", source).decode(errors="replace"), Roots().dev))
    try:
        assert 0 <= parse_timeout(damaged(b"500m", source)) <= 86_400
    except ValueError as error:
        assert str(error)
    try:
        assert canonical_name(canonical_name(text)) == canonical_name(text)
    except NotAGpu as error:
        assert 0 < len(str(error)) < 512
        return REFUSED
    return ACCEPTED


TARGETS = {"local-session": fuzz_local_session, "gpu-words": fuzz_gpu_words}
