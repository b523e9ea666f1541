"""The fast reader against `frames.decode`: both accept the same data, with the same cells."""

from __future__ import annotations

import random
import tracemalloc
import zlib
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.aggregator.fleet.fleet import BOOT_MAX, Fleet
from gangline.aggregator.ingest.frame_reader import CATALOGUE, _plan, read_frame
from gangline.aggregator.store.frame_rows import HostFrame, batch
from gangline.aggregator.store.layout import LAYOUTS
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.frame import FrameError, Stamp
from gangline.contract.signals import TABLES
from gangline.ext.columns import unpack
from gangline.ext.devicekeys import DeviceKeys
from gangline.ext.intake import TIME_NS_MAX, Catalogue, Cells, Reader
from tests.contract.test_frames import EXAMPLE, blocks, content, stamps
from tests.fuzzing.frames import resealed

KINDS = ("gpu_1s", "host_1s", "rdma_1s_changes", "nvlink_10s_changes", "gpu_10s")


def read_blocks(data: bytes, reader: Reader | None = None) -> list[tuple[object, ...]]:
    frame = (reader or Reader(CATALOGUE, frames.decode)).read(data)
    result = []
    for index, shape in enumerate(frame.shapes):
        block = Block(shape.columns.table, frame.devices(index), shape.columns.signal_ids)
        block.offset_ns = frame.offset_ns(index)
        unpack(
            frame.packed_cells(index), block.cells, block.valid, len(block.signal_ids), block.rows
        )
        result.append(content(block))
    return result


@settings(deadline=None)
@given(stamps, st.lists(blocks(), max_size=4), st.booleans())
def test_both_readers_say_the_same(stamp: Stamp, given_blocks: list[Block], deflate: bool) -> None:
    """Deflated or not; and again from a reader that knows the tables."""
    data = frames.encode(stamp, given_blocks, deflate=deflate)
    reader = Reader(CATALOGUE, frames.decode)
    expected = [content(block) for block in frames.decode(data).blocks]
    assert read_blocks(data, reader) == expected == read_blocks(data, reader)
    frame = reader.read(data)
    assert stamp == (frame.run_id, frame.boot_id, frame.sequence, frame.boottime_ns, frame.wall_ns)
    assert frame.rows == sum(block.rows for block in given_blocks)


@given(st.integers(0, len(EXAMPLE) - 1), st.integers(0, 255), st.booleans())
def test_a_damaged_frame_is_refused_with_the_same_words(at: int, byte: int, seal: bool) -> None:
    """A hostile sender can compute the right checksum: no read past the end."""
    data = EXAMPLE[:at] + bytes((byte,)) + EXAMPLE[at + 1 :]
    data = resealed(data) if seal else data
    known = Reader(CATALOGUE, frames.decode)
    known.read(EXAMPLE)
    for reader in (None, known):
        try:
            expected = [content(block) for block in frames.decode(data).blocks]
        except FrameError as error:
            with pytest.raises(FrameError) as refused:
                read_blocks(data, reader)
            assert str(refused.value) == str(error)
        else:
            assert read_blocks(data, reader) == expected


def test_names_that_cancel_out_in_the_digest_are_read_anew() -> None:
    """Names with another's digest, and invalid UTF-8, made each commit of the fleet fail."""
    stamp = Stamp(b"r" * 16, b"b" * 16, 1, 1, 1)
    data = frames.encode(stamp, [Block("gpu_1s", ["GPU-" + "a" * 60])], deflate=False)
    name = data.index(b"GPU-a")
    keys = name - 1 - 4 - 2 * len(TABLES["gpu_1s"])
    word = name + -(name - keys) % 8  # the first eight bytes within the name
    reader = Reader(CATALOGUE, frames.decode)
    reader.read(data)
    for back in (0, 8):
        changed = bytearray(data)
        changed[word + back + 7] ^= (
            0x80  # its highest bit, which a factor only moves into two of the next
        )
        changed[word + back + 15] ^= 0x80
        changed[word + back + 11] ^= 0x80
        with pytest.raises(FrameError, match="utf-8"):
            reader.read(resealed(bytes(changed)))


