"""Disks, filesystems and NVMe controllers: their readings, and the ones that must not be requested."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.collector import CollectOutcome, NoData, run_collector
from gangline.agent.collectors.disk import COUNTERS, Disks, Filesystems
from gangline.agent.collectors.nvme import NvmeControllers, NvmeSmart
from gangline.agent.hardware import nvme, storage
from gangline.agent.inventory import host as kernel
from gangline.contract.block import Block
from gangline.ext.hostfiles import diskstats
from tests import hosts
from tests.hosts.reading import StoppedClock, rows_of
from tests.processes import GUARD_SECONDS

U64_MAX = (1 << 64) - 1

#: In a mount namespace of its own, mounts a FUSE file system that never answers, then runs a turn.
HANGING_MOUNT = """
import ctypes, os, sys
from pathlib import Path
libc = ctypes.CDLL(None, use_errno=True)
def must(answer):
    if answer < 0:
        print("cannot:", os.strerror(ctypes.get_errno())); sys.exit(77)
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
must(libc.unshare(CLONE_NEWNS))
must(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
try:
    fuse = os.open("/dev/fuse", os.O_RDWR)
except OSError as error:
    print("cannot:", error); sys.exit(77)
point = sys.argv[1]
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
must(libc.mount(b"/dev/sdz1", point.encode(), b"fuse.hanging", 0, options))
from gangline.agent.collectors.disk import Filesystems
from gangline.agent.collectors.network_fs import NfsMounts
from gangline.agent.hardware.files import Roots
from gangline.agent.inventory import host as kernel
from gangline.agent.collector import NoData
assert point in Path("/proc/self/mountinfo").read_text()
for make in (Filesystems, NfsMounts):
    try:
        assert point not in make(Roots()).collect()[0].devices
    except NoData:
        pass
print([d.kind for d in kernel.filesystems(Roots()) if d.key == point])
sys.stdout.flush()
os._exit(0)
"""


def rows(block: Block) -> dict[str, dict[str, float | int | None] | None]:
    return dict(rows_of(block))


@given(
    st.lists(
        st.integers(0, U64_MAX).map(str) | st.sampled_from(["-1", "N/A", "9" * 30, "\xff"]),
        max_size=20,
    )
)
def test_a_line_of_diskstats_is_its_columns_or_nothing(words: list[str]) -> None:
    """14 columns of Linux 4.18, 17 of 5.5, more in future; a non-number skips the line."""
    line = f" 259 0 nvme0n1 {' '.join(words)}\n".encode("latin-1")
    counts = diskstats(line, {b"nvme0n1": "nvme0n1"}).get("nvme0n1")
    disk = dict(zip(COUNTERS, counts, strict=True)) if counts else {}
    if not counts or disk["disk.reads_operations"] is None:
        whole = all(w.isdecimal() and int(w) <= U64_MAX for w in words[:17])
        large = any(w.isdecimal() and int(w) * 512 > U64_MAX for w in words[2:14])
        assert len(words) < 11 or not whole or large
        return
    numbers = [int(w) for w in words[:17]]
    assert disk["disk.reads_operations"] == numbers[0]
    assert disk["disk.read_bytes"] == numbers[2] * 512
    assert disk["disk.inflight_count"] == (numbers[8] if numbers[8] < 1 << 31 else None)
    assert disk["disk.queue_milliseconds"] == numbers[10]
    assert disk["disk.discards_operations"] == (numbers[11] if len(numbers) > 14 else None)
    assert disk["disk.flushes_operations"] == (numbers[15] if len(numbers) > 16 else None)
    assert disk["disk.flush_milliseconds"] == (numbers[16] if len(numbers) > 16 else None)


def test_a_disk_that_was_pulled_out_leaves_no_row(host: hosts.HostFolder) -> None:
    """Hot-unplugged: its last value must not remain, and after replugging the counters start at 0."""
    disks = Disks(host.roots)
    assert set(rows(disks.collect()[0])) == {"nvme0n1", "nvme1n1"}
    stats = host.roots.proc / "diskstats"
    whole = stats.read_text()
    stats.write_text("".join(x for x in whole.splitlines(True) if "nvme1n1" not in x))
    assert rows(disks.collect()[0])["nvme1n1"] is None  # removed before the list is updated
    (host.roots.sys / "block/nvme1n1").unlink()
    seen = [set(rows(disks.collect()[0])) for _ in range(10)]
    assert seen[-1] == {"nvme0n1"}


def test_inodes_and_a_filesystem_that_has_none(host: hosts.HostFolder) -> None:
    """A cache of small files was full with half its bytes free; btrfs reports 0 of 0."""

    def statvfs(point: str) -> os.statvfs_result:
        files = (1000, 10, 7) if point == "/" else (0, 0, 0)
        return os.statvfs_result((4096, 4096, 100, 50, 40, *files, 0, 255))

    result = rows(Filesystems(host.roots, statvfs).collect()[0])
    root, scratch = result["/"], result["/scratch disk"]
    assert root and scratch
    assert (root["inodes_count"], root["inodes_available_count"]) == (1000, 7)
    assert (scratch["inodes_count"], scratch["inodes_available_count"]) == (None, None)
    assert scratch["size_bytes"] == 100 * 4096


def test_mounts_of_another_root_are_not_asked_here(tmp_path: Path) -> None:
    """An agent in a container reported the size of its own overlay as the host's /."""
    result = rows(Filesystems(hosts.unpack("h100-ib", tmp_path).roots).collect()[0])
    root, scratch = result["/"], result["/scratch disk"]
    assert root and root["size_bytes"] is None and root["read_only_state"] == 0
    assert scratch and scratch["size_bytes"] is None and scratch["read_only_state"] == 1


def test_network_mounts_are_listed_and_never_asked(host: hosts.HostFolder) -> None:
    """statvfs of a dead server does not return; the inventory still lists the mount."""
    asked: list[str] = []

    def statvfs(point: str) -> os.statvfs_result:
        asked.append(point)
        raise OSError(errno.EIO, "no")

    collector = Filesystems(host.roots, statvfs)
    collector.collect()
    assert asked == ["/", "/scratch disk"]
    kinds = {d.key: (d.kind, d.attributes["type"]) for d in kernel.filesystems(host.roots)}
    assert kinds["/home"] == ("nfs", "nfs4")
    assert kinds["/lustre"] == ("lustre", "lustre")
    assert kinds["/mnt/fuse"] == ("network_filesystem", "fuse.sshfs")


def test_a_filesystem_that_hangs_does_not_hang_the_turn(tmp_path: Path) -> None:
    """A FUSE daemon stopped: each reader of its mount waited forever. With a real mount."""
    point = tmp_path / "hanging"
    point.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", HANGING_MOUNT, str(point)],
        check=False,
        capture_output=True,
        text=True,
        timeout=GUARD_SECONDS,
    )
    if done.returncode == 77:
        pytest.skip(f"no FUSE mount here: {done.stdout.strip()}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['network_filesystem']"


def page(**fields: int) -> bytes:
    """Return a SMART page by the field names of the specification's figure; other bytes are zero."""
    places = {
        "warning": (0, 1), "kelvin": (1, 2), "spare": (3, 1), "threshold": (4, 1), "used": (5, 1),
        "units_read": (32, 16), "units_written": (48, 16), "busy_minutes": (96, 16),
        "cycles": (112, 16), "hours": (128, 16), "unsafe": (144, 16), "media": (160, 16),
        "entries": (176, 16), "warm": (192, 4), "hot": (196, 4), "light": (216, 4), "heavy": (220, 4),
    }  # fmt: skip
    data = bytearray(512)
    for name, value in fields.items():
        at, size = places[name]
        data[at : at + size] = value.to_bytes(size, "little")
    return bytes(data)


def test_a_smart_page_is_read_by_the_specification() -> None:
    """One byte off, and the unsafe shutdowns are media errors."""
    log = nvme.parse_smart_page(
        page(
            warning=0x0C, kelvin=317, spare=100, threshold=10, used=103, units_read=7, units_written=9,
            busy_minutes=11, cycles=12, hours=13, unsafe=14, media=15, entries=16, warm=17, hot=18,
            light=19, heavy=20,
        )
    )  # fmt: skip
    assert log == nvme.SmartLog(
        critical_warning=0x0C, temperature_celsius=44, spare_ratio=1.0, spare_threshold_ratio=0.1,
        used_ratio=1.03, read_bytes=7 * 512_000, written_bytes=9 * 512_000, busy_seconds=660,
        power_cycles=12, power_on_seconds=13 * 3600, unsafe_shutdowns=14, media_errors=15,
        error_log_entries=16, warning_temperature_seconds=17 * 60, critical_temperature_seconds=18 * 60,
        light_throttles=19, heavy_throttles=20,
    )  # fmt: skip


def test_what_virtual_and_dead_drives_say_is_no_reading() -> None:
    """A cloud's NVMe leaves its page at zero: 0 % spare and -273 degrees would drain the fleet."""
    empty = nvme.parse_smart_page(page())
    assert empty and (empty.temperature_celsius, empty.spare_ratio) == (None, None)
    assert empty.spare_threshold_ratio is None and empty.media_errors == 0
    worn = nvme.parse_smart_page(page(spare=0, threshold=10))
    assert worn and worn.spare_ratio == 0
    blank = nvme.parse_smart_page(page(media=(1 << 128) - 1, units_read=U64_MAX, light=0xFFFFFFFF))
    assert blank and (blank.media_errors, blank.read_bytes, blank.light_throttles) == (None,) * 3
    assert nvme.parse_smart_page(b"\xff" * 512) is None
    assert nvme.parse_smart_page(b"") is nvme.parse_smart_page(bytes(511)) is None


@given(st.binary(min_size=512, max_size=512) | st.binary(max_size=600))
def test_no_smart_page_makes_a_value_that_a_cell_cannot_hold(data: bytes) -> None:
    """128-bit counters, percentages of 255, a page cut short."""
    log = nvme.parse_smart_page(data)
    if log is None:
        assert len(data) != 512 or data == b"\xff" * 512
        return
    for name in nvme.SmartLog.__slots__:
        value = getattr(log, name)
        assert value is None or name == "temperature_celsius" or 0 <= value <= U64_MAX
    assert log.temperature_celsius is None or -73 <= log.temperature_celsius <= 227
    assert log.spare_ratio is None or log.spare_ratio <= 1


def test_the_ioctl_is_the_kernels(tmp_path: Path) -> None:
    """A wrong number or offset sends another command to a drive."""
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <sys/ioctl.h>\n#include <linux/nvme_ioctl.h>\n"
        "typedef struct nvme_passthru_cmd C;\n"
        'int main(void) { printf("%zu %lu %zu %zu %zu %zu %zu", sizeof(C), (unsigned long)'
        "NVME_IOCTL_ADMIN_CMD, offsetof(C, nsid), offsetof(C, addr), offsetof(C, data_len), "
        "offsetof(C, cdw10), offsetof(C, timeout_ms)); return 0; }\n"
    )
    compiler = shutil.which("cc") or shutil.which("gcc")
    if (
        not compiler
        or subprocess.run(
            [compiler, "-o", program, source],
            check=False,
            capture_output=True,
            timeout=GUARD_SECONDS,
        ).returncode
    ):
        pytest.skip("no C compiler with linux/nvme_ioctl.h here")
    printed = subprocess.run([program], capture_output=True, check=True, timeout=GUARD_SECONDS)
    size, number, *offsets = map(int, printed.stdout.split())
    assert (size, number) == (nvme._PASSTHROUGH.size, nvme._ADMIN_COMMAND)
    packed = nvme._PASSTHROUGH.pack(1, 0, 0, 2, 0, 0, 0, 3, 0, 4, 5, 0, 0, 0, 0, 0, 6, 0)
    marks = [struct.unpack_from("<I", packed, offset)[0] for offset in offsets]
    assert marks == [2, 3, 4, 5, 6]


