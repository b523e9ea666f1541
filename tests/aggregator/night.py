"""A night in a simulated fleet of eight hosts, the same in every run: what `docs/sql.md` is about.

Time is handed in, readings are of the simulated world's three faults, and what that has no fault for is put over them
here. The hosts step in pairs, so that the dead one does not hide the slow one; who runs there is told here too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gangline.agent.framing import Framer
from gangline.agent.simulated import parts
from gangline.agent.simulated.world import World, truth
from gangline.agent.simulated.world.live import LiveWorld
from gangline.agent.simulated.world.loading import load
from gangline.agent.simulated.world.ranks import EVENT as PROCESS
from gangline.agent.simulated.world.settings import Settings
from gangline.aggregator.advice.book import Book
from gangline.aggregator.advice.events import PutBack, TakenOut
from gangline.aggregator.advice.gangs import Gang, Gangs
from gangline.aggregator.advice.limits import Limits
from gangline.aggregator.advice.observing import Observer
from gangline.aggregator.advice.rows import Happened
from gangline.aggregator.advice.works import Works
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.declared.model import Declared
from gangline.aggregator.declared.reading import File, parse
from gangline.aggregator.declared.record import put_places, put_version
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.hazard.features import FEATURES
from gangline.aggregator.hazard.model import HazardModel
from gangline.aggregator.hazard.models import Trained
from gangline.aggregator.hazard.models import keep as put_model
from gangline.aggregator.history import parts as history_parts
from gangline.aggregator.ingest.findings import Findings
from gangline.aggregator.ingest.reading import received
from gangline.aggregator.judgement.judge import Judgement, judge
from gangline.aggregator.store.hostclocks import ClockRecord, put
from gangline.aggregator.store.journal import StoredEvent
from gangline.aggregator.store.records import HostRecord
from gangline.aggregator.store.scorelog import ScoreLog
from gangline.aggregator.store.store import Store
from gangline.fingerprints.block import Block
from gangline.fingerprints.catalogue import TABLES
from gangline.fingerprints.wire import telemetry_pb2 as wire

SECOND_NS = 1_000_000_000
#: 2023-11-14 22:13:20 UTC
START_NS = 1_700_000_000 * SECOND_NS
SECONDS = 240
UPTIME_NS = 5 * 3600 * SECOND_NS
HOSTS, SEED, FAULTS_SECONDS = 8, 4050, (60.0, 70.0)
SILENT, SILENT_AFTER = "sim-005", 150
FLAPPING, REMAPPING, OLD_DRIVER, WRONG_CLOCK = "sim-002", "sim-001", "sim-003", "sim-007"
FLAPS = (100, 130, 190)
DRIVERS = {OLD_DRIVER: "570.124.06"}
BOOT_ID, RUN_ID = b"B" * 16, b"R" * 16

#: What rollups of these readings say; without waiting for them to be exported.
ROLLUPS = "".join(
    f"""
CREATE OR REPLACE VIEW rollups.gpu_1s_{grain} AS SELECT
    host, device, date_trunc('{unit}', time) AS time, count(*) AS readings_count,
    avg(sm_clock_hertz) AS sm_clock_hertz_mean, min(sm_clock_hertz) AS sm_clock_hertz_min,
    avg(power_watts) AS power_watts_mean, max(power_watts) AS power_watts_max,
    max(temperature_celsius) AS temperature_celsius_max,
    avg(utilization_ratio) AS utilization_ratio_mean,
    bit_or(clock_event_reasons_flags) AS clock_event_reasons_flags_any,
    max(violation_thermal_nanoseconds) - min(violation_thermal_nanoseconds)
        AS violation_thermal_nanoseconds_increase
