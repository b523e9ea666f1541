"""Why a job waits, from scontrol's text: each node falls out by one thing, and the sentence names the first that leaves too few."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.executors.mirror_format import MirrorError
from gangline.executors.slurm.pending_job import (
    PendingJob,
    SlurmNode,
    obstacle,
    parse_job,
    parse_licenses,
    parse_nodes,
    parse_reservations,
    steps_of,
    verdict,
)

#: As Slurm 22.05.8 shows them.
JOB = (
    "JobId=5 JobName=a b UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901755 Nice=0 Account=(null) QOS=(null)"
    " JobState=PENDING Reason=Resources Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:00"
    " TimeLimit=UNLIMITED StartTime=Unknown Partition=main AllocNode:Sid=vm:7 ReqNodeList=(null) ExcNodeList=gpu[7-8] NodeList="
    " NumNodes=4-4 NumCPUs=8 NumTasks=8 CPUs/Task=1 ReqB:S:C:T=0:0:*:* TRES=cpu=8,mem=400M,node=4,billing=8,gres/gpu=16"
    " Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* MinCPUsNode=1 MinMemoryNode=2G MinTmpDiskNode=0 Features=a&b DelayBoot=00:00:00"
    " Reservation=mine OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null) Command=(null) WorkDir=/ Power= TresPerNode=gres:gpu:h100:4"
)
NODE = (
    "NodeName=gpu2 Arch=x86_64 CoresPerSocket=4  CPUAlloc=3 CPUEfctv=8 CPUTot=8 CPULoad=7.71 AvailableFeatures=a,b,c"
    " ActiveFeatures=a,b Gres=gpu:h100:4(S:0-1) GresDrain=N/A GresUsed=gpu:h100:2(IDX:0,3) NodeAddr=127.0.0.1 Version=22.05.8 OS=Linux 6.18 #1 SMP @0  RealMemory=100 AllocMem=50"
    " FreeMem=17882 Sockets=2 Boards=1 State=MIXED+DRAIN* ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A"
    " Partitions=main,large  BootTime=None CfgTRES=cpu=8,mem=100M,billing=8,gres/gpu=4 AllocTRES=cpu=3 CapWatts=n/a"
    " Reason=burn in State=IDLE [root@2026-11-28T01:37:18]"
)
RESERVATIONS = (
    "ReservationName=mine StartTime=2026-11-28T01:00:00 Nodes=gpu[1-2] NodeCnt=2 Users=root State=ACTIVE\n"
    "ReservationName=later StartTime=2027-11-28T01:00:00 Nodes=gpu3 State=INACTIVE\n"
)


def test_a_job_is_read_as_slurm_shows_it() -> None:
    job = parse_job(JOB)
    assert job == PendingJob(
        "5", "PENDING", "Resources", 4, frozenset(["main"]), 4, 2, 2048, frozenset("ab"), frozenset(), frozenset(["gpu7", "gpu8"]), "mine",
        {"gpu:h100": 4},
    )  # fmt: skip
    assert parse_job(JOB.replace("Features=a&b", "Features=[a|b]")).features is None
    assert parse_job(JOB.replace("TresPerNode=gres:gpu:h100:4", "")).gpus_per_node == 4
    assert (
        parse_job(
            JOB.replace("TresPerNode=gres:gpu:h100:4", "TresPerJob=gres:gpu:30")
        ).gpus_per_node
        == 8
    )
    assert parse_job(JOB.replace("gres:gpu:h100:4", "gres:gpu")).gpus_per_node == 1
    other = parse_job(JOB.replace("gres:gpu:h100:4", "gres/gpu:4,gres/lic:2"))
    assert other.gpus_per_node == 4 and other.gres == {"lic": 2}


@pytest.mark.parametrize(
    ("requested", "licenses"),
    [("tool:2,ansys@db", {"tool": 2, "ansys@db": 1}), ("a:1|b:1", {}), ("(null)", {})],
)
def test_licenses_are_read_as_slurm_shows_them(requested: str, licenses: dict[str, int]) -> None:
    """Alternatives need none of the licenses for certain."""
    assert parse_job(JOB.replace("Licenses=(null)", f"Licenses={requested}")).licenses == licenses
    shown = "LicenseName=tool Total=2 Used=2 Free=0 Reserved=0 Remote=no\n"
    assert parse_licenses(shown) == {"tool": 2}
    assert parse_licenses("No licenses configured in Slurm.\n") == {}


def test_a_node_is_read_as_slurm_shows_it() -> None:
    """A node's reason is free text that looks like fields."""
    assert parse_nodes(NODE) == [
        SlurmNode(
            "gpu2", frozenset(["MIXED", "DRAIN", "NOT_RESPONDING"]), "burn in State=IDLE", frozenset(["main", "large"]),
            frozenset("ab"), 4, 2, 8, 3, 100, 50,
            {"gpu": 4, "gpu:h100": 4},
        )
    ]  # fmt: skip


