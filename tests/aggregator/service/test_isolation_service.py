"""VerifyIsolation: names, wrong requests, what a request accepts and what that costs, plans, and the layout that is proposed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gangline.aggregator.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServiceUnavailable,
)
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.fleet.inventory_cache import ATTRIBUTES
from gangline.aggregator.principal import LOCAL, Principal, Role, set_principal
from gangline.aggregator.service.interference import InterferenceService
from gangline.aggregator.service.isolation import check_isolation, host_facts
from gangline.aggregator.service.known_runs import visible_name
from gangline.contract.isolation import BOUNDARIES
from gangline.contract.wire import interference_pb2 as wire
from tests.aggregator.service.test_interference_service import Source, judgement
from tests.isolated_host import (
    CORES,
    GPUS,
    INFERENCE,
    PIDS,
    TRAINING,
    IsolatedHost,
    ask,
    statuses,
)


@pytest.fixture
def host(tmp_path: Path) -> IsolatedHost:
    return IsolatedHost(tmp_path)


@pytest.fixture
def fleet(host: IsolatedHost) -> Fleet:
    return host.fleet()


@pytest.fixture(autouse=True)
def local_caller() -> Iterator[None]:
    yield
    set_principal(LOCAL)


def known_runs() -> Any:
    """Return a snapshot that knows the demands of both jobs."""
    snapshot = judgement()
    known = replace(
        snapshot.workloads, names={**snapshot.workloads.names, TRAINING: 0, INFERENCE: 1}
    )
    return replace(snapshot, workloads=known)


def test_isolated_jobs_pass_and_cost_nothing(fleet: Fleet) -> None:
    response = ask(fleet)
    assert response.passed
    assert statuses(response) == dict.fromkeys(BOUNDARIES, "verified")
    assert not response.HasField("cost")
    assert not response.layouts
    assert not response.advice


@pytest.mark.parametrize(
    "name", [TRAINING, f"kubernetes/{TRAINING}", f"kubernetes/{TRAINING}@1700000000"]
)
def test_a_job_is_named_as_in_run_demand(fleet: Fleet, name: str) -> None:
    assert ask(fleet, training=name).passed


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"node": "h0"}, InvalidArgument, "node"),
        ({"node": "nodes/h9"}, NotFound, "no node 'h9'"),
        ({"training": ""}, InvalidArgument, "training: empty; name a job on the node"),
        ({"training": "x" * 513}, InvalidArgument, "training: 513"),
        ({"training": "ml/trainer-1"}, NotFound, "no job 'ml/trainer-1' runs on h0; jobs there: ml/trainer-0"),
        ({"inference": TRAINING}, InvalidArgument, "is the same job as inference; name two jobs"),
        ({"accept_violated": ["gpu"]}, InvalidArgument, r"accept_violated\[0\]: 'gpu', expected one of mig, mps, cpus"),
        ({"accept_not_verified": ["mig", "mig"]}, InvalidArgument, "named twice"),
        ({"accept_not_verified": ["mig"] * 12}, InvalidArgument, "accept_not_verified"),
        ({"planned_training": {}}, InvalidArgument, "planned_training.gpus"),
        ({"planned_training": {"gpus": ["GPU-x"]}}, NotFound, "no GPU 'GPU-x' on the node; it has GPU-0"),
        ({"planned_training": {"gpus": [f"{GPUS[1]}/a"]}}, InvalidArgument, "expected UUID or UUID/INSTANCE"),
        ({"planned_training": {"gpus": [GPUS[1]] * 65}}, InvalidArgument, "planned_training.gpus"),
        ({"planned_training": {"gpus": [GPUS[1]], "cpus": "all"}}, InvalidArgument, "'all', expected numbers and ranges"),
        ({"planned_training": {"gpus": [GPUS[1]], "memory_nodes": "-"}}, InvalidArgument, "memory_nodes: '-'"),
        ({"planned_training": {"gpus": [GPUS[1]], "cpus": "1," * 200}}, InvalidArgument, "planned_training.cpus: 400"),
    ],
)  # fmt: skip
def test_wrong_requests_name_the_fault_and_the_correct_form(
    fleet: Fleet, fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ask(fleet, **fields)


def test_the_score_process_and_a_start_have_no_answer(fleet: Fleet) -> None:
    with pytest.raises(FailedPrecondition, match="at the address `listen`"):
        ask(None)

    service: Any = InterferenceService(Source(None), fleet)
    with pytest.raises(ServiceUnavailable):
        service.VerifyIsolation(wire.VerifyIsolationRequest(), None).send(None)


def test_a_job_of_another_host_is_not_there(fleet: Fleet) -> None:
    fleet.register("h1", simulated=False, boot_id=bytes(16), devices=[])
    with pytest.raises(NotFound, match="runs on h1; no job holds a GPU there"):
        ask(fleet, node="nodes/h1")


def test_only_what_is_verified_or_accepted_passes(host: IsolatedHost) -> None:
    host.link(PIDS[INFERENCE], "ipc:[4026532000]")
    host.hide(TRAINING, "root")
    fleet = host.fleet()
    doubtful = ["nic", "rdma_limits", "devices"]
    assert {b for b, status in statuses(ask(fleet)).items() if status == "not_verified"} == set(
        doubtful
    )
    assert not ask(fleet).passed
    assert not ask(fleet, accept_not_verified=doubtful).passed
    assert not ask(fleet, accept_not_verified=[*doubtful, "shm"]).passed
    assert not ask(fleet, accept_violated=[*doubtful, "shm"]).passed
    response = ask(fleet, accept_not_verified=doubtful, accept_violated=["shm"])
    assert response.passed
    assert {check.boundary for check in response.boundaries if check.accepted} == {*doubtful, "shm"}


def test_what_is_accepted_has_a_price(host: IsolatedHost) -> None:
    """A request that accepts a doubtful boundary learns how much the jobs may slow each other."""
    host.hide(TRAINING, "root")
    fleet, accepted = host.fleet(), ["nic", "rdma_limits", "devices"]
    response = ask(fleet, snapshot=known_runs(), accept_not_verified=accepted)
    assert [s.slowdown.value >= 1.0 for s in response.cost.slowdowns] == [True, True]
    assert response.cost.slowdowns[0].slowdown.upper > 1.0
    assert response.version == 7
    response = ask(fleet, snapshot=judgement(), accept_not_verified=accepted)
    assert response.cost_unknown.startswith(f"no run {TRAINING!r} has a known demand")


@pytest.mark.parametrize(
    ("change", "sharing"),
    [
        (lambda h: h.divide(1, 2), "mig"), (lambda h: h.share("", ""), "time_slicing"), (lambda h: None, "host"),
    ],
)  # fmt: skip
def test_the_price_is_that_of_the_form_of_sharing(
    host: IsolatedHost, change: Any, sharing: str
) -> None:
    change(host)
    request = wire.VerifyIsolationRequest(node="nodes/h0", training=TRAINING, inference=INFERENCE)
    checked = check_isolation(request, host.fleet(), visible_name)
    assert wire.Sharing.Name(checked.sharing) == f"SHARING_{sharing.upper()}"


def test_a_plan_is_checked_before_it_is_placed(fleet: Fleet) -> None:
    """A plan that leaves boundaries open was placed as if they held."""
    plan = {"gpus": [GPUS[1]], "cpus": "0-7,32-39", "memory_nodes": "0"}
    result = statuses(ask(fleet, training="", planned_training=plan))
    held = {b for b, status in result.items() if status == "verified"}
    assert held == {"mig", "mps", "cpus", "memory_nodes", "iommu"} | (
        {"pcie_switch"} if result["pcie_switch"] == "verified" else set()
    )
    plan = {"gpus": [GPUS[3]], "cpus": "24-31", "memory_nodes": "1"}
    result = statuses(ask(fleet, training="", planned_training=plan))
    assert {b for b, s in result.items() if s == "violated"} == {
        "cpus",
        "memory_nodes",
        "pcie_switch",
    }
    plan = {"gpus": [GPUS[2]]}
    assert statuses(ask(fleet, training="", planned_training=plan))["mig"] == "violated"
    response = ask(fleet, training="", planned_training=plan, accept_violated=["mig"])
    assert response.cost_unknown == "training names no run, so its demand is unknown"


def test_an_endpoint_that_sees_all_gpus_fails_the_plan(host: IsolatedHost) -> None:
    host.node(INFERENCE, "nvidia1")
    response = ask(host.fleet(), training="", planned_training={"gpus": [GPUS[1]]})
    assert statuses(response)["devices"] == "violated"


def test_a_job_of_another_login_is_not_shown(fleet: Fleet) -> None:
    owned = "train (scheduler red)"
    (job,) = (job for job in fleet.jobs.holding(0) if job.name == TRAINING)
    job.key = job.key[0], owned, job.key[2]
    set_principal(Principal(Role.SCHEDULER, "blue", proof=(1, 1)))
    with pytest.raises(NotFound) as refused:
        ask(fleet, training="train")
    assert owned not in str(refused.value)
    set_principal(Principal(Role.SCHEDULER, "red", proof=(1, 1)))
    assert ask(fleet, training="train").passed
    set_principal(Principal(Role.OPERATOR, "anna", proof=(1, 1)))
    assert ask(fleet, training=owned).passed


def test_a_violated_boundary_comes_with_a_layout_that_holds(host: IsolatedHost) -> None:
    """A proposal was placed, and the boundary was violated still."""
    for job, cpus, nodes in ((TRAINING, "0-63", "0-1"), (INFERENCE, "0-31", "0-1")):
        host.group(job, cpus=cpus)
        host.status(job, "Cpus_allowed_list", cpus)
        host.status(job, "Mems_allowed_list", nodes)
    host.node(INFERENCE, "infiniband/uverbs0")
    host.group(INFERENCE, rdma="mlx5_0 hca_handle=2 hca_object=9\n")
    response = ask(host.fleet())
    training, inference = response.layouts
    assert (training.job, list(training.gpus), training.cpus, training.memory_nodes) == (
        TRAINING,
        [GPUS[0]],
        CORES[0],
        "0",
    )
    assert (inference.job, inference.cpus, inference.memory_nodes) == (INFERENCE, CORES[1], "1")
    assert (list(training.nics), list(inference.nics)) == (["0000:18:00.0"], ["0000:98:00.0"])
    assert any("uverbs" in text for text in response.advice)
    for layout in response.layouts:
        host.group(layout.job, cpus=layout.cpus)
        host.status(layout.job, "Cpus_allowed_list", layout.cpus)
        host.status(layout.job, "Mems_allowed_list", layout.memory_nodes)
    host.hide(INFERENCE, "root/dev/infiniband/uverbs0")
    assert ask(host.fleet()).passed


def test_jobs_near_one_node_get_a_part_of_its_cores(host: IsolatedHost) -> None:
    """Both threads of a core stay with one job, and training with three GPUs would get three quarters."""
    host.share("", "")
    response = ask(host.fleet())
    training, inference = response.layouts
    assert (training.gpu_slices, inference.gpu_slices) == ("4g", "3g")
    assert (training.cpus, inference.cpus) == ("0-7,32-39", "8-15,40-47")
    assert any(text.startswith(f"divide {GPUS[0]} by MIG") for text in response.advice)


def test_a_host_that_cannot_keep_jobs_apart_is_named_as_such(host: IsolatedHost) -> None:
    """All GPUs are near one memory node: no layout of this host divides its memory."""
    for address in (host.roots.sys / "bus/pci/devices").iterdir():
        (address / "numa_node").write_text("0\n")
    host.status(INFERENCE, "Mems_allowed_list", "0")
    response = ask(host.fleet())
    assert any("so place one of them on another host" in text for text in response.advice)


@pytest.mark.parametrize("text", ["²", "٣", "-1", "1" * 5000, ""])
def test_numbers_of_an_odd_agent_are_unknown(text: str) -> None:
    """A superscript is a digit without a number: each request about the host ended with an internal error."""
    function = ("pcie", "0000:16:00.0")
    facts = host_facts(
        {
            ("gpu", GPUS[0]): {"minor_number": text, "pci_address": function[1]},
            function: {"numa_node": text},
            ("numa", f"node{text}"): {"cpus": "0-3"},
        }
    )
    assert (facts.gpus[GPUS[0]].minor, facts.gpus[GPUS[0]].numa_node) == (None, None)
    assert not facts.nodes


def test_the_facts_that_are_read_are_in_memory(host: IsolatedHost) -> None:
    """The fleet keeps only some attributes of the inventory."""
    complete = {(d.kind, d.key): dict(d.attributes) for d in host.devices()}
    stored = {key: {n: t for n, t in a.items() if n in ATTRIBUTES} for key, a in complete.items()}
    facts = host_facts(complete)
    assert facts == host_facts(stored)
    assert all(
        g.parents and g.iommu_type and g.minor is not None and g.numa_node is not None and g.nics
        for g in facts.gpus.values()
    )
    assert facts.disks
    assert set(facts.nodes) == {0, 1}
