# pyright: reportPossiblyUnboundVariable=false
"""The agent next to DCGM: its readings of a running engine, and its reaction to a faulty engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.agent.collector import CollectOutcome, CollectResult, run_collector
from gangline.agent.collectors import dcgm as module
from gangline.agent.collectors.dcgm import DcgmListener
from gangline.agent.events import EventPublisher
from gangline.agent.hardware.files import Roots
from gangline.agent.xid_reports import NVML_XIDS, XID_DEDUPLICATOR
from gangline.contract.block import Block
from gangline.contract.signals import BY_ID
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.agent.fakes import HandedClock
from tests.agent.gpu_host import SECOND
from tests.fake_dcgm import MAJORS, HostEngine, build

UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in range(3)]
ADDRESSES = ["0000:9b:00.0", "0000:c4:00.0", "0000:e1:00.0"]
FAILURE = "incident 0 1 1 0x10 20 3 1 uncorrectable error in GPU 1"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    folder = tmp_path_factory.mktemp("fake_dcgm")
    return {major: str(build(folder, major)) for major in MAJORS}


class DcgmHost:
    """A host with a played engine, a test's clock, and recorded events."""

    def __init__(
        self, folder: Path, library: str, mode: str = "listen", sys: Path = Path("/nowhere")
    ) -> None:
        self.engine = HostEngine(folder / "engine")
        for number, (uuid, address) in enumerate(zip(UUIDS, ADDRESSES, strict=True)):
            self.engine.gpu(number, uuid, address, 9 if number == 2 else 8)
        self.engine.write()
        self.clock = HandedClock(wall_ahead_ns=0)
        self.roots = Roots(sys, Path("/nowhere"), dcgm=mode, dcgm_library=library)
        self.events: list[HealthEvent] = []
        self.counts: Block | None = None  # last received: sent only after a change
        self.listener = DcgmListener(self.roots, self.clock)
        self.listener.start(EventPublisher(self.clock, self, lambda: None))

    def put(self, event: HealthEvent) -> None:
        self.events.append(event)

    def play(self, *lines: str) -> None:
        """Have the engine's file contain these lines besides its readings."""
        self.engine.lines[:] = lines

    def turn(self, seconds: int = 1) -> CollectResult:
        """Have the engine read its file, and run the collector each second."""
        self.engine.write()
        for _ in range(seconds):
            self.clock.now_ns += SECOND
            result = run_collector(self.listener, self.clock)
            self.counts = next(
                (b for b in result.blocks if b.table.startswith("dcgm")), self.counts
            )
        return result

    def value(self, result: CollectResult, name: str, device: str = "host") -> float | int | None:
        counts = [self.counts] if self.counts else []
        for block in counts if name.startswith("dcgm.") else result.blocks:
            for row, key in enumerate(block.devices):
                for signal_id, value in block.values(row):
                    if key == device and BY_ID[signal_id].name == name:
                        return value
        return None

    def profile(self, at: int, **values: object) -> None:
        numbers = {"sm": 1002, "tensor": 1004, "graphics": 1001}
        for name, value in values.items():
            self.engine.set(0, numbers[name], "d", at, value)


Make = Callable[..., DcgmHost]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, libraries: dict[int, str]) -> Make:
    def made(*lines: str, major: int = 4, mode: str = "listen") -> DcgmHost:
        monkeypatch.setenv("GANGLINE_FAKE_DCGM", str(tmp_path / "engine"))
        host = DcgmHost(tmp_path, libraries[major], mode)
        host.play(*lines)
        return host

    return made


def test_without_a_library_there_is_no_lane() -> None:
    """A process without use would cost each host without DCGM its memory."""
    listener = DcgmListener(Roots(Path("/nowhere"), Path("/nowhere")))
    result = run_collector(listener, HandedClock())
    assert not listener.enters_driver and result.outcome is CollectOutcome.NO_DATA
    assert [listener.skip() for _ in range(21)] == [n % 10 != 0 for n in range(21)]
    off = DcgmListener(Roots(dcgm="off", dcgm_library="libdcgm.so.4"))
    assert run_collector(off, HandedClock()).message == "dcgm is off" and not off.enters_driver


@pytest.mark.parametrize("major", MAJORS)
def test_listening_changes_nothing_in_the_engine(make: Make, major: int) -> None:
    """No watch, group or policy of the agent: quota and counters belong to the engine's users."""
    host = make("group 0 0x13", FAILURE, major=major)
    host.turn(70)
    names = {call.split()[0] for call in host.engine.calls}
    assert names == {
        "dcgmInit", "dcgmConnect_v2", "dcgmGetAllDevices", "dcgmEntitiesGetLatestValues",
        "dcgmGroupGetAllIds", "dcgmHealthGet", "dcgmHealthCheck", "dcgmVersionInfo", "dcgmHostengineVersionInfo",
    }  # fmt: skip
    assert sum("live" in call for call in host.engine.calls) == 1


