"""Interfaces that are pulled and plugged while the agent runs: real veth pairs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gangline.agent.clock import SystemClock
from gangline.agent.collector import AccessDenied, CollectOutcome, NoData, run_collector
from gangline.agent.collectors import net
from gangline.agent.collectors.counter_files import CounterFileCollector
from gangline.agent.collectors.link_details import LinkDetails
from gangline.agent.collectors.link_events import LinkListener
from gangline.agent.collectors.nic_statistics import NicStatistics
from gangline.agent.events import EventPublisher
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.netlink import LinkSocket, Overrun
from gangline.aggregator.arrays import Indexes
from gangline.aggregator.fleet.device_identities import DeviceIdentities
from gangline.aggregator.fleet.devices import Devices
from gangline.aggregator.fleet.tables import DeviceTable
from gangline.contract.frame import Stamp, decode, encode
from gangline.contract.signals import TABLES
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from gangline.ext.intake import Catalogue, Reader
from tests import veth
from tests.hosts.reading import rows_of
from tests.processes import GUARD_SECONDS, until

Row = dict[str, float | int | None] | None


class Heard:
    """Takes events like the spool, and makes a test wait for one."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[HealthEvent] = queue.SimpleQueue()
        self._passed_over: list[HealthEvent] = []
        self.teller = EventPublisher(SystemClock(), self, lambda: None)

    def put(self, event: HealthEvent) -> None:
        self.events.put(event)

    def wants(self, message: str) -> None:
        """Wait until the inventory is requested with this message, shortly after the event."""
        until(lambda: message in self.teller.take_inventory_request(), message)

    def until(self, device: str, code: int) -> HealthEvent:
        """Return the earliest event of *device* with *code* that was not returned yet."""
        for event in self._passed_over:
            if (event.device, event.code) == (device, code):
                self._passed_over.remove(event)
                return event
        while True:
            event = self.events.get(timeout=GUARD_SECONDS)
            if (event.device, event.code) == (device, code):
                return event
            self._passed_over.append(event)


@contextmanager
def listening(prefix: str) -> Iterator[tuple[LinkListener, Heard]]:
    """Yield a listener that knows all current links."""
    listened = Heard()
    listener = LinkListener(Roots(), is_watched=lambda link: link.name.startswith(prefix))
    listener.start(listened.teller)
    try:
        assert listener.ready.wait(GUARD_SECONDS)
        yield listener, listened
    finally:
        listener.close()
        # On a loaded machine `close` returns before the thread has ended.
        until(lambda: listener.name not in {t.name for t in threading.enumerate()}, "its end")


def choose(*names: str) -> Callable[[Path], dict[str, Path]]:
    return lambda sys: {n: sys / "class/net" / n for n in names if (sys / "class/net" / n).exists()}


def test_a_pair_is_plugged_flaps_and_is_pulled() -> None:
    """Each step is reported within moments, in order, and the inventory is requested again."""
    with listening("glh") as (listener, listened):
        listened.teller.take_inventory_request()
        with veth.pair("glh") as (name, peer):
            assert listened.until(name, 3).attributes["kind"] == "veth"
            listened.wants("appeared")
            listened.until(name, 1)
            veth.switch(peer, False)
            down = listened.until(name, 0)
            assert down.attributes["previous_state"] == "up"
            assert "switched_on" not in down.attributes  # the far end was switched
            assert listened.until(peer, 0).attributes["switched_on"] == "no"
            veth.switch(peer, True)
            assert listened.until(name, 1).attributes["previous_state"] == "down"
            listened.teller.take_inventory_request()
            veth.delete(name)
            gone = listened.until(name, 2)
            assert gone.boottime_ns <= SystemClock().boottime_ns() and gone.event_id
            listened.wants("removed")
        row = dict(rows_of(listener.collect()[0]))["host"]
        assert row is not None and row["malformed_count"] == 0 and row["overruns_events"] == 0
        assert row["transitions_events"] and row["transitions_events"] >= 6


