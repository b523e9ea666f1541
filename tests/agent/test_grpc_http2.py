"""gRPC over HTTP/2 against h2's own server side: messages arrive, and no bytes do harm."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import pytest
from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.agent.transport.grpc_http2 import (
    EVENTS,
    MESSAGE_BYTES_MAX,
    REGISTER,
    CallEnd,
    CallResponse,
    ClientSession,
)
from gangline.agent.transport.http2 import (
    FRAME_BYTES_MAX,
    FrameSplitter,
    FrameTooLong,
    SessionError,
)
from gangline.contract.wire.telemetry_pb2 import (
    IngestAck,
    RefusedFrame,
    RegisterNodeRequest,
    RegisterNodeResponse,
    ReportEventsResponse,
    TelemetryBatch,
)
from tests.agent.memory_server import HEAD, OK, Server, framed

ANSWER = RegisterNodeResponse(node="nodes/a", session="s-1", credit_frames=4)


def connected() -> tuple[ClientSession, Server]:
    session, server = ClientSession("127.0.0.1:7600"), Server()
    session.receive(server.receive(session.data_to_send()))
    return session, server


def streaming() -> tuple[ClientSession, Server, int]:
    session, server = connected()
    stream = session.open_stream("s-1")
    session.receive(server.receive(session.data_to_send()))
    return session, server, stream


def registering() -> tuple[ClientSession, Server, int]:
    session, server = connected()
    call = session.call(REGISTER, RegisterNodeRequest(node="a"))
    session.receive(server.receive(session.data_to_send()))
    return session, server, call


def test_a_unary_call_is_grpc() -> None:
    """A grpcio server requires: POST, te, content type, the five bytes, the end."""
    _, server, call = registering()
    headers = server.headers[call]
    assert headers[":path"] == "/gangline.v1.TelemetryService/RegisterNode"
    assert (headers[":method"], headers["te"]) == ("POST", "trailers")
    assert headers["content-type"] == "application/grpc+proto"
    assert "gangline-session" not in headers
    assert server.messages(call) == [RegisterNodeRequest(node="a").SerializeToString()]
    assert server.ended == [call]


@pytest.mark.parametrize(("tls", "scheme"), [(False, "http"), (True, "https")])
def test_the_scheme_is_the_connections(tls: bool, scheme: str) -> None:
    """A proxy may refuse `http` over TLS (RFC 9113, 8.3.1)."""
    session, server = ClientSession("127.0.0.1:7600", tls=tls), Server()
    session.receive(server.receive(session.data_to_send()))
    call = session.call(REGISTER, RegisterNodeRequest(node="a"))
    server.receive(session.data_to_send())
    assert server.headers[call][":scheme"] == scheme


def test_an_answer_counts_once_its_status_is_ok() -> None:
    """The message comes before the status: accepting it early would accept a refusal."""
    session, server, call = registering()
    first = server.answer(call, HEAD, framed(ANSWER.SerializeToString()), end=False)
    assert session.receive(first) == []
    assert session.receive(server.answer(call, OK)) == [CallResponse(call, REGISTER, ANSWER)]


@pytest.mark.parametrize(
    ("trailers", "status", "message"),
    [
        ([("grpc-status", "6"), ("grpc-message", "taken%3A 50%25 %C3%A9")], "ALREADY_EXISTS",
         "taken: 50% é"),
        ([("grpc-status", "14"), ("grpc-message", "%FF%0A%1B[31m")], "UNAVAILABLE", "\ufffd  [31m"),
        ([("grpc-status", "99")], "status 99", ""),
        ([("grpc-status", "x" * 9)], "status " + "x" * 9, ""),
    ],
)  # fmt: skip
def test_a_refusals_message(trailers: list[tuple[str, str]], status: str, message: str) -> None:
    """Headers and status come together when a server refuses at once."""
    session, server, call = registering()
    result = session.receive(server.answer(call, HEAD + trailers))
    assert result == [CallEnd(call, REGISTER, status, message)]


def test_the_stream_carries_messages_both_ways_until_it_ends() -> None:
    """Receipts come one by one, cut anywhere by the network."""
    session, server = connected()
    call = session.open_stream("s-1")
    for sequence in (1, 2):
        session.send(call, TelemetryBatch(sequence=sequence))
    server.receive(session.data_to_send())
    assert server.headers[call]["gangline-session"] == "s-1"
    assert [TelemetryBatch.FromString(m).sequence for m in server.messages(call)] == [1, 2]
    acks = [IngestAck(credit_frames=n) for n in (1, 2, 3)]
    data = server.answer(call, HEAD, *(framed(a.SerializeToString()) for a in acks), end=False)
    result = [answer for byte in data for answer in session.receive(bytes((byte,)))]
    assert result == [CallResponse(call, "StreamTelemetry", ack) for ack in acks]
    session.finish(call)
    session.finish(call)  # the socket did not accept the end at once
    server.receive(session.data_to_send())
    assert server.ended == [call]
    assert session.receive(server.answer(call, OK)) == [CallEnd(call, "StreamTelemetry", "OK", "")]


def test_windows_are_respected_and_events_overtake_frames() -> None:
    """A megabyte of frames waits for a slow server; an XID must not wait behind it."""
    session, server = connected()
    stream = session.open_stream("s-1")
    session.send(stream, TelemetryBatch(frame=bytes(200_000)))
    server.receive(session.data_to_send(), acknowledge=False)
    assert len(server.bodies[stream]) == 65_535
    assert session.unsent_bytes > 130_000
    call = session.call(EVENTS, RegisterNodeRequest(), "s-1")
    server.receive(session.data_to_send(), acknowledge=False)
    assert call not in server.ended
    server.connection.increment_flow_control_window(100)
    server.connection.increment_flow_control_window(1 << 20, stream)
    session.receive(server.connection.data_to_send())
    server.receive(session.data_to_send(), acknowledge=False)
    assert server.ended == [call]
    assert len(server.bodies[stream]) == 65_535 + 95
    server.connection.increment_flow_control_window(1 << 20)
    session.receive(server.connection.data_to_send())
    server.receive(session.data_to_send())
    assert session.unsent_bytes == 0
    assert len(TelemetryBatch.FromString(server.messages(stream)[0]).frame) == 200_000


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(0, 30_000).map(lambda size: ("send", size)),
            st.sampled_from([("carry", 0), ("widen", 20_000), ("widen", 1 << 20), ("report", 0)]),
            st.sampled_from([("settle", 0), ("settle", 5000), ("settle", 200_000)]),
        ),
        max_size=30,
    )
)
def test_messages_arrive_in_order_for_any_windows(course: list[tuple[str, int]]) -> None:
    """The second message overtook the first, and no receipt came."""
    session, server = connected()
    stream = session.open_stream("s-1")
    sent: list[bytes] = []
    end = [("carry", 0), ("settle", 1 << 20), ("widen", 1 << 30), ("carry", 0)]
    for what, size in [*course, *end]:
        if what == "send":
            sent.append(bytes([len(sent)]) * size)
            session.send(stream, TelemetryBatch(frame=sent[-1]))
        elif what == "report":
            session.call(EVENTS, RegisterNodeRequest(), "s-1")
        elif what == "settle":
            reply = server.receive(session.data_to_send(), acknowledge=False)
            server.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: size})
            session.receive(reply + server.connection.data_to_send())
            server.receive(session.data_to_send(), acknowledge=False)
        elif what == "carry":
            server.receive(session.data_to_send(), acknowledge=False)
        elif stream in server.bodies:
            server.connection.increment_flow_control_window(size)
            server.connection.increment_flow_control_window(size, stream)
            session.receive(server.connection.data_to_send())
    server.receive(session.data_to_send(), acknowledge=False)
    assert session.unsent_bytes == 0
    assert [TelemetryBatch.FromString(m).frame for m in server.messages(stream)] == sent


def test_receipts_never_end_whatever_the_window() -> None:
    """Read data opens the peer's window again: otherwise no receipt would come after 64 kB."""
    session, server, stream = streaming()
    session.receive(server.answer(stream, HEAD, end=False))
    ack = IngestAck(refused=[RefusedFrame(sequence=1, reason="x" * 5000)])
    for _ in range(100):
        reply = server.answer(stream, framed(ack.SerializeToString()), end=False)
        assert [a.message for a in session.receive(reply) if isinstance(a, CallResponse)] == [ack]
        server.receive(session.data_to_send())


