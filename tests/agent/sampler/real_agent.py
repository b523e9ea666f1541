"""A real `gangline agent` on a host folder with eight stand-in GPUs: events, metrics, samples."""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gangline.agent.hardware.open_handles import children
from gangline.agent.local.agent_service import STATUS
from gangline.agent.spool.event_queue import FILE_NAME, parse_line
from gangline.agent.spool.spool import Spool
from gangline.agent.transport.unary_call import call
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.signals import BY_NAME
from gangline.contract.wire.agent_pb2 import GetStatusResponse
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests import hosts
from tests.fake_nvml.build import build
from tests.fake_nvml.scenario import Gpu, Scenario
from tests.processes import GUARD_SECONDS, Process

SPOOL_BYTES_MAX = 1 << 28
INFORMATION = "Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\n"


class RealAgent(Process):
    """The agent's process. It plays `FOLDER/scenario` if `GANGLINE_FAKE_NVML` names it."""

    def __init__(self, folder: Path, devices: Sequence[Gpu], **settings: object) -> None:
        root = hosts.unpack("h100-ib", folder).roots
        _list_in_proc(root.proc, devices)
        self.folder, self.scenario = folder, Scenario(folder / "scenario", devices)
        (folder / "memory").mkdir()
        given: dict[str, object] = {
            "host": "here", "aggregator": "127.0.0.1:9", "sys_root": root.sys, "proc_root": root.proc,
            "nvml_library": settings.get("nvml_library") or build(folder / "nvml"), "spool_folder": folder / "spool",
            "spool_head_folder": folder / "memory", "events_folder": folder / "events",
            "state_folder": folder / "state", "run_folder": folder / "run",
            "collectors_off": '["inventory"]', "metrics_listen": f"unix:{folder / 'metrics'}",
            "metrics_series_max": 10_000,
        }  # fmt: skip
        options = [w for k, v in (given | settings).items() for w in ("--set", f"{k}={v}")]
        super().__init__(["agent", *options], folder / "log")

    def events(self, name: str = "") -> list[HealthEvent]:
        """Return the events on its disk with that name (all, if empty)."""
        file = self.folder / "events" / FILE_NAME
        lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        result = [parse_line(line) for line in lines if line.endswith(b"\n")]
        return [event for event in result if name in ("", event.name)]

    def series(self, name: str, label: str) -> dict[str, float]:
        """Return its current Prometheus samples of that name, by a label."""
        form = rf'^{name}{{(?:.*,)?{label}="([^"]+)".*}} (\S+)$'
        result = re.finditer(form, self._metrics(), re.MULTILINE)
        return {match[1]: float(match[2]) for match in result}

    def _metrics(self) -> str:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(GUARD_SECONDS)
            try:
                asking.connect(str(self.folder / "metrics"))
            except (FileNotFoundError, ConnectionRefusedError):
                return ""
            connection = http.client.HTTPConnection("here")
            connection.sock = asking
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()

    def next_trial_ns(self, device: str) -> int:
        """Return the boot time of a GPU's next trial, by PCI address (empty: its driver); 0: none."""
        asked_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        answer = call(self.folder / "run/agent.sock", STATUS, b"", GUARD_SECONDS)
        for each in GetStatusResponse.FromString(answer).devices:
            if (each.lane, each.device) == ("gpu", device) and each.next_try_seconds:
                return asked_ns + int(each.next_try_seconds * 1e9)
        return 0

    def family(self) -> set[int]:
        result, new = set[int](), {self.pid}
        while new:
            new = {child for pid in new for child in children(Path("/proc"), pid)} - result
            result |= new
        return result

    def frames(self) -> list[frames.Frame]:
        folder = self.folder / "spool"
        owner = json.loads((folder / "meta.json").read_text())["owner"]
        spool = Spool.open(folder, bytes_max=SPOOL_BYTES_MAX, boot_id=b"x" * 16, owner=owner)
        try:
            return list(_all_of(spool))
        finally:
            spool.close()


def is_sampled(block: Block, row: int) -> bool:
    """Return whether the device was read, a GPU by its clock: an excluded one has old values."""
    if block.table != "gpu_1s":
        return any(block.valid[row :: block.rows])
    return dict(block.values(row)).get(BY_NAME["gpu.sm_clock_hertz"].signal_id) is not None


def _all_of(spool: Spool) -> Iterator[frames.Frame]:
    """Yield the frames of a spool, in batches."""
    sequence = 0
    while some := spool.pending(sequence, 1000):
        yield from (frames.decode(frame) for _, frame in some)
        sequence = some[-1][0]


def _list_in_proc(proc: Path, devices: Sequence[Gpu]) -> None:
    for gpu in devices:
        place = proc / "driver/nvidia/gpus" / gpu.address
        place.mkdir(parents=True)
        (place / "information").write_text(INFORMATION.format(uuid=gpu.uuid))
