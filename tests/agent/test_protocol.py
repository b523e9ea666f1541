"""The order of messages on one connection, with a test's clock and no socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.agent.spool.event_queue import EventQueue
from gangline.agent.spool.spool import Spool
from gangline.agent.transport.grpc_http2 import RETRY_SECONDS_MAX, ClientSession
from gangline.agent.transport.http2 import SessionError
from gangline.agent.transport.protocol import (
    ACK_SECONDS_MAX,
    CALL_SECONDS_MAX,
    QUIET_FRAMES_MAX,
    QUIET_PERIODS,
    RESPONSE_SECONDS_MAX,
    RefusedError,
    StreamDesyncError,
    TelemetryProtocol,
)
from gangline.agent.transport.recording_uploads import PIECE_BYTES, RecordingUpload
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.stream import Receiver
from gangline.contract.wire.telemetry_pb2 import (
    HealthEvent,
    IngestAck,
    RecordingRequest,
    RegisterNodeRequest,
    RegisterNodeResponse,
    ReportEventsRequest,
    ReportEventsResponse,
    SequenceRange,
    TelemetryBatch,
    UploadRecordingRequest,
)
from tests.agent.memory_server import HEAD, OK, Server, framed

REGISTRATION = 1  # numbers of the client's streams in HTTP/2
STREAM = 3


class Talk:
    """A conversation and the aggregator's end of it."""

    def __init__(self, folder: Path) -> None:
        self.spool = Spool.open(folder / "s", bytes_max=1 << 20, boot_id=b"b" * 16, owner="m")
        self.events = EventQueue.open(folder / "e")
        self.begin()

    def begin(self, *, differences: bool = True) -> None:
        self.server = Server()
        self.conversation = TelemetryProtocol(
            ClientSession("a:1"),
            RegisterNodeRequest,
            self.spool,
            self.events,
            live_hertz=1.0,
            delta_encoding=differences,
        )

    def step(self, now: float) -> None:
        """Carry bytes both ways until neither side has any."""
        while out := self.conversation.step(now):
            self.conversation.receive(self.server.receive(out), now)

    def registered(
        self, now: float, stream_context_bytes: int = 0, late_frames_max: int = 0
    ) -> None:
        self.step(now)
        answer = RegisterNodeResponse(
            session="s-1",
            credit_frames=4 + 8 * late_frames_max,
            stream_context_bytes=stream_context_bytes,
            late_frames_max=late_frames_max,
        ).SerializeToString()
        reply = self.server.answer(REGISTRATION, HEAD, framed(answer), OK)
        self.conversation.receive(reply, now)
        self.step(now)

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.spool.append(self.spool.next_sequence(), bytes(100))

    def append_readings(self) -> bytes:
        sequence = self.spool.next_sequence()
        frame = frames.encode(
            frames.Stamp(self.spool.run_id, b"b" * 16, sequence, sequence, sequence),
            [Block("gpu_1s", ["GPU-0"])],
            deflate=False,
        )
        self.spool.append(sequence, frame)
        return frame

    def batches(self) -> list[TelemetryBatch]:
        return [TelemetryBatch.FromString(m) for m in self.server.messages(STREAM)]

    def frames(self) -> list[int]:
        return [batch.sequence for batch in self.batches()]

    def receipt(self, first: int, last: int, now: float, *, head: bool = False) -> None:
        """Receive the aggregator's receipt; *head* before the first of a stream."""
        ack = IngestAck(durable=[SequenceRange(first=first, last=last)])
        reply = self.server.answer(STREAM, HEAD, end=False) if head else b""
        reply += self.server.answer(STREAM, framed(ack.SerializeToString()), end=False)
        self.conversation.receive(reply, now)


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    talk = Talk(tmp_path)
    yield talk
    talk.spool.close()
    talk.events.close()


