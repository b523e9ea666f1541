"""The kernel's log: records, lines, and what a line of NVIDIA's driver says."""

from __future__ import annotations

import random

from gangline.agent.hardware import kmsg
from gangline.agent.kernel_log.checkpoint_file import (
    CheckpointFile,
    LogPosition,
    format_position,
    parse_position,
)
from gangline.agent.kernel_log.gpu_rules import XidDecoder
from gangline.agent.kernel_log.incidents import OPEN_MAX
from gangline.agent.kernel_log.reader import LogReader
from gangline.agent.kernel_log.record import (
    ATTRIBUTES_MAX,
    NAME_CHARACTERS_MAX,
    VALUE_CHARACTERS_MAX,
    ParsedLine,
)
from gangline.agent.kernel_log.rules import classify
from gangline.agent.kernel_log.timestamps import TimestampConverter
from gangline.aggregator.ingest.sessions import check_events
from gangline.contract.nvml_fields import fields_of, parse_driver_version
from gangline.contract.signal import Kind
from gangline.contract.signals import BY_NAME
from gangline.contract.wire.telemetry_pb2 import HealthEvent, ReportEventsRequest
from gangline.contract.xid import policy
from gangline.contract.xid.decode import decode, parse_line
from tests.fuzzing.damage import ACCEPTED, REFUSED, check, damaged, flipped

#: A line of each kind that becomes an event, and a line that does not.
LINES = (
    (
        b"NVRM: Xid (PCI:0000:9B:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC response "
        b"from GPU4 GSP! Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4)."
    ),
    b"NVRM: Xid (PCI:0000:03:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    (
        b"NVRM: Xid (PCI:0000:03:00): 74, pid=<unknown>, name=<unknown>, NVLink: fatal error detected on link 6"
        b"(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
    ),
    (
        b"NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 "
        b"0x00000000 0x00000000 0x00000000)"
    ),
    b"NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
    b"NVRM: Xid (PCI:0008:01:00): 94, Contained: CE User Channel (0x9). RST: No, D-RST: No",
    b"NVRM: Xid (PCI:0000:9b:00): 63, Row remapper: remapped row 0x1f0 at partition 3",
    b"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12020, Fatal, Link 46 egress sequence ID error (First)",
    b"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12020, Severity 1 Engine instance 46 Sub-engine instance 00",
    b"NVRM: GPU 0000:0A:00.0: GPU has fallen off the bus.",
    b"pcieport 0000:80:01.1: AER: Uncorrectable (Fatal) error message received from 0000:81:00.0",
    b"nvidia 0000:81:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    b"{12}[Hardware Error]: event severity: fatal",
    b"mce: [Hardware Error]: CPU 17: Machine Check: 0 Bank 7: 8c00004000010091",
    b"EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x1b41 grain:32)",
    b"mlx5_core 0000:98:00.0 ens1f0np0: Link down",
    b"mlx5_core 0000:98:00.0: poll_health:812:(pid 0): device's health compromised - reached miss count",
    b"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task_memcg=/slurm/job_1,task=python3,pid=4711,uid=1000",
    b"Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:2kB, file-rss:0kB, UID:1000",
    b"INFO: task nvidia-smi:4711 blocked for more than 120 seconds.",
    b"watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4711]",
    b"EXT4-fs error (device nvme0n1p2): ext4_find_entry:1463: inode #2: comm bash: reading directory lblock 0",
    b"blk_update_request: critical medium error, dev nvme1n1, sector 123456 op 0x0:(READ) flags 0x0",
    b"nvme nvme0: I/O 12 QID 3 timeout, aborting",
    b"Kernel panic - not syncing: Fatal exception",
    b"usb 1-1: new high-speed USB device number 4 using xhci_hcd",
)
BOOT = bytes(range(16))

_ROW = b'reason = "XID_FATAL"\naction = "drain and reset the GPU"\nsource = "catalogue"\nmessage = "a, b"\nmnemonic = "X"\n'


class _StoppedClock:
    def boottime_ns(self) -> int:
        return 10**12

    def wall_ns(self) -> int:
        return 1_760_000_000_000_000_000


def fuzz_records(source: random.Random) -> str:
    """Records of /dev/kmsg: a record within its limits, or ValueError in short words."""
    line = source.choice(LINES)
    data = b"%d,%d,%d,-;%s\n SUBSYSTEM=pci\n DEVICE=+pci:0000:9b:00.0\n" % (
        4,
        source.getrandbits(40),
        7,
        line,
    )
    data = damaged(data, source)
    assert b"".join(kmsg.split_records(data)) == data
    try:
        record = kmsg.parse_record(data[: kmsg.RECORD_BYTES_MAX])
    except ValueError as error:
        assert 0 < len(str(error)) < 256
        return REFUSED
    check(record._asdict())
    assert len(record.device) <= kmsg.DEVICE_CHARACTERS_MAX
    return ACCEPTED


