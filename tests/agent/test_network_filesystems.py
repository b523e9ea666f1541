"""NFS and Lustre clients, from the kernel's own texts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.collector import Collector, CollectOutcome, NoData, run_collector
from gangline.agent.collectors.lustre import LustreMounts, LustreTargets, mount_points
from gangline.agent.collectors.network_fs import NfsMounts
from gangline.agent.hardware import lustre, nfs, storage
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.lustre import LustreImport, LustreStat
from gangline.contract.block import Block
from tests import hosts
from tests.hosts.reading import StoppedClock, rows_of

DATA = Path(__file__).parents[2] / "../shared/data/rdma/procfs_fixtures.ttar"
U64_MAX = (1 << 64) - 1
#: Columns of a mount: calls of all kinds, transmissions, major timeouts, errors.
ALL_CALLS = slice(17, 21)
#: Bytes mixed with the keywords of the parsers, so that they pass the first step.
WORDS = (
    b"device ", b"server:/x mounted on /mnt with fstype nfs4 statvers=1.1\n", b" mounted on ", b"/a\\040b ",
    b"with fstype nfs ", b"\tage:\t", b"\tbytes:\t", b"\txprt:\ttcp ", b"\txprt:\tudp ", b"\txprt:\trdma ",
    b"\t  READ: ", b"\t WRITE: ", b"\tREAD_PLUS: ", b" 1", b" 99999999999999999999", b" 18446744073709551615",
    b" -1", b" N/A", b"\n", b"\n\n", b"  ", b"\xff", b"read_bytes 5 samples [bytes] 1 2 3\n", b" samples ",
    b"[usec]", b"import:\n", b"    state: FULL\n", b"       timeouts: 7\n", b"       generation:", b"\0",
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(WORDS) | st.binary(max_size=8), max_size=60).map(b"".join)


def rows(block: Block) -> dict[str, dict[str, float | int | None] | None]:
    return dict(rows_of(block))


@given(TEXTS)
def test_no_text_makes_a_parser_raise_or_invent(data: bytes) -> None:
    """A client of another version writes other lines; unknown lines are missing."""
    for mount in nfs.parse_mountstats(data):
        assert mount.type in ("nfs", "nfs4")
        assert len(mount.values) == 27
        assert all(n is None or 0 <= n < 1 << 63 for n in mount.values[:17])
        assert all(n is None or 0 <= n <= U64_MAX for n in mount.values)
    for stat in lustre.parse_lustre_stats(data).values():
        assert 0 <= stat.samples <= U64_MAX and (stat.total is None or stat.total <= U64_MAX)
    parsed = lustre.parse_lustre_import(data)
    assert parsed.state is None or parsed.state in lustre.LUSTRE_STATES.values()
    assert parsed.timeouts is None or 0 <= parsed.timeouts <= U64_MAX
    for each in storage.parse_network_mounts(data):
        assert each.type not in storage.LOCAL_FILESYSTEMS


@given(TEXTS)
def test_no_mountstats_makes_the_collector_fail(data: bytes) -> None:
    """Sums of hostile columns exceed 64 bits: the cell is missing, but the turn succeeds."""
    collector = NfsMounts(Roots(Path("/nowhere"), Path("/nowhere")))

    class Text:
        def read(self) -> bytes:
            return data

    collector._stats = Text()  # type: ignore[assignment]
    assert run_collector(collector, StoppedClock()).outcome in (
        CollectOutcome.OK,
        CollectOutcome.NO_DATA,
    )


def test_a_long_run_of_blanks_is_read_in_a_moment() -> None:
    """A pattern that restarted at each blank took minutes for a megabyte of them."""
    for text in (b"\n" * 1_000_000, b" " * 1_000_000, b"\t: " * 300_000, b"device " * 100_000):
        assert nfs.parse_mountstats(text) == []
        assert lustre.parse_lustre_stats(text) == {}
        assert lustre.parse_lustre_import(text) == LustreImport(None, None, None, None, None, None)


def mounted(source: str, point: str, body: str, kind: str = "nfs4") -> str:
    return f"device {source} mounted on {point} with fstype {kind} statvers=1.1\n{body}"


def test_bind_mounts_of_one_source_are_one_mount() -> None:
    """A Kubernetes host bound one export into 200 pods, and its traffic was counted 200 times."""
    body = "\tage:\t9\n\tper-op statistics\n\t        READ: 5 6 1 0 0 2 3 4 0\n"
    text = mounted("s:/x", "/a", body) + mounted("s:/x", "/pods/1", body)
    text += mounted("s:/y", "/pods/2", body) + mounted("tmpfs", "/t", "", "tmpfs")
    result = nfs.parse_mountstats(text.encode())
    assert [mount.point for mount in result] == ["/a", "/pods/2"]
    assert result[0].reads == [5, 6, 1, 2, 3, 4, 0] and result[0].values[ALL_CALLS] == [5, 6, 1, 0]


def test_transports_of_every_kind() -> None:
    """TCP with nconnect, RDMA with additional columns, UDP without a connection, an unknown one."""

    def of(*lines: str) -> list[int | None]:
        body = "".join(f"\txprt:\t{line}\n" for line in lines)
        (mount,) = nfs.parse_mountstats(mounted("s:/x", "/a", body).encode())
        return mount.transport

    tcp = "tcp 832 0 1 0 11 6428 6427 2 0 12154 0 24 26 5726"
    assert of(tcp) == [1, 6428, 6427, 2, 12154, 11]
    assert of(tcp, tcp.replace(" 11 ", " 7 ")) == [2, 12856, 12854, 4, 24308, 7]
    rdma = "rdma 0 0 3 0 7 100 99 0 55 66 1 2 3 4 5 6 7 8 9 10 11 12 13"
    assert of(rdma) == [3, 100, 99, 0, 66, 7]
    assert of("udp 700 1 40 39 0 5 6 0 0 0") == [None, 40, 39, 0, 6, None]
    nothing = [None] * 6
    assert of("carrier-pigeon 1 2 3 4 5 6 7 8 9 10") == of("tcp 1 2") == of() == nothing
    assert of(tcp, "tcp 1 2") == of("tcp 1 2", tcp) == nothing  # half a sum would seem to fall


def test_columns_that_are_none_cost_themselves() -> None:
    """A time of -1 ms as 2^64 - 1; kernels before 5.3 without errors; a text cut in its last line."""
    lines = (
        "\t        READ: 1 2 3 4 5 18446744073709551615 7 8\n"
        "\t       WRITE: 1 2 3\n"
        "\t      ACCESS: 1 2 3 4 5 6 7 88"
    )
    (mount,) = nfs.parse_mountstats(mounted("s:/x", "/a", lines).encode())
    assert mount.reads == [1, 2, 3, None, 7, 8, None]
    assert mount.writes == [None] * 7
    assert mount.values[ALL_CALLS] == [None] * 4
    whole = nfs.parse_mountstats(
        mounted("s:/x", "/a", lines.replace("WRITE: 1 2 3\n", "")).encode()
    )
    assert whole[0].values[ALL_CALLS] == [1, 2, 3, None]  # of READ: 88 may be the beginning of 8812
    large = f"\tREAD: {1 << 62} 1 1 1 1 1 1 1 1\n" * 5
    assert nfs.parse_mountstats(mounted("s:/x", "/a", large).encode())[0].values[ALL_CALLS] == [
        None,
        5,
        5,
        5,
    ]


def test_a_mount_that_goes_and_one_that_comes(tmp_path: Path) -> None:
    """Unmounted: no row; mounted again: counters restart, as the age shows; the last one: no data."""
    host = hosts.unpack("h100-ib", tmp_path)
    stats = host.roots.proc / "self/mountstats"
    collector = NfsMounts(host.roots)
    home = rows(collector.collect()[0])["/home"]
    assert home and home["all_errors"] == 19 and home["connects_count"] == 3
    body = "\tage:\t4\n\tbytes:\t0 0 0 0 11 12 0 0\n"
    stats.write_text(stats.read_text() + mounted("s:/new", "/n\\040w", body))
    new = rows(collector.collect()[0])["/n w"]
    assert new and (new["age_seconds"], new["read_bytes"], new["all_operations"]) == (4, 11, None)
    stats.write_text(mounted("s:/new", "/n\\040w", body))
    assert set(rows(collector.collect()[0])) == {"/n w"}
    stats.write_text("device proc mounted on /proc with fstype proc\n")
    with pytest.raises(NoData, match="NFS"):
        collector.collect()


def test_lustre_counts_sums_and_what_never_happened(tmp_path: Path) -> None:
    """An operation that never happened has no line: missing, not zero."""
    text = (
        b"snapshot_time             1751400000.1 secs.nsecs\n"
        b"read_bytes                7 samples [bytes] 0 4096 20480\n"
        b"open                      3 samples [usec] 1 2 5 99\n"
        b"getattr                   9 samples [reqs]\n"
        b"close                     x samples [reqs]\n"
        b"sync                      4 samples [usec] 1 2 18446744073709551616\n"
    )
    assert lustre.parse_lustre_stats(text) == {
        "read_bytes": LustreStat(7, 20480),
        "open": LustreStat(3, 5),
        "getattr": LustreStat(9, None),
        "sync": LustreStat(4, None),
    }
    collector = LustreMounts(hosts.unpack("h100-ib", tmp_path).roots)
    mount = rows(collector.collect()[0])["/lustre"]
    assert mount and mount["read_bytes"] == 16_000_000_000
    assert mount["write_microseconds"] is None


@pytest.mark.parametrize("make", [LustreMounts, LustreTargets])
def test_a_host_without_lustre_is_looked_at_each_minute_and_the_turns_between_are_passed_over(
    make: type[LustreMounts | LustreTargets], tmp_path: Path
) -> None:
    """Most hosts have no Lustre. A client mounted later is found in the next turn that checks."""
    roots = hosts.unpack("plain-vm", tmp_path).roots
    collector = make(roots)
    for _ in range(2):
        assert not collector.skip()
        with pytest.raises(NoData):
            collector.collect()
        assert [collector.skip() for _ in range(5)] == [True] * 5
    there = hosts.unpack("h100-ib", tmp_path / "there").roots
    for tree in ("sys/fs/lustre", "proc/fs/lustre"):
        if (source := there.sys.parent / tree).is_dir():
            shutil.copytree(source, roots.sys.parent / tree)
    assert not collector.skip()
    assert run_collector(collector, StoppedClock()).outcome is CollectOutcome.BLIND
    assert not collector.skip(), "there is one"


def test_an_import_says_how_it_stands_with_a_target(tmp_path: Path) -> None:
    """An OST evicted the client: reads hung, and no counter of the mount changed."""
    collector = LustreTargets(hosts.unpack("h100-ib", tmp_path).roots)
    result = rows(collector.collect()[0])
    assert set(result) == {"fs-MDT0000", "fs-OST0000", "fs-OST0001"}
    lost = result["fs-OST0001"]
    assert lost and (lost["connection_state"], lost["timeouts_count"]) == (3, 61)
    evicted = lustre.parse_lustre_import(b"import:\n    state: EVICTED\n\0\0       generation: 2\n")
    assert evicted == LustreImport(10, None, 2, None, None, None)
    assert lustre.parse_lustre_import(b"import:\n    state: NAPPING\n").state is None


@pytest.mark.parametrize("make", [LustreMounts, LustreTargets])
def test_lustre_in_debugfs(make: type[LustreMounts | LustreTargets], tmp_path: Path) -> None:
    """All see the mount in /sys/fs/lustre; its numbers are root's: the message has the remedy."""
    host = hosts.unpack("h100-ib", tmp_path)
    shutil.rmtree(host.roots.sys / "kernel/debug/lustre")
    collector: Collector = make(host.roots)
    turn = run_collector(collector, StoppedClock())
    assert turn.outcome is CollectOutcome.BLIND and not turn.blocks
    assert "CAP_DAC_READ_SEARCH" in turn.message


