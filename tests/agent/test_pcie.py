"""PCIe: errors by type, settings in configuration space, functions that are removed and reinserted."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.collector import CollectOutcome, run_collector
from gangline.agent.collectors import pcie
from gangline.agent.collectors.pcie_settings import PcieMinute
from gangline.agent.events import EventPublisher
from gangline.agent.frame_builder import FrameBuilder
from gangline.agent.hardware import pci
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.pci_config import ConfigHidden, ExpressRegisters, parse_express
from gangline.contract import counters
from gangline.contract import frame as frames
from gangline.contract.signals import BY_NAME, TABLES
from gangline.contract.wire import telemetry_pb2
from tests import hosts
from tests.hosts.reading import StoppedClock, rows_of

GPU = "0000:18:00.0"
BRIDGE = "0000:15:01.0"
#: The names of drivers/pci/pcie/aer.c in the order of their bits.
CORRECTABLE = [
    "RxErr",
    "BadTLP",
    "BadDLLP",
    "Rollover",
    "Timeout",
    "NonFatalErr",
    "CorrIntErr",
    "HeaderOF",
]
UNCORRECTABLE = [
    "Undefined",
    "DLP",
    "SDES",
    "TLP",
    "FCP",
    "CmpltTO",
    "CmpltAbrt",
    "UnxCmplt",
    "RxOF",
    "MalfTLP",
    "ECRC",
    "UnsupReq",
    "ACSViol",
    "UncorrIntErr",
    "BlockedTLP",
    "AtomicOpBlocked",
    "TLPBlockedErr",
    "PoisonTLPBlocked",
    "DMWrReqBlocked",
    "IDECheck",
    "MisIDETLP",
    "PCRC_CHECK",
    "TLPXlatBlocked",
]


def write_aer(folder: Path, severity: str, words: list[str], total: str, first: int) -> None:
    """Write a file of AER like the kernel: each name with its own number, then the total."""
    lines = [f"{word} {first + n}" for n, word in enumerate(words)]
    (folder / f"aer_dev_{severity}").write_text("\n".join([*lines, f"TOTAL_ERR_{total} 9999\n"]))


def changes_of(roots: Roots) -> dict[str, dict[str, float | int | None] | None]:
    return dict(rows_of(pcie.PcieTenSeconds(roots).collect()[1]))


def test_every_type_of_error_is_a_signal_of_its_own(host: hosts.HostFolder) -> None:
    """A `fatal` by a surprise-down is a cable, by a malformed packet the device."""
    folder = host.roots.sys / "bus/pci/devices" / BRIDGE
    write_aer(folder, "correctable", CORRECTABLE, "COR", 100)
    write_aer(folder, "nonfatal", UNCORRECTABLE, "NONFATAL", 200)
    write_aer(folder, "fatal", UNCORRECTABLE, "FATAL", 300)
    for n, name in enumerate(("cor", "nonfatal", "fatal")):
        (folder / f"aer_rootport_total_err_{name}").write_text(f"{400 + n}\n")
    row = changes_of(host.roots)[BRIDGE]
    assert row is not None and None not in row.values()
    wanted = (
        {100 + n for n in range(8)} | {200 + n for n in range(23)} | {300 + n for n in range(23)}
    )
    assert set(row.values()) == wanted | {400, 401, 402, 9999}
    assert len(row) == len(TABLES["pcie_10s_changes"]) == len(wanted) + 3 + 3
    assert row["aer_fatal_surprise_down_errors"] == 302
    assert row["aer_nonfatal_completion_timeout_errors"] == 205
    assert row["aer_corrected_internal_errors"] == 106


@pytest.fixture(scope="module")
def h100(tmp_path_factory: pytest.TempPathFactory) -> hosts.HostFolder:
    return hosts.unpack("h100-ib", tmp_path_factory.mktemp("h100"))


def test_words_that_an_older_kernel_lacks_are_missing(h100: hosts.HostFolder) -> None:
    """A kernel without the names of link encryption: those cells are missing, not zero errors."""
    row = changes_of(h100.roots)[BRIDGE]
    assert row is not None
    assert row["aer_fatal_encryption_check_errors"] is None
    assert row["aer_fatal_data_link_protocol_errors"] == 0


def test_a_function_without_root_port_files_has_no_such_counts(h100: hosts.HostFolder) -> None:
    """Only root ports have them; elsewhere they are missing."""
    rows = changes_of(h100.roots)
    assert rows["0000:37:01.0"] is not None and rows["0000:97:01.0"] is not None
    assert rows["0000:37:01.0"]["aer_root_port_correctable_errors"] == 4
    assert rows["0000:97:01.0"]["aer_root_port_correctable_errors"] is None


class Asked:
    def put(self, event: telemetry_pb2.HealthEvent) -> None:
        raise AssertionError(event)


def started(host: hosts.HostFolder) -> tuple[pcie.PcieTenSeconds, EventPublisher]:
    collector = pcie.PcieTenSeconds(host.roots)
    teller = EventPublisher(StoppedClock(), Asked(), lambda: None)
    collector.start(teller)
    return collector, teller


def plug(host: hosts.HostFolder, link: Path, target: str, errors: int) -> None:
    """Reinsert a function: a new folder, its counters at *errors*."""
    folder = link.parent / target
    folder.mkdir()
    for name, text in {
        "class": "0x030200", "numa_node": "0", "max_link_speed": "32.0 GT/s PCIe",
        "max_link_width": "16", "current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16",
    }.items():  # fmt: skip
        (folder / name).write_text(f"{text}\n")
    write_aer(folder, "correctable", ["RxErr"], "COR", errors)
    new = link.with_name("new")
    new.symlink_to(target)  # before the old one is removed, so that it cannot get that inode
    new.replace(link)


def test_a_function_that_is_unplugged_and_put_back(host: hosts.HostFolder) -> None:
    """A GPU was exchanged: its last readings stayed, then joined the new one's counts."""
    link = host.roots.sys / "bus/pci/devices" / GPU
    target = os.readlink(link)
    folder = link.resolve()
    write_aer(folder, "correctable", ["RxErr"], "COR", 50)
    collector, teller = started(host)
    assert receiver_errors(collector) == 50
    assert teller.take_inventory_request() == ""
    descriptors = len(os.listdir("/proc/self/fd"))

    link.unlink()
    shutil.rmtree(folder)
    assert GPU not in collector.collect()[0].devices
    assert teller.take_inventory_request() == f"PCIe {GPU} gone"

    plug(host, link, target, errors=2)
    assert receiver_errors(collector) == 2
    assert teller.take_inventory_request() == f"PCIe {GPU} new"
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    before, now = (counters.Observation(n, t, b"boot") for n, t in ((50, 0), (2, 10_000_000_000)))
    assert counters.compare(before, now).outcome is counters.StepOutcome.RESET


