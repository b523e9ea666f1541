"""The head of the spool: frames in a memory file system until their receipt, or until a time-out."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from gangline.agent.spool.lockdir import FolderError
from gangline.agent.spool.segment import FileSegment
from gangline.agent.spool.spool import JUMP_SEQUENCES, Spool
from gangline.agent.spool.tiers import (
    CHECK_SECONDS,
    MEMORY_TIER_BYTES_MAX,
    UNBROKEN_NAME,
    WAIT_SECONDS_MAX,
)
from gangline.agent.spool.tiers import SEGMENT_BYTES as SEGMENT_BYTES_OF_HEAD
from gangline.contract import frame as frames
from gangline.contract.block import Block
from tests.agent import test_spool
from tests.agent.test_spool import (
    BOOT,
    SpoolAgainstModel,
    append,
    closed_spools,
    disk_that_takes_nothing,
    everything,
    segments,
)
from tests.processes import GUARD_SECONDS

__all__ = ["closed_spools"]

APPENDER = """
import sys
from pathlib import Path
from gangline.agent.spool.spool import Spool
ticks = iter(range(1 << 30))
spool = Spool.open(
    Path(sys.argv[1]), bytes_max=1 << 24, segment_bytes=4096, boot_id=b"b" * 16, owner="m",
    memory_folder=Path(sys.argv[2]), seconds=lambda: next(ticks) / 10,
)
while True:
    sequence = spool.next_sequence()
    spool.append(sequence, b"%d," % sequence * 50)
    sys.stdout.write("%d\\n" % sequence)
    sys.stdout.flush()
"""


class Seconds:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def open_spool(root: Path, seconds: Seconds | None = None, *, boot_id: bytes = BOOT) -> Spool:
    (root / "memory").mkdir(exist_ok=True)
    return test_spool.open_spool(
        root / "spool",
        boot_id=boot_id,
        memory_folder=root / "memory",
        seconds=seconds or Seconds(),
    )


def aging(root: Path) -> tuple[Spool, Seconds]:
    seconds = Seconds()
    return open_spool(root, seconds), seconds


def kill(spool: Spool) -> None:
    """Leave a spool like `kill -9`: only its lock is released."""
    os.close(spool._lock_descriptor)
    spool._lock_descriptor = -1


def disk_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in segments(root / "spool"))


def plain(sequence: int, run_id: bytes) -> bytes:
    stamp = frames.Stamp(run_id, BOOT, sequence, 1, 2)
    return frames.encode(stamp, [Block("gpu_1s", ["GPU-0"] * 8)], deflate=False)


class HeadAgainstModel(SpoolAgainstModel):
    """The same courses of events with a head; also late receipts, and kills."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Path(tempfile.mkdtemp(prefix="gangline-head-"))
        self.seconds = Seconds()

    def open(self) -> Spool:
        return test_spool.open_spool(
            self.folder,
            boot_id=bytes([self.boot]) * 16,
            memory_folder=self.memory,
            seconds=self.seconds,
        )

    @rule(seconds=st.sampled_from([1.0, WAIT_SECONDS_MAX]))
    def time_passes(self, seconds: float) -> None:
        self.seconds.now += seconds

    @rule()
    def killed(self) -> None:
        following = self.spool.next_sequence()
        kill(self.spool)
        self.spool = self.open()
        assert self.spool.next_sequence() == following, "all numbers are known"
        assert self.waiting.items() <= everything(self.spool).items()
        self._take_stock()

    @rule()
    def the_memory_is_gone(self) -> None:
        """Clear the memory like a reboot; the disk's frames remain, and no number is used again."""
        kill(self.spool)
        for head in self.memory.iterdir():
            shutil.rmtree(head)
        self.boot += 1
        self.spool = self.open()
        assert self.spool.next_sequence() > max(self.history, default=0)
        self._take_stock()

    def teardown(self) -> None:
        super().teardown()
        assert not list(self.memory.iterdir()), "the end leaves nothing in memory"
        self.memory.rmdir()


TestHeadAgainstModel = HeadAgainstModel.TestCase
TestHeadAgainstModel.settings = settings(
    max_examples=30, stateful_step_count=40, deadline=None, print_blob=True
)


