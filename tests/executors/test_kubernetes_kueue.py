"""The admission check of Kueue, against custom resources with exactly its fields. Kueue's reaction
to the answer is not shown here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from gangline.executors.kubernetes import kueue as kubernetes_kueue
from gangline.executors.kubernetes.api import JSON_PATCH, MERGE_PATCH, ApiServer
from gangline.executors.kubernetes.jobs import GangPod
from gangline.executors.kubernetes.kueue import (
    MESSAGE_CHARACTERS_MAX,
    REQUEUE_SECONDS,
    REQUEUE_SECONDS_MAX,
    AdmissionView,
    CheckAnswer,
    KueueController,
    KueueWorkload,
    PodSet,
    check_patch,
    check_workload,
    parse_workload,
    with_flavors,
)
from gangline.executors.kubernetes.marks import KubernetesNode
from gangline.executors.kubernetes.settings import GPU_RESOURCES
from gangline.executors.model import PlaceHold
from tests.executors.kubernetes_site import KubernetesSite
from tests.fake_kubernetes import fake_kubernetes
from tests.kubernetes_cluster import (
    GPUS,
    MANIFESTS,
    MISSING,
    NAMESPACE,
    UsedCluster,
    has_kubernetes,
    until,
)
from tests.kueue_objects import DEFINITIONS, KUEUE, define_all

REAL = pytest.mark.skipif(not has_kubernetes(), reason=MISSING)
BASE = f"/apis/{KUEUE}/v1beta1"
STAMP = "2026-01-01T00:00:00Z"


def empty_view() -> AdmissionView:
    return AdmissionView({}, {}, (), GPU_RESOURCES)


def fleet(count: int = 4, **settings: Any) -> dict[str, KubernetesNode]:
    names = [f"n{index}" for index in range(1, count + 1)]
    return {name: KubernetesNode(name, "1", gpus={"nvidia.com/gpu": 8}, ready="True", **settings) for name in names}  # fmt: skip


def workload(*pod_sets: PodSet, retries: int = 0) -> KueueWorkload:
    return KueueWorkload("ml", "train", pod_sets, (("gangline", "Pending", retries),), True)


def decide(pods: int, out: dict[str, str], **settings: Any) -> CheckAnswer:
    nodes = settings.pop("nodes", fleet())
    return check_workload(workload(PodSet("main", pods, 8)), AdmissionView(nodes, out, settings.pop("running", ()), GPU_RESOURCES), **settings)  # fmt: skip


def test_it_waits_only_for_nodes_that_are_out() -> None:
    """A check that also waited for capacity would conflict with Kueue's own quota."""
    assert decide(4, {}).state == "Ready"
    answer = decide(4, {"n2": "held for a12", "n3": "bucket 3"})
    assert (answer.state, answer.requeue_seconds) == ("Retry", REQUEUE_SECONDS)
    assert answer.message == "2 of 4 pods with 8 GPUs (main) fit on no healthy node; out: n2 (held for a12); n3 (bucket 3)"  # fmt: skip
    assert decide(2, {"n2": "held for a12"}).state == "Ready"
    answer = decide(5, {"n2": "held for a12"})
    assert answer.state == "Ready" and "the decision is Kueue's" in answer.message


def test_pods_that_run_take_their_gpus() -> None:
    """A healthy node without free GPUs cannot take the gang."""
    pod = GangPod("ml", "p", "u", "ml/job/a", "Running", "n1", gpus=8)
    assert decide(3, {}, running=[pod]).state == "Ready"
    assert decide(3, {"n2": "x"}, running=[pod]).state == "Retry"
    assert decide(4, {"n2": "x"}, running=[pod]).state == "Ready"  # it would not fit anyhow


def test_selectors_and_flavors_narrow_the_nodes() -> None:
    """Four healthy nodes of another kind do not help."""
    nodes = fleet(labels={"kind": "a100"}) | {"h1": KubernetesNode("h1", "1", gpus={"nvidia.com/gpu": 8}, labels={"kind": "h100"})}  # fmt: skip
    kueue_workload = KueueWorkload(
        "ml", "t", (PodSet("main", 1, 8),), (), True, {"main": frozenset(["fast"])}
    )
    narrowed = with_flavors(kueue_workload, {"fast": {"kind": "h100"}, "slow": {}})
    assert (
        check_workload(narrowed, AdmissionView(nodes, {"h1": "bucket 3"}, (), GPU_RESOURCES)).state
        == "Retry"
    )
    assert (
        check_workload(
            kueue_workload, AdmissionView(nodes, {"h1": "bucket 3"}, (), GPU_RESOURCES)
        ).state
        == "Ready"
    )


