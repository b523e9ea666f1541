"""Counter files through kept descriptors: missing values, skipped files, and no leaks."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.ext.counterfiles import CODE, DECIMAL, KEYED, SIGNED, WORD, CounterFiles, parse
from tests.processes import GUARD_SECONDS

U64_MAX = (1 << 64) - 1

WORDS = b"unknown notpresent down up"


class Cells:
    """Some cells with their counter files."""

    def __init__(self, count: int, *, kept_max: int = 160, wait_passes_max: int = 0) -> None:
        self.valid = bytearray(b"\1" * count)
        self.cells = bytearray(8 * count)
        self.files = CounterFiles(
            [(self.cells, self.valid)], kept_max=kept_max, wait_passes_max=wait_passes_max
        )

    def values(self) -> list[int | None]:
        self.files.read()
        numbers = memoryview(self.cells).cast("Q")
        return [n if v else None for n, v in zip(numbers, self.valid, strict=True)]


def open_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"0\n", 0),
        (b" 17 \n", 17),
        (b"18446744073709551615\n", U64_MAX),
        (b"18446744073709551616\n", None),
        (b"99999999999999999999999999\n", None),
        (b"", None),
        (b"\n", None),
        (b"N/A (no PMA)\n", None),
        (b"-1\n", None),
        (b"0x10\n", None),
        (b"12 kB\n", None),
        (b"1_000\n", None),
        (b"\xff\xfe\n", None),
        ("\N{ARABIC-INDIC DIGIT THREE}".encode(), None),
        (b"1\0\n", None),
        (b"0" * 5000, None),
    ],
)
def test_a_text_that_is_no_counter_is_missing(text: bytes, value: int | None) -> None:
    """A host agent counted `N/A (no PMA)` as 0 and reported an unreadable port as clean."""
    assert parse(text) == value


@given(st.integers(-(1 << 70), 1 << 70))
def test_numbers_are_read_as_they_are_or_not_at_all(number: int) -> None:
    """Past 64 bits and below zero the value is missing, not wrapped."""
    assert parse(f"{number}\n".encode()) == (number if 0 <= number <= U64_MAX else None)


@given(st.binary(max_size=5000))
def test_bytes_from_anywhere_are_a_number_or_missing(data: bytes) -> None:
    """The agent survived a driver that wrote garbage. No shape may raise or read past the end."""
    for shape in range(5):
        value = parse(data, shape, key=b"kB", gauge=True)
        assert value is None or isinstance(value, float)
    assert parse(data) is None or data.strip(b" \n\t\r").isdigit()


@given(st.integers(0, U64_MAX), st.integers(1, 1 << 40))
def test_a_product_beyond_64_bits_is_missing(number: int, scale: int) -> None:
    """port_rcv_data x 4 of a stuck 64-bit counter would wrap to a small, plausible number."""
    product = number * scale
    assert parse(b"%d" % number, scale=scale) == (product if product <= U64_MAX else None)


def rate(text: bytes) -> float | None:
    return parse(text, DECIMAL, key=b"Gb/sec", scale=125e6, gauge=True)


def test_shapes_of_the_kernel() -> None:
    """Texts as Linux writes them, and similar invalid ones."""
    assert parse(b"4: ACTIVE\n", CODE) == 4
    assert parse(b"4 ACTIVE\n", CODE) is None
    assert rate(b"400 Gb/sec (4X NDR)\n") == 50e9
    assert rate(b"2.5 Gb/sec (1X SDR)\n") == 312.5e6
    assert rate(b"2. Gb/sec\n") is None
    assert rate(b"400 Gb/second\n") is None
    assert rate(b"400\n") is None
    assert parse(b"Unknown\n", DECIMAL, key=b"GT/s", gauge=True) is None
    assert parse(b"-5000\n", SIGNED, gauge=True, scale=1e-3) == -5.0
    meminfo = b"Node 0 MemTotal:    65 kB\nNode 0 MemFree:   7 kB\n"
    assert parse(meminfo, KEYED, key=b"MemFree:", scale=1024) == 7168
    assert parse(b"not_numa_hit 3\nnuma_hit 4\n", KEYED, key=b"numa_hit") == 4
    assert parse(b"numa_hit\n", KEYED, key=b"numa_hit") is None
    assert parse(b"-1\n", gauge=True) is None
    assert parse(b"255\n", most=32) is None


def test_a_number_cut_off_at_the_buffers_end_is_none() -> None:
    """The first digits of a longer number would be a false value."""
    text = (b"x" * 4086 + b"\nkey 123456")[:4096]
    assert text.endswith(b"key 12345")
    assert parse(text, KEYED, key=b"key") is None
    assert parse(b" " * 4094 + b"12") is None


def test_a_pass_fills_its_cells_and_no_others(tmp_path: Path) -> None:
    """One file may fill several cells; a cell without a file keeps its value."""
    (tmp_path / "aer").write_text("RxErr 3\nBadTLP 4\nTOTAL_ERR_COR 7\n")
    (tmp_path / "data").write_text("10\n")
    cells = Cells(4)
    cells.files.add_file(tmp_path / "aer")
    cells.files.add_cell(0, shape=KEYED, key=b"TOTAL_ERR_COR")
    cells.files.add_cell(2, shape=KEYED, key=b"RxErr")
    cells.files.add_file(tmp_path / "data")
    cells.files.add_cell(1, scale=4)
    assert cells.values() == [7, 40, 3, 0]
    (tmp_path / "data").write_text("N/A (no PMA)\n")
    assert cells.values() == [7, None, 3, 0]
    assert cells.files.missing_cells == 1
    (tmp_path / "data").write_text("12\n")
    assert cells.values() == [7, 48, 3, 0]


def test_a_file_that_vanishes_costs_no_neighbour() -> None:
    """A port was pulled: the whole host became unreadable. /proc/PID/oom_score too: ESRCH."""
    with subprocess.Popen(["sleep", "60"]) as child:
        cells = Cells(2)
        for index, owner in enumerate((child.pid, os.getpid())):
            cells.files.add_file(f"/proc/{owner}/oom_score")
            cells.files.add_cell(index)
        assert None not in cells.values()
        child.kill()
    gone, here = cells.values()
    assert gone is None and here is not None
    assert cells.files.read_errors == 1
    assert cells.files.kept_descriptors == 1
    cells.files.close()


def test_absent_files_are_missing_and_found_when_they_come(tmp_path: Path) -> None:
    """Between list and open a device may disappear, and reappear under the same name."""
    cells = Cells(1)
    cells.files.add_file(tmp_path / "late")
    cells.files.add_cell(0)
    assert cells.values() == [None]
    (tmp_path / "late").write_text("5\n")
    assert cells.values() == [5]


def refuse(path: Path) -> None:
    """Make reads of *path* fail: pread of a folder is EISDIR."""
    path.mkdir()


def test_a_group_that_refuses_is_probed_by_one_file_at_growing_intervals(tmp_path: Path) -> None:
    """Counters of a restricted function: each read put a line into the kernel log, 20 a second."""
    cells = Cells(5, wait_passes_max=8)
    for index in range(4):
        refuse(tmp_path / f"counter{index}")
        cells.files.add_file(tmp_path / f"counter{index}", group="port 1")
        cells.files.add_cell(index)
    (tmp_path / "neighbour").write_text("3\n")
    cells.files.add_file(tmp_path / "neighbour", group="port 2")
    cells.files.add_cell(4)
    tried = []
    for number in range(60):
        before = cells.files.read_errors
        assert cells.values() == [None] * 4 + [3]
        assert cells.files.read_errors - before <= 1
        if cells.files.read_errors > before:
            tried.append(number)
    assert tried == [0, 2, 6, 14, 23, 32, 41, 50, 59]


def test_a_group_is_read_again_once_one_file_answers(tmp_path: Path) -> None:
    """The restriction was lifted: counters that refused before come back."""
    cells = Cells(3, wait_passes_max=4)
    for index in range(3):
        refuse(tmp_path / f"counter{index}")
        cells.files.add_file(tmp_path / f"counter{index}", group="port 1")
        cells.files.add_cell(index)
    for _ in range(5):
        assert cells.values() == [None] * 3
    for index in range(3):
        (tmp_path / f"counter{index}").rmdir()
        (tmp_path / f"counter{index}").write_text("9\n")
    seen = [cells.values() for _ in range(8)]
    assert seen[-1] == [9, 9, 9]


def test_one_bad_counter_does_not_silence_its_port(tmp_path: Path) -> None:
    """A driver refuses one counter; the port's other counters stay."""
    cells = Cells(3, wait_passes_max=8)
    for index in range(3):
        path = tmp_path / f"counter{index}"
        path.mkdir() if index == 0 else path.write_text("9\n")
        cells.files.add_file(path, group="port 1")
        cells.files.add_cell(index)
    seen = [cells.values() for _ in range(40)]
    assert seen[-1] == [None, 9, 9]
    assert seen.count([None, 9, 9]) >= 38
    assert cells.files.read_errors <= 8


