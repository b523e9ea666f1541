"""Data on disk or from a socket: events, journal, spool, settings, registration."""

from __future__ import annotations

import json
import random
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from google.protobuf.message import DecodeError
from h2.config import H2Configuration
from h2.connection import H2Connection

from gangline.agent.config import AgentConfig
from gangline.agent.inventory import parse as parse_inventory
from gangline.agent.spool import event_queue, spool
from gangline.agent.spool.segment import FileSegment, first_sequence_of
from gangline.agent.transport.client import TargetError, parse_target
from gangline.agent.transport.grpc_http2 import ClientSession
from gangline.agent.transport.http2 import SessionError
from gangline.aggregator.config import AggregatorConfig, parse_listen
from gangline.aggregator.errors import InvalidArgument
from gangline.aggregator.ingest.sessions import check_events, check_request
from gangline.aggregator.store import journal
from gangline.aggregator.store.parquet import segment_files
from gangline.aggregator.store.parquet.segment_files import ParquetSegment
from gangline.contract.settings import SettingsError, load
from gangline.contract.wire.telemetry_pb2 import (
    HealthEvent,
    RegisterNodeRequest,
    RegisterNodeResponse,
    ReportEventsRequest,
)
from tests.fuzzing.damage import ACCEPTED, ODD_WORDS, REFUSED, check, damaged, flipped

EVENT = HealthEvent(
    event_id="e1", device_kind="gpu", device="0000:9b:00.0", name="gpu.xid", code=94, message="message", count=3,
    forms=["a #"], attributes={"unit": "L2"},
)  # fmt: skip
#: Longer than any allowed text, and shorter than a message may be.
_LONG = "x" * 5000


def fuzz_event_lines(source: random.Random) -> str:
    """A line of the event queue after a bad disk: the event, or ValueError."""
    line = source.choice((damaged, flipped))(event_queue.format_line(EVENT), source)
    if source.random() < 0.3:  # a foreign text with a correct checksum
        line = b"%08x %b\n" % (zlib.crc32(line), line)
    try:
        event = event_queue.parse_line(line)
    except ValueError:
        return REFUSED
    assert event.event_id
    return ACCEPTED


def fuzz_journal(source: random.Random) -> str:
    """The journal of events, torn and damaged: whole records from its beginning, and no others."""
    records = [journal.StoredEvent(f"host{i}", 1, 2, EVENT) for i in range(3)]
    data = b"".join(map(journal.encode_record, records))
    records_read = list(
        journal.parse_records(source.choice((damaged, flipped, lambda data, _: data))(data, source))
    )
    assert all(after <= len(data) + (1 << 17) for _, after in records_read)
    whole = [record for record, _ in records_read if record in records]
    assert len(whole) == len(records_read) or len(records_read) <= len(records) + 3
    return ACCEPTED if len(records_read) == len(records) else REFUSED


def fuzz_manifest(source: random.Random) -> str:
    """A manifest, damaged: files at valid paths, with SQL over them that DuckDB can parse, or an error."""
    files = [
        ParquetSegment("raw", "gpu_1s", f"2026112010{m:02}", f"segments/gpu_1s/2026112010/2026112010{m:02}-0.parquet",
                10**15, 10**15 + m, 5, 100, 7, "host VARCHAR,time TIMESTAMP")
        for m in (0, 5)
    ]  # fmt: skip
    data = json.dumps([asdict(file) for file in files]).encode()
    try:
        parsed = segment_files.parse_manifest(
            source.choice((damaged, flipped, lambda data, _: data))(data, source)
        )
    except ValueError:
        return REFUSED
    for segment in parsed:
        assert ".." not in segment.path and not segment.path.startswith("/")
    return ACCEPTED