def fuzz_lines(source: random.Random) -> str:
    """Lines of up to 64 kB: an event of the catalogue with bounded, printable words, or none."""
    text = damaged(source.choice(LINES), source).decode(errors="replace")
    notice = classify(text)
    if notice is None:
        return REFUSED
    _check_notice(notice)
    _check_notice(
        XidDecoder(lambda: source.choice(("575.57.08", "", "garbage", "9" * 300))).decode(
            notice, text
        )
    )
    return ACCEPTED


def _check_notice(notice: ParsedLine) -> None:
    assert BY_NAME[notice.name].kind is Kind.EVENT
    assert (
        0 <= notice.code < 1 << 32
        and 0 <= notice.process_id < 1 << 32
        and 0 <= notice.occurrences < 1 << 32
    )
    assert len(notice.attributes) <= ATTRIBUTES_MAX
    assert notice.device and len(notice.device) <= NAME_CHARACTERS_MAX
    assert len(notice.process_name) <= NAME_CHARACTERS_MAX
    texts = [notice.device, notice.process_name, *notice.attributes.values()]
    assert all(word.isprintable() and len(word) <= VALUE_CHARACTERS_MAX for word in texts), texts


def fuzz_follower(source: random.Random) -> str:
    """A whole log of damaged records: nothing raised, few events, each of which the aggregator takes."""
    events: list[HealthEvent] = []

    def tell(event: HealthEvent) -> bool:
        events.append(event)
        return True

    follower = LogReader(
        BOOT,
        tell,
        CheckpointFile(None),
        _StoppedClock(),
        TimestampConverter(),
        XidDecoder(lambda: "575.57.08").decode,
    )
    follower.on_open()
    sequence = source.getrandbits(20)
    for _ in range(source.choice((1, 2, 20))):
        sequence += source.choice((1, 1, 1, 2, 1000, 0, -50, 2**40))
        record = b"%d,%d,%d,%s;" % (
            source.choice((0, 4, 12)),
            sequence,
            sequence,
            source.choice((b"-", b"c", b"+")),
        )
        follower.feed(
            damaged(record + source.choice(LINES) + b"\n", source)[: kmsg.RECORD_BYTES_MAX],
            live=True,
        )
    follower.flush_due()
    follower.finish()
    assert follower.read_count <= 20 and len(follower.incidents) <= OPEN_MAX
    for event in events:
        check_events(ReportEventsRequest(events=[event]))
        assert event.name in BY_NAME
    return ACCEPTED if events else REFUSED


def fuzz_xid(source: random.Random) -> str:
    """The event of a line's code: within the limits, with a fixed message, and the same twice."""
    line = parse_line(damaged(source.choice(LINES), source).decode(errors="replace"))
    if line is None:
        return REFUSED
    version = source.choice(("575.57.08", "570.1", "", "N/A", "9" * 200))
    decoded = decode(line.code, line.message, version, line.table)
    assert decoded == decode(line.code, line.message, version, line.table)
    assert len(decoded.attributes) <= ATTRIBUTES_MAX and len(decoded.process_name) <= 100
    assert all(
        value.isprintable() and len(value) <= 120 for value in decoded.attributes.values()
    ), decoded
    assert decoded.message.isprintable() and len(decoded.message) < 1 << 16
    assert decoded.action and 0 <= decoded.process_id <= 4_194_304
    return ACCEPTED


def fuzz_xid_table(source: random.Random) -> str:
    """The policy's own file, damaged by an operator: rows, or ValueError that names the code."""
    data = damaged(
        b'[[xid]]\ncode = 94\nseverity = "fatal"\nclears = "reset"\nscope = "gpu"\n' + _ROW, source
    )
    try:
        rows = policy.parse(data.decode(errors="replace"))
    except ValueError as error:
        assert str(error)
        return REFUSED
    assert all(isinstance(row.code, int) for row in rows)
    return ACCEPTED


def fuzz_position(source: random.Random) -> str:
    """The read position of the log, after a bad disk: the written position, or ValueError."""
    event = HealthEvent(event_id="kmsg-1", name="gpu.xid", code=94, message="x")
    data = format_position(
        LogPosition("ab" * 16, 12345, 1, ((("gpu.xid", "0000:9b:00.0", 94, ""), event),))
    )
    try:
        position = parse_position(source.choice((damaged, flipped))(data, source))
    except ValueError as error:
        assert str(error)
        return REFUSED
    assert 0 <= position.sequence < 1 << 64 and isinstance(position.boot_id, str)
    return ACCEPTED


def fuzz_driver_version(source: random.Random) -> str:
    """The driver's version decides the field ids: an unreadable version counts as the newest, never
    as one in between.
    """
    version_text = damaged(b"575.57.08", source).decode(errors="replace")
    version = parse_driver_version(version_text)
    fields = fields_of(version_text)
    assert all(0 < field < 1 << 16 for field, _ in fields.values())
    return REFUSED if version is None else ACCEPTED


TARGETS = {
    "kmsg-records": fuzz_records,
    "kernel-lines": fuzz_lines,
    "kernel-log": fuzz_follower,
    "xid": fuzz_xid,
    "xid-table": fuzz_xid_table,
    "kmsg-position": fuzz_position,
    "driver-version": fuzz_driver_version,
}
