"""Parsing of Slurm's output: states of nodes, jobs with hostile text of their owners, host lists, reservations."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.executors.model import (
    Capabilities,
    DoctorFinding,
    DoctorLevel,
    Drain,
    EndStep,
    ScheduledJob,
    SchedulerError,
    SchedulerState,
    StartNow,
)
from gangline.executors.recovery import free_nodes
from gangline.executors.scheduler_command import host_names, site_command
from gangline.executors.slurm.doctor import config_findings, findings, missing_config, parse_config
from gangline.executors.slurm.output import (
    apply_comment,
    parse_jobs,
    parse_nodes,
    parse_reservations,
)
from gangline.executors.slurm.scheduler import Slurm
from gangline.executors.slurm.text import parse_reason

NODE = "NodeName=gpu1 Arch=x86_64 OS=Linux 6.1 #1 SMP  RealMemory=100 Boards=1 State={state} ThreadsPerCore=1 Partitions=main{reason}\n"

#: Names of node states and flags of Slurm 20.11 to 25.05, long and short, by their meaning.
OUT = "DRAIN DRAINED DRAINING drain drng FAIL FAILING fail failg MAINT MAINTENANCE maint IDLE$ mix$ DOWN$"
DOWN = (
    "DOWN down ERROR ERR err FUTURE FUTR futr UNKNOWN UNK unk INVAL inval INVALID_REG POWER_DOWN pow_dn POWERED_DOWN "
    "POWERING_DOWN POWER_DRAIN REBOOT boot REBOOT_REQUESTED REBOOT_ISSUED IDLE~ idle! MIXED% ALLOC@ IDLE^ DOWN*"
)
BUSY = "COMPLETING comp BLOCKED block PERFCTRS npc POWERING_UP POWER_UP pow_up idle# IDLE+COMPLETING IDLE+BLOCKED"
FREE = (
    "IDLE idle MIXED mix ALLOCATED alloc ALLOCATED+ RESERVED resv PLANNED plnd IDLE- CLOUD DYNAMIC_NORM DYNAMIC_FUTURE "
    "EXTERNAL RESUME UNDRAIN CANCEL_REBOOT REBOOT_CANCEL IDLE+CLOUD+DYNAMIC_NORM+RESERVED+PLANNED"
)
LINE = "{number}|{shown}|{state}|2|2026-11-28T01:00:00|NONE|2026-11-28T00:59:00|gres:gpu:h100:4|{nodes}\n"
COUNT = "{number}              0               1               2026-11-28T00:59:00\n"
NOW = time.mktime(time.strptime("2026-11-28T01:30:00", "%Y-%m-%dT%H:%M:%S"))


@pytest.mark.parametrize(
    ("state", "reason", "out", "down", "managed", "responding"),
    [
        ("IDLE", "", "", "", False, True),
        ("MIXED+RESERVED", "", "", "", False, True),
        ("IDLE+DRAIN", " Reason=bad fan [root@2026-11-28T01:00:00]", "DRAIN: bad fan (root)", "", False, True),
        ("ALLOCATED+DRAIN", " Reason=gangline:v1;act=drain;adv=a1 [root@2026-11-28T01:00:00]",
         "DRAIN: gangline:v1;act=drain;adv=a1 (root)", "", True, True),
        # The check of the host drained it: advice goes on, and the check takes its drain back.
        ("ALLOCATED+DRAIN", " Reason=gangline:v1;act=drain;cause=xid79;ttl=60;by=check [root@2026-11-28T01:00:00]",
         "", "", False, True),
        ("IDLE+DRAIN", " Reason=gangline:v1;act=drain [root@2026-11-28T01:00:00]",
         "DRAIN: gangline:v1;act=drain (root)", "", False, True),
        ("DOWN*", " Reason=Not responding [slurm@2026-11-28T01:00:00]", "", "DOWN: Not responding (slurm)", False, False),
        ("DOWN", " Reason=Node unexpectedly rebooted [slurm@2026-11-28T01:00:00]", "",
         "DOWN: Node unexpectedly rebooted (slurm)", False, True),
        ("DOWN", " Reason=disk gone [ada@2026-11-28T01:00:00]", "DOWN: disk gone (ada)", "", False, True),
        ("DOWN+NOT_RESPONDING", "", "", "DOWN", False, False),
        ("IDLE+MAINT", "", "MAINT", "", False, True),
        # After a resume Slurm keeps the executor's reason on the node without a drain.
        ("IDLE", " Reason=gangline:v1;act=drain;adv=a1 [root@2026-11-28T01:00:00]", "", "", False, True),
        ("IDLE+DRAIN", " Reason=[x] y [root@2026-11-28T01:00:00] Comment=z", "DRAIN: [x] y (root)", "", False, True),
    ],
)  # fmt: skip
def test_states_of_nodes(
    state: str, reason: str, out: str, down: str, managed: bool, responding: bool
) -> None:
    """The author of a drain decides whether the executor removes its own mark, and the report."""
    (node,) = parse_nodes(NODE.format(state=state, reason=reason)).values()
    assert (node.out, node.down, node.is_managed, node.is_responding) == (
        out, down, managed, responding,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "out", "down", "busy"),
    [(OUT, True, False, False), (DOWN, False, True, False), (BUSY, False, False, True), (FREE, False, False, False)],
    ids=["out", "down", "busy", "free"],
)  # fmt: skip
def test_every_word_of_a_state_is_read(words: str, out: bool, down: bool, busy: bool) -> None:
    """`scontrol` says MAINTENANCE and INVALID_REG where `sinfo` says MAINT and INVAL: executors acted on such nodes."""
    for word in words.split():
        for state in (word, f"IDLE+{word}", f"{word}+CLOUD"):
            (node,) = parse_nodes(NODE.format(state=state, reason="")).values()
            assert (bool(node.out), bool(node.down), node.is_busy) == (out, down, busy), state
    for state in ("IDLE*", "no_resp", "NO_RESPOND", "IDLE+NOT_RESPONDING", "DOWN*+DRAIN"):
        (node,) = parse_nodes(NODE.format(state=state, reason="")).values()
        assert not node.is_responding, state


@pytest.mark.parametrize(
    ("text", "reason", "author"),
    [
        ("first line [root@2026-11-28T18:52:22]        second line", "first line second line", "root"),
        ("a [root@2026-11-28T18:52:22]   b   c Comment=x", "a b c", "root"),
        ("Not responding [slurm@2026-11-28T18:52:22] Comment=a Extra=b InstanceId=c InstanceType=d ReservationName=e", "Not responding", "slurm"),
        ("gres/gpu count reported lower than configured (7 < 8) [slurm@2026-01-25T15:12:23]",
         "gres/gpu count reported lower than configured (7 < 8)", "slurm"),
        ("[x] by [y@z] [64030@2026-11-28T18:52:22]", "[x] by [y@z]", "64030"),
        ("no author", "no author", ""),
        ("no author Comment=[root@2026-11-28]", "no author", ""),
        ("", "", ""),
    ],
)  # fmt: skip
def test_the_reason_and_who_wrote_it(text: str, reason: str, author: str) -> None:
    """The author of a reason of two lines was lost: a drain by the controller counted as a person's."""
    (node,) = parse_nodes(NODE.format(state="DOWN", reason=f" Reason={text}")).values()
    assert node.reason == reason and parse_reason(text) == (reason, author)
    assert bool(node.down) == (author == "slurm" or not reason)