def row_of(collector: CounterFileCollector, table: str, name: str) -> Row:
    blocks = {block.table: block for block in collector.collect()}
    return dict(rows_of(blocks[table])).get(name) if table in blocks else None


def test_a_pulled_interface_leaves_no_stale_values() -> None:
    """A NIC was pulled and its last speed and counters were sent for ten more seconds."""
    with veth.pair("gls") as (name, peer), veth.pair("glt") as (other, _):
        collector = net.net_1s(Roots(), choose(name, other))
        before = row_of(collector, "net_1s", name)
        assert before and before["carrier_state"] == 1 and before["operational_state"] == 6
        veth.switch(peer, False)
        down = row_of(collector, "net_1s", name)
        assert down and down["carrier_state"] == 0
        changes = row_of(collector, "net_1s_changes", name)
        assert changes and changes["carrier_down_events"] and changes["carrier_up_events"]
        veth.delete(name)
        blocks = collector.collect()
        assert [block.devices for block in blocks] == [(other,), (other,)]
        assert row_of(collector, "net_1s", other)
        veth.add(name, peer)  # under the same name, in the next second
        again = row_of(collector, "net_1s", name)
        assert again and again["counter_epoch_count"] != before["counter_epoch_count"]


def test_two_interfaces_that_change_their_names() -> None:
    """Each NIC's counters were in the other's row until a restart."""
    with veth.pair("gls") as (name, peer), veth.pair("glt") as (other, _):
        for interface in (name, peer, other):
            veth.switch(interface, False)  # older kernels do not rename active interfaces
        collector = net.net_1s(Roots(), choose(name, other))
        collector.collect()
        veth.rename(name, "glx0")
        veth.rename(other, name)
        veth.rename("glx0", other)
        for interface in (name, other):
            row = row_of(collector, "net_1s", interface)
            assert row and row["counter_epoch_count"] == veth.index_of(interface)


def test_a_replaced_interface_is_no_rate() -> None:
    """The new card had counted more than the old one: the difference was taken for traffic."""
    seen = Seen()
    with veth.pair("glr") as (name, peer):
        collector = net.net_1s(Roots(), choose(name))
        veth.send(name, 50)
        assert seen.packets(collector, name) == 0
        veth.send(name, 50)
        assert 40 < seen.packets(collector, name) < 80  # IPv6 sends some packets itself
        old = veth.index_of(name)
        veth.delete(name)
        veth.add(name, peer)
        for interface in (name, peer):
            veth.switch(interface, True)
        veth.wait_until_up(name)
        veth.send(name, 5000)
        assert max(seen.packets(collector, name) for _ in range(3)) < 80
        assert (seen.last["transmitted_packets"] or 0) >= 5000
        assert seen.last["counter_epoch_count"] == veth.index_of(name) != old
        veth.send(name, 500)
        assert 400 < seen.packets(collector, name) < 600


class Seen:
    """The aggregator's tables of one host, fed by a collector, one turn a second."""

    def __init__(self) -> None:
        self.devices = Devices("net")
        self.tables = {
            name: DeviceTable(name, TABLES[name], self.devices)
            for name in ("net_1s", "net_1s_changes")
        }
        self.reader = Reader(Catalogue(self._plan), decode)
        self.identity = DeviceIdentities(self.tables, {"net": self.devices})
        self.seconds = 0
        self.last: dict[str, float | int | None] = {}

    def _plan(self, name: str, ids: tuple[int, ...]) -> tuple[Any, ...]:
        known = [signal.signal_id for signal in self.tables[name].signals]
        columns = [known.index(identifier) for identifier in ids]
        return name, ids, -1, [-1] * len(ids), list(self.tables).index(name), columns, False, 0

    def _places(self, host: int, table: int, devices: tuple[str, ...]) -> Indexes:
        return list(self.tables.values())[table].ensure_rows(host, devices)

    def packets(self, collector: CounterFileCollector, name: str) -> float:
        """Run one turn; return the aggregator's recent count of sent packets."""
        self.seconds += 1
        now = self.seconds * 10**9
        for block in collector.collect():
            frame = self.reader.read(encode(Stamp(bytes(16), bytes(16), 1, now, 0), [block]))
            frame.put([table.cells for table in self.tables.values()], 0, 1, 10**9, self._places)
            self.last |= dict(rows_of(block))[name] or {}
        self.identity.advance()
        for table in self.tables.values():
            table.advance(table.pending_rows())
        table = self.tables["net_1s"]
        listened = table.age_seconds(np.array([1], dtype=np.int32), np.array([now]))
        return float(table.recent("transmitted_packets", listened)[0])