def test_profiling_before_hopper_is_under_the_signals_of_gpm(make: Make) -> None:
    host = make()
    host.profile(5, sm="0.75", graphics="1.0")
    result = host.turn()
    assert result.outcome is CollectOutcome.OK, result.message
    block = next(block for block in result.blocks if block.table == "gpu_fast_1s")
    assert block.devices == tuple(UUIDS[:2]), "NVML has GPM for the third"
    assert host.value(result, "gpu_fast.sm_active_ratio", UUIDS[0]) == 0.75
    assert host.value(result, "gpu_fast.tensor_active_ratio", UUIDS[0]) is None
    again = host.turn()
    assert host.value(again, "gpu_fast.sm_active_ratio", UUIDS[0]) is None, "the same reading twice"


def test_a_multiplexed_zero_is_no_reading(make: Make) -> None:
    """DCGM 169: counters in use by another field read as an idle tensor core, and a job as stalled."""
    host = make()
    name = "gpu_fast.tensor_active_ratio"
    seen = []
    for index, tensor in enumerate(["0.5", "0.0", "0.5", "0.0", "0.0", "0.0"], start=1):
        host.profile(index, sm="0.9", graphics="1.0", tensor=tensor)
        seen.append(host.value(host.turn(), name, UUIDS[0]))
    assert seen == [0.5, None, 0.5, None, 0.0, 0.0]
    assert host.value(host.turn(), "dcgm.multiplexed_zeros_count") == 2
    host.profile(20, sm="0.0", graphics="0.0", tensor="0.0")
    assert host.value(host.turn(), "gpu_fast.sm_active_ratio", UUIDS[0]) == 0.0, "an idle GPU"


def test_a_pause_is_blind_and_not_idle(make: Make) -> None:
    host = make()
    host.profile(1, sm="0.9", graphics="1.0")
    host.turn()
    host.profile(2, sm="blank", graphics="blank")
    result = host.turn()
    assert result.outcome is CollectOutcome.BLIND and result.message.startswith("paused: ")
    assert host.value(result, "gpu_fast.sm_active_ratio", UUIDS[0]) is None
    assert host.value(result, "dcgm.connected_state") == 1
    host.profile(3, sm="0.8", graphics="1.0")
    assert host.turn().outcome is CollectOutcome.OK


@pytest.mark.parametrize("major", MAJORS)
def test_an_incident_is_told_with_dcgms_code_and_words(make: Make, major: int) -> None:
    host = make(
        "group 0 0x13", FAILURE, "incident 0 3 2 0x400 10 44 NVSwitch 2: SXid 11012", major=major
    )
    result = host.turn()
    assert host.value(result, "dcgm.health_systems_flags") == 0x13
    assert host.value(result, "dcgm.incidents_state") == 2
    failure, warning = host.events
    assert (failure.name, failure.device_kind, failure.device, failure.code) == (
        "gpu.dcgm_failure", "gpu", UUIDS[1], 3,
    )  # fmt: skip
    assert failure.message == "DCGM health, memory: 1 uncorrectable error in GPU 1"
    assert failure.attributes["system"] == "memory"
    assert (warning.name, warning.device_kind, warning.device) == (
        "gpu.dcgm_warning", "nvswitch", "nvswitch2",
    )  # fmt: skip


def test_an_incident_that_stands_is_told_again_as_the_same(make: Make) -> None:
    host = make("group 0 0x10", FAILURE)
    host.turn(310)
    assert [(event.revision, event.count) for event in host.events] == [(0, 1), (1, 2)]
    assert len({event.event_id for event in host.events}) == 1
    host.engine.lines.remove(FAILURE)
    assert host.value(host.turn(10), "dcgm.incidents_state") == 0
    assert len(host.events) == 2, "that DCGM finds nothing is told to nobody as health"


