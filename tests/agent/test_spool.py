"""The spool: nothing without a receipt is lost unless counted, and no number names two frames."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gangline.agent.spool.lockdir import FolderError
from gangline.agent.spool.segment import FileSegment
from gangline.agent.spool.spool import JUMP_SEQUENCES, Spool
from tests.processes import GUARD_SECONDS

BYTES_MAX = 32_768
SEGMENT_BYTES = 4096
BOOT = b"b" * 16

APPENDER = """
import sys
from pathlib import Path
from gangline.agent.spool.spool import Spool
spool = Spool.open(
    Path(sys.argv[1]), bytes_max=1 << 24, segment_bytes=4096, boot_id=b"b" * 16, owner="m"
)
while True:
    sequence = spool.next_sequence()
    spool.append(sequence, b"%d," % sequence * 50)
    sys.stdout.write("%d\\n" % sequence)
    sys.stdout.flush()
"""
HOLDER = """
import os, sys, time
from pathlib import Path
from gangline.agent.spool.lockdir import lock_folder
lock_folder(Path(sys.argv[1]))
if os.fork() == 0:
    os.setpgid(0, 0)
    print(os.getpid(), flush=True)
    time.sleep(600)
time.sleep(600)
"""
FULL_DISK = """
import sys
from pathlib import Path
from gangline.agent.spool.spool import Spool
root = Path(sys.argv[1])
def read(spool):
    found = {}
    while rows := spool.pending(max(found, default=0), 50):
        found.update(rows)
    return found
def opened():
    return Spool.open(
        root / "spool", bytes_max=1 << 24, segment_bytes=16384, boot_id=b"b" * 16, owner="m"
    )
def append(spool, count):
    for _ in range(count):
        spool.append(spool.next_sequence(), b"%6d" % spool.next_sequence() * 100)
spool = opened()
append(spool, 100)
other = open(root / "other", "wb", buffering=0)
try:
    while True:
        other.write(bytes(4096))
except OSError as error:
    assert error.errno == 28, error