def test_a_drain_by_the_controller_is_no_persons() -> None:
    """A node with 7 of its 8 GPUs, drained by the controller: out of service, not a spare, and its drain stays."""
    line = NODE.format(
        state="IDLE+DRAIN+INVALID_REG", reason=" Reason=gres/gpu count 7 < 8 [slurm@2026-01-25T15:12:23]"
    )  # fmt: skip
    (node,) = parse_nodes(line).values()
    assert node.down.startswith("DRAIN+INVALID_REG: gres/gpu") and not node.out
    assert not node.may_drain and not free_nodes(SchedulerState({"gpu1": node}))


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gres/gpu:8", 8), ("gres/gpu:h100:8", 8), ("gres/gpu:a100:4,gres/nvme:1", 4), ("gres:gpu:h100:8", 8), ("gpu:8", 8),
        ("gpu:h100:8", 8), ("gpu", 1), ("gres:gpu", 1), ("gres/gpu:h100", 1), ("gpu:nvidia_h100_80gb_hbm3:2", 2), ("gpu:1g.10gb:7", 7),
        ("gpu:h100:8(S:0-1)", 8), ("gpu:h100:4(IDX:0,2-3,5)", 4), ("gpu:a100:2,gpu:h100:2", 4), ("gres/gpu=8", 8),
        ("cpu=4,gres/gpu=8,gres/gpu:h100=8,billing=1", 8), ("gres/gpu:h100=8", 8), ("gres/gpumem:80G", 0), ("gres/shard:4", 0),
        ("gres/mps:100", 0), ("gres/gpu_util:5", 0), ("nvme:gpu:2", 0), ("N/A", 0), ("(null)", 0), ("", 0),
    ],
)  # fmt: skip
def test_requests_for_gpus(text: str, gpus: int) -> None:
    """Slurm since 23.11 prints `gres/gpu:h100:8`, which counted as no GPU."""
    identity = f"7|7|RUNNING|2|2026-11-28T01:00:00|NONE|2026-11-28T00:59:00|{text}|a,b\n"
    assert parse_jobs(identity, COUNT.format(number=7), NOW)["7"].gpus == 2 * gpus


