"""EVICT_NOW ends replicas of torchft: over the real lighthouse and managers if installed, else over
fakes with the same bytes.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.aggregator.advisories.advisory import Action
from gangline.contract.settings import SettingsError, load
from gangline.executors import core, ledger_updates
from gangline.executors.core import decide
from gangline.executors.launchers import torchft
from gangline.executors.launchers.torchft import (
    PAGE_BYTES_MAX,
    LighthouseError,
    Replica,
    ReplicaKiller,
    is_on_node,
    kill_request,
    parse_status,
)
from gangline.executors.ledger import HOLD, SET, Entry, ExecutorLedger
from gangline.executors.model import (
    Advice,
    Answer,
    ExecutorPolicy,
    KillReplicas,
    Node,
    NodeHold,
    SchedulerState,
    Situation,
)
from gangline.executors.settings import LIGHTHOUSES_MAX, ExecutorConfig
from gangline.executors.step_log import describe
from tests.executors.advice_server import serving_advice
from tests.executors.contract import Rig
from tests.executors.model_scheduler import ModelScheduler
from tests.executors.test_contract_model import ModelSite
from tests.torchft_rig import MISSING, StandInRig, TorchftRig, has_torchft, status_page, torchft_rig

#: Both on this machine; a loopback address belongs to no node.
REPLICAS = {"train_0:aaaa": "localhost", "train_1:bbbb": "127.0.0.1"}

NOW = 10_000.0
ADVICE = Advice(
    "a1", "a1-2", "EVICT_NOW", "ACCEPTED", "n1", reason="XID 79", owner="me", token=5, expires=NOW + 600, lease_until=NOW + 600,
)  # fmt: skip
ENTRY = Entry(
    "a1",
    "n1",
    "EVICT_NOW",
    "me",
    5,
    NOW - 1,
    NOW + 600,
    HOLD,
    "gangline_a1_evict",
    SET,
    NOW,
    NOW + 600,
)
STATE = SchedulerState(
    {"n1": Node("n1", "IDLE")},
    holds={"gangline_a1_evict": NodeHold("gangline_a1_evict", frozenset(["n1"]), NOW + 600)},
)


@pytest.fixture(
    params=[
        pytest.param(False, id="stand-in"),
        pytest.param(True, id="real", marks=pytest.mark.skipif(not has_torchft(), reason=MISSING)),
    ],
    scope="module",
)
def fleet(request: pytest.FixtureRequest) -> Iterator[TorchftRig]:
    with torchft_rig(REPLICAS, is_real=request.param) as rig:
        yield rig


class LocalSite(ModelSite):
    """A cluster whose first node is this machine."""

    def __init__(self) -> None:
        self._model = ModelScheduler(["localhost", "n2", "n3"])


def test_an_eviction_ends_the_replica_on_the_node_alone(fleet: TorchftRig, tmp_path: Path) -> None:
    """The others waited for a heartbeat of 5 s that could not come."""
    closed = "http://127.0.0.1:1"
    with serving_advice() as advice, ExitStack() as stack:
        rig = Rig(LocalSite(), advice, tmp_path, stack)
        rig.start(poll_seconds=0.05, torchft_lighthouses=(closed, fleet.lighthouse))
        rig.until(lambda: rig.client is not None and rig.client.is_live(), "live")
        advice.fault("localhost", Action.EVICT_NOW)
        rig.until(lambda: rig.is_done("localhost"), "done")
        fleet.await_end("train_0:aaaa")
        assert fleet.alive() == {"train_1:bbbb"}
        advisory = advice.of("localhost")
        assert advisory is not None
        assert "ended replica train_0:aaaa of torchft" in advisory.state_message
        assert f"lighthouse {closed}: no answer" in advisory.state_message
        assert rig.exported.count("KillReplicas") == 1
    if isinstance(fleet, StandInRig):
        assert fleet.requests == [("train_0:aaaa", kill_request(f"gangline: {advisory.name}"))]


def situation(advice: Advice = ADVICE, *, kills: bool = True) -> Situation:
    policy = ExecutorPolicy(kill_replicas=kills)
    return Situation({"a1": advice}, STATE, NOW, True, policy=policy)


def test_it_is_done_once_an_advisory_even_if_killed_between(tmp_path: Path) -> None:
    """A replica that had just started again on another node with the same name was ended, too."""
    ledger = ExecutorLedger(tmp_path / "ledger.json")
    ledger.add(replace(ENTRY))
    (kill,) = decide(situation(), ledger)
    assert kill == KillReplicas("a1", kill.why, "n1")
    ledger_updates.record_intent(kill, ledger, situation())
    ledger.save()
    again = ExecutorLedger(tmp_path / "ledger.json")
    (answer,) = decide(situation(), again)
    assert isinstance(answer, Answer) and ledger_updates.REPLICAS_UNKNOWN in answer.why
    ledger_updates.record_accept(again, situation(), replace(ADVICE, token=6))
    entry = again.get("a1")
    assert entry is not None and entry.replicas == ledger_updates.REPLICAS_UNKNOWN


@pytest.mark.parametrize(
    ("action", "kills"), [("EVICT_NOW", False), ("DRAIN_AFTER_JOB", True), ("AVOID", True)]
)
def test_nothing_is_ended_unless_set_and_for_an_eviction(
    action: str, kills: bool, tmp_path: Path
) -> None:
    ledger = ExecutorLedger(tmp_path / "ledger.json")
    ledger.add(replace(ENTRY, action=action))
    steps = decide(situation(replace(ADVICE, action=action), kills=kills), ledger)
    assert not [step for step in steps if isinstance(step, KillReplicas)]


def test_in_shadow_it_is_a_step_of_the_plan() -> None:
    """The operator reads the plan before any step runs."""
    steps = core.plan(situation(replace(ADVICE, state="PROPOSED")), ADVICE)
    assert [type(step).__name__ for step in steps] == ["PlaceHold", "KillReplicas"]
    assert len(core.plan(situation(kills=False), ADVICE)) == 1
    assert describe(steps[1]) == "KillReplicas node=n1"


def test_the_page_of_a_lighthouse_is_read() -> None:
    """Only members of the quorum have an address; a member with only a heartbeat has no address."""
    replicas = {"train_1:uuid-1": "http://gpu02:29512", "b&amp;c": "http://[fd00::1]:7/"}
    assert parse_status(status_page(replicas)) == [
        Replica("train_1:uuid-1", "gpu02", 29512),
        Replica("b&c", "fd00::1", 7),
    ]
    assert parse_status(status_page({})) == []
    wrong = {"a": "https://gpu02:1", "b": "http://gpu02", "c": "http://gpu02:99999", "d": "gpu02:1"}
    assert parse_status(status_page(wrong)) == []
    with pytest.raises(LighthouseError, match="not a lighthouse's"):
        parse_status("<html>nginx</html>")


def test_a_page_made_to_take_long_does_not() -> None:
    """4 MB of half members were read for minutes."""
    page = "quorum" + "<b>x</b> " * (PAGE_BYTES_MAX // 9)
    assert parse_status(page) == []


@pytest.mark.parametrize(
    ("host", "names", "found"),
    [
        ("gpu02", {"gpu02"}, True),
        ("GPU02", {"gpu02"}, True),
        ("gpu02.cluster", {"gpu02"}, True),
        ("gpu02", {"gpu02.cluster"}, True),
        ("gpu02.east", {"gpu02.west"}, False),
        ("gpu021", {"gpu02"}, False),
        ("10.0.0.2", {"gpu02"}, True),
        ("10.0.0.3", {"10"}, False),
    ],
)
def test_which_replica_is_on_a_node(host: str, names: set[str], found: bool) -> None:
    """Ending the wrong host's replica costs a healthy replica."""
    assert is_on_node(Replica("r", host, 1), names, {"10.0.0.2"}) == found


