"""CPU cores: lists, frequency and thermal throttling (Documentation/admin-guide/cputopology.rst)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from .files import names_in, parse_unsigned, read_text, read_unsigned

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


# NUMA nodes and their huge pages: Documentation/ABI/stable/sysfs-devices-node.


# Memory controllers and their DIMMs (EDAC): Documentation/driver-api/edac.rst, admin-guide/ras.rst.


# RAPL zones and hwmon sensors: Documentation/power/powercap, hwmon/sysfs-interface.rst.


# Kernel clock: adjtimex(2), Linux `include/uapi/linux/timex.h`.
