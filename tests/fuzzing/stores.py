"""Files from other hands that an aggregator reads: manifests of backups, heads and marks of stores, journals."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

from gangline.aggregator.store import duckdb_header, durability_mark
from gangline.aggregator.store.journal import (
    StoredEvent,
    encode_record,
    parse_records,
    salvage_events,
)
from gangline.aggregator.store.maintenance import backup_files
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.fuzzing.damage import ACCEPTED, REFUSED, damaged, flipped

MANIFEST = json.dumps(
    {
        "format": 1, "as_of_ns": 1_795_168_800 * 10**9, "host": "h", "gangline": "0.1.0", "duckdb": "1.5.5",
        "schema_version": 2, "rows": 17, "access": False, "gone": ["segments/a.parquet"],
        "files": {"gangline.duckdb": {"size_bytes": 12288, "sha256": "ab" * 32}},
    }
).encode()  # fmt: skip
MARK = durability_mark.encode_mark(
    durability_mark.DurabilityMark(7, 4711, 1_795_168_800 * 10**9, b"w" * 24)
)
_HEADS = b"".join(struct.pack("<8xQ8x8xQQ", n, 12, 262_144).ljust(4096, b"\0") for n in (6, 7))
HEAD = (bytes(8) + b"DUCK" + struct.pack("<Q", 64)).ljust(4096, b"\0") + _HEADS
EVENTS = [StoredEvent("a", 1, 1, HealthEvent(event_id=f"e{n}", message="m" * n)) for n in range(6)]
RECORDS = [encode_record(event) for event in EVENTS]


def fuzz_manifest(source: random.Random) -> str:
    """Files within the backup's folder, or an error."""
    try:
        parsed = backup_files.parse(source.choice((damaged, flipped))(MANIFEST, source))
    except backup_files.NoManifestError as error:
        assert str(error).isprintable() and len(str(error)) < 400, error
        return REFUSED
    inside = Path("/backup").resolve()
    for name in parsed.files:
        assert (inside / name).resolve().is_relative_to(inside) and str(inside / name).encode()
    assert parsed.as_of and parsed.size_bytes >= 0
    return ACCEPTED


def fuzz_mark(source: random.Random) -> str:
    """The mark as written, or none; its text is printable with any file."""
    parsed = durability_mark.parse_mark(source.choice((damaged, flipped))(MARK, source))
    if parsed is None:
        return REFUSED
    assert parsed == durability_mark.parse_mark(MARK)
    other = duckdb_header.Header(source.randrange(10), source.randrange(1 << 40))
    assert parsed.loss_message(other, source.randrange(9999), b"x", Path("/s")).isprintable()
    return ACCEPTED


def fuzz_head(source: random.Random) -> str:
    """The fields of the head, or None for a file of another kind."""
    parsed = duckdb_header.parse_header(flipped(HEAD, source))
    if parsed is None:
        return REFUSED
    assert parsed.size_bytes >= duckdb_header.HEAD_BYTES and parsed.iteration >= 0
    return ACCEPTED


def fuzz_journal(source: random.Random) -> str:
    """Every intact record is read, before and after the damage, and no other record."""
    index = source.randrange(len(RECORDS))
    pieces = [*RECORDS[:index], flipped(RECORDS[index], source), *RECORDS[index + 1 :]]
    data = b"".join(pieces)
    read = list(parse_records(data))
    end = read[-1][1] if read else 0
    parsed = [event for event, _ in read] + list(salvage_events(data, end))
    names = [event.event.event_id for event in parsed]
    assert set(names) <= {event.event.event_id for event in EVENTS}
    assert {f"e{n}" for n in range(len(EVENTS)) if n != index} <= set(names)
    return ACCEPTED if len(names) == len(EVENTS) else REFUSED


TARGETS = {
    "backup-manifest": fuzz_manifest,
    "store-mark": fuzz_mark,
    "store-head": fuzz_head,
    "journal-salvage": fuzz_journal,
}
