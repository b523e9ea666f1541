"""Thresholds that operators may set, and their roll-out to a share of the hosts."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple


class Rollout(NamedTuple):
    """A threshold that applies to a share of the hosts only; on the others it is `before`."""

    share: float
    before: float


@lru_cache(maxsize=65_536)
def rollout_rank(host: str) -> float:
    """Return the position of *host* in every roll-out, from 0 (first) to 1 (last).

    The position is fixed, so a host reached at 1 % is also reached at 10 %.
    """
    return int.from_bytes(blake2b(host.encode(), digest_size=6).digest()) / 2**48


def is_rolled_out(share: float, host: str) -> bool:
    """Return whether *host* belongs to the first *share* of hosts."""
    return rollout_rank(host) < share


def rollout_message(share: float) -> str:
    """Return the message about a roll-out that has not reached a host."""
    return f"not rolled out to this host yet ({100 * share:g} % of hosts)"


class Threshold(NamedTuple):
    """A number that rules use and an operator may set: its default and range.

    To add a number, add a row to THRESHOLDS, and use it in a rule.
    """

    name: str
    default: float
    low: float
    high: float
    unit: str
    description: str


THRESHOLDS: dict[str, Threshold] = {
    row[0]: Threshold(*row)
    for row in (
        (
            "gpu.slow_below_ratio", 0.90, 0.5, 0.99, "1",
            ("a GPU is slow below this share of its peers' SM clock, where its readings show the "
            "reason and its driver reports no limit"),
        ),
        (
            "gpu.held_watch_ratio", 0.95, 0.5, 0.99, "1",
            ("a GPU that its driver reports as limited by heat, power brake or power cap is WATCH "
            "from this share of its peers' SM clock on"),
        ),
        (
            "gpu.held_below_ratio", 0.92, 0.5, 0.99, "1",
            "a GPU limited in this way is DEGRADED below this share of its peers' SM clock",
        ),
        (
            "gpu.unexplained_below_ratio", 0.85, 0.5, 0.99, "1",
            "a GPU is slow below this share of its peers' SM clock if its readings show no reason",
        ),
        (
            "host.cpu_pressure_ratio", 0.60, 0.05, 1.0, "1",
            "tasks wait for a core this share of the time: WATCH",
        ),
        (
            "host.memory_pressure_ratio", 0.20, 0.01, 1.0, "1",
            "all tasks wait for memory this share of the time: WATCH",
        ),
        (
            "host.cpu_steal_ratio", 0.10, 0.005, 1.0, "1",
            "the hypervisor takes this share of the cores: WATCH",
        ),
        (
            "pcie.corrected_per_second", 1.0, 0.05, 1e4, "1/s",
            "a PCIe link that repairs more errors is WATCH",
        ),
        (
            "nic.pauses_per_second", 1000.0, 1.0, 1e6, "1/s",
            "a port that holds its switch back more often is WATCH, if it is ten times what its peers do",
        ),
        (
            "gang.windows_count", 9.0, 6.0, 12.0, "1",
            "a host is compared only if its job worked in this many of the last twelve windows of ten seconds; in all twelve, if it has three hosts",
        ),
        (
            "gang.slow_ratio", 0.04, 0.01, 0.5, "1",
            "a host that computes longer than the others of its job by this share, at the same clock and work, is slow",
        ),
        (
            "gang.gap_ratio", 0.03, 0.005, 0.5, "1",
            "nothing runs on a host's GPUs for this share of the time more than on those of its job: it has gaps",
        ),
        (
            "gang.pressure_ratio", 0.10, 0.01, 1.0, "1",
            "a host waits for cores or for I/O for this share of the time more than others of its job: that is why",
        ),
        (
            "gang.identity_ratio", 0.70, 0.5, 1.0, "1",
            "it is the same host of its job in this share of two minutes' windows of ten seconds; in a small job it must be so in more",
        ),
        (
            "network.slowed_ratio", 0.03, 0.005, 0.5, "1",
            "the hosts of a job move less than before in it by this share, while their ports wait: its network is short",
        ),
        (
            "network.waits_ratio", 1.5, 1.05, 1000.0, "1",
            "how many times longer than before the ports of a job's hosts wait for the network",
        ),
        (
            "filesystem.available_ratio", 0.02, 0.0, 0.5, "1",
            "a file system with less room is full, if that is less than filesystem.available_bytes too",
        ),
        (
            "filesystem.available_bytes", 2e9, 0.0, 1e15, "bytes",
            "a file system with less room is full, if that is less than filesystem.available_ratio too",
        ),
        (
            "rdma.retransmissions_per_second", 10.0, 0.1, 1e6, "1/s",
            "a port that sends more again is SUSPECT, if it is ten times what its peers do",
        ),
    )
}  # fmt: skip