def test_the_driver_is_asked_and_the_gone_interface_costs_no_neighbour() -> None:
    """An interface vanished between list and ioctl: its row is empty, the others are complete."""
    with veth.pair("gle") as (name, _), veth.pair("glf") as (other, _):
        listed = {n: Path("/sys/class/net") / n for n in (name, other)}
        for make in (NicStatistics, LinkDetails):
            collector = make(Roots(), lambda sys: dict(listed))
            first = run_collector(collector, SystemClock())
            assert first.outcome is CollectOutcome.OK, first.message
            rows = dict(rows_of(first.blocks[0]))
            assert all(rows[n] for n in (name, other))
            if make is LinkDetails:
                row = rows[name]
                assert row and row["detected_state"] == 1
                assert row["speed_bytes_per_second"] == 1.25e9 and row["duplex_state"] == 1
                assert row["fec_active_code"] is None  # veth has no FEC: missing, not zero
                veth.delete(name)
                collector._interfaces.refresh = lambda: False  # type: ignore[method-assign]
                rows = dict(rows_of(collector.collect()[0]))
                assert rows[name] is None and rows[other]


@pytest.mark.slow
def test_a_storm_of_messages_is_resynchronised() -> None:
    """ENOBUFS, injected: all links are requested again, it is counted, and changes are reported."""
    lost: list[int] = []

    class Lossy(LinkSocket):
        def receive(self) -> bytes | None:
            data = super().receive()
            if data and lost and lost.pop():
                raise Overrun
            return data

    listened = Heard()
    with veth.pair("glo") as (name, peer):
        listener = LinkListener(
            Roots(),
            open_socket=Lossy,
            is_watched=lambda link: link.name in (name, peer, f"{name}x"),
        )
        listener.start(listened.teller)
        try:
            assert listener.ready.wait(GUARD_SECONDS)
            lost += [1] * 8
            veth.switch(peer, False)
            assert listened.until(name, 0).attributes["previous_state"] == "up"
            assert listener.overruns >= 1
        finally:
            listener.close()


class Breaks(LinkSocket):
    def receive(self) -> bytes | None:
        raise OSError(5, "Input/output error")


def refuse() -> LinkSocket:
    raise OSError(97, "Address family not supported by protocol")


@pytest.mark.parametrize(
    ("open_socket", "error", "message"),
    [
        (refuse, AccessDenied, "RestrictAddressFamilies=AF_NETLINK"),
        (Breaks, RuntimeError, "ended"),
    ],
    ids=[
        "a unit's RestrictAddressFamilies=",
        "the thread died, its last numbers were sent forever",
    ],
)
def test_a_listener_without_netlink(
    open_socket: Callable[[], LinkSocket], error: type[Exception], message: str
) -> None:
    listener = LinkListener(Roots(), open_socket=open_socket)
    listener.start(Heard().teller)
    listener._thread and listener._thread.join(GUARD_SECONDS)  # type: ignore[func-returns-value]
    with pytest.raises(error, match=message):
        listener.collect()
    listener.close()


def test_a_host_that_is_a_folder_tells_nothing(tmp_path: Path) -> None:
    """A recorded host's links are not this machine's."""
    roots = Roots(tmp_path, tmp_path)
    listener = LinkListener(roots)
    listener.start(Heard().teller)
    for collector in (listener, NicStatistics(roots), LinkDetails(roots)):
        with pytest.raises(NoData):
            collector.collect()
    listener.close()
