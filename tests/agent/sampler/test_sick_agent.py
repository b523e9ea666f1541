"""A complete agent on a host whose driver hangs: real processes, calls that survive SIGKILL."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.model import Evidence, Reason
from gangline.aggregator.scoring.evaluate import Judgement, evaluate
from gangline.contract.frame import Frame, encode
from gangline.contract.wire.telemetry_pb2 import Device, HealthEvent
from tests.agent.sampler import fuse
from tests.agent.sampler.real_agent import RealAgent, is_sampled
from tests.fake_nvml.scenario import Gpu, gpus
from tests.fake_nvml.sick import blocks_for_ever
from tests.processes import until

SECOND = 1_000_000_000
CALL = "nvmlDeviceGetFieldValues"
#: Limit of the agent's processes: itself, the fork server, two lanes, a standby; abandoned in the
#: driver, two GPUs' samplers and a trial; and a new one for these.
PROCESSES_MAX = 10
#: By then a stuck process has shown by its end that the driver answers (`ward.LONG_CALL_NS`).
HELD_SECONDS = 3.0
#: Temperature of each GPU at step 0; each further step adds a degree.
CELSIUS = 41
XID = "3,8,5000000000,-;NVRM: Xid (PCI:{}): 31, pid=4711, name=python3, Ch 00000008\n"


@pytest.fixture
def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[fuse.Files]:
    """Yield a file that faulty GPUs read from step 1; while it is stuck, no read returns."""
    monkeypatch.setenv("GANGLINE_FAKE_NVML", str(tmp_path / "scenario"))
    with fuse.mounted(tmp_path / "fuse", ["gpu"]) as files:
        yield files


def played() -> list[Gpu]:
    """Return GPUs whose readings show the played step."""
    devices = gpus(8)
    for gpu in devices:
        gpu.values["temperature"] = [CELSIUS + step for step in range(8)]
    return devices


def until_read(agent: RealAgent, step: int, devices: Sequence[Gpu]) -> None:
    agent.scenario.step(step)

    def are_read() -> bool:
        shown = agent.series("gangline_gpu_temperature_celsius", "uuid")
        return all(shown.get(gpu.uuid) == CELSIUS + step for gpu in devices)

    until(are_read, f"step {step} read of {len(devices)} GPUs")


def hung_seconds(agent: RealAgent, row: str) -> float:
    return agent.series("gangline_probe_hung_seconds", "device").get(row, 0.0)


@pytest.mark.slow
def test_all_gpus_hung_are_one_finding(tmp_path: Path, stuck: fuse.Files) -> None:
    """One lock of the driver sent eight pages, and the agents of 600 hosts had to be restarted."""
    devices = [blocks_for_ever(gpu, tmp_path / "fuse/gpu", CALL) for gpu in played()]
    with RealAgent(tmp_path, devices) as agent:
        until_read(agent, 0, devices)
        pid = agent.pid
        stuck.stick("gpu")
        agent.scenario.step(1)
        until(lambda: agent.events("probe.driver_hung"), "the driver's hang told")
        until(lambda: hung_seconds(agent, "gpu") > HELD_SECONDS, "one stuck in a trial of it")
        assert stuck.waiting() == 3  # in two GPUs, and that trial
        assert len(agent.family()) + 1 <= PROCESSES_MAX
        due_ns = agent.next_trial_ns("")
        stuck.let("gpu")
        until_read(agent, 2, devices)
        assert (agent.alive(), agent.pid, stuck.waiting()) == (True, pid, 0)
        assert agent.stop() == 0
        reported = agent.events()
    assert [event.name for event in reported].count("probe.driver_hung") == 1
    # before it was known that all hang
    assert [event.name for event in reported].count("probe.hung") == 1
    (answered,) = [event for event in reported if event.name == "probe.driver_answered"]
    assert (
        answered.boottime_ns < due_ns
    )  # the end of a stuck process has shown it: no trial was needed
    verdicts = list(judged(agent.frames(), reported, devices))
    assert all(
        [evidence.device for evidence in findings] in ([], ["host"]) for findings in verdicts
    )
    (driver,) = verdicts[-1]  # it remains for another half minute
    assert f", in {CALL} (" in driver.message
    for table in (
        "host_1s",
        "rdma_1s",
        "net_1s",
    ):  # of the hang's four seconds; a busy machine may lose one
        assert seconds_missed(agent.frames(), table) <= 1, table


def judged(
    frames: Sequence[Frame], events: Sequence[HealthEvent], devices: Sequence[Gpu]
) -> Iterator[list[Evidence]]:
    """Yield an aggregator's evidence, per frame, about GPUs that hang or are missing."""
    fleet, waiting = Fleet(epoch=1), list(events)
    verdict: Judgement | None = None
    known = [Device(kind="gpu", key=gpu.uuid, attributes={"pci_address": gpu.address}) for gpu in devices]  # fmt: skip
    fleet.register("here", simulated=False, boot_id=frames[0].stamp.boot_id, devices=known)
    for frame in sorted(frames, key=lambda frame: frame.stamp.sequence):
        now_ns = frame.stamp.wall_ns
        while waiting and waiting[0].boottime_ns <= frame.stamp.boottime_ns:
            event = waiting.pop(0)
            fleet.observe_event("here", event, now_ns, event.wall_time_ns)
        fleet.observe("here", read_frame(encode(frame.stamp, frame.blocks)), now_ns)
        verdict = evaluate(fleet, now_ns, verdict)
        yield [evidence for evidence in verdict.hosts[0].evidence if is_of_gpus(evidence)]


def is_of_gpus(evidence: Evidence) -> bool:
    return evidence.reason is Reason.DRIVER_HUNG or evidence.signal == "gpu.sm_clock_hertz"


def seconds_missed(frames: Sequence[Frame], table: str) -> int:
    """Return the seconds between the third and last frame but one without reading of a table."""
    sampled = {
        round((frame.stamp.boottime_ns + block.offset_ns) / SECOND)
        for frame in frames
        for block in frame.blocks
        if block.table == table and any(is_sampled(block, row) for row in range(block.rows))
    }
    first, last = (frames[at].stamp.boottime_ns // SECOND for at in (2, -2))
    return sum(index not in sampled for index in range(first, last))


@pytest.mark.slow
def test_the_kernels_log_is_heard_while_a_gpu_hangs(tmp_path: Path, stuck: fuse.Files) -> None:
    """The driver reported the fault in the kernel's log, while the agent waited in the driver."""
    devices = played()
    sick, other = blocks_for_ever(devices[3], tmp_path / "fuse/gpu", CALL), devices[5]
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    # Both ends are open, so that the agent never reads end of file, like on the kernel's log.
    kernel = os.open(tmp_path / "dev/kmsg", os.O_RDWR | os.O_NONBLOCK)
    try:
        with RealAgent(tmp_path, devices, dev_root=tmp_path / "dev") as agent:
            until_read(agent, 0, devices)
            stuck.stick("gpu")
            until_read(agent, 1, [gpu for gpu in devices if gpu is not sick])
            until(lambda: agent.events("probe.hung"), "the GPU's hang told")
            os.write(kernel, XID.format(other.address).encode())
            until(lambda: agent.events("gpu.xid"), "the XID told")
            assert stuck.waiting() == 1  # for the whole time
            (xid,), (hung,) = agent.events("gpu.xid"), agent.events("probe.hung")
    finally:
        os.close(kernel)
    assert (xid.code, hung.attributes["device"]) == (31, sick.address)
    assert xid.device in (other.address, other.uuid)
