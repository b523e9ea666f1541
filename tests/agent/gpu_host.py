"""A host with GPUs that a test plays: stand-in library, kernel list, clock, recorded events."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import pytest

from gangline.agent.collector import Collector, CollectResult, run_collector
from gangline.agent.collectors import nvml_session
from gangline.agent.collectors.gpu import GpuMinute, GpuSecond, GpuTenSeconds
from gangline.agent.collectors.nvml_collector import NvmlCollector
from gangline.agent.events import EventPublisher
from gangline.agent.hardware.files import Roots
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from gangline.ext import nvml
from tests.agent.fakes import HandedClock, read
from tests.fake_nvml.scenario import Gpu, Scenario

SECOND = 1_000_000_000
#: As in /proc/driver/nvidia/gpus/ADDRESS/information of driver 590; the irq and later lines are not
#: used here.
INFORMATION = (
    "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 130\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\n"
)
VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (dvs-builder@U22)\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
)


Lane = TypeVar("Lane", bound=NvmlCollector)


class GpuHost:
    """The host. Created lanes release their GPUs at `close`."""

    def __init__(self, folder: Path, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.roots = Roots(
            sys=folder / "sys", proc=folder / "proc", dev=folder / "dev", nvml_library=library
        )
        self.roots.proc.mkdir()
        self.clock = HandedClock()
        self.begin()
        self.events: list[HealthEvent] = []
        self.teller = EventPublisher(self.clock, self, lambda: None)
        self._scenario = folder / "scenario"
        self._lanes: list[NvmlCollector] = []
        self._monkeypatch = monkeypatch

    def begin(self, *, anew: bool = True) -> None:
        """Make later lanes begin as in a process of their own.

        *anew*: in the agent's first process.
        """
        if anew:
            nvml.forget_accounts()
        nvml.cap(0)
        nvml_session._SESSIONS.pop(self.roots, None)
        self.session = nvml_session.session_of(self.roots)
        self.session.clock = self.clock

    def put(self, event: HealthEvent) -> None:
        self.events.append(event)

    def play(self, devices: Iterable[Gpu] = (), *, host: str = "") -> Scenario:
        """Write a scenario; the library reads it when its first user opens NVML."""
        self._monkeypatch.setenv("GANGLINE_FAKE_NVML", str(self._scenario))
        return Scenario(self._scenario, devices, host=host)

    def list_in_proc(self, devices: Iterable[Gpu], version: str = "590.48.01") -> None:
        driver = self.roots.proc / "driver/nvidia"
        listed = {gpu.address: gpu.uuid for gpu in devices}
        for address, uuid in listed.items():
            (driver / "gpus" / address).mkdir(parents=True, exist_ok=True)
            (driver / "gpus" / address / "information").write_text(INFORMATION.format(uuid=uuid))
        for folder in (driver / "gpus").iterdir():
            if folder.name not in listed:
                (folder / "information").unlink()
                folder.rmdir()
        (driver / "version").write_text(VERSION.format(version=version))

    def second(self) -> GpuSecond:
        """Return a lane of 1 s with this host's clock, which publishes events here."""
        return self._listening(GpuSecond(self.roots, self.clock))

    def ten_seconds(self) -> GpuTenSeconds:
        return self._listening(GpuTenSeconds(self.roots))

    def minute(self) -> GpuMinute:
        return self._listening(GpuMinute(self.roots))

    def _listening(self, lane: Lane) -> Lane:
        lane.start(self.teller)
        self._lanes.append(lane)
        return lane

    def turn(self, lane: Collector, turns: int = 1) -> CollectResult:
        for _ in range(turns - 1):
            self.turn(lane)
        self.clock.now_ns += SECOND
        return run_collector(lane, self.clock)

    def read(self, lane: Collector) -> dict[str, dict[str, float | int | None]]:
        return read(self.turn(lane).blocks)

    def close(self) -> None:
        for lane in self._lanes:
            lane._session.close()