def test_a_function_exchanged_between_two_turns(host: hosts.HostFolder) -> None:
    """Kept descriptors read the old function's files: the new folder's inode differs."""
    link = host.roots.sys / "bus/pci/devices" / GPU
    collector, teller = started(host)
    write_aer(link.resolve(), "correctable", ["RxErr"], "COR", 50)
    assert receiver_errors(collector) == 50
    shutil.rmtree(link.resolve())
    plug(host, link, os.readlink(link), errors=7)
    assert receiver_errors(collector) == 7
    assert teller.take_inventory_request() == f"PCIe {GPU} put back"


def receiver_errors(collector: pcie.PcieTenSeconds) -> float | int | None:
    row = dict(rows_of(collector.collect()[1]))[GPU]
    return row["aer_receiver_errors"] if row else None


def test_a_reader_is_told_that_the_function_is_gone(host: hosts.HostFolder) -> None:
    """Without a last row the fleet's arrays would keep the last counts."""
    collector, framer = pcie.PcieTenSeconds(host.roots), FrameBuilder(bytes(16), bytes(16))
    framer.build(1, 0, 0, collector.collect())
    (host.roots.sys / "bus/pci/devices" / GPU).unlink()
    frame = frames.decode(framer.build(2, 10_000_000_000, 0, collector.collect()))
    block = next(b for b in frame.blocks if b.table == "pcie_10s_changes")
    assert dict(rows_of(block))[GPU] is None


def test_a_storm_of_functions_is_named_in_part(host: hosts.HostFolder) -> None:
    """A switch was removed with everything below it: the reason stays one line."""
    collector, teller = started(host)
    for name in os.listdir(host.roots.sys / "bus/pci/devices"):
        if name.startswith(("0000:15", "0000:16", "0000:17", "0000:18", "0000:19", "0000:1a")):
            (host.roots.sys / "bus/pci/devices" / name).unlink()
    collector.collect()
    assert teller.take_inventory_request().endswith("gone and 5 more")


