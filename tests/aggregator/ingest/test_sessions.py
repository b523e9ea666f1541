"""Checks of a registration; a dictionary is checked once for all agents of a version."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.aggregator.errors import InvalidArgument
from gangline.aggregator.ingest import sessions
from gangline.aggregator.ingest.sessions import CACHED_DICTIONARIES_MAX, check_request
from gangline.aggregator.store.frame_rows import ForeignSignal
from gangline.contract.signals import BY_NAME, FORMER_EVENTS
from gangline.contract.wire import telemetry_pb2 as wire

NEW = wire.SignalDefinition(signal_id=60_000, name="gpu.news_watts", kind="gauge", table="gpu_1s")


def test_a_dictionary_is_checked_once(make_agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand agents that return at once send ten thousand times the same 800 signals."""
    checked: list[int] = []
    check = sessions._check_signal

    def counted(signal: wire.SignalDefinition, foreign: dict[int, ForeignSignal]) -> None:
        checked.append(signal.signal_id)
        check(signal, foreign)

    monkeypatch.setattr(sessions, "_check_signal", counted)
    sessions._foreign.cache_clear()
    signals = [*make_agent().signals, NEW]
    for host in ("a", "b", "c"):
        foreign = check_request(make_agent(host=host, signals=signals).registration())
        assert foreign.keys() == {60_000} and foreign[60_000].name == NEW.name
    assert len(checked) == len(signals)


def test_a_wrong_dictionary_is_refused_each_time(make_agent: Any) -> None:
    """A refused dictionary is not cached as valid, nor are its other signals."""
    wrong = wire.SignalDefinition()
    wrong.CopyFrom(make_agent().signals[0])
    wrong.name = "gpu.other_watts"
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="of different builds"):
            check_request(make_agent(signals=[wrong]).registration())
        assert check_request(make_agent().registration()) == {}


async def test_an_agent_with_former_event_names_is_accepted(lab: Any, make_agent: Any) -> None:
    """The aggregator was upgraded first: agents of before the renaming were refused, and their spools grew."""
    for former, name in FORMER_EVENTS.items():
        signal = BY_NAME[name]
        definition = wire.SignalDefinition(
            signal_id=signal.signal_id, name=former, kind=signal.kind
        )
        assert check_request(make_agent(signals=[definition]).registration()) == {}
        definition.signal_id = 60_000
        with pytest.raises(InvalidArgument, match="has id 60000 there"):
            check_request(make_agent(signals=[definition]).registration())
    events = [
        wire.HealthEvent(event_id=former, name=former, device_kind="gpu", device="GPU-0")
        for former in FORMER_EVENTS
    ]
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
        request = wire.ReportEventsRequest(events=events)
        assert (await agent.stub.ReportEvents(request, metadata=agent.metadata)).accepted
    assert {name for (name,) in lab.rows("SELECT name FROM events")} == {*FORMER_EVENTS.values()}


def test_an_unknown_id_takes_no_known_name(make_agent: Any) -> None:
    """Its readings would appear under a wrong name: known names are refused for other ids."""
    for number, signal in enumerate(make_agent().signals):
        other = wire.SignalDefinition()
        other.CopyFrom(signal)
        other.signal_id = 50_000 + number
        with pytest.raises(
            InvalidArgument,
            match=f"{signal.name} has id {50_000 + number} there and {signal.signal_id} ",
        ):
            check_request(make_agent(signals=[other]).registration())


def test_many_dictionaries_take_no_memory(make_agent: Any) -> None:
    """A hostile agent has a new dictionary each time: it costs one check, and is evicted."""
    for number in range(3 * CACHED_DICTIONARIES_MAX):
        other = wire.SignalDefinition(signal_id=50_000 + number, name="gpu.x_count", kind="counter")
        assert len(check_request(make_agent(signals=[other]).registration())) == 1
    assert sessions._foreign.cache_info().currsize <= CACHED_DICTIONARIES_MAX