FROM readings.gpu_1s GROUP BY ALL;
"""
    for grain, unit in (("1m", "minute"), ("1h", "hour"))
)


#: What the aggregator told of itself: for half a minute it did not keep up.
OWN = [
    (START_NS + second * SECOND_NS, figure, value, "")
    for second in range(0, SECONDS, 15)
    for figure, value in (
        ("lag_seconds", 12.5 if 90 <= second < 120 else 0.5),
        ("queue_ratio", 0.31 if 90 <= second < 120 else 0.0),
    )
]


#: What was measured of hosts' clocks: one is behind.
CLOCKS = [
    ClockRecord(name, -3.2 if name == WRONG_CLOCK else 0.004, 0.03, START_NS + 90 * SECOND_NS)
    for name in (f"sim-{number:03}" for number in range(HOSTS))
]


#: What the operators of this fleet declared. One host's own label disagrees with it, and it lacks a memory module; one has no agent.
MOVED, MEMORY_BYTES = "sim-002", 2 << 40
DECLARED = File(
    "fleet.toml",
    b"""time_zone = "UTC"
[[place]]
hosts = ["sim-[000-003]"]
rack = "r1"
power_domain = "pdu-1"
leaf = "leaf-1"
spine = "spine-1"
[[place]]
hosts = ["sim-[004-007]"]
rack = "r2"
power_domain = "pdu-2"
leaf = "leaf-2"
spine = "spine-1"
[[expected]]
name = "8 x H100"
model = "NVIDIA H100*"
gpus = 8
gpu_memory_gigabytes_min = 79
gpu_pcie_width_lanes = 16
nvlinks_per_gpu = 18
rdma_ports = 8
rdma_port_gigabits_per_second = 400
memory_gigabytes_min = 2160
[[maintenance]]
racks = ["r2"]
begin = 2023-11-18T08:00:00
end = 2023-11-18T12:00:00
who = "alice"
why = "new power feed"
[[override]]
hosts = ["sim-[004-007]"]
rule = "net.flaps"
until = 2023-11-30
who = "bob"
why = "the management switch is replaced"
[[override]]
hosts = ["sim-*"]
rule = "hardware.*"
until = 2023-11-30
who = "bob"
why = "modules are on order"
rollout = 0.2
[thresholds]
"host.cpu_steal_ratio" = 0.2
[[place]]
hosts = ["spare-01"]
rack = "r3"
""",
)


def _put_declared(live: Any, declared: Declared) -> None:
    put_version(live, declared, [DECLARED], START_NS)
    put_places(live, declared)


def _put_models(live: Any) -> None:
    """A model was trained a week ago, and yesterday one that tells worse."""
    model = HazardModel(
        "the store; ranking: made up", False, "all classes", -6.2, (0.9, *[0.0] * (len(FEATURES) - 1)),
        first_time="2023-05-01 00:00:00", last_time="2023-11-07 09:00:00", nodes=HOSTS, faults=31,
        metrics={"auc": 0.62, "recall": 0.21, "ece": 0.009}, calibration=((0.01, 0.012), (0.05, 0.043)),
    )  # fmt: skip
    worse = replace(model, last_time="2023-11-13 09:00:00", faults=32)
    words = "log loss of the last 28 days 0.09120, {} 0.09{}"
    better = Trained(model, True, words.format("the prior of published rates", "340"))
    refused = words.format("the one in use (of 2023-11-07 09:00:00)", "070")
    for days, one in ((7, better), (1, Trained(worse, False, f"{refused}: worse, so that the one in use stays"))):  # fmt: skip
        put_model(live, (START_NS - days * 86_400 * SECOND_NS) // 1000, one)


def _put_days(live: Any) -> None:
    """What was measured at three past midnight, of one host, on three days: its hottest GPU came nearer to its limit."""
    live.execute(
        "INSERT INTO host_days (host, day, time, corrected_errors, headroom_celsius) SELECT 'sim-006', t::DATE, "
        "t + INTERVAL 3 MINUTE, 0.0, 14.0 + 3 * d FROM (SELECT d, date_trunc('day', make_timestamp($1)) - to_days(d::INT) AS t "
        "FROM range(3) AS r(d))",
        [START_NS // 1000],
    )


def _put_parts(live: Any, broken: str) -> None:
    """Where parts are, and that one GPU was in another host until yesterday."""
    history_parts.see(live, [f"sim-{number:03}" for number in range(HOSTS)])
    live.execute(
        "INSERT INTO main.parts SELECT 'gpu', $1, 'sim-002', '0000:43:00.0', t - INTERVAL 30 DAY, "
        "t - INTERVAL 19 HOUR, false FROM (SELECT make_timestamp($2) AS t)",
        [broken, START_NS // 1000],
    )


def _settings() -> Settings:
    """Return the file's world with its three faults later, and in pairs of hosts."""
    settings = load()
    scenario = settings.scenario("three")
    pairs = replace(scenario.jobs or settings.jobs, hosts=(2,), weights=(1.0,))
    scenario = replace(scenario, stage_seconds=FAULTS_SECONDS, jobs=pairs)
    return replace(settings, scenarios={scenario.name: scenario})


