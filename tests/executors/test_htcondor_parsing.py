"""Parsing of HTCondor's ads, without HTCondor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from gangline.contract.settings import SettingsError, load
from gangline.executors.htcondor.scheduler import (
    IDLE,
    SAFE_TO_DRAIN,
    HTCondor,
    HTCondorConfig,
    doctor_findings,
    node_of,
    parse_jobs,
)
from gangline.executors.model import Drain, Reboot, Resume, SchedulerError

OURS = "gangline:v1;act=drain;cause=xid;ttl=60;adv=a1"
JOB = {
    "ClusterId": 3, "ProcId": 0, "JobUniverse": 11, "JobStatus": 2, "AllRemoteHosts": "slot1@n1.local,slot1_2@n2.local", "NumShadowStarts": 2,
    "QDate": 10, "JobCurrentStartDate": 20, "EnteredCurrentStatus": 20, "RequestGpus": 4, "CurrentHosts": 2,
}  # fmt: skip


def slot(machine: str = "n1.local", **fields: Any) -> dict[str, Any]:
    return {"Machine": machine, "State": "Unclaimed", "MaxJobRetirementTime": "/Expr(30 * 86400)/", **fields}  # fmt: skip


class FakeCommands:
    """Prints *slots*, and records the other commands."""

    def __init__(self, *slots: dict[str, Any], text: str | None = None) -> None:
        self.slots, self.text = list(slots), text
        self.changes: list[list[str]] = []
        #: Error text of each command that changes something.
        self.error = ""

    def __call__(self, command: Sequence[str]) -> str:
        if command[0] == "condor_version":
            return "$CondorVersion: 23.9.6 2026-07-12 PackageID: x $\n"
        if command[0] in ("condor_status", "condor_q"):
            if self.text is not None:
                return self.text
            return json.dumps(self.slots) if command[0] == "condor_status" and self.slots else ""
        self.changes.append(list(command))
        if self.error:
            raise SchedulerError(self.error)
        if "-reason" in command:
            self.slots = [slot(Draining=True, DrainReason=command[3], DrainingRequestId="8")]
        elif "-cancel" in command:
            self.slots = [slot()]
        return ""


def test_a_job_of_several_machines_and_one_of_one() -> None:
    jobs = parse_jobs([JOB, {**JOB, "ProcId": 1, "JobUniverse": 5, "RemoteHost": "slot1_1@n3.local"}])  # fmt: skip
    job = jobs["3.0"]
    assert (job.state, job.nodes, job.restarts, job.gpus) == ("RUNNING", frozenset({"n1.local", "n2.local"}), 1, 8)  # fmt: skip
    assert (job.submitted, job.started) == (10.0, 20.0)
    assert jobs["3.1"].nodes == {"n3.local"}


def test_a_job_that_waits_has_no_machines_though_its_ad_names_them() -> None:
    """AllRemoteHosts stays in the ad after an eviction: the job would never have left its node."""
    job = parse_jobs([{**JOB, "JobStatus": 1}])["3.0"]  # fmt: skip
    assert (job.state, job.nodes, job.restarts, job.started) == ("PENDING", frozenset(), 2, 0.0)


@pytest.mark.parametrize("ad", [{}, {**JOB, "JobStatus": 9}, {**JOB, "ClusterId": -1}, {**JOB, "ClusterId": 1e30}])  # fmt: skip
def test_what_is_no_job_is_left_out(ad: dict[str, Any]) -> None:
    assert not parse_jobs([ad])


def test_machines() -> None:
    assert not node_of("n1", [slot()]).out
    person = node_of("n1", [slot(), slot(Draining=True, DrainReason="burn-in")])
    assert (person.out, person.is_managed) == ("drained: burn-in", False)
    assert node_of("n1", [slot(Draining=True, DrainReason=OURS)]).is_managed


def test_only_our_drain_is_cancelled_and_by_its_number() -> None:
    for reason, expected in ((OURS, [["condor_drain", "-cancel", "-request-id", "7", "n1.local"]]), ("burn-in", [])):  # fmt: skip
        commands = FakeCommands(slot(Draining=True, DrainReason=reason, DrainingRequestId="7"))
        assert not HTCondor(commands).apply([Resume("a1", "", "n1.local")])
        assert commands.changes == expected


def test_a_drain_that_would_evict_jobs_is_refused() -> None:
    """With the stock MAXJOBRETIREMENTTIME of 0, `condor_drain -graceful` ends what runs: the machine itself checks that."""
    drain = Drain("a1", "", "n1.local", OURS, 9.0)
    commands = FakeCommands(slot(State="Claimed", MaxJobRetirementTime=0))
    commands.error = "error code 10003: Draining check expression is false on slot1@n1.local."
    errors = HTCondor(commands).apply([drain])
    assert "MaxJobRetirementTime is below 86400 s there. Set MAXJOBRETIREMENTTIME to 86400 or more" in errors[drain]  # fmt: skip
    assert commands.changes == [["condor_drain", "-graceful", "-reason", OURS, "-check", SAFE_TO_DRAIN, "n1.local"]]  # fmt: skip
    commands.error = "no route to n1.local"
    assert HTCondor(commands).apply([drain]) == {drain: "no route to n1.local"}
    commands.error = ""
    findings = list(doctor_findings(HTCondor(commands)))
    assert [finding.level for finding in findings] == ["ok", "missing", "note"]


def test_a_cancel_restores_the_retirement_time_that_htcondor_took_away() -> None:
    """The last job has left the machine: a second drain, which a busy machine refuses, sets it back."""
    drained = slot(Draining=True, DrainReason=OURS, DrainingRequestId="7", State="Drained", MaxJobRetirementTime=0)  # fmt: skip
    commands, cancel = FakeCommands(drained), ["condor_drain", "-cancel", "-request-id", "7", "n1.local"]  # fmt: skip
    again = ["condor_drain", "-graceful", "-reason", OURS, "-check", IDLE, "n1.local"]  # fmt: skip
    assert not HTCondor(commands, sleep=lambda seconds: None, monotonic=count().__next__).apply([Resume("a1", "", "n1.local")])  # fmt: skip
    assert commands.changes == [cancel, again, [*cancel[:3], "8", "n1.local"]]


def test_a_drain_that_stands_is_not_sent_again() -> None:
    commands = FakeCommands(slot(Draining=True, DrainReason=OURS, DrainingRequestId="7"))
    assert not HTCondor(commands).apply([Drain("a1", "", "n1.local", OURS, 9.0)])
    assert not commands.changes


def test_names_that_could_change_an_expression_are_not_asked_for() -> None:
    commands = FakeCommands(slot())
    assert HTCondor(commands).read_nodes(['n1") || true || ("']) == {}


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_output_that_is_not_json(text: str) -> None:
    with pytest.raises(SchedulerError, match="condor_status: its output is not JSON"):
        HTCondor(FakeCommands(text=text)).read_nodes()
    assert HTCondor(FakeCommands(text="3")).read_nodes() == {}


def test_what_is_left_to_people() -> None:
    step = Reboot("a1", "", "n1.local", "x")
    assert HTCondor(FakeCommands()).apply([step]) == {step: "Reboot is not a step of HTCondor"}
    for wrong in ("mark=hold", 'actions=["REBOOT"]'):
        with pytest.raises(SettingsError, match="this scheduler"):
            load(HTCondorConfig, None, [wrong])