def test_descriptors_are_bounded_and_closed(tmp_path: Path) -> None:
    """An agent that kept every file of a host with 128 virtual functions ran out of descriptors."""
    before = open_descriptors()
    cells = Cells(20, kept_max=8)
    for index in range(20):
        (tmp_path / str(index)).write_text(f"{index}\n")
        cells.files.add_file(tmp_path / str(index))
        cells.files.add_cell(index)
    assert cells.values() == cells.values() == list(range(20))
    assert cells.files.kept_descriptors == 8
    assert open_descriptors() == before + 8
    cells.files.close()
    assert open_descriptors() == before
    with pytest.raises(ValueError, match="closed"):
        cells.files.read()


def test_descriptors_go_with_the_object(tmp_path: Path) -> None:
    """Blocks are recreated for a new device; the old set must not remain."""
    (tmp_path / "a").write_text("1\n")
    before = open_descriptors()
    for _ in range(50):
        cells = Cells(1)
        cells.files.add_file(tmp_path / "a")
        cells.files.add_cell(0)
        assert cells.values() == [1]
        del cells
    assert open_descriptors() == before


def test_a_pass_allocates_nothing(tmp_path: Path) -> None:
    """At one pass a second for months, a byte a pass is a leak."""
    cells = Cells(30)
    for index in range(30):
        (tmp_path / str(index)).write_text("12345\n")
        cells.files.add_file(tmp_path / str(index))
        cells.files.add_cell(index)
    read = cells.files.read
    read()
    tracemalloc.start()
    try:
        read()
        tracemalloc.reset_peak()
        start = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            read()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - start < 256  # the loop's own iterator