def test_an_xid_that_others_have_shown_is_one_event(make: Make) -> None:
    host = make()
    host.engine.set(0, 230, "i", 1, 0)
    host.engine.set(1, 230, "i", 1, 0)
    host.turn(10)
    at_us = host.clock.wall_ns() // 1000
    for number, code in ((0, 79), (1, 95)):
        host.engine.set(number, 230, "i", at_us, code)
    XID_DEDUPLICATOR.record(ADDRESSES[0], 79, host.clock.boottime_ns())
    host.turn(20)
    (event,) = host.events
    assert (event.name, event.code, event.device) == ("gpu.xid", 95, UUIDS[1])
    assert event.attributes["source"] == "dcgm" and event.boottime_ns == at_us * 1000
    host.engine.set(1, 230, "i", host.clock.wall_ns() // 1000, 43)
    NVML_XIDS.record(ADDRESSES[1], 43, host.clock.boottime_ns())
    result = host.turn(20)
    assert len(host.events) == 1 and host.value(result, "dcgm.told_by_others_events") == 2


def test_an_xid_of_before_the_connection_is_no_news(make: Make) -> None:
    host = make()
    host.engine.set(0, 230, "i", 1, 79)
    host.turn(30)
    assert not host.events


@pytest.mark.parametrize("major", MAJORS)
def test_watching_sets_health_fields_and_policies_once(make: Make, major: int) -> None:
    host = make("violation 1 0x8 1000000000 95 0", major=major, mode="watch")
    assert host.turn(70).outcome is CollectOutcome.OK
    calls = [call.split()[0] for call in host.engine.calls]
    assert calls.count("dcgmHealthSet_v2") == 1 and calls.count("dcgmWatchFields") == 2
    (event,) = host.events
    assert (event.name, event.code) == ("gpu.dcgm_policy", 0x8)
    assert event.message.startswith("DCGM policy: temperature 95 C")
    assert event.device == (UUIDS[1] if major == 4 else "host")


def test_health_that_somebody_watches_is_left_as_it_is(make: Make) -> None:
    host = make("group 2147483647 0x1", mode="watch")
    host.turn(5)
    assert not any("HealthSet" in call for call in host.engine.calls)


def test_watching_yields_to_a_profiler(make: Make) -> None:
    host = make("error dcgmWatchFields -34", mode="watch")
    result = host.turn()
    assert result.outcome is CollectOutcome.BLIND
    assert result.message.startswith("paused: profiling metrics cannot be watched")
    host.play()
    assert host.turn(61).outcome is CollectOutcome.OK


def test_no_engine_is_no_data_and_is_looked_for_each_ten_seconds(make: Make) -> None:
    host = make("down 1")
    result = host.turn(20)
    assert result.outcome is CollectOutcome.NO_DATA
    assert "no DCGM host engine answers at localhost:5555" in result.message
    connects = [call for call in host.engine.calls if "Connect" in call]
    assert connects == ["dcgmConnect_v2 localhost:5555 500"] * 2
    host.play()
    assert host.turn(10).outcome is CollectOutcome.OK


def test_an_engine_of_another_major_is_blind(make: Make) -> None:
    host = make("error dcgmConnect_v2 -12")
    result = host.turn()
    assert result.outcome is CollectOutcome.BLIND and "another major" in result.message


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["engine_version 3.3.8"], "library is 4.4.2 and its host engine 3.3.8"),
        (["engine_version 5.0.1"], "library is 4.4.2 and its host engine 5.0.1"),
        (["engine_version 4.7.1"], ""),
        (["engine_version 3.3.8", "error dcgmHostengineVersionInfo -6"], ""),
        (["error dcgmVersionInfo -6", "engine_version 3.3.8"], ""),
    ],
)
def test_different_majors_are_reported(make: Make, lines: list[str], told: str) -> None:
    """The engine accepted the connection, readings were missing, and nothing named the cause."""
    host = make(*lines)
    result = host.turn()
    assert result.outcome is (CollectOutcome.BLIND if told else CollectOutcome.OK)
    assert told in result.message and ("end of life" in result.message) == ("3.3.8" in told)
    assert host.value(result, "dcgm.connected_state") == 1, "what can be read is read"


def test_an_engine_that_was_restarted_is_taken_up_again(make: Make) -> None:
    host = make("group 0 0x10", FAILURE)
    host.turn()
    host.engine.lines.append("generation 1")
    outcomes = [host.turn().outcome for _ in range(10)]
    assert outcomes.count(CollectOutcome.ERROR) == 1, outcomes
    result = host.turn()
    assert result.outcome is CollectOutcome.OK
    assert host.value(result, "dcgm.reconnects_count") == 2
    assert len(host.events) == 1, "an incident that stood before is the same one"


def test_a_library_is_found_unloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CACHE", tmp_path / "none")
    monkeypatch.setattr(module, "_FOLDERS", (str(tmp_path),))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert not module.is_installed(Roots())
    (tmp_path / "libdcgm.so.3").touch()
    assert module.is_installed(Roots())
    (tmp_path / "libdcgm.so.3").unlink()
    monkeypatch.setattr(module, "_CACHE", tmp_path / "cache")
    (tmp_path / "cache").write_bytes(b"\0libdcgm.so.4\0/opt/libdcgm.so.4\0")
    assert module.is_installed(Roots())
