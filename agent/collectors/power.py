"""Power and heat of the host: RAPL and hwmon."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...ext.counterfiles import SIGNED
from ...ext.hostfiles import Glance
from ..hardware import power_sensors
from ..hardware.files import Roots
from .counter_files import U64_MAX, CollectorSpec, CounterDevice, CounterFileCollector, FileField

#: Since CVE-2020-8694 only root may read the energy counters, which reveal keys.
_RAPL_REMEDY = (
    "energy_uj is readable by root only; "
    "open it with AmbientCapabilities=CAP_DAC_READ_SEARCH in the agent's unit, "
    "or: chmod a+r /sys/class/powercap/intel-rapl*/energy_uj"
)

#: Fields of each kind of sensor at 10 s (Documentation/hwmon/sysfs-interface.rst: m°C, rpm, mV,
#: uW).
_SENSORS: Mapping[str, Mapping[str, FileField]] = {
    "temp": {
        "hwmon.temperature_celsius": FileField("_input", SIGNED, scale=1e-3),
        "hwmon.temperature_critical_celsius": FileField("_crit", SIGNED, scale=1e-3),
    },
    "fan": {"hwmon.fan_speed_hertz": FileField("_input", scale=1 / 60)},
    "in": {"hwmon.voltage_volts": FileField("_input", SIGNED, scale=1e-3)},
    "power": {"hwmon.power_cap_watts": FileField("_cap", scale=1e-6)},
}


def rapl_1s(roots: Roots) -> CounterFileCollector:
    """Return the collector of energy per RAPL zone since the agent started.

    A read interrupts a core of the package.
    """
    return CounterFileCollector(
        CollectorSpec(
            "rapl_1s",
            lambda: [
                CounterDevice(
                    name, f"{folder}/", _energy(folder), responder=power_sensors.package_of(name)
                )
                for name, folder in power_sensors.rapl_zones(roots.sys).items()
            ],
            "no RAPL zone in /sys/class/powercap",
            enters_driver=True,
            list_seconds=60,
            change_key=Glance(roots.sys / "class/powercap").look,
            access_error=_access_error,
        )
    )


def _energy(zone: Path) -> dict[str, FileField]:
    """Return a zone's energy. A value beyond the counter's range is invalid."""
    span = power_sensors.energy_range_microjoules(zone) or 0
    file_field = FileField("energy_uj", scale=1e-6, raw_max=span or U64_MAX, wraps_at=span)
    return {"rapl.energy_joules": file_field}


def _access_error(refusals: Sequence[tuple[str, int]]) -> str:
    denied = (errno.EACCES, errno.EPERM)
    return _RAPL_REMEDY if any(error in denied for _, error in refusals) else ""


def rapl_10s(roots: Roots) -> CounterFileCollector:
    """Return the collector of the long-term power cap of each zone that has a cap."""

    def devices() -> list[CounterDevice]:
        limit = {"rapl.power_limit_watts": FileField("constraint_0_power_limit_uw", scale=1e-6)}
        return [
            CounterDevice(name, f"{folder}/", limit, responder=power_sensors.package_of(name))
            for name, folder in power_sensors.rapl_zones(roots.sys).items()
            if (folder / "constraint_0_power_limit_uw").exists()
        ]

    no_data_reason = "no RAPL zone with a power cap in /sys/class/powercap (AMD's have none)"
    return CounterFileCollector(
        CollectorSpec("rapl_10s", devices, no_data_reason, enters_driver=True, list_seconds=60)
    )


def hwmon_1s(roots: Roots) -> CounterFileCollector:
    """Return the collector of power sensors: the node's if the BMC shows it, PSUs, NICs."""

    def devices() -> list[CounterDevice]:
        return [
            CounterDevice(
                name,
                s.prefix,
                {"hwmon.power_watts": FileField(s.reading, scale=1e-6)},
                responder=_chip(name),
            )
            for name, s in power_sensors.sensors(roots.sys).items()
            if s.kind == "power"
        ]

    return _hwmon("hwmon_1s", roots, devices, "no power sensor")


def hwmon_10s(roots: Roots) -> CounterFileCollector:
    """Return the collector of heat, fans, voltages and caps.

    Many reads call the device: an NVMe by an admin command, a NIC or a BMC by its firmware, a
    processor by waking the core.
    """

    def devices() -> list[CounterDevice]:
        return [
            CounterDevice(name, s.prefix, _SENSORS[s.kind], responder=_chip(name))
            for name, s in power_sensors.sensors(roots.sys).items()
            if s.kind != "power" or Path(f"{s.prefix}_cap").exists()
        ]

    missing = "no sensor of heat, fans or voltages"
    return _hwmon("hwmon_10s", roots, devices, missing)


def _hwmon(
    name: str, roots: Roots, devices: Callable[[], list[CounterDevice]], missing: str
) -> CounterFileCollector:
    folder = "class/hwmon"
    return CounterFileCollector(
        CollectorSpec(
            name, devices, f"{missing} in /sys/{folder}", enters_driver=True, list_seconds=60,
            change_key=Glance(roots.sys / folder).look, wait_seconds_max=300,
        )
    )  # fmt: skip


def _chip(sensor: str) -> str:
    """Return the chip of a sensor: a chip that hangs affects all its sensors."""
    return sensor.rpartition("/")[0]
