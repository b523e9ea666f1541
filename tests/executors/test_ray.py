"""The executor for Ray: parsing of the helper's output, the label at start, and a real Ray cluster."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gangline.aggregator.advisories.advisory import Action
from gangline.contract.settings import SettingsError, load
from gangline.executors.mirror_format import MirrorNode, render
from gangline.executors.model import Drain, Reboot, Requeue, Resume, SchedulerError
from gangline.executors.ray.scheduler import IRREVERSIBLE, Ray, doctor_findings, parse_groups
from gangline.executors.ray.settings import RayConfig
from tests.executors.advice_server import serving_advice
from tests.executors.contract import Rig, Site
from tests.processes import GUARD_SECONDS

HELPER = Path(__file__).parents[2] / "executors" / "ray" / "gangline_ray.py"
FOLDER = Path(os.environ.get("GANGLINE_RAY") or "/nowhere")
MISSING = "Ray is not here: tests/rigs/ray.sh FOLDER makes it; then export GANGLINE_RAY=FOLDER"
REASON = "gangline:v1;act=evict;cause=xid79;ttl=60;adv=a1"
NODES = [
    {"id": "aa", "name": "n1", "address": "192.0.2.1", "hostname": "h1", "alive": True, "draining": False, "death_message": ""},
    {"id": "bb", "name": "192.0.2.2", "address": "192.0.2.2", "hostname": "h2", "alive": True, "draining": False, "death_message": ""},
]  # fmt: skip
GROUP = {"id": "e413", "name": "train", "state": "CREATED", "nodes": ["aa", "bb"], "gpus": 8.0}

CLUSTER = """
import sys
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "node_name": "head"})
for name in ("n1", "n2", "n3"):
    cluster.add_node(num_cpus=2, node_name=name, labels={"gangline.io/bucket": "0"})