def test_while_receipts_come_the_disk_is_left_alone(tmp_path: Path) -> None:
    """Each frame was written and deleted a minute later: 1.5 GB a year for nothing."""
    spool, seconds = aging(tmp_path)
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "spool").iterdir()}
    for _ in range(200):
        (sequence,) = append(spool, b"x" * 1000)
        spool.acknowledge(sequence, sequence)
        seconds.now += 1
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "spool").iterdir()} == before
    in_memory = sum(p.stat().st_size for p in tmp_path.glob("memory/*/*"))
    assert in_memory < 1 << 18, "what has its receipt goes from memory too"


def test_without_receipts_frames_go_on_to_the_disk_deflated(tmp_path: Path) -> None:
    """A night without the aggregator must neither fill the memory nor be lost with it."""
    spool, seconds = aging(tmp_path)
    for _ in range(int(WAIT_SECONDS_MAX)):
        append(spool, plain(spool.next_sequence(), spool.run_id))
        assert disk_bytes(tmp_path) == 0
        seconds.now += 1
    whole = sum(len(frame) for frame in everything(spool).values())
    append(spool, plain(spool.next_sequence(), spool.run_id))
    assert 0 < disk_bytes(tmp_path) < whole / 4
    kept = everything(spool)
    assert sorted(kept) == list(range(1, int(WAIT_SECONDS_MAX) + 2))
    assert all(frames.decode(frame).stamp.sequence == s for s, frame in kept.items())