@given(st.integers(0, len(EXAMPLE) - 1))
def test_a_frame_cut_off_is_refused_with_the_same_words(length: int) -> None:
    """Checksum and header length are right: only the tables show the missing part."""
    body = zlib.decompress(EXAMPLE[72:], -15)[:length]
    header = EXAMPLE[:9] + b"\0" + EXAMPLE[10:12] + len(body).to_bytes(4, "little") + EXAMPLE[16:72]
    data = resealed(header + body)
    with pytest.raises(FrameError) as expected:
        frames.decode(data)
    known = Reader(CATALOGUE, frames.decode)
    known.read(EXAMPLE)
    for reader in (None, known):
        with pytest.raises(FrameError) as refused:
            read_blocks(data, reader)
        assert str(refused.value) == str(expected.value)


def told(fleet: Fleet, given_blocks: list[Block], second: int) -> None:
    stamp = Stamp(bytes(16), bytes(16), second, second * 10**9, 0)
    fleet.observe("a", read_frame(frames.encode(stamp, given_blocks)), 10**18)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(blocks(KINDS), max_size=3), min_size=1, max_size=3))
def test_the_fleet_has_the_last_of_each_cell(seconds: list[list[Block]]) -> None:
    """Any tables, twice in one frame, with other devices or a duplicate one."""
    fleet = Fleet()
    fleet.register("a", simulated=True, boot_id=bytes(16), devices=[])
    expected: dict[tuple[str, str, str], int | None] = {}
    for second, several in enumerate(seconds, 1):
        told(fleet, several, second)
        for block in several:
            columns = [signal.column for signal in TABLES[block.table]]
            for column, name in enumerate(columns):
                for row, device in enumerate(block.devices):
                    at = column * block.rows + row
                    expected[block.table, name, device] = (
                        block.ints[at] if block.valid[at] else None
                    )
    for (table, name, device), value in expected.items():
        kept = fleet.tables[table]
        if name in kept.column:
            row = kept.devices.find(0, device)
            known = kept.known(name)[row]
            assert (int(kept._bits[kept.column[name], row]) if known else None) == value


def test_a_host_that_boots_again_and_again_is_heard() -> None:
    """Boots have 16 bits: a host's 65,536th boot must not count as none."""
    fleet = Fleet()
    host = fleet.register("a", simulated=True, boot_id=b"b" * 16, devices=[])
    fleet._boot[host] = BOOT_MAX
    told(fleet, [Block("gpu_1s", ["GPU-0"])], 1)
    assert fleet.boot_of(host) == 1
    assert fleet.tables["gpu_1s"].age_seconds(fleet.boot, fleet.host_now_ns(10**18)).tolist() == [
        0.0
    ]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(blocks(KINDS), max_size=3), min_size=1, max_size=4))
def test_a_commit_has_every_cell_in_its_place(several: list[list[Block]]) -> None:
    """Frames of several hosts and of other columns, one after another: no cell is lost or moved."""
    created = [
        HostFrame(f"h{index % 2}", read_frame(frames.encode(Stamp(b"r" * 16, bytes(16), index, 5, 0), frame)), 7)
        for index, frame in enumerate(several)
    ]  # fmt: skip
    tables = {name: arrow.to_pylist() for name, arrow in batch(created).tables()}
    for index, frame in enumerate(several):
        for block in frame:
            rows = [tables[block.table].pop(0) for _ in range(block.rows)]
            signals = LAYOUTS[block.table].signals
            for row, found in enumerate(rows):
                assert (found["host"], found["device"]) == (f"h{index % 2}", block.devices[row])
                assert found["boottime_ns"] == max(0, 5 + block.offset_ns)
                time_us = max(0, min(12 + block.offset_ns, TIME_NS_MAX)) // 1000
                assert found["time"] == datetime(1970, 1, 1) + timedelta(microseconds=time_us)
                for column, signal in enumerate(signals):
                    cell = column * block.rows + row
                    value = (block.floats if signal.kind == "gauge" else block.ints)[cell]
                    expected = value if block.valid[cell] else None
                    got = found[signal.column]
                    assert repr(got) == repr(expected), signal.column  # NaN equals itself
    assert not any(tables.values())