def test_only_active_reservations_count() -> None:
    assert parse_reservations(RESERVATIONS) == {"mine": {"gpu1", "gpu2"}}
    assert parse_reservations("No reservations in the system\n") == {}


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error: Invalid job id specified", "x" * 10_000])  # fmt: skip
def test_a_text_that_is_not_slurms_is_rejected(text: str) -> None:
    with pytest.raises(MirrorError, match="expected the text of scontrol"):
        parse_job(text)
    with pytest.raises(MirrorError, match="expected the text of scontrol"):
        parse_nodes(text)


def node(name: str, **changes: Any) -> SlurmNode:
    fields: dict[str, Any] = {
        "flags": frozenset(["IDLE"]), "reason": "", "partitions": frozenset(["main"]), "features": frozenset("ab"), "gpus": 4,
        "gpus_used": 0, "cpus": 8, "cpus_used": 0, "memory_mb": 4096, "memory_mb_used": 0,
    }  # fmt: skip
    return SlurmNode(name=name, **(fields | changes))


def job(**changes: Any) -> PendingJob:
    fields: dict[str, Any] = {
        "number": "5", "state": "PENDING", "reason": "Resources", "nodes": 2, "partitions": frozenset(["main"]), "gpus_per_node": 4,
        "cpus_per_node": 2, "memory_mb_per_node": 2048, "features": frozenset("a"), "named": frozenset(), "left_out": frozenset(["x"]),
        "reservation": "",
    }  # fmt: skip
    return PendingJob(**(fields | changes))


def test_each_node_falls_out_by_one_thing() -> None:
    """The job's wishes are checked before the cluster's limits; each reason is counted."""
    nodes = [
        node("other", partitions=frozenset(["large"])), node("plain", features=frozenset("b")), node("small", gpus=2), node("x"),
        node("gone", flags=frozenset(["IDLE", "DRAIN"]), reason="gangline:v1;act=drain"), node("down", flags=frozenset(["DOWN"])),
        node("reserved"), node("busy", gpus_used=1), node("full", cpus_used=7), node("bad"), node("good"),
    ]  # fmt: skip
    steps, left = steps_of(job(), nodes, {"r1": ["reserved"]}, {"bad": "UNHEALTHY: score 0.000"})
    assert left == ["good"]
    assert [(step.name, step.left, step.lost) for step in steps] == [
        ("all nodes", 11, ()),
        ("partition", 10, ("other",)),
        ("features", 9, ("plain",)),
        ("size", 8, ("small",)),
        ("left out by the job", 7, ("x",)),
        ("state", 5, ("gone", "down")),
        ("reservations", 4, ("reserved",)),
        ("in use", 2, ("busy", "full")),
        ("health", 1, ("bad",)),
    ]
    why = {step.name: dict(step.why) for step in steps}
    assert why["size"] == {"2 GPUs of 4": 1} and why["reservations"] == {"r1": 1}
    assert why["state"] == {"DRAIN: gangline:v1;act=drain": 1, "DOWN": 1}
    assert verdict(job(), steps) == "from 'health' on too few nodes are left: 1 of the 2 that it needs (Slurm: Resources)"  # fmt: skip


