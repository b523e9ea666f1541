"""Files of /sys: one value each, which may be anything; and the binary ones."""

from __future__ import annotations

import random
import struct

from gangline.agent.hardware import amdgpu, kfd, network, nvme, pci, services
from gangline.agent.hardware.files import KEY_BYTES_MAX, device_key
from gangline.agent.hardware.gpu_metrics import MetricsError, layout_of
from gangline.agent.hardware.kernel_clock import parse_timex
from gangline.agent.hardware.pci_config import ConfigHidden, ExpressRegisters, parse_express
from gangline.agent.inventory.gpu_platform import fabric, platform
from gangline.ext import counterfiles
from gangline.ext.counterfiles import Meter
from gangline.ext.nvml_parts import bit_error_ratio
from tests.amd_metrics import STRUCTURES, pack, pack_described
from tests.fuzzing.damage import (
    ACCEPTED,
    ODD_WORDS,
    REFUSED,
    U64_MAX,
    check,
    damaged,
    flipped,
    holds_something,
    outcome,
    text,
)

AER = (
    b"RxErr 0\nBadTLP 1\nBadDLLP 2\nRollover 0\nTimeout 3\nNonFatalErr 4\nCorrIntErr 0\nHeaderOF 0\n"
    b"TOTAL_ERR_COR 10\n"
)
NUMASTAT = (
    b"numa_hit 12321\nnuma_miss 3\nnuma_foreign 4\ninterleave_hit 5\nlocal_node 6\nother_node 7\n"
)
#: shape, key, scale, gauge, most, a file of that shape.
SHAPES: tuple[tuple[int, bytes, float, bool, int, bytes], ...] = (
    (counterfiles.NUMBER, b"", 1, False, U64_MAX, b"123456\n"),
    (counterfiles.NUMBER, b"", 4, False, U64_MAX, b"987654321\n"),
    (counterfiles.NUMBER, b"", 1000, True, U64_MAX, b"2400000\n"),
    (counterfiles.NUMBER, b"", 1, True, 32, b"16\n"),
    (counterfiles.SIGNED, b"", 1e-3, True, U64_MAX, b"-41000\n"),
    (counterfiles.CODE, b"", 1, False, U64_MAX, b"4: ACTIVE\n"),
    (counterfiles.KEYED, b"TOTAL_ERR_COR", 1, False, U64_MAX, AER),
    (counterfiles.KEYED, b"numa_miss", 1, False, U64_MAX, NUMASTAT),
    (counterfiles.DECIMAL, b"Gb/sec", 1.25e8, True, U64_MAX, b"400 Gb/sec (4X NDR)\n"),
    (counterfiles.DECIMAL, b"GT/s", 1e9, True, U64_MAX, b"32.0 GT/s PCIe\n"),
    (counterfiles.WORD, network.OPERATIONAL_STATES, 1, False, U64_MAX, b"up\n"),
)
CONFIG_BYTES = 4096

#: Tables of AMD's firmware, one of each revision.
METRICS = (
    *(pack(revision, {}) for revision in STRUCTURES),
    *(
        pack_described(
            {"temperature_hotspot": 60, "gfx_busy_inst": [7] * 8, "num_partition": 8},
            counters=width,
        )
        for width in "IQ"
    ),
)
BAD_PAGES = (
    b"0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : P\n0x00000003 : 0x00001000 : F\n"
)
PROPERTIES = (
    b"simd_count 1216\ngpu_id 51247\nlocation_id 1280\ndomain 0\nvendor_id 4098\nnum_xcc 8\n"
)


def fuzz_counter_files(source: random.Random) -> str:
    """A cell of any shape is the file's number times its scale, or empty."""
    shape, key, scale, gauge, limit, data = source.choice(SHAPES)
    data = damaged(data, source)
    value = counterfiles.parse(data, shape, key=key, scale=scale, gauge=gauge, most=limit)
    if value is None:
        return REFUSED
    assert shape == counterfiles.SIGNED or value >= 0, (data[:64], value)
    assert isinstance(value, float) is gauge
    if gauge:
        assert abs(value) <= limit * scale
    else:
        assert value <= U64_MAX
        assert scale == 1 or value not in (4 * (2**32 - 1), U64_MAX), (
            "all ones, scaled, looks like a count"
        )
    if shape == counterfiles.NUMBER:
        number = int(data[:4096].decode())
        assert value == (float(number) * scale if gauge else number * scale), data[:64]
    return ACCEPTED


def fuzz_pci(source: random.Random) -> str:
    code = pci.parse_class(text(damaged(b"0x030200\n", source)))
    assert code is None or 0 <= code < 1 << 24
    raw_speed = text(damaged(b"32.0 GT/s PCIe\n", source))
    speed = pci.parse_link_speed(raw_speed)
    assert speed is None or raw_speed.partition(" ")[0].isascii(), raw_speed[:64]
    parents, root = pci.chain_to_root(
        text(
            damaged(b"/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0", source)
        ).replace("\0", "")
    )
    assert all(pci.is_address(parent) for parent in parents) and root.startswith(("pci", ""))
    check(code)
    return outcome(speed)