@settings(deadline=None)
@given(st.lists(st.sampled_from(["ack", "padded", "ping", "widen", "settle"]), max_size=20),
       st.integers(1, 300))  # fmt: skip
def test_answers_are_the_same_however_they_are_cut(parts: list[str], step: int) -> None:
    """The network cuts anywhere, and a server sends settings, pings and padding at any time."""
    session, server, stream = streaming()
    reply, wanted = server.answer(stream, HEAD, end=False), []
    for number, part in enumerate(parts):
        if part in ("ack", "padded"):
            wanted.append(IngestAck(credit_frames=number))
            body = framed(wanted[-1].SerializeToString())
            server.connection.send_data(stream, body, pad_length=9 if part == "padded" else None)
        elif part == "ping":
            server.connection.ping(bytes(8))
        elif part == "settle":
            server.connection.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 5 + number})
        else:
            server.connection.increment_flow_control_window(1000, stream)
            server.connection.increment_flow_control_window(1000)
        reply += server.connection.data_to_send()
    got = [
        a
        for index in range(0, len(reply), step)
        for a in session.receive(reply[index : index + step])
    ]
    assert [answer.message for answer in got if isinstance(answer, CallResponse)] == wanted
    server.receive(session.data_to_send())
    session.send(stream, TelemetryBatch(frame=bytes(65_000 + 1000 * parts.count("widen"))))
    assert session.unsent_bytes == 0 or "widen" not in parts


