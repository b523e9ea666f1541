"""Parsers of kernel text: the kernel's formats, and arbitrary other text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gangline.agent.hardware import cpu_cores, pci, proc_files, storage
from gangline.agent.hardware.files import (
    KEY_BYTES_MAX,
    OpenFile,
    device_key,
    names_in,
    parse_unsigned,
    read_text,
)
from gangline.contract.counters import BLANK_32, CounterSpec, classify, counter_delta
from gangline.ext.counterfiles import Meter
from gangline.ext.hostfiles import CoreTimes, HostTimes, diskstats, line_numbers, pressure

U64_MAX = (1 << 64) - 1
#: Bytes, mixed with the keywords of the parsers, so that they pass the first step.
WORDS = (
    b"cpu ", b"cpu0 ", b"ctxt ", b"procs_running ", b"some avg10=", b"full ", b" kB", b"\n", b" - ",
    b"MemTotal:", b"oom_kill ", b"ext4 ", b"/dev/a ", b"rw ", b"8:0 ", b" 1", b" -2", b" 99999999999999999999",
    b" N/A", b"\\040", b"\\999", b"\xff", b"nan", b"inf", b"vda ",
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(WORDS) | st.binary(max_size=8), max_size=40).map(b"".join)

#: Microjoules of ranges as hardware has them: 2^32 units of 15.3, 61 or 1 uJ, and less one.
RANGES = st.sampled_from([262143328850, 65712999613, 65532610987]) | st.integers(1 << 34, 1 << 50)


@given(TEXTS)
def test_no_text_makes_a_parser_raise_or_invent(data: bytes) -> None:
    """A kernel of another version writes other lines; unknown text is missing."""
    times = CoreTimes()
    for number in times.take(data)[-5:]:
        assert number is None or 0 <= number <= U64_MAX
    for value in line_numbers(data, (b"MemTotal:", b"some")):
        assert value is None or value >= 0
    for share in pressure(data)[:2]:
        assert share is None or 0 <= share <= 1
    load = proc_files.parse_first_decimal(data)
    assert load is None or 0 <= load < float("inf")
    proc_files.parse_vmstat(data, b"oom_kill")
    for counts in diskstats(data, {b"vda": "vda"}).values():
        assert all(value is None or 0 <= value <= U64_MAX for value in counts)
    for mount in storage.parse_mountinfo(data):
        assert mount.point.startswith("/") and mount.type in storage.LOCAL_FILESYSTEMS


@given(st.text(max_size=20))
def test_texts_of_links_and_lists(text: str) -> None:
    """`Unknown`, `-1`, another script's digits: nothing, or a number that the text says."""
    speed = pci.parse_link_speed(text)
    assert speed is None or speed >= 0
    code = pci.parse_class(text)
    assert code is None or 0 <= code < 1 << 24
    number = parse_unsigned(text)
    assert number is None or text.strip().lstrip("+").lstrip("0") in (str(number), "")
    try:
        cores = cpu_cores.parse_cpu_list(text)
    except ValueError as error:
        assert "0-3,8" in str(error)
    else:
        assert len(cores) <= 20 * cpu_cores.CORES_MAX


@given(st.binary(min_size=1, max_size=300).filter(lambda name: b"/" not in name))
def test_any_name_of_the_kernel_is_a_key_that_a_frame_can_hold(raw: bytes) -> None:
    """A mount point of 200 bytes, and one in Latin-1, made a frame that could not be encoded."""
    key = device_key(os.fsdecode(raw))
    assert len(key.encode()) <= KEY_BYTES_MAX
    assert key == device_key(os.fsdecode(raw))


def test_long_names_stay_apart() -> None:
    """Two volumes whose mount points differ at the end are two devices."""
    names = [f"/var/lib/{'x' * 200}/{end}" for end in ("a", "b")]
    assert device_key(names[0]) != device_key(names[1])
    assert device_key(os.fsdecode(b"b\xe4d")) != device_key(os.fsdecode(b"b\xf6d"))


def test_link_speeds_as_kernels_write_them() -> None:
    """`8 GT/s` before Linux 5.7, ` PCIe` after it, `Unknown` for a function without a link."""
    assert pci.parse_link_speed("32.0 GT/s PCIe") == 32e9
    assert pci.parse_link_speed("2.5 GT/s") == 2.5e9
    assert pci.parse_link_speed("8 GT/s") == 8e9
    for text in (
        "Unknown",
        "Unknown speed",
        "",
        None,
        "fast GT/s",
        "-1 GT/s",
        "8 Gb/s",
        "1_6 GT/s",
    ):
        assert pci.parse_link_speed(text) is None


