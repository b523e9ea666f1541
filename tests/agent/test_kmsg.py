"""Records of /dev/kmsg: the kernel's format is read exactly, other data is refused with a message."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.hardware.kmsg import (
    KERNEL_FACILITY,
    RECORD_BYTES_MAX,
    Kmsg,
    KmsgRecord,
    PlainFile,
    open_log,
    parse_record,
    split_records,
)

REAL = Path("/dev/kmsg")


def escaped(text: bytes) -> bytes:
    """Return a line as the kernel escapes it: `\\xNN` for the backslash and unprintable bytes."""
    return b"".join(
        bytes((byte,)) if 32 <= byte < 127 and byte != 0x5C else b"\\x%02x" % byte for byte in text
    )


def test_a_record_with_its_dictionary() -> None:
    """The driver's line has the event, the dictionary has the device."""
    data = (
        b"3,4711,90211344,-;mlx5_core 0000:98:00.0: poll_health:812: no reply\n"
        b" SUBSYSTEM=pci\n DEVICE=+pci:0000:98:00.0\n"
    )
    assert parse_record(data) == KmsgRecord(
        0, 3, 4711, 90211344, False,
        "mlx5_core 0000:98:00.0: poll_health:812: no reply", "+pci:0000:98:00.0",
    )  # fmt: skip


def test_further_fields_of_later_kernels_are_passed_over() -> None:
    """CONFIG_PRINTK_CALLER adds the caller; the format allows more fields."""
    record = parse_record(b"6,339,5140900,-,caller=T1,cpu=3;NET: Registered\n")
    assert (record.sequence, record.text) == (339, "NET: Registered")


def test_facility_and_level_come_apart() -> None:
    """A user who imitates an XID gets facility 1; the prefix is 8 x 1 + 6."""
    assert parse_record(b"14,1,2,-;NVRM: Xid (PCI:0000:9b:00): 79\n")[:2] == (1, 6)
    assert parse_record(b"191,1,2,-;x")[:2] == (23, 7)


def test_fragments_say_so() -> None:
    assert parse_record(b"6,1,2,c;one\n").is_fragment
    assert parse_record(b"6,2,2,+;two\n").is_fragment
    assert not parse_record(b"6,3,2,-;three\n").is_fragment


def test_escapes_are_undone_and_what_is_no_text_is_marked() -> None:
    """A device's serial number was garbage, and the line about it must still be reported."""
    record = parse_record(rb"4,1,2,-;C:\x5cx41 \xc3\xa4 \xff\x0aend" + b"\n")
    assert record.text == "C:\\x41 ä �\nend"
    assert parse_record(b"4,1,2,-;raw \xff\n").text == "raw �"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"garbage",
        b"6,1,2;no flags",
        b"6,1,2,-",
        b"-6,1,2,-;x",
        b"6,,2,-;x",
        b"6,99999999999999999999999,2,-;x",
        b"\xff\xfe,1,2,-;x",
        b" 6,1,2,-;x",
    ],
)
def test_what_is_no_record_is_refused_in_words(data: bytes) -> None:
    """A stand-in for /dev/kmsg in a container returns something else."""
    with pytest.raises(ValueError, match="not a record of the kernel log"):
        parse_record(data)


def test_a_line_of_64_kilobytes() -> None:
    """A driver dumped its registers into one line."""
    record = parse_record(b"6,1,2,-;" + b"x" * RECORD_BYTES_MAX)
    assert len(record.text) == RECORD_BYTES_MAX


@given(st.binary(max_size=400))
def test_no_bytes_raise_anything_but_value_error(data: bytes) -> None:
    """The reader continues after any record."""
    try:
        record = parse_record(data)
    except ValueError:
        return
    record.text.encode()
    assert record.sequence >= 0 and 0 <= record.level < 8