append(spool, 300)
found = read(spool)
assert spool.dropped_frames > 0 and sorted(found) == list(range(401 - len(found), 401)), found.keys()
assert len(found) + spool.dropped_frames == 400
assert all(frame == b"%6d" % s * 100 for s, frame in found.items())
errors = spool.write_errors
spool.close()
spool = opened()  # on the full disk
assert spool.next_sequence() >= 401
other.truncate(0)
append(spool, 100)
assert spool.write_errors == 0 and len(read(spool)) >= 100
spool.close()
other.close()
print("went through", errors)
"""


#: Spools of the running test.
_OPENED: list[Spool] = []


def open_spool(folder: Path, *, boot_id: bytes = BOOT, **changes: Any) -> Spool:
    """Open a spool that ends with the test."""
    values: dict[str, Any] = {
        "bytes_max": BYTES_MAX,
        "segment_bytes": SEGMENT_BYTES,
        "owner": "this machine",
    }
    _OPENED.append(Spool.open(folder, boot_id=boot_id, **values | changes))
    return _OPENED[-1]


@pytest.fixture(autouse=True)
def closed_spools() -> Iterator[None]:
    yield
    while _OPENED:
        _OPENED.pop().close()


def append(spool: Spool, *frames: bytes) -> list[int]:
    """Append frames like the daemon; return their sequences."""
    sequences = []
    for frame in frames:
        sequences.append(spool.next_sequence())
        spool.append(sequences[-1], frame)
    return sequences


def everything(spool: Spool, count_max: int = 7) -> dict[int, bytes]:
    """Read the whole backlog in small steps."""
    result: dict[int, bytes] = {}
    while rows := spool.pending(max(result, default=0), count_max):
        assert [sequence for sequence, _ in rows] == sorted({sequence for sequence, _ in rows})
        assert len(rows) <= count_max and rows[0][0] > max(result, default=0)
        result.update(rows)
    return result


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.seg"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


class SpoolAgainstModel(RuleBasedStateMachine):
    """Any order of appends, receipts, restarts, power cuts and damage, against a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="gangline-spool-"))
        self.boot = 0
        self.waiting: dict[int, bytes] = {}
        self.history: dict[int, bytes] = {}  # every frame that ever had a number
        self.counted = 0

    @initialize()
    def begin(self) -> None:
        self.spool = self.open()

    def open(self) -> Spool:
        return open_spool(self.folder, boot_id=bytes([self.boot]) * 16)

    @rule(frame=st.binary(max_size=40), length=st.sampled_from([1, 20, 60]))
    def append(self, frame: bytes, length: int) -> None:
        sequence = self.spool.next_sequence()
        assert sequence not in self.history
        self.spool.append(sequence, frame * length)
        self.waiting[sequence] = self.history[sequence] = frame * length

    @rule(data=st.data(), count=st.integers(0, 9))
    def receipt(self, data: st.DataObject, count: int) -> None:
        first = data.draw(st.sampled_from([0, *self.history]))
        before = self.spool.acknowledged_frames
        self.spool.acknowledge(first, first + count)
        receipted = self.waiting.keys() & range(first, first + count + 1)
        assert self.spool.acknowledged_frames - before == len(receipted)
        for sequence in receipted:
            del self.waiting[sequence]

    @rule(data=st.data())
    def refused(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from([0, *self.history]))
        before = self.spool.refused_frames
        self.spool.mark_refused(sequence, "not today")
        expected = self.waiting.pop(sequence, None) is not None
        assert self.spool.refused_frames - before == expected

    @rule(new_boot=st.booleans())
    def restart(self, new_boot: bool) -> None:
        self._reopen(new_boot)
        assert self.waiting.items() <= everything(self.spool).items()
        self._take_stock()

    @rule(data=st.data(), truncate=st.booleans())
    def damage(self, data: st.DataObject, truncate: bool) -> None:
        self.spool.close()
        path = data.draw(st.sampled_from(segments(self.folder)))
        content = bytearray(path.read_bytes())
        position = data.draw(st.integers(0, max(len(content) - 1, 0)))
        if truncate:
            del content[position:]
        elif content:
            content[position] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        self._reopen(new_boot=truncate)  # a power cut shortens files, a bad cell flips bits
        self._take_stock()

    def _reopen(self, new_boot: bool) -> None:
        self.spool.close()
        run_id = self.spool.run_id
        self.boot += new_boot
        self.spool = self.open()
        assert self.spool.run_id == run_id
        assert self.spool.next_sequence() > max(self.history, default=0)

    def _take_stock(self) -> None:
        """Update the model: receipted frames may reappear, but never with other content."""
        self.waiting = everything(self.spool)
        assert self.waiting.items() <= self.history.items()
        self.counted = self.spool.dropped_frames

    @invariant()
    def nothing_is_lost_uncounted(self) -> None:
        result = everything(self.spool)
        lost = sorted(set(self.waiting) - set(result))
        assert len(lost) == self.spool.dropped_frames - self.counted
        assert not lost or not result or lost[-1] < min(result), "not the oldest went first"
        self.waiting = {s: frame for s, frame in self.waiting.items() if s not in lost}
        self.counted = self.spool.dropped_frames
        assert result == self.waiting

    @invariant()
    def it_is_bounded_and_knows_its_size(self) -> None:
        on_disk = sum(path.stat().st_size for path in segments(self.folder))
        assert on_disk == self.spool.disk_bytes <= BYTES_MAX
        assert self.spool.unacknowledged_frames == len(self.waiting)
        assert self.spool.bytes == sum(16 + len(frame) for frame in self.waiting.values())

    def teardown(self) -> None:
        self.spool.close()
        shutil.rmtree(self.folder)


TestSpoolAgainstModel = SpoolAgainstModel.TestCase
TestSpoolAgainstModel.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, print_blob=True
)


@pytest.fixture
def spool(folder: Path) -> Spool:
    return open_spool(folder)


