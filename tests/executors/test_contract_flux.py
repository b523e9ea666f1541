"""The executor for Flux, over a fake of its commands that prints the documented output of
flux-resource(1) and flux-jobs(1).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import pytest

from gangline.aggregator.advisories.advisory import Action
from gangline.contract.settings import SettingsError, load
from gangline.executors.flux.scheduler import Flux, FluxConfig, doctor_findings, node_of
from gangline.executors.model import Drain, Reboot, Resume, Scheduler, SchedulerError
from tests.executors.contract import ExecutorContract, Rig, Site

OURS = "gangline:v1;act=drain;cause=xid;ttl=60;adv=a1"


class FakeFlux:
    """Nodes n1 to n8, drains with a reason, jobs that take free nodes; several threads may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.nodes = [f"n{number}" for number in range(1, 9)]
        self.drained: dict[str, str] = {}
        self.jobs: dict[str, list[str]] = {}
        self.changes: list[list[str]] = []

    def __call__(self, command: Sequence[str]) -> str:
        with self._lock:
            match list(command):
                case ["flux", "version"]:
                    return "commands:    \t\t0.88.0\nlibflux-core:\t\t0.88.0\n"
                case ["flux", "resource", "status", "--no-header", layout]:
                    return "".join(self._lines(layout.removeprefix("--format=")))
                case [
                    "flux",
                    "jobs",
                    "-A",
                    "--since=-10m",
                    "--count=100000",
                    "--no-header",
                    layout,
                ]:
                    return "".join(
                        layout.removeprefix("--format=").replace("{id.hex}", name).format(
                            status="RUNNING", nodelist=",".join(nodes), t_submit=time.time() - 2, t_run=time.time() - 1, t_inactive=""
                        ) + "\n"
                        for name, nodes in self.jobs.items()
                    )  # fmt: skip
                case ["flux", "resource", "drain", "--force", node, reason]:
                    self.changes.append(["force", node, reason])
                    self.drained[node] = reason
                case ["flux", "resource", "drain", node, reason]:
                    if node in self.drained:
                        raise SchedulerError(f"flux-resource: ERROR: rank(s) of {node} already drained")  # fmt: skip
                    self.changes.append(["drain", node, reason])
                    self.drained[node] = reason
                case ["flux", "resource", "undrain", node]:
                    if node not in self.drained:
                        raise SchedulerError(f"flux-resource: ERROR: {node} not drained")
                    self.changes.append(["undrain", node])
                    del self.drained[node]
                case _:
                    raise SchedulerError(f"unknown: {command}")
            return ""

    def _lines(self, layout: str) -> Iterator[str]:
        """Print nodes of equal state in one line, drained nodes one per line."""
        busy = {node for nodes in self.jobs.values() for node in nodes}
        free = sorted(set(self.nodes) - set(self.drained))
        numbers = ",".join(node[1:] for node in free)
        if free:
            yield layout.format(statex="avail", status="online", nodelist=f"n[{numbers}]", reason="") + "\n"  # fmt: skip
        for node, reason in self.drained.items():
            state = "draining" if node in busy else "drained"
            yield layout.format(statex=state, status="online", nodelist=node, reason=reason) + "\n"

    def submit(self, count: int) -> str:
        with self._lock:
            busy = {node for nodes in self.jobs.values() for node in nodes}
            free = [node for node in self.nodes if node not in busy and node not in self.drained]
            name = f"0x{len(self.jobs) + 10:x}"
            self.jobs[name] = free[:count]
            assert len(self.jobs[name]) == count
            return name

    def locked(self, change: Callable[[], object]) -> None:
        with self._lock:
            change()


class FluxSite(Site):
    settings: ClassVar[dict[str, object]] = {"mark": "drain"}
    requeues = False

    def __init__(self) -> None:
        self.fake = FakeFlux()
        self._flux = Flux(self.fake)

    @property
    def scheduler(self) -> Scheduler:
        return self._flux

    def node(self, number: int) -> str:
        return f"n{number}"

    def submit(self, nodes: int, *, may_requeue: bool = True) -> str:
        return self.fake.submit(nodes)

    def drain(self, node: str, reason: str) -> None:
        self.fake.locked(lambda: self.fake.drained.update({node: reason}))

    def resume(self, node: str) -> None:
        self.fake.locked(lambda: self.fake.drained.pop(node))

    def remove_hold(self, name: str) -> None:
        raise AssertionError("there are none")

    def cancel(self, job: str) -> None:
        self.fake.locked(lambda: self.fake.jobs.pop(job))