def test_what_is_no_drive_refuses_the_command(tmp_path: Path) -> None:
    """The name led to a file, and to a fifo without a writer: an error, and no wait."""
    file, fifo = tmp_path / "nvme0", tmp_path / "nvme1"
    file.write_bytes(bytes(512))
    os.mkfifo(fifo)
    for path in (file, fifo):
        with pytest.raises(OSError) as refused:
            nvme.read_smart_page(path)
        assert refused.value.errno == errno.ENOTTY
    assert file.read_bytes() == bytes(512)


def test_smart_without_the_right_to_ask_is_blind_in_part(host: hosts.HostFolder) -> None:
    """Temperature needs no capability and stays; the message names the capability."""

    def refuse(device: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(device))

    turn = run_collector(NvmeSmart(host.roots, refuse), StoppedClock())
    assert turn.outcome is CollectOutcome.BLIND
    assert "nvme0" in turn.message and "CAP_SYS_ADMIN" in turn.message
    drive = rows(turn.blocks[0])["nvme0"]
    assert drive and drive["temperature_celsius"] == 43.85 and drive["media_errors"] is None


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOENT, "PrivateDevices=no"), (errno.EPERM, "CAP_SYS_ADMIN"), (errno.ENOTTY, "")],
)
def test_what_opens_the_smart_log_is_what_closes_it(code: int, words: str, tmp_path: Path) -> None:
    """In a container without /dev/nvme0 a capability was reported missing although it was there."""

    def refuse(device: Path) -> bytes:
        raise OSError(code, os.strerror(code), str(device))

    turn = run_collector(NvmeSmart(hosts.unpack("h100-ib", tmp_path).roots, refuse), StoppedClock())
    assert turn.outcome is (CollectOutcome.BLIND if words else CollectOutcome.OK)
    assert words in turn.message


