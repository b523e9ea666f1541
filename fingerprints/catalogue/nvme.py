"""NVMe controllers. Device: the controller's kernel name (`nvme0`); its disks and PCIe function are in the inventory.

SMART is log page 02h, which the drive keeps over restarts and reinstallations of the host.
"""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(2020, "nvme.controller_state", Kind.STATE, Pace.TEN_SECONDS, "class/nvme/nvme0/state", "0 new, 1 live, 2 resetting, 3 connecting, 4 deleting, 5 deleting without I/O, 6 dead, 7 admin only; only 1 serves its disks"),
    Signal(2021, "nvme.namespaces_count", Kind.GAUGE, Pace.TEN_SECONDS, "class/nvme/nvme0/nvme0n*", "disks of this controller; fewer than before: the kernel took one away"),
    Signal(2022, "nvme.queues_count", Kind.GAUGE, Pace.TEN_SECONDS, "class/nvme/nvme0/queue_count", "queues, the admin queue among them; fewer after a reset that half failed"),
    Signal(2030, "nvme.temperature_celsius", Kind.GAUGE, Pace.MINUTE, "SMART composite temperature, else hwmon temp1_input", "temperature of the drive as a whole"),
    Signal(2031, "nvme.temperature_critical_celsius", Kind.GAUGE, Pace.MINUTE, "hwmon temp1_crit", "the drive's own critical temperature (CCTEMP)"),
    Signal(2032, "nvme.critical_warning_flags", Kind.STATE, Pace.MINUTE, "SMART byte 0", "1 spare below threshold, 2 temperature, 4 reliability degraded, 8 read-only, 16 backup of volatile memory failed, 32 persistent memory region"),
    Signal(2033, "nvme.spare_ratio", Kind.GAUGE, Pace.MINUTE, "SMART byte 3", "spare blocks left, of those when new"),
    Signal(2034, "nvme.spare_threshold_ratio", Kind.GAUGE, Pace.MINUTE, "SMART byte 4", "below this the drive warns"),
    Signal(2035, "nvme.used_ratio", Kind.GAUGE, Pace.MINUTE, "SMART byte 5", "share of the endurance used up; may exceed 1, ends at 2.55"),
    Signal(2036, "nvme.media_errors", Kind.COUNTER, Pace.MINUTE, "SMART bytes 160-175", "times that the drive found data it could not correct"),
    Signal(2037, "nvme.error_log_count", Kind.COUNTER, Pace.MINUTE, "SMART bytes 176-191", "entries of the error log over the drive's life; commands it merely does not know are among them"),
    Signal(2038, "nvme.unsafe_shutdowns_count", Kind.COUNTER, Pace.MINUTE, "SMART bytes 144-159", "power lost without notice"),
    Signal(2039, "nvme.power_cycles_count", Kind.COUNTER, Pace.MINUTE, "SMART bytes 112-127", "power cycles; a step while the host stayed up: the drive lost power alone"),
    Signal(2040, "nvme.power_on_seconds", Kind.COUNTER, Pace.MINUTE, "SMART bytes 128-143 x 3600", "time powered, in whole hours"),
    Signal(2041, "nvme.busy_seconds", Kind.COUNTER, Pace.MINUTE, "SMART bytes 96-111 x 60", "time with commands outstanding, in whole minutes"),
    Signal(2042, "nvme.read_bytes", Kind.COUNTER, Pace.MINUTE, "SMART bytes 32-47 x 512000", "read by hosts over the drive's life"),
    Signal(2043, "nvme.written_bytes", Kind.COUNTER, Pace.MINUTE, "SMART bytes 48-63 x 512000", "written by hosts over the drive's life"),
    Signal(2044, "nvme.warning_temperature_seconds", Kind.COUNTER, Pace.MINUTE, "SMART bytes 192-195 x 60", "time above the warning temperature, in whole minutes"),
    Signal(2045, "nvme.critical_temperature_seconds", Kind.COUNTER, Pace.MINUTE, "SMART bytes 196-199 x 60", "time above the critical temperature, in whole minutes"),
    Signal(2046, "nvme.light_throttles_count", Kind.COUNTER, Pace.MINUTE, "SMART bytes 216-219", "times the drive slowed itself a little for heat", width_bits=32),
    Signal(2047, "nvme.heavy_throttles_count", Kind.COUNTER, Pace.MINUTE, "SMART bytes 220-223", "times the drive slowed itself a lot for heat", width_bits=32),
    Signal(2048, "nvme.counter_epoch_count", Kind.STATE, Pace.MINUTE, "class/nvme/nvme0/serial and model, a digest of 32 bits", "another number is another drive by the same name: its counters are its own"),
)
