"""Faults of AMD GPUs, from sysfs to the score, found by the same rules as NVIDIA's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gangline.agent.collector import run_collector
from gangline.agent.frame_builder import FrameBuilder
from gangline.agent.inventory.amd_gpus import amd_devices
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.model import HealthState, HostScore
from gangline.aggregator.query import sandbox
from gangline.aggregator.scoring.evaluate import Judgement, evaluate
from gangline.aggregator.scoring.score_rows import with_gpu_states
from gangline.aggregator.store.rows import HostRecord
from gangline.aggregator.store.store import Store
from gangline.contract.block import Block
from gangline.contract.signal import PERIOD_SECONDS
from gangline.contract.wire import telemetry_pb2
from tests.agent.amd_host import NAMES, SECOND_NS, AmdHost
from tests.aggregator.query.asking import rows_of
from tests.amd_metrics import Value
from tests.worlds import START_NS, UPTIME_NS, World, gpu_of

CLOCK_MEGAHERTZ, WATTS = 2050, 640
REVISION = "1.8"


class AmdFleet:
    """Folders that the agent's collectors read and the aggregator judges, second by second."""

    def __init__(self, root: Path, hosts: int = 3, folder: Path | None = None) -> None:
        self.fleet = Fleet(epoch=7)
        self.now_ns, self.second = START_NS, 0
        self.snapshot: Judgement | None = None
        self.hosts = [AmdHost(root / f"amd{number}") for number in range(hosts)]
        self.names = [f"amd{number}" for number in range(hosts)]
        self.builders = [FrameBuilder(b"R" * 16, bytes([n + 1]) * 16) for n in range(hosts)]
        self.tables: list[dict[str, Value]] = [{} for _ in range(8 * hosts)]
        self.grow: list[dict[str, int]] = [{} for _ in range(8 * hosts)]
        self.store: Store | None = None
        if folder is not None:
            config = AggregatorConfig(data=folder, ops_seconds=3600.0)
            self.store = Store.open(folder, config, lambda: self.now_ns)
        for number, host in enumerate(self.hosts):
            self._rename(host, number)
            self.register(number)
            for gpu in range(8):
                self.tables[8 * number + gpu] = self._well(number, gpu)

    @staticmethod
    def _rename(host: AmdHost, number: int) -> None:
        """Give the GPUs of *host* unique ids and no faults."""
        for gpu in range(8):
            path = host.folder(gpu)
            (path / "unique_id").write_text(f"{number + 1:08x}{gpu + 1:08x}\n")
            (path / "ras/umc_err_count").write_text("ue: 0\nce: 0\nde: 0\n")
            (path / "ras/xgmi_wafl_err_count").write_text("ue: 0\nce: 0\nde: 0\n")
            (path / "ras/gpu_vram_bad_pages").write_text("")
        host.session.gpus = ()
        host.session._next_check_ns = 0
        host.session._listed_ns = -(10**12)

    def _well(self, number: int, gpu: int) -> dict[str, Value]:
        return {
            "curr_socket_power": WATTS + gpu, "average_gfx_activity": 100, "average_umc_activity": 40,
            "temperature_hotspot": 60, "temperature_mem": 50, "current_gfxclk": [CLOCK_MEGAHERTZ + gpu - number] * 8,
            "current_uclk": 1300, "pcie_link_width": 16, "pcie_link_speed": 320, "energy_accumulator": 2**40,
            "accumulation_counter": 10**6, "firmware_timestamp": 10**12, "ppt_residency_acc": 0,
            "prochot_residency_acc": 0, "socket_thm_residency_acc": 0, "hbm_thm_residency_acc": 0,
            "vr_thm_residency_acc": 0, "pcie_replay_count_acc": 3, "pcie_nak_rcvd_count_acc": 0,
            "xgmi_link_status": [0xFFFF, *[1] * 7], "xgmi_link_width": 16, "xgmi_link_speed": 32,
            "xgmi_read_data_acc": [2**64 - 1, *[10**9] * 7], "xgmi_write_data_acc": [2**64 - 1, *[10**9] * 7],
            "num_partition": 1, "gfx_busy_inst/0": [100] * 8,
        }  # fmt: skip

    def register(self, number: int) -> None:
        """Register a host with the GPUs that its inventory lists."""
        host, name = self.hosts[number], self.names[number]
        listed = amd_devices(host.host.roots)
        devices = [
            telemetry_pb2.Device(kind=d.kind, key=d.key, attributes=d.attributes) for d in listed
        ]
        boot = bytes([number + 1]) * 16
        self.fleet.register(name, simulated=False, boot_id=boot, devices=devices)
        if self.store is not None:
            stored_devices = tuple((d.kind, d.key, dict(d.attributes)) for d in listed)
            record = HostRecord(
                name, number, False, b"R" * 16, boot, "", "", {}, self.now_ns, stored_devices
            )
            self.store.submit_host(record, {})

    def run(self, seconds: int, each: Callable[[], None] | None = None) -> Judgement:
        """Advance the clock; judge every second of the last ten, before them every fifth."""
        for passed in range(seconds):
            if each:
                each()
            self.second += 1
            self.now_ns += SECOND_NS
            for number in range(len(self.hosts)):
                self._advance(number)
            if seconds - passed <= 10 or self.second % 5 == 0:
                self.snapshot = evaluate(self.fleet, self.now_ns, self.snapshot)
        assert self.snapshot is not None
        return self.snapshot

    def _advance(self, number: int) -> None:
        host = self.hosts[number]
        host.clock.now_ns = self.now_ns - START_NS + UPTIME_NS
        for gpu in range(8):
            table, more = self.tables[8 * number + gpu], self.grow[8 * number + gpu]
            steps = {
                "accumulation_counter": 1000,
                "firmware_timestamp": 10**8,
                "energy_accumulator": WATTS << 16,
            }
            for name, step in (steps | more).items():
                value = table[name]
                assert isinstance(value, int)
                table[name] = value + step
            host.set(gpu, REVISION, **table)
        blocks: list[Block] = []
        for name in ("host_1s", *NAMES):
            collector = host.collector(name)
            if self.second % PERIOD_SECONDS[collector.pace] == 1 % PERIOD_SECONDS[collector.pace]:
                blocks += run_collector(collector, host.clock).blocks
        boottime_ns = host.clock.now_ns
        frame = self.builders[number].build(self.second, boottime_ns, self.now_ns, blocks)
        received = read_frame(frame)
        self.fleet.observe(self.names[number], received, self.now_ns)
        if self.store is not None:
            taken = self.store.submit_frame(
                self.names[number], received, self.now_ns - boottime_ns, lambda _: None
            )
            assert taken

    def change(self, gpu: int, **values: Value) -> None:
        """Change readings of a GPU of the first host."""
        self.tables[gpu].update(values)

    def score(self, number: int = 0) -> HostScore:
        assert self.snapshot is not None
        return next(h for h in self.snapshot.hosts if h.host == self.names[number])

    def names_found(self, number: int = 0) -> set[str]:
        """Return the rules with an active symptom on a host."""
        assert self.snapshot is not None
        tracked = self.snapshot.tracked_symptoms.get(number, {})
        return {rule for (rule, _), symptom in tracked.items() if symptom.active}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[AmdFleet]:
    """A fleet of AMD hosts that has run for 21 s without a fault."""
    amd_fleet = AmdFleet(tmp_path)
    amd_fleet.run(21)
    assert {amd_fleet.score(n).state for n in range(3)} == {HealthState.HEALTHY}, (
        amd_fleet.score().reason_message
    )
    yield amd_fleet


