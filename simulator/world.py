"""The world: events from a scenario's name and a seed, and the hosts' readings on request."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np

from ..agent.frame_builder import FrameBuilder
from ..contract.signals import TABLES as ALL
from ..contract.wire import telemetry_pb2
from .event_readings import RankEvents, incident_events
from .faults import Ints
from .incidents import Rows
from .machine import SimulatedMachine
from .physics import FleetHardware
from .readings import SCORED_TABLES as JUDGED
from .readings import FullHostTables, WindowReadings
from .scenario import HOSTS_MAX, Scenario, ScenarioError, WorldSettings
from .scenario_file import load
from .schedule import WorldSchedule, build_schedule
from .topology import HostLocation
from .window import SimulationWindow, StepState

SECOND_NS = 1_000_000_000
STEP_SECONDS = 10.0
#: Default beginning of a world: later than any data in the store of a real fleet.
START_WALL_NS = 1_900_000_000 * SECOND_NS


class Delivery(NamedTuple):
    """Data that one host's agent sends at one step."""

    host: str
    boot_id: bytes
    booted_ns: int  # by the world's clock
    starts: int  # starts of its agent since the world began: after each it registers again, in the same boot or another
    frame: bytes
    events: list[telemetry_pb2.HealthEvent]


@dataclass(frozen=True, slots=True)
class WorldStep:
    """Arriving data of some hosts at one moment. Silent hosts are left out."""

    seconds: float
    now_ns: int
    deliveries: list[Delivery]


class World:
    """A fleet over months. The same scenario, seed and hosts give the same bytes."""

    def __init__(
        self,
        scenario: str,
        seed: int,
        *,
        hosts: int | None = None,
        settings: WorldSettings | None = None,
        start_wall_ns: int = START_WALL_NS,
    ) -> None:
        """*hosts*: replaces the scenario's number. Raises ScenarioError for an invalid world."""
        self.settings = settings or load()
        self.scenario = _resized(self.settings.scenario(scenario), hosts)
        if seed < 0:
            raise ScenarioError(f"seed {seed}: expected 0 or more")
        self.seed, self.start_wall_ns = seed, start_wall_ns
        self.schedule: WorldSchedule = build_schedule(self.settings, self.scenario, seed)
        self.hardware = FleetHardware(
            self.settings.spread, seed, self.scenario.hosts, self.scenario.amd_ratio
        )

    @property
    def seconds(self) -> float:
        """Length of the world."""
        return self.schedule.seconds

    @property
    def machines(self) -> Sequence[SimulatedMachine]:
        """All hosts, in order."""
        return self.hardware.machines

    @property
    def names(self) -> list[str]:
        return [machine.name for machine in self.machines]

    def location(self, host: int) -> HostLocation:
        return self.schedule.topology.location(host)

    def labels(self, host: int) -> dict[str, str]:
        """Return a host's location labels, by its index, in the form of an operator's `labels`."""
        fields = asdict(self.location(host))
        rails = " ".join(fields.pop("rails"))
        return {f"gangline.{name}": value for name, value in (*fields.items(), ("rails", rails))}

    def devices(self, host: int) -> list[telemetry_pb2.Device]:
        """Return the devices that a host registers, by its index."""
        return self.machines[host].inventory()

    def run_id(self, host: int) -> bytes:
        """Return the id of a host's spool, which is the same across boots and restarts."""
        return self._bytes("run", host)

    def boot(self, host: int, seconds: float) -> tuple[bytes, float]:
        """Return a host's boot id, and its boot time: seconds of the world, negative before its beginning."""
        boots, booted = self.schedule.last_boot(host, seconds)
        if not boots:
            booted = -float(np.round(self.hardware.uptime_seconds[host]))
        return self._bytes("boot", host, boots), booted

    def _bytes(self, *parts: object) -> bytes:
        text = " ".join(str(each) for each in (self.seed, *parts))
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    def open(
        self, hosts: Sequence[int], begin: float, end: float, uptime_seconds: float | None = None
    ) -> WorldView:
        """Return a view of *hosts* (indexes) from *begin* to *end*, in seconds of the world.

        *uptime_seconds*: uptime of all hosts at *begin*; the view has all their tables. None: only tables for
        judgement.
        """
        return WorldView(self, np.array(hosts, np.int64), begin, end, uptime_seconds)

    def frames(
        self, hosts: Sequence[int], begin: float, end: float, step_seconds: float = STEP_SECONDS
    ) -> Iterator[WorldStep]:
        """Yield the data that *hosts* send from *begin* to before *end*: frames as on the wire, and events.

        Volatile counters start at *begin*, or at a later boot of the host: each call begins as with a fleet that the
        reader has not seen before.
        """
        view = self.open(hosts, begin, end)
        edges = _restart_times(self)
        senders = [_AgentSender(self, host, edges.get(host, [])) for host in view.hosts.tolist()]
        steps = int(np.ceil((end - begin) / step_seconds))
        before = -1.0
        for number in range(steps):
            seconds = begin + number * step_seconds
            moment = view.step(seconds)
            now_ns = self.start_wall_ns + round(seconds * 1e9)
            found = [
                sender.deliver(view, slot, moment, before)
                for slot, sender in enumerate(senders)
                if not moment.silent[slot]
            ]
            before = seconds
            yield WorldStep(seconds, now_ns, found)