def test_frames_moved_during_the_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that moved to the disk during a read were taken for receipted."""
    spool, seconds = aging(tmp_path)
    append(spool, b"one", b"two")
    read = FileSegment.read
    seconds.now += WAIT_SECONDS_MAX

    def slow(segment: FileSegment, sequences: Sequence[int]) -> list[tuple[int, bytes | None]]:
        if spool.next_sequence() == 3:
            append(spool, b"three")
        return read(segment, sequences)

    monkeypatch.setattr(FileSegment, "read", slow)
    assert [sequence for sequence, _ in spool.pending(0, 10)] == [1, 2]
    assert spool.dropped_frames == 0


def test_a_late_receipt_frees_what_is_on_the_disk_and_in_memory(tmp_path: Path) -> None:
    """After an outage both must become empty again."""
    spool, seconds = aging(tmp_path)
    append(spool, b"one", b"two")
    seconds.now += WAIT_SECONDS_MAX
    append(spool, b"three")
    assert sorted(everything(spool)) == [1, 2, 3]
    spool.acknowledge(1, 3)
    assert (spool.unacknowledged_frames, spool.bytes, everything(spool)) == (0, 0, {})


def test_the_memory_is_bounded(tmp_path: Path) -> None:
    """Large frames without receipts must not use up memory before they move to the disk."""
    spool = Spool.open(
        tmp_path / "spool", bytes_max=64 << 20, boot_id=BOOT, owner="m", memory_folder=tmp_path,
        seconds=Seconds(),
    )  # fmt: skip
    for _ in range(40):
        append(spool, os.urandom(100_000))
        in_memory = sum(p.stat().st_size for p in tmp_path.glob("gangline-spool-*/*.seg"))
        assert in_memory <= 2 * MEMORY_TIER_BYTES_MAX
    append(spool, os.urandom(MEMORY_TIER_BYTES_MAX - 100))  # too large for the head with its record
    assert len(everything(spool)) == 41


def test_the_end_puts_all_on_the_disk(tmp_path: Path) -> None:
    """An older agent without a head, or a reboot, must find everything."""
    spool = open_spool(tmp_path)
    append(spool, b"one", b"two", b"three")
    spool.acknowledge(2, 2)
    spool.close()
    assert not list((tmp_path / "memory").iterdir())
    older = test_spool.open_spool(tmp_path / "spool")
    assert everything(older) == {1: b"one", 3: b"three"}
    assert older.next_sequence() == 4


def test_an_end_with_nothing_left_keeps_the_numbers(tmp_path: Path) -> None:
    """All frames had receipts and the disk no numbers: they began again at 1."""
    for expected in (1, 2, 3):
        spool = open_spool(tmp_path)
        assert append(spool, b"one") == [expected]
        spool.acknowledge(expected, expected)
        spool.close()


def test_an_older_agent_after_a_kill_gives_out_no_number_twice(tmp_path: Path) -> None:
    """It cannot see the head: it must assume that the disk does not show all numbers."""
    spool = open_spool(tmp_path)
    append(spool, b"one", b"two")
    kill(spool)
    older = test_spool.open_spool(tmp_path / "spool")
    assert append(older, b"older") == [JUMP_SEQUENCES]
    older.close()
    newer = open_spool(tmp_path)
    assert everything(newer, 1) == {1: b"one", 2: b"two", JUMP_SEQUENCES: b"older"}


def test_killed_while_frames_went_on_to_the_disk(tmp_path: Path) -> None:
    """Frames present twice, and once in part, count as one frame each, and none as lost."""
    spool, seconds = aging(tmp_path)
    append(spool, b"one", b"two", b"three")
    memory = next((tmp_path / "memory").iterdir())
    shutil.copytree(memory, tmp_path / "copy")
    seconds.now += WAIT_SECONDS_MAX
    append(spool, b"four")
    kill(spool)
    shutil.rmtree(memory)
    shutil.copytree(tmp_path / "copy", memory)  # the state at the beginning
    (segment,) = (p for p in segments(tmp_path / "spool") if p.stat().st_size)
    os.truncate(segment, segment.stat().st_size - 2)  # in the middle of the third
    spool = open_spool(tmp_path)
    assert everything(spool) == {1: b"one", 2: b"two", 3: b"three"}
    assert (spool.dropped_frames, spool.unacknowledged_frames) == (0, 3)
    assert spool.next_sequence() == 4


def test_a_head_of_another_run_is_not_sent(tmp_path: Path) -> None:
    """The spool was emptied by hand; its folder kept its number, by which the head recognizes it."""
    spool = open_spool(tmp_path)
    append(spool, b"one")
    kill(spool)
    for path in (tmp_path / "spool").iterdir():
        path.unlink()
    spool = open_spool(tmp_path)
    assert everything(spool) == {}
    assert append(spool, b"new") == [1]


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    """Any user can create a folder in /dev/shm, and could make the agent send foreign data."""
    spool = open_spool(tmp_path)
    head = next((tmp_path / "memory").iterdir())
    spool.close()
    head.mkdir(mode=0o777)
    head.chmod(0o777)
    spool = open_spool(tmp_path)
    append(spool, b"one")
    assert "only this user can access" in spool.notice and disk_bytes(tmp_path) > 0
    spool.close()
    head.rmdir()
    head.symlink_to(tmp_path)
    spool = open_spool(tmp_path)
    assert everything(spool) == {1: b"one"} and not list(tmp_path.glob("*.seg"))


def test_without_such_a_folder_the_disk_is_used(tmp_path: Path) -> None:
    """In a container without /dev/shm the spool works as before."""
    spool = test_spool.open_spool(tmp_path / "spool", memory_folder=tmp_path / "none")
    append(spool, b"one")
    assert spool.notice.endswith(
        "none: No such file or directory: frames are written to the disk at once"
    )
    assert disk_bytes(tmp_path) > 0 and (tmp_path / "spool" / UNBROKEN_NAME).exists()


def test_a_folder_that_is_removed_under_way_is_made_again(tmp_path: Path) -> None:
    """The user logged out, logind removed the files in /dev/shm: frames were lost."""
    spool, seconds = aging(tmp_path)
    append(spool, b"one", b"two")
    spool.acknowledge(1, 1)
    (head,) = (tmp_path / "memory").iterdir()
    shutil.rmtree(head)
    seconds.now += CHECK_SECONDS
    append(spool, b"three", b"four")
    assert everything(spool) == {3: b"three", 4: b"four"}
    assert spool.dropped_frames == 1 and disk_bytes(tmp_path) == 0
    kill(spool)
    spool = open_spool(tmp_path, seconds)
    assert everything(spool) == {3: b"three", 4: b"four"}
    assert spool.next_sequence() == 5, "all numbers are known"
    shutil.rmtree(head)
    head.mkdir(mode=0o777)
    head.chmod(0o777)  # another user was faster
    append(spool, b"five")
    assert everything(spool) == {5: b"five"} and disk_bytes(tmp_path) > 0
    assert spool.dropped_frames == 2 and "only this user can access" in spool.last_error
    assert (tmp_path / "spool" / UNBROKEN_NAME).exists()


def test_a_failed_open_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All numbers counted as known when the disk had just lost some: they were used again."""
    spool = open_spool(tmp_path)
    append(spool, b"one", b"two", b"three")
    spool.close()
    (segment,) = segments(tmp_path / "spool")
    (tmp_path / "spool" / UNBROKEN_NAME).unlink()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("gangline.agent.spool.segment.FileSegment.create", full)
        with pytest.raises(FolderError, match="No space left"):
            open_spool(tmp_path)
    assert segments(tmp_path / "spool") == [segment]
    assert not (tmp_path / "spool" / UNBROKEN_NAME).exists()
    spool = open_spool(tmp_path)
    assert append(spool, b"four") == [JUMP_SEQUENCES]


