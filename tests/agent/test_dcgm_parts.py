"""NVSwitches, their links and vGPUs through DCGM: read where they exist, never requested elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.agent.collector import CollectOutcome
from gangline.agent.collectors.dcgm_parts import (
    ENTITIES_PER_CALL,
    GROUP_ENTITIES_MAX,
    link_parts,
    vgpu_ids,
)
from gangline.agent.xid_reports import XID_DEDUPLICATOR
from gangline.contract.block import Block
from gangline.contract.signals import BY_ID
from gangline.contract.xid.policy import lookup_sxid
from tests.agent.test_dcgm import DcgmHost
from tests.fake_dcgm import MAJORS, build, link_id

SWITCHES = ("0000:05:00.0", "0000:06:00.0")
PORTS = 4
VGPU = "0b6a1f4e-0000-11ee-8000-000000000007"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    folder = tmp_path_factory.mktemp("fake_dcgm")
    return {major: str(build(folder, major)) for major in MAJORS}


class SwitchHost(DcgmHost):
    """A host with NVSwitches on its PCI bus, known to its engine."""

    def __init__(
        self, folder: Path, library: str, mode: str = "listen", ports: int = PORTS
    ) -> None:
        for address in SWITCHES:
            function = folder / "sys/bus/pci/devices" / address
            function.mkdir(parents=True)
            (function / "class").write_text("0x068000\n")
            (function / "vendor").write_text("0x10de\n")
        super().__init__(folder, library, mode, sys=folder / "sys")
        self.links = [
            self.engine.switch(number, address, ports) for number, address in enumerate(SWITCHES)
        ]
        self.tables: dict[str, Block] = {}

    def rows(self, table: str, seconds: int = 10) -> dict[str, dict[str, float | int | None]]:
        for _ in range(seconds):
            result = self.turn()
            assert result.outcome is CollectOutcome.OK, result.message
            self.tables |= {block.table: block for block in result.blocks}
        block = self.tables.get(table)
        return {} if block is None else {
            device: {BY_ID[id_].column: value for id_, value in block.values(row)}
            for row, device in enumerate(block.devices)
        }  # fmt: skip


Make = Callable[..., SwitchHost]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, libraries: dict[int, str]) -> Make:
    def made(major: int = 4, mode: str = "listen", ports: int = PORTS) -> SwitchHost:
        monkeypatch.setenv("GANGLINE_FAKE_DCGM", str(tmp_path / "engine"))
        return SwitchHost(tmp_path, libraries[major], mode, ports)

    return made


@pytest.mark.parametrize("major", MAJORS)
def test_what_somebody_watches_of_a_switch(make: Make, major: int) -> None:
    host = make(major)
    for number, value in (
        (858, 45),
        (859, 80),
        (864, 1),
        (701, 900),
        (705, 30),
        (706, 5),
        (707, 7),
    ):
        host.engine.set_of(3, 0, number, "i", 0, value)
    host.engine.set_of(3, 1, 858, "i", 0, "blank")
    host.engine.set_of(3, 1, 705, "i", 0, 30)  # one rail of three, which is not its power
    rows = host.rows("nvswitch_10s_changes", 1)
    assert list(rows) == list(SWITCHES)
    assert rows[SWITCHES[0]] == {
        "temperature_celsius": 45.0, "temperature_slowdown_celsius": 80.0, "temperature_shutdown_celsius": None,
        "power_watts": 42.0, "voltage_volts": 0.9, "reset_required_state": 1,
    }  # fmt: skip
    assert set(rows[SWITCHES[1]].values()) == {None}


def test_links_of_a_switch_are_rows_of_their_own(make: Make) -> None:
    """More links than one call returns; an unknown state (-1) is missing, not 2^64 - 1."""
    host = make(ports=ENTITIES_PER_CALL + 3)
    first, last = host.links[0][0], host.links[1][-1]
    host.engine.set_of(6, first, 870, "i", 0, 2)
    host.engine.set_of(6, first, 787, "i", 0, 12)
    host.engine.set_of(6, last, 870, "i", 0, -1)
    host.engine.set_of(6, last, 784, "i", 0, 3)
    rows = host.rows("nvswitch_link_10s_changes", 1)
    assert len(rows) == 2 * (ENTITIES_PER_CALL + 3)
    one, other = rows[f"{SWITCHES[0]}/link0"], rows[f"{SWITCHES[1]}/link{ENTITIES_PER_CALL + 2}"]
    assert (one["link_state"], one["crc_errors"]) == (2, 12)
    assert (other["link_state"], other["replay_errors"]) == (None, 3)


def test_links_of_gpus_are_left_to_nvml(make: Make) -> None:
    """DCGM 4 lists the links of GPUs under the same kind."""
    host = make()
    host.engine.entities.append((6, 1 | 5 << 8))
    assert len(host.rows("nvswitch_link_10s_changes", 1)) == 2 * PORTS


def test_a_host_without_switches_and_vgpus_is_asked_for_none(make: Make, tmp_path: Path) -> None:
    """A request for switches makes the engine load a module, and its library open every device."""
    host = DcgmHost(tmp_path, make().roots.dcgm_library)
    assert host.turn(70).outcome is CollectOutcome.OK
    assert not any("EntityGroup" in call for call in host.engine.calls)


def test_fields_that_nobody_watches_are_tried_each_minute(make: Make) -> None:
    host = make()
    host.rows("nvswitch_10s_changes", 61)
    calls = sum(call == "dcgmEntitiesGetLatestValues" for call in host.engine.calls)
    # XIDs and profiling 7 times each; addresses, switches and links at the first turn and a minute
    # later
    assert calls == 2 * 7 + 2 * 3


@pytest.mark.parametrize("major", MAJORS)
def test_watching_has_the_engine_watch_switches_and_links(make: Make, major: int) -> None:
    host = make(major, "watch", ports=GROUP_ENTITIES_MAX // 2 + 1)
    host.rows("nvswitch_10s_changes", 3)
    created = [call for call in host.engine.calls if call.startswith("dcgmGroupCreate")]
    assert created == ["dcgmGroupCreate gangline-links-0", "dcgmGroupCreate gangline-links-1"]
    added = [call for call in host.engine.calls if call.startswith("dcgmGroupAddEntity 6 ")]
    assert len(added) == GROUP_ENTITIES_MAX + 2
    watched = [call for call in host.engine.calls if call.startswith("dcgmFieldGroupCreate")]
    assert [name for name in watched if "nvswitches" in name or "links" in name] == [
        f"dcgmFieldGroupCreate gangline-{name}" for name in ("nvswitches", "links-0", "links-1")
    ]


def test_a_switch_whose_address_nobody_watches_goes_by_dcgms_number(make: Make) -> None:
    host = make()
    for number in range(866, 870):
        del host.engine.values[3, 0, number]
    assert list(host.rows("nvswitch_10s_changes", 1)) == ["nvswitch0", SWITCHES[1]]


def test_an_engine_without_the_module_of_switches_is_no_error(make: Make) -> None:
    host = make()
    host.engine.lines.append("error dcgmGetEntityGroupEntities -33")
    assert host.rows("nvswitch_10s_changes", 20) == {}
    host.engine.lines.clear()
    assert list(host.rows("nvswitch_10s_changes", 61)) == list(SWITCHES)


def test_more_links_than_there_is_room_for_is_blind(make: Make) -> None:
    host = make()
    host.engine.entities += [(6, 1 | number << 8) for number in range(1030)]
    result = host.turn()
    assert result.outcome is CollectOutcome.BLIND and "more than 1,024 links" in result.message
    assert any(block.table == "nvswitch_10s_changes" for block in result.blocks)


def test_a_switch_that_is_gone_leaves_the_table(make: Make) -> None:
    host = make()
    assert len(host.rows("nvswitch_10s_changes", 1)) == 2
    host.engine.entities = [
        entity for entity in host.engine.entities if entity[0] != 3 or entity[1] == 0
    ]
    assert list(host.rows("nvswitch_10s_changes", 70)) == [SWITCHES[0]]


@pytest.mark.parametrize("fatal", [True, False])
def test_an_sxid_that_the_kernel_log_has_not_shown(make: Make, fatal: bool) -> None:
    """The event equals the kernel log's: same name, device, code; the same policy applies."""
    host = make()
    field = 856 if fatal else 857
    host.engine.set_of(3, 1, field, "i", 1, 0)
    host.turn(10)
    at_us = host.clock.wall_ns() // 1000
    host.engine.set_of(3, 1, field, "i", at_us, 20034)
    host.turn(20)
    (event,) = host.events
    assert (event.name, event.device_kind, event.device) == (
        "nvswitch.sxid", "nvswitch", SWITCHES[1],
    )  # fmt: skip
    assert event.code == 20034 and lookup_sxid(20034).name
    assert event.boottime_ns == at_us * 1000
    assert event.attributes["source"] == "dcgm"
    assert event.attributes["line_severity"] == ("fatal" if fatal else "nonfatal")


