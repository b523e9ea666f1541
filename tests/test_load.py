"""The load generator behaves as an agent: its measurements are only as good as its frames."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.load.fleet import GPUS, SECOND_NS, UPTIME_NS, HostIdentity, Model
from bench.load.fleet_run import RECEIPT_SECONDS_MAX, LoadReport, is_sustained, run
from bench.load.generator import plan_of
from bench.load.latency import Latencies
from gangline.aggregator.config import AggregatorConfig
from gangline.contract import frame as frames
from gangline.contract.stream import Receiver, Sender
from gangline.contract.wire import telemetry_pb2 as wire

IN_TIME = {
    "p99": RECEIPT_SECONDS_MAX,
    "flying": 300 * RECEIPT_SECONDS_MAX,
    "stalls": 0.0,
    "frames": 291.0,
}


def test_each_host_has_names_of_its_own_in_a_whole_frame() -> None:
    """Ten thousand hosts with one host's GPU names would be one host to every table that knows GPUs."""
    model = Model(1, 2)
    sender, receiver, seen = Sender(1 << 15), Receiver(), set[str]()
    for second in range(1, 4):
        requests = model.second()[1]
        plain = HostIdentity(7, 1).frame(requests, second, UPTIME_NS + second * SECOND_NS, 5)
        differences = sender.encode(plain)
        frame = frames.decode(receiver.decode(differences))
        assert (frame.stamp.sequence, frame.stamp.run_id) == (second, HostIdentity(7, 1).run_id)
        assert sum(block.rows for block in frame.blocks) == requests.rows
        (gpus,) = [block for block in frame.blocks if block.table == "gpu_1s"]
        seen |= set(gpus.devices)
    assert len(seen) == GPUS
    assert all(name.startswith("GPU-00000007-") for name in seen)


def test_a_registration_names_the_same_devices_as_its_frames() -> None:
    """Otherwise every GPU of a load would be unregistered."""
    model = Model(1, 1)
    request = wire.RegisterNodeRequest.FromString(
        HostIdentity(7, 1).registration(model.registrations[0], 11, 12)
    )
    assert (request.node, request.boottime_ns, request.wall_time_ns) == ("load-00000007", 11, 12)
    assert (request.run_id, request.boot_id) == (
        HostIdentity(7, 1).run_id,
        HostIdentity(7, 1).boot_id,
    )
    keys = [device.key for device in request.devices if device.kind == "gpu"]
    frame = frames.decode(HostIdentity(7, 1).frame(model.second()[0], 1, 1, 1))
    (gpus,) = [block for block in frame.blocks if block.table == "gpu_1s"]
    assert set(gpus.devices) == set(keys)


@pytest.mark.slow
def test_what_is_receipted_is_stored(tmp_path: Path) -> None:
    """A short load end to end, with real processes: every receipted row is in the store once."""
    report = run([(2, 1), (4, 1)], 1, warm=0, probe=False, folder=tmp_path)
    last = report.seconds[-1]
    assert (last["frames"], last["receipted"], last["broken"], last["words"]) == (6, 6, 0, "")
    assert report.stored_gpu_rows == 6 * GPUS
    assert report.figures["receipts_total"] <= 6  # /metrics says what was so up to a second ago
    assert report.last["receipts"]["count"] == 6 and last["refused"] == 0


@pytest.mark.parametrize(
    "change",
    [
        {"p99": RECEIPT_SECONDS_MAX + 0.01}, {"p99": float("nan")}, {"stalls": 0.1},
        {"flying": 300 * RECEIPT_SECONDS_MAX + 1}, {"frames": 290.0},
    ],
)  # fmt: skip
def test_who_falls_behind_has_not_kept_up(change: dict[str, float]) -> None:
    """A load of ten minutes with every frame receipted failed, because in one second a commit included a checkpoint."""
    assert AggregatorConfig.commit_seconds * 3 == RECEIPT_SECONDS_MAX
    assert is_sustained(IN_TIME, 300)
    assert not is_sustained(IN_TIME | change, 300)


def test_who_speaks_seldom_keeps_up_too() -> None:
    """Hosts that send a frame a minute were measured against a frame a second, and always failed."""
    second = {"receipt": {"count": 5, "p50": 1.0, "p99": 2.0}, "held": 0, "memory_bytes": 1}
    second |= dict.fromkeys(
        ("rows", "gpu_rows", "receipted_rows", "cpu_seconds", "aggregator_cpu", "aggregator_loop_cpu"), 0
    )  # fmt: skip
    seconds = [
        second | {"at": float(index), "frames": 5 * index, "flying": 10, "stalls": 0}
        for index in range(4)
    ]
    for period, kept in ((12, True), (1, False)):
        (step,) = LoadReport([(60, 4)], period, seconds=seconds).steps()
        assert step["sustained"] == kept


@pytest.mark.parametrize("text", ["", "5", "5x", "5x0", "-1x5", "axb", "1x2x3"])
def test_a_wrong_plan_is_refused(text: str) -> None:
    """A plan that was misread measures something else."""
    with pytest.raises(ValueError):
        plan_of(text)


def test_latencies_are_of_whole_milliseconds() -> None:
    latencies = Latencies()
    assert latencies.summary() == {"count": 0}
    for milliseconds in range(1, 101):
        latencies.add(milliseconds / 1000)
    assert latencies.summary() == {"count": 100, "p50": 0.051, "p99": 0.1, "max": 0.1}
    latencies.add(1e9)
    assert latencies.share(1.0) == 120.001