def brake(fleet: AmdFleet) -> None:
    fleet.change(2, current_gfxclk=[1200] * 8, curr_socket_power=300)
    fleet.grow[2] = {"prochot_residency_acc": 900}


def heat(fleet: AmdFleet) -> None:
    fleet.change(2, current_gfxclk=[1300] * 8, curr_socket_power=400, temperature_hotspot=99)
    fleet.grow[2] = {"socket_thm_residency_acc": 800}


def hot_memory(fleet: AmdFleet) -> None:
    fleet.change(2, current_gfxclk=[1300] * 8, curr_socket_power=400, temperature_mem=98)
    fleet.grow[2] = {"hbm_thm_residency_acc": 800}


def narrow_link(fleet: AmdFleet) -> None:
    fleet.change(2, pcie_link_width=8)


def replays(fleet: AmdFleet) -> None:
    fleet.grow[2] = {"pcie_replay_count_acc": 40}


def naks(fleet: AmdFleet) -> None:
    fleet.grow[2] = {"pcie_nak_rcvd_count_acc": 40}


def lost_data(fleet: AmdFleet) -> None:
    (fleet.hosts[0].folder(2) / "ras/umc_err_count").write_text("ue: 1\nce: 0\nde: 0\n")


def bad_page(fleet: AmdFleet) -> None:
    (fleet.hosts[0].folder(2) / "ras/gpu_vram_bad_pages").write_text(
        "0x00000001 : 0x00001000 : P\n"
    )


def link_down(fleet: AmdFleet) -> None:
    fleet.change(2, xgmi_link_status=[0xFFFF, 0, *[1] * 6])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("befall", "finding", "state", "message", "seconds"),
    [
        (brake, "gpu.power", HealthState.DEGRADED, "power brake", 20),
        (heat, "gpu.thermal", HealthState.DEGRADED, "limited by heat (99 C, slowdown at 100 C)", 20),
        (hot_memory, "gpu.thermal", HealthState.DEGRADED, "memory at 98 C", 20),
        (narrow_link, "gpu.pcie_width", HealthState.DEGRADED, "8 of 16 PCIe lanes", 50),
        (replays, "gpu.pcie_replays", HealthState.WATCH, "PCIe packets sent again", 60),
        (naks, "gpu.pcie_naks", HealthState.WATCH, "the other end rejected", 60),
        (lost_data, "gpu.ecc_uncorrected", HealthState.SUSPECT, "uncorrectable memory errors", 30),
        (bad_page, "gpu.retirement_pending", HealthState.WATCH, "page to retire", 30),
        (link_down, "nvlink.down", HealthState.SUSPECT, "XGMI link is down", 50),
    ],
)  # fmt: skip
def test_a_fault_of_an_amd_gpu_is_found_by_the_rule_that_nvidias_is(
    fleet: AmdFleet,
    befall: Callable[[AmdFleet], None],
    finding: str,
    state: HealthState,
    message: str,
    seconds: int,
) -> None:
    """From sysfs through frames to the finding; the other hosts stay HEALTHY."""
    befall(fleet)
    fleet.run(seconds)
    score = fleet.score()
    assert finding in fleet.names_found(), score.reason_message
    assert score.state is state, score.reason_message
    assert message in " ".join(evidence.message for evidence in score.evidence)
    assert fleet.hosts[0].key(2) in {
        evidence.device.partition("/")[0] for evidence in score.evidence
    }
    assert [fleet.score(n).state for n in (1, 2)] == [HealthState.HEALTHY] * 2