def fuzz_config_space(source: random.Random) -> str:
    """A configuration space with arbitrary and circular chains: parsing ends after few reads."""
    space = bytearray(_config())
    for _ in range(source.randrange(8)):
        space[source.choice((0, 6, 0x34, 0x41, 0x44, 0x48, 0x50, 0x100, 0x101, 0x103, 0x106))] = (
            source.randrange(256)
        )
    if source.random() < 0.2:
        space[:] = source.choice(
            (b"\xff" * CONFIG_BYTES, bytes(CONFIG_BYTES), source.randbytes(CONFIG_BYTES))
        )
    shown = source.choice((0, 40, 64, 70, 256, 258, 4096))
    reads = 0

    def read(offset: int, count: int) -> bytes:
        nonlocal reads
        reads += 1
        assert 0 <= offset < CONFIG_BYTES and count <= 64
        return bytes(space[:shown][offset : offset + count])

    try:
        parsed = parse_express(read)
    except ConfigHidden:
        return REFUSED
    assert reads < 1000
    sizes = (
        parsed.max_payload_bytes,
        parsed.max_payload_supported_bytes,
        parsed.max_read_request_bytes,
    )
    assert all(size in (None, 128, 256, 512, 1024, 2048, 4096) for size in sizes)
    return REFUSED if parsed == ExpressRegisters() else ACCEPTED


def _config() -> bytes:
    space = bytearray(CONFIG_BYTES)
    space[:4], space[6], space[0x34] = b"\xde\x10\x30\x23", 0x10, 0x40
    space[0x40:0x42] = b"\x01\x48"  # power management, then PCI Express at 0x48
    space[0x48:0x4A], space[0x50:0x52] = b"\x10\x00", b"\x30\x29"
    struct.pack_into("<I", space, 0x100, 1 | 1 << 16 | 0x148 << 20)  # AER, then ACS at 0x148
    struct.pack_into("<IHH", space, 0x148, 0x000D | 1 << 16, 0, 0x1D)
    return bytes(space)


def fuzz_gpu_metrics(source: random.Random) -> str:
    """A table of any revision, cut or flipped anywhere: offsets within it, or an error."""
    table = source.choice(METRICS)
    for _ in range(source.randrange(4)):
        table = flipped(table, source)
    try:
        layout = layout_of(table)
    except MetricsError as error:
        assert 0 < len(str(error)) < 400
        return REFUSED
    assert 0 < layout.size <= len(table) and layout.fields
    for name, place in layout.fields.items():
        assert place.offset >= 0 and place.numbers >= 1 and place.end <= layout.size, name
    for offset, mark in layout.marks:
        assert table[offset : offset + len(mark)] == mark
    return ACCEPTED


def fuzz_amd_files(source: random.Random) -> str:
    """Bad pages, levels and KFD's properties: numbers that can be, or none."""
    pages = amdgpu.parse_bad_pages(damaged(BAD_PAGES, source))
    assert pages.reserved >= 0 and pages.pending >= 0
    level = amdgpu.parse_levels_max(text(damaged(b"0: 132Mhz\n1: 2100Mhz *\n", source)))
    assert level is None or 0 < level < 1e12
    properties = kfd.parse_properties(text(damaged(PROPERTIES, source)))
    assert all(0 <= number <= U64_MAX for number in properties.values())
    check(properties)
    return outcome(level)


def fuzz_smart_page(source: random.Random) -> str:
    """512 bytes of a faulty drive: shares, degrees and counts within their possible ranges."""
    page = bytearray(512)
    struct.pack_into("<BHBBB", page, 0, 0, 310, 100, 10, 3)
    page[32:48] = (123_456).to_bytes(16, "little")
    data = bytes(page)
    for _ in range(source.randrange(4)):
        position = source.choice(
            (0, 1, 3, 4, 5, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 196, 216, 220)
        )
        piece = source.choice((b"\xff" * 16, b"\xff" * 4, b"\0" * 16, source.randbytes(16)))
        data = data[:position] + piece + data[position + len(piece) :]
    data = source.choice((data, data, data, data[:511], data + b"\0", b"\xff" * 512))
    log = nvme.parse_smart_page(data)
    if log is not None and log.temperature_celsius is not None:
        assert -73 <= log.temperature_celsius <= 227
    return outcome(_without_temperature(log))


def _without_temperature(log: nvme.SmartLog | None) -> object:
    """Remove the temperature, because degrees may be below zero, which `check` refuses."""
    names = [] if log is None else [name for name in log.__slots__ if name != "temperature_celsius"]
    return {name: getattr(log, name) for name in names}


