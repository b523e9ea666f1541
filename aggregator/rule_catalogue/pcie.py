"""Rules of PCIe links: width, generation, and errors that a GPU counts."""

from ..model import HealthState, Reason
from ..rule_declaration import Rule

#: Links are read every 10 s, and a missed reading leaves the previous one valid for 25 s
#: (`view.PERIODS_MAX`): after this time under load, the current reading was made under load.
LOADED_SECONDS = 26.0
#: Signals that show whether a link is used: idle links narrow by themselves.
TRAFFIC = ("gpu_fast.pcie_transmitted_bytes_per_second", "gpu_fast.pcie_received_bytes_per_second")
GPU_WIDTH = Rule(
    "gpu.pcie_width", HealthState.DEGRADED, Reason.PCIE, "the link runs at its full width under load for 60 s",
    enter_seconds=LOADED_SECONDS, hazard_factor=3.0, shared="PCIe",
    reads=(*TRAFFIC, "gpu.pcie_width_lanes", "gpu.pcie_width_max_lanes"),
)
GPU_GENERATION = Rule(
    "gpu.pcie_generation", HealthState.DEGRADED, Reason.PCIE, "the link runs at its full speed under load for 60 s",
    enter_seconds=LOADED_SECONDS, hazard_factor=3.0, shared="PCIe",
    reads=(*TRAFFIC, "gpu.pcie_generation_number", "gpu.pcie_generation_max_number"),
)
SPEED, WIDTH = "link_speed_transfers_per_second", "link_width_lanes"
SPEED_MAX, WIDTH_MAX = "link_speed_max_transfers_per_second", "link_width_max_lanes"
SLOW_LINK = Rule(
    "pcie.link", HealthState.DEGRADED, Reason.PCIE, "the link runs at its full speed and width under load for 60 s",
    enter_seconds=LOADED_SECONDS, hazard_factor=3.0, shared="PCIe",
    reads=(*TRAFFIC, *(f"pcie.{column}" for column in (SPEED, WIDTH, SPEED_MAX, WIDTH_MAX))),
    counts=("rdma.received_bytes", "rdma.transmitted_bytes"),
)