@dataclass
class Night:
    """The fleet, its judge and its store, a second at a time."""

    store: Store
    now_ns: int = START_NS
    fleet: Fleet = field(default_factory=lambda: Fleet(epoch=7))
    seen: Judgement | None = None

    def __post_init__(self) -> None:
        self.simulated = LiveWorld(World("three", SEED, hosts=HOSTS, settings=_settings()))
        self.findings, self.scores = Findings(self.fleet), ScoreLog()
        self.framers = {name: Framer(RUN_ID, BOOT_ID) for name in self.simulated.names}
        self.gpus = {m.name: m.gpus for m in self.simulated.world.machines}
        for name in self.simulated.names:
            self._register(name)
        declared = parse([DECLARED], START_NS, number=1)
        self.fleet.declared = declared.with_told(self.fleet.told.settle())
        self._before()

    def _register(self, name: str) -> None:
        """Register a host as if it were real: of a simulated one silence is no news."""
        devices = [*_inventory(self.simulated, name), *_around(self.gpus[name])]
        labels = {"hostname": name, "kernel": "6.8.0-48-generic",
                  "nvidia_driver_version": DRIVERS.get(name, "580.65.06")}  # fmt: skip
        labels["memory_bytes"] = str(MEMORY_BYTES)
        if name == MOVED:
            labels |= {"gangline.leaf": "leaf-2", "memory_bytes": str(MEMORY_BYTES - (64 << 30))}
        index = self.fleet.register(name, simulated=False, boot_id=BOOT_ID, devices=devices,
                                    booted_ns=START_NS - UPTIME_NS, labels=labels)  # fmt: skip
        told = tuple((d.kind, d.key, dict(d.attributes)) for d in devices)
        self.store.submit_host(
            HostRecord(
                name, index, False, RUN_ID, BOOT_ID, "0.2", "10.0.0.1", labels, START_NS, told
            ),
            {},
        )

    def _before(self) -> None:
        """What was before: who runs, and a fault of yesterday of a GPU that was in another host then."""
        rank = 0
        for name, gpus in self.gpus.items():
            for gpu in gpus:
                job = {"state": "running", "source": "slurm", "job_id": "123", "step": "0",
                       "rank": str(rank), "world_size": str(HOSTS * parts.GPUS)}  # fmt: skip
                self._process(name, gpu, 4000 + rank, job, minutes_ago=50)
                rank += 1
        host, gpu = self.struck("thermal")
        other = {"state": "ended", "source": "slurm", "job_id": "119", "rank": "0"}
        self._process(host, gpu, 3200, other, minutes_ago=170)
        pod = {"state": "held", "namespace": "ml", "pod": "notebook-0", "container": "main"}
        self.event("sim-003", "gpu.allocation", self.gpus["sim-003"][0], attributes=pod)
        _, broken = self.struck("hbm")
        self.event("sim-002", "gpu.xid", broken, code=94, ago_seconds=20 * 3600,
                   message="NVRM: Xid (PCI:0000:43:00): 94, Contained memory error")  # fmt: skip

    def struck(self, class_name: str) -> tuple[str, str]:
        """Return the host and the part that a class strikes."""
        told = map(json.loads, truth.lines(self.simulated.world))
        ((host, part),) = (
            pair for one in told if one.get("class") == class_name for pair in one["struck"]
        )
        return host, part

    def _process(
        self, host: str, gpu: str, pid: int, attributes: dict[str, str], minutes_ago: int
    ) -> None:
        started_ns = UPTIME_NS - minutes_ago * 60 * SECOND_NS
        self.event(host, "gpu.process", gpu, process_id=pid, process_name="python3",
                   attributes=attributes | {"start_nanoseconds": str(started_ns)})  # fmt: skip

    def event(
        self, host: str, name: str, device: str, *, ago_seconds: int = 0, **more: Any
    ) -> None:
        """Tell an event of *ago_seconds* ago."""
        at_ns = self.now_ns - ago_seconds * SECOND_NS
        boot = "" if ago_seconds else BOOT_ID.hex()
        one = wire.HealthEvent(
            event_id=f"{boot}/{name}/{device}/{more.get('process_id', at_ns)}",
            device_kind=name.partition(".")[0], device=device, name=name, count=1,
            wall_time_ns=at_ns, boottime_ns=max(1, at_ns - START_NS + UPTIME_NS), **more,
        )  # fmt: skip
        self._tell(host, one, at_ns)

    def _tell(self, host: str, one: wire.HealthEvent, at_ns: int) -> None:
        self.fleet.event(host, one, at_ns, at_ns)
        self.store.append_events([StoredEvent(host, at_ns, at_ns, one)])

    def run(self) -> None:
        """Let the night pass."""
        for second in range(1, SECONDS + 1):
            self.now_ns = START_NS + second * SECOND_NS
            self._happen(second)
            for name, blocks, events in self.simulated.step(1.0):
                self._hear(name, blocks, second)
                for one in (event for event in events if event.name != PROCESS):
                    one.boottime_ns = self.now_ns - START_NS + UPTIME_NS
                    one.wall_time_ns = self.now_ns
                    self._tell(name, one, self.now_ns)
            self._judge()

    def _happen(self, second: int) -> None:
        if second == 90:
            words = "its clock is 3.2 s behind ours: readings are stored under our time; look at its NTP"
            self.findings.find(WRONG_CLOCK, "clock.offset", words, self.now_ns, expires=False)
        if second in FLAPS:
            told = {"operational": "down", "history": "down up"}
            self.event(FLAPPING, "net.link", "eth0", code=0, attributes=told,
                       message="carrier lost")  # fmt: skip

    def _hear(self, name: str, blocks: list[Block], second: int) -> None:
        if name == SILENT and second > SILENT_AFTER:
            return
        for block in blocks:
            _put_over(name, block, second)
        boottime_ns = self.now_ns - START_NS + UPTIME_NS
        data = self.framers[name].frame(second, boottime_ns, self.now_ns, blocks)
        frame = received(data)
        self.fleet.observe(name, frame, self.now_ns)
        assert self.store.submit_frame(name, frame, START_NS - UPTIME_NS, lambda _: None)

    def _judge(self) -> None:
        self.seen = judge(self.fleet, self.now_ns, self.seen)
        self.store.submit_scores(self.seen, self.scores.changed(self.seen))
        self.store.submit_findings(self.findings.changes(self.now_ns))


