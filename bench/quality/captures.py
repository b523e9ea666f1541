"""Public recordings of real hosts, through the real parsers and the real judge: the findings, and
whether they are true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from bench.quality import feeding
from bench.quality.bed import SECOND_NS, START_NS, Bed, outcome_name
from bench.quality.feeding import GPUS
from bench.quality.intervals import weighted_rate
from bench.quality.markdown import table
from bench.quality.progress import Progress
from gangline.agent.collector import CollectOutcome
from gangline.aggregator.model import HealthState
from gangline.contract.wire import telemetry_pb2

#: Recordings are not part of the project; they lie beside the checkout.
DATA = Path(__file__).parents[2] / "../shared/data"

#: The only outcome that a recording explains. A collector that fails or hangs on a recording would do
#: so on a real host, too.
_BLIND = outcome_name(CollectOutcome.BLIND)
_UNSEEN = "the recording holds less than root sees (configuration space, other users' processes)"
_CEILING = (
    "every port's 4-bit counter of buffer overruns stays at 15, and one of link_downed at 255"
)
#: (recording, why it does not reach the judge)
NOT_REACHED = (
    ("stragglers/trace-*.parquet", "timers of each operation of a training framework: no agent reads them"),
    ("topology/ndv5-topo.xml, topograph_nvl72.yaml", "host topology in formats that are not read (topology comes from sysfs, labels, and Topograph's graph as JSON)"),
    ("xid/catalogue.csv", "a table of codes; tests compare the policy with it"),
)  # fmt: skip


@dataclass(frozen=True)
class Capture:
    """A recording, how to feed it, and its true faults."""

    path: str  # below DATA
    what: str
    feed: Callable[[Path, Bed], tuple[int, str]]  # returns the number of units read, and their name
    #: (finding, pattern of devices) -> why the finding is true.
    true: Mapping[tuple[str, str], str] = field(default_factory=dict)
    devices: tuple[telemetry_pb2.Device, ...] = ()
    worst: HealthState = HealthState.HEALTHY  # its true states are this and HEALTHY

    def covers(self, key: tuple[str, str], found: tuple[str, str]) -> bool:
        """Return whether *found* is declared true under *key*."""
        return key[0] == found[0] and fnmatchcase(found[1], key[1])


@dataclass(frozen=True)
class CaptureResult:
    """The result of one recording."""

    capture: Capture
    read: int
    unit: str
    bed: Bed

    @property
    def true(self) -> list[tuple[str, str]]:
        """Return the true findings."""
        return sorted(finding for finding in self.bed.found if self._is_true(finding))

    @property
    def false(self) -> list[tuple[str, str]]:
        """Return the false findings, including states that the host was not in."""
        false = sorted(finding for finding in self.bed.found if not self._is_true(finding))
        false += [(message, "the judge itself") for message in sorted(self.bed.degraded)]
        ill = self.bed.states - {HealthState.HEALTHY, self.capture.worst}
        return false + [(f"state {state.name}", "host") for state in sorted(ill)]

    @property
    def missed(self) -> list[tuple[str, str]]:
        """Return the true faults without a finding.

        A parser that reads nothing would have no false findings either.
        """
        covers, result = self.capture.covers, self.bed.found
        missed = [
            key for key in self.capture.true if not any(covers(key, finding) for finding in result)
        ]
        worst = self.capture.worst
        return missed + ([(f"state {worst.name}", "host")] if worst not in self.bed.states else [])

    def _is_true(self, found: tuple[str, str]) -> bool:
        return any(self.capture.covers(key, found) for key in self.capture.true)


def _gpus(count: int) -> tuple[telemetry_pb2.Device, ...]:
    attributes = {"name": "NVIDIA H100 80GB HBM3"}
    return tuple(
        telemetry_pb2.Device(kind="gpu", key=key, attributes=attributes) for key in GPUS[:count]
    )


CAPTURES = (
    Capture(
        "kernel_log/dmesg-with-xid-119.log", "kernel log: a GSP that hangs (leptonai/gpud, Apache-2.0)",
        feeding.kernel_log,
        {
            ("gpu.xid", "0000:9b:00.0"): "five XID 119",
            ("gpu.needs_reset", "0000:9b:00.0"): "the driver's own message",
        },
        worst=HealthState.UNHEALTHY,
    ),
    Capture(
        "kernel_log/kmsg.1.log", "kernel log: an ordinary boot (leptonai/gpud, Apache-2.0)",
        feeding.kernel_log,
    ),
    Capture(
        "rdma/sys-class-infiniband-h100.0", "sysfs: nine RDMA devices of an H100 host (leptonai/gpud, Apache-2.0)",
        feeding.infiniband,
        {
            ("counter.saturated", "mlx5_*/1"): _CEILING,
            ("rdma.buffer_overrun_errors", "mlx5_*/1"): _CEILING,
            ("rdma.link_downed_events", "mlx5_1/1"): _CEILING,
        },
    ),
    Capture(
        "rdma/procfs_fixtures.ttar", "/proc and /sys of many drivers (prometheus/procfs, Apache-2.0)",
        feeding.ttar, {(_BLIND, "pcie_60s"): _UNSEEN, (_BLIND, "service_60s"): _UNSEEN},
    ),
    Capture(
        "topology/40intel64-2g2n4c+pcilocality.tar.bz2", "/sys of a host of four NUMA nodes (open-mpi/hwloc, BSD)",
        feeding.tar, {(_BLIND, "pcie_60s"): _UNSEEN},
    ),
    Capture(
        "nvidia_smi/linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt",
        "nvidia-smi: an H100 idle, then under load (utkuozdemir/nvidia_gpu_exporter, MIT)",
        feeding.smi, devices=_gpus(1),
    ),
    Capture(
        "power/h100x8_ckpt_every_10.csv",
        "8 x H100 that train, a checkpoint every 10 steps (grantwilkins/training_profile, measured here only)",
        feeding.power, devices=_gpus(8),
    ),
    Capture(
        "power/h100x8_ckpt_every_100.csv", "the same, every 100 steps (measured here only)",
        feeding.power, devices=_gpus(8),
    ),
)  # fmt: skip


def result_of(capture: Capture, data: Path = DATA) -> CaptureResult:
    bed = Bed(capture.devices)
    read, unit = capture.feed(data / capture.path, bed)
    return CaptureResult(capture, read, unit, bed)


def section(seed: int, progress: Progress) -> str:
    """Return the tables as Markdown. *seed* is ignored."""
    available = [capture for capture in CAPTURES if (DATA / capture.path).exists()]
    results = []
    for index, capture in enumerate(available):
        progress(capture.path, index / len(available))
        results.append(result_of(capture))
    return "\n".join((*_head(), *_table(results), ""))


def _head() -> list[str]:
    return [
        "## Real: logs, sysfs, captures",
        "",
        "    python -m bench.quality --only captures",
        "",
        "These are recordings of real hosts that others made (`../shared/data`, not part of the project), each played as one host. The agent's own collectors",
        "and its kernel log reader read the files, readings pass through real frames, and the real judge runs each second. nvidia-smi and the power",
        "logs are not files of a host. Their fields fill the columns that the agent fills from NVML. A recording without time is judged for",
        f"{feeding.STILL_SECONDS} s.",
        "",
        "A finding is any statement about a host: evidence, a stored finding, or a state other than HEALTHY. A finding is *true* if it applies to this device; the",
        "reason is below. All others are *false*, including a collector that fails or hangs. All but the first recording are negative controls and HEALTHY throughout.",
        "What is true in them is no fault of a host.",
        "",
    ]


def _table(found: list[CaptureResult]) -> list[str]:
    heads = ("recording", "read", "readings", "events", "judged", "true", "false", "state at worst")
    hours = sum(result.bed.now_ns - START_NS for result in found) / SECOND_NS / 3600
    false = sum(len(result.false) for result in found)
    ill = [
        f"- {result.capture.path}: {signal} of {device}"
        for result in found
        for signal, device in result.false
    ]
    missed = [
        f"- {result.capture.path}: {signal} of {device}"
        for result in found
        for signal, device in result.missed
    ]
    why = {
        f"{signal} of {device}: {message}"
        for result in found
        for (signal, device), message in result.capture.true.items()
    }
    return [
        table(heads, [_cells(result) for result in found]),
        "",
        f"**{false} false findings** in {hours:.2f} host-hours{_rate(hours) if not false else ''}.",
        *ill,
        *(["", "**Not found, although true:**", *missed] if missed else []),
        "",
        "True findings, and why they are true:",
        *sorted(f"- {reason}" for reason in why),
        "",
        "Recordings that are not used:",
        *(f"- `{path}`: {message}" for path, message in NOT_REACHED),
    ]  # fmt: skip


def _rate(hours: float) -> str:
    """Return the text about the rate that is consistent with no false finding.

    It is the upper end of the 90 % interval of a Poisson count of 0.
    """
    return (
        f": at 90 % fewer than {weighted_rate([], 1.0)[1] / hours:.1f} an hour, no more. This shows that parsers and rules handle real formats. "
        "The simulated tables show how rare false findings are"
    )


def _cells(one: CaptureResult) -> tuple[str, ...]:
    bed = one.bed
    worst = max(bed.states, key=lambda state: state.value) if bed.states else HealthState.UNKNOWN
    return (
        f"`{one.capture.path}`: {one.capture.what}",
        f"{one.read:,} {one.unit}",
        f"{bed.readings:,}",
        str(bed.events),
        f"{bed.judgements:,} s",
        str(len(one.true)),
        str(len(one.false)),
        worst.name,
    )