def test_lists_of_cores() -> None:
    """A node of memory alone has an empty list, which is not an unreadable one."""
    assert cpu_cores.parse_cpu_list("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]
    assert cpu_cores.parse_cpu_list("\n") == []
    for text in ("3-1", "a", "1-", "0-99999999", "-1"):
        with pytest.raises(ValueError, match="list of cores"):
            cpu_cores.parse_cpu_list(text)


def shares(*texts: bytes) -> HostTimes:
    """Return the shares after these texts of /proc/stat in a row."""
    times = CoreTimes(0.05)
    return [times.take(text) for text in texts][-1]


def stat(user: int, idle: int, iowait: int, *cores: int) -> bytes:
    lines = [f"cpu  {user} 0 0 {idle} {iowait} 0 0 0 0 0"]
    lines += [f"cpu{i} 0 0 0 {ticks} 0 0 0 0" for i, ticks in enumerate(cores)]
    return "\n".join(lines).encode()


def test_shares_of_time() -> None:
    """A data loader pinned to one of four cores: the mean says 25 % busy, the busiest core 100 %."""
    result = shares(stat(100, 900, 0, 0, 0, 0, 0), stat(200, 1200, 0, 100, 0, 100, 100))
    assert (result.user, result.idle, result.busiest_core) == (0.25, 0.75, 1.0)


def test_shares_are_missing_rather_than_wrong() -> None:
    """The first turn, no time between turns, a core taken offline, an iowait that fell."""
    nothing = (None,) * 14
    assert shares(stat(1, 1, 1, 1)) == nothing
    assert shares(stat(1, 1, 1, 1), stat(1, 1, 1, 1)) == nothing
    assert shares(b"", stat(1, 1, 1, 1)) == nothing
    assert shares(stat(0, 0, 0, 0, 0), stat(5, 5, 0, 5)).busiest_core is None
    assert shares(stat(0, 0, 9, 0), stat(5, 5, 0, 5)).iowait == 0


# Kernel files use 2**32 - 1 for "not known": then there are no shares.
@given(st.lists(st.tuples(*[st.integers(0, (1 << 32) - 2)] * 8), min_size=2, max_size=2))
def test_shares_add_up(ticks: list[tuple[int, ...]]) -> None:
    """A share of interrupts counted twice made a host busy by 104 %."""
    low = [min(pair) for pair in zip(*ticks, strict=True)]
    high = [max(pair) for pair in zip(*ticks, strict=True)]
    texts = [f"cpu  {' '.join(map(str, each))} 0 0\n".encode() for each in (low, high)]
    result = shares(*texts)
    parts = (result.user, result.system, result.idle, result.iowait, result.steal)
    passed = sum(high) - sum(low)
    if not passed:
        assert parts == (None,) * 5
        return
    assert sum(part or 0 for part in parts) == pytest.approx(1)
    assert result.user == pytest.approx((high[0] + high[1] - low[0] - low[1]) / passed)
    assert result.interrupt == pytest.approx((high[5] + high[6] - low[5] - low[6]) / passed)


def test_meminfo_and_vmstat() -> None:
    """Huge pages are counted, the rest is kB; a name matches as a whole word."""
    data = b"MemTotal:   100 kB\nHugePages_Free:  7\nDirty: 3 MB\nFree: x kB\n"
    names = (b"MemTotal:", b"HugePages_Free:", b"Dirty:", b"Free:", b"Total:", b"Gone:")
    assert line_numbers(data, names) == [102400, 7, None, None, None, None]
    assert proc_files.parse_vmstat(b"a_oom_kill 4\noom_kill 3\n", b"oom_kill") == 3
    assert proc_files.parse_vmstat(b"oom_kill 5", b"oom_kill") == 5
    assert proc_files.parse_vmstat(b"oom_killer 5\n", b"oom_kill") is None


def test_pressure() -> None:
    """avg10 in percent; a kernel without `full` for the cpu; a share above 100 % is missing."""
    text = b"some avg10=1.84 avg60=0.94 avg300=0.24 total=4498343\n"
    share, *rest = pressure(text)
    assert share == pytest.approx(0.0184)
    assert rest == [None, 4498343, None]
    assert pressure(b"some avg10=101.00\nfull avg10=nan\n") == (None,) * 4


def test_diskstats_of_an_old_and_a_new_kernel() -> None:
    """11 fields before Linux 4.18, 17 since 5.5; a torn line is skipped, not read as zeros."""
    old = b"   8  0 sda 1 2 3 4 5 6 7 8 9 10 11\n"
    new = b" 259  0 nvme0n1 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n"
    torn = b"   8 16 sdb 1 2 3 4\n"
    disks = diskstats(old + new + torn, {b"sda": "a", b"sdb": "b", b"nvme0n1": "n"})
    eleven = (1, 3 * 512, 4, 5, 7 * 512, 8, 9, 10, 11)
    assert disks["a"] == [*eleven, *[None] * 5]
    assert disks["n"] == [*eleven, 12, 14 * 512, 15, 16, 17]
    assert "b" not in disks


def test_mounts_that_are_asked_and_those_that_may_hang() -> None:
    """statvfs of a dead NFS server held the agent for good: only local block filesystems are asked."""
    lines = [
        b"1 0 8:1 / / rw - ext4 /dev/sda1 rw,errors=remount-ro",
        b"2 1 8:1 /sub /bind ro - ext4 /dev/sda1 rw",
        b"3 1 0:40 / /pool rw shared:2 - btrfs /dev/sdb rw",
        b"4 1 8:3 / /a\\040b\\134c rw - xfs /dev/sdc1 emergency_ro,noatime",
        b"5 1 0:50 / /nfs rw - nfs4 server:/x rw",
        b"6 1 0:51 / /fuse rw - fuseblk /dev/sdd1 rw",
        b"7 1 7:0 / /snap ro - squashfs /dev/loop0 ro",
        b"8 1 0:52 / / rw - overlay overlay rw",
        b"9 1 7:1 / /image rw - ext4 /dev/loop1 rw",
        b"10 1 43:0 / /net rw - ext4 /dev/nbd0 rw",
        b"broken",
    ]
    mounts = storage.parse_mountinfo(b"\n".join(lines))
    assert [(m.point, m.read_only) for m in mounts] == [
        ("/", False),
        ("/pool", False),
        ("/a b\\c", True),
    ]


@given(RANGES, st.lists(st.integers(0, 1 << 50), max_size=30))
def test_energy_is_unwrapped_at_its_own_range(range_uj: int, steps: list[int]) -> None:
    """RAPL's range is not a power of two; unwrapping at 2^32 gave a gigawatt for a second."""
    meter = Meter(range_uj)
    raw = total = 0
    assert meter.add(raw) == 0
    for step in (step % (range_uj // 8) for step in steps):
        total += step
        raw = (raw + step) % range_uj
        assume(classify(raw) is None)
        assert meter.add(raw) == total


@given(st.none() | RANGES, st.lists(st.none() | st.integers(0, U64_MAX), max_size=30))
@example(None, [0, U64_MAX - 1, 0, 2])
def test_energy_is_never_invented(range_uj: int | None, readings: list[int | None]) -> None:
    """A reloaded driver, garbage: the sum never falls, and no step exceeds the true distance."""
    meter, total, last = Meter(range_uj or 0), 0, None
    for reading in readings:
        step = counter_delta(last, reading, CounterSpec(wraps_after=range_uj or 0))
        sum_now = meter.add(reading)
        if reading is None or classify(reading) is not None or 0 < (range_uj or 0) < reading:
            assert sum_now is None
            continue
        last = reading
        if total + (step or 0) <= U64_MAX:  # larger values are skipped: a sum never falls
            total += step or 0
        assert sum_now == total


def test_energy_without_a_range_or_a_reading() -> None:
    """Less energy than consumed, never more; a missed reading is missing, not zero."""
    meter = Meter()
    assert [meter.add(n) for n in (5, None, 6, 1, 2, BLANK_32)] == [0, None, 1, 1, 2, None]


def test_chain_to_the_root_and_nearness(tmp_path: Path) -> None:
    """A GPU whose traffic to its NIC crosses the sockets runs at a third of the speed."""
    path = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0"
    parents, root = pci.chain_to_root(path)
    assert parents == ("0000:17:00.0", "0000:16:00.0", "0000:15:01.0")
    assert root == "pci0000:15"
    assert pci.chain_to_root("/sys/devices/platform/x") == ((), "")


def test_kept_file_outlives_its_file(tmp_path: Path) -> None:
    """Read from the start each time; an unreadable file is empty, and found when it appears."""
    path = tmp_path / "stat"
    kept = OpenFile(path)
    assert kept.read() == b""
    assert not kept.denied
    path.write_text("one")
    assert kept.read() == b"one"
    path.write_text("two")
    assert kept.read() == b"two"
    path.write_bytes(b"x" * 200_000)
    assert len(kept.read()) == 200_000
    kept.close()
    assert kept.read().startswith(b"x")
    kept.close()


def test_names_and_texts_of_nothing(tmp_path: Path) -> None:
    """A missing folder has no names; an undecodable text has replacement characters."""
    assert names_in(tmp_path / "gone") == []
    assert read_text(tmp_path / "gone") is None
    assert read_text(tmp_path / "zero\0byte") is None
    (tmp_path / "odd").write_bytes(b"a\xff\n")
    assert read_text(tmp_path / "odd") == "a\N{REPLACEMENT CHARACTER}"