def test_events_go_before_any_frame(talk: Talk) -> None:
    """An XID and a batch are due at once: the XID is on the wire first, in a call of its own."""
    talk.registered(0.0)
    talk.append(3)
    talk.events.put(HealthEvent(event_id="xid-1"))
    talk.step(0.1)
    report = 5
    assert talk.server.order == [REGISTRATION, report, STREAM, STREAM, STREAM]
    [request] = talk.server.messages(report)
    assert [e.event_id for e in ReportEventsRequest.FromString(request).events] == ["xid-1"]
    assert talk.server.headers[report]["gangline-session"] == "s-1"
    assert talk.frames() == [1, 2, 3]


def test_one_report_at_a_time_and_only_its_events_are_forgotten(talk: Talk) -> None:
    """An event that came while a report was in flight is in the next one."""
    talk.registered(0.0)
    talk.events.put(HealthEvent(event_id="first"))
    talk.step(0.0)
    talk.events.put(HealthEvent(event_id="second"))
    talk.step(0.0)
    assert 7 not in talk.server.headers
    answer = framed(ReportEventsResponse(accepted=1).SerializeToString())
    talk.conversation.receive(talk.server.answer(5, HEAD, answer, OK), 0.0)
    assert [event.event_id for event in talk.events.pending(9)] == ["second"]
    talk.step(0.0)
    [request] = talk.server.messages(7)
    assert [e.event_id for e in ReportEventsRequest.FromString(request).events] == ["second"]


def test_nothing_is_sent_before_the_registration_is_answered(talk: Talk) -> None:
    """Frames of an unregistered host would be refused, and therefore lost."""
    talk.append()
    talk.events.put(HealthEvent(event_id="xid-1"))
    talk.step(0.0)
    assert list(talk.server.headers) == [REGISTRATION]


def test_patience_ends_and_nothing_wakes_us_before_it_does(talk: Talk) -> None:
    """Polling would wake each host forever; without it the agent must know the time."""
    talk.step(100.0)
    assert talk.conversation.wait_seconds(103.0) == RESPONSE_SECONDS_MAX - 3.0
    with pytest.raises(SessionError, match="no answer to RegisterNode within 10 s"):
        talk.conversation.step(100.0 + RESPONSE_SECONDS_MAX)


def test_a_slow_answer_to_events_does_not_end_a_stream_that_is_answered(talk: Talk) -> None:
    """The aggregator's disk hung for 20 s: each host with an event disconnected every 10 s."""
    talk.registered(0.0)
    talk.events.put(HealthEvent(event_id="xid-1"))
    talk.append()
    talk.step(0.0)
    talk.receipt(1, 1, 9.0, head=True)
    talk.append()
    talk.step(20.0)
    assert talk.conversation.wait_seconds(25.0) == ACK_SECONDS_MAX - 5.0
    talk.receipt(2, 2, 21.0)
    reply = talk.server.answer(5, HEAD, framed(b""), OK)
    talk.conversation.receive(reply, 45.0)
    assert not talk.events.waiting


def test_events_without_an_answer_end_a_connection_on_which_nothing_comes(talk: Talk) -> None:
    """The aggregator forgot the call: the next connection sends the events again."""
    talk.registered(0.0)
    talk.events.put(HealthEvent(event_id="xid-1"))
    talk.step(1.0)
    with pytest.raises(SessionError, match="no answer to ReportEvents within 30 s"):
        talk.conversation.step(1.0 + ACK_SECONDS_MAX)