def _inventory(simulated: LiveWorld, name: str) -> Iterator[wire.Device]:
    for device in simulated.devices(name):
        if device.kind == "gpu":
            device.attributes["driver"] = DRIVERS.get(name, "580.65.06")
            device.attributes["vbios"] = "96.00.99.00.01"
        yield device


def _around(gpus: tuple[str, ...]) -> Iterator[wire.Device]:
    """What a real agent's inventory tells beside: the PCIe function of each GPU, and its NVLinks."""
    for at, gpu in enumerate(gpus):
        near = {"numa_node": str(parts.NUMA_NODES[at]), "nearest_rdma": parts.RDMA_PORTS[at],
                "nearest_rdma_at": "same switch"}  # fmt: skip
        yield wire.Device(kind="pcie", key=parts.GPU_ADDRESSES[at], attributes=near)
        for link in range(parts.LINKS):
            far = {"gpu": gpu, "active": "1", "remote_kind": "switch",
                   "remote_pci_address": f"0000:{7 + link % 4:02x}:00.0"}  # fmt: skip
            yield wire.Device(kind="nvlink", key=f"{gpu}/link{link}", attributes=far)


def _put_over(name: str, block: Block, second: int) -> None:
    """Put the faults over the readings that the simulated world has none for."""
    if name == FLAPPING and block.table == "net_1s_changes":
        _put(block, 0, carrier_down_events=sum(second >= at for at in FLAPS))
    if name == FLAPPING and block.table == "rdma_1s_changes":
        _put(block, 2, link_downed_events=sum(second >= at for at in FLAPS[1:]))
    if name == REMAPPING and block.table == "gpu_10s_changes" and second >= 110:
        _put(block, 4, remap_pending_state=1, remapped_uncorrectable_rows=1)


