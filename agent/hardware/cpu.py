"""Cores: times, lists, frequency and heat brakes (proc(5), Documentation/admin-guide/cputopology.rst)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...fingerprints.counters import counted
from .files import names_in, parse_unsigned, read_text, read_unsigned

#: More cores than any host has; a list that claims more is not one.
CORES_MAX = 65536
#: A core that was idle for less than this share of the time had no room left.
SATURATED_IDLE_RATIO_MAX = 0.05
_TIMES = 8  # user nice system idle iowait irq softirq steal; guest times are within user and nice


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Ticks since boot, of one core or of all together."""

    user: int  # with nice
    system: int  # with interrupts
    idle: int
    iowait: int
    steal: int
    interrupt: int  # hard and soft, also within `system`


@dataclass(frozen=True, slots=True)
class Stat:
    """/proc/stat. What is not there or is no number is None."""

    times: CpuTimes | None
    idle_by_core: dict[bytes, int]  # `cpu17`: ticks idle, or idle with I/O outstanding
    context_switches: int | None
    runnable: int | None
    blocked: int | None
    interrupts: int | None
    softirqs: int | None


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of time between two readings, each 0 to 1; None when they cannot be told."""

    user: float | None = None
    system: float | None = None
    interrupt: float | None = None
    idle: float | None = None
    iowait: float | None = None
    steal: float | None = None
    busiest_core: float | None = None
    busiest_core_number: int | None = None
    saturated_cores: int | None = None

    @property
    def busy(self) -> float | None:
        """The share that was neither idle nor waiting for I/O."""
        if self.idle is None or self.iowait is None:
            return None
        return max(0.0, 1 - self.idle - self.iowait)


def shares_of_time(before: Stat | None, now: Stat) -> Shares:
    """Return the shares of all cores' time, and what the busiest of them did.

    Nothing is known when no time passed or a reading is missing.
    """
    if before is None or before.times is None or now.times is None:
        return Shares()
    total, shares = _shares(before.times, now.times)
    busiest = _busiest_core(before.idle_by_core, now.idle_by_core)
    if busiest is None or not total:
        return shares
    # All cores' clocks run alike, so a core's time is the total by the number of cores.
    ticks = total / len(now.idle_by_core)
    idle = _idled(before.idle_by_core[busiest], now.idle_by_core[busiest])
    if idle is None:
        return shares
    return replace(
        shares,
        busiest_core=min(1.0, max(0.0, 1 - idle / ticks)),
        busiest_core_number=parse_unsigned(busiest[3:]),
        saturated_cores=_saturated(before.idle_by_core, now.idle_by_core, ticks),
    )


def shares_between(old: CpuTimes, new: CpuTimes) -> Shares:
    """Return the shares of one core's time between two readings."""
    return _shares(old, new)[1]


def _shares(old: CpuTimes, new: CpuTimes) -> tuple[int, Shares]:
    """Return the ticks that passed, and the shares; nothing known when none passed."""
    user, system = counted(old.user, new.user), counted(old.system, new.system)
    steal = counted(old.steal, new.steal)
    idle, iowait = _idled(old.idle, new.idle), _idled(old.iowait, new.iowait)
    if user is None or system is None or steal is None or idle is None or iowait is None:
        return 0, Shares()
    total = user + system + idle + iowait + steal
    if total == 0:
        return 0, Shares()
    interrupt = counted(old.interrupt, new.interrupt)
    return total, Shares(
        user / total,
        system / total,
        None if interrupt is None else interrupt / total,
        idle / total,
        iowait / total,
        steal / total,
    )


def _idled(old: int, new: int) -> int | None:
    """Return the ticks between two readings of idle or iowait, which a kernel may let fall (proc(5)): a step
    back counts as none."""
    return 0 if new < old else counted(old, new)


def _busiest_core(before: dict[bytes, int], now: dict[bytes, int]) -> bytes | None:
    """Return the core that idled least; None when other cores are online than before.

    The differences only say which: what is told goes through `counted`, which at hundreds of cores a
    second would cost more than all the rest.
    """
    if not now or before.keys() != now.keys():
        return None
    return min(now, key=lambda core: now[core] - before[core])