def config(*, mps: int = 1, mrrs: int = 5, relaxed: bool = True, acs: int | None = 0x1D) -> bytes:
    """Return a configuration space with PM, MSI-X, PCI Express, AER and, unless None, ACS."""
    space = bytearray(4096)
    space[0:4] = struct.pack("<HH", 0x10DE, 0x2330)
    space[0x06] = 0x10
    space[0x34] = 0x40
    space[0x40:0x42] = bytes((0x01, 0x48))
    space[0x48:0x4A] = bytes((0x11, 0x60))
    space[0x60:0x62] = bytes((0x10, 0x00))
    struct.pack_into("<H", space, 0x64, 2)  # 512 bytes supported
    struct.pack_into("<H", space, 0x68, mps << 5 | mrrs << 12 | relaxed << 4)
    struct.pack_into("<H", space, 0x70, 2)  # L1
    struct.pack_into("<I", space, 0x100, 0x0001 | 1 << 16 | (0x1A0 if acs is not None else 0) << 20)
    if acs is not None:
        struct.pack_into("<I", space, 0x1A0, 0x000D | 1 << 16)
        struct.pack_into("<H", space, 0x1A6, acs)
    return bytes(space)


def parse(data: bytes) -> ExpressRegisters:
    return parse_express(lambda offset, count: data[offset : offset + count])


def test_registers_of_a_function() -> None:
    """A NIC started with reads of 512 bytes, and the reason of its slowness was invisible."""
    assert parse(config()) == ExpressRegisters(256, 512, 4096, True, 2, 0x1D)
    assert parse(config(mps=0, mrrs=2, relaxed=False, acs=None)) == ExpressRegisters(
        128, 512, 512, False, 2
    )
    assert parse(config(mps=6, mrrs=7)).max_payload_bytes is None  # reserved codes
    assert parse(config()[:256]).acs_flags is None  # a conventional space ends there


def test_what_only_root_may_see_is_said_to_be_closed() -> None:
    """64 bytes without CAP_SYS_ADMIN: closed, not a function without PCI Express."""
    with pytest.raises(ConfigHidden):
        parse(config()[:64])


def test_a_device_that_fell_off_the_bus_has_no_settings() -> None:
    """All ones: 4,096 bytes of payload were read out of nothing."""
    assert parse(b"\xff" * 4096) == ExpressRegisters()
    assert parse(b"") == ExpressRegisters()
    assert parse(bytes(4096)) == ExpressRegisters()


@given(
    st.binary(max_size=4096)
    | st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), max_size=40).map(
        lambda edits: _edited(config(), edits)
    )
)
def test_any_configuration_space_is_read_in_bounded_time(data: bytes) -> None:
    """A circular chain of capabilities blocked the collector forever."""
    reads = 0

    def read(offset: int, count: int) -> bytes:
        nonlocal reads
        reads += 1
        assert offset + count <= 4096 + 8
        return data[offset : offset + count]

    try:
        result = parse_express(read)
    except ConfigHidden:
        result = ExpressRegisters()
    assert reads <= 600
    for size in (
        result.max_payload_bytes,
        result.max_payload_supported_bytes,
        result.max_read_request_bytes,
    ):
        assert size is None or size in (128, 256, 512, 1024, 2048, 4096)
    assert result.acs_flags is None or 0 <= result.acs_flags < 1 << 16


def _edited(space: bytes, edits: list[tuple[int, int]]) -> bytes:
    work = bytearray(space)
    for at, value in edits:
        work[at] = value
    return bytes(work)


def test_settings_of_functions(host: hosts.HostFolder) -> None:
    """A sleeping device is not read: that would wake it."""
    devices = host.roots.sys / "bus/pci/devices"
    for name in (GPU, "0000:1a:00.0"):
        (devices / name / "config").write_bytes(config())
    (devices / "0000:1a:00.0/power_state").write_text("D3hot\n")
    collector = PcieMinute(host.roots)
    rows = dict(rows_of(collector.collect()[0]))
    assert rows[GPU] == {
        "max_payload_bytes": 256.0,
        "max_payload_supported_bytes": 512.0,
        "max_read_request_bytes": 4096.0,
        "relaxed_ordering_state": 1,
        "aspm_flags": 2,
        "acs_flags": 0x1D,
        "iommu_state": 1,
        "power_state": 0,
    }
    nic = rows["0000:1a:00.0"]
    assert nic is not None
    assert (nic["max_read_request_bytes"], nic["power_state"], nic["iommu_state"]) == (None, 3, 3)
    assert collector.access_error == ""