def test_kill_9_loses_nothing_that_append_took(folder: Path) -> None:
    """The OOM killer kills the agent during append, repeatedly."""
    seen = 0
    for count in (1, 40, 333):
        with subprocess.Popen(
            [sys.executable, "-c", APPENDER, str(folder)], stdout=subprocess.PIPE, text=True
        ) as agent:
            assert agent.stdout is not None
            for _ in range(count):
                seen = int(agent.stdout.readline())
            agent.send_signal(signal.SIGKILL)
            seen = max([seen, *map(int, agent.stdout.read().split("\n")[:-1])])
    spool = open_spool(folder, bytes_max=1 << 24, owner="m")
    result = everything(spool, 100)
    assert all(frame == b"%d," % sequence * 50 for sequence, frame in result.items())
    assert result.keys() >= set(range(1, seen + 1))


def test_numbers_go_on_where_they_were(spool: Spool, folder: Path) -> None:
    """A restarted agent continues its run, even if every frame had its receipt."""
    run_id = spool.run_id
    assert append(spool, b"a", b"b") == [1, 2]
    spool.acknowledge(1, 2)
    spool.close()
    spool = open_spool(folder)
    assert (spool.run_id, spool.next_sequence(), spool.notice) == (run_id, 3, "")


def test_a_torn_record_is_cut_off_and_counted(spool: Spool, folder: Path) -> None:
    """Killed in the middle of the write: half a frame remains at the end."""
    append(spool, b"whole", b"torn in the middle")
    spool.close()
    [path] = segments(folder)
    os.truncate(path, path.stat().st_size - 5)
    spool = open_spool(folder)
    assert (everything(spool), spool.dropped_frames) == ({1: b"whole"}, 1)
    assert spool.next_sequence() == JUMP_SEQUENCES
    assert "29 damaged bytes cut off" in spool.notice
    assert spool.last_drop == f"{path} was damaged"


def test_a_flipped_bit_costs_its_frame_alone(spool: Spool, folder: Path) -> None:
    """A cell of the disk failed under the backlog."""
    append(spool, b"aaaa", b"bbbb", b"cccc")
    [path] = segments(folder)
    path.write_bytes(path.read_bytes().replace(b"bbbb", b"bbcb"))
    assert (everything(spool), spool.dropped_frames) == ({1: b"aaaa", 3: b"cccc"}, 1)
    assert spool.last_drop == f"frame 2 was damaged in {folder}"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_foreign_name_stops_no_agent(spool: Spool, folder: Path, make: Any) -> None:
    """A folder with a segment's name: "Is a directory", without the name, and the agent did not start."""
    append(spool, b"a")
    spool.close()
    foreign = folder / f"{77:020}.seg"
    make(foreign)
    spool = open_spool(folder)
    assert spool.notice == f"{foreign} is not a file and is ignored; move it away"
    assert everything(spool) == {1: b"a"} and foreign.lstat()
    spool.close()
    (folder / "meta.json").unlink()
    (folder / "meta.json").mkdir()
    with pytest.raises(FolderError, match=r"cannot be used: meta\.json: Is a directory"):
        open_spool(folder)


def test_after_a_power_cut_numbers_jump(spool: Spool, folder: Path) -> None:
    """Power failed before the page cache was on disk: receipted numbers must not come again."""
    append(spool, b"a", b"b")
    spool.close()
    for boot, first in ((b"c" * 16, JUMP_SEQUENCES), (b"d" * 16, 2 * JUMP_SEQUENCES)):
        spool = open_spool(folder, boot_id=boot)
        assert spool.next_sequence() == first
        spool.close()
    spool = open_spool(folder, boot_id=b"d" * 16)
    assert append(spool, b"c") == [2 * JUMP_SEQUENCES]
    assert everything(spool) == {1: b"a", 2: b"b", 2 * JUMP_SEQUENCES: b"c"}


