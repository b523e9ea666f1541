"""Power and heat of the host. Device: RAPL zone (`intel-rapl:0`), or hwmon sensor by chip and the chip's device
(`coretemp@coretemp.0/temp1`): the numbers of hwmon folders change from boot to boot.

Power is read each second; temperatures, fans and voltages each 10 s: many ask a device or wake a core.
"""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(700, "rapl.energy_joules", Kind.GAUGE, Pace.SECOND, "class/powercap/intel-rapl*/energy_uj, unwrapped at its max_energy_range_uj", "energy since the agent started"),
    Signal(701, "rapl.power_limit_watts", Kind.GAUGE, Pace.TEN_SECONDS, "constraint_0_power_limit_uw", "long-term cap of the package"),
    Signal(710, "hwmon.power_watts", Kind.GAUGE, Pace.SECOND, "class/hwmon/*/power*_input or _average", "power at a sensor; the whole node where the BMC shows it by ACPI (`power_meter`)"),
    Signal(711, "hwmon.temperature_celsius", Kind.GAUGE, Pace.TEN_SECONDS, "class/hwmon/*/temp*_input", "temperature at a sensor"),
    Signal(712, "hwmon.temperature_critical_celsius", Kind.GAUGE, Pace.TEN_SECONDS, "class/hwmon/*/temp*_crit", "where the sensor calls it critical"),
    Signal(1920, "hwmon.fan_speed_hertz", Kind.GAUGE, Pace.TEN_SECONDS, "class/hwmon/*/fan*_input, rpm / 60", "turns of a fan in a second; 0 is a fan that stands"),
    Signal(1921, "hwmon.voltage_volts", Kind.GAUGE, Pace.TEN_SECONDS, "class/hwmon/*/in*_input", "voltage at a sensor"),
    Signal(1922, "hwmon.power_cap_watts", Kind.GAUGE, Pace.TEN_SECONDS, "class/hwmon/*/power*_cap", "power that the sensor's device is held to"),
)
