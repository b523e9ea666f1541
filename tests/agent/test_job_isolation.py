"""Facts of processes about their isolation, and events of broken boundaries between tenants."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gangline.agent.collectors import gpu_processes, job_isolation
from gangline.agent.collectors.change_events import REPEAT_NS
from gangline.agent.collectors.process_listing import GpuProcess
from gangline.agent.hardware import isolation_facts
from gangline.agent.hardware.job_groups import GroupUse, JobGroupReader
from gangline.contract.isolation import ATTRIBUTE, parse_facts
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.agent.jobs_host import GPU, SESSION, JobsHost
from tests.isolated_host import GPUS, INFERENCE, PIDS, TRAINING, IsolatedHost


@pytest.fixture
def host(tmp_path: Path) -> IsolatedHost:
    return IsolatedHost(tmp_path)


def breaches(events: list[HealthEvent]) -> list[HealthEvent]:
    return [event for event in events if event.name == job_isolation.EVENT]


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the PID of each read."""
    read: list[int] = []
    original = isolation_facts.IsolationReader.read

    def counted(self: isolation_facts.IsolationReader, pid: int) -> dict[str, str]:
        read.append(pid)
        return original(self, pid)

    monkeypatch.setattr(isolation_facts.IsolationReader, "read", counted)
    return read


def test_a_boundary_that_breaks_while_both_run_is_an_event_in_the_next_turn(
    host: IsolatedHost,
) -> None:
    """An endpoint was slow for a day: a restart of its runtime had put it onto the cores of a training job."""
    collector = host.collector()
    assert breaches(host.observed(collector)) == []
    host.group(INFERENCE, cpus="8-31,48-63")
    (event,) = breaches(host.observed(collector, turns=1))
    assert (event.attributes["job"], event.attributes["other_job"]) == (TRAINING, INFERENCE)
    assert (event.attributes["state"], event.attributes["boundaries"]) == ("violated", "cpus")
    assert event.attributes["cpus"].startswith("both may run on cores 8-15")
    assert event.message == (
        "jobs ml/trainer-0 (namespace ml) and serving/llm-0 (namespace serving) are not isolated: "
        f"cpus: {event.attributes['cpus']}"
    )
    assert breaches(host.observed(collector)) == []
    host.link(PIDS[INFERENCE], "ipc:[4026532000]")
    (more,) = breaches(host.observed(collector, turns=1))
    assert (more.event_id, more.attributes["boundaries"]) == (event.event_id, "cpus shm")
    assert more.revision > event.revision


def test_a_breach_ends_with_its_boundary_or_its_job(host: IsolatedHost) -> None:
    """A finding stayed for an hour after the cores were given back."""
    collector = host.collector()
    host.group(INFERENCE, cpus="8-31,48-63")
    (first,) = breaches(host.observed(collector))
    host.group(INFERENCE, cpus="16-31,48-63")
    (ended,) = breaches(host.observed(collector, turns=1))
    assert (ended.event_id, ended.attributes["state"]) == (first.event_id, "ended")
    host.group(INFERENCE, cpus="8-31,48-63")
    (again,) = breaches(host.observed(collector, turns=1))
    assert again.event_id != first.event_id
    host.holds[INFERENCE] = []
    (gone,) = breaches(host.observed(collector, turns=1))
    assert (gone.event_id, gone.attributes["state"]) == (again.event_id, "ended")


def test_a_gpu_that_does_not_answer_ends_no_breach(host: IsolatedHost) -> None:
    """A GPU that hung for a second ended the finding, and began a new one."""
    collector = host.collector()
    host.group(INFERENCE, cpus="8-31,48-63")
    assert len(breaches(host.observed(collector))) == 1
    host.turn(collector, *host.holds[TRAINING], gpus=[GPUS[0]])
    assert breaches(host.told()) == []
    assert breaches(host.observed(collector)) == []


def test_a_lasting_breach_is_repeated_for_an_aggregator_that_lost_it(host: IsolatedHost) -> None:
    collector = host.collector()
    host.group(INFERENCE, cpus="8-31,48-63")
    (first,) = breaches(host.observed(collector))
    host.clock.now_ns += REPEAT_NS
    collector._is_behind = True
    (repeated,) = breaches(host.observed(collector, turns=1))
    assert repeated.event_id == first.event_id
    assert repeated.boottime_ns == first.boottime_ns < repeated.last_boottime_ns