def test_a_pass_lets_other_threads_run(tmp_path: Path) -> None:
    """A port's driver blocked one read for 45 s; the daemon must continue without that thread.

    A named pipe does the same: its open does not return until it has a writer. Meanwhile this
    thread runs, a second pass is refused, and closing waits for the first to return.
    """
    pipe = tmp_path / "hangs"
    os.mkfifo(pipe)
    before = open_descriptors()
    cells = Cells(1)
    cells.files.add_file(pipe)
    cells.files.add_cell(0)
    thread = threading.Thread(target=cells.files.read)
    thread.start()
    while True:
        try:
            cells.files.add_cell(0)  # refused once the pass has begun
        except RuntimeError:
            break
    with pytest.raises(RuntimeError, match="under way"):
        cells.files.read()
    cells.files.close()
    with pipe.open("wb"):
        thread.join(GUARD_SECONDS)
    assert not thread.is_alive()
    assert open_descriptors() == before


def test_what_cannot_be_right_is_said(tmp_path: Path) -> None:
    """A cell outside its buffer would be written over other memory."""
    with pytest.raises(ValueError, match="need 16 bytes, got 8"):
        CounterFiles([(bytearray(8), bytearray(2))])
    with pytest.raises(ValueError, match="1 to 8 pairs"):
        CounterFiles([])
    cells = Cells(2)
    with pytest.raises(ValueError, match="added last"):
        cells.files.add_cell(0)
    cells.files.add_file(tmp_path / "a")
    for index, target in ((2, 0), (-1, 0), (0, 1), (0, -1)):
        with pytest.raises(ValueError, match="outside its buffers"):
            cells.files.add_cell(index, target=target)
    with pytest.raises(ValueError, match="cannot be signed"):
        cells.files.add_cell(0, shape=SIGNED)
    with pytest.raises(ValueError, match="shape"):
        cells.files.add_cell(0, shape=9)


def test_names_of_bytes_are_opened_as_they_are(tmp_path: Path) -> None:
    """An interface was named in Latin-1; sysfs keeps bytes."""
    name = os.fsdecode(b"if\xff 1")
    (tmp_path / name).write_text("6\n")
    cells = Cells(1)
    cells.files.add_file(tmp_path / name)
    cells.files.add_cell(0)
    assert cells.values() == [6]
    assert sys.getfilesystemencoding() == "utf-8"


