"""The host's cores, memory, NUMA nodes, power sensors and clock, from /proc, sysfs and adjtimex(2).

Cores: Documentation/admin-guide/cputopology.rst.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...contract.counters import BLANK_32
from .files import FILE_READER, FileReader, names_in, parse_unsigned, read_text, read_unsigned
from .pci import chain_to_root, is_address

#: Above the number of cores of any host; a list with more is invalid.
CORES_MAX = 65536
#: A core that was idle for less than this share of the time is saturated.
SATURATED_IDLE_RATIO_MAX = 0.05


def parse_cpu_list(text: str) -> list[int]:
    """Return the cores of `0-3,8,10-11`. Raises ValueError for any other text."""
    cores: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        low, high = parse_unsigned(first), parse_unsigned(last if dash else first)
        if low is None or high is None or not low <= high < CORES_MAX:
            raise ValueError(f"list of cores: expected numbers and ranges like 0-3,8, got {text!r}")
        cores.extend(range(low, high + 1))
    return cores


def cores_in(text: str | None) -> list[int] | None:
    """Return the cores of a list's text; None if it cannot be read or is invalid."""
    try:
        return None if text is None else parse_cpu_list(text)
    except ValueError:
        return None


def frequency_files(sys: Path) -> list[Path]:
    """Return per frequency domain the file with its current frequency, in kHz."""
    folder = sys / "devices/system/cpu/cpufreq"
    files = [folder / name / "scaling_cur_freq" for name in names_in(folder)]
    return [file for file in files if file.exists()]


def core_of(file: Path) -> str:
    """Return the core of a frequency file: `cpu8` for `.../policy8/scaling_cur_freq`."""
    return file.parent.name.replace("policy", "cpu")


