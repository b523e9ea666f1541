"""README: "Missing data is never taken for zero, nor for health", tested for each signal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.model import SEVERITY, HealthState, HostScore
from gangline.contract.signal import Kind
from gangline.contract.wire import telemetry_pb2
from tests.worlds import Host, World, gpu_of

#: Ways in which a reading turns bad: (value before, value after); for a counter, its steps per
#: second.
WAYS: dict[Kind, tuple[tuple[float, float], ...]] = {
    Kind.STATE: ((0, 1), (1, 0), (0, 6)),
    Kind.GAUGE: ((0.0, 0.99), (50.0, 1.0)),
    Kind.COUNTER: ((0, 100),),
}
#: Jobs on a GPU and the agent's own state end when their reports end.
COME_AND_GO = ("gpu_job", "probe", "collector")
#: Fewer bad cases than this, and the test tests nothing.
FOUND_MIN = 40


@dataclass
class Case:
    """A signal of a device of a host that is good at first, and then turns bad."""

    host: Host
    table: str
    device: str
    column: str
    kind: Kind
    well: float
    bad: float
    before: HostScore | None = None

    def read(self, value: float) -> None:
        self.host.set(self.table, self.device, **{self.column: value})

    def begin(self) -> None:
        """Make the reading bad, or keep it bad."""
        if self.kind is Kind.COUNTER:
            self.read(self.host.readings.get((self.table, self.device), {}).get(self.column, 1e6))
            self.host.grow(self.table, self.device, **{self.column: self.bad})
        else:
            self.read(self.bad)

    def __str__(self) -> str:
        return f"{self.table} {self.column} {self.well:g} -> {self.bad:g}"


def device_of(host: Host, kind: str) -> str:
    gpu = gpu_of(host, 0)
    return {
        "gpu": gpu, "gpu_fabric": gpu, "gpu_fast": gpu, "nvlink": f"{gpu}/link3", "c2c": f"{gpu}/c2c0",
        "rdma": "mlx5_0/1", "nic": "mlx5_0", "host": "host", "net": "eth0", "filesystem": "/",
        "agent": "agent", "clock": "host",
    }.get(kind, f"{kind}0")  # fmt: skip


def cases() -> tuple[World, list[Case]]:
    """Return a world with one host for each way in which each stored signal can be bad."""
    ways = [
        (table.name, signal, way)
        for table in Fleet().tables.values()
        for signal in table.signals
        if signal.device_kind not in COME_AND_GO
        for way in WAYS[signal.kind]
    ]
    world = World(hosts=len(ways), gpus=1, spread=0.0)
    cases_found: list[Case] = []
    for host, (table, signal, (well, bad)) in zip(world.hosts, ways, strict=True):
        device = device_of(host, signal.device_kind)
        cases_found.append(Case(host, table, device, signal.column, signal.kind, well, bad))
        listed = [
            telemetry_pb2.Device(kind="gpu", key=gpu_of(host, 0), attributes={"name": "H100"}),
            telemetry_pb2.Device(
                kind="net", key="eth0", attributes={"pci_address": "0000:01:00.0"}
            ),
            telemetry_pb2.Device(kind="net", key="bond0"),
            telemetry_pb2.Device(kind="filesystem", key="/"),
        ]
        world.fleet.register(host.name, simulated=False, boot_id=host.boot_id, devices=listed)
    return world, cases_found


@pytest.fixture(scope="module")
def sick() -> tuple[World, list[Case]]:
    """All signals are good for 70 s."""
    world, every = cases()
    for case in every:
        case.read(case.well)
    world.run(70, every_seconds=10)
    return world, every


def drop(case: Case) -> None:
    """Report nothing more of the device in this table."""
    case.host.readings.pop((case.table, case.device), None)
    case.host.growth = {
        key: rate for key, rate in case.host.growth.items() if key[:2] != (case.table, case.device)
    }


def blank(case: Case) -> None:
    """Report the row without this value: NVML's "not available"."""
    case.host.readings[case.table, case.device].pop(case.column, None)
    case.host.growth.pop((case.table, case.device, case.column), None)


def freeze(case: Case) -> None:
    """Report unchanged values."""
    case.host.growth.clear()


def score_of(world: World, case: Case) -> HostScore:
    assert world.snapshot is not None
    return world.snapshot.hosts[world.fleet.index[case.host.name]]


def better(world: World, every: list[Case]) -> Iterator[str]:
    """Yield each case whose host improved."""
    for case in every:
        before, now = case.before, score_of(world, case)
        assert before is not None
        improved = SEVERITY.index(now.state) > SEVERITY.index(before.state)
        if improved or now.score > before.score + 1e-9:
            yield (
                f"{case}: {before.state.name} {before.score:.5f} -> {now.state.name} {now.score:.5f}"
            )


@pytest.mark.slow
@pytest.mark.parametrize(("how", "seconds"), [(drop, 240), (blank, 100), (freeze, 40)])
def test_nothing_gets_better_by_what_is_not_read(
    sick: tuple[World, list[Case]], how: Callable[[Case], None], seconds: int
) -> None:
    """A missing reading never improves a host.

    An RDMA port was down, its HCA vanished, and the host was HEALTHY a minute later; a host that
    lost GPUs scored better. A bad counter that is reported on change is exempt: no report means no
    step, so its events end.
    """
    world, every = sick
    for case in every:
        case.begin()
    world.run(100, every_seconds=10)
    for case in every:
        case.before = score_of(world, case)
    bad = [case for case in every if case.before and case.before.state is not HealthState.HEALTHY]
    assert len(bad) >= FOUND_MIN
    compared = [case for case in every if case.kind is not Kind.COUNTER or case not in bad]
    values = [dict(case.host.readings[case.table, case.device]) for case in every]
    for case in every:
        how(case)
    improved: set[str] = set()
    for _ in range(seconds // 20):
        world.run(20, every_seconds=10)
        improved.update(better(world, compared))
    for case, before in zip(every, values, strict=True):
        case.host.set(case.table, case.device, **before)
    assert not improved, "\n".join(sorted(improved))