@settings(max_examples=50, deadline=None)
@given(st.lists(blocks(), min_size=1, max_size=4))
def test_a_frame_is_counted_as_what_a_commit_makes_of_it(several: list[Block]) -> None:
    """A frame of 0.5 MB with very many devices was 150 MB in the commit, but counted as 3."""
    frame = read_frame(frames.encode(Stamp(b"r" * 16, bytes(16), 1, 5, 0), several))
    created = [arrow for _, arrow in batch([HostFrame("h", frame, 0)]).tables()]
    devices = [len(name.encode()) + 4 for block in several for name in block.devices]
    assert sum(arrow.nbytes for arrow in created) <= frame.size_bytes + 2 * sum(devices)


def test_signals_of_one_place_are_of_the_last() -> None:
    """A table has an id twice: the cells of the last column count."""
    block = Block("gpu_1s", ["G"], (TABLES["gpu_1s"][0].signal_id,) * 3)
    for column in range(3):
        block.put_float(column, 0, float(column))
    frame = read_frame(frames.encode(Stamp(b"r" * 16, bytes(16), 1, 5, 0), [block]))
    ((_, arrow),) = batch([HostFrame("h", frame, 0)]).tables()
    assert arrow.column(TABLES["gpu_1s"][0].column).to_pylist() == [2.0]


def test_places_are_looked_up_once() -> None:
    """An expensive look-up counts as a row (`agent_rows_per_second_max`)."""
    reader = Reader(Catalogue(_plan), frames.decode)
    unknown = [Block(f"strange_{index}", ["G"], tuple(range(20_000, 20_512))) for index in range(4)]
    data = frames.encode(Stamp(b"r" * 16, bytes(16), 1, 5, 0), unknown)
    assert [reader.read(data).looked_up for _ in range(2)] == [4 * 512, 0]


def test_tables_of_each_second_are_known_again_among_those_of_each_minute() -> None:
    """A host's first frame has all its tables: those of each second did not fit."""
    reader = Reader(CATALOGUE, frames.decode)
    often = [Block("gpu_1s", [f"GPU-{index}" for index in range(8)]), Block("host_1s", ["host"])]
    seldom = [Block(f"{index}_60s", [f"device-{index}"] * 20, (1, 2, 3)) for index in range(40)]

    def shapes(blocks: list[Block]) -> list[object]:
        return list(reader.read(frames.encode(Stamp(bytes(16), bytes(16), 1, 5, 0), blocks)).shapes)

    shapes(seldom + often)
    kept = shapes(often)
    assert all(shape is other for shape, other in zip(shapes(often), kept, strict=True))
    shapes([Block("huge_1s", [f"device-{index}" for index in range(4096)], (1,))])
    assert all(shape is other for shape, other in zip(shapes(often), kept, strict=True))


def test_arrays_that_do_not_fit_are_refused() -> None:
    """A pointer past an array's end would write into other memory."""
    cells = Cells()
    one, other = np.zeros(4, np.int64), np.zeros(5, np.int64)
    words, flags = np.zeros((2, 4), np.uint64), np.zeros((2, 4), np.uint8)
    touched, boot = np.zeros(4, np.uint8), np.zeros(4, np.uint16)
    times, longer = np.zeros(4, np.float32), np.zeros(5, np.float32)
    cells.bind(words, flags, touched, one, boot, times, times)
    for wrong in (
        (words, flags, touched, other, boot, None, None),
        (words, flags, touched, one, boot, longer, None),
        (words, flags, touched, one, boot, None, longer),
    ):
        with pytest.raises(ValueError, match="lengths"):
            cells.bind(*wrong)


