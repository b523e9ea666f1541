"""One GPU out in place of its node: against a DeviceTaintRule of exactly its fields. What the DRA controllers do with it is not shown here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.executors import core
from gangline.executors.kubernetes.devices import find_devices, parse_rule
from gangline.executors.ledger import Entry, UnsavedLedger
from gangline.executors.model import (
    Advice,
    Answer,
    Capabilities,
    ExtendHold,
    Node,
    NodeHold,
    PlaceHold,
    RemoveHold,
    SchedulerState,
    Situation,
)
from gangline.executors.undo import undo_all
from tests.executors.kubernetes_site import KubernetesSite
from tests.executors.test_kubernetes import run_expiry
from tests.kubernetes_cluster import MISSING, UsedCluster, has_kubernetes
from tests.kueue_objects import DRA, define_all

REAL = pytest.mark.skipif(not has_kubernetes(), reason=MISSING)
RULES = f"/apis/{DRA}/v1alpha3/devicetaintrules"
SLICES = f"/apis/{DRA}/v1/resourceslices"
DRIVER = "gpu.nvidia.com"


def uuid_of(node: str, gpu: int) -> str:
    return f"GPU-{node}-{gpu}"


def slice_of(node: str, gpus: int = 4) -> Any:
    devices = [{"name": f"gpu-{index}", "attributes": {"uuid": {"string": uuid_of(node, index)}}} for index in range(gpus)]  # fmt: skip
    return {
        "apiVersion": f"{DRA}/v1", "kind": "ResourceSlice", "metadata": {"name": f"{node}-gpus"},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}, "devices": devices},
    }  # fmt: skip


@pytest.fixture(scope="module")
def defined() -> set[int]:
    return set()


@pytest.fixture(params=["fake_cluster", pytest.param("real_cluster", marks=REAL)])
def cluster(request: pytest.FixtureRequest, defined: set[int]) -> UsedCluster:
    fixture: UsedCluster = request.getfixturevalue(request.param)
    if id(fixture) not in defined:
        define_all(fixture)
        for index in range(1, 9):
            fixture.people.api.call("POST", SLICES, slice_of(f"n{index}"))
        defined.add(id(fixture))
    return fixture


@pytest.fixture
def site(cluster: UsedCluster) -> Iterator[KubernetesSite]:
    site = KubernetesSite(cluster, device_taints=True, no_execute=True)
    yield site
    undo_all(site.scheduler)
    site.clean()


def place(node: str, *gpus: int, number: int = 12, evict: bool = False, seconds: float = 600.0) -> PlaceHold:  # fmt: skip
    hold = f"gangline_a{number}{'_evict' if evict else ''}"
    devices = tuple(uuid_of(node, gpu).upper() for gpu in gpus)
    return PlaceHold(f"a{number}", "XID 79", hold, node, seconds, devices=devices)


def rules(site: KubernetesSite) -> list[Any]:
    rules_listed, _ = site.people.api.list_all(RULES)
    return rules_listed


def test_one_gpu_is_tainted_and_its_node_is_not(site: KubernetesSite) -> None:
    """Seven good GPUs stay usable; the rule names the device, its driver and the expiry."""
    assert site.kubernetes.apply([place("n2", 3)]) == {}
    (rule,) = rules(site)
    assert rule["spec"]["deviceSelector"] == {"driver": DRIVER, "pool": "n2", "device": "gpu-3"}
    taint = rule["spec"]["taint"]
    assert (taint["key"], taint["value"], taint["effect"]) == (
        "gangline.io/avoid",
        "a12",
        "NoSchedule",
    )
    assert site.people.taints("n2") == []
    hold = site.kubernetes.read_holds()["gangline_a12"]
    assert hold.nodes == {"n2"} and hold.devices == ("gpu-3",) and hold.ends > time.time() + 500
    assert site.kubernetes.apply([place("n2", 3)]) == {}  # again: no second rule
    assert site.kubernetes.apply([ExtendHold("a12", "why", "gangline_a12", 7200)]) == {}
    assert site.kubernetes.read_holds()["gangline_a12"].ends > time.time() + 7000
    assert site.kubernetes.apply([RemoveHold("a12", "why", "gangline_a12")]) == {}
    assert rules(site) == [] and not site.kubernetes.read_holds()
    assert site.kubernetes.apply([RemoveHold("a12", "why", "gangline_a12")]) == {}


def test_an_eviction_has_the_effect_that_evicts(site: KubernetesSite) -> None:
    """With `no_execute`: pods that use the device end, others of the node go on."""
    assert site.kubernetes.apply([place("n2", 0, evict=True)]) == {}
    (rule,) = rules(site)
    assert rule["spec"]["taint"]["effect"] == "NoExecute"


@pytest.mark.parametrize("gpus", [(), (9,), (0, 9), (0, 1, 2, 3, 0)])
def test_what_is_no_single_gpu_takes_out_the_node(site: KubernetesSite, gpus: tuple[int, ...]) -> None:  # fmt: skip
    """A GPU that no driver publishes, or too many GPUs: the node is tainted, as without DRA."""
    assert site.kubernetes.apply([place("n2", *gpus)]) == {}
    assert rules(site) == [] and site.people.taints("n2") == ["gangline.io/avoid=a12:NoSchedule"]


def test_rules_of_others_stay(site: KubernetesSite) -> None:
    theirs = {
        "apiVersion": f"{DRA}/v1alpha3", "kind": "DeviceTaintRule", "metadata": {"name": "mine"},
        "spec": {"deviceSelector": {"device": "gpu-3"}, "taint": {"key": "repair.example/fan", "effect": "NoSchedule"}},
    }  # fmt: skip
    site.people.api.call("POST", RULES, theirs)
    assert site.kubernetes.apply([place("n2", 3)]) == {}
    assert undo_all(site.scheduler) == (["RemoveHold hold=gangline_a12"], [])
    assert [rule["metadata"]["name"] for rule in rules(site)] == ["mine"]
    site.people.api.call("DELETE", f"{RULES}/mine")


def test_rules_past_their_end_are_taken_away(cluster: UsedCluster) -> None:
    """Kubernetes itself never ends a rule."""
    now = time.time()
    site = KubernetesSite(cluster, device_taints=True, wall=lambda: now)
    assert site.kubernetes.apply([place("n1", 0, number=1, seconds=60), place("n1", 1, number=2)]) == {}  # fmt: skip
    now += 100
    site.kubernetes.remove_expired()
    assert site.kubernetes.read_holds().keys() == {"gangline_a2"}
    now += 1000
    site.kubernetes.remove_expired()
    assert rules(site) == []
    site.clean()


@REAL
def test_without_any_executor_kubectl_takes_rules_away(real_cluster: UsedCluster, cluster: UsedCluster, tmp_path: Path) -> None:  # fmt: skip
    if cluster is not real_cluster:
        pytest.skip("the stand-in has no kubectl")
    site = KubernetesSite(real_cluster, device_taints=True)
    assert site.kubernetes.apply([place("n1", 0, number=1, seconds=-60), place("n1", 1, number=2)]) == {}  # fmt: skip
    run_expiry(real_cluster, tmp_path)
    assert site.kubernetes.read_holds().keys() == {"gangline_a2"}
    undo_all(site.scheduler)
    site.clean()


def test_without_the_api_it_is_the_node(fake_cluster: UsedCluster) -> None:
    """Kubernetes before 1.33, or with the feature off: the setting has no effect, and a log line reports this."""
    site = KubernetesSite(fake_cluster, device_taints=True)
    devices: Any = site.kubernetes._devices
    devices._paths = ("", "")
    assert site.kubernetes.apply([place("n2", 3)]) == {}
    assert site.people.taints("n2") == ["gangline.io/avoid=a12:NoSchedule"]
    assert site.kubernetes.apply([RemoveHold("a12", "why", "gangline_a12")]) == {}
    site.clean()


def test_devices_of_any_version_of_slices() -> None:
    """`basic` until v1beta1; a UUID in two pools is ambiguous and matches no device."""
    old = slice_of("n1")
    for device in old["spec"]["devices"]:
        device["basic"] = {"attributes": device.pop("attributes")}
    assert [device.name for device in find_devices([old, slice_of("n2"), {}, {"spec": 1}], "n1", ["GPU-n1-2"])] == ["gpu-2"]  # fmt: skip
    twice = [
        slice_of("n1"),
        {**slice_of("n1"), "spec": {**slice_of("n1")["spec"], "driver": "other"}},
    ]
    assert find_devices(twice, "n1", ["GPU-n1-2"]) == []


def test_a_rule_that_somebody_damaged() -> None:
    """A rule without its node belongs to no hold; a rule without its end has expired."""
    metadata = {"name": "r", "labels": {"gangline.io/executor": "gangline"}}
    assert parse_rule({"metadata": metadata}) is None
    rule = parse_rule({"metadata": {**metadata, "annotations": {"gangline.io/node": "n1", "gangline.io/holds": "x"}}})  # fmt: skip
    assert rule is not None and rule.holds == {}


def test_the_answer_says_that_the_node_goes_on() -> None:
    """Without this answer the aggregator counts the node as out of service."""
    hold = NodeHold("gangline_a1", frozenset(["n1"]), 1e12, ("gpu-3",))
    advice = Advice("a1", "1", "AVOID", "ACCEPTED", "n1", scope="gpu", expires=1000.0, lease_until=1e9, devices=("GPU-1",))  # fmt: skip
    ledger = UnsavedLedger()
    ledger.add(
        Entry("a1", "n1", "AVOID", "", 0, 0.0, 1000.0, "hold", "gangline_a1", "set", 1.0, 1000.0)
    )
    state = SchedulerState({"n1": Node("n1", "Ready")}, {}, {"gangline_a1": hold})
    (step,) = core.decide(Situation({"a1": advice}, state, 2.0, True, Capabilities(has_drain=False)), ledger)  # fmt: skip
    assert isinstance(step, Answer) and "of gpu-3 alone: other GPUs of n1 continue" in step.why