def fuzz_segments(source: random.Random) -> str:
    """A segment of the spool, damaged: frames that were written or None, and it ends."""
    frames = [source.randbytes(source.randrange(1, 200)) for _ in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        written = FileSegment.create(Path(folder), 7)
        for frame in frames:
            written.append(frame)
        written.close()
        data = source.choice((damaged, flipped))(written.path.read_bytes(), source)
        written.path.write_bytes(data)
        segment, torn = FileSegment.scan(Path(folder), 7)
        read = segment.read(range(7, segment.next))
        segment.close()
    assert 0 <= torn <= len(data) and len(read) <= len(data) // 16
    known = [frame for _, frame in read if frame is not None]
    assert all(frame in frames for frame in known), "a frame that nobody wrote"
    name = damaged(b"00000000000000000007.seg", source).decode(errors="surrogateescape")
    check(first_sequence_of(name))
    return ACCEPTED if len(known) == len(frames) else REFUSED


def fuzz_run(source: random.Random) -> str:
    """The spool's own note of its run: the written note, or ValueError."""
    data = b'{"format": 1, "run_id": "%s", "boot_id": "%s", "owner": "host"}' % (
        b"ab" * 16,
        b"cd" * 16,
    )
    try:
        parsed = spool.parse_run(source.choice((damaged, flipped))(data, source))
    except ValueError:
        return REFUSED
    assert len(parsed.run_id) == spool.RUN_ID_BYTES
    return ACCEPTED


def fuzz_inventory(source: random.Random) -> str:
    """The inventory child's line, cut off or damaged: an inventory, or an error message. Nothing is raised."""
    data = (
        b'{"devices": [{"kind": "gpu", "key": "GPU-1", "attributes": {"name": "H100"}}], "labels": {"os": "x"},'
        b' "problems": ["disks: none"]}\n'
    )
    parsed = parse_inventory(source.choice((damaged, flipped))(data, source))
    assert parsed.devices or parsed.reason or parsed.labels is not None
    check({device.key: dict(device.attributes) for device in parsed.devices})
    return ACCEPTED if parsed.devices else REFUSED


def fuzz_settings(source: random.Random) -> str:
    """A settings file and `--set`, damaged: settings within their ranges, or SettingsError."""
    kind, key = source.choice(((AgentConfig, b"aggregator"), (AggregatorConfig, b"listen")))
    good = key + b' = "127.0.0.1:7600"\n'
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.toml"
        file.write_bytes(damaged(good, source))
        value = source.choice(ODD_WORDS).decode(errors="replace")
        assignment = source.choice(("host=", "hosts_max=", "x=", "")) + value
        try:
            load(kind, file, (assignment,) if source.random() < 0.3 else ())
        except SettingsError as error:
            assert str(error)
            return REFUSED
    return ACCEPTED


def fuzz_addresses(source: random.Random) -> str:
    """An operator's addresses: host and port, or an error."""
    word = damaged(
        source.choice((b"127.0.0.1:7600", b"[::1]:7600", b"localhost:1")), source
    ).decode(errors="replace")
    refused = 0
    both: tuple[tuple[Callable[[], tuple[str, int]], type[Exception]], ...] = (
        (lambda: parse_target(word, allow_plaintext=True), TargetError),
        (lambda: parse_listen(word, beyond_loopback=True), SettingsError),
    )
    for parse, error_kind in both:
        try:
            _, port = parse()
            assert 0 <= port < 65536
        except error_kind as error:
            assert str(error)
            refused += 1
    return REFUSED if refused else ACCEPTED


def fuzz_events(source: random.Random) -> str:
    """Events at the aggregator's intake: accepted events are within every limit, refused events get a reason."""
    event = HealthEvent()
    event.CopyFrom(EVENT)
    for _ in range(source.randrange(4)):
        _exaggerate(event, source)
    request = ReportEventsRequest(events=[event])
    data = (
        flipped(request.SerializeToString(), source)
        if source.random() < 0.3
        else request.SerializeToString()
    )
    try:
        request = ReportEventsRequest.FromString(
            data * source.choice((1, 1, 1, 3) if len(data) > 1000 else (1, 1, 1001))
        )
        check_events(request)
    except (InvalidArgument, DecodeError) as error:
        assert str(error)
        return REFUSED
    for entry in request.events:
        assert (
            entry.event_id
            and len(entry.message) <= 4096
            and len(entry.forms) <= 32
            and len(entry.attributes) <= 32
        )
        assert len(entry.device.encode()) <= 4 * 96 and entry.count <= 10**15
    return ACCEPTED


def _exaggerate(event: HealthEvent, source: random.Random) -> None:
    odd_text = source.choice(("", _LONG, "\0", "\U0001f525" * 90))
    match source.randrange(6):
        case 0:
            event.count = source.choice((0, 2**64 - 1, 10**15))
        case 1:
            event.forms.extend([odd_text] * source.choice((1, 40)))
        case 2:
            event.attributes[odd_text] = source.choice(("", _LONG))
        case 3:
            event.device, event.process_name = odd_text, source.choice(("", _LONG))
        case 4:
            event.event_id = odd_text
        case _:
            event.message = odd_text
            event.boottime_ns, event.code = 2**64 - 1, 2**32 - 1


def fuzz_registration(source: random.Random) -> str:
    """RegisterNode: a name, ids, devices and signals within the limits, or Invalid that names the field."""
    request = RegisterNodeRequest(
        protocol_version=2, node="host-1", run_id=b"r" * 16, boot_id=b"b" * 16, agent_version="1",
        labels={"os": "x"},
    )  # fmt: skip
    request.devices.add(kind="gpu", key="GPU-1")
    request.signals.add(signal_id=60_000, name="host.x_count", kind="gauge")
    for _ in range(source.randrange(3)):
        match source.randrange(6):
            case 0:
                request.protocol_version = source.choice((0, 1, 3, 2**32 - 1))
            case 1:
                request.node = damaged(b"host-1", source).decode(errors="replace")
            case 2:
                request.run_id = source.choice((b"", b"r" * 15, b"r" * 16, _LONG.encode()))
            case 3:
                request.labels[source.choice(("", "os", "x" * 129))] = source.choice(("a", _LONG))
            case 4:
                request.devices.add(
                    kind="gpu", key=source.choice(("GPU-2", "", "k" * 97, "\U0001f525" * 25))
                )
            case _:
                number = source.choice((1, 65535, 0, 2**31))
                request.signals.add(
                    signal_id=number, name=source.choice(("host.x_count", "x", _LONG)), kind="gauge"
                )
    try:
        check_request(request)
    except InvalidArgument as error:
        assert 0 < len(str(error)) < 512
        return REFUSED
    assert len(request.node) <= 253 and request.node.isascii()
    return ACCEPTED


def fuzz_session(source: random.Random) -> str:
    """An aggregator's answer, damaged: the answer, or SessionError in printable words."""
    session = ClientSession("127.0.0.1:7600")
    call = session.call("RegisterNode", RegisterNodeRequest(node="host-1"))
    data = _answer(session.data_to_send(), call)
    data = flipped(data, source) if source.random() < 0.8 else data
    try:
        for index in range(0, len(data), step := source.randrange(1, 40)):
            session.receive(data[index : index + step])
    except SessionError as error:
        assert str(error).isprintable() and len(str(error)) < 2048
        return REFUSED
    return ACCEPTED


def _answer(asked: bytes, call: int) -> bytes:
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    server.receive_data(asked)
    body = RegisterNodeResponse(
        node="nodes/host-1", session="s", credit_frames=8
    ).SerializeToString()
    server.send_headers(call, [(":status", "200"), ("content-type", "application/grpc")])
    server.send_data(call, b"\0" + len(body).to_bytes(4, "big") + body)
    server.send_headers(call, [("grpc-status", "0")], end_stream=True)
    return server.data_to_send()


TARGETS = {
    "event-lines": fuzz_event_lines,
    "journal": fuzz_journal,
    "manifest": fuzz_manifest,
    "segments": fuzz_segments,
    "run": fuzz_run,
    "inventory": fuzz_inventory,
    "settings": fuzz_settings,
    "addresses": fuzz_addresses,
    "events": fuzz_events,
    "registration": fuzz_registration,
    "session": fuzz_session,
}
