"""Removed devices make room for new ones; devices without room are reported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.aggregator.fleet import devices, evictions
from gangline.aggregator.fleet.devices import DEVICES_PER_HOST_MAX
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest.frame_reader import FrameStreamReader
from gangline.aggregator.monitoring.metrics import unjudged_devices
from gangline.contract import frame
from gangline.contract.wire import telemetry_pb2 as wire
from tests.worlds import SECOND_NS, START_NS, Host, World, all_well, block

WELL = {"size_bytes": 5e11, "available_bytes": 2e11, "read_only_state": 0.0}

_SETS = st.lists(
    st.tuples(st.booleans(), st.frozensets(st.integers(0, 14), max_size=10), st.booleans()),
    max_size=25,
)


def mount(host: Host, *places: str) -> None:
    for place in places:
        host.set("filesystem_60s", place, **WELL)


def unmount(host: Host, *places: str) -> None:
    for place in places:
        del host.readings["filesystem_60s", place]


def pods(minute: int, count: int = 100) -> list[str]:
    return [f"/var/lib/kubelet/pods/{minute}-{number}/volumes" for number in range(count)]


def test_mounts_that_came_and_went_hide_no_fault() -> None:
    """A node after 1,100 Kubernetes volumes: its `/data` became read-only without any evidence."""
    world = World(hosts=2, gpus=1)
    node, control = world.hosts
    for minute in range(14):
        mount(node, *pods(minute))
        world.run(60, every_seconds=60)
        unmount(node, *pods(minute))
    assert len(world.fleet.devices["filesystem"].rows_of(0)) == DEVICES_PER_HOST_MAX
    assert world.fleet.evictions.count > 300 and all_well(world)
    for host in (node, control):
        mount(host, "/data")
    world.run(60, every_seconds=60)
    for host in (node, control):
        host.set("filesystem_60s", "/data", read_only_state=1.0)
    world.run(60, every_seconds=60)
    scores = [world.score(host) for host in (node, control)]
    assert [score.state.name for score in scores] == ["WATCH", "WATCH"]
    assert len({score.reason_message for score in scores}) == 1
    assert scores[0].reason_message.startswith("/data became read-only")
    assert "/" in world.fleet.devices["filesystem"].names  # always reported: it stays


def test_what_has_no_room_is_said_until_it_has(caplog: pytest.LogCaptureFixture) -> None:
    """1,100 volumes at once: 76 unjudged mounts have evidence, a finding, a figure, a log line."""
    world = World(hosts=2, gpus=1)
    node = world.hosts[0]
    places = pods(0, 1099)
    mount(node, *places)
    world.run(240, every_seconds=60)
    (evidence,) = world.score(node).evidence
    left_out = 1100 - DEVICES_PER_HOST_MAX
    assert evidence.message.startswith(f"{left_out} devices of kind filesystem are not judged")
    assert ("h0", "devices.left_out", "filesystem telemetry") in world.fleet.findings
    assert unjudged_devices(world.fleet) == left_out
    assert [record.message for record in caplog.records if "are not judged" in record.message] == [
        "h0 reports more than 1024 devices of kind filesystem at once: 76 of filesystem_60s are not judged (the store has all)"
    ]
    assert not world.score(world.hosts[1]).evidence
    unmount(node, *places[:200])
    world.run(480, every_seconds=60)
    assert unjudged_devices(world.fleet) == 0 and not world.score(node).evidence
    assert not world.fleet.findings
    node.set("filesystem_60s", places[-1], read_only_state=1.0)
    world.run(60, every_seconds=60)
    assert world.score(node).reason_message.startswith(f"{places[-1]} became read-only")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a host to eight devices of a kind."""
    monkeypatch.setattr(devices, "DEVICES_PER_HOST_MAX", 8)


def _arrays(of: Any, seen: set[int], path: str = "") -> list[tuple[str, Any]]:
    """Return all arrays of a gangline object, with their paths."""
    if id(of) in seen:
        return []
    seen.add(id(of))
    if isinstance(of, np.ndarray):
        return [(path, of)]
    if isinstance(of, (list, tuple)):
        items = list(enumerate(of))
    elif isinstance(of, dict):
        items = list(of.items())
    elif type(of).__module__.startswith("gangline"):
        items = list(getattr(of, "__dict__", {}).items())
    else:
        return []
    return [array for name, value in items for array in _arrays(value, seen, f"{path}.{name}")]