def test_a_cloned_image_begins_a_run_of_its_own(spool: Spool, folder: Path) -> None:
    """Sixty hosts were started from one disk image that had run an agent: one run id, sixty hosts."""
    run_id = spool.run_id
    append(spool, b"a", b"b")
    spool.close()
    clone = open_spool(folder, owner="that machine")
    assert clone.run_id != run_id
    assert (everything(clone), clone.dropped_frames, clone.next_sequence()) == ({}, 2, 1)
    assert "this machine" in clone.notice and "2 frames" in clone.notice


def test_a_length_that_swallows_records_costs_one_frame(spool: Spool, folder: Path) -> None:
    """One flipped bit: record 1 reached to the end of the file, and number 2 was used again."""
    assert append(spool, b"", bytes(240)) == [1, 2]
    run_id = spool.run_id
    spool.close()
    (path,) = segments(folder)
    content = bytearray(path.read_bytes())
    content[1] ^= 1
    path.write_bytes(content)
    spool = open_spool(folder)
    assert spool.run_id == run_id
    assert spool.next_sequence() == 3
    assert (everything(spool), spool.dropped_frames) == ({2: bytes(240)}, 1)
    assert "1 damaged frames skipped" in spool.notice


@settings(max_examples=150, deadline=None)
@given(data=st.data(), sizes=st.lists(st.integers(0, 700), min_size=1, max_size=40))
def test_flipped_bytes_cost_only_their_frames(data: st.DataObject, sizes: list[int]) -> None:
    """One flipped byte in a length once cost 1,022 frames, and 1 was counted."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "spool"
        spool = open_spool(folder)
        written = {}
        for size in sizes:
            sequence = spool.next_sequence()
            if not data.draw(st.integers(0, 9)):  # some got their receipt in the head
                sequence += data.draw(st.integers(1, 3))
            written[sequence] = bytes((sequence + index) % 7 for index in range(size))
            spool.append(sequence, written[sequence])
        spool.close()
        paths = segments(folder)
        contents = [bytearray(path.read_bytes()) for path in paths]
        places = [
            (file, index) for file, content in enumerate(contents) for index in range(len(content))
        ]
        early = places[: -16 - sizes[-1]]
        contiguous = len(written) == max(written)
        at_once = st.lists(st.sampled_from(early or places), min_size=1, max_size=9, unique=True)
        single = st.sampled_from(places).map(lambda place: [place])
        flips = data.draw(st.one_of(single, at_once) if early and contiguous else single)
        for file, position in flips:
            contents[file][position] ^= data.draw(st.integers(1, 255))
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        spool = open_spool(folder)
        result = everything(spool)
        assert result.items() <= written.items() and list(result) == sorted(result)
        assert len(result) + spool.dropped_frames == len(written)
        assert len(written) - len(result) <= len(flips)
        spool.close()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff\x00", b"[" * 4000, b'{"format": 1}', "no segments"]
)
def test_a_damaged_folder_begins_a_new_run(folder: Path, content: bytes | str) -> None:
    """Without run id the frames may be another run's; `rm *.seg` removed the numbering too."""
    spool = open_spool(folder)
    run_id = spool.run_id
    append(spool, b"a")
    spool.close()
    if isinstance(content, bytes):
        (folder / "meta.json").write_bytes(content)
    for path in segments(folder) if isinstance(content, str) else ():
        path.unlink()
    spool = open_spool(folder)
    assert spool.run_id != run_id
    if isinstance(content, bytes):
        assert spool.dropped_frames == 1 and "meta.json is missing or damaged" in spool.notice
    else:
        assert "all segments are gone" in spool.notice


def test_removed_segments_under_a_running_agent_are_counted(spool: Spool, folder: Path) -> None:
    """The same `rm` while the agent runs: the frames are lost, and none remains waiting."""
    append(spool, b"a", b"b")
    for path in segments(folder):
        path.unlink()
    assert spool.pending(0, 9) == []
    assert (spool.dropped_frames, spool.unacknowledged_frames) == (2, 0)