def test_pod_sets_share_the_nodes() -> None:
    """A launcher of one GPU and workers of eight: the widest is placed first."""
    both = workload(PodSet("launcher", 1, 1), PodSet("worker", 4, 8), PodSet("cpu", 9, 0))
    assert check_workload(both, AdmissionView(fleet(), {}, (), GPU_RESOURCES)).message.endswith(
        "the decision is Kueue's"
    )
    assert check_workload(both, AdmissionView(fleet(5), {}, (), GPU_RESOURCES)).state == "Ready"
    assert (
        check_workload(
            workload(PodSet("cpu", 3, 0)), AdmissionView({}, {}, (), GPU_RESOURCES)
        ).state
        == "Ready"
    )


def test_the_wait_grows_and_the_message_is_bounded() -> None:
    """A thousand nodes out of service, and a workload that waits for a day."""
    nodes, out = fleet(1000), {f"n{index}": "x" * 400 for index in range(1, 1001)}
    answer = decide(1, out, nodes=nodes, retries=3)
    assert (
        answer.requeue_seconds == 8 * REQUEUE_SECONDS
        and len(answer.message) <= MESSAGE_CHARACTERS_MAX
    )
    assert decide(1, out, nodes=nodes, retries=10**6).requeue_seconds == REQUEUE_SECONDS_MAX


def test_a_selector_of_the_bucket_only_where_it_is_asked_for() -> None:
    """The selector is set only if the workload fits on the best nodes, and has no selector of its own."""
    best = fleet(bucket_label="0")
    assert not decide(2, {}, nodes=best).node_selector
    answer = decide(2, {}, nodes=best, select_bucket=True)
    assert answer.node_selector == {"gangline.io/bucket": "0"} and answer.pod_sets == ("main",)
    assert not decide(2, {}, nodes=fleet(bucket_label="1"), select_bucket=True).node_selector
    own = workload(PodSet("main", 1, 8, {"gangline.io/bucket": "1"}))
    labeled = fleet(bucket_label="0", labels={"gangline.io/bucket": "1"})
    assert not check_workload(
        own, AdmissionView(labeled, {}, (), GPU_RESOURCES), select_bucket=True
    ).node_selector


def test_the_patch_touches_our_check_alone() -> None:
    """The list also has other controllers' checks, and Kueue writes it, too."""
    kueue_workload = KueueWorkload(
        "ml", "t", (), (("other", "Pending", 0), ("gangline", "Pending", 2)), True
    )
    *tests, change = check_patch(kueue_workload, 1, CheckAnswer("Retry", "why", 60), 0.0)
    assert [(test["path"], test["value"]) for test in tests] == [
        ("/status/admissionChecks/1/name", "gangline"), ("/status/admissionChecks/1/state", "Pending"),
    ]  # fmt: skip
    assert change["value"]["requeueAfterSeconds"] == 60 and change["value"]["retryCount"] == 2


@pytest.mark.parametrize("document", [{}, {"metadata": {}, "spec": {"podSets": [{}]}}, {"metadata": 1, "spec": 2}, {"metadata": {"name": "a", "namespace": "b"}, "spec": {}, "status": {"admissionChecks": [{}]}}])  # fmt: skip
def test_what_is_no_workload_is_passed_over(document: Any) -> None:
    """A watch skips an object with such an error."""
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        parse_workload(document, GPU_RESOURCES)


@pytest.fixture(scope="module")
def defined() -> set[int]:
    return set()


@pytest.fixture(params=["fake_cluster", pytest.param("real_cluster", marks=REAL)])
def cluster(request: pytest.FixtureRequest, defined: set[int]) -> UsedCluster:
    fixture: UsedCluster = request.getfixturevalue(request.param)
    if id(fixture) not in defined:
        define_all(fixture)
        defined.add(id(fixture))
    return fixture