def test_one_hidden_target_costs_its_own_row(tmp_path: Path) -> None:
    """A target that is being removed has no import: the others are read, and the message names it."""
    host = hosts.unpack("h100-ib", tmp_path)
    name = "fs-OST0001-osc-ffff9e1234567800"
    (host.roots.sys / "kernel/debug/lustre/osc" / name / "import").unlink()
    turn = run_collector(LustreTargets(host.roots), StoppedClock())
    assert turn.outcome is CollectOutcome.BLIND and name in turn.message
    result = rows(turn.blocks[0])
    assert result["fs-OST0001"] is None
    assert result["fs-OST0000"] and result["fs-OST0000"]["connection_state"] == 9


def test_two_mounts_of_one_lustre_stay_apart() -> None:
    """Two instances of one file system keep their names instead of mount points."""
    mounts = b"1 0 0:1 / /a rw - lustre 10.0.0.1@o2ib:/fs rw\n2 0 0:2 / /b rw - lustre 10.0.0.1@o2ib:/fs rw\n"
    both = ["fs-ffff9e1234567800", "fs-ffff9e1234567801"]
    assert list(mount_points(both, mounts).values()) == both
    assert mount_points(both[:1], mounts[: mounts.index(b"2 0")]) == {both[0]: "/a"}
    assert list(mount_points(both, mounts[: mounts.index(b"2 0")]).values()) == both
    folder = b"1 0 0:1 / /home rw - lustre 10.0.0.1@o2ib,10.0.0.2@o2ib:/home/users rw"
    assert mount_points(["home-ffff9e1234567800"], folder) == {"home-ffff9e1234567800": "/home"}


@pytest.mark.skipif(not DATA.exists(), reason="the recordings of ../shared/data are not here")
def test_a_recorded_mountstats_is_read_as_written() -> None:
    """A client with a line of impossible numbers among true ones."""
    archive = DATA.read_bytes().split(b"Path: fixtures/proc/26231/mountstats\nLines: 20\n")[1]
    (mount,) = nfs.parse_mountstats(archive.partition(b"Mode:")[0])
    assert (mount.point, mount.age_seconds) == ("/mnt/nfs/test", 13968)
    assert mount.reads == [1298, 1298, 0, 6, 79386, 79407, None]
    assert mount.transport == [1, 6428, 6428, 0, 0, 11]