@settings(max_examples=150)
@given(junk=st.binary(max_size=200), name=st.sampled_from([1, 2, 77, 2**62, 2**63, 2**64 - 1]))
def test_whatever_is_in_the_folder_it_opens(junk: bytes, name: int) -> None:
    """A disk came back from its repair with files of anything."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        open_spool(folder).close()
        (folder / f"{name:020}.seg").write_bytes(junk)
        spool = open_spool(folder)
        [sequence] = append(spool, b"sound")
        assert everything(spool)[sequence] == b"sound"
        spool.close()
        spool = open_spool(folder)
        assert spool.next_sequence() > sequence
        spool.close()


def test_the_newest_frame_is_read_from_memory(spool: Spool, folder: Path) -> None:
    """It is sent within the second of its write; after its receipt it is nowhere."""
    append(spool, b"one", b"two", b"three")
    assert everything(spool, 1) == {1: b"one", 2: b"two", 3: b"three"}
    for segment in segments(folder):
        segment.unlink()
    assert spool.pending(2, 9) == [(3, b"three")]
    spool.acknowledge(3, 3)
    assert spool.pending(2, 9) == []


def test_full_means_the_oldest_first(spool: Spool) -> None:
    """No aggregator for a day: the latest frames remain, and dropped ones are counted."""
    sequences = append(spool, *(b"%4d" % n * 100 for n in range(300)))
    result = everything(spool)
    assert sorted(result) == sequences[-len(result) :]
    assert len(result) * 416 > BYTES_MAX - 2 * SEGMENT_BYTES
    assert (spool.dropped_frames, spool.last_drop) == (300 - len(result), "the spool was full")


@pytest.mark.parametrize(
    ("frames", "receipted", "left"),
    [
        ([b"one", b"two", b"three"], (2, 2), [(1, b"one"), (3, b"three")]),
        ([bytes(2000)] * 4, (1, 2), [(3, bytes(2000)), (4, bytes(2000))]),  # two frames a segment
    ],
    ids=["it was sent once more", "an emptied segment hid the others"],
)
def test_a_receipt_during_the_read(
    spool: Spool,
    monkeypatch: pytest.MonkeyPatch,
    frames: list[bytes],
    receipted: tuple[int, int],
    left: list[tuple[int, bytes]],
) -> None:
    append(spool, *frames)
    read = FileSegment.read

    def slow(segment: FileSegment, sequences: Sequence[int]) -> list[tuple[int, bytes | None]]:
        result = read(segment, sequences)
        spool.acknowledge(*receipted)
        return result

    monkeypatch.setattr(FileSegment, "read", slow)
    assert spool.pending(0, 10) == left
    assert spool.dropped_frames == 0


def test_a_small_spool_has_small_segments(folder: Path) -> None:
    """The newest segment cannot be dropped: with the size of the spool it would break the limit."""
    spool = open_spool(folder, segment_bytes=1 << 20)
    for _ in range(100):
        append(spool, bytes(1000))
        assert spool.disk_bytes <= BYTES_MAX


def test_out_of_descriptors_costs_no_frame(spool: Spool) -> None:
    """Every segment that could not be opened was counted as lost."""
    append(spool, b"one", b"two")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(BlockingIOError):
            spool.pending(0, 10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert spool.dropped_frames == 0
    assert spool.pending(0, 10) == [(1, b"one"), (2, b"two")]


def test_reboots_leave_no_empty_segments_behind(folder: Path) -> None:
    """A host that never wrote a frame: each boot begins a segment, but one is enough."""
    for boot in range(5):
        open_spool(folder, boot_id=bytes([boot]) * 16).close()
    assert len(segments(folder)) == 1


def test_appending_and_sending_at_once(folder: Path) -> None:
    """The daemon appends while the client reads and deletes: nothing is lost, torn or counted."""
    spool = open_spool(folder, bytes_max=1 << 24)
    count = 3000
    frames = [b"%d," % n * 20 for n in range(count)]
    daemon = threading.Thread(target=append, args=(spool, *frames))
    daemon.start()
    result: dict[int, bytes] = {}
    while len(result) < count:
        rows = spool.pending(0, 50)
        result.update(rows)
        for sequence, _ in rows:
            spool.acknowledge(sequence, sequence)
    daemon.join(GUARD_SECONDS)
    assert [result[sequence] for sequence in sorted(result)] == frames
    assert (spool.dropped_frames, spool.unacknowledged_frames) == (0, 0)
    assert len(segments(folder)) == 1


def test_a_frame_too_large_or_a_number_used_before_is_counted(spool: Spool) -> None:
    """`append` never raises, and one number never names two frames."""
    append(spool, b"a")
    spool.append(1, b"again")
    spool.append(2, b"x" * (BYTES_MAX + 1))
    assert (spool.dropped_frames, everything(spool)) == (2, {1: b"a"})
    spool.close()
    spool.append(2, b"after the end")
    assert spool.dropped_frames == 3


def test_another_process_that_holds_the_folder_is_named(spool: Spool, folder: Path) -> None:
    """Two agents on one spool would give one number to two frames."""
    with pytest.raises(FolderError, match=rf"{folder} is in use by process {os.getpid()}"):
        open_spool(folder)
    spool.close()
    open_spool(folder).close()


def test_a_killed_agent_stuck_in_a_driver_does_not_hold_the_folder(folder: Path) -> None:
    """`kill -9` left a zombie that kept the lock: the new agent refused to start."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdout is not None
        stuck = int(agent.stdout.readline())
        try:
            with pytest.raises(FolderError, match=f"in use by process {agent.pid}"):
                open_spool(folder)
            agent.kill()
            os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT)  # dead, but still a zombie
            open_spool(folder).close()
        finally:
            os.kill(stuck, signal.SIGKILL)


