"""Cores: times, lists, frequency and heat brakes (proc(5), Documentation/admin-guide/cputopology.rst)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .files import names_in, parse_unsigned, read_text, read_unsigned

#: More cores than any host has; a list that claims more is not one.
CORES_MAX = 65536
_TIMES = 8  # user nice system idle iowait irq softirq steal; guest times are within user and nice


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Ticks since boot, of all cores together."""

    user: int  # with nice
    system: int  # with interrupts
    idle: int
    iowait: int
    steal: int


@dataclass(frozen=True, slots=True)
class Stat:
    """/proc/stat. What is not there or is no number is None."""

    times: CpuTimes | None
    idle_by_core: dict[bytes, int]  # ticks idle, or idle with I/O outstanding
    context_switches: int | None
    runnable: int | None
    blocked: int | None


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of all cores' time between two readings, each 0 to 1; None when they cannot be told."""

    user: float | None = None
    system: float | None = None
    idle: float | None = None
    iowait: float | None = None
    steal: float | None = None
    busiest_core: float | None = None


def shares_of_time(before: Stat | None, now: Stat) -> Shares:
    """Return the shares between two readings; nothing known when no time passed or one is missing.

    A kernel may let iowait fall (proc(5)): a step back counts as none.
    """
    if before is None or before.times is None or now.times is None:
        return Shares()
    old, new = before.times, now.times
    user = max(0, new.user - old.user)
    system = max(0, new.system - old.system)
    idle = max(0, new.idle - old.idle)
    iowait = max(0, new.iowait - old.iowait)
    steal = max(0, new.steal - old.steal)
    total = user + system + idle + iowait + steal
    if total == 0:
        return Shares()
    return Shares(
        user / total,
        system / total,
        idle / total,
        iowait / total,
        steal / total,
        _busiest_core(before, now, total),
    )


def _busiest_core(before: Stat, now: Stat, total: int) -> float | None:
    """Return the least idle core's busy share; None when other cores are online than before.

    All cores' clocks run alike, so a core's time is the total by the number of cores.
    """
    if not now.idle_by_core or before.idle_by_core.keys() != now.idle_by_core.keys():
        return None
    least = min(idle - before.idle_by_core[core] for core, idle in now.idle_by_core.items())
    return min(1.0, max(0.0, 1 - max(0, least) * len(now.idle_by_core) / total))


def parse_stat(data: bytes) -> Stat:
    """Parse /proc/stat."""
    times: CpuTimes | None = None
    cores: dict[bytes, int] = {}
    rest: dict[bytes, int | None] = {}
    for line in data.split(b"\n"):
        if line.startswith(b"cpu "):
            times = _parse_times(line)
        elif line.startswith(b"cpu"):
            _add_core(line, cores)
        elif line.startswith((b"ctxt ", b"procs_")):
            word, _, number = line.partition(b" ")
            rest[word] = parse_unsigned(number)
    return Stat(
        times, cores, rest.get(b"ctxt"), rest.get(b"procs_running"), rest.get(b"procs_blocked")
    )


def _parse_times(line: bytes) -> CpuTimes | None:
    ticks = [parse_unsigned(word) for word in line.split()[1 : 1 + _TIMES]]
    whole = [tick for tick in ticks if tick is not None]
    if len(whole) < _TIMES:
        return None
    user, nice, system, idle, iowait, irq, softirq, steal = whole
    return CpuTimes(user + nice, system + irq + softirq, idle, iowait, steal)


def _add_core(line: bytes, cores: dict[bytes, int]) -> None:
    words = line.split(None, 6)  # the fewest: a large host has hundreds of these lines each second
    try:
        cores[words[0]] = int(words[4]) + int(words[5])
    except (ValueError, IndexError):
        return


def parse_cpu_list(text: str) -> list[int]:
    """Return the cores of `0-3,8,10-11`. ValueError when it is no such list."""
    cores: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        low, high = parse_unsigned(first), parse_unsigned(last if dash else first)
        if low is None or high is None or not low <= high < CORES_MAX:
            raise ValueError(f"list of cores: expected numbers and ranges like 0-3,8, got {text!r}")
        cores.extend(range(low, high + 1))
    return cores


def frequency_files(sys: Path) -> list[Path]:
    """Return a file per frequency domain that holds its frequency now, in kHz."""
    folder = sys / "devices/system/cpu/cpufreq"
    files = [folder / name / "scaling_cur_freq" for name in names_in(folder)]
    return [file for file in files if file.exists()]


def throttle_files(sys: Path) -> list[Path]:
    """Return a file per CPU package that counts its heat brakes: of the package's first core."""
    folder = sys / "devices/system/cpu"
    packages: dict[int, Path] = {}
    for name in names_in(folder):
        count = folder / name / "thermal_throttle/package_throttle_count"
        if name.startswith("cpu") and name[3:].isdecimal() and count.exists():
            package = read_unsigned(folder / name / "topology/physical_package_id")
            packages.setdefault(-1 if package is None else package, count)
    return list(packages.values())


def cpu_model(proc: Path) -> str:
    """Return the processor's name from /proc/cpuinfo; empty where it has none (ARM)."""
    for line in (read_text(proc / "cpuinfo") or "").splitlines():
        word, _, value = line.partition(":")
        if word.strip() == "model name":
            return value.strip()
    return ""
