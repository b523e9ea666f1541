"""The flight recorder of a host: when it records, what it stores; no part of it stops the daemon."""

from __future__ import annotations

import errno
import threading
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from gangline.agent.recorder import storage as storage_module
from gangline.agent.recorder.recorder import (
    AFTER_NS,
    DISK_NS_MAX,
    INTERVAL_NS,
    ORDER_NS_MAX,
    SECOND_NS,
    FlightRecorder,
    event_reason,
)
from gangline.agent.recorder.storage import SUFFIX, NoRecordingError, RecordingStorage
from gangline.agent.transport.recording_uploads import (
    UPLOADS_MAX,
    RecordingUpload,
    RecordingUploads,
)
from gangline.contract.recording import GpuRecording, decode_recording, encode_recording
from gangline.contract.wire.telemetry_pb2 import (
    HealthEvent,
    IngestAck,
    RecordingRequest,
    UploadRecordingRequest,
)
from tests.agent.fakes import HandedClock
from tests.processes import GUARD_SECONDS, until

XID = HealthEvent(name="gpu.xid", code=79, device="GPU-1", device_kind="gpu")


def samples(boottime_ns: int = 1) -> GpuRecording:
    """Return a sampler's recording: without host and wall time."""
    offsets = array("q", [0, 100_000_000])
    return GpuRecording(
        ("GPU-1",), ("power_watts",), (), boottime_ns, offsets, array("f", [1.0, 2.0])
    )


@dataclass(slots=True)
class Samplers:
    """A sampler that records at once, if it answers."""

    clock: HandedClock
    answers: bool = True
    has_process: bool = True
    recorded: tuple[int, bytes, str] | None = None
    orders: int = 0

    def record(self, number: int, seconds: int) -> bool:
        self.orders += 1
        if self.answers and self.has_process:
            self.recorded = number, encode_recording(samples(self.clock.boottime_ns()), 0), ""
        return self.has_process


@dataclass(frozen=True)
class Finding:
    name: str
    device: str
    since_ns: int


class RecordingHost:
    """A flight recorder with its clock, its sampler and its uploads."""

    def __init__(self, folder: Path, bytes_max: int = 1 << 20) -> None:
        self.clock = HandedClock()
        self.samplers, self.uploads = Samplers(self.clock), RecordingUploads()
        self.storage = RecordingStorage(folder / "recordings", bytes_max)
        self.findings = list[Finding]()
        self.recorder = FlightRecorder(
            cast(Any, self.samplers),
            self.storage,
            self.uploads,
            self.clock,
            host="gpu-017",
            boot_id=b"b" * 16,
            findings=lambda: self.findings,
        )

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.clock.now_ns += SECOND_NS
            self.recorder.tick()
            for task in (self.recorder._disk, self.recorder._sender):
                if task._thread is not None:
                    task._thread.join(0.0 if self.hangs else GUARD_SECONDS)

    hangs = False

    def request(self, **fields: object) -> str:
        """Receive a request of the aggregator; return its number."""
        number = f"r{self.samplers.orders}{len(self.recorder._seen)}"
        request = RecordingRequest(id=number, **fields)  # type: ignore[arg-type]
        self.recorder.on_response(IngestAck(recordings=[request]))
        return number

    def answer(self) -> UploadRecordingRequest:
        piece = self.uploads.next_piece()
        assert piece is not None
        self.uploads.accept()
        return piece


@pytest.fixture
def host(tmp_path: Path) -> RecordingHost:
    return RecordingHost(tmp_path)


