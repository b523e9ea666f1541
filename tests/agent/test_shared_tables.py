"""GPUs of two vendors: one table, two collectors, one block a frame, no GPU lost."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.agent.collector import CollectOutcome, run_collector
from gangline.agent.collectors import COLLECTORS
from gangline.agent.collectors.amdgpu_session import amd_session_of
from gangline.agent.frame_builder import FrameBuilder, SharedTables
from gangline.agent.inventory import amd_gpus
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.model import HealthState
from gangline.aggregator.scoring.evaluate import Judgement, evaluate
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.signal import PERIOD_SECONDS, Pace
from gangline.contract.signals import BY_ID
from gangline.contract.stream import CONTEXT_BYTES_MAX, Receiver, Sender
from gangline.contract.wire import telemetry_pb2
from gangline.ext import nvml
from tests.agent.fakes import HandedClock
from tests.agent.test_daemon import Fixture, Numa
from tests.fake_nvml.build import build
from tests.fake_nvml.parts_scenario import host_lines
from tests.fake_nvml.scenario import Scenario
from tests.hosts import unpack
from tests.hosts.reading import gpus_of, let_go
from tests.worlds import START_NS

SECOND = 1_000_000_000

LANES = (
    "gpu_1s", "gpu_10s", "gpu_60s", "gpu_process_1s", "gpu_job_1s",
    "amdgpu_1s", "amdgpu_10s", "amdgpu_60s", "xgmi_10s", "ras_10s", "kfd_process_1s",
)  # fmt: skip


def block(table: str, devices: Sequence[str], value: int) -> Block:
    created = Block(table, devices)
    for row in range(created.rows):
        created.put_int(0, row, value)
    return created


def test_a_table_of_one_collector_is_left_as_it_is() -> None:
    shared = SharedTables()
    one, other = block("net_1s", ["eth0"], 1), block("disk_1s", ["sda"], 2)
    assert [id(b) for b in shared.join([("net_1s", one), ("disk_1s", other)])] == [
        id(one),
        id(other),
    ]


def test_two_collectors_of_one_table_fill_one_block() -> None:
    shared = SharedTables()
    for value in (1, 2):
        (whole,) = shared.join(
            [
                ("gpu_1s", block("gpu_1s", ["a", "b"], value)),
                ("amdgpu_1s", block("gpu_1s", ["x"], 9)),
            ]
        )
        assert whole.devices == ("x", "a", "b")
        assert [whole.ints[row] for row in range(3)] == [9, value, value]


def test_what_travels_when_it_changes_keeps_the_rows_of_the_other_collector() -> None:
    """One collector runs later: each frame reported that the other's GPUs had disappeared."""
    shared, builder = SharedTables(), FrameBuilder(b"r" * 16, b"b" * 16)
    first, second = block("gpu_10s_changes", ["a"], 1), block("gpu_10s_changes", ["x"], 2)
    shared.join([("gpu_10s", first)])
    for number in range(1, 4):
        (whole,) = shared.join([("amdgpu_10s", second) if number % 2 else ("gpu_10s", first)])
        assert whole.devices == ("x", "a")
        sent = frames.decode(builder.build(number, number * SECOND, 1, [whole]))
        assert bool(sent.blocks) == (number == 1)
    first.put_int(0, 0, 5)
    (whole,) = shared.join([("gpu_10s", first)])
    (part,) = frames.decode(builder.build(9, 9 * SECOND, 1, [whole])).blocks
    assert part.devices == ("a",)


def test_readings_that_travel_each_time_are_not_repeated_for_the_other() -> None:
    """A gauge of a late collector would look like a new measurement."""
    shared = SharedTables()
    shared.join([("gpu_1s", block("gpu_1s", ["a"], 1)), ("amdgpu_1s", block("gpu_1s", ["x"], 2))])
    (alone,) = shared.join([("gpu_1s", block("gpu_1s", ["a"], 3))])
    assert alone.devices == ("a",)


def test_the_daemon_sends_them_in_one_frame() -> None:
    nvidia = Numa(name="gpu_1s", table="gpu_1s", pace=Pace.SECOND)
    amd = Numa(name="amdgpu_1s", table="gpu_1s", pace=Pace.SECOND)
    amd._block = Block("gpu_1s", ["2", "3"])
    fixture = Fixture(nvidia, amd)
    fixture.run(5)
    of_gpus = [
        [b for b in frame.blocks if b.table == "gpu_1s"]
        for frame in fixture.spool.frames
        if any(b.table == "gpu_1s" for b in frame.blocks)
    ]
    assert len(of_gpus) >= 5 and all(len(blocks) == 1 for blocks in of_gpus)
    assert {blocks[0].devices for blocks in of_gpus} == {("2", "3", "0", "1")}