@given(
    prefix=st.integers(0, 191),
    sequence=st.integers(0, 2**63),
    microseconds=st.integers(0, 2**62),
    text=st.binary(max_size=200),
    cut=st.integers(0, 80),
)
def test_kernel_lines(prefix: int, sequence: int, microseconds: int, text: bytes, cut: int) -> None:
    """Any line of any driver; cut off anywhere, it is a shorter line or empty."""
    data = b"%d,%d,%d,-;%b\n SUBSYSTEM=pci\n DEVICE=+pci:0000:9b:00.0\n" % (
        prefix, sequence, microseconds, escaped(text),
    )  # fmt: skip
    record = parse_record(data)
    assert record[:4] == (prefix >> 3, prefix & 7, sequence, microseconds)
    assert record.text == text.decode("utf-8", "replace")
    assert record.device == "+pci:0000:9b:00.0"
    try:
        short = parse_record(data[:cut])
    except ValueError:
        return
    assert short.sequence == sequence


@given(st.lists(st.sampled_from([b"6,1,2,-;a\n", b"6,2,3,-;b\n DEVICE=x\n", b"6,3,3,-;c"])))
def test_a_kept_log_is_split_into_its_records(records: list[bytes]) -> None:
    """A host folder has its log in a file."""
    content = b"".join(r if r.endswith(b"\n") else r + b"\n" for r in records)
    assert [r.rstrip(b"\n") for r in split_records(content)] == [r.rstrip(b"\n") for r in records]


def test_a_socket_of_records_is_read_as_the_device_is() -> None:
    """Empty is BlockingIOError, the end is b"" (which the device does not have)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    source = Kmsg(ours.detach())
    with pytest.raises(BlockingIOError):
        source.read()
    theirs.send(b"6,1,2,-;one\n DEVICE=x\n")
    theirs.send(b"6,2,2,-;two\n")
    assert parse_record(source.read()).text == "one"
    assert parse_record(source.read()).text == "two"
    theirs.close()
    assert source.read() == b""
    source.close()


def test_a_plain_file_has_an_end(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_bytes(b"6,1,2,-;one\n6,2,2,-;two\n")
    source = open_log(tmp_path / "kmsg")
    assert isinstance(source, PlainFile) and source.fileno() == -1
    assert [source.read(), source.read(), source.read()] == [
        b"6,1,2,-;one\n",
        b"6,2,2,-;two\n",
        b"",
    ]
    source.close()


def _real() -> Kmsg:
    try:
        source = open_log(REAL)
        source.read()
    except BlockingIOError:
        pytest.skip("the kernel's log is empty here")
    except OSError as error:
        pytest.skip(f"{REAL}: {error.strerror}")
    if not isinstance(source, Kmsg):
        pytest.skip(f"{REAL} is no device here")
    return source


def test_the_log_of_this_machine() -> None:
    """The kernel of this machine writes the expected format."""
    source = _real()
    sequences = []
    while True:
        try:
            sequences.append(parse_record(source.read()).sequence)
        except BlockingIOError:
            break
        except OSError as error:
            assert error.errno == errno.EPIPE  # overwritten during the read
    source.close()
    assert sequences == sorted(set(sequences))


def test_a_user_cannot_pass_for_the_kernel() -> None:
    """Any process that may write to /dev/kmsg could claim that a GPU fell off the bus."""
    source = _real()
    mark = f"gangline-test-{os.getpid()}"
    try:
        with open(REAL, "wb", buffering=0) as log:
            log.write(f"<2>NVRM: Xid (PCI:0000:9b:00): 79, {mark}\n".encode())
    except OSError as error:
        pytest.skip(f"{REAL} is not for us to write: {error.strerror}")
    ours = []
    while True:
        try:
            record = parse_record(source.read())
        except BlockingIOError:
            break
        except OSError:
            continue
        if mark in record.text:
            ours.append(record)
    source.close()
    if not ours:
        pytest.skip("the kernel limits how many records a user may write")
    assert all(record.facility != KERNEL_FACILITY for record in ours)
