"""A slice of the injected table (`bench/quality/injected*.py`): one fault, one look-alike, real processes."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.quality import injected_stage
from bench.quality.injected import RoundResult, page
from bench.quality.injected_cable import Cable
from bench.quality.injected_faults import KINDS, InjectedKind
from bench.quality.injected_hosts import MEMORY, folder
from bench.quality.injected_stage import (
    APART_SECONDS,
    LISTED_SECONDS,
    NOT_LISTED,
    InjectedHost,
    Stage,
)
from gangline.aggregator.model import HealthState, Reason
from gangline.contract.client.connection import CommandError
from gangline.contract.wire.score_pb2 import Contribution, NodeScore
from tests.hosts import NO_NVML
from tests.processes import GUARD_SECONDS, until

#: Kernel log events need neither the inventory nor NVML, and a fake NVML takes long to build.
FAST = {"collectors_off": '["inventory"]', "nvml_library": NO_NVML}

#: Seconds of the stage's clock after which all faults are injected.
PLAY_SECONDS = APART_SECONDS + 2


def kind_of(message: str) -> InjectedKind:
    (match,) = (kind for kind in KINDS if message in kind.name)
    return match


@pytest.mark.slow
def test_a_gpu_off_the_bus_is_named_on_its_host_and_a_programs_fault_on_none(
    tmp_path: Path,
) -> None:
    """The page has the rates and delays; this test checks how they are produced."""
    kinds = kind_of("XID 79, off"), kind_of("XID 43")
    with folder(MEMORY) as hosts, Stage(tmp_path, hosts, kinds, 1, judge_seconds=0.2) as stage:
        fault, control = stage.subjects

        def told() -> bool:
            reported_nodes = {host.node for host in stage._request() or [] for contribution in host.contributions if contribution.signal == "gpu.xid"}  # fmt: skip
            return (
                fault.named_seconds is not None and f"nodes/{control.host.name}" in reported_nodes
            )

        stage.open(**FAST)
        until(lambda: len(stage._request() or []) == len(kinds), "both hosts are listed")
        stage.play(GUARD_SECONDS, told, apart_seconds=0.0)
        stage.poll()
        assert told()
        unanswered = stage.unanswered
        stage.aggregator.kill()
        stage.poll()
        assert stage.unanswered == unanswered + 1 and fault.state is HealthState.UNHEALTHY
        text = page([RoundResult(stage.subjects, stage.requests, stage.unanswered)], 1)
    assert (fault.named, fault.named_for) == (HealthState.UNHEALTHY, Reason.XID_FATAL)
    assert "XID 79: GPU has fallen off the bus" in fault.message
    assert not fault.others and not control.others
    assert (
        f"Of {stage.requests:,} requests to the API {stage.unanswered} were not answered within 5 s."
        in text
    )
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line[:1] == "|"}
    assert "1 of 1" in rows[fault.kind.name] and "UNHEALTHY, XID_FATAL" in rows[fault.kind.name]
    assert "0 of 1" in rows[control.kind.name] and "nothing" in rows[control.kind.name]


@pytest.mark.slow
def test_advice_about_one_host_hides_none_about_another(tmp_path: Path) -> None:
    """In such a small fleet one host may be out: "about controls, 0 of 45" was true only because
    advice about a second host was held back.
    """
    kinds = [kind_of("XID 79, off")] * 2
    with folder(MEMORY) as hosts, Stage(tmp_path, hosts, kinds, 1, judge_seconds=0.2) as stage:
        stage.open(**FAST)
        until(lambda: len(stage._request() or []) == len(kinds), "both hosts are listed")
        stage.play(
            GUARD_SECONDS,
            lambda: all(subject.named_seconds is not None for subject in stage.subjects),
            apart_seconds=0.0,
        )

        def advised() -> bool:
            stage.ask_advice()
            return all(subject.advised for subject in stage.subjects)

        until(advised, "something is advised about both")


class Played(Stage):
    """A stage without processes: `says` sets the API's answers at each second of the test's clock."""

    def __init__(self, place: Path, names: tuple[str, ...]) -> None:
        super().__init__(place, place, [kind_of(name) for name in names], 1)
        for subject in self.subjects:
            subject.act = iter(())
        self.seconds = 0.0
        self.restarted: float | None = None
        self.aggregator = SimpleNamespace(log="", kill=lambda: None, start=self._starts)  # type: ignore[assignment]
        self.says: Callable[[InjectedHost], NodeScore | None] = self.score

    def _starts(self) -> None:
        self.restarted = self.seconds

    @property
    def since(self) -> float:
        """Return the seconds since the restart; negative before it."""
        return -1.0 if self.restarted is None else self.seconds - self.restarted

    def listing(self) -> list[NodeScore]:
        return [score for subject in self.subjects if (score := self.says(subject)) is not None]

    @staticmethod
    def score(subject: InjectedHost) -> NodeScore:
        kind, node = subject.kind, f"nodes/{subject.host.name}"
        if kind.is_control or not subject.began:
            return NodeScore(node=node, state="HEALTHY")
        (device, *_), reason = kind.about(subject.host), f"REASON_{kind.reasons[0].name}"
        against = Contribution(reason=reason, device=device, log_hazard_delta=1.0)
        return NodeScore(
            node=node, state=kind.states[0].name, reason=reason, contributions=[against]
        )


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """Yield a correctly reported fault and a correctly reported control, on a clock without waiting."""
    stage = Played(tmp_path, ("XID 79, off", "XID 43"))

    def sleep(seconds: float) -> None:
        stage.seconds += max(seconds, 0.001)

    clock = SimpleNamespace(monotonic=lambda: 1000.0 + stage.seconds, sleep=sleep)
    monkeypatch.setattr(injected_stage, "time", clock)
    return stage


def _restarts(stage: Stage) -> str:
    text = page([RoundResult(stage.subjects, stage.requests, stage.unanswered)], 1)
    return text[text.index("Then the aggregator is killed") :]


def test_a_host_that_the_api_says_nothing_of_is_no_host_that_stands(played: Played) -> None:
    """A restarted aggregator forgot the host: "0 of 95 changed", because no new score of it came."""
    fault, control = played.subjects
    played.says = lambda each: None if each is fault and played.since >= 0 else played.score(each)
    played.play(PLAY_SECONDS)
    assert fault.named_seconds is not None
    played.restart(LISTED_SECONDS - 1)
    assert not fault.changed, "it registers again"
    played.restart(LISTED_SECONDS + 1)
    assert fault.changed == [NOT_LISTED] and not control.changed
    assert "Of the lasting faults, 1 of 1" in _restarts(played)
    assert f"- {fault.kind.name}: not listed" in _restarts(played)


def test_a_control_that_is_not_listed_is_not_well(played: Played) -> None:
    """A host without any score could not fail."""
    _, control = played.subjects
    played.says = lambda each: None if each is control and played.seconds > 1 else played.score(each)  # fmt: skip
    played.play(PLAY_SECONDS)
    assert [other.name for other in control.others.values()] == [NOT_LISTED]
    text = page([RoundResult(played.subjects, played.requests, played.unanswered)], 1)
    (row,) = (line for line in text.splitlines() if line.startswith(f"| {control.kind.name}"))
    assert "1 of 1" in row and "not listed (1 of 1)" in row


def test_a_question_that_is_not_answered_makes_no_host_vanish(played: Played) -> None:
    """A busy machine: an unanswered query is counted, and the states of the hosts stay."""

    def says(each: InjectedHost) -> NodeScore:
        if 1 < played.seconds < 2 or played.since > 1:
            raise CommandError("no answer within 5 s", 1)
        return played.score(each)

    played.says = says
    played.play(PLAY_SECONDS)
    played.restart(LISTED_SECONDS + 2)
    assert played.unanswered > 2
    assert not any(subject.changed for subject in played.subjects)
    assert not any(subject.others for subject in played.subjects)
    assert "not listed (" not in page([RoundResult(played.subjects, 1, 1)], 1)


def test_a_fault_that_is_named_only_after_it_was_watched_is_not_named(played: Played) -> None:
    """ "Watched for 47 s" was not a limit: the restart of the aggregator gave the fault more time."""
    fault, _ = played.subjects
    well = NodeScore(node=f"nodes/{fault.host.name}", state="HEALTHY")
    played.says = lambda each: well if each is fault and played.since < 1 else played.score(each)
    played.play(PLAY_SECONDS)
    played.restart(3.0)
    assert fault.state is HealthState.UNHEALTHY, "it was told at last"
    assert fault.named_seconds is None


def test_a_cut_wire_loses_nothing() -> None:
    """A relay that dropped its buffered bytes would test the spool with an unrealistic fault."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        cable = Cable(server.getsockname()[1])
        with socket.create_connection(("127.0.0.1", cable.port)) as client:
            peer, _ = server.accept()
            with peer:
                peer.settimeout(GUARD_SECONDS)
                client.sendall(b"one ")
                assert peer.recv(100) == b"one "
                cable.cut()
                client.sendall(b"two ")
                assert not select.select([peer], [], [], 0.1)[0]
                cable.mend()
                assert peer.recv(100) == b"two "
        cable.close()