class TestFlux(ExecutorContract):
    def test_an_eviction_moves_the_named_job_and_no_other(self, rig: Rig) -> None:
        """Flux cannot requeue: the node gets no new work, and the answer reports that the job continues."""
        rig.start()
        job = rig.site.submit(3)
        rig.until(lambda: job in rig.advice.gangs(), "the gang is reported")
        rig.advice.fault("n1", Action.EVICT_NOW, job=job)
        rig.until(lambda: rig.is_done("n1"), "done")
        advisory = rig.advice.of("n1")
        assert advisory is not None and f"job {job} was left: Flux requeues no job" in advisory.state_message  # fmt: skip
        assert rig.site.scheduler.read_nodes()["n1"].is_managed
        assert "n1" in rig.site.scheduler.read_jobs()[job].nodes

    @pytest.fixture
    def site(self) -> Site:
        return FluxSite()


def test_a_drain_of_somebody_else_is_neither_renamed_nor_ended() -> None:
    fake = FakeFlux()
    flux, drain, resume = Flux(fake), Drain("a1", "", "n1", OURS, 60.0), Resume("a1", "", "n1")
    fake.drained["n1"] = "bad fan"
    assert "already drained" in flux.apply([drain])[drain]
    assert not flux.apply([resume]) and not fake.changes
    fake.drained.clear()
    assert not flux.apply([drain]) and not flux.apply([drain])
    graver = Drain("a2", "", "n1", OURS.replace("drain", "evict"), 60.0)
    assert not flux.apply([graver, resume])
    assert fake.changes == [["drain", "n1", OURS], ["force", "n1", graver.reason], ["undrain", "n1"]]  # fmt: skip


def test_nodes_in_every_state() -> None:
    assert not node_of("n1", "avail", "online", "").out and not node_of("n1", "avail", "online", "").down  # fmt: skip
    assert node_of("n1", "exclude", "online", "").out == "excluded by configuration"
    assert node_of("n1", "torpid", "online", "").down == "torpid"
    assert node_of("n1", "avail", "offline", "").down == "offline"
    offline = node_of("n1", "drained", "offline", "bad | fan")
    assert (offline.out, offline.is_responding, offline.is_managed) == ("drained: bad | fan", False, False)  # fmt: skip


@pytest.mark.parametrize("text", ["", "|||", "avail", "x" * 10_000, "0x1|RUNNING|n1|a|b", "7|RUNNING|n1|1|1|"])  # fmt: skip
def test_lines_that_say_nothing(text: str) -> None:
    flux = Flux(lambda command: text)
    assert flux.read_jobs() == {}
    assert all(not node.out for node in flux.read_nodes().values())
    assert flux.capabilities().version == ""


def test_jobs_that_have_ended_hold_no_nodes() -> None:
    lines = "0x1|CANCELED|n[1-2]|10.5|11|12\n0x2|PENDING||10||\n0x3|RUNNING|n[01-03]|10|11|\n"
    jobs = Flux(lambda command: lines).read_jobs()
    assert (jobs["0x1"].state, jobs["0x1"].nodes, jobs["0x1"].ended) == ("CANCELLED", frozenset(), 12.0)  # fmt: skip
    assert jobs["0x2"].state == "PENDING" and jobs["0x3"].nodes == {"n01", "n02", "n03"}


def test_what_is_left_to_people() -> None:
    step = Reboot("a1", "", "n1", "x")
    flux = Flux(FakeFlux())
    assert flux.apply([step]) == {step: "Reboot is not a step of Flux"}
    absent = Drain("a1", "", "n9", OURS, 60.0)
    assert flux.apply([absent]) == {absent: "n9 is not a node of this instance of Flux"}
    for wrong in ("mark=hold", 'actions=["REBOOT"]', 'actions=["DRAIN_AT_CHECKPOINT"]'):
        with pytest.raises(SettingsError, match="this scheduler"):
            load(FluxConfig, None, [wrong])
    assert [finding.level for finding in doctor_findings(flux)] == ["ok", "note", "note", "note"]
