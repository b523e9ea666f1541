"""Power and heat of the host: RAPL and hwmon."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...contract.signal import Pace
from ...ext.counterfiles import SIGNED
from ...ext.hostfiles import Glance
from ..hardware import host
from ..hardware.files import Roots
from .counter_files import U64_MAX, Device, FolderCollector, Plan, Source

#: Since CVE-2020-8694 the energy counters are the root user's: they give keys away.
_RAPL_CLOSED = (
    "energy_uj is readable by root only; "
    "open it with AmbientCapabilities=CAP_DAC_READ_SEARCH in the agent's unit, "
    "or: chmod a+r /sys/class/powercap/intel-rapl*/energy_uj"
)


def rapl_1s(roots: Roots) -> FolderCollector:
    """Energy of each RAPL zone since the agent started. A core of the package is interrupted to read its register."""
    return FolderCollector(
        Plan(
            "rapl_1s",
            Pace.SECOND,
            ("rapl_1s",),
            lambda: [
                Device(name, f"{folder}/", _energy(folder), answers=host.package_of(name))
                for name, folder in host.rapl_zones(roots.sys).items()
            ],
            "no RAPL zone in /sys/class/powercap",
            enters_driver=True,
            list_seconds=60,
            glance=Glance(roots.sys / "class/powercap").look,
            blind_words=_closed_words,
        )
    )


def _energy(zone: Path) -> dict[str, Source]:
    """Return where a zone's energy stands: beyond the counter's range nothing is a reading."""
    span = host.energy_range_microjoules(zone) or 0
    source = Source("energy_uj", scale=1e-6, most=span or U64_MAX, span=span)
    return {"rapl.energy_joules": source}


def _closed_words(refusals: Sequence[tuple[str, int]]) -> str:
    denied = (errno.EACCES, errno.EPERM)
    return _RAPL_CLOSED if any(error in denied for _, error in refusals) else ""


def rapl_10s(roots: Roots) -> FolderCollector:
    """The long-term power cap of each zone that has one."""

    def devices() -> list[Device]:
        limit = {"rapl.power_limit_watts": Source("constraint_0_power_limit_uw", scale=1e-6)}
        return [
            Device(name, f"{folder}/", limit, answers=host.package_of(name))
            for name, folder in host.rapl_zones(roots.sys).items()
            if (folder / "constraint_0_power_limit_uw").exists()
        ]

    absent = "no RAPL zone with a power cap in /sys/class/powercap (AMD's have none)"
    return FolderCollector(
        Plan(
            "rapl_10s",
            Pace.TEN_SECONDS,
            ("rapl_10s",),
            devices,
            absent,
            enters_driver=True,
            list_seconds=60,
        )
    )


def hwmon_1s(roots: Roots) -> FolderCollector:
    """Power sensors: the whole node's where the BMC shows it, a PSU's, a NIC's."""
    return FolderCollector(
        Plan(
            "hwmon_1s",
            Pace.SECOND,
            ("hwmon_1s",),
            lambda: [
                Device(
                    name,
                    s.prefix,
                    {"hwmon.power_watts": Source(s.reading, scale=1e-6)},
                    answers=_chip(name),
                )
                for name, s in host.sensors(roots.sys).items()
                if s.kind == "power"
            ],
            "no power sensor in /sys/class/hwmon",
            enters_driver=True,
            list_seconds=60,
            glance=Glance(roots.sys / "class/hwmon").look,
            wait_seconds_max=300,
        )
    )


def hwmon_10s(roots: Roots) -> FolderCollector:
    """Heat, fans, voltages, caps. Many ask their device: an NVMe by an admin command, a NIC or a BMC by
    its firmware, a processor by waking the core."""
    return FolderCollector(
        Plan(
            "hwmon_10s",
            Pace.TEN_SECONDS,
            ("hwmon_10s",),
            lambda: [
                Device(name, s.prefix, _SENSORS[s.kind], answers=_chip(name))
                for name, s in host.sensors(roots.sys).items()
                if s.kind != "power" or Path(f"{s.prefix}_cap").exists()
            ],
            "no sensor of heat, fans or voltages in /sys/class/hwmon",
            enters_driver=True,
            list_seconds=60,
            glance=Glance(roots.sys / "class/hwmon").look,
            wait_seconds_max=300,
        )
    )


def _chip(sensor: str) -> str:
    """Return the chip of a sensor: when one does not answer, the chip does not."""
    return sensor.rpartition("/")[0]


#: What each kind of sensor has at 10 s (Documentation/hwmon/sysfs-interface.rst: m°C, rpm, mV, uW).
_SENSORS: Mapping[str, Mapping[str, Source]] = {
    "temp": {
        "hwmon.temperature_celsius": Source("_input", SIGNED, scale=1e-3),
        "hwmon.temperature_critical_celsius": Source("_crit", SIGNED, scale=1e-3),
    },
    "fan": {"hwmon.fan_speed_hertz": Source("_input", scale=1 / 60)},
    "in": {"hwmon.voltage_volts": Source("_input", SIGNED, scale=1e-3)},
    "power": {"hwmon.power_cap_watts": Source("_cap", scale=1e-6)},
}