def test_an_sxid_of_the_kernel_log_stays_one_event(make: Make) -> None:
    host = make()
    for group, entity, field in ((3, 0, 856), (6, host.links[0][2], 782)):
        host.engine.set_of(group, entity, field, "i", 1, 0)
    host.turn(10)
    at_us = host.clock.wall_ns() // 1000
    for group, entity, field in ((3, 0, 856), (6, host.links[0][2], 782)):
        host.engine.set_of(group, entity, field, "i", at_us, 12028)
    XID_DEDUPLICATOR.record(SWITCHES[0], 12028, host.clock.boottime_ns())
    result = host.turn(20)
    assert not host.events
    assert host.value(result, "dcgm.told_by_others_events") == 1


def test_a_switch_and_its_link_report_one_sxid(make: Make) -> None:
    host = make()
    link = host.links[0][3]
    for group, entity, field in ((3, 0, 856), (3, 1, 856), (6, link, 782)):
        host.engine.set_of(group, entity, field, "i", 1, 0)
    host.turn(10)
    at_us = host.clock.wall_ns() // 1000
    for group, entity, field in ((3, 0, 856), (3, 1, 856), (6, link, 782)):
        host.engine.set_of(group, entity, field, "i", at_us, 19077)
    host.turn(20)
    of_link, of_other = host.events
    assert (of_link.device, of_link.attributes["link"]) == (SWITCHES[0], "3")
    assert of_link.message == "DCGM: SXid 19077, Fatal, Link 3"
    assert of_other.device == SWITCHES[1] and "link" not in of_other.attributes


