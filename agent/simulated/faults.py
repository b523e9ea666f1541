"""Named faults: which host, which part, when and how much, drawn from the seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from .parts import GPUS, RDMA_PORTS, Machine

THERMAL = "thermal"
RDMA_RETRANSMISSIONS = "rdma_retransmissions"
ECC_XID95 = "ecc_xid95"

#: Fault -> (device kind, least amount, greatest amount, what the amount is).
KINDS: dict[str, tuple[str, float, float, str]] = {
    THERMAL: ("gpu", 0.26, 0.38, "fall of the SM clock, as a ratio"),
    RDMA_RETRANSMISSIONS: ("rdma", 300.0, 700.0, "retransmissions per second once it has grown"),
    ECC_XID95: ("gpu", 20.0, 80.0, "corrected errors per second, mean of the bursts"),
}

#: Faults begin within this long after `faults_after_seconds`.
SPREAD_SECONDS = 10.0
#: From the first retransmission to the full rate.
RDMA_GROWTH_SECONDS = 15.0
#: From the first corrected error to the uncorrectable one that ends the job.
ECC_BURST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Fault:
    """The truth about one fault. `begins_seconds` counts from the fleet's start."""

    kind: str
    host: str
    device_kind: str
    device: str
    begins_seconds: float
    amount: float
    amount_is: str
    host_index: int
    part_index: int  # of the GPU or port within the host

    def to_json(self, started_wall_ns: int = 0) -> str:
        """Return one line of the truth log; *started_wall_ns*: the wall clock at the fleet's start."""
        begins_wall_ns = started_wall_ns + round(self.begins_seconds * 1e9)
        return json.dumps(asdict(self) | {"begins_wall_ns": begins_wall_ns})


def draw(
    random: np.random.Generator, machines: Sequence[Machine], after_seconds: float
) -> list[Fault]:
    """Return one fault of each kind on hosts that all differ; fewer when there are fewer hosts."""
    count = min(len(KINDS), len(machines))
    hosts = random.choice(len(machines), count, replace=False)
    return [
        _draw_one(random, kind, machines[host], int(host), after_seconds)
        for kind, host in zip(KINDS, hosts, strict=False)
    ]


def _draw_one(
    random: np.random.Generator, kind: str, machine: Machine, host: int, after_seconds: float
) -> Fault:
    device_kind, least, greatest, amount_is = KINDS[kind]
    part = int(random.integers(GPUS))
    begins_seconds = after_seconds + round(random.uniform(0, SPREAD_SECONDS), 1)
    return Fault(
        kind=kind,
        host=machine.name,
        device_kind=device_kind,
        device=machine.gpus[part] if device_kind == "gpu" else RDMA_PORTS[part],
        begins_seconds=begins_seconds,
        amount=round(random.uniform(least, greatest), 3),
        amount_is=amount_is,
        host_index=host,
        part_index=part,
    )