def test_two_jobs_of_one_tenant_may_share_what_they_like(host: IsolatedHost) -> None:
    """A user who runs a notebook beside her own job was reported every minute."""
    host.group(INFERENCE, cpus="8-31,48-63")
    old = host.proc.parent / "var/log/pods"
    for folder in old.iterdir():
        folder.rename(old / folder.name.replace("serving_", "ml_"))
    events = host.observed()
    assert {e.attributes["namespace"] for e in events} == {"ml"}
    assert breaches(events) == []


def test_topology_and_limits_of_io_are_no_event(host: IsolatedHost) -> None:
    """Nearly all shared hosts share a switch: an event of each would hide those that break."""
    host.group(TRAINING, io="")
    host.holds[INFERENCE] = [GpuProcess(GPUS[1], PIDS[INFERENCE])]
    assert breaches(host.observed()) == []


def test_one_memory_node_for_all_is_no_event(tmp_path: Path) -> None:
    """Each shared host with one socket had a finding that no layout could end."""
    host = IsolatedHost(tmp_path)
    host.status(INFERENCE, "Mems_allowed_list", "0")
    assert len(breaches(host.observed())) == 1
    shutil.rmtree(host.roots.sys / "devices/system/node/node1")
    assert breaches(host.observed()) == []


def test_full_queues_lose_no_breach(host: IsolatedHost) -> None:
    collector = host.collector()
    host.observed(collector)
    host.room = 0
    host.group(INFERENCE, cpus="8-31,48-63")
    assert host.observed(collector, turns=2) == []
    host.room = None
    assert len(breaches(host.observed(collector, turns=1))) == 1


@pytest.mark.parametrize(
    ("hidden", "fact"),
    [
        ("ns/ipc", "ipc"), ("mountinfo", "shm"), ("mountinfo", "gpus"), ("root", "gpus"), ("root", "nodes"),
        ("root", "rdma"), ("cgroup", "cpus"), ("cgroup", "io_max"), ("cgroup", "rdma_max"), ("status", "mems"),
    ],
)  # fmt: skip
def test_a_hidden_fact_is_left_out(host: IsolatedHost, hidden: str, fact: str) -> None:
    """Without CAP_SYS_PTRACE the kernel hides namespaces and /proc/PID/root: an empty set would look isolated."""
    facts = isolation_facts.IsolationReader(host.proc, host.roots.sys).read(PIDS[TRAINING])
    assert fact in facts
    host.hide(TRAINING, hidden)
    assert fact not in isolation_facts.IsolationReader(host.proc, host.roots.sys).read(
        PIDS[TRAINING]
    )