ray.init(address=cluster.address, log_to_driver=False)
group = placement_group([{"CPU": 2}, {"CPU": 2}], strategy="STRICT_SPREAD", name="train")
ray.get(group.ready(), timeout=60)
print("READY", cluster.address, flush=True)
sys.stdin.readline()
ray.util.remove_placement_group(group)
print("REMOVED", flush=True)
sys.stdin.readline()
ray.shutdown()
cluster.shutdown()
"""


class FakeHelper:
    def __init__(self, **fields: Any) -> None:
        self.state = {"version": "2.60.0", "nodes": [dict(node) for node in NODES], "groups": [GROUP], **fields}  # fmt: skip
        self.drains: list[list[str]] = []

    def __call__(self, command: Sequence[str]) -> str:
        if command[2] == "drain":
            self.drains.append(list(command[3:]))
            for node in self.state["nodes"]:
                node["draining"] |= node["id"] == command[4]
        return json.dumps(self.state)


def ray(helper: Any) -> Ray:
    return Ray(("python3", "gangline_ray.py"), "h:1", 30.0, helper)


def test_a_placement_group_is_a_gang_on_nodes_by_name_or_host() -> None:
    job = ray(FakeHelper()).read_jobs()["e413"]
    assert (job.state, job.nodes, job.gpus) == ("RUNNING", frozenset({"n1", "h2"}), 8)
    moved = parse_groups({"nodes": NODES, "groups": [{**GROUP, "state": "RESCHEDULING"}]})["e413"]
    assert (moved.state, moved.nodes) == ("PENDING", frozenset())
    for wrong in ({**GROUP, "id": 3}, {**GROUP, "id": "x" * 65}, {**GROUP, "state": "new"}, 3):
        assert not parse_groups({"nodes": NODES, "groups": [wrong]})


def test_a_drain_is_sent_once_and_never_taken_back() -> None:
    helper = FakeHelper()
    scheduler, drain, resume = ray(helper), Drain("a1", "", "h2", REASON, 60.0), Resume("a1", "", "h2")  # fmt: skip
    assert not scheduler.apply([drain]) and not scheduler.apply([drain])
    assert helper.drains == [["h:1", "bb", REASON, "30"]]
    assert scheduler.read_nodes()["h2"].is_managed
    assert scheduler.apply([resume]) == {resume: IRREVERSIBLE}
    helper.state["nodes"][1] |= {"alive": False, "death_message": f"Terminated due to preemption: {REASON}"}  # fmt: skip
    ended = scheduler.read_nodes()["h2"]
    assert (ended.state, ended.is_managed, "adv=" in ended.reason) == ("DEAD", True, False)
    assert not scheduler.apply([resume])
    helper.state["nodes"].append({**NODES[1], "id": "cc"})
    assert not scheduler.read_nodes()["h2"].out, "somebody has started Ray there again"


def test_others_drains_and_deaths_are_theirs() -> None:
    helper = FakeHelper(nodes=[{**NODES[0], "draining": True}, {**NODES[1], "alive": False, "death_message": "killed"}])  # fmt: skip
    nodes = ray(helper).read_nodes()
    assert nodes["n1"].out and not nodes["n1"].is_managed
    assert nodes["h2"].down and not nodes["h2"].is_managed


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "3"])
def test_output_that_is_no_state(text: str) -> None:
    with pytest.raises(SchedulerError, match=r"gangline_ray\.py: its output is not"):
        ray(lambda command: text).read_nodes()


def test_what_is_left_to_people() -> None:
    scheduler = ray(FakeHelper())
    reboot, requeue = Reboot("a1", "", "n1", "x"), Requeue("a1", "", "e413", 0)
    errors = scheduler.apply([reboot, requeue])
    assert errors == {reboot: "Reboot is not a step of Ray", requeue: "Ray lets it continue until its owner removes it"}  # fmt: skip
    for wrong in ('actions=["AVOID"]', "mark=hold", 'ray_helper=["python3"]'):
        with pytest.raises(SettingsError, match=r"Ray|this scheduler"):
            load(RayConfig, None, [wrong])
    assert load(RayConfig, None, []).actions == ()
    assert [finding.level for finding in doctor_findings(scheduler, True)] == ["ok", "note"]


def labels(*place: str) -> str:
    done = subprocess.run(["python3", HELPER, "labels", *place], capture_output=True, text=True, check=True, timeout=GUARD_SECONDS)  # fmt: skip
    return done.stdout.strip()


def test_the_label_at_start(tmp_path: Path) -> None:
    """With a mirror file that is damaged, expired or writable by others, Ray starts without a label."""

    def mirror(until: float) -> bytes:
        nodes = [MirrorNode("n1", 3, False, 0.31, 1e-2, 0.9, "UNHEALTHY", "XID 79")]
        return render(nodes, computed_seconds=int(time.time()), valid_until_seconds=int(until), degraded=False)  # fmt: skip

    file, whole = tmp_path / "nodes", mirror(time.time() + 50)
    assert labels(str(file), "n1") == ""
    file.write_bytes(whole)
    assert labels(str(file), "n1") == "gangline.io/bucket=3"
    assert labels(str(file), "n2") == ""
    for wrong in (b"", b"x\n" * 1000, whole[:-1], whole + b" ", mirror(time.time() - 5), mirror(time.time() + 600)):  # fmt: skip
        file.write_bytes(wrong)
        assert labels(str(file), "n1") == ""
    file.write_bytes(whole)
    file.chmod(0o666)
    assert labels(str(file), "n1") == ""
    file.chmod(0o644)
    tmp_path.chmod(0o777)  # others may put another file there
    assert labels(str(file), "n1") == ""


def test_wrong_usage_of_the_helper() -> None:
    done = subprocess.run(["python3", HELPER, "state"], capture_output=True, text=True, check=False, timeout=GUARD_SECONDS)  # fmt: skip
    assert (done.returncode, "labels [FILE [HOST]]" in done.stderr) == (2, True)


class RaySite(Site):
    """The subset of a site that the rig needs: Ray starts and ends no jobs by name."""

    settings: ClassVar[dict[str, object]] = {"mark": "drain", "actions": ("EVICT_NOW",)}

    def __init__(self, address: str) -> None:
        self._ray = Ray((str(FOLDER / "env/bin/python"), str(HELPER)), address, 1.0)

    @property
    def scheduler(self) -> Ray:
        return self._ray

    def node(self, number: int) -> str:
        return f"n{number}"

    def submit(self, nodes: int, *, may_requeue: bool = True) -> str:
        raise NotImplementedError

    def drain(self, node: str, reason: str) -> None:
        raise NotImplementedError

    def resume(self, node: str) -> None:
        raise NotImplementedError

    def remove_hold(self, name: str) -> None:
        raise NotImplementedError

    def cancel(self, job: str) -> None:
        raise NotImplementedError


@pytest.mark.slow
@pytest.mark.skipif(not (FOLDER / "env/bin/ray").exists(), reason=MISSING)
def test_a_real_cluster(tmp_path: Path) -> None:
    """The placement group is reported; its node is drained for EVICT_NOW, and ends after the group. Other nodes stay."""
    (tmp_path / "cluster.py").write_text(CLUSTER)
    with ExitStack() as stack:
        cluster = stack.enter_context(
            subprocess.Popen([FOLDER / "env/bin/python", tmp_path / "cluster.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        )  # fmt: skip
        stack.callback(lambda: cluster.communicate("\n\n", timeout=GUARD_SECONDS))
        assert cluster.stdout is not None and cluster.stdin is not None
        line = cluster.stdout.readline().split()
        assert line[:1] == ["READY"], line
        site = RaySite(line[1])
        advice = stack.enter_context(serving_advice())
        rig = Rig(site, advice, tmp_path, stack)
        rig.start()
        (group,) = site.scheduler.read_jobs().values()
        rig.until(lambda: group.name in advice.gangs(), "the gang is reported")
        node = min(group.nodes)
        advice.fault(node, Action.EVICT_NOW, job=group.name)
        rig.until(lambda: rig.is_done(node), "done")
        advisory = advice.of(node)
        assert advisory is not None and "was left: Ray lets it continue" in advisory.state_message
        assert site.scheduler.read_nodes([node])[node].state == "DRAINING"
        cluster.stdin.write("\n")
        cluster.stdin.flush()
        assert cluster.stdout.readline().strip() == "REMOVED"
        rig.until(lambda: site.scheduler.read_nodes([node])[node].state == "DEAD", "the node ends")
        nodes = site.scheduler.read_nodes()
        assert REASON.partition("cause")[0] in nodes[node].reason and nodes[node].is_managed
        assert all(
            node_state.state == "ALIVE" for name, node_state in nodes.items() if name != node
        )