def test_another_drive_or_disk_by_the_same_name(host: hosts.HostFolder) -> None:
    """A worn drive took a new one's slot: its fifty media errors counted as those of one minute."""
    smart, disks = NvmeSmart(host.roots, lambda device: page(media=50)), Disks(host.roots)
    sequence = host.roots.sys / "block/nvme0n1/diskseq"
    sequence.write_text("9\n")

    def epochs() -> tuple[object, object]:
        drive, disk = rows(smart.collect()[0])["nvme0"], rows(disks.collect()[0])["nvme0n1"]
        assert drive and disk
        return drive["counter_epoch_count"], disk["counter_epoch_count"]

    before = epochs()
    assert epochs() == before and before[1] == 9
    (host.roots.sys / "class/nvme/nvme0/serial").write_text("ANOTHER\n")
    sequence.write_text("12\n")
    (host.roots.sys / "block/nvme0n2").mkdir()  # a plugged drive changes the folder
    after = epochs()
    assert after[0] != before[0] and after[1] == 12


def test_only_a_live_and_wakeful_controller_is_asked(host: hosts.HostFolder) -> None:
    """A command to a controller in reset held the turn; another woke a suspended controller."""
    asked: list[str] = []

    def read(device: Path) -> bytes:
        asked.append(device.name)
        return page(kelvin=300, spare=99, threshold=10, media=3)

    smart = NvmeSmart(host.roots, read)
    result = rows(smart.collect()[0])
    assert asked == ["nvme0"]  # nvme1 resets
    assert result["nvme1"] is None
    drive = result["nvme0"]
    assert drive and (drive["temperature_celsius"], drive["media_errors"]) == (27.0, 3)
    assert smart.access_error == ""
    power = host.roots.sys / "class/nvme/nvme0/device/power"
    power.mkdir(parents=True)
    (power / "runtime_status").write_text("suspended\n")
    assert rows(smart.collect()[0])["nvme0"] is None
    assert asked == ["nvme0"]