def test_a_root_that_may_hang_is_not_entered(
    host: IsolatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's root on a network file system hung, and with it the sampler that listed its /dev."""
    host.mounts(PIDS[TRAINING], shm="0:60 /", dev="0:70 /", kind="nfs4")
    listed: list[str] = []
    monkeypatch.setattr(os, "scandir", listed.append)
    facts = isolation_facts.IsolationReader(host.proc, host.roots.sys).read(PIDS[TRAINING])
    assert "gpus" not in facts
    assert listed == []


@pytest.mark.parametrize("folder", ["infiniband", "nvidia-caps"])
def test_a_folder_of_nodes_that_is_a_link_is_not_entered(host: IsolatedHost, folder: str) -> None:
    """The link is of a container, and its target was read on the host: a file system there may hang."""
    dev = host.proc / str(PIDS[TRAINING]) / "root/dev"
    (target := host.proc.parent / "elsewhere").mkdir()
    for name in ("uverbs9", "nvidia-cap9"):
        (target / name).touch()
    host.hide(TRAINING, "root/dev/infiniband")
    (dev / folder).symlink_to(target)
    facts = isolation_facts.IsolationReader(host.proc, host.roots.sys).read(PIDS[TRAINING])
    assert facts["gpus"] == "0"
    assert ("rdma" if folder == "infiniband" else "instances") not in facts


def test_nodes_among_too_many_names_are_unknown(
    host: IsolatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node after the limit was left out, and the boundary was verified."""
    monkeypatch.setattr(isolation_facts, "DEVICE_NAMES_MAX", 64)
    for number in range(64):
        host.node(TRAINING, f"a{number}")
    facts = isolation_facts.IsolationReader(host.proc, host.roots.sys).read(PIDS[TRAINING])
    assert not {"gpus", "nodes"} & facts.keys()


def test_a_path_that_cannot_be_searched_is_no_error() -> None:
    path = Path("/") / ("x" * 300)
    assert isolation_facts.IsolationReader(path, path).read(1) == {}
    assert JobGroupReader(path).read({}) == GroupUse()


def test_long_facts_fit_into_an_attribute(host: IsolatedHost) -> None:
    """Registrations were refused: 200 ranges of cores were longer than an attribute may be."""
    odd = ",".join(str(number) for number in range(1, 400, 2))
    host.group(TRAINING, cpus=odd)
    host.status(TRAINING, "Cpus_allowed_list", odd)
    (event, *_) = host.observed()
    facts = parse_facts(event.attributes[ATTRIBUTE])
    assert len(event.attributes[ATTRIBUTE]) <= job_isolation.FACTS_CHARACTERS_MAX
    assert "cpus" not in facts
    assert facts["mems"] == "0"


def test_facts_of_a_host_with_one_job_are_read_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading ten files of each process every second cost more than all other collectors."""
    host = JobsHost(tmp_path)
    host.process(4711, SESSION)
    read = counted_reads(monkeypatch)
    collector = host.collector()
    host.turns(job_isolation.REFRESH_TURNS + 1, collector, 4711)
    assert read == [4711]
    host.process(4712, "0::/system.slice/a.service\n")
    host.turns(5, collector, 4711, 4712)
    assert len(read) > 8


def test_a_turn_reads_a_bounded_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """56 instances with a job each: all are read within some turns, and none is left out."""
    host = JobsHost(tmp_path)
    pids = range(5000, 5000 + 2 * job_isolation.READS_MAX + 8)
    for pid in pids:
        host.process(pid, f"0::/system.slice/job{pid}.service\n")
    read = counted_reads(monkeypatch)
    collector = host.collector()
    for _ in range(4):
        before = len(read)
        host.turn(collector, *(GpuProcess(GPU, pid) for pid in pids))
        assert len(read) - before <= job_isolation.READS_MAX
    assert set(read) == set(pids)


def test_limits_of_mps_are_facts_and_no_attributes(host: IsolatedHost) -> None:
    """An event has 32 attributes at most, and a pod with ranks has 29."""
    host.share("30", "40")
    events = [e for e in host.observed() if e.name == gpu_processes.EVENT]
    facts = {e.process_id: parse_facts(e.attributes[ATTRIBUTE]) for e in events}
    assert facts[PIDS[TRAINING]]["mps_threads"] == "30"
    assert not any(name.startswith("mps") for e in events for name in e.attributes)


@pytest.mark.parametrize(
    ("path", "levels"),
    [
        ("/system.slice/slurmstepd.scope/job_12/step_0/user/task_0", 4),
        ("/kubepods/burstable/pod12345678-1234-4321-aaaa-123456789abc/" + "a" * 64, 2),
        ("/user.slice/user-1000.slice/session-3.scope", 1),
        ("/docker/" + "a" * 64, 1),
        ("/", 1),
    ],
)
def test_limits_of_a_group_that_others_share_are_not_a_jobs_own(path: str, levels: int) -> None:
    """A limit of kubepods.slice bounds all pods together: each may use all of it."""
    assert len(isolation_facts.own_levels(path)) == levels


@given(st.text(alphabet=st.sampled_from("abc 0123:-=,/\n\t*rwm.") | st.characters(), max_size=300))
@example("\n")
def test_no_text_breaks_a_parser(text: str) -> None:
    isolation_facts.parse_paths(text)
    isolation_facts.parse_rules(text)
    isolation_facts.parse_io_max(text)
    isolation_facts.parse_rdma_max(text)
    assert (
        isolation_facts.shm_of(isolation_facts.parse_mounts(text.encode(errors="replace"))) in ("",)
        or " - " in text
    )