def test_an_address_of_loopback_is_no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian resolves a host's own name to 127.0.1.1, and each job's replica on the head node seemed to be on any node."""
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in ("127.0.1.1", "10.0.0.2")]  # fmt: skip
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    assert torchft.addresses_of({"gpu02"}) == {"10.0.0.2"}


def test_a_manager_that_is_gone_is_said() -> None:
    """The answer to the aggregator reports the failure; nothing is raised into the loop."""
    with ExitStack() as stack:
        rig = stack.enter_context(torchft_rig({"r": "localhost"}, is_real=False))
        lighthouse = rig.lighthouse
        assert ReplicaKiller((lighthouse,)).kill({"n7"}, "x") == (
            "no replica of torchft was on it",
            "",
        )
        assert ReplicaKiller((lighthouse,)).kill({"localhost"}, "x") == (
            "ended replica r of torchft",
            "",
        )
        torchft_seconds, torchft.CALL_SECONDS = torchft.CALL_SECONDS, 0.2
        try:
            note, error = ReplicaKiller((lighthouse,)).kill({"localhost"}, "x")
        finally:
            torchft.CALL_SECONDS = torchft_seconds
        assert "does not answer" in error and note == f"torchft failed: {error}"


def test_the_request_is_a_string_in_field_1() -> None:
    """The bytes equal protobuf's; a long message is cut."""
    assert kill_request("gangline: a1") == b"\x0a\x0cgangline: a1"
    assert len(kill_request("é" * 500)) == 2 + 126


@pytest.mark.parametrize(
    "address", ["head:29510", "https://head:29510", "http://head", "http://u@head:1", "http://head:1/x"]
)  # fmt: skip
def test_a_wrong_address_says_what_would_be_right(address: str) -> None:
    """The error comes at start, not at the first eviction."""
    with pytest.raises(SettingsError, match=r"http://head:29510"):
        load(ExecutorConfig, None, [f'torchft_lighthouses=["{address}"]'])
    many = [f"http://head:{port}" for port in range(1, LIGHTHOUSES_MAX + 2)]
    with pytest.raises(SettingsError, match="at most 16"):
        load(ExecutorConfig, None, [f"torchft_lighthouses={many}".replace("'", '"')])
