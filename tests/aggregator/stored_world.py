"""A world over a real store: what the tests of SQL about judgements stand on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.model import Finding
from gangline.aggregator.store.journal import StoredEvent
from gangline.aggregator.store.rows import HostRecord
from gangline.aggregator.store.store import Store
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from gangline.ext.intake import Received
from tests.aggregator.world import Host, World, gpu_of

GPUS = 2


class StoredWorld(World):
    """A world whose hosts' frames, events and findings also go to a real store."""

    def __init__(self, hosts: int, folder: Path, gpus: int = GPUS) -> None:
        self.store: Store | None = None
        super().__init__(hosts, gpus)
        config = AggregatorConfig(data=folder, ops_seconds=3600.0)
        self.store = Store.open(folder, config, lambda: self.now_ns)
        for index, one in enumerate(self.hosts):
            self.keep_host(one, index, gpus)

    def keep_host(self, one: Host, index: int, gpus: int) -> None:
        devices = tuple(("gpu", gpu_of(one, n), {"name": "H100"}) for n in range(gpus))
        record = HostRecord(
            one.name, index, False, b"R" * 16, one.boot_id, "", "", {}, self.now_ns, devices
        )
        assert self.store
        self.store.submit_host(record, {})

    def frame(self, host: Host) -> Received:
        made = super().frame(host)
        if self.store is not None:
            taken = self.store.submit_frame(host.name, made, host.booted_ns, lambda _: None)
            assert taken
        return made

    def event(
        self, host: Host, code: int, device: str, name: str = "gpu.xid", **more: Any
    ) -> HealthEvent:
        event = super().event(host, code, device, name, **more)
        assert self.store
        self.store.append_events([StoredEvent(host.name, self.now_ns, event.wall_time_ns, event)])
        return event

    def find(self, finding: Finding) -> None:
        self.fleet.find(finding)
        assert self.store
        self.store.submit_findings([finding])