def test_vgpus_of_a_hypervisor(make: Make) -> None:
    """They change while the engine runs: a virtual machine starts, another ends."""
    host = make()
    host.engine.set(0, 500, "i", 1, 3)
    host.engine.set(0, 503, "b", 1, "7,8")
    for number, value in ((522, 470), (525, 2048), (526, 0), (527, 60)):
        host.engine.set_of(2, 7, number, "i", 0, value)
    host.engine.set_of(2, 7, 523, "s", 1, VGPU)
    rows = host.rows("vgpu_10s_changes", 1)
    assert rows[VGPU] == {
        "memory_used_bytes": 2048.0 * (1 << 20), "license_state": 0, "frame_rate_limit_hertz": 60.0, "type_number": 470,
    }  # fmt: skip
    assert set(rows["vgpu8"].values()) == {None}
    host.engine.set(0, 503, "b", 1, "")
    assert host.rows("vgpu_10s_changes", 61) == {}


@pytest.mark.parametrize(
    ("blob", "ids"),
    [(b"", ()), (b"\1\0", ()), (b"\0\0\0\0\5\0\0\0", ()), (b"\2\0\0\0\5\0\0\0\6\0\0\0\7\0\0\0", (5, 6)), (b"\xff" * 8, (0xFFFFFFFF,))],
)  # fmt: skip
def test_lists_of_vgpus(blob: bytes, ids: tuple[int, ...]) -> None:
    assert vgpu_ids(blob) == ids


def test_ids_of_links() -> None:
    assert link_parts(link_id(3, 17)) == (3, 17)