def _put(block: Block, row: int, **values: int) -> None:
    columns = [signal.column for signal in TABLES[block.table]]
    for column, value in values.items():
        block.put_int(columns.index(column), row, value)


def _advise(store: Store, one: Night) -> None:
    """Advise in shadow mode on what stood at the night's end, and tell how a job ended beside it."""
    assert one.seen is not None
    gangs = Gangs()
    works = Works(one.fleet, gangs)
    observer = Observer(lambda: one.fleet.declared, works)
    limits = Limits(
        gather_seconds=0.0, cluster_share_max=1.0, rack_hosts_max=HOSTS, job_hosts_max=HOSTS
    )
    book = Book(store, limits, observer, one.now_ns, shadow=True, gangs=gangs)
    until_ns = one.now_ns + 3600 * SECOND_NS
    gang = Gang("123", tuple(one.fleet.names), 64, 1800.0, until_ns, "slurm", one.now_ns)
    book.take_gangs([gang], [])
    member = works.member("sim-007")
    assert member is not None
    out = TakenOut(one.now_ns, "slurm", "burn-in after a new NIC", until_ns, (member,))
    book.take_out([out], PutBack(one.now_ns, "slurm", ()))
    for seconds in (0, 5):  # a case waits a moment for others of the same cause
        later = replace(one.seen, computed_ns=one.now_ns + seconds * SECOND_NS)
        book.observe(later, one.fleet.gpus)
    asyncio.run(book.flush())
    first = next(iter(book.machine.memory.advisories.values()))
    now_us = one.now_ns // 1000
    row = (
        now_us, "job-7/1", first.name, "slurm", "job-7", [*first.hosts], now_us - 3_600_000_000, now_us, True,
        first.hosts[0], "node failed", False, 12.0, 1.0, 0.02, first.reason,
    )  # fmt: skip
    book.take_outcomes([Happened("job-7/1", True, 0.02, row, 1)])
    asyncio.run(book.flushed())


@contextmanager
def night(folder: Path) -> Iterator[Night]:
    """Yield a night that has passed; the store and the operators' file are in *folder* once it is left."""
    clock_ns = [START_NS]
    config = AggregatorConfig(data=folder, ops_seconds=3600.0)
    store = Store.open(folder, config, lambda: clock_ns[0])
    try:
        one = Night(store)
        one.run()
        clock_ns[0] = START_NS + SECONDS * SECOND_NS + SECOND_NS // 2
        store.submit_own(OWN)
        _advise(store, one)
        store.in_transaction(lambda live: put(live, CLOCKS))
        store.in_transaction(_put_models)
        store.in_transaction(_put_days)
        store.in_transaction(lambda live: _put_declared(live, one.fleet.declared))
        store.in_transaction(lambda live: live.execute(ROLLUPS))
        store.in_transaction(lambda live: _put_parts(live, one.struck("hbm")[1]))
        yield one
    finally:
        store.close(60.0)
