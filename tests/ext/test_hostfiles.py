"""Complete files of /proc, checks of folders, rows of cells."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.hardware.files import names_in
from gangline.ext.hostfiles import (
    FILE_BYTES_MAX,
    CoreTimes,
    DiskRows,
    Glance,
    HostPass,
    KeptFile,
    Places,
    read_file,
)

U64_MAX = (1 << 64) - 1


def test_a_glance_shows_what_came_went_and_was_put_back(tmp_path: Path) -> None:
    """An RDMA device was recreated under its name, and its old files were read for an hour."""
    folder = tmp_path / "infiniband"
    glance = Glance(folder)
    assert glance.look() == 0 == glance.look()  # no such folder
    folder.mkdir()
    assert glance.look() == 0  # empty folder
    (folder / "one").symlink_to("/a")
    first = glance.look()
    (folder / "two").symlink_to("/b")
    both = glance.look()
    assert 0 != first != both == glance.look()
    (folder / "new").symlink_to("/b")  # another inode while the old one exists
    (folder / "new").rename(folder / "two")
    assert glance.look() != both
    (folder / "two").unlink()
    assert glance.look() == first


def test_a_glance_follows_the_name_not_the_folder(tmp_path: Path) -> None:
    """A module was unloaded and loaded again: the folder kept open stayed empty forever."""
    folder = tmp_path / "class"
    folder.mkdir()
    (folder / "a").touch()
    glance = Glance(folder)
    assert glance.look()
    (folder / "a").unlink()
    folder.rmdir()
    assert glance.look() == 0
    folder.mkdir()
    (folder / "a").touch()
    assert glance.look()


def test_a_glance_sees_more_entries_than_one_call_gives(tmp_path: Path) -> None:
    """A host with hundreds of virtual functions: the last one must count like the first."""
    for number in range(600):
        (tmp_path / f"{'n' * 40}{number}").touch()
    before = Glance(tmp_path).look()
    (tmp_path / f"{'n' * 40}599").unlink()
    assert len(names_in(tmp_path)) == 599
    assert Glance(tmp_path).look() != before


def test_a_file_is_read_whole_and_to_a_limit(tmp_path: Path) -> None:
    """A megabyte is cut, a FIFO or a missing file does not block, a folder is an error."""
    path = tmp_path / "file"
    for size in (0, 1, 4096, 4097, 10_000):
        path.write_bytes(b"x" * size)
        assert read_file(path) == b"x" * size
    path.write_bytes(b"y" * (FILE_BYTES_MAX + 9000))
    result = read_file(path)
    assert result is not None and FILE_BYTES_MAX <= len(result) < FILE_BYTES_MAX + 9000
    os.mkfifo(tmp_path / "fifo")
    assert read_file(tmp_path / "fifo") == b""
    for name in ("gone", "zero\0byte", "\ud800", "."):
        assert read_file(f"{tmp_path}/{name}") is None


@given(
    st.lists(
        st.none() | st.booleans() | st.integers(-5, 1 << 65) | st.floats(allow_nan=True), min_size=3, max_size=3
    ),
    st.integers(0, 1),
)  # fmt: skip
def test_a_row_of_places_is_the_values_or_missing(values: list[float | None], row: int) -> None:
    """A count of -1 became 2^64-1: a value beyond 64 bits is missing, its neighbors are not."""
    cells, valid = bytearray(8 * 6), bytearray(b"\1" * 6)
    ints, floats = memoryview(cells).cast("Q"), memoryview(cells).cast("d")
    try:
        Places(cells, valid, 2, [(0, False), (2, True), (1, False)]).put(row, values)
    except OverflowError:  # a gauge beyond a double's range
        assert isinstance(values[1], int)
        return
    for column, value, is_gauge in zip((0, 2, 1), values, (False, True, False), strict=True):
        at = 2 * column + row
        assert valid[2 * column + 1 - row] == 1  # the other row
        if value is None or (not is_gauge and not 0 <= value <= U64_MAX):
            assert not valid[at]
        elif is_gauge:
            assert valid[at] and (floats[at] == float(value) or math.isnan(value))
        else:
            assert valid[at] and ints[at] == int(value)


def test_places_that_cannot_be_right_are_refused() -> None:
    """A table's columns of another catalogue wrote beyond the cells."""
    cells, valid = bytearray(16), bytearray(2)
    for columns in ([(1, True)], [(-1, True)]):
        with pytest.raises(ValueError, match="outside"):
            Places(cells, valid, 2, columns)
    with pytest.raises(ValueError, match="8 bytes each"):
        Places(bytearray(15), valid, 1, [(0, True)])
    places = Places(cells, valid, 2, [(0, True)])
    with pytest.raises(IndexError, match="row 2"):
        places.put(2, [1.0])
    with pytest.raises(ValueError, match="as many values"):
        places.put(0, [])


def test_cores_that_go_offline_are_known_by_their_numbers() -> None:
    """Core 1 was taken offline and its neighbor's time was reported as its own."""
    times = CoreTimes()
    line = "cpu{} 0 0 0 {} 0 0 0 0 0 0\n"
    times.take("".join(line.format(core, 0) for core in range(4)).encode())
    times.take("".join(line.format(core, 10 * core + 10) for core in (0, 2, 3, 9)).encode())
    assert (times.count, times.cores) == (4, [0, 2, 3, 9])
    assert {core: shares.busy for core, shares in times.shares().items()} == {0: 0, 2: 0, 3: 0}


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 8192, 20000])
def test_a_file_that_comes_as_a_whole(size: int, tmp_path: Path) -> None:
    """/proc/stat of 200 cores outgrew the buffer, and half of the cores always looked idle."""
    path = tmp_path / "stat"
    path.write_bytes(b"7" * size)
    kept = KeptFile(path, whole=True)
    assert [kept.read() for _ in range(2)] == [b"7" * size] * 2


def test_rows_are_of_the_columns_that_are_filled() -> None:
    """A column added in only one place would shift all later ones."""
    few = Places(bytearray(16), bytearray(2), 1, [(0, False), (1, True)])
    with pytest.raises(ValueError, match="a host are not 2"):
        HostPass("/proc", few)
    with pytest.raises(ValueError, match="14 values"):
        DiskRows(KeptFile("/proc/diskstats"), [b"sda"], few)