def test_an_end_on_a_disk_that_takes_nothing_leaves_frames_in_memory(tmp_path: Path) -> None:
    """The agent was upgraded while the disk was full: frames in memory survive there."""
    spool = open_spool(tmp_path)
    append(spool, b"one", b"two")
    with disk_that_takes_nothing():
        spool.close()
    assert spool.write_errors == 1
    spool = open_spool(tmp_path)
    assert (everything(spool), spool.next_sequence()) == ({1: b"one", 2: b"two"}, 3)


def test_a_full_memory_uses_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job filled /dev/shm: the oldest frames were dropped for the newest."""
    (tmp_path / "memory").mkdir()
    spool = test_spool.open_spool(
        tmp_path / "spool",
        bytes_max=1 << 22,
        segment_bytes=262144,
        memory_folder=tmp_path / "memory",
    )
    long = [bytes([letter]) * (SEGMENT_BYTES_OF_HEAD // 2) for letter in b"abc"]
    append(spool, *long)
    (head,) = (tmp_path / "memory").iterdir()
    assert len(segments(head)) > 1
    real = os.pwritev

    def full(descriptor: int, parts: list[bytes], at: int) -> int:
        if Path(f"/proc/self/fd/{descriptor}").resolve().parent == head:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, parts, at)

    monkeypatch.setattr(os, "pwritev", full)
    append(spool, b"four")
    assert spool.dropped_frames == 0
    assert "No space left" in spool.last_error
    assert list(everything(spool)) == [1, 2, 3, 4]


def test_nothing_takes_frames_and_none_is_lost(tmp_path: Path) -> None:
    """Memory and disk are both full: only the spool's own window remains."""
    spool, seconds = aging(tmp_path)
    append(spool, b"one")
    with disk_that_takes_nothing():
        append(spool, b"two")
        seconds.now += WAIT_SECONDS_MAX
        append(spool, b"three")
    append(spool, b"four")
    assert list(everything(spool).values()) == [b"one", b"two", b"three", b"four"]
    spool.acknowledge(1, 4)
    assert (spool.unacknowledged_frames, spool.dropped_frames) == (0, 0)


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gangline-test-") as name:
        yield Path(name)


def test_kill_9_loses_nothing_that_append_took(tmp_path: Path, memory: Path) -> None:
    """Half of the frames are in memory, half on the disk, and one is being moved at the end."""
    spool_folder = tmp_path / "spool"
    confirmed = 0
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", APPENDER, spool_folder, memory], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        for _ in range(700):
            confirmed = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        child.stdout.close()
        child.wait(GUARD_SECONDS)
    spool = test_spool.open_spool(spool_folder, bytes_max=1 << 24, owner="m", memory_folder=memory)
    result = everything(spool, 100)
    assert set(range(1, confirmed + 1)) <= result.keys()
    assert all(frame == b"%d," % sequence * 50 for sequence, frame in result.items())
    assert spool.dropped_frames == 0


def test_the_uninstall_removes_this_agent_s_folder_and_no_other(tmp_path: Path) -> None:
    """The documented uninstall also removed the unsent frames of every other agent on the machine."""
    page = (
        (Path(__file__).parents[2] / "docs/operations.md")
        .read_text()
        .partition("## Take it off")[2]
    )
    (command,) = [line for line in page.splitlines() if "gangline-spool-" in line]
    places = {"/dev/shm": tmp_path / "memory", "/var/lib/gangline/spool": tmp_path / "it" / "spool"}
    for place, folder in places.items():
        assert place in command
        command = command.replace(place, str(folder))
    other, it = open_spool(tmp_path), tmp_path / "it"
    it.mkdir()
    (it / "memory").symlink_to(tmp_path / "memory")
    ours = open_spool(it)
    for spool in (other, ours):
        append(spool, b"unsent")
        kill(spool)
    assert len(list((tmp_path / "memory").iterdir())) == 2
    subprocess.run(["sh", "-c", command], check=True)
    (left,) = (tmp_path / "memory").iterdir()
    status = (tmp_path / "spool").stat()
    assert left.name == f"gangline-spool-{status.st_dev:x}-{status.st_ino:x}"
    assert any(left.glob("*.seg"))
