"""GPUs slower than their peers, and healthy GPUs that look slow. Readings are set by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gangline.aggregator.declared.host_placement import HostPlacement
from gangline.aggregator.declared.model import NOTHING
from gangline.aggregator.model import HealthState, Reason
from tests.worlds import (
    CLOCK_HERTZ,
    CLOCK_MAX_HERTZ,
    COMPUTING_WATTS,
    IDLE_WATTS,
    LIMIT_WATTS,
    WAITING_WATTS,
    World,
    all_well,
    gpu_of,
    throttle,
    wait_for_others,
)

#: What holds a GPU down, by its driver's word: readings beside the clock, reason, and what is said.
HELD = [
    (
        {"clock_event_reasons_flags": 0x20, "temperature_celsius": 88, "power_watts": 500.0},
        Reason.THERMAL_THROTTLE, "limited by heat",
    ),
    (
        {"clock_event_reasons_flags": 0x40, "temperature_celsius": 90, "power_watts": 500.0},
        Reason.THERMAL_THROTTLE, "limited by heat",
    ),
    (
        {"clock_event_reasons_flags": 0x80, "power_watts": 450.0},
        Reason.POWER_CAP, "hardware power brake",
    ),
    (
        {"clock_event_reasons_flags": 0x4, "power_watts": 480.0},
        Reason.POWER_CAP, "a power cap that is not its own limit (480 W of 700 W)",
    ),
    (
        {"clock_event_reasons_flags": 0x4, "power_watts": COMPUTING_WATTS},
        Reason.POWER_CAP, "a power cap that is not its own limit (550 W of 700 W)",
    ),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_throttled_gpu_is_found_within_25_seconds_and_its_victims_are_not(seed: int) -> None:
    """One GPU of 32 loses 32 % of its clock to heat; 31 wait for it at 100 % utilization."""
    world = World(seed=seed, seconds=20)
    assert all_well(world)
    sick = world.hosts[2]
    throttle(sick, 5)
    world.run(25, lambda _: wait_for_others(world, sick))
    score = world.score(sick)
    assert (score.state, score.reason) == (HealthState.DEGRADED, Reason.THERMAL_THROTTLE)
    assert 0.6 < score.relative_speed < 0.8
    assert [s for n, s in world.states().items() if n != sick.name] == ["HEALTHY"] * 3
    assert "limited by heat (88 C, slowdown at 89 C)" in score.reason_message
    assert "of its 31 peers" in score.reason_message
    assert score.evidence[0].device == gpu_of(sick, 5)
    assert score.evidence[0].sql.startswith("FROM ops.peers(")


@pytest.mark.parametrize(
    ("die", "beside", "told"),
    [
        (66, {"memory_temperature_celsius": 98}, "66 C, slowdown at 89 C, memory at 98 C"),
        (None, {"temperature_margin_celsius": 1}, "1 C below its limit"),
        (70, {"temperature_margin_celsius": -2}, "70 C, slowdown at 89 C, 2 C above its limit"),
        (88, {"temperature_margin_celsius": -2}, "88 C, slowdown at 89 C"),
    ],
)
def test_the_heat_that_holds_a_gpu_down_is_what_is_told(
    die: float | None, beside: dict[str, float], told: str
) -> None:
    """Hot memory was reported as "66 C, slowdown at 89 C", a temperature margin as "nan C"."""
    world = World(seconds=10)
    throttle(world.hosts[0], 5)
    device = gpu_of(world.hosts[0], 5)
    world.hosts[0].readings["gpu_1s", device].pop("temperature_celsius")
    world.hosts[0].set("gpu_1s", device, **({"temperature_celsius": die} if die else {}), **beside)
    world.run(20)
    assert f"limited by heat ({told})" in world.score(world.hosts[0]).reason_message


def test_a_power_limit_that_is_not_told_is_no_number() -> None:
    """The message was "nan W of nan W"."""
    world = World(seconds=10)
    host, device = world.hosts[0], gpu_of(world.hosts[0], 1)
    host.set("gpu_1s", device, sm_clock_hertz=0.6 * CLOCK_HERTZ, clock_event_reasons_flags=0x4)
    host.readings["gpu_10s", device].pop("power_limit_watts")
    host.set("gpu_60s", device, power_limit_default_watts=700.0)
    world.run(60)
    message = world.score(host).reason_message
    assert message.endswith("limited by its power limit")


def test_throttling_ends_a_minute_after_the_clock_came_back_and_not_before() -> None:
    """A GPU that throttles every half minute must not alternate between DEGRADED and HEALTHY."""
    world = World(seconds=20)
    sick, device = world.hosts[0], gpu_of(world.hosts[0], 0)
    throttle(sick, 0)
    world.run(20)
    sick.growth.pop(("gpu_1s", device, "violation_thermal_nanoseconds"))
    sick.set("gpu_1s", device, sm_clock_hertz=CLOCK_HERTZ, temperature_celsius=70,
             clock_event_reasons_flags=0)  # fmt: skip
    world.run(50)
    assert world.score(sick).state is HealthState.DEGRADED
    assert "60 s" in world.score(sick).clears_when
    judged = world.snapshot
    assert judged is not None
    slow = [
        gpu
        for gpu in judged.gpus.of(judged.names.index(sick.name))
        if gpu.state is HealthState.DEGRADED
    ]
    assert [gpu.relative_speed for gpu in slow] == [  # the GPU has the speed of its host
        pytest.approx(world.score(sick).relative_speed)
    ]
    world.run(25)
    assert all_well(world)


@pytest.mark.parametrize(
    ("warm_seconds", "readings"),
    [
        # An idle GPU clocks down by itself: half a cluster idles at any time.
        pytest.param(0, {"sm_clock_hertz": 345e6, "power_watts": IDLE_WATTS, "utilization_ratio": 0.0,
                         "clock_event_reasons_flags": 1}, id="idle"),
        # 100 % utilization at 150 W is waiting; a governor may lower the clock meanwhile.
        pytest.param(10, {"sm_clock_hertz": 1.2e9, "power_watts": WAITING_WATTS}, id="waiting"),
        # The cap flag is set on every H100 at full load; the clock is as high as the peers'.
        pytest.param(0, {"clock_event_reasons_flags": 0x4, "power_watts": LIMIT_WATTS}, id="capped at full load"),
    ],
)  # fmt: skip
def test_gpus_that_are_not_slow(warm_seconds: int, readings: dict[str, float]) -> None:
    world = World()
    if warm_seconds:
        world.run(warm_seconds)
    host = world.hosts[1]
    for gpu in range(8):
        host.set("gpu_1s", gpu_of(host, gpu), **readings)
        if readings["power_watts"] == LIMIT_WATTS:
            host.grow("gpu_1s", gpu_of(host, gpu), violation_power_nanoseconds=9e8)
    world.run(60)
    assert all_well(world)
    assert math.isnan(world.score(host).relative_speed) == ("utilization_ratio" in readings)


@pytest.mark.parametrize(
    ("seconds", "readings", "state", "reason", "message"),
    [
        # A power limit of 400 W left behind by an experiment slows the whole gang.
        (30, {"sm_clock_hertz": 1.35e9, "power_watts": 398.0, "clock_event_reasons_flags": 0x4},
         HealthState.DEGRADED, Reason.POWER_CAP, "its power limit (398 W of 400 W)"),
        # A braked GPU fell to 150 W and 100 % utilization: by power alone it seems to wait.
        (25, {"sm_clock_hertz": 6e8, "power_watts": 160.0, "clock_event_reasons_flags": 0x88},
         HealthState.DEGRADED, Reason.POWER_CAP, "power brake"),
        (60, {"sm_clock_hertz": CLOCK_HERTZ * 0.75}, HealthState.DEGRADED, Reason.STRAGGLER, ""),
        # A driver reports heat at 60 C: the GPU is slow, but not because of heat.
        (40, {"temperature_celsius": 60}, HealthState.DEGRADED, Reason.STRAGGLER, ""),
        # Someone locked the clocks of one GPU for a measurement and forgot it.
        (60, {"sm_clock_hertz": 1.2e9, "clock_event_reasons_flags": 0x2},
         HealthState.WATCH, Reason.POLICY, ""),
    ],
    ids=["power cap below the peers'", "power brake", "no cause", "heat without heat", "locked"],
)  # fmt: skip
def test_the_cause_of_a_slow_gpu(
    seconds: int, readings: dict[str, float], state: HealthState, reason: Reason, message: str
) -> None:
    world = World(seconds=10)
    host, device = world.hosts[0], gpu_of(world.hosts[0], 3)
    if "temperature_celsius" in readings:
        throttle(host, 3)
    if "400 W" in message:
        host.set("gpu_10s", device, power_limit_watts=400.0)
    host.set("gpu_1s", device, **readings)
    world.run(seconds)
    score = world.score(host)
    assert (score.state, score.reason) == (state, reason)
    assert message in score.reason_message


def test_all_slow_alike_blames_nobody() -> None:
    """A hot afternoon, or a cap on the whole hall: no host is to blame."""
    world = World(seconds=10)
    for host in world.hosts:
        for gpu in range(8):
            throttle(host, gpu, 0.7)
    world.run(60)
    assert all_well(world)


@pytest.mark.slow
@pytest.mark.parametrize(("readings", "reason", "said"), HELD, ids=["software heat", "hardware heat", "brake", "cap", "cap near its limit"])  # fmt: skip
@pytest.mark.parametrize(
    ("share", "state"),
    [
        (0.97, HealthState.HEALTHY), (1 / 1.05, HealthState.WATCH), (0.935, HealthState.WATCH), (0.90, HealthState.DEGRADED), (0.87, HealthState.DEGRADED),
    ],
)  # fmt: skip
def test_what_holds_a_gpu_down_a_little_is_told(
    readings: dict[str, float], reason: Reason, said: str, share: float, state: HealthState
) -> None:
    """A GPU held 10 % by heat was HEALTHY; a GPU at 0.87 by a cap had no reason."""
    world = World(spread=0.005, seconds=10)
    device = gpu_of(world.hosts[0], 3)
    world.hosts[0].set("gpu_1s", device, sm_clock_hertz=share * CLOCK_HERTZ, **readings)
    world.run(60)
    score = world.score(world.hosts[0])
    assert score.state is state
    if state is not HealthState.HEALTHY:
        assert score.reason is reason and said in score.reason_message
        assert score.relative_speed == pytest.approx(share, abs=0.015)
    assert [s for n, s in world.states().items() if n != "h0"] == ["HEALTHY"] * 3


@pytest.mark.slow
def test_a_level_ends_above_where_it_begins_and_a_minute_later() -> None:
    """At 92 % of its peers' clock a GPU alternated between DEGRADED and WATCH."""
    world = World(spread=0.0, seconds=10)
    sick, device = world.hosts[0], gpu_of(world.hosts[0], 3)

    def hold(share: float, seconds: int) -> HealthState:
        sick.set("gpu_1s", device, sm_clock_hertz=share * CLOCK_HERTZ, clock_event_reasons_flags=0x20,
                 temperature_celsius=88)  # fmt: skip
        world.run(seconds)
        return world.score(sick).state

    assert hold(0.955, 90) is HealthState.HEALTHY, "above what begins it"
    assert hold(0.94, 10) is HealthState.HEALTHY and hold(0.94, 20) is HealthState.WATCH
    assert hold(0.955, 120) is HealthState.WATCH, "not above what ends it"
    assert hold(0.91, 20) is HealthState.DEGRADED
    assert hold(0.93, 120) is HealthState.DEGRADED
    assert "within 6 % of its peers' for 60 s" in world.score(sick).clears_when
    assert hold(0.945, 50) is HealthState.DEGRADED and hold(0.945, 30) is HealthState.WATCH
    assert "within 4 % of its peers' for 60 s" in world.score(sick).clears_when
    assert hold(0.975, 50) is HealthState.WATCH and hold(0.975, 30) is HealthState.HEALTHY


