"""Places that hosts report outlive a restart of the aggregator, also for hosts switched off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gangline.aggregator.declared.host_placement import HostPlacement
from gangline.aggregator.declared_reload import DeclaredReloader
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.scoring.checkpoint import restore
from gangline.aggregator.scoring.evaluate import evaluate
from gangline.contract.wire import telemetry_pb2
from tests.aggregator.declared.test_live import Running, Tables
from tests.aggregator.scoring.test_restart import last_scores
from tests.worlds import SECOND_NS, World

LABELS = {"gangline.rack": "r9", "gangline.rails": "l0 l1"}
PLACE = HostPlacement(rack="r9", rails=("l0", "l1"), nvlink_domain="c.3")


@pytest.fixture
def store() -> Iterator[Tables]:
    """Return a store with the host h9."""
    with closing(Tables()) as tables:
        tables.connection.execute("INSERT INTO hosts (host) VALUES ('h9')")
        yield tables


def register(fleet: Fleet, host: str, labels: dict[str, str]) -> None:
    gpu = telemetry_pb2.Device(
        kind="gpu", key="GPU-9", attributes={"fabric_cluster": "c", "fabric_clique": "3"}
    )
    fleet.register(host, simulated=False, boot_id=b"B" * 16, devices=[gpu], labels=labels)


def test_after_a_restart_a_host_stands_where_it_said(store: Tables, tmp_path: Path) -> None:
    """Rack off, aggregator restarted: the rack had no hosts any more, in the store as well."""
    rows = "SELECT field, value, source FROM declared_places WHERE host = 'h9' ORDER BY field"
    running = Running(store, tmp_path)
    register(running.fleet, "h9", LABELS)
    running.step()
    kept = running.asked(rows)
    assert kept == [
        ("nvlink_domain", "c.3", "hardware"), ("rack", "r9", "label"), ("rails", "l0 l1", "label")
    ]  # fmt: skip
    again = running
    for _ in range(2):
        again = Running(store, tmp_path)
        assert again.fleet.declared.place("h9") == PLACE
        again.step(3)
        assert again.fleet.declared.place("h9") == PLACE and again.asked(rows) == kept
    version = again.fleet.declared.places_version
    register(again.fleet, "h9", LABELS)
    again.step()
    assert again.fleet.declared.places_version == version, "it says the same"
    register(again.fleet, "h9", {})
    again.step()
    assert again.fleet.declared.place("h9") == HostPlacement(nvlink_domain="c.3"), (
        "its label was taken off"
    )


def test_it_stands_beside_what_was_in_force_and_beside_a_bad_file(
    store: Tables, tmp_path: Path
) -> None:
    """A slip in a file, then a restart: the previous files count, and the host's labels too."""
    (tmp_path / "a.toml").write_text('[[place]]\nhosts = ["h9"]\nleaf = "leaf-1"\n')
    running = Running(store, tmp_path)
    register(running.fleet, "h9", LABELS)
    running.step()
    (tmp_path / "a.toml").write_text("nonsense = [")
    again = Running(store, tmp_path)
    place = again.fleet.declared.place("h9")
    assert again.finding and (place.leaf, place.rack) == ("leaf-1", "r9")


def test_a_host_that_is_not_known_any_more_does_not_come_back(
    store: Tables, tmp_path: Path
) -> None:
    """A host deleted from the store by hand stays deleted; a later version's field is ignored."""
    running = Running(store, tmp_path)
    register(running.fleet, "h8", LABELS)
    register(running.fleet, "h9", LABELS)
    running.step()
    store.connection.execute(
        "INSERT INTO declared_places VALUES ('h9', 'row_of_racks', 'x', 'label', '', true)"
    )
    again = Running(store, tmp_path)
    assert again.fleet.declared.place("h8") == HostPlacement()
    assert again.fleet.declared.place("h9") == PLACE


def test_a_rack_that_is_switched_off_is_in_its_window_after_a_restart(
    store: Tables, tmp_path: Path
) -> None:
    """Its rack came from a label: a minute after a restart all were STALE, the fleet degraded."""
    (tmp_path / "a.toml").write_text(
        '[[maintenance]]\nracks = ["r7"]\nbegin = 2023-11-14\nend = 2023-11-16\ntime_zone = "UTC"\n'
        'who = "alice"\nwhy = "new fans"\n'
    )
    world = World(hosts=6)
    off = world.hosts[:3]
    for host in world.hosts:
        store.connection.execute("INSERT INTO hosts (host) VALUES (?)", [host.name])
    running = Running(store, tmp_path)
    for host in off:
        register(running.fleet, host.name, {"gangline.rack": "r7"})
    running.step()
    world.fleet.declared = running.fleet.declared
    world.run(10)
    for host in off:
        host.silent = True
    assert world.run(30).degraded_reason == ""
    assert world.snapshot
    last = last_scores(world)
    world.now_ns += 30 * SECOND_NS
    world.fleet = Fleet(epoch=8)
    DeclaredReloader(tmp_path, world.fleet, store).begin(world.now_ns)
    before = restore(world.fleet, last, world.now_ns)
    world.snapshot = evaluate(world.fleet, world.now_ns, before)
    for host in world.hosts[3:]:
        world.register(host)
    snapshot = world.run(90)
    assert [world.score(host).state.name for host in off] == ["MAINTENANCE"] * 3
    assert snapshot.degraded_reason == ""