@pytest.mark.parametrize(
    "listed", ["a3mega-0001-[0000000001-0000000002]", "n[1-999999999]", "n[1-2", "n[5-1]", "n x", "ä[1-2]", "n[a-b]"]
)  # fmt: skip
def test_a_host_list_that_cannot_be_read_hides_no_other_job(listed: str) -> None:
    """One odd list in one job made all jobs unreadable, and the executor stopped."""
    identity = LINE.format(number=7, shown="7", state="RUNNING", nodes=listed) + LINE.format(
        number=8, shown="8", state="RUNNING", nodes="a,b"
    )
    counts = COUNT.format(number=7) + COUNT.format(number=8)
    jobs = parse_jobs(identity, counts, NOW)
    assert not jobs["7"].nodes and "host list" in jobs["7"].problem
    assert jobs["8"].nodes == {"a", "b"} and not jobs["8"].problem
    text = f"ReservationName=odd EndTime=x Nodes={listed} State=ACTIVE x\nReservationName=good EndTime=x Nodes=n1 State=ACTIVE x\n"
    assert parse_reservations(text)["good"].nodes == {"n1"}


def test_jobs_and_their_parts() -> None:
    """Parts of a heterogeneous job are one job, tasks of an array are jobs of their own."""
    identity = (
        LINE.format(number=3, shown="3+0", state="RUNNING", nodes="a,b")
        + LINE.format(number=4, shown="3+1", state="RUNNING", nodes="c,d")
        + LINE.format(number=6, shown="5_1", state="RUNNING", nodes="e,f")
        + LINE.format(number=9, shown="9", state="PENDING", nodes="")
    )
    counts = "".join(COUNT.format(number=number) for number in (3, 4, 6, 9))
    jobs = parse_jobs(identity, counts, NOW)
    assert {name: (job.state, set(job.nodes), job.gpus) for name, job in jobs.items()} == {
        "3": ("RUNNING", {"a", "b", "c", "d"}, 16),
        "6": ("RUNNING", {"e", "f"}, 8),
        "9": ("PENDING", set(), 8),
    }
    assert jobs["3"].started == jobs["3"].submitted + 60