def test_a_big_answer_is_taken_whatever_the_window() -> None:
    """The window is extended, or the sixty-fifth kilobyte would never come."""
    session, server = connected()
    call = session.call(EVENTS, RegisterNodeRequest(), "s-1")
    server.receive(session.data_to_send())
    answer = ReportEventsResponse(duplicate_event_ids=["x" * 1000] * 300)
    body = framed(answer.SerializeToString())
    result = session.receive(server.answer(call, HEAD, end=False))
    while body:
        size = min(len(body), 16_384, server.connection.local_flow_control_window(call))
        assert size > 0
        result += session.receive(server.answer(call, body[:size], end=False))
        server.receive(session.data_to_send())
        body = body[size:]
    result += session.receive(server.answer(call, OK))
    assert result == [CallResponse(call, EVENTS, answer)]


def reset(server: Server, call: int) -> bytes:
    server.connection.reset_stream(call, 8)
    return server.connection.data_to_send()


def go_away(server: Server, call: int) -> bytes:
    server.connection.close_connection(11, b"too_many_pings")
    return server.connection.data_to_send()


def test_an_end_is_told_whatever_follows_it() -> None:
    """A stopping server ends its streams after its answer: the error was "spoke no gRPC"."""
    session, server, stream = streaming()
    ack = IngestAck(credit_frames=3)
    reply = server.answer(stream, HEAD, framed(ack.SerializeToString()), end=False)
    end = b"\0\0\x08\7\0\0\0\0\0" + b"\x7f\xff\xff\xff" + bytes(4)
    for last in (ping(server, stream), server.answer(stream, OK)):
        reply += end + last
    with pytest.raises(SessionError, match="closes the connection") as raised:
        session.receive(reply)
    assert raised.value.received == [CallResponse(stream, "StreamTelemetry", ack)]


def ping(server: Server, call: int) -> bytes:
    server.connection.ping(b"12345678")
    return server.connection.data_to_send()


def test_a_ping_is_answered_and_a_reset_ends_the_call() -> None:
    """A server that checks the connection, and a server that lost its worker."""
    session, server, call = registering()
    session.receive(ping(server, call))
    assert b"12345678" in session.data_to_send()
    [ended] = session.receive(reset(server, call))
    assert isinstance(ended, CallEnd) and "error 8" in ended.message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (go_away, "ENHANCE_YOUR_CALM: too_many_pings"),
        (lambda s, c: s.answer(c, [(":status", "404"), ("content-type", "text/html")]), "404"),
        (lambda s, c: s.answer(c, HEAD, framed(b"", 1)), "compressed"),
        (lambda s, c: s.answer(c, HEAD, b"\0" + (MESSAGE_BYTES_MAX + 1).to_bytes(4, "big")),
         "message of 1048577 bytes"),
        (lambda s, c: s.answer(c, HEAD, framed(b"\xff\xff")), "cannot be read"),
        (lambda s, c: s.answer(c, HEAD, b"\0\0", OK), "middle of a message"),
        (lambda s, c: s.answer(c, HEAD, OK), "without an answer"),
        (lambda s, c: s.answer(c, HEAD, framed(b"") * 2), "more than one answer"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_named(
    make: Callable[[Server, int], bytes], message: str
) -> None:
    """A proxy in between, another kind of server, an aggregator that shuts down."""
    session, server, call = registering()
    with pytest.raises(SessionError, match=message):
        session.receive(make(server, call))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP/1 server"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP/2: it sent 'SSH-2.0-O'"),
        (bytes(20), "does not speak HTTP/2"),
    ],
)
@pytest.mark.parametrize("step", [1, 99])
def test_a_foreign_protocol_is_named(data: bytes, message: str, step: int) -> None:
    """The agent got the port of a web server or sshd: report it, and do not wait for more."""
    session = ClientSession("127.0.0.1:22")
    with pytest.raises(SessionError, match=message):
        for index in range(0, len(data), step):
            session.receive(data[index : index + step])