def fuzz_timex(source: random.Random) -> str:
    """Answers of adjtimex(2) with any 64 bits: offset, errors and frequency within the kernel's own limits."""
    edges = (0, -1, 1, 5, 0x2001, -(2**63), 2**63 - 1, 2**32 - 1, 819_200, 16_000_000, 16_000_001)
    answer = tuple(source.choice((*edges, source.getrandbits(20))) for _ in range(7))
    clock = parse_timex(answer)  # type: ignore[arg-type]
    assert clock.offset_seconds is None or abs(clock.offset_seconds) <= 1
    assert clock.frequency_offset_ratio is None or abs(clock.frequency_offset_ratio) <= 1e-3
    check(
        (
            clock.error_estimated_seconds,
            clock.error_max_seconds,
            clock.leap_state,
            clock.status_flags,
        )
    )
    return (
        REFUSED
        if None in (clock.offset_seconds, clock.error_max_seconds, clock.leap_state)
        else ACCEPTED
    )


def fuzz_energy(source: random.Random) -> str:
    """A RAPL counter that is damaged, stops or wraps: the sum never falls and never invents energy."""
    span = source.choice((None, 0, 262_143_328_850, 2**32, U64_MAX))
    meter, before, last = Meter(span or 0), 0, 0
    for _ in range(8):
        reading = source.choice(
            (None, 0, last + 5_000_000, source.getrandbits(38), 2**32 - 1, U64_MAX)
        )
        total = meter.add(reading)
        if total is not None:
            assert before <= total <= before + (span or reading or 0)
            before, last = total, reading or 0
    return outcome(before or None)


def fuzz_network(source: random.Random) -> str:
    """A GID is eight groups of four hexadecimal digits; a bond's slave is up, down, or nothing is known."""
    raw_gid = text(damaged(b"fe80:0000:0000:0000:506b:4b03:00c1:28dc\n", source))
    gid = network.parse_gid(raw_gid)
    if gid:
        assert all(letter in "0123456789abcdefABCDEF:" for letter in gid), gid
    assert network.parse_mii_status(text(damaged(b"going down\n", source))) in (True, False, None)
    return outcome(gid)


def fuzz_services(source: random.Random) -> str:
    parsed = services.parse_processes(damaged(b"1234\n5678\n0\n", source))
    assert 0 not in parsed and len(parsed) <= 64
    assert services.parse_populated(damaged(b"populated 1\nfrozen 0\n", source)) in (
        True,
        False,
        None,
    )
    check(nvme.parse_nvme_state(text(damaged(b"live\n", source))))
    return outcome(parsed)


def fuzz_device_key(source: random.Random) -> str:
    """Any name of a device becomes valid UTF-8 that fits a frame, and two names stay apart."""
    raw = source.choice(
        (
            *ODD_WORDS,
            b"mlx5_0",
            b"b\xe4d if",
            b"a" * 200,
            source.randbytes(source.randrange(1, 255)),
        )
    )
    key, other = (device_key(name.decode(errors="surrogateescape")) for name in (raw, raw + b"x"))
    assert len(key.encode()) <= KEY_BYTES_MAX and key != other
    return REFUSED if "~" in key else ACCEPTED


def fuzz_platform(source: random.Random) -> str:
    """Bytes that NVML gives of rack and fabric: texts that a protobuf takes, or nothing."""
    data = struct.pack("<I16s16s5B", 1, b"\x11" * 16, b"1821025190123", 3, 4, 0, 1, 2)
    result = platform(flipped(data, source), source.choice((1, 2, 2, 3)))
    result |= fabric(
        flipped(b"\0" * 15 + b"\x01", source), source.getrandbits(32), source.choice((0, 3, 3, 255))
    )
    assert all(value.isprintable() for value in result.values()), result
    return ACCEPTED if "slot" in result else REFUSED


def fuzz_bit_error_ratio(source: random.Random) -> str:
    """An encoded bit error ratio of NVLink: between 0 and 1, or nothing."""
    code = source.choice(
        (0, 0x30C, 0xF00, 2**32 - 1, source.getrandbits(12), source.getrandbits(32))
    )
    value = bit_error_ratio(code)
    assert value is None or 0 <= value <= 1, (code, value)
    return ACCEPTED if holds_something(value) else REFUSED


TARGETS = {
    "gpu-metrics": fuzz_gpu_metrics,
    "amd-files": fuzz_amd_files,
    "counter-files": fuzz_counter_files,
    "pci": fuzz_pci,
    "config-space": fuzz_config_space,
    "smart-page": fuzz_smart_page,
    "timex": fuzz_timex,
    "energy": fuzz_energy,
    "network": fuzz_network,
    "services": fuzz_services,
    "device-key": fuzz_device_key,
    "platform": fuzz_platform,
    "bit-error-ratio": fuzz_bit_error_ratio,
}