def spread(files: Sequence[Path], files_max: int) -> list[Path]:
    """Return at most *files_max* of the files, evenly spread."""
    step = max(1, -(-len(files) // files_max))
    return list(files[::step])


def core_throttle_files(sys: Path) -> list[Path]:
    """Return per core the file with its thermal throttle count, which its threads share."""
    folder = sys / "devices/system/cpu"
    cores: dict[tuple[int | None, int | None], Path] = {}
    for name, count in _throttle_files(folder, "core_throttle_count"):
        topology = folder / name / "topology"
        package, core = (read_unsigned(topology / n) for n in ("physical_package_id", "core_id"))
        cores.setdefault((package, core if core is not None else int(name[3:])), count)
    return list(cores.values())


def package_throttle_files(sys: Path, file: str) -> list[Path]:
    """Return per CPU package the throttle file (count or time) of its first core."""
    folder = sys / "devices/system/cpu"
    packages: dict[int | None, Path] = {}
    for name, count in _throttle_files(folder, file):
        packages.setdefault(read_unsigned(folder / name / "topology/physical_package_id"), count)
    return list(packages.values())


def _throttle_files(folder: Path, file: str) -> Iterator[tuple[str, Path]]:
    for name in names_in(folder):
        count = folder / name / "thermal_throttle" / file
        if name.startswith("cpu") and name[3:].isdecimal() and count.exists():
            yield name, count


def cpu_model(proc: Path) -> str:
    """Return the processor's name from /proc/cpuinfo; empty if it has none (ARM)."""
    for line in (read_text(proc / "cpuinfo") or "").splitlines():
        word, _, value = line.partition(":")
        if word.strip() == "model name":
            return value.strip()
    return ""


# Files of /proc: proc(5).


def parse_vmstat(data: bytes, name: bytes) -> int | None:
    """Return the number of a line of /proc/vmstat."""
    return parse_unsigned(find_line(data, name + b" "))


def find_line(data: bytes, beginning: bytes) -> bytes | None:
    """Return the rest of the first line that starts with *beginning*, without outer blanks."""
    if data.startswith(beginning):
        start = 0
    else:
        start = data.find(b"\n" + beginning) + 1
        if start == 0:
            return None
    return data[start + len(beginning) :].partition(b"\n")[0].strip()


def parse_first_decimal(data: bytes) -> float | None:
    """Return the first number of /proc/loadavg (mean of one minute) or /proc/uptime (seconds)."""
    tokens = data.split(None, 1)
    return parse_decimal(tokens[0]) if tokens else None


def parse_decimal(text: bytes) -> float | None:
    """Return a decimal of at least 0 and below 2^32 - 1 (136 years of uptime); None for anything else."""
    try:
        value = float(text) if len(text) <= 40 and b"_" not in text else math.nan
    except ValueError:
        return None
    return value if 0 <= value < BLANK_32 else None  # false for NaN


# NUMA nodes and their huge pages: Documentation/ABI/stable/sysfs-devices-node.

_POOL = re.compile(r"hugepages-(\d{1,12})kB$", re.ASCII)


@dataclass(frozen=True, slots=True)
class HugepagePool:
    """Huge pages of one size on one node."""

    folder: Path
    page_bytes: int


def nodes(sys: Path, files: FileReader = FILE_READER) -> dict[str, Path]:
    """Return the folder of each NUMA node, by `node0`, in the order of their numbers."""
    folder = sys / "devices/system/node"
    numbers = [
        int(n[4:]) for n in files.names(folder) if n.startswith("node") and _is_number(n[4:])
    ]
    return {f"node{number}": folder / f"node{number}" for number in sorted(numbers)}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10 and str(int(text)) == text


def distances(folder: Path) -> list[int]:
    """Return the node's distances to all nodes; empty if unknown."""
    numbers = [parse_unsigned(word) for word in (read_text(folder / "distance") or "").split()]
    return [number for number in numbers if number is not None]


def hugepage_pools(sys: Path) -> dict[str, HugepagePool]:
    """Return the pools of huge pages, by `node0/2048kB`."""
    pools: dict[str, HugepagePool] = {}
    for node, folder in nodes(sys).items():
        for name in names_in(folder / "hugepages"):
            match = _POOL.match(name)
            if match:
                pool = HugepagePool(folder / "hugepages" / name, int(match[1]) * 1024)
                pools[f"{node}/{match[1]}kB"] = pool
    return pools


# Memory controllers and their DIMMs (EDAC): Documentation/driver-api/edac.rst, admin-guide/ras.rst.

_CONTROLLER = re.compile(r"mc\d{1,4}$", re.ASCII)
_DIMM = re.compile(r"(dimm|rank)\d{1,4}$", re.ASCII)
_ROW = re.compile(r"csrow\d{1,4}$", re.ASCII)
_CHANNEL = re.compile(r"(ch\d{1,4})_ce_count$", re.ASCII)


@dataclass(frozen=True, slots=True)
class EdacLocation:
    """A place with error counts: controller, DIMM, or with old drivers row and channels."""

    folder: Path
    kind: str  # controller, dimm, row, channel
    prefix: str = ""  # prefix of file names: `ch0_` for a channel
    uncorrected: bool = True  # whether it counts uncorrected errors; a channel may not


def edac_locations(sys: Path) -> dict[str, EdacLocation]:
    """Return every location, by `mc0`, `mc0/dimm3`, `mc0/csrow2`, `mc0/csrow2/ch0`.

    Drivers that know DIMMs (or ranks) may show the same errors by row too; then the rows are left
    out.
    """
    folder = sys / "devices/system/edac/mc"
    locations: dict[str, EdacLocation] = {}
    for name in filter(_CONTROLLER.match, names_in(folder)):
        locations[name] = EdacLocation(folder / name, "controller")
        parts = names_in(folder / name)
        dimms = [part for part in parts if _DIMM.match(part)]
        for dimm in dimms:
            locations[f"{name}/{dimm}"] = EdacLocation(folder / name / dimm, "dimm")
        for row in () if dimms else filter(_ROW.match, parts):
            locations |= _row(f"{name}/{row}", folder / name / row)
    return locations


def _row(name: str, folder: Path) -> dict[str, EdacLocation]:
    files = names_in(folder)
    locations = {name: EdacLocation(folder, "row")}
    for channel in [match[1] for match in map(_CHANNEL.match, files) if match]:
        uncorrected = f"{channel}_ue_count" in files
        locations[f"{name}/{channel}"] = EdacLocation(folder, "channel", f"{channel}_", uncorrected)
    return locations


# RAPL zones and hwmon sensors: Documentation/power/powercap, hwmon/sysfs-interface.rst.

_SENSOR = re.compile(r"((temp|power|fan|in)\d{1,4})_(input|average)$", re.ASCII)
#: Names that the kernel numbers in the order of detection: they may change at the next boot.
_NUMBERED = re.compile(r"(nvme|hwmon|input|net|phy)\d+$", re.ASCII)

_MMIO = "intel-rapl-mmio:"


@dataclass(frozen=True, slots=True)
class Sensor:
    """A hwmon sensor: its files begin with `prefix`."""

    prefix: str  # /sys/class/hwmon/hwmon3/power1
    reading: str  # _input or _average
    kind: str  # temp, power, fan, in (a voltage)


def rapl_zones(sys: Path) -> dict[str, Path]:
    """Return the folder of each RAPL zone, by name. Other powercap drivers (dtpm) have no energy.

    If a package is shown by its MSRs (`intel-rapl:0`) and by its memory-mapped registers
    (`intel-rapl-mmio:0`, with the same `name`), both have the same energy: the second is left out.
    """
    folder = sys / "class/powercap"
    zones = {
        name: folder / name
        for name in names_in(folder)
        if name.startswith("intel-rapl") and (folder / name / "energy_uj").exists()
    }
    packages = {name: zone_label(path) for name, path in zones.items() if name.count(":") == 1}
    others = {label for name, label in packages.items() if not name.startswith(_MMIO)}
    twice = {name for name, label in packages.items() if name.startswith(_MMIO) and label in others}
    return {name: path for name, path in zones.items() if package_of(name) not in twice}


def package_of(zone: str) -> str:
    """Return the zone of the whole package: `intel-rapl:0` for `intel-rapl:0:1`."""
    return ":".join(zone.split(":")[:2])


def zone_label(folder: Path) -> str:
    """Return the part that the zone measures: `package-0`, `dram`; empty if unknown."""
    return read_text(folder / "name") or ""


def energy_range_microjoules(folder: Path) -> int | None:
    """Return the value after which the zone's counter restarts at 0."""
    return read_unsigned(folder / "max_energy_range_uj") or None


def sensors(sys: Path) -> dict[str, Sensor]:
    """Return the sensors, by `coretemp@coretemp.0/temp1`. `_input` is preferred to `_average`."""
    result: dict[str, Sensor] = {}
    for chip, folder in chips(sys).items():
        for name in names_in(folder):
            match = _SENSOR.match(name)
            key = f"{chip}/{match[1]}" if match else ""
            if match and (key not in result or match[3] == "input"):
                result[key] = Sensor(str(folder / match[1]), f"_{match[3]}", match[2])
    return result


def chips(sys: Path) -> dict[str, Path]:
    """Return the folder of each hwmon chip, by a name that is the same after the next boot.

    The number of `hwmon3` may change, so the name is the chip's and its device's. Chips with equal
    names (no driver is known to have them) get `#2` and so on in the order of their numbers.
    """
    folder = sys / "class/hwmon"
    result: dict[str, Path] = {}
    for number in sorted(names_in(folder), key=lambda name: (len(name), name)):
        chip = _chip_name(folder / number)
        same = sum(name.partition("#")[0] == chip for name in result)
        result[f"{chip}#{same + 1}" if same else chip] = folder / number
    return result


def _chip_name(folder: Path) -> str:
    name = (read_text(folder / "name") or "unnamed").partition("\n")[0]
    device = _device_name(folder / "device")
    return f"{name}@{device}" if device else name


def _device_name(link: Path) -> str:
    """Return the name of the device behind *link*; its PCI address if the name is a mere number."""
    path = os.path.realpath(link)
    base = os.path.basename(path)
    if not link.is_symlink() or is_address(base) or not _NUMBERED.match(base):
        return base if link.is_symlink() else ""
    parents, _ = chain_to_root(path)
    return parents[0] if parents else ""


# Kernel clock: adjtimex(2), Linux `include/uapi/linux/timex.h`.

STA_UNSYNC = 0x0040
STA_NANO = 0x2000
_STATES_MAX = 5  # TIME_OK, TIME_INS, TIME_DEL, TIME_OOP, TIME_WAIT, TIME_ERROR
#: Maximum of the kernel's largest error, 16 s (NTP_PHASE_LIMIT); a larger value is invalid.
_ERROR_MICROSECONDS_MAX = 16_000_000
#: The kernel accepts offsets up to half a second (MAXPHASE) and steers by at most 500 ppm
#: (MAXFREQ).
_OFFSET_SECONDS_MAX = 1.0
_FREQUENCY_RATIO_MAX = 1e-3

Timex = tuple[int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class ClockStatus:
    """The clock's state in SI units; None for impossible values."""

    offset_seconds: float | None
    error_estimated_seconds: float | None
    error_max_seconds: float | None
    frequency_offset_ratio: float | None
    tai_offset_seconds: float | None
    synchronised: bool
    leap_state: int | None
    status_flags: int | None


def parse_timex(answer: Timex) -> ClockStatus:
    """Return the clock's state from the result of `ext.adjtimex.read`. Never raises.

    `synchronised` is the status bit alone: the kernel also returns TIME_ERROR for a lost PPS.
    """
    state, status, offset, frequency, error_max, error_estimated, tai = answer
    offset_seconds = offset * (1e-9 if status & STA_NANO else 1e-6)
    ratio = frequency / 65536e6
    return ClockStatus(
        offset_seconds if abs(offset_seconds) <= _OFFSET_SECONDS_MAX else None,
        _error_seconds(error_estimated),
        _error_seconds(error_max),
        ratio if abs(ratio) <= _FREQUENCY_RATIO_MAX else None,
        float(tai),
        not status & STA_UNSYNC,
        state if 0 <= state <= _STATES_MAX else None,
        status if status >= 0 else None,
    )


def _error_seconds(microseconds: int) -> float | None:
    return microseconds / 1e6 if 0 <= microseconds <= _ERROR_MICROSECONDS_MAX else None


BOOT_ID_BYTES = 16


def boot_id(proc_root: Path = Path("/proc")) -> bytes:
    """Return the kernel's 16 random bytes of this boot. Never raises.

    If the kernel shows none (some sandboxes) return 16 random bytes: each start then counts as a
    boot, which wastes a few sequence numbers and has no other effect.
    """
    try:
        boot = bytes.fromhex(
            (read_text(proc_root / "sys/kernel/random/boot_id") or "").replace("-", "")
        )
    except ValueError:
        boot = b""
    return boot if len(boot) == BOOT_ID_BYTES else os.urandom(BOOT_ID_BYTES)