@pytest.mark.parametrize(
    "state", ["IDLE+MAINTENANCE+RESERVED", "IDLE+INVALID_REG", "IDLE+BLOCKED", "IDLE+POWER_DOWN", "mix$", "DOWN*"]
)  # fmt: skip
def test_no_job_starts_on_a_node_in_such_a_state(state: str) -> None:
    """A node in maintenance counted as available, because scontrol writes MAINTENANCE and sinfo MAINT."""
    (parsed_node,) = parse_nodes(NODE.replace("State=MIXED+DRAIN*", f"State={state}"))
    steps, left = steps_of(job(gpus_per_node=1, memory_mb_per_node=10), [parsed_node], {})
    assert left == [] and steps[-1].name == "state"


@pytest.mark.parametrize(
    ("changes", "nodes", "reason"),
    [
        ({}, "abc", ""),
        ({}, "ab", "without a, 1 node left for the 2 that it needs (partition)"),
        ({"named": frozenset("a")}, "abc", "it asks for a (--nodelist)"),
        ({"named": frozenset("b")}, "abc", ""),
        ({"features": frozenset("f")}, "abc", "without a, 1 node left for the 2 that it needs (features)"),
        ({"features": None}, "abc", ""),
        ({"reservation": "r"}, "abc", "without a, 1 node left for the 2 that it needs (its reservation)"),
        ({"gpus_per_node": 8}, "abc", "without a, 0 nodes left for the 2 that it needs (size)"),
        ({"gres": {"lic": 1}, "nodes": 1}, "bc", "without a, 0 nodes left for the 1 that it needs (size)"),
        ({"gres": {"gpu:h100": 4}, "nodes": 1}, "bc", "without a, 0 nodes left for the 1 that it needs (size)"),
        ({"gres": {"gpu:a100": 4}, "nodes": 1}, "bc", ""),
        ({"licenses": {"tool": 2, "ansys@db": 1}}, "abc", ""),
        ({"licenses": {"tool": 3}}, "abc", "it needs 3 of license tool, and Slurm has 2"),
        ({"licenses": {"gone": 1}}, "abc", "it needs 1 of license gone, and Slurm has 0"),
        ({"left_out": frozenset("c")}, "abc", "without a, 1 node left for the 2 that it needs (left out by the job)"),
    ],
)  # fmt: skip
def test_what_keeps_a_job_from_running_elsewhere(
    changes: dict[str, Any], nodes: str, reason: str
) -> None:
    """A job that was pinned to the bad node was requeued, and never ran again."""
    tested_job = job(**{"features": frozenset(), "left_out": frozenset(), **changes})
    gres = {"gpu": 4, "gpu:a100": 4}
    available = [
        node(name, features=frozenset("f" if name < "c" else ""), gres=gres) for name in nodes
    ]
    licenses = {"tool": 2, "ansys@db": 5}
    assert obstacle(tested_job, available, {"r": ["a", "b"]}, "a", licenses) == reason
    # Nodes in use or in maintenance become free, a node that is down may not.
    busy = [*available, node("d", gpus_used=4, flags=frozenset(["MIXED", "MAINTENANCE"]))]
    assert not obstacle(job(features=frozenset()), busy, {}, "a")
    down = [node("a"), node("b"), node("c", flags=frozenset(["DOWN", "NOT_RESPONDING"]))]
    assert obstacle(job(), down, {}, "a").endswith("(state)")


def test_its_own_reservation_is_open_to_it() -> None:
    nodes = [node("a"), node("b"), node("c")]
    steps, left = steps_of(job(reservation="mine"), nodes, {"mine": ["a", "b"], "other": ["c"]})
    assert left == ["a", "b"]
    assert verdict(job(), steps) == "2 nodes left for the 2 that it needs (Slurm: Resources)"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reason": "Dependency"}, "Slurm: Dependency: it waits for another job"),
        ({"reason": "BeginTime"}, "two minutes"),
        ({"state": "RUNNING"}, "job 5 is RUNNING: it does not wait"),
        (
            {"reason": "Priority", "nodes": 1},
            "jobs before it in the queue come first; 1 node left for the 1",
        ),
        ({"nodes": 9}, "from 'all nodes' on too few nodes are left: 1 of the 9"),
    ],
)
def test_what_no_node_can_cure_is_said(changes: dict[str, Any], message: str) -> None:
    parsed_node = job(**changes)
    assert message in verdict(parsed_node, steps_of(parsed_node, [node("a")], {})[0])
