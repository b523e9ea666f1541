"""InterferenceService: slowdowns of co-located workloads by name, class or description, and errors for wrong requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isnan
from typing import Any

import numpy as np
import pytest

from gangline.aggregator.errors import InvalidArgument, NotFound, ServiceUnavailable
from gangline.aggregator.principal import LOCAL, Principal, Role, set_principal
from gangline.aggregator.scoring.evaluate import Judgement
from gangline.aggregator.service.interference import COLOCATIONS_MAX, InterferenceService
from gangline.contract.wire import interference_pb2 as wire
from gangline.fingerprints.demand import DEMANDS, QUANTILES, SHARED_RESOURCES, HostSupply
from gangline.fingerprints.sensitivity import COMPONENTS, KnownWorkloads

GPU = {"sm": 0.6, "hbm_bandwidth": 0.4, "hbm_bytes": 30e9, "cores": 2.0}
COPY = {"pcie_received": 40e9, "cores": 4.0}
OWNED = "train (scheduler red)"
EMPTY = Judgement(version=7, computed_ns=1, horizon_seconds=1.0, hosts=())
NEGATIVE = wire.ResourceDemand(resource="sm", p50=-1.0)
NAN = wire.ResourceDemand(resource="sm", p50=float("nan"))
FALLING = wire.ResourceDemand(resource="sm", p50=2.0, p95=1.0, p99=3.0)


def demand(values: dict[str, float]) -> np.typing.NDArray[np.float32]:
    result = np.full((len(DEMANDS), len(QUANTILES)), np.nan, dtype=np.float32)
    for name, value in values.items():
        result[DEMANDS.index(name)] = value
    return result


def judgement(switch: float = 50e9, pcie_speed: float = 1.0) -> Judgement:
    """Return a snapshot with two hosts and three known runs."""
    supplies = np.full((2, len(SHARED_RESOURCES)), np.nan, dtype=np.float32)
    supplies[:, :2] = 1.0
    supplies[:, SHARED_RESOURCES.index("cores")] = 32.0
    supplies[:, SHARED_RESOURCES.index("pcie_received")] = 50e9
    speeds = np.ones((2, len(COMPONENTS)), dtype=np.float32)
    speeds[1, COMPONENTS.index("pcie")] = pcie_speed
    known = KnownWorkloads(
        {"train": 0, "slurm/train@1": 0, "copy": 1, OWNED: 2},
        ("", "", ""),
        np.zeros((3, 2 * len(COMPONENTS)), dtype=np.float32),
        np.stack([demand(GPU), demand(COPY), demand(COPY)]),
        ("training", "data", "training"),
        ("w0", "w1", "w2"),
    )
    return replace(
        EMPTY, names=("h0", "h1"), workloads=known, component_speeds=speeds,
        supplies=HostSupply(supplies, np.full(2, 80e9, np.float32), np.full(2, switch, np.float32)),
    )  # fmt: skip


class Source:
    def __init__(self, snapshot: Judgement | None) -> None:
        self.snapshot = snapshot


def predict(
    colocations: Sequence[wire.Colocation], snapshot: Judgement | None = None
) -> wire.PredictInterferenceResponse:
    service: Any = InterferenceService(Source(snapshot or judgement()))
    request = wire.PredictInterferenceRequest(colocations=colocations)
    response: wire.PredictInterferenceResponse = asyncio.run(
        service.PredictInterference(request, None)
    )
    return response


def pair(*runs: str, **fields: Any) -> wire.Colocation:
    workloads = [wire.ColocatedWorkload(run=run) for run in runs]
    return wire.Colocation(workloads=workloads, **fields)


def described(**values: float) -> wire.ColocatedWorkload:
    return wire.ColocatedWorkload(
        demands=[
            wire.ResourceDemand(resource=name, p50=value, p95=value, p99=value)
            for name, value in values.items()
        ]
    )


@pytest.fixture(autouse=True)
def local_caller() -> Iterator[None]:
    yield
    set_principal(LOCAL)


def test_two_jobs_that_take_turns_on_a_gpu_are_slower() -> None:
    response = predict([pair("train", "train", sharing=wire.SHARING_TIME_SLICING, node="nodes/h0")])
    (prediction,) = response.predictions
    assert response.version == 7
    for slowdown in prediction.slowdowns:
        assert 1.2 < slowdown.slowdown.value < 2.0
        assert slowdown.slowdown.lower <= slowdown.slowdown.value <= slowdown.slowdown.upper
        assert slowdown.binding_resource == "sm"
    assert not prediction.blocker


def test_without_a_node_the_gpu_alone_is_compared() -> None:
    """The cores of a host that nobody named are not known: every run abstained."""
    (prediction,) = predict(
        [pair("train", "train", sharing=wire.SHARING_MPS, gpu_model="H100")]
    ).predictions
    assert [s.binding_resource for s in prediction.slowdowns] == ["sm", "sm"]
    assert not any(s.abstained for s in prediction.slowdowns)


def test_gpus_of_their_own_share_only_the_host() -> None:
    (prediction,) = predict([pair("train", "train", node="nodes/h0")]).predictions
    assert [s.slowdown.value for s in prediction.slowdowns] == [1.0, 1.0]


def test_the_switch_binds_two_copies_unless_their_gpus_have_links_of_their_own() -> None:
    (shared,) = predict([pair("copy", "copy", node="nodes/h0")]).predictions
    (own,) = predict([pair("copy", "copy", node="nodes/h0")], judgement(np.inf)).predictions
    (degraded,) = predict(
        [pair("copy", "copy", node="nodes/h1")], judgement(pcie_speed=0.5)
    ).predictions
    assert shared.slowdowns[0].binding_resource == "pcie_received"
    assert own.slowdowns[0].slowdown.value == 1.0
    assert degraded.slowdowns[0].slowdown.value > shared.slowdowns[0].slowdown.value > 1.2


def test_memory_that_does_not_fit_is_a_blocker() -> None:
    three = pair("train", "train", "train", sharing=wire.SHARING_MPS, node="nodes/h0")
    two = pair("train", "train", sharing=wire.SHARING_MPS, node="nodes/h0")
    first, second = predict([three, two]).predictions
    assert "90.0 GB" in first.blocker and "80.0 GB" in first.blocker
    assert not second.blocker


def test_an_unknown_supply_is_named_in_place_of_a_number() -> None:
    heavy = described(memory_bandwidth=50e9)
    (prediction,) = predict(
        [wire.Colocation(workloads=[heavy, heavy], node="nodes/h0")]
    ).predictions
    for slowdown in prediction.slowdowns:
        assert isnan(slowdown.slowdown.value)
        assert "memory_bandwidth" in slowdown.abstained
    light = described(memory_bandwidth=1e8, cores=1.0)
    (prediction,) = predict(
        [wire.Colocation(workloads=[light, light], node="nodes/h0")]
    ).predictions
    assert [s.slowdown.value for s in prediction.slowdowns] == [1.0, 1.0]


def test_a_class_stands_for_its_runs() -> None:
    workloads = [wire.ColocatedWorkload(workload_class="data"), wire.ColocatedWorkload(run="copy")]
    (prediction,) = predict([wire.Colocation(workloads=workloads, node="nodes/h0")]).predictions
    first, second = prediction.slowdowns
    assert first.slowdown.value == second.slowdown.value > 1.2


@pytest.mark.parametrize(
    ("login", "role", "name", "is_known"),
    [
        ("red", Role.SCHEDULER, OWNED, True),
        ("blue", Role.SCHEDULER, OWNED, False),
        ("anna", Role.OPERATOR, OWNED, True),
        ("blue", Role.SCHEDULER, "train", True),
    ],
)
def test_a_login_cannot_name_the_job_of_another(
    login: str, role: Role, name: str, is_known: bool
) -> None:
    set_principal(Principal(role, login, proof=(1, 1)))
    colocation = pair(name, "copy", node="nodes/h0")
    if is_known:
        assert predict([colocation]).predictions
    else:
        with pytest.raises(NotFound, match="no run") as raised:
            predict([colocation])
        assert "red" not in str(raised.value).replace(name, "")


def test_a_login_gets_its_own_job_of_a_name() -> None:
    set_principal(Principal(Role.SCHEDULER, "red", proof=(1, 1)))
    (own,) = predict([pair("train", "copy", node="nodes/h0")]).predictions
    assert own.slowdowns[0].binding_resource == "pcie_received"  # OWNED copies, train does not


def of_demands(*demands: wire.ResourceDemand) -> list[wire.Colocation]:
    workload = wire.ColocatedWorkload(demands=demands)
    return [wire.Colocation(workloads=[workload, workload])]


@pytest.mark.parametrize(
    ("colocations", "message"),
    [
        ([], "0, expected 1 to 64"),
        ([pair("train", "copy")] * (COLOCATIONS_MAX + 1), "65, expected 1 to 64"),
        ([pair("train")], "1, expected 2 to 8"),
        ([pair(*["train"] * 9)], "9, expected 2 to 8"),
        ([pair("train", "copy", sharing=9)], "SHARING_HOST"),
        ([pair("train", "copy", node="h0")], "expected nodes/NODE"),
        ([pair("train", "x" * 513)], "513 characters, at most 512"),
        ([pair("train", "a\nb")], "printable"),
        ([pair("train", "")], "exactly one of run, workload_class and demands"),
        ([pair("train", "copy", gpu_model="x" * 129)], "129 characters"),
        (
            [pair("train", "copy", gpu_model="K80")],
            "'K80', expected one of A100, H100, H200, B200; or name a node",
        ),
        (of_demands(wire.ResourceDemand(resource="gpu")), "expected one of sm, hbm_bandwidth"),
        (of_demands(NEGATIVE), "expected 0 <= p50"),
        (of_demands(NAN), "expected 0 <= p50"),
        (of_demands(FALLING), "expected 0 <= p50"),
        (of_demands(*[wire.ResourceDemand(resource="sm")] * 2), "given twice"),
    ],
)
def test_wrong_requests_name_the_fault(colocations: list[wire.Colocation], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        predict(colocations)


@pytest.mark.parametrize(
    ("colocation", "message"),
    [
        (pair("train", "trian"), "did you mean train"),
        (pair("train", "copy", node="nodes/h9"), "no node 'h9'"),
        (wire.Colocation(workloads=[wire.ColocatedWorkload(workload_class="sing")] * 2), "known classes: data, training"),
    ],
)  # fmt: skip
def test_unknown_names_are_not_found(colocation: wire.Colocation, message: str) -> None:
    with pytest.raises(NotFound, match=message):
        predict([colocation])


def test_before_the_first_judgement_it_is_unavailable() -> None:
    service: Any = InterferenceService(Source(None))
    with pytest.raises(ServiceUnavailable):
        asyncio.run(service.PredictInterference(wire.PredictInterferenceRequest(), None))
