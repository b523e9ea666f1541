"""Power and heat: RAPL zones and hwmon sensors (Documentation/power/powercap, hwmon/sysfs-interface.rst)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .files import names_in, read_text, read_unsigned

_SENSOR = re.compile(r"((temp|power)\d+)_(input|average)$")


@dataclass(frozen=True, slots=True)
class Sensor:
    """A hwmon sensor: its files begin with `prefix`."""

    prefix: str  # /sys/class/hwmon/hwmon3/power1
    reading: str  # _input or _average
    is_power: bool


def rapl_zones(sys: Path) -> dict[str, Path]:
    """Return the folder of each RAPL zone, by name. Other powercap drivers (dtpm) are not energy."""
    folder = sys / "class/powercap"
    return {
        name: folder / name
        for name in names_in(folder)
        if name.startswith("intel-rapl") and (folder / name / "energy_uj").exists()
    }


def zone_label(folder: Path) -> str:
    """Return what the zone measures: `package-0`, `dram`; empty when it does not say."""
    return read_text(folder / "name") or ""


def energy_range_microjoules(folder: Path) -> int | None:
    """Return the value after which the zone's counter begins again at 0."""
    return read_unsigned(folder / "max_energy_range_uj") or None


def sensors(sys: Path) -> dict[str, Sensor]:
    """Return the power and temperature sensors, by `hwmon3/power1`. `_input` goes before `_average`."""
    folder = sys / "class/hwmon"
    found: dict[str, Sensor] = {}
    for chip in names_in(folder):
        for name in names_in(folder / chip):
            match = _SENSOR.match(name)
            key = f"{chip}/{match[1]}" if match else ""
            if match and (key not in found or match[3] == "input"):
                prefix = str(folder / chip / match[1])
                found[key] = Sensor(prefix, f"_{match[3]}", match[2] == "power")
    return found


class EnergyMeter:
    """Joules since the first reading, over the ends of the counter's range.

    A step back is a wrap if the range is known; otherwise counting goes on from the new reading. So the
    sum may miss energy (an unknown range, a gap of more than one wrap), and never invents any.
    """

    def __init__(self, range_microjoules: int | None) -> None:
        self._range = range_microjoules
        self._last: int | None = None
        self._total = 0

    def add(self, microjoules: int | None) -> float | None:
        """Take a reading (None: there was none) and return the joules so far; None without one."""
        if microjoules is None:
            return None
        if self._last is not None:
            step = microjoules - self._last
            if step < 0:
                step = step + self._range if self._range and self._last <= self._range else 0
            self._total += step
        self._last = microjoules
        return self._total / 1e6