@pytest.mark.parametrize("late", ["iommu_group", "config", "link"])
def test_what_a_driver_brings(host: hosts.HostFolder, late: str, tmp_path: Path) -> None:
    """A GPU's IOMMU group came with its driver (Grace), and was missing for an hour."""
    function = (host.roots.sys / "bus/pci/devices" / GPU).resolve()
    (function / "config").write_bytes(config())
    (function / "link/l0s_aspm").write_text("1\n")  # the configuration space differs
    whole = dict(rows_of(PcieMinute(host.roots).collect()[0]))[GPU]
    (function / late).rename(tmp_path / "aside")
    collector = PcieMinute(host.roots)
    assert dict(rows_of(collector.collect()[0]))[GPU] != whole
    (tmp_path / "aside").rename(function / late)
    assert dict(rows_of(collector.collect()[0]))[GPU] == whole


def test_closed_settings_are_blind_and_the_rest_is_told(host: hosts.HostFolder) -> None:
    """An agent without CAP_SYS_ADMIN: the remedy, and the public part of sysfs."""
    (host.roots.sys / "bus/pci/devices" / GPU / "config").write_bytes(config()[:64])
    turn = run_collector(PcieMinute(host.roots), StoppedClock())
    assert turn.outcome is CollectOutcome.BLIND
    assert "CAP_SYS_ADMIN" in turn.message and "lspci" in turn.message
    row = dict(rows_of(turn.blocks[0]))[GPU]
    assert row is not None and (row["iommu_state"], row["acs_flags"]) == (1, None)


def test_this_machines_functions_without_privilege() -> None:
    """The kernel's real view for an unprivileged process: 64 bytes, and no exception."""
    functions = pci.watched_functions(Path("/sys"))
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        turn = run_collector(PcieMinute(Roots()), StoppedClock())
    finally:
        os.seteuid(was)
    wanted = (CollectOutcome.OK, CollectOutcome.BLIND) if functions else (CollectOutcome.NO_DATA,)
    assert turn.outcome in wanted, turn.message


def test_the_nearest_of_several(h100: hosts.HostFolder) -> None:
    """A job took the NIC that was listed first. None is near if all are on the other socket."""
    functions = pci.watched_functions(h100.roots.sys)
    nics = [f for f in functions.values() if f.is_network]
    word, result = pci.nearest(functions[GPU], nics)
    assert (word, [f.address for f in result]) == ("same switch", ["0000:1a:00.0"])
    far = [f for f in nics if f.address in ("0000:9c:00.0", "0000:bc:00.0")]
    assert pci.nearest(functions[GPU], far) == ("", [])
    word, result = pci.nearest(functions[GPU], [f for f in nics if f.address == "0000:3c:00.0"])
    assert (word, len(result)) == ("same socket", 1)


def test_an_nvswitch_is_watched_and_another_bridge_is_not(host: hosts.HostFolder) -> None:
    """A baseboard's NVSwitch lost half its lanes, unseen: it is not a GPU, NIC or NVMe."""
    for number, vendor in (("05", "0x10de"), ("06", "0x8086")):
        folder = host.roots.sys / f"bus/pci/devices/0000:{number}:00.0"
        folder.mkdir()
        (folder / "class").write_text("0x068000\n")
        (folder / "vendor").write_text(f"{vendor}\n")
    functions = pci.watched_functions(host.roots.sys)
    assert "0000:05:00.0" in functions and "0000:06:00.0" not in functions


def test_sources_are_signals_of_the_table() -> None:
    """Every AER signal of the catalogue has a source, and every source a signal."""
    sources = set(pcie.AER_FIELDS) | set(pcie.AER_ROOT_PORT_FIELDS)
    assert sources == {signal.name for signal in TABLES["pcie_10s_changes"]}
    assert all(BY_NAME[name].on_change for name in sources)