def test_a_recording_shows_before_and_after_what_began(host: RecordingHost) -> None:
    """It is recorded 30 s after the event, and stored with its reason, host and times."""
    host.recorder.observe(XID)
    host.seconds(AFTER_NS // SECOND_NS)
    assert host.samplers.orders == 0
    host.seconds(2)
    (stored,) = host.storage.recordings()
    assert (stored.reason, stored.devices) == ("gpu.xid 79 GPU-1", 1)
    result = decode_recording(host.storage.read(stored.name))
    assert (result.host, result.boot_id) == ("gpu-017", (b"b" * 16).hex())
    assert (
        result.wall_time_ns - result.boottime_ns == host.clock.wall_ns() - host.clock.boottime_ns()
    )


def test_a_storm_is_one_recording_a_minute(host: RecordingHost) -> None:
    """A thousand XIDs in ten minutes must not fill the disk; the first has the usual delay."""
    for second in range(600):
        for code in (79, 31, 43, 45, second):
            host.recorder.observe(HealthEvent(name="gpu.xid", code=code, device="GPU-1"))
        host.seconds(1)
    assert 9 <= host.samplers.orders <= 600 * SECOND_NS // INTERVAL_NS
    assert "and" in host.storage.recordings()[-1].reason


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (XID, "gpu.xid 79 GPU-1"),
        (HealthEvent(name="gpu.xid", code=79, revision=1), ""),
        (HealthEvent(name="gpu.lost", device="GPU-1", attributes={"state": "back"}), ""),
        (HealthEvent(name="gpu.lost", device="GPU-1"), "gpu.lost GPU-1"),
        (HealthEvent(name="pcie.aer", code=0), ""),
        (HealthEvent(name="pcie.aer", code=2, device="0000:1b:00.0"), "pcie.aer 0000:1b:00.0"),
        (HealthEvent(name="collector.outcome", code=3), ""),
        (HealthEvent(name="gpu.process"), ""),
    ],
)
def test_what_is_recorded(event: HealthEvent, reason: str) -> None:
    """Events that samples of GPUs explain; not ended, corrected or ordinary ones."""
    assert event_reason(event) == reason


def test_a_finding_that_begins_is_recorded_once(host: RecordingHost) -> None:
    """Neither a finding from before the start, nor one whose event is recorded, nor one twice."""
    host.findings = [Finding("gpu_remap_pending", "GPU-0", host.clock.boottime_ns())]
    host.seconds(5)
    xid = Finding("xid79", "GPU-0", host.clock.boottime_ns() + 100 * SECOND_NS)
    old = Finding("xid48", "GPU-0", host.clock.boottime_ns() - 3600 * SECOND_NS)
    host.findings += [old]
    host.seconds(100)
    host.findings += [xid]
    host.seconds(50)
    assert host.samplers.orders == 0
    host.findings = [old, Finding("gpu_slow", "GPU-1", host.clock.boottime_ns())]
    host.seconds(1000)
    assert [recording.reason for recording in host.storage.recordings()] == [
        "finding gpu_slow GPU-1"
    ]


def test_a_request_is_answered_from_memory(host: RecordingHost) -> None:
    """No file of it remains on the host."""
    number = host.request(seconds=300)
    host.seconds(2)
    piece = host.answer()
    assert (piece.id, piece.error, piece.total_bytes) == (number, "", len(piece.data))
    assert decode_recording(piece.data).reason == "requested"
    assert host.storage.recordings() == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seconds": 0}, "expected 1 to 300"),
        ({"seconds": 301}, "expected 1 to 300"),
        ({"name": "../../etc/passwd"}, "no recording '../../etc/passwd'"),
        ({"name": "20260102T030405Z-0a1b2c3d"}, "none is stored"),
    ],
)
def test_wrong_requests(host: RecordingHost, fields: dict[str, object], message: str) -> None:
    """The client gets the reason; a name cannot be a path."""
    host.request(**fields)
    host.seconds(1)
    assert message in host.answer().error


def test_a_list_and_what_it_names(host: RecordingHost) -> None:
    """What --list shows can be fetched with --kept."""
    host.recorder.observe(XID)
    host.seconds(32)
    host.request(list=True)
    host.seconds(1)
    (stored,) = host.answer().stored
    host.request(name=stored.name)
    host.seconds(1)
    assert decode_recording(host.answer().data).reason == "gpu.xid 79 GPU-1"


def test_a_request_that_comes_twice_is_answered_once(host: RecordingHost) -> None:
    """An aggregator sends it again on another connection."""
    ack = IngestAck(recordings=[RecordingRequest(id="a", seconds=5)])
    host.recorder.on_response(ack)
    host.recorder.on_response(ack)
    host.seconds(5)
    assert host.samplers.orders == 1


