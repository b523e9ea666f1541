"""A host for tests of findings: readings and events by name, and a clock set by the test."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gangline.agent.config import AgentConfig
from gangline.agent.latest import LatestReadings, TableSnapshot
from gangline.agent.local.findings import HostFindings
from gangline.agent.local.host_status import judged_tables
from gangline.contract.block import Block, is_float
from gangline.contract.faults.policy import Policy
from gangline.contract.faults.table import builtin
from gangline.contract.signals import BY_NAME
from gangline.contract.wire.telemetry_pb2 import HealthEvent

SECOND = 1_000_000_000
START = 10_000 * SECOND
BOOT = b"b" * 16
GPU, ADDRESS = "GPU-3f2a", "0000:9b:00.0"


@dataclass
class Host:
    """`read` and `event` add input, `after` advances the time and judges."""

    policy: Policy = field(default_factory=builtin)
    now_ns: int = START
    latest: LatestReadings = field(
        default_factory=lambda: LatestReadings(judged_tables(AgentConfig()))
    )

    def __post_init__(self) -> None:
        self.findings = HostFindings(self.policy, BOOT)
        self.findings.set_gpu_addresses({GPU: ADDRESS})
        self._cells: dict[str, dict[str, dict[str, float]]] = {}
        self._ids = 0

    def boottime_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns + 1_700_000_000 * SECOND

    def read(self, device: str, values: Mapping[str, float]) -> None:
        """Set these signals of *device* until further notice."""
        for name, value in values.items():
            table = self._cells.setdefault(BY_NAME[name].table, {})
            table.setdefault(device, {})[name] = value

    def unread(self, table: str) -> None:
        del self._cells[table]

    def after(self, seconds: float, step_seconds: float = 1.0) -> list[str]:
        """Advance the time, judging each step; return the names of active findings."""
        for _ in range(round(seconds / step_seconds)):
            self.now_ns += round(step_seconds * SECOND)
            self.judge()
        return self.names()

    def table(self, name: str) -> TableSnapshot:
        self.latest.update(self.now_ns, [_block(name, self._cells[name])])
        return self.latest.tables[name]

    def judge(self) -> bool:
        for table, devices in self._cells.items():
            pace = int(re.search(r"_(\d+)s", table)[1])  # type: ignore[index]
            if self.now_ns // SECOND % pace == 0:
                self.latest.update(self.now_ns, [_block(table, devices)])
        return self.findings.evaluate(self.latest.tables, self.now_ns)

    def names(self) -> list[str]:
        return [finding.name for finding in self.findings.findings]

    def event(self, name: str, code: int = 0, device: str = ADDRESS, **more: object) -> HealthEvent:
        self._ids += 1
        fields: dict[str, object] = {
            "event_id": f"e{self._ids}",
            "boottime_ns": self.now_ns,
            "boot_id": BOOT,
            **more,
        }
        attributes = fields.pop("attributes", {})
        event = HealthEvent(name=name, code=code, device=device, **fields)  # type: ignore[arg-type]
        assert isinstance(attributes, dict)
        event.attributes.update(attributes)
        self.findings.observe(event)
        return event


def _block(table: str, devices: Mapping[str, Mapping[str, float]]) -> Block:
    names = sorted({name for values in devices.values() for name in values})
    block = Block(table, list(devices), [BY_NAME[name].signal_id for name in names])
    for row, values in enumerate(devices.values()):
        for column, name in enumerate(names):
            if name in values:
                put = block.put_float if is_float(BY_NAME[name].signal_id) else block.put_int
                put(column, row, values[name])  # type: ignore[arg-type]
    return block
