"""A hung DCGM engine next to NVML: real daemon, supervisor, codec and loops; a test's clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.agent.collector import Collector, CollectOutcome, CollectResult
from gangline.agent.collectors.dcgm import DcgmListener
from gangline.agent.collectors.dcgm_fields import PROFILING_COLUMNS
from gangline.agent.hardware.files import Roots
from gangline.agent.sampler.collector_groups import DCGM, DCGM_COLLECTOR, GPU, group_collectors
from gangline.agent.sampler.messages import TimedResult
from gangline.agent.sampler.probe_tables import SlowDeviceCache
from gangline.contract.block import Block
from tests.agent.sampler.watched import GPUS, Watched, hosts_lanes
from tests.agent.sampler.world import SECOND, Device, Sweeping, World

ENGINE, TABLE = "engine", "dcgm_1s_changes"


def lanes(world: World) -> dict[str, list[Collector]]:
    """Return collectors of eight GPUs, ports and disks, and a host engine."""
    world.devices.setdefault(ENGINE, Device())
    engine: Collector = Sweeping(
        world, DCGM_COLLECTOR, [ENGINE], TABLE, call="dcgmEntitiesGetLatestValues"
    )
    own: dict[str, list[Collector]] = {DCGM: [engine]}
    return hosts_lanes(world) | own


@pytest.mark.parametrize("holds", [False, True], ids=["", "ignores SIGKILL"])
def test_an_engine_that_hangs_for_45_seconds_costs_nvml_no_sample(holds: bool) -> None:
    """DCGM 313: a call took 45 s. Called in NVML's process it cost every GPU for this time."""
    host = Watched(lanes)
    host.run(30)
    first_ns = host.world.now_ns
    engine = host.world.devices[ENGINE]
    engine.hangs_until_ns, engine.holds = first_ns + 50 * SECOND + 1, holds
    host.run(5)
    assert host.samplers.takeovers_count == 1, "its process is left behind"
    host.run(145)
    for gpu in GPUS:
        assert host.on_time("gpu_1s", gpu, first_ns, 150) >= 0.999
        assert host.on_time("gpu_fast_1s", gpu, first_ns, 150) >= 0.999
    times = [moment for moment in host.latest.times[TABLE, ENGINE] if moment > first_ns + SECOND]
    assert first_ns + 50 * SECOND < times[0] < first_ns + 140 * SECOND, "it is taken up again"


def test_an_engine_that_kills_its_client_costs_nvml_no_sample() -> None:
    host = Watched(lanes)
    host.run(30)
    first_ns = host.world.now_ns
    host.world.devices[ENGINE].kills = "died of SIGSEGV"
    host.run(60)
    for gpu in GPUS:
        assert host.on_time("gpu_1s", gpu, first_ns, 60) >= 0.999


def test_the_engine_has_a_lane_of_its_own_or_none() -> None:
    world = World(lanes, SECOND)
    collectors = [member for members in lanes(world).values() for member in members]
    grouped = group_collectors(collectors)
    assert [each.name for each in grouped[DCGM]] == [DCGM_COLLECTOR] and GPU in grouped
    absent = DcgmListener(Roots(Path("/nowhere"), Path("/nowhere")))  # no library is installed
    collectors = [
        *(collector for collector in collectors if collector.name != DCGM_COLLECTOR),
        absent,
    ]
    assert DCGM not in group_collectors(collectors)


def _turn(block: Block) -> list[TimedResult]:
    return [TimedResult(0, CollectResult(DCGM_COLLECTOR, [block], 0.0, CollectOutcome.OK))]


def test_profiling_metrics_fill_the_cells_that_nvml_leaves_empty() -> None:
    """Two rows of one GPU and second would count as two seconds."""
    overlay = SlowDeviceCache()
    column = PROFILING_COLUMNS[1002]
    from_dcgm, from_nvml = Block("gpu_fast_1s", ["old"]), Block("gpu_fast_1s", ["new", "old"])
    from_dcgm.put_float(column, 0, 0.75)
    from_nvml.put_float(column, 0, 0.5)
    assert overlay.divert(_turn(from_dcgm), 0)[0].result.blocks == []
    overlay.apply(_turn(from_nvml), SECOND)
    cells = [from_nvml.floats[column * 2 + row] for row in range(2)]
    assert cells == [0.5, 0.75] and bytes(from_nvml.valid[column * 2 : column * 2 + 2]) == b"\1\1"
    from_nvml.clear()
    overlay.apply(_turn(from_nvml), SECOND)
    assert not any(from_nvml.valid), "a reading is shown once"


def test_what_a_slow_gpu_said_waits_for_the_block_that_has_its_row() -> None:
    """GPUs of two vendors have two blocks of one table: the first took the other's readings."""
    cache = SlowDeviceCache()
    slow, nvidia, amd = (Block("gpu_1s", [name]) for name in ("amd", "nvidia", "amd"))
    slow.put_float(0, 0, 1.5)
    cache.store(_turn(slow), 0)
    cache.apply([*_turn(nvidia), *_turn(amd)], SECOND)
    assert amd.floats[0] == 1.5 and amd.valid[0] and not any(nvidia.valid)
    amd.clear()
    cache.apply(_turn(amd), SECOND)
    assert not any(amd.valid), "a reading is shown once"
    cache.store(_turn(slow), 0)
    cache.apply(_turn(nvidia), 3 * SECOND)
    cache.apply(_turn(amd), SECOND)
    assert not any(amd.valid), "after two seconds it is of another time"