def test_a_frame_too_long_is_told_by_its_head() -> None:
    """A hostile peer announced 16 MB, sent all except the last byte, and the agent buffered it."""
    session, server = connected()
    head = (FRAME_BYTES_MAX + 1).to_bytes(3, "big") + b"\0\0\0\0\0\3"
    data = server.connection.data_to_send() + head
    session.receive(data[:-1])
    with pytest.raises(
        SessionError, match="a frame of 16385 bytes exceeds the agreed limit of 16384"
    ):
        session.receive(data[-1:])


@given(st.lists(st.integers(0, FRAME_BYTES_MAX), max_size=5), st.lists(st.integers(1, 20_000)))
def test_lengths_of_frames_are_found_in_any_pieces(sizes: list[int], cuts: list[int]) -> None:
    """The first frame over the limit is refused at its ninth byte; no piece has two frames."""
    good = b"".join(size.to_bytes(3, "big") + bytes(6 + size) for size in sizes)
    data = good + b"\xff" * 9
    splitter, pieces, at = FrameSplitter(), list[bytes](), 0
    for cut in [*cuts, len(data)]:
        step = min(cut, len(good) + 8 - at)
        pieces += splitter.split(data[at : at + step])
        at += step
    assert b"".join(pieces) == data[:at]
    ends = set(accumulate(map(len, pieces)))
    assert ends >= set(accumulate(9 + size for size in sizes))
    with pytest.raises(FrameTooLong, match="16777215"):
        list(splitter.split(data[at:]))


def test_a_session_that_is_no_header_is_refused() -> None:
    """A damaged answer must not become a header of the agent."""
    session, _ = connected()
    for name in ("a\nb", "é", "x" * 300):
        with pytest.raises(SessionError, match="session"):
            session.open_stream(name)


def refusal(session: ClientSession, data: bytes, step: int) -> str | None:
    """Return the message of the refusal; None: accepted. Any other error fails the test."""
    try:
        for index in range(0, len(data), step):
            session.receive(data[index : index + step])
            session.data_to_send()
    except SessionError as error:
        return str(error)
    return None


@settings(max_examples=300)
@given(st.binary(max_size=500), st.integers(1, 100))
def test_random_bytes_are_a_session_error(data: bytes, step: int) -> None:
    """The agent continues sampling with any peer."""
    for session in (ClientSession("127.0.0.1:7600"), registering()[0]):
        assert refusal(session, data, step) != ""


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 255), st.integers(0, 9),
                          st.binary(max_size=60)), max_size=12))  # fmt: skip
def test_random_http2_frames_are_a_session_error(parts: list[tuple[int, int, int, bytes]]) -> None:
    session, server, _ = registering()
    data = server.connection.data_to_send()
    for kind, flags, stream, body in parts:
        data += len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
        data += body
    assert refusal(session, data, 64) != ""


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 0, 1, 8, 8]),
            st.sampled_from([0, 0, 0, 1, 8]),
            st.sampled_from([0, 1, 1, 3]),
            st.one_of(
                st.binary(max_size=12),
                st.integers(0, 2**32 - 1).map(lambda n: n.to_bytes(4, "big")),
                st.just(framed(IngestAck(credit_frames=3).SerializeToString())),
            ),
        ),
        max_size=12,
    ),
    st.integers(1, 300),
)
def test_random_frames_of_a_stream(parts: list[tuple[int, int, int, bytes]], step: int) -> None:
    """The stream has its head: the next data is receipts, or hostile."""
    session, server, stream = streaming()
    data = server.answer(stream, HEAD, end=False)
    for kind, flags, number, body in parts:
        data += len(body).to_bytes(3, "big") + bytes((kind, flags)) + number.to_bytes(4, "big")
        data += body
    assert refusal(session, data, step) != ""


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_damaged_answer_is_a_session_error(changes: list[tuple[int, int]]) -> None:
    """A true answer with some bytes changed reaches the parsers' last steps."""
    session, server, call = registering()
    data = bytearray(server.answer(call, HEAD, framed(ANSWER.SerializeToString()), OK))
    data += ping(server, call) + go_away(server, call)
    for at, value in changes:
        data[at % len(data)] = value
    assert refusal(session, bytes(data), 50) != ""