@pytest.mark.slow
def test_noisy_links_are_called_by_their_name(fleet: AmdFleet) -> None:
    """XGMI counts errors per GPU, summed over its links."""
    errors = 0

    def more() -> None:
        nonlocal errors
        errors += 50
        (fleet.hosts[0].folder(2) / "ras/xgmi_wafl_err_count").write_text(
            f"ue: 0\nce: {errors}\nde: 0\n"
        )

    fleet.run(70, more)
    assert fleet.names_found() == {"nvlink.crc"}
    assert "XGMI link checksum errors" in fleet.score().evidence[0].message
    assert f"{fleet.hosts[0].key(2)}/xgmi" == fleet.score().evidence[0].device


@pytest.mark.slow
def test_the_finding_and_the_score_in_sql(tmp_path: Path, operators_files: None) -> None:
    """An operator finds the fault with the same SQL as for any other GPU."""
    fleet = AmdFleet(tmp_path / "hosts", folder=tmp_path / "store")
    assert fleet.store is not None
    try:
        fleet.run(12)
        brake(fleet)
        fleet.run(14)
        score = fleet.score()
        assert score.state is HealthState.DEGRADED and fleet.names_found() == {"gpu.power"}
        assert fleet.snapshot is not None
        fleet.store.submit_scores(
            fleet.snapshot, with_gpu_states(fleet.snapshot, fleet.snapshot.hosts)
        )
    finally:
        fleet.store.close(60.0)  # commits all rows and writes the operators' file
    key = fleet.hosts[0].key(2)
    with sandbox.open_snapshot(tmp_path / "store/operators.duckdb") as connection:

        def rows(query: str) -> list[tuple[object, ...]]:
            return rows_of(connection, query)[1]

        gpus = rows("SELECT gpu, state FROM ops.gpu_scores WHERE host = 'amd0'")
        states = {gpu: state for gpu, state in gpus}
        assert states.pop(key) == "DEGRADED" and set(states.values()) == {"HEALTHY"}
        ((message, sql),) = rows(f"SELECT message, sql FROM evidence WHERE device = '{key}'")
        assert "power brake" in str(message) and rows(str(sql))
        ((model, watts, held_down_by),) = rows(
            f"SELECT model, power_watts, held_down_by FROM ops.gpus WHERE host = 'amd0' AND gpu = '{key}'"
        )
        assert (model, watts, held_down_by) == ("AMD Instinct MI300X", 300.0, "power brake")
        assert len(rows("FROM ops.gpus WHERE model = 'AMD Instinct MI300X'")) == 24


@pytest.mark.slow
def test_vendors_are_not_each_others_peers(tmp_path: Path) -> None:
    """An MI300X clocks at 2.1 GHz, an H100 at 1.75: compared, every H100 was slow."""
    amd = AmdFleet(tmp_path)
    nvidia = World(hosts=4)
    nvidia.fleet, nvidia.now_ns = amd.fleet, amd.now_ns
    for host in nvidia.hosts:
        nvidia.register(host)

    def both() -> None:
        nvidia.run(1, last_seconds=0, every_seconds=10**6) if nvidia.snapshot else nvidia.run(1)

    amd.run(30, both)
    assert {amd.score(n).state for n in range(3)} == {HealthState.HEALTHY}
    assert amd.snapshot is not None
    states = {h.host: h.state for h in amd.snapshot.hosts}
    assert len(states) == 7 and set(states.values()) == {HealthState.HEALTHY}
    brake(amd)
    device = gpu_of(nvidia.hosts[1], 0)
    nvidia.hosts[1].set(
        "gpu_1s",
        device,
        sm_clock_hertz=1.1e9,
        temperature_celsius=88,
        clock_event_reasons_flags=0x20,
    )
    amd.run(30, both)
    assert amd.snapshot is not None
    sick = {h.host: h for h in amd.snapshot.hosts if h.state is not HealthState.HEALTHY}
    assert set(sick) == {"amd0", nvidia.hosts[1].name}
    amd_normal = sick["amd0"].evidence[0].normal
    assert "same model" in amd_normal and "23 peers" in amd_normal
    assert "31 peers" in sick[nvidia.hosts[1].name].evidence[0].normal