@pytest.fixture
def site(cluster: UsedCluster) -> Iterator[KubernetesSite]:
    site = KubernetesSite(cluster)
    yield site
    site.clean()


@pytest.fixture
def controller(cluster: UsedCluster, site: KubernetesSite) -> Iterator[KueueController]:
    controller = KueueController(
        ApiServer(cluster.access),
        site.kubernetes.view,
        gpu_resources=GPU_RESOURCES,
        select_bucket=True,
    )
    yield controller
    controller.close()


def submit(site: KubernetesSite, name: str, pods: int) -> None:
    """Create the objects that Kueue writes: a workload, then quota and pending checks."""
    api = site.people.api
    container = {"name": "main", "image": "none", "resources": {"requests": {"nvidia.com/gpu": str(GPUS)}}}  # fmt: skip
    body = {
        "apiVersion": f"{KUEUE}/v1beta1", "kind": "Workload", "metadata": {"name": name},
        "spec": {"podSets": [{"name": "main", "count": pods, "template": {"spec": {"containers": [container]}}}]},
    }  # fmt: skip
    api.call("POST", f"{BASE}/namespaces/{NAMESPACE}/workloads", body)
    condition = {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": "it has quota", "lastTransitionTime": STAMP}  # fmt: skip
    checks = [{"name": check_name, "state": "Pending", "message": "it waits", "lastTransitionTime": STAMP} for check_name in ("other", "gangline")]  # fmt: skip
    status = {"status": {"conditions": [condition], "admissionChecks": checks}}
    api.call("PATCH", f"{BASE}/namespaces/{NAMESPACE}/workloads/{name}/status", status, MERGE_PATCH)


def checks(site: KubernetesSite, name: str) -> dict[str, Any]:
    result = site.people.api.call("GET", f"{BASE}/namespaces/{NAMESPACE}/workloads/{name}")
    return {check["name"]: check for check in result["status"]["admissionChecks"]}


def answered(controller: KueueController, site: KubernetesSite, name: str) -> Any:
    until(lambda: controller.turn() and checks(site, name)["gangline"]["state"] != "Pending", "it is answered")  # fmt: skip
    assert checks(site, name)["other"]["state"] == "Pending"
    return checks(site, name)["gangline"]


def is_active(site: KubernetesSite) -> str:
    check_object = site.people.api.call("GET", f"{BASE}/admissionchecks/gangline")
    (condition,) = check_object["status"]["conditions"]
    return str(condition["status"])


def drop(site: KubernetesSite, *names: str) -> None:
    for name in names:
        site.people.api.call("DELETE", f"{BASE}/namespaces/{NAMESPACE}/workloads/{name}")


def test_ready_retry_and_who_is_in_the_way(controller: KueueController, site: KubernetesSite) -> None:  # fmt: skip
    """Eight nodes, two of them held: eight pods wait, six start."""
    for node in ("n3", "n5"):
        assert site.kubernetes.apply([PlaceHold("a12", "why", f"gangline_a{node[1]}", node, 600)]) == {}  # fmt: skip
    submit(site, "six", 6)
    submit(site, "eight", 8)
    assert answered(controller, site, "six")["state"] == "Ready"
    answers = answered(controller, site, "eight")
    assert answers["state"] == "Retry" and answers["requeueAfterSeconds"] == REQUEUE_SECONDS
    assert answers["message"].endswith("out: n3 (held for a3); n5 (held for a5)")
    assert is_active(site) == "True"
    drop(site, "six", "eight")


def test_a_selector_on_the_bucket(controller: KueueController, site: KubernetesSite) -> None:
    for index in range(1, 9):
        body = {"metadata": {"labels": {"gangline.io/bucket": "0" if index < 5 else "2"}}}
        site.people.api.call("PATCH", f"/api/v1/nodes/n{index}", body, MERGE_PATCH)
    until(lambda: site.kubernetes.current_nodes()["n8"].bucket == 2, "labels are seen")
    submit(site, "two", 2)
    answers = answered(controller, site, "two")
    assert answers["podSetUpdates"] == [
        {"name": "main", "nodeSelector": {"gangline.io/bucket": "0"}}
    ]
    drop(site, "two")
    site.kubernetes.clear_health()


def test_what_another_wrote_meanwhile_stays(controller: KueueController, site: KubernetesSite) -> None:  # fmt: skip
    """Kueue took the quota back between the controller's read and its answer: the patch must not
    restore a removed check.
    """
    submit(site, "taken", 2)
    controller.turn()
    until(lambda: controller.turn() and checks(site, "taken")["gangline"]["state"] == "Ready", "answered")  # fmt: skip
    stale: Any = controller._workloads
    path = f"{BASE}/namespaces/{NAMESPACE}/workloads/taken/status"
    seen = stale.current()[f"{NAMESPACE}/taken"]
    rejected = [{"op": "replace", "path": "/status/admissionChecks/1/state", "value": "Rejected"}]
    site.people.api.call("PATCH", path, rejected, JSON_PATCH)
    controller._write(seen, 1, CheckAnswer("Ready", "late"))
    assert checks(site, "taken")["gangline"]["state"] == "Rejected"
    drop(site, "taken")
    controller._write(seen, 1, CheckAnswer("Ready", "gone"))  # logs nothing


def test_undo_lets_what_waits_go_on(controller: KueueController, site: KubernetesSite) -> None:
    """A controller that has ended blocks every workload of its queue: undo answers them, and informs Kueue."""
    controller.turn()
    assert is_active(site) == "True"
    submit(site, "waits", 8)
    until(lambda: "waits" in str(controller.undo()), "it is answered")
    assert checks(site, "waits")["gangline"]["state"] == "Ready" and is_active(site) == "False"
    assert controller.undo() == []
    drop(site, "waits")


def test_without_kueue_nothing_is_done(site: KubernetesSite) -> None:
    """The setting is on, and Kueue is not installed: one line in the log, no error."""

    with closing(ApiServer(site.people.api.access)) as api:
        controller = KueueController(api, empty_view, gpu_resources=())
        patch = pytest.MonkeyPatch()
        patch.setattr(kubernetes_kueue, "GROUP", "absent.x-k8s.io")
        assert controller.turn() == kubernetes_kueue.ABSENT_SECONDS and controller.undo() == []
        patch.undo()


def test_the_check_is_of_a_version_that_is_served() -> None:
    """Kueue 0.20 no longer serves v1beta1, which the manifest named; an upgrade under a running executor ended its watches for good."""
    with fake_kubernetes() as (fake, access):
        for definition in DEFINITIONS:
            fake.define(definition)
        fake.serve(KUEUE, ("v1beta2", "v1beta1"))
        controller = KueueController(ApiServer(access), empty_view, gpu_resources=GPU_RESOURCES)
        with closing(controller):
            controller.turn()
            created = fake.objects["admissionchecks", "", "gangline"]
            assert created["apiVersion"] == f"{KUEUE}/v1beta2"
            assert created["spec"] == {"controllerName": kubernetes_kueue.CONTROLLER_NAME}
            fake.serve(KUEUE, ("v1beta1",))
            until(
                lambda: controller.turn() and controller._base == BASE,
                "the version that is served is used",
            )
            del fake.objects["admissionchecks", "", "gangline"]
            controller.turn()
            assert ("admissionchecks", "", "gangline") not in fake.objects  # a person took it away


def test_a_check_under_another_name_is_enough() -> None:
    """A site that named the check itself must not get a second one."""
    with fake_kubernetes() as (fake, access):
        for definition in DEFINITIONS:
            fake.define(definition)
        own = {
            "metadata": {"name": "health"},
            "spec": {"controllerName": kubernetes_kueue.CONTROLLER_NAME},
        }
        with fake.condition:
            fake.create("admissionchecks", "", own)
        with closing(
            KueueController(ApiServer(access), empty_view, gpu_resources=())
        ) as controller:
            controller.turn()
            assert [name for kind, _, name in fake.objects if kind == "admissionchecks"] == [
                "health"
            ]


def test_no_manifest_names_a_version_of_kueue() -> None:
    """A version in a manifest is wrong for some Kueue; rights are by group."""
    for path in MANIFESTS.glob("*.yaml"):
        assert f"{KUEUE}/v" not in path.read_text(), path.name
