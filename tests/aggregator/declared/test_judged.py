"""Declarations in scores: maintenance, noise, thresholds, unexpected hardware."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gangline.aggregator.declared.host_placement import HostPlacement, PlaceSource
from gangline.aggregator.declared.loader import DeclaredFile, parse_files
from gangline.aggregator.declared.overrides import Override
from gangline.aggregator.declared.patterns import HostPattern
from gangline.aggregator.declared.selection import SelectionIndex
from gangline.aggregator.fleet.tables import TRACKED_SIGNALS
from gangline.aggregator.model import HealthState, Reason
from gangline.aggregator.rule_catalogue import FAMILIES, NEVER_NOISE, OVERRIDABLE_RULES
from gangline.contract.wire import telemetry_pb2 as wire
from tests.worlds import SECOND_NS, START_NS, World, gpu_of, throttle

EXPECTED = """\
[[expected]]
name = "8 x H100"
model = "H100*"
gpus = 8
gpu_pcie_width_lanes = 16
rdma_ports = 2
rdma_port_gigabits_per_second = 400
nvlinks_per_gpu = 2
"""


def at(seconds: float) -> str:
    """Return a moment of the world as TOML."""
    return datetime.fromtimestamp(START_NS / 1e9 + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def declare(world: World, text: str) -> None:
    """Put *text* in force."""
    world.fleet.declared = parse_files(
        [DeclaredFile("a.toml", text.encode())], world.now_ns, rules=OVERRIDABLE_RULES
    )


def window(begin: float, end: float) -> str:
    return (
        f'[[maintenance]]\nhosts = ["h1"]\nbegin = {at(begin)}\nend = {at(end)}\n'
        'who = "alice"\nwhy = "new fans"\n'
    )


def test_maintenance_from_its_begin_to_its_end() -> None:
    """A GPU pulled in the window gives no alert; a fault that remains after the window does."""
    world = World()
    declare(world, window(20, 40))
    world.run(19)
    assert world.states()["h1"] == "HEALTHY"
    world.run(1)
    assert world.states() == {
        "h0": "HEALTHY",
        "h1": "MAINTENANCE",
        "h2": "HEALTHY",
        "h3": "HEALTHY",
    }
    throttle(world.hosts[1], 2)
    world.run(15)
    score = world.score(world.hosts[1])
    assert score.state is HealthState.MAINTENANCE and score.reason is Reason.POLICY
    assert "new fans (alice), until 2023-11-14 22:14 UTC; else DEGRADED: " in score.reason_message
    assert "the window ends at 2023-11-14 22:14 UTC (a.toml:1)" in score.clears_when
    assert score.evidence and score.relative_speed < 0.9
    world.run(5)
    assert world.states()["h1"] == "DEGRADED"


def test_a_host_that_falls_silent_in_maintenance_is_in_maintenance() -> None:
    """It is switched off: with STALE, an operator would be called at night."""
    world = World(hosts=8)
    declare(world, window(5, 400))
    world.run(10)
    world.hosts[1].silent = True
    world.run(60)
    score = world.score(world.hosts[1])
    assert score.state is HealthState.MAINTENANCE
    assert "else STALE: silent for" in score.reason_message


def test_a_rack_that_is_switched_off_in_maintenance_is_no_outage_of_ours() -> None:
    """Four hosts were switched off as planned; for 15 minutes no fault of any host was proposed."""
    world = World(hosts=16)
    declare(world, window(5, 400).replace('"h1"', '"h[0-3]"'))
    world.run(10)
    for host in world.hosts[:4]:
        host.silent = True
    world.run(30)
    assert world.snapshot is not None and world.snapshot.degraded_reason == ""
    assert [world.states()[f"h{n}"] for n in (0, 3, 4)] == ["MAINTENANCE", "MAINTENANCE", "HEALTHY"]
    for host in world.hosts[4:7]:
        host.silent = True
    world.run(30)
    assert "3 of 16 hosts fell silent" in world.snapshot.degraded_reason, "and others are"


def test_noise_weighs_nothing_and_stays_to_be_seen() -> None:
    """A known XID costs these hosts nothing until that day, and is still shown."""
    world = World(seconds=10)
    for host in world.hosts[:2]:
        world.event(host, 79, gpu_of(host, 0))
    world.run(2)
    healthy = world.score(world.hosts[2]).hazard_per_hour
    assert world.states()["h1"] == "UNHEALTHY"
    declare(
        world,
        f'[[override]]\nhosts = ["h1"]\nxid = 79\nuntil = {at(60)}\nwho = "bob"\nwhy = "a test of cables"\n',
    )
    world.run(2)
    score = world.score(world.hosts[1])
    assert score.state is HealthState.HEALTHY and score.hazard_per_hour == healthy
    (evidence,) = score.evidence
    assert evidence.log_hazard_delta == 0.0 and evidence.value == 79
    assert "taken as noise until 2023-11-14 22:14 UTC: a test of cables (bob)" in evidence.message
    assert ("h1", "gpu.xid") not in {key[:2] for key in world.fleet.findings}
    assert world.states()["h0"] == "UNHEALTHY", "on no other host"
    world.run(50)
    assert world.states()["h1"] == "UNHEALTHY"


def test_noise_is_noise_also_when_it_is_only_remembered() -> None:
    """A storm of corrected errors is over, and would count for 5 minutes: an override ends it now.

    Lost frames are a finding at any cost; an override ends it at once as well.
    """
    world = World(seconds=10)
    device = gpu_of(world.hosts[0], 0)
    world.hosts[0].grow("gpu_1s_changes", device, ecc_corrected_volatile_errors=100)
    world.hosts[1].grow("agent_10s", "agent", spool_dropped_frames=5)
    world.run(20)
    world.hosts[0].grow("gpu_1s_changes", device, ecc_corrected_volatile_errors=0)
    world.run(60)
    assert [world.states()[name] for name in ("h0", "h1")] == ["SUSPECT", "WATCH"]
    assert "data.lost" in {name for _, name, _ in world.fleet.findings}
    for_both = 'hosts = ["h*"]\nuntil = 2024-01-01T00:00:00Z\nwho = "b"\nwhy = "a test"\n'
    declare(
        world,
        "".join(
            f'[[override]]\nrule = "{rule}"\n{for_both}' for rule in ("gpu.ecc_*", "data.lost")
        ),
    )
    world.run(1)
    assert set(world.states().values()) == {"HEALTHY"}
    assert "a test (b)" in world.score(world.hosts[0]).evidence[0].message
    assert "data.lost" not in {name for _, name, _ in world.fleet.findings}
    declare(world, "")
    world.run(1)
    assert world.states()["h1"] == "WATCH", "what is still there counts at once"


def test_noise_by_rule() -> None:
    """An override ignores a whole rule on some hosts; other rules still see them."""
    world = World()
    declare(
        world,
        '[[override]]\nhosts = ["h[0-1]"]\nrule = "host.cpu_*"\nuntil = 2024-01-01T00:00:00Z\nwho = "b"\nwhy = "builds"\n',
    )
    for host in world.hosts[1:3]:
        host.set("host_1s", "host", pressure_cpu_some_ratio=0.9)
    throttle(world.hosts[0], 1)
    world.run(40)
    assert world.states() == {"h0": "DEGRADED", "h1": "HEALTHY", "h2": "WATCH", "h3": "HEALTHY"}


def test_the_name_of_a_family_means_all_of_it() -> None:
    """`rule = "gpu.xid"` was accepted without effect: the evidence is named `gpu.xid.79`."""
    world = World(seconds=10)
    world.event(world.hosts[0], 79, gpu_of(world.hosts[0], 0))
    for_all = 'hosts = ["h*"]\nuntil = 2024-01-01T00:00:00Z\nwho = "b"\nwhy = "a test"\n'
    declare(world, f'[[override]]\nrule = "gpu.xid"\n{for_all}')
    world.run(2)
    assert world.states()["h0"] == "HEALTHY"


def test_a_threshold_moves_the_rule_and_its_words() -> None:
    """In a cluster of small virtual machines, 15 % of stolen time is usual."""
    world = World()
    for host in world.hosts[:2]:
        host.set("host_1s", "host", cpu_steal_ratio=0.15)
    world.hosts[0].set("host_1s", "host", cpu_steal_ratio=0.35)
    declare(world, '[thresholds]\n"host.cpu_steal_ratio" = 0.3\n')
    world.run(40)
    assert world.states() == {"h0": "WATCH", "h1": "HEALTHY", "h2": "HEALTHY", "h3": "HEALTHY"}
    score = world.score(world.hosts[0])
    assert score.evidence[0].normal == "below 30 %" and "below 30 %" in score.clears_when
    declare(world, "")
    world.run(40)
    assert world.states()["h1"] == "WATCH"


def test_repairs_of_pcie_links_are_of_a_threshold() -> None:
    """Risers of one vendor repair five errors a second for years; their hosts were WATCH."""
    world = World()
    for host, rate in zip(world.hosts[:2], (5, 50), strict=True):
        host.set("pcie_10s_changes", "0000:17:00.0", aer_correctable_errors=1)
        host.grow("pcie_10s_changes", "0000:17:00.0", aer_correctable_errors=rate)
    declare(world, '[thresholds]\n"pcie.corrected_per_second" = 20\n')
    world.run(60)
    assert world.states() == {"h0": "HEALTHY", "h1": "WATCH", "h2": "HEALTHY", "h3": "HEALTHY"}
    score = world.score(world.hosts[1])
    assert score.evidence[0].normal == "below 20" and "less than 20 corrected" in score.clears_when
    declare(world, "")
    world.run(60)
    assert world.states()["h0"] == "WATCH"


def test_pauses_are_of_a_threshold() -> None:
    """A storage network without priorities pauses 100 times a second; a threshold reports it."""
    world = World()
    for host in world.hosts:
        host.set("nic_10s_changes", "eth1", priority_3_transmitted_pause_frames=1)
    world.hosts[0].grow("nic_10s_changes", "eth1", priority_3_transmitted_pause_frames=500)
    world.run(90)
    assert world.states()["h0"] == "HEALTHY"
    declare(world, '[thresholds]\n"nic.pauses_per_second" = 100\n')
    world.run(90)
    assert world.states() == {"h0": "WATCH", "h1": "HEALTHY", "h2": "HEALTHY", "h3": "HEALTHY"}


def furnish(world: World) -> None:
    """Give the hosts ports of 400 Gb/s and two NVLinks a GPU."""
    for host in world.hosts:
        for port in ("mlx5_0/1", "mlx5_1/1"):
            host.set("rdma_1s", port, rate_bytes_per_second=50e9)
        for gpu in range(8):
            for link in range(2):
                host.set("nvlink_10s_changes", f"{gpu_of(host, gpu)}/link{link}", link_state=1)


def unexpected(world: World) -> dict[str, list[str]]:
    """Return the messages of open findings, by host."""
    messages: dict[str, list[str]] = {}
    for finding in world.fleet.findings.values():
        if finding.name == "hardware.unexpected":
            messages.setdefault(finding.host, []).append(finding.message)
    return messages


def test_hosts_that_are_as_declared_have_no_finding() -> None:
    """Hosts of another model, and hosts without a reported inventory, have no finding either."""
    world = World()
    furnish(world)
    world.register(world.hosts[2], model="A100")
    world.fleet.register("h9", simulated=False, boot_id=b"B" * 16, devices=[])
    declare(world, EXPECTED)
    world.run(90)
    assert unexpected(world) == {} and world.states()["h0"] == "HEALTHY"


def test_each_difference_is_a_finding_that_ends_when_it_is_gone() -> None:
    """After a swap a host returned with 7 GPUs, 8 lanes, a port at half speed, a link down."""
    world = World()
    furnish(world)
    first, second, third, _ = world.hosts
    world.register(first, gpus=7)
    first.readings = {k: v for k, v in first.readings.items() if gpu_of(first, 7) not in k[1]}
    first.growth = {k: v for k, v in first.growth.items() if gpu_of(first, 7) not in k[1]}
    second.set("gpu_10s", gpu_of(second, 3), pcie_width_max_lanes=8, pcie_width_lanes=8)
    second.set("rdma_1s", "mlx5_1/1", rate_bytes_per_second=25e9)
    third.set("nvlink_10s_changes", f"{gpu_of(third, 0)}/link1", link_state=0)
    declare(world, EXPECTED)
    world.run(50)
    assert unexpected(world) == {}, "an inventory has a minute to become whole"
    world.run(40)
    assert world.snapshot is not None and not world.snapshot.faults.incidents, (
        "it is no fault of theirs"
    )
    assert unexpected(world) == {
        "h0": ["7 GPUs, 8 expected (8 x H100, a.toml:1)"],
        "h1": [
            "an RDMA port runs at 200 Gb/s, 400 expected (8 x H100, a.toml:1)",
            "a GPU has 8 PCIe lanes at best, 16 expected (8 x H100, a.toml:1)",
        ],
        "h2": ["15 NVLinks of 8 GPUs are up, 16 expected (8 x H100, a.toml:1)"],
    }
    assert world.states()["h0"] == "WATCH"
    finding = next(f for f in world.fleet.findings.values() if f.host == "h0")
    assert (finding.subject, finding.clears_when) == (
        "host expected.gpus",
        "gpus is 8, or a.toml:1 is changed",
    )
    second.set("rdma_1s", "mlx5_1/1", rate_bytes_per_second=50e9)
    declare(
        world,
        EXPECTED.replace("gpus = 8", "gpus = 7").replace("width_lanes = 16", "width_lanes = 8"),
    )
    world.run(15)
    assert sorted(unexpected(world)) == ["h2"], "the others have 8 GPUs, for less than a minute"


def test_a_named_host_that_comes_up_without_a_gpu_lacks_all_of_them() -> None:
    """After a reboot without its driver it matched no entry by model, and had no finding."""
    world = World()
    furnish(world)
    for host in world.hosts[:2]:
        node = wire.Device(kind="numa", key="node0")
        world.fleet.register(host.name, simulated=False, boot_id=host.boot_id, devices=[node])
    declare(world, EXPECTED.replace("gpus =", 'hosts = ["h0"]\ngpus ='))
    world.run(90)
    assert unexpected(world) == {"h0": ["0 GPUs, 8 expected (8 x H100, a.toml:1)"]}


@pytest.mark.parametrize("whose", ['racks = ["r1"]', 'hosts = ["h*"]'])
def test_a_host_without_gpus_that_nobody_names_lacks_none(whose: str) -> None:
    """The rack's login host was WATCH all the time: it lacked the eight GPUs of its neighbors."""
    world = World()
    furnish(world)
    node = wire.Device(kind="numa", key="node0")
    name = world.hosts[0].name
    world.fleet.register(name, simulated=False, boot_id=world.hosts[0].boot_id, devices=[node])
    places = '[[place]]\nhosts = ["h[0-9]"]\nrack = "r1"\n'
    declare(world, places + EXPECTED.replace("gpus =", f"{whose}\ngpus ="))
    world.run(90)
    assert name not in unexpected(world)