@pytest.mark.slow
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("table", "values", "grown"),
    [
        ("filesystem_60s", WELL, {}),
        ("rdma_1s", {"port_state": 4.0, "transmit_wait_count": 9.0}, {"transmit_wait_count": 5.0}),
        ("rdma_1s_changes", {"link_downed_events": 3.0}, {"link_downed_events": 1.0}),
        ("net_1s", {"carrier_state": 1.0}, {}),
        ("collector_10s", {"outcome_state": 3.0}, {}),
        ("nvlink_10s_changes", {"link_state": 1.0, "replay_errors": 3.0}, {"replay_errors": 1.0}),
    ],
)  # fmt: skip
def test_nothing_of_the_device_before_stays_in_its_row(
    table: str, values: dict[str, float], grown: dict[str, float]
) -> None:
    """Each array's cells for a reassigned row equal those of an unused row."""
    world = World(hosts=12, gpus=1)  # no other arrays have this length
    for host in world.hosts:
        host.forget(table)
    world.run(1)
    kind = world.fleet.tables[table].devices
    for host in world.hosts:
        for number in range(8):
            host.set(table, f"old-{number}", **values)
            host.grow(table, f"old-{number}", **grown)
    world.run(130, every_seconds=60)
    row = kind.find(0, "old-5")
    capacities = [device_kind.capacity for device_kind in world.fleet.devices.values()]
    assert kind.count > 64 and capacities.count(kind.capacity) == 1
    arrays = [
        path_and_array
        for path_and_array in _arrays(world.fleet, set())
        if not path_and_array[0].endswith("._host")
    ]
    arrays = [
        path_and_array
        for path_and_array in arrays
        if path_and_array[1].ndim and path_and_array[1].shape[-1] in (kind.capacity, kind.count)
    ]
    assert any(array[..., row].any() for _, array in arrays)
    world.fleet._reassign_row(kind, row, "new")
    assert (kind.find(0, "old-5"), kind.find(0, "new"), kind.names[row]) == (-1, row, "new")
    for path, array in arrays:
        unused = array[..., -1] if array.shape[-1] == kind.capacity else np.False_
        assert np.array_equal(array[..., row], unused), path
    assert "old-5" not in [
        path_and_array.name for path_and_array in world.fleet.collector_statuses.of(0)
    ]


@settings(max_examples=150, deadline=None)
@given(_SETS)
def test_each_reading_is_its_devices_own(turns: list[tuple[bool, frozenset[int], bool]]) -> None:
    """Two tables of a kind; names come, go and return; a stream remembers rows.

    Each row has the last values of the device with its name.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "DEVICES_PER_HOST_MAX", 8)
        patch.setattr(evictions, "GONE_NS", 90 * SECOND_NS)
        fleet, stream, encoder = Fleet(), FrameStreamReader(), frame.Encoder()
        fleet.register("h", simulated=False, boot_id=b"B" * 16, devices=[])
        last: dict[tuple[str, str], float] = {}
        for number, (both, names, late) in enumerate(turns):
            now_ns = START_NS + (number + 1) * (40 if late else 20) * SECOND_NS
            tables = ("rdma_1s", "rdma_1s_changes") if both else ("rdma_1s",)
            columns = {"rdma_1s": "port_state", "rdma_1s_changes": "link_downed_events"}
            blocks, sent = [], dict[tuple[str, str], float]()
            for offset, table in enumerate(tables):
                chosen = sorted(names)[offset:] if names else []
                if chosen:
                    rows = {
                        f"p{port}": {columns[table]: float(100 * number + port)} for port in chosen
                    }
                    blocks.append(block(table, rows))
                    sent |= {(table, port): cells[columns[table]] for port, cells in rows.items()}
            boottime_ns = (number + 1) * 40 * SECOND_NS
            stamp = frame.Stamp(b"R" * 16, b"B" * 16, number + 1, boottime_ns, now_ns)
            message = wire.TelemetryBatch(
                sequence=number + 1, frame=encoder.encode(stamp, blocks, deflate=False)
            )
            evictions_before = fleet.evictions.count
            fleet.observe("h", stream.frame(message), now_ns)
            last |= sent
            ports = fleet.devices["rdma"]
            assert len(set(ports.names)) == ports.count <= 8
            for (table, name), value in last.items():
                row = ports.find(0, name)
                if row < 0:
                    continue
                assert ports.names[row] == name
                kept = fleet.tables[table]
                known = bool(kept.known(columns[table])[row])
                # A row that another table of the frame reassigned belongs to this table from the
                # next frame.
                if (table, name) in sent and fleet.evictions.count == evictions_before:
                    assert known
                if known:
                    assert float(kept.state(columns[table])[row]) == value, (number, table, name)
            sent_names = {name for _, name in sent}
            if len(sent_names) <= 8 and not fleet.evictions.untracked:
                assert all(ports.find(0, name) >= 0 for name in sent_names)
