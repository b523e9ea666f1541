"""Power and heat: RAPL zones and hwmon sensors (Documentation/power/powercap, hwmon/sysfs-interface.rst)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .files import names_in, read_text, read_unsigned
from .pci import chain_to_root, is_address

_SENSOR = re.compile(r"((temp|power|fan|in)\d{1,4})_(input|average)$", re.ASCII)
#: A name that the kernel gives in the order of finding: not the same after the next boot.
_NUMBERED = re.compile(r"(nvme|hwmon|input|net|phy)\d+$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Sensor:
    """A hwmon sensor: its files begin with `prefix`."""

    prefix: str  # /sys/class/hwmon/hwmon3/power1
    reading: str  # _input or _average
    kind: str  # temp, power, fan, in (a voltage)


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
    """Return the sensors, by `coretemp@coretemp.0/temp1`. `_input` goes before `_average`."""
    found: dict[str, Sensor] = {}
    for chip, folder in chips(sys).items():
        for name in names_in(folder):
            match = _SENSOR.match(name)
            key = f"{chip}/{match[1]}" if match else ""
            if match and (key not in found or match[3] == "input"):
                found[key] = Sensor(str(folder / match[1]), f"_{match[3]}", match[2])
    return found


def chips(sys: Path) -> dict[str, Path]:
    """Return the folder of each hwmon chip by a name that is the same after the next boot.

    The number of `hwmon3` is not: so the chip's name and its device's. Chips that have both alike
    (no driver is known to do so) are told apart by the order of their numbers, `#2` and so on.
    """
    folder = sys / "class/hwmon"
    found: dict[str, Path] = {}
    for number in sorted(names_in(folder), key=lambda name: (len(name), name)):
        chip = _chip_name(folder / number)
        same = sum(name.partition("#")[0] == chip for name in found)
        found[f"{chip}#{same + 1}" if same else chip] = folder / number
    return found


def _chip_name(folder: Path) -> str:
    name = (read_text(folder / "name") or "unnamed").partition("\n")[0]
    device = _device_name(folder / "device")
    return f"{name}@{device}" if device else name


def _device_name(link: Path) -> str:
    """Return the name of the device that *link* points to, or where that is a mere number, its PCI address."""
    path = os.path.realpath(link)
    base = os.path.basename(path)
    if not link.is_symlink() or is_address(base) or not _NUMBERED.match(base):
        return base if link.is_symlink() else ""
    parents, _ = chain_to_root(path)
    return parents[0] if parents else ""
