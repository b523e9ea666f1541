"""RAPL zones and hwmon sensors (Documentation/power/powercap, hwmon/sysfs-interface.rst)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .files import names_in, read_text, read_unsigned
from .pci import chain_to_root, is_address

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