def test_a_gpu_that_was_replaced_is_none_of_its_hosts() -> None:
    """The host counted nine GPUs: one had no data, 18 NVLinks were missing, no reset was seen."""
    world = World()
    host = world.hosts[0]
    for gpu in range(8):
        host.set("nvlink_10s_changes", f"{gpu_of(host, gpu)}/link0", link_state=1)
    declare(world, '[[expected]]\nmodel = "H100"\nnvlinks_per_gpu = 1\n')
    world.run(20)
    hazard = world.score(host).hazard_per_hour
    old, new = gpu_of(host, 7), gpu_of(host, 8)
    host.readings = {
        (table, device.replace(old, new)): values
        for (table, device), values in host.readings.items()
    }
    host.growth.clear()
    host.reboot(world.now_ns)
    devices = [
        wire.Device(kind="gpu", key=gpu_of(host, gpu), attributes={"name": "H100"})
        for gpu in (*range(7), 8)
    ]
    world.fleet.register(host.name, simulated=False, boot_id=host.boot_id, devices=devices)
    world.run(400)
    assert world.fleet.gpus.tolist() == [8, 8, 8, 8]
    assert not unexpected(world) and world.score(host).hazard_per_hour == hazard
    assert world.snapshot is not None
    assert sum(score.hazard_per_hour for score in world.snapshot.gpus.of(0)) < hazard
    world.event(host, 10004, "0000:c4:00.0", "nvswitch.sxid", message="Non-fatal")
    world.run(2)
    assert world.states()["h0"] == "WATCH"
    for gpu in (*range(7), 8):
        host.set("gpu_1s", gpu_of(host, gpu), energy_joules=1.0)
    world.run(3)
    assert world.states()["h0"] == "HEALTHY"