def _saturated(before: dict[bytes, int], now: dict[bytes, int], ticks: float) -> int:
    limit = ticks * SATURATED_IDLE_RATIO_MAX
    return sum(idle <= before[core] + limit for core, idle in now.items())


def parse_stat(data: bytes) -> Stat:
    """Parse /proc/stat."""
    times: CpuTimes | None = None
    cores: dict[bytes, int] = {}
    rest: dict[bytes, int | None] = {}
    for line in data.split(b"\n"):
        if line.startswith(b"cpu "):
            times = parse_times(line)
        elif line.startswith(b"cpu"):
            _add_core(line, cores)
        elif line.startswith((b"ctxt ", b"procs_", b"intr ", b"softirq ")):
            words = line.split(None, 2)
            rest[words[0]] = parse_unsigned(words[1]) if len(words) > 1 else None
    return Stat(
        times,
        cores,
        rest.get(b"ctxt"),
        rest.get(b"procs_running"),
        rest.get(b"procs_blocked"),
        rest.get(b"intr"),
        rest.get(b"softirq"),
    )


def parse_core_times(data: bytes) -> dict[int, CpuTimes]:
    """Return the times of each core that is online, by its number, of /proc/stat."""
    cores: dict[int, CpuTimes] = {}
    for line in data.split(b"\n"):
        number = parse_unsigned(line[3:].partition(b" ")[0]) if line.startswith(b"cpu") else None
        times = None if number is None else parse_times(line)
        if number is not None and times is not None:
            cores[number] = times
    return cores


def parse_times(line: bytes) -> CpuTimes | None:
    """Return the times of a line `cpu...` of /proc/stat; None where one is no number."""
    ticks = [parse_unsigned(word) for word in line.split()[1 : 1 + _TIMES]]
    whole = [tick for tick in ticks if tick is not None]
    if len(whole) < _TIMES:
        return None
    user, nice, system, idle, iowait, irq, softirq, steal = whole
    interrupt = irq + softirq
    return CpuTimes(user + nice, system + interrupt, idle, iowait, steal, interrupt)


def _add_core(line: bytes, cores: dict[bytes, int]) -> None:
    words = line.split(None, 6)  # the fewest: a large host has hundreds of these lines each second
    try:
        if words[0][3:].isdigit():
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


def cores_in(text: str | None) -> list[int] | None:
    """Return the cores of a list's text; None where it cannot be read or is none."""
    try:
        return None if text is None else parse_cpu_list(text)
    except ValueError:
        return None


def frequency_files(sys: Path) -> list[Path]:
    """Return a file per frequency domain that holds its frequency now, in kHz."""
    folder = sys / "devices/system/cpu/cpufreq"
    files = [folder / name / "scaling_cur_freq" for name in names_in(folder)]
    return [file for file in files if file.exists()]


def spread(files: Sequence[Path], files_max: int) -> list[Path]:
    """Return at most *files_max* of the files, evenly over all of them."""
    step = max(1, -(-len(files) // files_max))
    return list(files[::step])


def core_throttle_files(sys: Path) -> list[Path]:
    """Return a file per core that counts its heat brakes; threads of one core share a count."""
    folder = sys / "devices/system/cpu"
    cores: dict[tuple[int | None, int | None], Path] = {}
    for name, count in _throttle_files(folder, "core_throttle_count"):
        topology = folder / name / "topology"
        package, core = (read_unsigned(topology / n) for n in ("physical_package_id", "core_id"))
        cores.setdefault((package, core if core is not None else int(name[3:])), count)
    return list(cores.values())


def package_throttle_files(sys: Path, file: str) -> list[Path]:
    """Return a file per CPU package that counts its heat brakes, or their time: of its first core."""
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
    """Return the processor's name from /proc/cpuinfo; empty where it has none (ARM)."""
    for line in (read_text(proc / "cpuinfo") or "").splitlines():
        word, _, value = line.partition(":")
        if word.strip() == "model name":
            return value.strip()
    return ""
