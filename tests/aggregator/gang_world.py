"""A world whose hosts run one job, ten seconds a step: what the tests of gangs stand on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.aggregator.world import SECOND_NS, Host, World, gpu_of

GPUS, STEP_SECONDS = 2, 10
BUSY, WORK = 0.68, 0.34


def tell(
    world: World, host: Host, job: str, state: str = "running", gpus: Sequence[int] = range(GPUS)
) -> None:
    """Tell of a process of *job* on each of these GPUs of *host*."""
    for gpu in gpus:
        device = gpu_of(host, gpu)
        world.event(
            host, 0, device, "gpu.process", event_id=f"/{device}//{job}", process_id=7 + gpu,
            attributes={"state": state, "source": "slurm", "job_id": job},
        )  # fmt: skip


def in_job(hosts: int = 6, *, made: World | None = None, work: bool = True) -> World:
    """Return a world whose hosts run one job of two minutes and more, all alike."""
    world = made or World(hosts=hosts, gpus=GPUS, spread=0.01)
    for host in world.hosts:
        tell(world, host, "1001")
        busy(host, 1.0)
        if not work:
            host.forget("gpu_fast_1s")
            busy_only(host, 1.0)
        host.set("host_1s", "host", pressure_io_some_ratio=0.01)
    pass_steps(world, 4)
    return world


def busy(host: Host, share: float, work: float = 1.0) -> None:
    """Let the SMs of *host* be busy for *share* of what is usual, at *work* of the usual work."""
    for gpu in range(GPUS):
        host.set("gpu_fast_1s", gpu_of(host, gpu),
                 sm_active_ratio=BUSY * share, tensor_active_ratio=WORK * work)  # fmt: skip


def busy_only(host: Host, share: float) -> None:
    for gpu in range(GPUS):
        host.set("gpu_fast_1s", gpu_of(host, gpu), sm_active_ratio=BUSY * share)


def draw(host: Host, watts: float) -> None:
    for gpu in range(GPUS):
        host.set("gpu_1s", gpu_of(host, gpu), power_watts=watts)
        host.grow("gpu_1s", gpu_of(host, gpu), energy_joules=watts)


def gapped(host: Host, gap: float, **pressures: float) -> None:
    """Let nothing run on the GPUs of *host* for *gap* of the time."""
    for gpu in range(GPUS):
        host.set("gpu_1s", gpu_of(host, gpu), utilization_ratio=1.0 - gap)
    host.set("host_1s", "host", **pressures)


def pass_steps(world: World, steps: int, each: Callable[[int], None] | None = None) -> None:
    for step in range(steps):
        if each:
            each(step)
        world.now_ns += (STEP_SECONDS - 1) * SECOND_NS
        world.second += STEP_SECONDS - 1
        for host in world.hosts:
            for (table, device, column), rate in host.growth.items():
                host.readings[table, device][column] += (STEP_SECONDS - 1) * rate
        world.run(1)


def blamed(world: World) -> list[str]:
    return [name for name, state in world.states().items() if state not in ("HEALTHY", "UNKNOWN")]