def test_rules_have_the_names_that_an_override_may_give() -> None:
    """A rule that is missing from the list could not be declared as noise."""
    names = OVERRIDABLE_RULES
    assert {
        "gpu.xid",
        "host.cpu_pressure",
        "net.flaps",
        "rdma.retransmits",
        "clock.offset",
    } <= names
    assert {"hardware.unexpected.gpus", "gpu.thermal"} <= names and len(names) > 50
    assert names.isdisjoint(NEVER_NOISE) and names.issuperset(FAMILIES)
    assert NEVER_NOISE.keys() == {"host.silent", "host.returned"}, "what is not held is not weighed"
    assert "rdma.rate_bytes_per_second" in TRACKED_SIGNALS


def test_patterns_are_matched_once_for_each_host_and_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """During registrations every host was matched with every pattern again, each five seconds."""
    matched_hosts: list[str] = []
    real = HostPattern.matches

    def matches(self: HostPattern, host: str) -> bool:
        matched_hosts.append(host)
        return real(self, host)

    monkeypatch.setattr(HostPattern, "matches", matches)
    world = World(hosts=3, gpus=1)
    declare(world, window(-10, 10_000).replace('"h1"', '"h[0-9]*"'))
    declared = world.fleet.declared
    declared.prepare(world.fleet.names)
    for number in range(3):
        reported = {"h0": (PlaceSource("label", "", HostPlacement(rack=f"r{number}")),)}
        declared = declared.with_reported(reported)
        assert len(declared.maintenance_windows(world.fleet.names, START_NS + SECOND_NS)) == 3
    assert matched_hosts == ["h0", "h1", "h2"]