def test_a_sampler_that_hangs_is_given_up(host: RecordingHost) -> None:
    """A hung driver ends one request, and the next is accepted."""
    host.samplers.answers = False
    host.request(seconds=5)
    host.seconds(ORDER_NS_MAX // SECOND_NS + 2)
    assert "did not answer within 5 s" in host.answer().error
    host.samplers.answers = True
    host.request(seconds=5)
    host.seconds(2)
    assert host.answer().data


def test_a_host_without_gpus_says_so(host: RecordingHost) -> None:
    """A CPU host also has an agent."""
    host.samplers.has_process = False
    host.request(seconds=5)
    host.seconds(1)
    assert "no GPU" in host.answer().error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_full_disk(host: RecordingHost, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """No partial file remains, the loss is counted, and the next recording is stored."""

    def fail(path: Path, data: bytes) -> None:
        path.with_name(path.name + ".new").write_bytes(data[:10])
        raise OSError(number, "the disk fails")

    with monkeypatch.context() as patch:
        patch.setattr(storage_module, "replace", fail)
        host.recorder.observe(XID)
        host.seconds(35)
    assert (host.recorder.lost_recordings, host.storage.recordings()) == (1, [])
    assert list((host.storage._folder).iterdir()) == []
    host.recorder.observe(XID)
    host.seconds(65)
    assert len(host.storage.recordings()) == 1


def test_a_hung_disk_stops_nothing(host: RecordingHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests from memory are answered, those for the disk fail; nothing waits."""
    released = threading.Event()
    monkeypatch.setattr(storage_module, "replace", lambda *_: released.wait(GUARD_SECONDS))
    host.hangs = True
    host.recorder.observe(XID)
    host.seconds(33)
    host.request(list=True)
    host.seconds(DISK_NS_MAX // SECOND_NS + 1)
    assert "disk does not respond" in host.answer().error
    host.request(seconds=5)
    host.seconds(2)
    until(lambda: host.uploads.waiting, "an answer from memory")
    assert host.answer().data
    host.recorder.observe(XID)
    host.seconds(65)
    assert host.recorder.lost_recordings == 1
    released.set()


def test_the_folder_is_bounded(tmp_path: Path) -> None:
    """The oldest file beyond the limits is deleted, and so are files of a killed process."""
    storage = RecordingStorage(tmp_path, bytes_max=1000, files_max=4)
    (tmp_path / f"20200101T000000Z-00000000{SUFFIX}.new").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("of somebody else")
    names = [storage.store(samples(n * 1_000_000), bytes(100)) for n in range(1, 8)]
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [*(name + SUFFIX for name in names[-4:]), "notes.txt"]
    storage.store(samples(8_000_000), bytes(800))
    assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == 3
    with pytest.raises(OSError, match="recordings_bytes_max"):
        storage.store(samples(), bytes(1001))
    assert storage.recordings() == [], "damaged files are left out"
    with pytest.raises(NoRecordingError, match="stored are"):
        storage.read("20200101T000000Z-00000000")


def test_no_bytes_for_recordings_store_none(tmp_path: Path) -> None:
    """recordings_bytes_max = 0 turns storing off, without a warning for each event."""
    host = RecordingHost(tmp_path, bytes_max=0)
    host.recorder.observe(XID)
    host.findings = [Finding("a", "b", host.clock.boottime_ns())]
    host.seconds(100)
    assert (host.samplers.orders, host.recorder.lost_recordings) == (0, 0)


def test_answers_that_nobody_takes_are_bounded() -> None:
    """While the aggregator is unreachable, only a few wait in memory."""
    uploads = RecordingUploads()
    for number in range(UPLOADS_MAX + 3):
        uploads.add(RecordingUpload(str(number), bytes(100_000)))
    uploads.add(RecordingUpload("large", bytes(40 << 20)))
    assert uploads.dropped_uploads == 4
    pieces = list[UploadRecordingRequest]()
    while (piece := uploads.next_piece()) is not None:
        pieces.append(piece)
        uploads.accept()
    assert {piece.id for piece in pieces} == {"0", "1", "2", "3"}
    assert sum(len(piece.data) for piece in pieces) == 400_000