def test_work_that_reaches_the_limit_in_bursts_is_not_held_down() -> None:
    """A dense job draws its limit for half of each second: cap and lower clock are right."""
    world = World(spread=0.005, seconds=10)

    def burst(_: int) -> None:
        for gpu in range(8):
            device = gpu_of(world.hosts[0], gpu)
            flags = 0x4 if world.second % 2 else 0x0
            world.hosts[0].set("gpu_1s", device, sm_clock_hertz=0.93 * CLOCK_HERTZ, power_watts=500.0,
                               clock_event_reasons_flags=flags)  # fmt: skip
            world.hosts[0].grow("gpu_1s", device, violation_power_nanoseconds=5e8)

    world.run(120, burst)
    assert all_well(world)


def test_checkpoints_blame_nobody() -> None:
    """Every 20 s the writers fall to 3 % utilization for 4 s and the others wait."""
    world = World()

    def checkpoint(_: int) -> None:
        writing = world.second % 20 < 4
        for host in world.hosts:
            for gpu in range(8):
                watts = WAITING_WATTS if writing else COMPUTING_WATTS
                share = 0.03 if writing and gpu == 0 else 1.0
                host.set("gpu_1s", gpu_of(host, gpu), power_watts=watts, utilization_ratio=share)

    for _ in range(100):
        world.run(1, checkpoint)
        assert set(world.states().values()) <= {"HEALTHY", "UNKNOWN"}


