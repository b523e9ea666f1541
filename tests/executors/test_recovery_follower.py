"""Following requeued jobs when the aggregator is slow, refuses or is unavailable: no job is kept from running."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from gangline.contract.wire import recovery_pb2, score_pb2
from gangline.executors.client import AggregatorClient, ClientError, NodeDictionary
from gangline.executors.model import Advice, Requeue, ScheduledJob, SchedulerState
from gangline.executors.recovery_follower import DICTIONARY_SECONDS, RecoveryFollower
from gangline.executors.settings import NodeNames

NOW = 1_800_000_000.0
JOB = ScheduledJob("17", "RUNNING", frozenset({"n0", "n1"}), 0, True, 4, NOW - 900, NOW - 800)
AGAIN = ScheduledJob("17", "RUNNING", frozenset({"n0", "n2"}), 1, True, 4, NOW - 900, NOW + 1)
ADVICE = Advice("a1", "e", "EVICT_NOW", "ACCEPTED", "n1", workload="17", proposed=NOW - 1)
REQUEUE = Requeue("a1", "", "17", 0)


class Answers:
    ahead_seconds = 0.0

    def __init__(self) -> None:
        self.dictionary: Any = NodeDictionary(1, ("n0", "n1", "n2"))
        self.plan: Any = None  # not here yet
        self.report: Any = None
        self.reports: list[recovery_pb2.ReportRecoveryRequest] = []
        self.dictionaries = 0

    def is_live(self) -> bool:
        return True

    def node_dictionary(self) -> Any:
        self.dictionaries += 1
        return self._answer(self.dictionary)

    def plan_recovery(self, request: object, seconds_max: float) -> Answers:
        return self

    def is_done(self) -> bool:
        return self.plan is not None

    def result(self) -> Any:
        return self._answer(self.plan)

    def report_recovery(self, request: recovery_pb2.ReportRecoveryRequest) -> None:
        self.reports.append(request)
        self._answer(self.report)

    @staticmethod
    def _answer(value: Any) -> Any:
        if isinstance(value, ClientError):
            raise value
        return value


def followed(answers: Answers) -> RecoveryFollower:
    """Return a follower whose job was just requeued."""
    client: Any = answers
    follower = RecoveryFollower(client, NodeNames(), "slurm")
    follower.refresh(0.0)
    follower.begin(REQUEUE, ADVICE, SchedulerState(jobs={"17": JOB}))
    follower.note(REQUEUE, "", NOW)
    return follower


def test_a_plan_that_does_not_come_holds_nothing_up() -> None:
    answers = Answers()
    follower = followed(answers)
    follower.collect()
    assert not follower.planned_nodes() and follower.is_urgent(NOW + 1)
    follower.finish(SchedulerState(jobs={"17": AGAIN}), NOW + 2)
    follower.send()
    (report,) = answers.reports
    assert report.success and not report.decision_id and not follower.is_urgent(NOW + 2)


def test_a_refused_plan_reads_the_names_again(caplog: pytest.LogCaptureFixture) -> None:
    """The aggregator began a new epoch: indexes of the old epoch name other hosts."""
    caplog.set_level("INFO")
    answers = Answers()
    follower = followed(answers)
    answers.plan = ClientError("FAILED_PRECONDITION: dictionary_version", False)
    follower.collect()
    assert "the scheduler chooses: FAILED_PRECONDITION" in caplog.text
    follower.refresh(1.0)
    assert answers.dictionaries == 2


def test_a_plan_of_another_epoch_is_not_read() -> None:
    """The plan's indexes name other hosts."""
    answers = Answers()
    follower = followed(answers)
    answers.plan = recovery_pb2.PlanRecoveryResponse(decision_id="d", dictionary_version=2)
    answers.plan.options.add(kind=recovery_pb2.RECOVERY_FREE_NODE, node_index=[0, 2])
    follower.collect()
    assert not follower.planned_nodes() and not follower.plan_texts("a1")


def test_a_requeue_that_failed_is_no_recovery() -> None:
    answers = Answers()
    follower = followed(answers)
    follower.note(REQUEUE, "disabled", NOW)
    follower.finish(SchedulerState(jobs={"17": AGAIN}), NOW + 2)
    follower.send()
    assert not answers.reports


@pytest.mark.parametrize(("is_temporary", "sent"), [(True, 2), (False, 1)])
def test_a_report_is_sent_again_only_where_that_may_help(is_temporary: bool, sent: int) -> None:
    """An aggregator that refuses a report was asked the same each second."""
    answers = Answers()
    follower = followed(answers)
    follower.finish(SchedulerState(jobs={"17": AGAIN}), NOW + 2)
    answers.report = ClientError("no", is_temporary)
    with pytest.raises(ClientError):
        follower.send()
    answers.report = None
    follower.send()
    assert len(answers.reports) == sent


def test_an_aggregator_without_names_is_asked_once_a_minute() -> None:
    """An older aggregator does not have the call."""
    answers = Answers()
    answers.dictionary = ClientError("UNIMPLEMENTED", False)
    follower = followed(answers)
    follower.refresh(DICTIONARY_SECONDS - 1)
    assert answers.dictionaries == 1
    follower.refresh(DICTIONARY_SECONDS)
    assert answers.dictionaries == 2


class ScoreStub:
    def __init__(self, reply: score_pb2.ScoreNodesResponse, *dictionaries: list[str]) -> None:
        self._reply, self._dictionaries = reply, list(dictionaries)

    def ScoreNodes(self, request: object, timeout: float) -> score_pb2.ScoreNodesResponse:
        return self._reply

    def GetNodeDictionary(self, request: object, timeout: float) -> score_pb2.NodeDictionary:
        return score_pb2.NodeDictionary(version=1, names=self._dictionaries.pop(0))


@pytest.mark.parametrize(
    ("reply", "buckets"),
    [
        ({"node_index": [0, 2], "bucket": b"\x00\x03"}, {"n0": 0, "n2": 3}),
        ({"node_index": [0, 1], "bucket": b"\x00"}, ClientError),
        ({"node_index": [0], "bucket": b"\x00", "degraded": True}, None),
        ({"node_index": [0, 3], "bucket": b"\x00\x01"}, {"n0": 0, "n3": 1}),  # n3 is new
        ({"node_index": [0, 9], "bucket": b"\x00\x01"}, {"n0": 0}),
    ],
)
def test_buckets(reply: dict[str, Any], buckets: Any) -> None:
    """A degraded reply changes no weight, and a damaged reply is ignored."""
    client = AggregatorClient(grpc.insecure_channel("127.0.0.1:1"), "x", lambda: None, str)
    message = score_pb2.ScoreNodesResponse(dictionary_version=1, **reply)
    client._scores = ScoreStub(message, ["n0", "n1", "n2"], ["n0", "n1", "n2", "n3"])
    if buckets is ClientError:
        with pytest.raises(ClientError):
            client.buckets()
    else:
        assert client.buckets() == buckets
