"""A gang belongs to its login: another login's gang of the same name is a second gang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any

import grpc
import pytest

from gangline.aggregator.advisories.advisory_limits import AdvisoryLimits
from gangline.aggregator.advisories.engine import AdvisoryEngine
from gangline.aggregator.advisories.observer import Observer
from gangline.aggregator.advisories.workloads import ScheduledGangs, WorkloadLookup, name_for
from gangline.aggregator.principal import LOCAL, Principal, Role, set_principal
from gangline.aggregator.runs.run_log import RunLog
from gangline.aggregator.service.job import JobService
from gangline.contract.wire import advisory_pb2 as wire
from gangline.contract.wire import job_pb2
from tests.aggregator.advisories.served import Tables, observe, served
from tests.worlds import World, gpu_of

FIRST: dict[str, tuple[str, ...]] = {"train": ("h0", "h1")}
BOTH = {**FIRST, "train (scheduler other)": ("h3",)}


def login(name: str, role: Role = Role.SCHEDULER) -> Principal:
    return Principal(role, name, auth_method=f"token {name}", proof=(1, 1))


SLURM, OTHER, OPERATOR = login("slurm"), login("other"), login("ann", Role.OPERATOR)


class Site:
    """A world of six hosts with one GPU each, and its advisory service, called by many logins."""

    def __init__(self, store: Tables) -> None:
        self.world = World(hosts=6, gpus=1)
        self.world.run(10)
        self.store = store
        self.start()

    def start(self) -> None:
        """Start the engine from the store, as after a restart."""
        gangs = ScheduledGangs()
        observer = Observer(work=WorkloadLookup(self.world.fleet, gangs))
        limits = AdvisoryLimits(gather_seconds=0.0, cluster_share_max=1.0)
        self.engine = AdvisoryEngine(
            self.store, limits, observer, self.world.now_ns, shadow=False, gangs=gangs
        )

    async def call(self, who: Principal, method: str, request: Any) -> Any:
        async with served(self.engine, self.world, principal=who) as (stub, _):
            return await getattr(stub, method)(request)

    def run(self, who: Principal, workload: str, *hosts: int, actor: str = "executor") -> Any:
        gang = wire.Gang(workload=workload, nodes=[f"nodes/h{host}" for host in hosts])
        request = wire.ReportGangsRequest(actor=actor, gangs=[gang])
        return asyncio.run(self.call(who, "ReportGangs", request))

    def end(self, who: Principal, *workloads: str) -> Any:
        request = wire.ReportGangsRequest(actor="executor", ended_workloads=workloads)
        return asyncio.run(self.call(who, "ReportGangs", request))

    @property
    def gangs(self) -> dict[str, tuple[str, ...]]:
        """The gangs in memory, which must equal those in the store."""
        memory = {gang.workload: gang.hosts for gang in self.engine.gangs.scheduled()}
        rows = self.store.connection.execute("SELECT workload, hosts FROM gangs").fetchall()
        assert {name: tuple(hosts) for name, hosts in rows} == memory
        return memory


def second_reports(site: Site) -> None:
    site.run(OTHER, "train", 3)


def second_ends(site: Site) -> None:
    site.end(OTHER, "train")


def restart(site: Site) -> None:
    site.start()


def first_fails_over(site: Site) -> None:
    site.run(SLURM, "train", 0, 1, actor="another replica")


#: Steps after login `slurm` reported "train" -> the gangs afterwards.
HISTORIES: dict[str, tuple[list[Callable[[Site], Any]], dict[str, tuple[str, ...]]]] = {
    "another login reports it": ([second_reports], BOTH),
    "another login ends it": ([second_ends], FIRST),
    "the other login ends its own": ([second_reports, second_ends], FIRST),
    "over a restart": ([second_reports, restart, second_reports, first_fails_over], BOTH),
    "the first login's second executor": ([first_fails_over], FIRST),
    "a scheduler ends by the full name": (
        [second_reports, lambda site: site.end(SLURM, "train (scheduler other)")], BOTH,
    ),
    "an operator ends the first": (
        [second_reports, lambda site: site.end(OPERATOR, "train")],
        {"train (scheduler other)": ("h3",)},
    ),
    "an operator ends the second": (
        [second_reports, lambda site: site.end(OPERATOR, "train (scheduler other)")], FIRST,
    ),
    "an operator ends its own": (
        [lambda site: site.run(OPERATOR, "train", 5), lambda site: site.end(OPERATOR, "train")], FIRST,
    ),
    "the first ends": (
        [second_reports, lambda site: site.end(SLURM, "train"), second_reports],
        {"train (scheduler other)": ("h3",)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HISTORIES)
def test_a_gang_belongs_to_the_login_that_reported_it(name: str) -> None:
    """A second login reported and ended "train", which replaced and removed the first gang."""
    steps, gangs = HISTORIES[name]
    with closing(Tables()) as store:
        site = Site(store)
        site.run(SLURM, "train", 0, 1)
        for step in steps:
            step(site)
        assert site.gangs == gangs


def test_a_gang_without_a_login_is_taken_over_by_the_first_login() -> None:
    """Logins were turned on, and each gang existed twice until its first report ended."""
    with closing(Tables()) as store:
        site = Site(store)
        site.run(LOCAL, "train", 0, 1)
        site.run(SLURM, "train", 0, 1)
        assert site.gangs == FIRST
        assert site.run(LOCAL, "train", 4).gangs_count == 2
        assert site.gangs == {**FIRST, "train (no login)": ("h4",)}


def test_a_login_cannot_take_the_name_of_another_logins_gang() -> None:
    """A name in the form of a second gang would be replaced by that gang, or block it."""
    with closing(Tables()) as store:
        site = Site(store)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            site.run(OTHER, "train (scheduler slurm)", 3)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "expected 'train': the service adds the login" in (refused.value.details() or "")
        site.run(OTHER, "train (scheduler's own)", 3)
        assert list(site.gangs) == ["train (scheduler's own)"]


def test_advice_names_the_gang_as_its_login_reported_it() -> None:
    """Executors find the job to move by `workload`; people see which of two gangs it is."""
    with closing(Tables()) as store:
        site = Site(store)
        site.run(SLURM, "train", 0, 1)
        site.run(OTHER, "train", 3)
        for host in site.world.hosts[1], site.world.hosts[3]:
            site.world.event(host, 95, gpu_of(host, 0))
        site.world.snapshot = site.world.run(5)
        observe(site.engine, site.world)
        asyncio.run(site.engine.flush())
        seen = {}
        for who in SLURM, OTHER, OPERATOR:
            request = wire.ListAdvisoriesRequest()
            advisories = asyncio.run(site.call(who, "ListAdvisories", request)).advisories
            seen[who.name] = {advisory.nodes[0]: advisory.workload for advisory in advisories}
        full = {"nodes/h1": "train", "nodes/h3": "train (scheduler other)"}
        assert seen == {
            "slurm": full, "ann": full, "other": {"nodes/h1": "train", "nodes/h3": "train"},
        }  # fmt: skip


def test_a_job_is_found_by_the_name_that_its_login_reported() -> None:
    """Two logins had a job "train", and `gangline job train` showed hosts of both."""
    with closing(Tables()) as store:
        site = Site(store)
        site.run(SLURM, "train", 0, 1)
        site.run(OTHER, "train", 3)
        store_of_runs: Any = store
        runs = RunLog(site.world.fleet, store_of_runs, site.engine.gangs.scheduled)
        for _ in range(15):
            site.world.run(1, last_seconds=0, every_seconds=1000)
            runs.observe(site.world.now_ns, ())
        service = JobService(runs, site.world.fleet, tuple, lambda: site.world.now_ns)

        async def job(who: Principal, name: str) -> tuple[str, list[str]]:
            set_principal(who)
            story = await service.GetJob(job_pb2.GetJobRequest(job=name), None)
            return story.job.job, list(story.nodes)

        first, second = (
            ("train", ["nodes/h0", "nodes/h1"]), ("train (scheduler other)", ["nodes/h3"]),
        )  # fmt: skip
        assert [asyncio.run(job(who, "train")) for who in (SLURM, OPERATOR, OTHER)] == [
            first, first, second,
        ]  # fmt: skip
        assert asyncio.run(job(OPERATOR, "train (scheduler other)")) == second


def test_name_for_removes_only_the_callers_own_login() -> None:
    """A caller without a login sees the full names."""
    assert name_for("a (scheduler b)", "scheduler b") == "a"
    assert name_for("a (scheduler b)", "scheduler c") == name_for("a (scheduler b)", "")
