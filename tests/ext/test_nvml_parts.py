"""The binding of a GPU's parts: against NVIDIA's header, and against faulty drivers."""

from __future__ import annotations

import ctypes
import math
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.collectors.nvlink import C2C, NVLINK
from gangline.ext import nvml_parts
from gangline.ext.nvml import Nvml, NvmlError
from gangline.ext.nvml_parts import (
    COMPUTE,
    GRAPHICS,
    MPS,
    PROCESSES_MAX,
    EventSet,
    FieldPass,
    Parts,
    Process,
    ProcessLists,
    bit_error_ratio,
)
from tests.fake_nvml.build import build, compiler, header_folder, older_header_folder
from tests.fake_nvml.fixtures import Play
from tests.fake_nvml.parts_scenario import (
    BLACKWELL,
    NO_MEMORY,
    mig_device,
    process,
    with_c2c,
    with_fabric,
    with_links,
    with_mig,
)
from tests.fake_nvml.scenario import Gpu, Scenario, gpus

ABI = Path(nvml_parts.__file__).with_name("nvml_parts_abi.pxd")

Open = Callable[..., Parts]

#: The header's name of each scoped field, without `NVML_FI_DEV_`.
NAMES = {
    "transmitted_data_bytes": "NVLINK_THROUGHPUT_DATA_TX",
    "received_data_bytes": "NVLINK_THROUGHPUT_DATA_RX",
    "transmitted_bytes": "NVLINK_COUNT_XMIT_BYTES",
    "received_bytes": "NVLINK_COUNT_RCV_BYTES",
    "transmitted_packets": "NVLINK_COUNT_XMIT_PACKETS",
    "received_packets": "NVLINK_COUNT_RCV_PACKETS",
    **{f"fec_history_{i}_count": f"NVLINK_COUNT_FEC_HISTORY_{i}" for i in range(16)},
    "link_state": "NVLINK_GET_STATE",
    "version_code": "NVLINK_GET_VERSION",
    "speed_bytes_per_second": "NVLINK_GET_SPEED",
    "replay_errors": "NVLINK_ERROR_DL_REPLAY",
    "recovery_errors": "NVLINK_ERROR_DL_RECOVERY",
    "crc_errors": "NVLINK_ERROR_DL_CRC",
    "malformed_packets_errors": "NVLINK_COUNT_MALFORMED_PACKET_ERRORS",
    "buffer_overrun_errors": "NVLINK_COUNT_BUFFER_OVERRUN_ERRORS",
    "receive_errors": "NVLINK_COUNT_RCV_ERRORS",
    "receive_remote_errors": "NVLINK_COUNT_RCV_REMOTE_ERRORS",
    "receive_general_errors": "NVLINK_COUNT_RCV_GENERAL_ERRORS",
    "local_link_integrity_errors": "NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS",
    "transmit_discards_packets": "NVLINK_COUNT_XMIT_DISCARDS",
    "link_recovery_successful_events": "NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS",
    "link_recovery_failed_events": "NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS",
    "link_recovery_events": "NVLINK_COUNT_LINK_RECOVERY_EVENTS",
    "effective_errors": "NVLINK_COUNT_EFFECTIVE_ERRORS",
    "effective_bit_error_ratio": "NVLINK_COUNT_EFFECTIVE_BER",
    "symbol_errors": "NVLINK_COUNT_SYMBOL_ERRORS",
    "symbol_bit_error_ratio": "NVLINK_COUNT_SYMBOL_BER",
}
C2C_NAMES = {
    "link_state": "C2C_LINK_GET_STATUS",
    "speed_max_bytes_per_second": "C2C_LINK_GET_MAX_BW",
    "crc_errors": "C2C_LINK_ERROR_INTR",
    "replay_errors": "C2C_LINK_ERROR_REPLAY",
    "replay_back_to_back_errors": "C2C_LINK_ERROR_REPLAY_B2B",
    "power_state": "C2C_LINK_POWER_STATE",
}
BY_LINK = {
    "speed_bytes_per_second": "NVLINK_SPEED_MBPS_L",
    "replay_errors": "NVLINK_REPLAY_ERROR_COUNT_L",
    "recovery_errors": "NVLINK_RECOVERY_ERROR_COUNT_L",
    "crc_flit_errors": "NVLINK_CRC_FLIT_ERROR_COUNT_L",
    "crc_data_errors": "NVLINK_CRC_DATA_ERROR_COUNT_L",
    "ecc_data_errors": "NVLINK_ECC_DATA_ERROR_COUNT_L",
}
EVERYTHING = {"count", "state", "fields", "mode", "mig", "processes", "fabric", "events"}
#: Function -> parts without another source. Other functions have substitutes.
COSTS: dict[str, set[str]] = {
    "nvmlDeviceGetFieldValues": {"fields"},
    "nvmlDeviceGetNvLinkState": {"state"},
    "nvmlDeviceGetMigMode": {"mode"},
    "nvmlDeviceGetMaxMigDeviceCount": {"mig"},
    "nvmlDeviceGetMigDeviceHandleByIndex": {"mig"},
    "nvmlDeviceGetComputeRunningProcesses_v3": {"processes"},
    "nvmlDeviceGetSupportedEventTypes": {"events"},
    "nvmlDeviceRegisterEvents": {"events"},
    "nvmlEventSetCreate": {"events"},
    "nvmlEventSetWait_v2": {"events"},
}