def test_a_part_that_completes_keeps_the_job_waiting() -> None:
    """StartTime=now that was sent while another part was completing was overwritten: the job waited for two minutes."""
    identity = LINE.format(number=3, shown="3+0", state="PENDING", nodes="") + LINE.format(
        number=4, shown="3+1", state="COMPLETING", nodes="c"
    )  # fmt: skip
    counts = "3 1 1 2026-11-28T01:32:00\n4 1 1 2026-11-28T00:59:00\n"
    assert not parse_jobs(identity, counts, NOW)["3"].waits_for_begin_time
    waiting = identity.replace("COMPLETING|2", "PENDING|2")
    assert parse_jobs(waiting, counts, NOW)["3"].waits_for_begin_time
    assert not parse_jobs(waiting, counts, NOW + 600)["3"].waits_for_begin_time


@given(st.text(max_size=200))
def test_words_of_users_make_no_job(text: str) -> None:
    """A job's name or comment is never read as another job's line."""
    assert not parse_jobs(text.replace("|", ";"), "7 0 1 N/A\n", NOW)


@pytest.mark.parametrize(
    ("comment", "seconds", "restarts_itself"),
    [
        ("gangline:checkpoint=1800", 1800, False),
        ("ticket 12; gangline:checkpoint=60,gangline:spares", 60, True),
        ("gangline:checkpoint=0", 0, False),
        ("gangline:checkpoint=9999999", 0, False),
        ("gangline:checkpoint=soon", 0, False),
        ("xgangline:spares", 0, False),
        ("", 0, False),
    ],
)
def test_comments_of_jobs(comment: str, seconds: int, restarts_itself: bool) -> None:
    """The owner's comment sets the job's checkpoint interval and its spares."""
    job = apply_comment(ScheduledJob("1", "RUNNING"), comment)
    assert (job.checkpoint_seconds, job.restarts_itself) == (seconds, restarts_itself)


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("gpu[1-3,7]", ["gpu1", "gpu2", "gpu3", "gpu7"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("", []),
        ("(null)", []),
        ("(None assigned)", []),
        ("None assigned", []),
    ],
)
def test_host_lists(listed: str, names: list[str]) -> None:
    """A list without hosts is valid; an unreadable list is an error, because its nodes would count as free."""
    assert host_names(listed) == names
    with pytest.raises(SchedulerError, match="at most"):
        host_names("a[0-999999999]")


def test_reservations() -> None:
    """Only active reservations count; times are in the controller's zone."""
    text = (
        "ReservationName=gangline_a1 StartTime=x EndTime=2026-11-28T01:34:18 Duration=00:01:30 Nodes=gpu2,gpu3 State=ACTIVE x\n"
        "ReservationName=later StartTime=x EndTime=2026-11-29T01:34:18 Nodes=gpu4 State=INACTIVE x\n"
        "ReservationName=licenses StartTime=x EndTime=2026-11-29T01:34:18 Nodes=(null) State=ACTIVE x\n"
        "No reservations in the system\n"
    )
    holds = parse_reservations(text)
    assert {hold.name: (set(hold.nodes), hold.is_managed) for hold in holds.values()} == {
        "gangline_a1": ({"gpu2", "gpu3"}, True),
        "licenses": (set(), False),
    }
    line = "ReservationName={} EndTime=x Nodes=gpu1 NodeCnt=1 Flags={} TRES=cpu=24 State=ACTIVE x\n"
    for name, flags, overrides in (
        ("site", "OVERLAP,SPEC_NODES", True), ("site", "MAINT,IGNORE_JOBS", True), ("site", "SPEC_NODES,FLEX", False), ("gangline_a2", "OVERLAP", False),
    ):  # fmt: skip
        reservation = parse_reservations(line.format(name, flags))[name]
        assert reservation.overrides_holds == overrides


