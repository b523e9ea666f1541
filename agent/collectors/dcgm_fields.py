"""Meaning of DCGM's field ids, health systems and policy conditions. Pure.

Fields are identified by id alone, because DCGM 4.6 renamed many of them under the same ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...contract.signals import index_of
from ...ext.dcgm import NO_GPU, OK, FieldValue, Incident, Violation

# From dcgm_fields.h, unchanged from 1.7 to 4.6.
UUID, PCI_ADDRESS, COMPUTE_CAPABILITY = 54, 57, 63
IDENTITY_FIELDS = (UUID, PCI_ADDRESS, COMPUTE_CAPABILITY)
GPU_UTILIZATION, XID = 203, 230
GRAPHICS_ACTIVE = 1001
#: Since this compute capability (Hopper) NVML reports by GPM the values that DCGM reports for older
#: GPUs.
GPM_CAPABILITY = 9
#: Profiling field -> column of `gpu_fast_1s`, a signal that GPM fills on newer GPUs.
PROFILING_COLUMNS: Mapping[int, int] = {
    1002: index_of("gpu_fast.sm_active_ratio"),
    1003: index_of("gpu_fast.sm_occupancy_ratio"),
    1004: index_of("gpu_fast.tensor_active_ratio"),
    1005: index_of("gpu_fast.memory_bandwidth_ratio"),
    1009: index_of("gpu_fast.pcie_transmitted_bytes_per_second"),
    1010: index_of("gpu_fast.pcie_received_bytes_per_second"),
    1011: index_of("gpu_fast.nvlink_transmitted_bytes_per_second"),
    1012: index_of("gpu_fast.nvlink_received_bytes_per_second"),
}
PROFILING_FIELDS = (*PROFILING_COLUMNS, GRAPHICS_ACTIVE, GPU_UTILIZATION)
RATIO_FIELDS = frozenset((1002, 1003, 1004, 1005))

#: dcgmHealthSystems_t -> an operator's name for the system.
HEALTH_SYSTEMS: Mapping[int, str] = {
    0x1: "PCIe",
    0x2: "NVLink",
    0x4: "PMU",
    0x8: "MCU",
    0x10: "memory",
    0x20: "SM",
    0x40: "InfoROM",
    0x80: "thermal",
    0x100: "power",
    0x200: "driver",
    0x400: "NVSwitch non-fatal",
    0x800: "NVSwitch fatal",
    0x1000: "ConnectX",
}
ALL_SYSTEMS = sum(HEALTH_SYSTEMS)
#: dcgmHealthWatchResults_t.
WARNING, FAILURE = 10, 20

#: dcgmPolicyCondition_t -> its message.
POLICY_CONDITIONS: Mapping[int, str] = {
    0x1: "double bit ECC error (location {first}, {second} errors)",
    0x2: "PCIe replays: {first}",
    0x4: "retired pages: {first} for single bit, {second} for double bit errors",
    0x8: "temperature {first} C",
    0x10: "power {first} W",
    0x20: "NVLink errors: {second} in field {first}",
    0x40: "XID {first}",
}
ALL_CONDITIONS = sum(POLICY_CONDITIONS)
XID_CONDITION = 0x40

#: dcgm_field_entity_group_t -> the kind of device.
ENTITY_KINDS: Mapping[int, str] = {
    1: "gpu",
    2: "vgpu",
    3: "nvswitch",
    4: "gpu_instance",
    5: "compute_instance",
    6: "link",
    7: "cpu",
    8: "cpu_core",
    9: "connectx",
}


@dataclass(frozen=True, slots=True)
class DcgmGpu:
    """A GPU with DCGM's own number."""

    number: int
    uuid: str
    address: str
    capability: int

    @property
    def needs_profiling(self) -> bool:
        """Whether NVML has no GPM for the GPU."""
        return self.capability < GPM_CAPABILITY


def gpus_of(values: Sequence[FieldValue]) -> list[DcgmGpu]:
    """Return the GPUs identified by *values*, without GPUs that have no UUID."""
    known: dict[int, dict[int, int | float | str | bytes | None]] = {}
    for value in values:
        known.setdefault(value.entity, {})[value.field] = value.value
    return [
        DcgmGpu(
            number,
            uuid,
            _sysfs_address(by_field.get(PCI_ADDRESS)),
            _major(by_field.get(COMPUTE_CAPABILITY)),
        )
        for number, by_field in known.items()
        if isinstance(uuid := by_field.get(UUID), str)
    ]


def _sysfs_address(text: object) -> str:
    """Return the PCI address in sysfs form; DCGM's domain has eight digits."""
    domain, colon, rest = str(text or "").lower().partition(":")
    return f"{domain[-4:]}{colon}{rest}"


def _major(capability: object) -> int:
    """Return the major compute capability; GPM's if unknown, so that nothing is read twice."""
    return capability >> 16 if isinstance(capability, int) else GPM_CAPABILITY


@dataclass(slots=True)
class ProfilingReader:
    """Selects the profiling values that are readings, for one connection.

    Before Hopper the hardware has too few counters for all fields: DCGM multiplexes them, and an
    inactive field sometimes reads 0 (DCGM #169). So a zero of a busy GPU is dropped unless it comes
    twice in a row.
    """

    multiplexed_zeros: int = 0
    paused: bool = False  # at the last `readings`
    watched: bool = False  # whether any client watches a field
    _times: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    _zeros: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])

    def readings(self, values: Sequence[FieldValue]) -> list[tuple[int, int, float]]:
        """Return (GPU, field, value) of each new reading."""
        times, result = self._times, list[tuple[int, int, float]]()
        answered = numbers = 0
        busy = {gpu for gpu, _, _, _, value in values if value}
        for gpu, number, status, at_us, value in values:
            if status != OK or number not in PROFILING_COLUMNS:
                continue
            answered += 1
            if value is None or isinstance(value, str | bytes):
                continue
            numbers += 1
            key = gpu, number
            if times.get(key) == at_us:
                continue  # the same sample as before
            times[key] = at_us
            if self._is_reading(key, value, gpu in busy):
                result.append((gpu, number, value))
        self.watched, self.paused = answered > 0, answered > 0 and not numbers
        return result

    def _is_reading(self, key: tuple[int, int], value: float, busy: bool) -> bool:
        if value > 0:
            if self._zeros:
                self._zeros.discard(key)
            return value <= 1 or key[1] not in RATIO_FIELDS
        if value < 0 or not busy or key in self._zeros:
            return value == 0
        self._zeros.add(key)
        self.multiplexed_zeros += 1
        return False


def incident_text(incident: Incident) -> str:
    """Return the message about an incident: the system and DCGM's message."""
    system = HEALTH_SYSTEMS.get(incident.system, f"system {incident.system:#x}")
    return f"DCGM health, {system}: {incident.message or 'no message'}"


def violation_text(violation: Violation) -> str:
    """Return the message about a policy violation."""
    form = POLICY_CONDITIONS.get(violation.condition, f"condition {violation.condition:#x}")
    text = form.format(first=violation.first, second=violation.second)
    return f"DCGM policy: {text}" + ("; DCGM 3 names no GPU" if violation.gpu == NO_GPU else "")
