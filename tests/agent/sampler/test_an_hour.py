"""An hour with a driver that hangs: real daemon, supervisor, codec and loops; a test's clock."""

from __future__ import annotations

import pytest

from tests.agent.sampler.watched import DISKS, GPUS, PORTS, Watched
from tests.agent.sampler.world import SECOND

HOUR = 3600


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sick", "holds"),
    [
        ({GPUS[3]: "gpu_1s"}, False),
        ({GPUS[3]: "gpu_1s", PORTS[1]: "rdma_1s"}, True),
        ({DISKS[0]: "disk_1s"}, True),
    ],
    ids=["gpu", "gpu and port that ignore SIGKILL", "disk"],
)
def test_a_hung_device_costs_the_others_little(sick: dict[str, str], holds: bool) -> None:
    """A driver call blocked for 45 s: an agent with one process lost seven healthy GPUs as well."""
    host = Watched()
    host.run(30)
    first_ns = host.world.now_ns
    began_ns = first_ns + 1000 * SECOND + 1
    host.run(1000)
    for name in sick:
        device = host.world.devices[name]
        device.hangs_until_ns, device.holds = began_ns + 45 * SECOND, holds
    host.run(HOUR - 1000)
    for each, where in [
        *((gpu, "gpu_1s") for gpu in GPUS),
        *((port, "rdma_1s") for port in PORTS),
        *((disk, "disk_1s") for disk in DISKS),
        ("host", "host_1s"),
    ]:
        if each not in sick:
            assert host.on_time(where, each, first_ns, HOUR) >= 0.999, each
    # The device itself is read again, without a restart, within twice the time of its hang.
    for each, where in sick.items():
        times = [moment for moment in host.latest.times[where, each] if moment > began_ns + SECOND]
        assert began_ns + 45 * SECOND < times[0] < began_ns + 135 * SECOND
        assert host.on_time(where, each, first_ns + 1200 * SECOND, HOUR - 1200) >= 0.999
    assert host.world.most <= 4 + len(sick)
    assert host.alive == 3