def test_drains_of_a_version_that_lets_them_end() -> None:
    """24.11 ends a drain by itself; 22.05 does not know the keyword, and would refuse the command."""
    for version, ends in (("slurm-wlm 24.11.5", True), ("slurm-wlm 22.05.8", False)):
        sent: list[list[str]] = []

        def run(command: object, version: str = version, sent: list[list[str]] = sent) -> str:
            sent.append(list(command))  # type: ignore[call-overload]
            return version

        steps = [
            Drain("a1", "", f"gpu{number}", "gangline:v1;act=evict;adv=a1", 60.0)
            for number in (1, 2)
        ]
        assert Slurm(run).apply(steps) == {}
        assert sent[-1][:3] == ["scontrol", "update", "nodename=gpu1,gpu2"]
        assert ("resumeafter=60" in sent[-1]) == ends


def test_a_start_that_comes_late_is_no_error() -> None:
    """The job ran already, and its advisory was left alone for 5 s. Each part gets the second of its earliest start."""
    sent: list[list[str]] = []

    def run(command: Sequence[str]) -> str:
        sent.append(list(command))
        if len(sent) == 2:
            raise SchedulerError("scontrol update jobid=8: Job is no longer pending execution")
        if len(sent) > 2:
            raise SchedulerError("scontrol update jobid=9: Invalid job id specified")
        return ""

    assert Slurm(run).apply([StartNow("a1", "", "7", 1_800_000_001.0, ("7", "8"))]) == {}
    assert [command[2:] for command in sent] == [
        ["jobid=7", "starttime=uts1800000001"],
        ["jobid=8", "starttime=uts1800000001"],
    ]
    (error,) = Slurm(run).apply([StartNow("a1", "", "9", 0.0, ("9",))]).values()
    assert "Invalid job id" in error and sent[-1][3] == "starttime=now"


def test_only_steps_on_the_node_are_ended() -> None:
    """Killed between the command and its note, an executor ended the step that had just been started again elsewhere."""
    sent: list[list[str]] = []

    def run(command: Sequence[str]) -> str:
        sent.append(list(command))
        return "7.0 gpu[1-3]\n7.1 gpu[1,3-4]\n7.batch gpu1\n" if command[0] == "squeue" else ""

    assert Slurm(run).apply([EndStep("a1", "", "7", "gpu2")]) == {}
    assert sent[-1] == ["scancel", "7.0"]
    sent.clear()
    assert Slurm(run).apply([EndStep("a1", "", "7", "gpu9")]) == {}
    assert [command[0] for command in sent] == ["squeue"]


def test_a_site_command_is_no_shell() -> None:
    """A node's name is always a single argument."""
    assert site_command("ssh {node} nvidia-smi -r", "gpu1") == ["ssh", "gpu1", "nvidia-smi", "-r"]
    with pytest.raises(SchedulerError, match="no command is configured"):
        site_command("", "gpu1")


def test_the_doctor_says_at_once_that_there_is_no_configuration(tmp_path: Path) -> None:
    """Each command waited ten seconds for a controller that DNS did not know."""
    environment = {"SLURM_CONF": str(tmp_path / "slurm.conf")}

    def run(command: object) -> str:
        raise AssertionError(command)

    (finding,) = findings(Slurm(run), True, environment)
    assert finding == DoctorFinding(
        DoctorLevel.MISSING, f"SLURM_CONF={tmp_path}/slurm.conf: there is no such file"
    )
    (tmp_path / "slurm.conf").touch()
    assert not missing_config(environment)


def test_the_doctor_names_what_costs_time() -> None:
    """batch_sched_delay=3 costs each failover three seconds, and Slurm never reports it."""
    text = "SchedulerParameters     = bf_interval=1,sched_interval=5\nJobRequeue              = 0\nSlurmUser               = slurm(64030)\nMinJobAge               = 10 sec\nPrivateData             = none\n"
    texts = [
        finding.text
        for finding in config_findings(parse_config(text), Capabilities("22.05.8"), "ada")
    ]
    assert any(
        text.startswith("batch_sched_delay=3: a requeued gang waits up to 3 s") for text in texts
    )
    assert not any("bf_interval" in text or "sched_interval" in text for text in texts)
    assert any(text.startswith("JobRequeue=0") for text in texts)
    assert any(text.startswith("MinJobAge=10") for text in texts)
    assert any("runs as ada, Slurm's own user is slurm" in text for text in texts)