def test_one_bad_drive_does_not_cost_its_neighbour(host: hosts.HostFolder) -> None:
    """A drive that refuses the log page or returns half of it: the other drive is read."""
    (host.roots.sys / "class/nvme/nvme1/state").write_text("live\n")
    for broken in (b"short", OSError("the controller rejects log page 02h, NVMe status 0x4002")):

        def read(device: Path, broken: bytes | OSError = broken) -> bytes:
            if device.name == "nvme1":
                return page(media=8, kelvin=310)
            if isinstance(broken, OSError):
                raise broken
            return broken

        result = rows(NvmeSmart(host.roots, read).collect()[0])
        good, bad = result["nvme1"], result["nvme0"]
        assert good and good["media_errors"] == 8
        assert bad and bad["media_errors"] is None


def test_states_of_controllers(host: hosts.HostFolder) -> None:
    """A dead controller keeps its name in sysfs; an unknown state is missing."""
    controllers = NvmeControllers(host.roots)
    state = host.roots.sys / "class/nvme/nvme1/state"
    for word, code in {
        "live": 1,
        "dead": 6,
        "deleting (no IO)": 5,
        "asleep": None,
        "": None,
    }.items():
        state.write_text(f"{word}\n")
        row = rows(controllers.collect()[0])["nvme1"]
        assert (row and row["controller_state"]) == code
    (host.roots.sys / "class/nvme/nvme1").unlink()
    assert set(rows(controllers.collect()[0])) == {"nvme0"}
    shutil.rmtree(host.roots.sys / "class/nvme")
    with pytest.raises(NoData, match="NVMe"):
        controllers.collect()