def test_receipts_do_not_hide_a_forgotten_call_for_ever(talk: Talk) -> None:
    """Frames get receipts, events no answer: after five minutes they go on the next connection."""
    talk.registered(0.0)
    talk.events.put(HealthEvent(event_id="xid-1"))
    talk.step(0.0)
    for index in range(20, int(CALL_SECONDS_MAX), 20):
        talk.append()
        talk.step(float(index))
        talk.receipt(index // 20, index // 20, float(index), head=index == 20)
    with pytest.raises(SessionError, match="no answer to ReportEvents within 300 s"):
        talk.conversation.step(CALL_SECONDS_MAX)


def test_an_idle_connection_sleeps_for_ever(talk: Talk) -> None:
    talk.registered(0.0)
    assert talk.conversation.wait_seconds(5.0) is None
    talk.append()
    talk.step(5.0)
    assert talk.conversation.wait_seconds(7.0) == ACK_SECONDS_MAX - 2.0
    with pytest.raises(SessionError, match="1 frames sent, but no acknowledgment within 30 s"):
        talk.conversation.step(5.0 + ACK_SECONDS_MAX)


def test_a_receipt_forgets_just_what_it_names(talk: Talk) -> None:
    """Receipts are ranges, which may include frames of other connections."""
    talk.append(2)
    talk.registered(0.0)
    talk.append(3)
    talk.step(0.0)
    assert talk.frames() == [3, 4, 5]
    durable = [SequenceRange(first=0, last=3), SequenceRange(first=5, last=2**64 - 1)]
    ack = framed(IngestAck(durable=durable).SerializeToString())
    talk.conversation.receive(talk.server.answer(STREAM, HEAD, ack, end=False), 0.0)
    assert [sequence for sequence, _ in talk.spool.pending(0, 9)] == [1, 2, 4]
    assert talk.conversation.has_ack


def test_the_end_waits_for_receipts_and_leaves_backlog(talk: Talk) -> None:
    """A stopped agent flushes its last second; the hour before stays on disk."""
    talk.append(50)
    talk.registered(0.0)
    talk.append()
    done, out = talk.conversation.finish(100.0)
    talk.server.receive(out)
    assert (done, talk.frames()) == (False, [51])
    ack = framed(IngestAck(durable=[SequenceRange(first=51, last=51)]).SerializeToString())
    talk.conversation.receive(talk.server.answer(STREAM, HEAD, ack, end=False), 100.0)
    done, out = talk.conversation.finish(100.0)
    talk.server.receive(out)
    assert done and STREAM in talk.server.ended
    assert talk.spool.unacknowledged_frames == 50


@pytest.mark.parametrize(
    ("code", "kind"), [("6", RefusedError), ("16", RefusedError), ("14", SessionError)]
)
def test_a_refused_identity_is_told(talk: Talk, code: str, kind: type[SessionError]) -> None:
    """Only the first leads to a long wait."""
    talk.step(0.0)
    trailers = [("grpc-status", code), ("grpc-message", "message")]
    with pytest.raises(SessionError, match=r"RegisterNode: .*: message") as caught:
        talk.conversation.receive(talk.server.answer(REGISTRATION, HEAD + trailers), 0.0)
    assert type(caught.value) is kind


def test_events_refused_for_now_do_not_end_the_stream(talk: Talk) -> None:
    """The aggregator's disk was full: each report ended the connection, and the host became silent."""
    talk.registered(0.0)
    talk.events.put(HealthEvent(event_id="xid-1"))
    talk.step(0.0)
    for report, status, now, again in ((5, "14", 0.0, 1.0), (7, "8", 1.0, 3.0)):
        refusal = talk.server.answer(report, HEAD, [("grpc-status", status)])
        talk.conversation.receive(refusal, now)
        talk.append()
        talk.step(now)
        assert talk.conversation.wait_seconds(now) == again - now
        assert report + 2 not in talk.server.headers
        talk.step(again)
        assert report + 2 in talk.server.headers
    assert talk.frames() == [1, 2]
    answer = framed(ReportEventsResponse(accepted=1).SerializeToString())
    talk.conversation.receive(talk.server.answer(9, HEAD, answer, OK), 3.0)
    assert talk.events.pending(9) == []


def test_a_report_above_the_servers_limit_is_halved(talk: Talk) -> None:
    """64 events were 3 MB, the server accepted 1 MiB: the same report was sent forever."""
    talk.registered(0.0)
    sizes = (
        [1] * 9 + [8] + [1] * 6
    )  # the server accepts 4 of these at once, but the tenth alone is too large
    for number, size in enumerate(sizes):
        talk.events.put(HealthEvent(event_id=f"e{number}", message="x" * size))
    taken: list[str] = []
    message = "Received message larger than max (3,000,000 vs. 1,048,576)"
    for report in range(5, 105, 2):
        talk.step(0.0)
        if report not in talk.server.headers:
            break
        [request] = talk.server.messages(report)
        events = ReportEventsRequest.FromString(request).events
        if sum(len(event.message) for event in events) > 4:
            ends: list[Any] = [[*HEAD, ("grpc-status", "8"), ("grpc-message", message)]]
        else:
            taken += [event.event_id for event in events]
            answer = ReportEventsResponse(accepted=len(events)).SerializeToString()
            ends = [HEAD, framed(answer), OK]
        talk.conversation.receive(talk.server.answer(report, *ends), 0.0)
    assert taken == [f"e{number}" for number in range(16) if number != 9]
    assert not talk.events.waiting and talk.events.refused_events == 1
    assert "larger than max" in talk.events.last_refusal


def test_a_report_refused_for_room_becomes_shorter_and_nothing_is_dropped(talk: Talk) -> None:
    """A proxy may have another message for a long report; a full disk must not drop events."""
    talk.registered(0.0)
    for number in range(4):
        talk.events.put(HealthEvent(event_id=f"e{number}"))
    now, lengths = 0.0, []
    for report in range(5, 15, 2):
        talk.step(now)
        [request] = talk.server.messages(report)
        lengths.append(len(ReportEventsRequest.FromString(request).events))
        refusal = talk.server.answer(report, [*HEAD, ("grpc-status", "8")])
        talk.conversation.receive(refusal, now)
        now += talk.conversation.wait_seconds(now) or 0.0
    assert lengths == [4, 2, 1, 1, 1]
    assert len(talk.events) == 4 and talk.events.refused_events == 0


def test_credit_without_a_receipt_is_a_word(talk: Talk) -> None:
    """A full disk stores nothing for an hour: readings continue, and none is deleted."""
    talk.registered(0.0)
    for second in range(0, 3600, 20):
        talk.append()
        talk.step(float(second))
        ack = framed(IngestAck(credit_frames=second + 64).SerializeToString())
        head = [HEAD] if second == 0 else []
        reply = talk.server.answer(STREAM, *head, ack, end=False)
        talk.conversation.receive(reply, float(second))
    assert talk.frames() == list(range(1, 181))
    assert talk.spool.unacknowledged_frames == 180


def test_an_older_aggregator_gets_whole_frames(talk: Talk) -> None:
    """It would refuse differences, and the agent would count each frame as lost."""
    talk.registered(0.0)
    frame = talk.append_readings()
    talk.step(0.1)
    [batch] = talk.batches()
    assert (batch.frame, batch.differences) == (frames.deflate_frame(frame), b"")


def test_live_frames_go_as_differences_and_backlog_whole_between_them(talk: Talk) -> None:
    """Backlog is sent complete: it may fill gaps in any order."""
    old = [talk.append_readings(), talk.append_readings()]
    talk.registered(0.0, stream_context_bytes=1 << 15)
    live = []
    for second in range(1, 4):
        live.append(talk.append_readings())
        talk.step(float(second))
        talk.receipt(1, 9, float(second), head=second == 1)
    receiver, whole, restored = Receiver(), [], []
    for batch in talk.batches():
        assert bool(batch.frame) == batch.backlog != bool(batch.differences)
        if batch.backlog:
            whole.append(batch.frame)
        else:
            restored.append(receiver.decode(batch.differences))
    assert restored == live
    assert whole == [frames.deflate_frame(frame) for frame in old]


def test_backlog_goes_several_frames_a_message_where_the_aggregator_takes_that(talk: Talk) -> None:
    """In messages of one frame a minute of backlog cost the aggregator a triple minute."""
    old = [talk.append_readings() for _ in range(5)]
    talk.registered(0.0, stream_context_bytes=1 << 15, late_frames_max=4)
    talk.append_readings()
    talk.step(2.0)
    talk.receipt(1, 6, 2.0, head=True)
    talk.step(3.0)
    live, first, second = talk.batches()
    assert live.differences and not live.backlog and not live.late
    assert [(message.sequence, len(message.late)) for message in (first, second)] == [
        (1, 4),
        (5, 1),
    ]
    receiver = Receiver()
    assert [receiver.decode(message) for message in first.late] == old[:4]
    assert Receiver().decode(second.late[0]) == old[4], "it builds on no message before"
    assert first.backlog and not first.frame and not first.differences
    assert talk.spool.unacknowledged_frames == 1


def test_after_differences_that_were_not_understood_backlog_goes_whole(talk: Talk) -> None:
    """A frame that broke a message would break the next one as well: sent alone, only it fails."""
    old = [talk.append_readings(), talk.append_readings()]
    talk.begin(differences=False)
    talk.registered(0.0, stream_context_bytes=1 << 15, late_frames_max=4)
    talk.step(1.0)
    assert [batch.frame for batch in talk.batches()] == [
        frames.deflate_frame(frame) for frame in old
    ]


def test_differences_that_were_not_understood_end_the_connection_as_such(talk: Talk) -> None:
    """The client must know it, so that the next connection does not use them."""
    talk.registered(0.0, stream_context_bytes=1 << 15)
    trailers = [*HEAD, ("grpc-status", "15"), ("grpc-message", "the checksum does not match")]
    with pytest.raises(StreamDesyncError, match="DATA_LOSS: the checksum"):
        talk.conversation.receive(talk.server.answer(STREAM, trailers), 0.0)
    talk.begin(differences=False)
    talk.registered(0.0, stream_context_bytes=1 << 15)
    frame = talk.append_readings()
    talk.step(0.1)
    assert talk.batches()[-1].frame == frames.deflate_frame(frame)


def test_receipts_of_a_few_live_frames_wait_for_the_next_frame(talk: Talk) -> None:
    """Each receipt woke the agent once more a second than its frame had."""
    talk.registered(0.0)
    talk.append()
    talk.step(1.0)
    assert talk.conversation.quiet_seconds(1.0) == 0.0, "not before the first receipt"
    talk.receipt(1, 1, 1.0, head=True)
    second = 0
    for second in range(2, 2 + min(QUIET_FRAMES_MAX, 3)):
        talk.append()
        talk.step(float(second))
        assert talk.conversation.quiet_seconds(second + 0.5) == QUIET_PERIODS - 0.5
    assert talk.conversation.quiet_seconds(second + QUIET_PERIODS) == 0.0, "the next one is late"
    talk.append(2)
    talk.step(9.0)
    assert talk.conversation.quiet_seconds(9.0) == 0.0, "no credit is left"
    talk.receipt(2, 9, 9.1)
    assert talk.conversation.quiet_seconds(9.1) > 0.0
    talk.events.put(HealthEvent(event_id="xid-1"))
    talk.step(9.2)
    assert talk.conversation.quiet_seconds(9.2) == 0.0, "an event waits for its answer"


def test_what_the_peer_has_no_room_for_makes_us_read(talk: Talk) -> None:
    """A large frame filled the peer's window, and its update was unread for eight seconds."""
    talk.registered(0.0)
    talk.append()
    talk.step(1.0)
    talk.receipt(1, 1, 1.0, head=True)
    talk.spool.append(2, bytes(range(256)) * 400)
    out = talk.conversation.step(2.0)
    assert out and talk.conversation.quiet_seconds(2.0) == 0.0
    talk.conversation.receive(talk.server.receive(out), 2.1)
    talk.step(2.1)
    assert talk.conversation.quiet_seconds(2.1) > 0.0


def test_receipts_count_that_came_before_the_end(talk: Talk) -> None:
    """A stopping aggregator closes after its last receipts, which were all unread."""
    talk.registered(0.0)
    talk.append(2)
    talk.step(1.0)
    talk.receipt(1, 1, 1.0, head=True)
    ack = IngestAck(durable=[SequenceRange(first=2, last=2)])
    reply = talk.server.answer(STREAM, framed(ack.SerializeToString()), end=False)
    talk.server.connection.close_connection()
    reply += talk.server.connection.data_to_send()
    with pytest.raises(SessionError, match="closes the connection"):
        talk.conversation.receive(reply, 2.0)
    assert talk.spool.unacknowledged_frames == 0


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("0", 0.0),
        ("2500", 2.5),
        ("999999999", RETRY_SECONDS_MAX),
        ("1000000000", None),  # not credible
        ("-1", None),
        ("soon", None),
        ("", None),
    ],
)
def test_an_end_says_when_to_come_back(talk: Talk, said: str, wanted: float | None) -> None:
    """Ten thousand agents each get a time; the value comes from the network and is checked."""
    talk.step(0.0)
    trailers = [("grpc-status", "8"), ("grpc-message", "later"), ("grpc-retry-pushback-ms", said)]
    reply = talk.server.answer(REGISTRATION, [*HEAD, *trailers])
    with pytest.raises(SessionError, match="later") as error:
        talk.conversation.receive(reply, 0.0)
    assert error.value.retry_seconds == wanted