@pytest.mark.parametrize(
    ("text", "number"),
    [(b"unknown\n", 0), (b"down\n", 2), (b"up", 3), (b"UP\n", None), (b"", None), (b"\n", None),
     (b"u", None), (b"down up\n", None), (b"up\0", None), (b"\xff\n", None), (b"notpresent  \n", 1)],
)  # fmt: skip
def test_words_are_states_by_their_number(text: bytes, number: int | None) -> None:
    """`operstate` is a word; a newer kernel's unknown word is missing."""
    assert parse(text, WORD, key=WORDS) == number


@given(st.binary(max_size=30), st.binary(max_size=60))
def test_no_word_is_read_out_of_its_list(text: bytes, words: bytes) -> None:
    """For any file and list: a word of the list, or nothing."""
    number = parse(text, WORD, key=words.replace(b"\0", b""))
    if number is not None:
        assert words.replace(b"\0", b"").split(b" ")[int(number)] == text.rstrip(b" \n\t\r")


def test_all_ones_of_32_bits_are_not_scaled_into_a_reading() -> None:
    """A legacy port was at its ceiling of 4,294,967,295 words: times four, this was invisible."""
    assert parse(b"4294967295\n", scale=4) is None
    assert parse(b"4294967295\n") == 2**32 - 1  # unscaled, the counter algebra handles it
    assert parse(b"4294967294\n", scale=4) == 4 * (2**32 - 2)
    with pytest.raises(ValueError, match="not a gauge"):
        parse(b"up", WORD, key=WORDS, gauge=True)


def test_a_group_that_refuses_is_named_until_it_answers(tmp_path: Path) -> None:
    """A port whose counters returned EPERM was silent, like a healthy one."""
    cells = Cells(4, wait_passes_max=8)
    for index, group in enumerate(("port 1", "port 1", "port 2", "port 3")):
        path = tmp_path / f"counter{index}"
        if group == "port 1":
            path.mkdir()  # reading a folder fails with EISDIR
        elif group == "port 2":
            path.write_text("9\n")
        cells.files.add_file(path, group=group)
        cells.files.add_cell(index)
    for _ in range(10):
        assert cells.values() == [None, None, 9, None]
        ((refused, error),) = cells.files.refusals
        assert refused.startswith(str(tmp_path / "counter")) and error == errno.EISDIR
    for index in range(2):
        (tmp_path / f"counter{index}").rmdir()
        (tmp_path / f"counter{index}").write_text("5\n")
    seen = [cells.values() for _ in range(20)]
    assert seen[-1] == [5, 5, 9, None]
    assert cells.files.refusals == []


def test_a_cell_that_adds_up_what_a_counter_counts(tmp_path: Path) -> None:
    """RAPL wraps at no power of two: a gigawatt for a second, every quarter of an hour."""
    file = tmp_path / "energy_uj"
    valid, cells = bytearray(1), bytearray(8)
    files = CounterFiles([(cells, valid)])
    files.add_file(file)
    files.add_cell(0, scale=1e-6, gauge=True, span=100_000_000, most=100_000_000)
    result: list[float | None] = []
    for text in ("90000000", "95000000", "1000000", "", "100000001", "50000000"):
        file.write_text(text)
        files.read()
        result.append(memoryview(cells).cast("d")[0] if valid[0] else None)
    assert result == [0.0, 5.0, 11.0, None, None, 60.0]
    with pytest.raises(ValueError, match="is a gauge"):
        files.add_cell(0, span=7)


@given(st.permutations(["a", "b", "ab", "c", "b_c"]), st.permutations(["a", "b", "ab", "c", "b_c"]))
def test_keys_in_any_order(written: list[str], asked: list[str]) -> None:
    """A kernel lists AER errors in another order: none is missed or mixed up."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "aer"
        file.write_text("".join(f"{word} {100 + len(word) + ord(word[-1])}\n" for word in written))
        cells = Cells(len(asked))
        cells.files.add_file(file)
        for index, word in enumerate(asked):
            cells.files.add_cell(index, shape=KEYED, key=word.encode())
        assert cells.values() == [100 + len(word) + ord(word[-1]) for word in asked]