#: Scenarios of the running test.
PLAYED: list[Scenario] = []


@pytest.fixture
def play(play: Play) -> Play:
    def write(devices: Iterable[Gpu]) -> Scenario:
        PLAYED.append(play(devices))
        return PLAYED[-1]

    return write


@pytest.fixture
def opened(library: str, play: Play) -> Iterator[Open]:
    """Yield a function that opens GPUs, and releases them at the end of the test.

    It plays just these GPUs, unless the test has called `play`.
    """
    created: list[Nvml] = []
    PLAYED.clear()

    def start(devices: Iterable[Gpu], path: str = library) -> Parts:
        devices = list(devices)
        if not PLAYED:
            play(devices)
        created.append(Nvml(path))
        parts = Parts(created[-1])
        for gpu in devices:
            parts.open(gpu.address)
        return parts

    yield start
    for nvml in created:
        nvml.close()


def compile_and_run(source: str, folder: Path, header: Path) -> list[str]:
    """Compile a C program against NVIDIA's header, and return its output lines."""
    (folder / "check.c").write_text("#define NVML_NO_UNVERSIONED_FUNC_DEFS\n" + source)
    program = str(folder / "check")
    options = ["-Werror", "-Wall", f"-I{header}"]
    subprocess.run([*compiler(), *options, str(folder / "check.c"), "-o", program], check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()


def printed(expressions: Iterable[str], folder: Path, header: Path | None = None) -> list[int]:
    """Return the values of C expressions with NVIDIA's header, by default the newest."""
    prints = "".join(f'printf("%lu\\n", (unsigned long)({e}));' for e in expressions)
    source = "#include <nvml.h>\n#include <stddef.h>\n#include <stdio.h>\n"
    program = f"{source}int main(void){{{prints}}}"
    return [int(x) for x in compile_and_run(program, folder, header or header_folder())]


def test_layouts_and_version_words_are_nvidias(tmp_path: Path) -> None:
    """With a struct four bytes short the driver overwrites memory behind it."""
    ours = nvml_parts.abi()
    assert list(ours.values()) == printed(ours, tmp_path)


def test_constants_are_nvidias(tmp_path: Path) -> None:
    """A field id of another header returns NVML_SUCCESS with another quantity."""
    ours = dict(re.findall(r"^    (NVML_\w+) = (\d+)$", ABI.read_text(), re.MULTILINE))
    assert len(ours) == 9
    assert [int(value) for value in ours.values()] == printed(ours, tmp_path)


def test_prototypes_are_nvidias(tmp_path: Path) -> None:
    """A pointer to 32 bits where the driver writes 64 sometimes destroys the neighboring variable."""
    declared = re.findall(
        r"^    (.+?)\(\*(nvml\w+)\)\((.*)\) noexcept nogil$", ABI.read_text(), re.MULTILINE
    )
    assert tuple(name for _, name, _ in declared) == nvml_parts.SYMBOLS
    lines = [f"static {result}(*check_{name})({args});" for result, name, args in declared]
    uses = "".join(f"check_{name} = {name};(void)check_{name};" for _, name, _ in declared)
    source = "#include <nvml.h>\n" + "\n".join(lines) + f"\nvoid check(void){{{uses}}}\n"
    (tmp_path / "prototypes.c").write_text("#define NVML_NO_UNVERSIONED_FUNC_DEFS\n" + source)
    options = ["-Werror", "-Wall", "-Wno-deprecated-declarations", f"-I{header_folder()}"]
    subprocess.run([*compiler(), *options, "-c", "prototypes.c"], check=True, cwd=tmp_path)


@pytest.mark.parametrize("header", [header_folder, older_header_folder])
def test_field_ids_are_nvidias(header: Callable[[], Path], tmp_path: Path) -> None:
    """With an id off by one, replays are read as recoveries."""
    ours = {
        f"NVML_FI_DEV_{name}": fields[f"{kind}.{signal}"].scoped
        for kind, fields, names in (("nvlink", NVLINK, NAMES), ("c2c", C2C, C2C_NAMES))
        for signal, name in names.items()
    }
    assert len(ours) == sum(bool(field.scoped) for field in (*NVLINK.values(), *C2C.values()))
    for signal, name in BY_LINK.items():
        ids = NVLINK[f"nvlink.{signal}"].by_link
        ours |= {f"NVML_FI_DEV_{name}{link}": ids[link] for link in range(12)}
    assert sum(len(field.by_link) for field in NVLINK.values()) == 12 * len(BY_LINK)
    ours["NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON"] = NVLINK["nvlink.speed_bytes_per_second"].whole
    assert list(ours.values()) == printed(ours, tmp_path, header())


@pytest.mark.parametrize(
    ("code", "ratio"),
    [(0xFFF, 1.5e-254), (0x30C, 3e-12), (0x100, 1.0), (0x000, 0.0), (0x001, 0.0), (0x200, None)],
)
def test_a_ratio_is_mantissa_and_exponent(code: int, ratio: float | None) -> None:
    """`15e-255` is the value of a link without errors: read as the number 4095 it is an outage."""
    assert bit_error_ratio(code) == (ratio if ratio is None else pytest.approx(ratio, rel=1e-12))


@given(st.integers(0, 2**64 - 1))
def test_any_code_is_a_share_or_none(code: int) -> None:
    """Unknown bits mean an unknown layout."""
    ratio = bit_error_ratio(code)
    assert ratio is None or (0 <= ratio <= 1 and math.isfinite(ratio))
    assert (ratio is None) == (code >= 1 << 12 or (code >> 8) > 10 ** (code & 0xFF))


class Fields:
    """A pass over some cells of one row each."""

    def __init__(self, parts: Parts, asks: Iterable[tuple[str, int, int]]) -> None:
        self.asks = list(asks)
        self.cells, self.valid = bytearray(8 * len(self.asks)), bytearray(len(self.asks))
        self.all = FieldPass(parts)
        for cell, (address, number, scope) in enumerate(self.asks):
            self.all.ask(address, number, scope, self.cells, self.valid, cell)

    def run(self) -> list[int | None]:
        self.all.run()
        ints = memoryview(self.cells).cast("Q")
        return [ints[i] if valid else None for i, valid in enumerate(self.valid)]


def test_a_field_is_of_its_link(opened: Open) -> None:
    """The scope was left at zero once: eighteen links showed the errors of the first."""
    gpu = gpus(1)[0]
    gpu.lines += [f"scoped {link} 161 ull {100 + link}" for link in range(18)]
    fields = Fields(opened([gpu]), [(gpu.address, 161, link) for link in range(18)])
    assert fields.run() == [100 + link for link in range(18)]


def test_one_call_serves_all_links_of_a_gpu(opened: Open, library: str) -> None:
    """Eighteen calls a GPU, eight GPUs, twenty fields: 2,880 calls each ten seconds."""
    counted = ctypes.CDLL(library).fake_nvml_calls
    devices = gpus(2)
    for gpu in devices:
        gpu.lines += [f"scoped {link} {f} ull 1" for link in range(18) for f in range(201, 205)]
    asks = [(g.address, f, link) for g in devices for link in range(18) for f in range(201, 205)]
    fields = Fields(opened(devices), asks)
    before = counted(b"nvmlDeviceGetFieldValues")
    assert fields.run() == [1] * len(asks)
    assert counted(b"nvmlDeviceGetFieldValues") - before == 2


def test_more_fields_than_a_call_takes_are_asked_in_parts(opened: Open) -> None:
    """Thirty-six links with fifty fields do not fit into one call."""
    gpu = gpus(1)[0]
    gpu.lines += [f"scoped {link} 161 ull {link}" for link in range(36)]
    fields = Fields(opened([gpu]), [(gpu.address, 161, i % 36) for i in range(1800)])
    assert fields.run() == [i % 36 for i in range(1800)]


def test_what_a_link_does_not_have_is_asked_for_rarely(play: Play, opened: Open) -> None:
    """NVLink 5 fields of an NVLink 4 link cost a useless driver call; but a link may come up later."""
    gpu = gpus(1)[0]
    gpu.lines += ["scoped 0 161 ull 4", "scoped 0 213 ull - 9"]
    scenario = play([gpu])
    fields = Fields(opened([gpu]), [(gpu.address, 161, 0), (gpu.address, 213, 0)])
    assert fields.run() == [4, None]
    scenario.step(1)
    assert [fields.run()[1] for _ in range(30)] == [None] * 29 + [9]


def test_the_first_that_has_a_value_fills_the_cell(opened: Open) -> None:
    """A driver with only the older way must still have a value."""
    gpu = gpus(1)[0]
    gpu.lines += ["scoped 3 161 ull 7", "scoped 0 49 ull 8"]
    parts = opened([gpu])
    cells, valid = bytearray(16), bytearray(2)
    both = FieldPass(parts)
    for cell, numbers in enumerate([((161, 3), (49, 0)), ((162, 3), (49, 0))]):
        for number, scope in numbers:
            both.ask(gpu.address, number, scope, cells, valid, cell)
    for _ in range(3):
        both.run()
        assert list(memoryview(cells).cast("Q")) == [7, 8]
        assert valid == b"\1\1"


@pytest.mark.parametrize(
    "value",
    [
        *("ull 18446744073709551615", "uint 4294967295", "ull 9223372036854775794", "int -1"),
        *("sll -5", "double nan", "double -1", "double 1e300", "ull -", "ull !999", "ull !3"),
    ],
)
def test_a_blank_is_missing(value: str, opened: Open) -> None:
    """A driver returned 4294967295 replays in ten seconds to mean `not now`."""
    gpu = gpus(1)[0]
    gpu.lines.append(f"scoped 0 161 {value}")
    assert Fields(opened([gpu]), [(gpu.address, 161, 0)]).run() == [None]


@pytest.mark.parametrize("line", ["error nvmlDeviceGetFieldValues 0 15", "scoped 1 162 ull 0 !15"])
def test_a_lost_gpu_costs_no_neighbour(line: str, play: Play, opened: Open) -> None:
    """XID 79 in the middle of a pass: the GPU's earlier readings are void, seven others are read."""
    devices = gpus(3)
    for gpu in devices:
        gpu.lines.append("scoped 0 161 ull 1")
    devices[1].lines.append(line)
    scenario = play(devices)
    asks = [(gpu.address, number, link) for gpu in devices for number, link in ((161, 0), (162, 1))]
    fields = Fields(opened(devices), asks)
    fields.run()
    scenario.step(1)
    read = fields.run()
    assert (read[0], read[2], read[4]) == (1, None, 1)
    assert fields.all.codes == {devices[1].address: 15}


def test_memory_outside_the_block_is_refused(play: Play, opened: Open) -> None:
    """A cell too many would be written over memory behind the block."""
    play(gpus(1))
    fields = FieldPass(opened([]))
    for cell in (-1, 2):
        with pytest.raises(ValueError, match=f"cell {cell} lies outside"):
            fields.ask("0000:19:00.0", 161, 0, bytearray(16), bytearray(2), cell)


def test_memory_in_use_cannot_be_moved(play: Play, opened: Open) -> None:
    """A bytearray that grows under a pass would leave it writing into freed memory."""
    play(gpus(1))
    fields, cells, valid = FieldPass(opened([])), bytearray(16), bytearray(2)
    fields.ask("0000:19:00.0", 161, 0, cells, valid, 1)
    for memory in (cells, valid):
        with pytest.raises(BufferError):
            memory.extend(b"more")


@pytest.mark.parametrize("count", [4_294_967_294, 2**40, 65])
def test_a_garbage_count_of_links_is_bounded(count: int, opened: Open) -> None:
    """Four thousand million links would be as many rows; even sixty-four are too many."""
    gpu = with_links(gpus(1)[0], 18)
    gpu.fields[91] = gpu.fields[170] = ("ull", count)
    parts = opened([gpu])
    assert (parts.nvlink_count(gpu.address), parts.c2c_count(gpu.address)) == (18, 0)


def test_links_are_counted_without_the_field(opened: Open) -> None:
    gpu = with_links(gpus(1)[0], 12)
    del gpu.fields[91]
    gpu.lines.append("link_state 5 0")  # one is down: the sixth is not the end
    assert opened([gpu]).nvlink_count(gpu.address) == 12


def test_a_mig_device_is_read_whole(play: Play, opened: Open) -> None:
    """Instance, profile and placement distinguish two MIG devices of one GPU."""
    gpu = with_mig(gpus(1)[0])
    scenario = play([gpu, mig_device(0, 1), mig_device(0, 2, profile=14, start=4)])
    scenario.step(1)
    parts = opened([gpu])
    assert parts.mig_mode(gpu.address) == (1, 1)
    first, second = parts.mig_devices(gpu.address, 7)
    assert first == (
        *("MIG-00000000-0001-0009-0000-000000000000", 1, 0, 9, 0, 3, 3, 3, 60),
        *(42_000_000_000, 1 << 30, 2, False),
    )
    assert (second.gpu_instance, second.profile, second.placement_start) == (2, 14, 4)


def test_what_is_not_ours_to_see_is_refused_not_zero(play: Play, opened: Open) -> None:
    """Another user's instance showed 0 bytes of memory in use, and was given away."""
    gpu = with_mig(gpus(1)[0])
    device = mig_device(0, 1)
    device.lines.append("error nvmlDeviceGetMemoryInfo 4")
    gpu.lines.append("error nvmlDeviceGetGpuInstanceById 4")
    play([gpu, device])
    result = opened([gpu]).mig_devices(gpu.address, 7)[0]
    assert result.refused
    assert (result.memory_used_bytes, result.profile, result.multiprocessors) == (None, None, 60)


def test_a_garbage_count_of_mig_devices_is_bounded(play: Play, opened: Open, library: str) -> None:
    """A count of four thousand million must not be four thousand million calls."""
    gpu = with_mig(gpus(1)[0])
    gpu.values["mig_devices_max"] = 4_294_967_294
    play([gpu, mig_device(0, 1)])
    counted = ctypes.CDLL(library).fake_nvml_calls
    before = counted(b"nvmlDeviceGetMigDeviceHandleByIndex")
    parts = opened([gpu])
    assert len(parts.mig_devices(gpu.address, parts.mig_devices_max(gpu.address) or 0)) == 1
    asked = counted(b"nvmlDeviceGetMigDeviceHandleByIndex") - before
    assert asked == nvml_parts.MIG_DEVICES_MAX


def listed(parts: Parts, address: str) -> list[Process]:
    lists = ProcessLists(parts, [address])
    assert not lists.run()  # the first list is always new
    return lists.of(address)


def test_lists_that_say_the_same_are_the_same(play: Play, opened: Open) -> None:
    """Twenty-four unchanged lists a second were converted into objects."""
    devices = gpus(2)
    devices[0].lines.append(process(19))
    devices[1].lines += [process(20, 5), process(20, 6, last=1), process(21, 7, first=4)]
    scenario = play(devices)
    lists = ProcessLists(opened(devices), [gpu.address for gpu in devices])
    passes: list[tuple[bool, list[int | None]]] = []
    for step in range(6):
        scenario.step(step)
        passes.append((lists.run(), [p.memory_bytes for p in lists.of(devices[1].address)]))
    assert passes == [
        (False, [5, 6]),
        (True, [5, 6]),
        (False, [5]),
        (True, [5]),
        (False, [5, 7]),
        (True, [5, 7]),
    ]


def test_a_gpu_that_fails_says_nothing_that_it_said_before(play: Play, opened: Open) -> None:
    """Taken for unchanged, the lists of a GPU that fell off the bus would remain forever."""
    devices = gpus(2)
    for gpu in devices:
        gpu.lines.append(process(20, 5))
    devices[0].lines.append("error nvmlDeviceGetGraphicsRunningProcesses_v3 0 0 15 15 0 0")
    scenario = play(devices)
    lists = ProcessLists(opened(devices), [gpu.address for gpu in devices])
    passes = []
    for step in range(6):
        scenario.step(step)
        passes.append(lists.run())
        if step in (2, 3):
            with pytest.raises(
                NvmlError, match=r"nvmlDeviceGetGraphicsRunningProcesses_v3.*\(NVML error 15\)"
            ):
                lists.of(devices[0].address)
        assert len(lists.of(devices[1].address)) == 1
    assert passes == [False, True, False, False, False, True]
    assert len(lists.of(devices[0].address)) == 1


def test_processes_of_all_three_lists(opened: Open) -> None:
    """Clients of an MPS server are in a list of their own, and had no owner."""
    gpu = gpus(1)[0]
    gpu.lines += [process(10, 5), process(11, 6, which=1), process(12, 7, which=2)]
    gpu.lines.append(process(13, NO_MEMORY, instance=2, compute=0))
    assert listed(opened([gpu]), gpu.address) == [
        (10, 5, None, None, COMPUTE),
        (13, None, 2, 0, COMPUTE),
        (11, 6, None, None, GRAPHICS),
        (12, 7, None, None, MPS),
    ]


@pytest.mark.parametrize("count", [63, 64, 65, 500])
def test_room_is_made_for_as_many_as_there_are(count: int, opened: Open) -> None:
    """The list was cut at the first guess: the sixty-fifth process held memory without an owner."""
    gpu = gpus(1)[0]
    gpu.lines += [process(100 + i, i) for i in range(count)]
    assert [p.pid for p in listed(opened([gpu]), gpu.address)] == list(range(100, 100 + count))


def test_a_garbage_count_of_processes_is_refused(opened: Open, library: str) -> None:
    """Four thousand million entries of 24 bytes are a hundred gigabytes."""
    gpu = gpus(1)[0]
    gpu.values["graphics_count"] = 4_294_967_294
    counted = ctypes.CDLL(library).fake_nvml_calls
    before = counted(b"nvmlDeviceGetGraphicsRunningProcesses_v3")
    with pytest.raises(NvmlError, match=f"4294967294 processes, of which at most {PROCESSES_MAX}"):
        listed(opened([gpu]), gpu.address)
    assert counted(b"nvmlDeviceGetGraphicsRunningProcesses_v3") - before <= 4


def test_the_older_call_has_no_health_of_the_fabric(folder: Path, opened: Open) -> None:
    """A driver without the versioned call still returns a GPU's clique."""
    gpu = with_fabric(gpus(1)[0])
    whole = opened([gpu]).fabric(gpu.address)
    assert whole is not None
    assert whole[:2] == (bytes.fromhex("6c3f0d1a2b4c4d5e8f90112233445566"), 3)
    assert (whole.clique, whole.health_mask, whole.health_summary) == (1, 0xAA, None)
    lacks = str(build(folder, missing=["nvmlDeviceGetGpuFabricInfoV"]))
    older = opened([gpu], lacks).fabric(gpu.address)
    assert older is not None
    assert (older.cluster_uuid, older.clique) == (whole.cluster_uuid, 1)
    assert older.health_mask is None


def test_a_driver_with_a_summary_tells_it(opened: Open) -> None:
    """Version 3 has one summary of the mask's seven parts."""
    gpu = with_fabric(gpus(1)[0])
    gpu.values["fabric_summary"] = 3
    fabric = opened([gpu]).fabric(gpu.address)
    assert fabric is not None
    assert (fabric.health_mask, fabric.health_summary) == (0xAA, 3)


def test_only_what_is_supported_is_registered(opened: Open) -> None:
    """Registering one unsupported type fails for every type."""
    devices = gpus(2)
    devices[0].values["events_supported"] = 0x10B
    events = EventSet(opened(devices))
    assert [events.register(gpu.address, 0xFFFF & ~2) for gpu in devices] == [0x109, 0]
    events.close()


def test_events_come_with_their_gpu(play: Play, opened: Open) -> None:
    """An XID without its GPU drains eight."""
    devices = gpus(3)
    for gpu in devices:
        gpu.values["events_supported"] = 0x8
    devices[2].lines.append("event 1 8 79")
    scenario = play(devices)
    events = EventSet(opened(devices))
    for gpu in devices:
        events.register(gpu.address, 0x8)
    assert events.wait(1) is None
    scenario.step(1)
    assert events.wait(1) == (devices[2].address, 8, 79, None, None)
    events.close()
    with pytest.raises(NvmlError, match="closed"):
        events.wait(1)


def had(parts: Parts, address: str) -> set[str]:
    result = {
        "count": parts.nvlink_count(address) == 2,
        "state": parts.nvlink_state(address, 1) == 1,
        "fields": Fields(parts, [(address, 201, 1)]).run() == [10],
        "mode": parts.mig_mode(address) is not None,
        "mig": len(parts.mig_devices(address, parts.mig_devices_max(address) or 0)) == 1,
        "processes": len(listed(parts, address)) == 1,
        "fabric": parts.fabric(address) is not None,
        "events": _registered(parts, address) == 8,
    }
    return {name for name, there in result.items() if there}


def _registered(parts: Parts, address: str) -> int:
    try:
        events = EventSet(parts)
    except NvmlError:
        return 0
    try:
        return events.register(address, 8)
    finally:
        events.close()


@pytest.mark.parametrize("symbol", [*nvml_parts.SYMBOLS, "nothing"])
def test_a_missing_symbols_readings(symbol: str, folder: Path, play: Play, opened: Open) -> None:
    """A binding linked at build time does not even start under a driver one branch older."""
    gpu = with_c2c(with_fabric(with_mig(with_links(gpus(1)[0], 2, BLACKWELL))), 1)
    gpu.values["events_supported"] = 8
    gpu.lines.append(process(4242))
    play([gpu, mig_device(0, 1)])
    parts = opened([gpu], str(build(folder, missing=[] if symbol == "nothing" else [symbol])))
    assert parts.missing_symbols == ({symbol} - {"nothing"})
    assert had(parts, gpu.address) == EVERYTHING - COSTS.get(symbol, set())