@given(st.text(max_size=20))
def test_any_word_is_a_state_or_none(word: str) -> None:
    """`N/A`, another kernel's state, another script: no code is invented."""
    assert nvme.parse_nvme_state(word) == nvme.NVME_STATES.get(word)


def test_the_sensor_of_a_controller_in_old_and_new_kernels(tmp_path: Path) -> None:
    """Before Linux 5.12 the hwmon folder was the PCI device's, which may contain another chip's."""
    new, old = tmp_path / "nvme0", tmp_path / "nvme1"
    for folder, name in (
        (new / "hwmon4", "nvme"),
        (old / "device/hwmon/hwmon1", "acpitz"),
        (old / "device/hwmon/hwmon2", "nvme"),
    ):
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
    assert nvme.sensor_folder(new) == new / "hwmon4"
    assert nvme.sensor_folder(old) == old / "device/hwmon/hwmon2"
    assert nvme.sensor_folder(tmp_path / "nvme2") is None


def test_disks_tell_their_queue_and_controllers_their_disks(host: hosts.HostFolder) -> None:
    """A scheduler left at bfq on a fast drive; and which drive to pull out of which slot."""
    disk = {d.key: d.attributes for d in kernel.disks(host.roots)}["nvme0n1"]
    assert (disk["scheduler"], disk["queue_requests"]) == ("none", "1023")
    drive = {d.key: d.attributes for d in kernel.nvme_controllers(host.roots)}["nvme0"]
    assert (drive["serial"], drive["disks"]) == ("S6EXAMPLE0000", "nvme0n1")
    assert (drive["firmware"], drive["pci_address"]) == ("GDC7", "0000:1e:00.0")


def test_paths_of_one_namespace_are_disks_of_their_own(tmp_path: Path) -> None:
    """NVMe with two paths: the namespace and each path have a row; none is left out, none added up."""
    for name in ("nvme0n1", "nvme0c0n1", "nvme0c1n1"):
        (tmp_path / "block" / name / "device").mkdir(parents=True)
    (tmp_path / "block/dm-0").mkdir()
    result = storage.disks_with_backing(tmp_path)
    assert result == ["nvme0c0n1", "nvme0c1n1", "nvme0n1"]