@contextmanager
def disk_that_takes_nothing() -> Iterator[None]:
    """Make writes fail with EFBIG because no file may grow, like EIO on a dying disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_takes_nothing_costs_durability_not_frames(spool: Spool, folder: Path) -> None:
    """The disk failed for some minutes: frames remained in memory, then on disk again."""
    append(spool, b"before")
    with disk_that_takes_nothing():
        append(spool, *(b"during %d" % n for n in range(3)))
    append(spool, b"after")
    assert list(everything(spool).values()) == [
        b"before", b"during 0", b"during 1", b"during 2", b"after",
    ]  # fmt: skip
    assert (spool.write_errors, spool.dropped_frames) == (3, 0)
    assert "File too large" in spool.last_error
    spool.acknowledge(1, 5)
    assert spool.unacknowledged_frames == 0
    spool.close()
    spool = open_spool(folder)
    assert spool.next_sequence() == 6


def test_the_window_in_memory_is_bounded(spool: Spool, folder: Path) -> None:
    """The disk stayed broken overnight: the agent must not use up the host's memory."""
    with disk_that_takes_nothing():
        append(spool, *(bytes(20_000) for _ in range(200)))
    assert spool.bytes < 1_200_000
    assert spool.dropped_frames + spool.unacknowledged_frames == 200
    assert max(everything(spool)) == 200
    assert len(segments(folder)) == 1


def test_killed_while_frames_lived_in_memory_numbers_jump(spool: Spool, folder: Path) -> None:
    """Frames 2 to 4 were sent from memory, never on disk; the restarted agent only knew frame 1."""
    append(spool, b"before")
    with disk_that_takes_nothing():
        append(spool, b"x", b"y", b"z")
    spool.close()
    spool = open_spool(folder)
    assert spool.next_sequence() >= JUMP_SEQUENCES


def test_a_full_disk_drops_the_oldest_and_recovers(tmp_path: Path) -> None:
    """Another program's checkpoint filled the disk: ENOSPC, on a file system that is really full."""
    inside = f'mount -t tmpfs -o size=256k none "{tmp_path}" && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside, "sh"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], check=False).returncode
    ):
        pytest.skip("this machine lets us mount no small file system")
    done = subprocess.run(
        [*command, sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=GUARD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "went through" in done.stdout