class WorldView:
    """Some hosts over a span: their blocks and events, step by step."""

    def __init__(
        self, world: World, hosts: Ints, begin: float, end: float, uptime_seconds: float | None
    ) -> None:
        self.world, self.hosts = world, hosts
        schedule = world.schedule
        is_full = uptime_seconds is not None
        self._window = SimulationWindow(
            schedule, world.hardware, world.seed, hosts, begin, end, is_full
        )
        rows = schedule.rows
        earlier = np.isin(
            rows["cls"], [n for n, c in enumerate(schedule.classes) if c.name == "hbm"]
        )
        earlier &= rows["begin"] + rows["onset"] < begin
        self._rank_events = RankEvents(world.machines, world.schedule.jobs, hosts)
        tables = JUDGED if uptime_seconds is None else ALL
        self.readings = WindowReadings(
            self._window, world.hardware, hosts.size, rows[earlier], tables
        )
        self._full_tables: FullHostTables | None = None
        if uptime_seconds is not None:
            self._full_tables = FullHostTables(
                self.readings.tables, world.seed, hosts.size, uptime_seconds
            )
        self._pending_events: dict[int, list[telemetry_pb2.HealthEvent]] = {}

    def step(self, seconds: float) -> StepState:
        """Advance to *seconds*, which must be later than before."""
        moment = self._window.step(seconds)
        self.readings.publish(moment)
        self._pending_events = {}
        for row in moment.due_incidents:
            for event in self._events(row):
                self._pending_events.setdefault(int(row["host"]), []).append(event)
        if self._full_tables is not None:
            xids = {slot: len(self.events(slot)) for slot in range(self.hosts.size)}
            self._full_tables.publish(moment, self._window.physics.counters, xids)
        for host, event in self._rank_events.step(moment):
            self._pending_events.setdefault(host, []).append(event)
        return moment

    def events(self, slot: int) -> list[telemetry_pb2.HealthEvent]:
        """Return the host's events since the previous step; no clock is set."""
        return self._pending_events.get(int(self.hosts[slot]), [])

    def _events(self, row: np.void) -> Iterator[telemetry_pb2.HealthEvent]:
        each = self.world.schedule.classes[int(row["cls"])]
        machine = self.world.machines[int(row["host"])]
        return incident_events(
            each, machine, int(row["cause"]), int(row["part"]), float(row["variant"])
        )


class _AgentSender:
    """Agent of one host: its run, its boot, its frames."""

    def __init__(self, world: World, host: int, edges: list[float]) -> None:
        """*edges*: begins of further boots and agent runs."""
        self._world, self._host, self._name = world, host, world.machines[host].name
        self._edges = edges
        self._starts = -1
        self._boot_id, self._booted_seconds, self._sequence = b"", 0.0, 0
        self._framer = FrameBuilder(bytes(16), bytes(16))

    def deliver(self, view: WorldView, slot: int, moment: StepState, before: float) -> Delivery:
        """Return the host's data at this step; after a start all tables, as in an agent's first turn."""
        seconds = moment.seconds
        edge = bisect_right(self._edges, seconds)
        if edge != self._starts:
            self._starts, before = edge, -1.0
            self._boot_id, self._booted_seconds = self._world.boot(self._host, seconds)
            self._framer = FrameBuilder(self._world.run_id(self._host), self._boot_id)
        self._sequence += 1
        boottime_ns = round((seconds - self._booted_seconds) * 1e9)
        offset = round(float(moment.gauges.effects.offset_seconds[slot]) * 1e9)
        now_ns = self._world.start_wall_ns + round(seconds * 1e9)
        blocks = view.readings.blocks(slot, before, seconds)
        frame = self._framer.build(self._sequence, boottime_ns, now_ns + offset, blocks)
        new_events = view.events(slot)
        for event in new_events:
            event.boottime_ns, event.wall_time_ns = boottime_ns, now_ns + offset
        booted_ns = self._world.start_wall_ns + round(self._booted_seconds * 1e9)
        return Delivery(self._name, self._boot_id, booted_ns, edge, frame, new_events)


def _restart_times(world: World) -> dict[int, list[float]]:
    """Return the begins of further boots and agent runs, by host."""
    rows: Rows = world.schedule.rows
    number = next(
        (n for n, c in enumerate(world.schedule.classes) if c.name == "agent_restart"), -1
    )
    found: dict[int, list[float]] = {}
    for row in rows[rows["cls"] == number]:
        found.setdefault(int(row["host"]), []).append(float(row["begin"]))
    for host, absences in world.schedule.downtimes_by_host.items():
        found.setdefault(host, []).extend(away.end for away in absences)
    return {host: sorted(edges) for host, edges in found.items()}


def _resized(scenario: Scenario, hosts: int | None) -> Scenario:
    if hosts is None:
        return scenario
    if not 1 <= hosts <= HOSTS_MAX:
        raise ScenarioError(f"hosts {hosts}: expected 1 to {HOSTS_MAX}")
    return replace(scenario, hosts=hosts)