def test_within_how_long_a_fleet_comes_back_is_kept(talk: Talk) -> None:
    """Sent with the registration and with each receipt: the fleet may have grown since."""
    talk.registered(0.0)
    assert (talk.conversation.host, talk.conversation.reconnect_seconds) == ("", 0.0)
    ack = IngestAck(reconnect_seconds=33, backlog_frames=1)
    reply = talk.server.answer(STREAM, HEAD, end=False)
    reply += talk.server.answer(STREAM, framed(ack.SerializeToString()), end=False)
    talk.conversation.receive(reply, 1.0)
    assert talk.conversation.reconnect_seconds == 33.0
    talk.append(3)
    talk.step(2.0)
    assert talk.frames() == [1, 2, 3]  # live frames


def test_a_recording_goes_in_pieces_behind_events_and_a_refusal_costs_it_alone(talk: Talk) -> None:
    """A restarted aggregator does not know it: readings and events continue on the same connection."""
    talk.registered(0.0)
    uploads = talk.conversation._uploads
    uploads.add(RecordingUpload("a", bytes(2 * PIECE_BYTES + 1)))
    uploads.add(RecordingUpload("b", b"x"))
    talk.step(0.1)
    call = max(talk.server.bodies)
    assert talk.server.headers[call][":path"].endswith("/UploadRecording")
    assert talk.server.headers[call]["gangline-session"] == "s-1"
    sizes = list[int]()
    for _ in range(3):
        (message,) = talk.server.messages(call)
        piece = UploadRecordingRequest.FromString(message)
        sizes.append(len(piece.data))
        assert (piece.id, piece.offset, piece.total_bytes) == (
            "a", sum(sizes[:-1]), 2 * PIECE_BYTES + 1
        )  # fmt: skip
        reply = talk.server.answer(call, HEAD, framed(b""), OK)
        talk.conversation.receive(reply, 0.1)
        talk.step(0.1)
        call = max(talk.server.bodies)
    assert sizes == [PIECE_BYTES, PIECE_BYTES, 1]
    for status in (
        "5",
        "7",
    ):  # NOT_FOUND; PERMISSION_DENIED, which otherwise means that a name belongs to another host
        reply = talk.server.answer(call, [*HEAD, ("grpc-status", status), ("grpc-message", "no")])
        talk.conversation.receive(reply, 0.2)
        uploads.add(RecordingUpload("c", b"x"))
        talk.step(0.2)
        call = max(talk.server.bodies)
    assert (
        UploadRecordingRequest.FromString(talk.server.messages(call)[0]).id,
        uploads.last_refusal,
    ) == ("c", "UploadRecording: PERMISSION_DENIED: no")
    talk.append()
    talk.step(0.3)
    assert talk.frames() == [1]


def test_a_request_is_taken_and_an_older_agent_ignores_it(talk: Talk) -> None:
    """It comes with a receipt, in a field that older agents ignore."""
    seen = list[IngestAck]()
    talk.conversation._on_permit = lambda message: seen.append(message)  # type: ignore[arg-type]
    talk.registered(0.0)
    talk.append()
    talk.step(0.1)
    ack = IngestAck(
        durable=[SequenceRange(first=1, last=1)], recordings=[RecordingRequest(id="a", seconds=5)]
    )
    reply = talk.server.answer(STREAM, HEAD, framed(ack.SerializeToString()), end=False)
    talk.conversation.receive(reply, 0.2)
    assert seen[-1].recordings[0].seconds == 5
    assert talk.spool.pending(0, 10) == []
    fields = IngestAck.DESCRIPTOR.fields_by_name
    assert fields["recordings"].number == 8, "of an unknown field a protobuf parser takes no note"
