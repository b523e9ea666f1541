"""Writes the scenario that the stand-in NVML plays: an H100 under load, in NVML's units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: One value, or one for each step; `-` is not supported, `!15` returns nvmlReturn 15.
Steps = int | str | Sequence[int | str]

#: Two steps: waiting, and at work.
VALUES: dict[str, Steps] = {
    "sm_clock": (345, 1980),
    "memory_clock": 2619,
    "sm_clock_max": 1980,
    "memory_clock_max": 2619,
    "event_reasons": (0x1, 0x4),
    "power": (69850, 629450),
    "power_limit": 700000,
    "energy": (5_000_000_123, 5_000_629_573),
    "temperature": (41, 67),
    "slowdown": 89,
    "margin": (46, -2),
    "utilization": (0, 100),
    "memory_utilization": (0, 43),
    "memory_total": 85_520_809_984,
    "memory_reserved": 502_333_440,
    "memory_used": (0, 68_719_476_736),
    "ecc_corrected_volatile": (0, 7),
    "ecc_uncorrected_volatile": 0,
    "ecc_corrected_aggregate": (12, 19),
    "ecc_uncorrected_aggregate": 1,
    "remapped_correctable": 2,
    "remapped_uncorrectable": (0, 1),
    "remap_pending": (0, 1),
    "remap_failed": 0,
    "pcie_generation": (1, 5),
    "pcie_generation_max": 5,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_replays": 9,
    "performance_state": (8, 0),
    "processes": (0, 3),
    "graphics_clock": (345, 1965),
    "video_clock": (765, 1545),
    "graphics_clock_max": 1995,
    "video_clock_max": 1560,
    "sm_application_clock": 1755,
    "memory_application_clock": 2600,
    "power_limit_requested": 690000,
    "power_limit_default": 701000,
    "power_limit_min": 200000,
    "power_limit_max": 702000,
    "shutdown": 92,
    "memory_max": 95,
    "gpu_max": 87,
    "encoder_utilization": (0, 11),
    "decoder_utilization": (0, 12),
    "jpeg_utilization": (0, 13),
    "optical_flow_utilization": (0, 14),
    "bar1_total": 137_438_953_472,
    "bar1_used": 9_437_184,
    "violation_thermal": 6_000_000_002,
    "sram_corrected_volatile": 21,
    "sram_parity_volatile": 22,
    "sram_secded_volatile": 23,
    "sram_corrected_aggregate": 24,
    "sram_parity_aggregate": 25,
    "sram_secded_aggregate": 26,
    "sram_l2": 27,
    "sram_sm": 28,
    "sram_pcie": 29,
    "sram_mcu": 30,
    "sram_other": 31,
    "sram_threshold": (0, 1),
    "sram_unique": (0, 5),
    "sram_unique_parity": 2,
    "sram_unique_each": 7,
    "banks_max": 2555,
    "banks_high": 3,
    "banks_partial": 2,
    "banks_low": 1,
    "banks_none": 0,
    "repair_channel": (0, 1),
    "repair_tpc": 0,
    "unrepairable": 0,
    "ecc_mode": 1,
    "ecc_mode_pending": 0,
    "mig_mode": 0,
    "mig_mode_pending": (0, 1),
    "persistence_mode": 1,
    "compute_mode": 3,
    "module_power": (120000, 890000),
}
#: Field id -> (value type, steps). An aggregate or a violation needs more than 32 bits, to reveal
#: truncation.
FIELDS: dict[int, tuple[str, Steps]] = {
    3: ("ull", (0, 7)),
    4: ("ull", 0),
    5: ("ull", (12, 19)),
    6: ("ull", 1),
    **{number: ("ull", 100 + number) for number in range(7, 29)},  # ECC by location
    29: ("uint", 4),
    30: ("uint", 5),
    31: ("uint", (0, 1)),
    74: ("ull", (10_000_000_000, 10_400_000_000)),
    75: ("ull", 6_000_000_001),
    76: ("ull", 0),
    77: ("ull", 7_000_000_001),
    78: ("ull", 7_000_000_002),
    79: ("ull", 7_000_000_003),
    81: ("ull", 7_000_000_004),
    82: ("uint", (48, 77)),
    83: ("ull", (5_000_000_123, 5_000_629_573)),
    94: ("uint", 9),
    95: ("uint", 10),
    169: ("uint", 11),
    **{number: ("uint", number) for number in range(173, 183)},  # PCIe errors by kind
    185: ("uint", (69850, 629450)),
    186: ("uint", (69620, 588390)),
    187: ("uint", 200000),
    188: ("uint", 702000),
    189: ("uint", 701000),
    192: ("uint", 690000),
    193: ("int", -8),
    194: ("int", -2),
    195: ("int", -1),
    196: ("int", 0),
    197: ("uint", (3_020_371_496, 4_020_371_497)),
    198: ("uint", (3_893_142_392, 93_142_393)),
    230: ("uint", 0),
    269: ("ull", 0),
    270: ("ull", 0),
    271: ("ull", 0),
}


@dataclass
class Gpu:
    """One GPU of a scenario. `lines` are added unchanged: `error ...`, `block ...`."""

    uuid: str
    address: str
    name: str = "NVIDIA H100 80GB HBM3"
    serial: str = "1650123456789"
    values: dict[str, Steps] = field(default_factory=lambda: dict(VALUES))
    fields: dict[int, tuple[str, Steps]] = field(default_factory=lambda: dict(FIELDS))
    lines: list[str] = field(default_factory=list)

    def text(self) -> str:
        rows = [f"gpu {self.uuid} {self.address}", f"name {self.name}", f"serial {self.serial}"]
        rows += [f"{name} {_words(steps)}" for name, steps in self.values.items()]
        rows += [f"field {i} {kind} {_words(steps)}" for i, (kind, steps) in self.fields.items()]
        return "\n".join(rows + self.lines) + "\n"


def gpus(count: int = 8) -> list[Gpu]:
    """Return GPUs that differ from each other like GPUs of one host."""
    result = []
    for i in range(count):
        gpu = Gpu(f"GPU-0000000{i}-1111-2222-3333-444444444444", f"0000:{0x19 + 0x11 * i:02x}:00.0")
        gpu.serial = f"165012345678{i}"
        gpu.values["sm_clock"] = (345 + 15 * i, 1980 - 15 * i)
        gpu.fields[186] = ("uint", (69620 + i, 588390 + i))
        result.append(gpu)
    return result


class Scenario:
    """The file named by GANGLINE_FAKE_NVML, and the current step."""

    def __init__(self, path: Path, devices: Iterable[Gpu] = (), *, host: str = "") -> None:
        """Write *path*. *host*: lines for calls without a GPU."""
        self.path = path
        self._step = path.with_name(path.name + ".step")
        path.write_text(host + "\n" + "".join(gpu.text() for gpu in devices))
        self._step.write_text("0000\n")

    def step(self, number: int) -> None:
        """Play step *number*. The file is written in place, because the library has it mapped."""
        with self._step.open("r+") as file:
            file.write(f"{number:04}\n")


def _words(steps: Steps) -> str:
    return str(steps) if isinstance(steps, int | str) else " ".join(map(str, steps))