class MixedHost:
    """Two GPUs of each vendor, a second at a time; the frames pass through the wire's differences."""

    def __init__(self, root: Path) -> None:
        self.host = unpack("mixed-vendors", root)
        played = gpus_of(self.host)
        scenario = Scenario(root / "scenario", played, host=host_lines(played))
        os.environ["GANGLINE_FAKE_NVML"] = str(scenario.path)
        nvml.forget_accounts()
        self.roots = replace(self.host.roots, nvml_library=str(build(root / "nvml")))
        self.clock = HandedClock(10**18)
        self.session = amd_session_of(self.roots, self.clock)
        self.collectors = [make(self.roots) for name, make in COLLECTORS.items() if name in LANES]
        self.shared, self.builder = SharedTables(), FrameBuilder(b"R" * 16, b"B" * 16)
        self.sender, self.receiver = Sender(CONTEXT_BYTES_MAX), Receiver()
        self.fleet = Fleet(epoch=7)
        self.second = 0
        self.judgement: Judgement | None = None
        self.sent: list[frames.Frame] = []

    def register(self) -> None:
        result = [(d.key, dict(d.attributes)) for d in amd_gpus.amd_devices(self.roots)]
        result += [
            (key, {"name": "NVIDIA H100 PCIe", "pci_address": at}) for key, at in self.nvidia()
        ]
        devices = [telemetry_pb2.Device(kind="gpu", key=key, attributes=has) for key, has in result]
        self.fleet.register("mixed", simulated=False, boot_id=b"B" * 16, devices=devices)

    def nvidia(self) -> list[tuple[str, str]]:
        return [(gpu.uuid, gpu.address) for gpu in gpus_of(self.host)]

    def run(self, seconds: int, late: int = 0) -> None:
        """Advance the time. *late*: seconds by which AMD's ten-second lanes follow NVIDIA's."""
        for _ in range(seconds):
            self.second += 1
            self.clock.now_ns += SECOND
            nvml.forget_accounts()  # calls are counted per second of this machine's clock
            filled: list[tuple[str, Block]] = []
            for collector in self.collectors:
                period = PERIOD_SECONDS[collector.pace]
                shift = late if collector.name.startswith(("amd", "xgmi", "ras")) else 0
                if (self.second - shift) % period == 1 % period:
                    turn = run_collector(collector, self.clock)
                    assert turn.outcome is CollectOutcome.OK, (turn.collector, turn.message)
                    filled += [(turn.collector, block) for block in turn.blocks]
            frame = self.builder.build(
                self.second, self.clock.now_ns, self.clock.now_ns, self.shared.join(filled)
            )
            assert not self.builder.left_out
            received = self.receiver.decode(self.sender.encode(frame))
            self.sent.append(frames.decode(received))
            now_ns = START_NS + self.second * SECOND
            self.fleet.observe("mixed", read_frame(received), now_ns)
            if self.second % 5 == 0:
                self.judgement = evaluate(self.fleet, now_ns, self.judgement)

    def state(self) -> dict[str, dict[str, float | int | None]]:
        """Return a reader's state after all frames: the last row of each table and device."""
        known: dict[str, dict[str, float | int | None]] = {}
        for frame in self.sent:
            for block in frame.blocks:
                for row, device in enumerate(block.devices):
                    of_device = known.setdefault(device, {})
                    of_device |= {BY_ID[i].name: value for i, value in block.values(row)}
        return known


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[MixedHost]:
    host = MixedHost(tmp_path)
    host.register()
    yield host
    let_go(host.collectors)
    del os.environ["GANGLINE_FAKE_NVML"]


@pytest.mark.parametrize("late", [0, 3])
def test_both_vendors_of_a_host_are_read(mixed: MixedHost, late: int) -> None:
    """Both lanes, no duplicate key, and no on-change row is removed by the other vendor's turn."""
    mixed.run(25, late)
    keys = [*dict(mixed.nvidia()), *(gpu.key for gpu in mixed.session.gpus)]
    assert len(set(keys)) == 4
    state = mixed.state()
    for key in keys:
        for name in (
            "gpu.power_watts",
            "gpu.temperature_celsius",
            "gpu.lost_state",
            "gpu.mig_mode_state",
        ):
            assert state[key][name] is not None, (key, name)
        assert state[key]["gpu_job.processes_count"] is not None, (
            "whose processes hold it is known of each"
        )
    assert all(len({b.table for b in frame.blocks}) == len(frame.blocks) for frame in mixed.sent)
    changes = [b for frame in mixed.sent for b in frame.blocks if b.table == "gpu_10s_changes"]
    assert all(any(b.valid) for b in changes)


def test_each_vendors_gpus_are_judged_among_themselves(mixed: MixedHost) -> None:
    """A throttled GPU is named by its key; the other vendor's GPUs are not its peers."""
    mixed.run(25)
    assert mixed.judgement is not None
    (score,) = mixed.judgement.hosts
    named = {evidence.device.partition("/")[0] for evidence in score.evidence}
    assert not named & set(dict(mixed.nvidia())), score.reason_message
    assert score.state in (HealthState.HEALTHY, HealthState.WATCH), score.reason_message
