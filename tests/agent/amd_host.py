"""An AMD host as a folder with GPUs that a test changes, and its collectors with a test's clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gangline.agent.collector import Collector, CollectResult, run_collector
from gangline.agent.collectors import COLLECTORS
from gangline.agent.collectors.amdgpu_session import AmdGpuSession, amd_session_of
from gangline.agent.hardware.amdgpu import AmdGpu
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.agent.fakes import HandedClock
from tests.amd_metrics import Value, pack, pack_described
from tests.hosts import HostFolder, unpack
from tests.hosts.reading import rows_of

SECOND_NS = 1_000_000_000
NAMES = (
    "amdgpu_1s", "amdgpu_10s", "amdgpu_60s", "xgmi_10s", "amdgpu_partition_10s", "ras_10s", "kfd_process_1s",
)  # fmt: skip


@dataclass
class Published:
    """Records a collector's events and reasons."""

    events: list[HealthEvent] = field(default_factory=list[HealthEvent])
    reasons: list[str] = field(default_factory=list[str])

    def publish(self, event: HealthEvent) -> bool:
        self.events.append(event)
        return True

    def request_inventory(self, reason: str) -> None:
        self.reasons.append(reason)


Row = dict[str, float | int | None]


class AmdHost:
    """Collectors over a folder. `turn` advances a second, and returns a collector's result."""

    def __init__(self, root: Path, name: str = "mi300x-spx") -> None:
        self.host: HostFolder = unpack(name, root)
        self.clock = HandedClock(10**18)
        self.session: AmdGpuSession = amd_session_of(self.host.roots, self.clock)
        self.published = Published()
        self.collectors: dict[str, Collector] = {}

    def collector(self, name: str) -> Collector:
        if name not in self.collectors:
            created = self.collectors[name] = COLLECTORS[name](self.host.roots)
            if name in NAMES:
                created.start(self.published)  # type: ignore[arg-type]
        return self.collectors[name]

    def turn(self, name: str, seconds: float = 1.0) -> CollectResult:
        self.clock.now_ns += round(seconds * SECOND_NS)
        return run_collector(self.collector(name), self.clock)

    def rows(self, name: str, table: str = "", seconds: float = 1.0) -> dict[str, Row]:
        """Return the rows of a collector's table after a turn; missing ones are empty."""
        turn = self.turn(name, seconds)
        block = next(b for b in turn.blocks if not table or b.table == table)
        return {device: row or {} for device, row in rows_of(block)}

    def folder(self, gpu: int) -> Path:
        return Path(self._gpu(gpu).folder)

    def key(self, gpu: int) -> str:
        return self._gpu(gpu).key

    def _gpu(self, gpu: int) -> AmdGpu:
        if not self.session.gpus:
            self.session.refresh()
        return self.session.gpus[gpu]

    def set(self, gpu: int, revision: str = "1.8", **values: Value) -> None:
        """Write a table with these values for a GPU; all other fields are all ones."""
        named = {name.replace("__", "/"): value for name, value in values.items()}
        data = pack_described(named) if revision == "1.9" else pack(revision, named)
        self.write(gpu, "gpu_metrics", data)

    def write(self, gpu: int, file: str, data: bytes | str) -> None:
        path = self.folder(gpu) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