@given(st.lists(st.tuples(st.integers(0, 3), st.text("aé", max_size=12)), max_size=300))
def test_keys_are_found_again(keys: list[tuple[int, str]]) -> None:
    """Like a dict of tuples: the same name on another host is another device."""
    known: dict[tuple[int, str], int] = {}
    device_keys, hosts = DeviceKeys(), np.zeros(300, np.int32)
    device_keys.bind(hosts)
    for host, name in keys:
        assert device_keys.find(host, name) == known.get((host, name), -1)
        if (host, name) not in known:
            known[host, name] = device_keys.add(host, name)
        else:
            with pytest.raises(ValueError, match="has row"):
                device_keys.add(host, name)
    assert [(hosts[row], device_keys.name(row)) for row in range(len(device_keys))] == list(known)
    assert list(known.values()) == list(range(len(device_keys)))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.text("aé", max_size=9), st.integers(-40, 90)), max_size=400
    )
)
def test_rows_that_are_given_to_others_are_found(turns: list[tuple[int, str, int]]) -> None:
    """Like a dict, for any additions and renamings, until all names are rewritten."""
    known: dict[tuple[int, str], int] = {}
    device_keys, hosts = DeviceKeys(), np.zeros(400, np.int32)
    device_keys.bind(hosts)
    for host, name, row in turns:
        of_row = {row: key for key, row in known.items()}
        if 0 <= row < len(device_keys):
            key = int(hosts[row]), name
            if key in known:
                with pytest.raises(ValueError, match="has a row"):
                    device_keys.rename(row, name)
                continue
            device_keys.rename(row, name)
            del known[of_row[row]]
            known[key] = row
        elif (host, name) not in known:
            known[host, name] = device_keys.add(host, name)
        assert device_keys.find(host, name) == known.get((host, name), -1)
    assert {
        (int(hosts[row]), device_keys.name(row)): row for row in range(len(device_keys))
    } == known


def test_a_row_is_renamed_without_end() -> None:
    """A year of pods on one host: names are found, and old names take no memory."""
    device_keys = DeviceKeys()
    device_keys.bind(np.zeros(100, np.int32))
    names = [f"pod-{row}" for row in range(100)]
    for name in names:
        device_keys.add(0, name)
    tracemalloc.start()
    for turn in range(20_000):
        row, name = turn * 7 % 100, f"pods/{turn:032}/volume"
        before, names[row] = names[row], name
        device_keys.rename(row, name)
        assert device_keys.find(0, before) == -1 and device_keys.find(0, name) == row
    assert [device_keys.name(row) for row in range(100)] == names
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    with pytest.raises(IndexError):
        device_keys.rename(100, "x")
    with pytest.raises(ValueError, match="bytes"):
        device_keys.rename(0, "x" * 256)


def test_many_keys_are_found_again() -> None:
    """More than the initial slots and memory hold."""
    source, device_keys = random.Random(1), DeviceKeys()
    gpus = [f"GPU-{source.getrandbits(64):x}" for _ in range(250)]
    names = [name for gpu in gpus for name in (gpu, *(f"{gpu}/{link}" for link in range(19)))]
    # 64 KiB in total, from the first of these
    names += [f"{gpus[0]}-{part}" for part in range(15_000)]
    device_keys.bind(np.zeros(20_000, np.int32))
    for host, name in enumerate(names):
        device_keys.add(host % 7, name)
    assert [device_keys.find(host % 7, name) for host, name in enumerate(names)] == list(
        range(20_000)
    )
    assert [device_keys.name(row) for row in range(20_000)] == names
    assert device_keys.find(1, names[0]) == -1
    with pytest.raises(IndexError):
        device_keys.name(20_000)
    assert device_keys.find(0, "x" * 256) == -1
    with pytest.raises(ValueError, match="bytes"):
        device_keys.add(0, "x" * 256)
    with pytest.raises(ValueError, match="row 20000"):
        device_keys.add(0, "x")
    with pytest.raises(ValueError, match="20000"):
        device_keys.bind(np.zeros(19_999, np.int32))