def test_overrides_are_looked_through_once_for_what_they_are_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2,000 overrides of all hosts were compared with all evidence of each host, each second."""
    checked_rules: list[str] = []
    real = Override.covers_symptom

    def covers_symptom(self: Override, rule: str, signal: str, code: float) -> bool:
        checked_rules.append(rule)
        return real(self, rule, signal, code)

    monkeypatch.setattr(Override, "covers_symptom", covers_symptom)
    ends = 'until = 2023-11-15T00:00:00Z\nwho = "b"\nwhy = "c"\n'
    text = "".join(f'[[override]]\nracks = ["r"]\nrule = "host.{n}"\n{ends}' for n in range(9))
    place = '[[place]]\nhosts = ["h[0-99]"]\nrack = "r"\n'
    declared = parse_files([DeclaredFile("a.toml", f"{place}{text}".encode())], START_NS)
    for second in range(3):
        for host in range(100):
            now_ns = START_NS + second * SECOND_NS
            override = declared.override(f"h{host}", "host.7", now_ns, signal="host.x", code=second)
            assert override is not None and override.rule == "host.7"
    assert len(checked_rules) == 9
    assert declared.override("h1", "host.7", START_NS + 10**15) is None, "it has ended"


def test_what_is_declared_costs_little_of_many_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts of a window are computed once, not each second for 10,000 hosts."""
    world = World(hosts=1, gpus=1)
    declare(world, window(-10, 10_000))
    declared = world.fleet.declared
    looked_up: list[str] = []

    def entries_for(self: SelectionIndex, host: str, place: object) -> tuple[int, ...]:
        looked_up.append(host)
        return (0,) if host == "h1" else ()

    monkeypatch.setattr(SelectionIndex, "entries_for", entries_for)
    for _ in range(3):
        windows = [declared.window(f"h{n}", START_NS + SECOND_NS) for n in range(4)]
        assert [maintenance is not None for maintenance in windows] == [False, True, False, False]
    assert looked_up == ["h0", "h1", "h2", "h3"]
