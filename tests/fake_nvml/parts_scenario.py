"""Scenarios of a GPU's parts: links, MIG devices, processes, fabric, events, inventory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.fake_nvml.scenario import Gpu, Steps, gpus

#: NVML's value for a process outside MIG instances.
NO_INSTANCE = 0xFFFFFFFF
#: NVML_VALUE_NOT_AVAILABLE in 64 bits.
NO_MEMORY = 2**64 - 1
ALWAYS = 999_999

#: Field -> (type, steps) of a link of an NVLink 4 GPU (Hopper): few errors, without NVLink 5
#: fields.
HOPPER: dict[int, tuple[str, Steps]] = {
    138: ("ull", (1_000, 5_000_000)),
    139: ("ull", (2_000, 6_000_000)),
    161: ("ull", (0, 3)),
    162: ("ull", 0),
    163: ("ull", (0, 1)),
    164: ("uint", 26_562),
    165: ("uint", 1),
    166: ("uint", 6),
}
#: The same of NVLink 5 (Blackwell): packets, recoveries, error ratios, history of the error
#: correction.
BLACKWELL: dict[int, tuple[str, Steps]] = {
    164: ("uint", 53_125),
    165: ("uint", 1),
    166: ("uint", 7),
    201: ("ull", (10, 1_000)),
    202: ("ull", (640, 2**40)),
    203: ("ull", (11, 1_001)),
    204: ("ull", (704, 2**41)),
    **{206 + i: ("ull", i) for i in range(7)},
    213: ("uint", 2),
    214: ("uint", 0),
    215: ("uint", 2),
    219: ("ull", (0, 5)),
    220: ("uint", (0xFFF, 0x30C)),
    221: ("ull", (0, 7)),
    222: ("ull", (0xFFF, 0x109)),
    **{235 + i: ("ull", 10 ** max(0, 12 - i)) for i in range(16)},
}

#: Percent and MiB/s of a Hopper between two steps of a job and within one (`gpm.c`).
GPM: dict[str, Steps] = {
    "gpm_supported": 1,
    "gpm_sm_util": (0, 97),
    "gpm_sm_occupancy": (0, 22),
    "gpm_tensor_util": (0, 51),
    "gpm_dram_util": (1, 38),
    "gpm_pcie_tx": (0, 312),
    "gpm_pcie_rx": (2, 640),
    "gpm_nvlink_rx": (0, 120_000),
    "gpm_nvlink_tx": (0, 119_000),
}


def words(steps: Steps) -> str:
    return str(steps) if isinstance(steps, int | str) else " ".join(map(str, steps))


def with_links(gpu: Gpu, count: int, fields: dict[int, tuple[str, Steps]] = HOPPER) -> Gpu:
    """Give *gpu* NVLinks with the same values on each, all to a switch."""
    gpu.fields[91] = ("uint", count)
    for link in range(count):
        gpu.lines += [f"link_state {link} 1", f"link_remote {link} 2 0000:c1:00.0"]
        gpu.lines += [f"scoped {link} {i} {t} {words(s)}" for i, (t, s) in fields.items()]
    return gpu


def with_gpm(gpu: Gpu) -> Gpu:
    """Give *gpu* performance monitoring, like Hopper and later."""
    gpu.values |= GPM
    return gpu


def with_c2c(gpu: Gpu, count: int) -> Gpu:
    """Give *gpu* C2C links, like a Grace Hopper or Grace Blackwell."""
    gpu.fields[170] = ("uint", count)
    for link in range(count):
        values = {171: 1, 172: 44_712, 231: link, 232: 20 + link, 233: 30, 234: 0}
        gpu.lines += [f"scoped {link} {i} uint {value}" for i, value in values.items()]
    return gpu


def with_mig(gpu: Gpu, mode: Steps = 1, pending: Steps = 1) -> Gpu:
    """Put *gpu* into MIG mode; its MIG devices are `mig_device`s of the scenario."""
    gpu.values |= {"mig_mode": mode, "mig_mode_pending": pending, "mig_devices_max": 7}
    return gpu


def mig_device(
    parent: int,
    instance: int,
    *,
    first: int = 0,
    last: int = ALWAYS,
    profile: int = 9,
    start: int = 0,
) -> Gpu:
    """Return a MIG device of the *parent*th GPU, existing from step *first* to *last*; three memory
    slices.

    The stand-in treats it as another GPU: the scenario needs `count` with the number of real GPUs.
    """
    device = Gpu(f"MIG-{parent:08}-{instance:04}-{profile:04}-0000-000000000000", "0000:ff:00.0")
    device.values = {
        "memory_total": 42_000_000_000,
        "memory_used": (0, 1 << 30),
        "sram_uncorrected": 2,
    }
    device.fields = {}
    device.lines = [f"mig {parent} {first} {last} {instance} 0 {profile} {start} 3 3 3 60"]
    return device


def process(
    pid: int,
    memory: int = 1 << 30,
    *,
    which: int = 0,
    first: int = 0,
    last: int = ALWAYS,
    instance: int = NO_INSTANCE,
    compute: int = NO_INSTANCE,
) -> str:
    """Return the line of a process in a list (0 compute, 1 graphics, 2 MPS)."""
    return f"process {which} {first} {last} {pid} {memory} {instance} {compute}"


@dataclass(frozen=True)
class FollowedPower:
    """Watts of a GPU that follows a process: without it, while it waits, and while it computes."""

    idle_watts: float = 70.0
    wait_watts: float = 200.0
    compute_watts: float = 650.0


def following(
    gpu: Gpu,
    pid: int,
    work_file: Path,
    *,
    units_per_second_max: float,
    wait_share: float = 0.05,
    power: FollowedPower = FollowedPower(),
) -> Gpu:
    """Make *gpu* follow the real process *pid*, which holds it.

    *work_file* begins with its count of completed units of work, an unsigned 64-bit number in the
    machine's order.
    """
    watts = f"{power.idle_watts} {power.wait_watts} {power.compute_watts}"
    gpu.lines = [line for line in gpu.lines if not line.startswith("process ")]
    gpu.lines += [
        f"follow {pid} {watts} {wait_share} {units_per_second_max} {work_file}",
        process(pid),
    ]
    return gpu


def with_fabric(gpu: Gpu, *, state: Steps = 3, health: Steps = 0xAA, clique: Steps = 1) -> Gpu:
    """Register *gpu* with the fabric of an NVL72 rack."""
    gpu.values |= {
        "fabric_state": state,
        "fabric_status": 0,
        "fabric_clique": clique,
        "fabric_health": health,
    }
    gpu.lines.append("cluster 6c3f0d1a2b4c4d5e8f90112233445566")
    return gpu


def with_inventory(gpu: Gpu) -> Gpu:
    """Give *gpu* an answer to every request of an inventory."""
    texts = {"vbios": "96.00.74.00.01", "part_number": "692-2G520-0200-000"}
    texts |= {"inforom_image": "G520.0200.00.05", "inforom_oem": "2.1", "inforom_ecc": "7.16"}
    texts |= {"inforom_power": "N/A", "gsp_version": "590.48.01"}
    gpu.lines += [f"text {name} {text}" for name, text in texts.items()]
    gpu.values |= {
        "architecture": 9,
        "compute_capability": 90,
        "cores": 16896,
        "bus_width": 5120,
        "module_id": 4,
        "numa_node": 1,
        "minor_number": 2,
        "board_id": 6400,
        "ecc_mode": 1,
        "persistence_mode": 1,
        "gsp_mode": 1,
    }
    guid, serial = bytes(range(1, 9)) + bytes(8), b"1820325191305\0\0\0"
    gpu.lines.append(f"platform 2 {(guid + serial + bytes([24, 13, 1, 1, 4])).hex()}")
    return gpu


def host_lines(devices: Iterable[Gpu]) -> str:
    """Return the lines before the first GPU: MIG devices are not counted as GPUs."""
    count = sum(not device.uuid.startswith("MIG-") for device in devices)
    return f"count {count}\ncuda_version 12090\nconfidential 0"


def hgx(count: int = 8, links: int = 18) -> list[Gpu]:
    return [with_links(gpu, links) for gpu in gpus(count)]