def test_gpus_of_another_model_are_no_peers() -> None:
    """Four A100 hosts among four H100 hosts: 1410 MHz is not slow for an A100."""
    world = World(hosts=4)
    for host in world.hosts[:2]:
        world.register(host, model="A100")
        for gpu in range(8):
            host.set("gpu_1s", gpu_of(host, gpu), sm_clock_hertz=1.41e9)
    world.run(60)
    assert all_well(world)


def test_without_an_inventory_the_highest_clock_tells_peers_apart() -> None:
    """The inventory child failed on all hosts; two kinds of GPU are still not compared."""
    world = World(hosts=4)
    for host in world.hosts:
        world.register(host, gpus=0)
    for host in world.hosts[:2]:
        for gpu in range(8):
            host.set("gpu_1s", gpu_of(host, gpu), sm_clock_hertz=1.41e9)
            host.set("gpu_10s", gpu_of(host, gpu), sm_clock_max_hertz=1.41e9)
    world.run(60)
    assert all_well(world)
    assert CLOCK_MAX_HERTZ != 1.41e9


@pytest.mark.parametrize("placed", [True, False])
def test_all_of_a_cooling_loop_are_slow_against_their_own_past(placed: bool) -> None:
    """A pump failed: the hosts of its loop were most of each other's peers, and none was slower.

    Without a declaration of the loop, GPUs that are all slow are nobody's fault.
    """
    world = World(gpus=2)
    if placed:
        places = {host.name: HostPlacement(cooling_domain="loop-1") for host in world.hosts}
        world.fleet.declared = replace(NOTHING, places=places)
    world.run(30)
    for host in world.hosts[:3]:
        for gpu in range(2):
            throttle(host, gpu, 0.8)
    world.run(20)
    degraded = [name for name, state in world.states().items() if state == "DEGRADED"]
    assert degraded == (["h0", "h1", "h2"] if placed else [])
    if placed:
        evidence = world.score(world.hosts[0]).evidence[0]
        assert "80 % of what it was, limited by heat" in evidence.message
        assert evidence.relative_speed_factor == pytest.approx(0.8, abs=0.02)
        world.run(120)
        assert world.score(world.hosts[0]).state is HealthState.DEGRADED, "what is held is no past"
