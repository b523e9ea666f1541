"""Power and heat of the host. Device: RAPL zone (`intel-rapl:0`) or hwmon sensor (`hwmon3/power1`)."""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(700, "rapl.energy_joules", Kind.GAUGE, Pace.SECOND, "class/powercap/intel-rapl*/energy_uj, unwrapped at its max_energy_range_uj", "energy since the agent started"),
    Signal(701, "rapl.power_limit_watts", Kind.GAUGE, Pace.TEN_SECONDS, "constraint_0_power_limit_uw", "long-term cap of the package"),
    Signal(710, "hwmon.power_watts", Kind.GAUGE, Pace.TEN_SECONDS, "class/hwmon/*/power*_input or _average", "power at a sensor"),
    Signal(711, "hwmon.temperature_celsius", Kind.GAUGE, Pace.TEN_SECONDS, "class/hwmon/*/temp*_input", "temperature at a sensor"),
    Signal(712, "hwmon.temperature_critical_celsius", Kind.GAUGE, Pace.TEN_SECONDS, "class/hwmon/*/temp*_crit", "where the sensor calls it critical"),
)
