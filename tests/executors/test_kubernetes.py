"""The executor for Kubernetes beyond the contract: foreign taints stay, budgets hold, holds expire,
a single replica acts.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gangline.cli import main as command
from gangline.executors.kubernetes import doctor as kubernetes_doctor
from gangline.executors.kubernetes import scheduler as kubernetes
from gangline.executors.kubernetes.api import ApiAccess, ApiError, ApiServer
from gangline.executors.kubernetes.scheduler import Kubernetes
from gangline.executors.kubernetes.settings import KubernetesConfig
from gangline.executors.kubernetes.state import (
    LEASE_SECONDS,
    ConfigMapLedger,
    ExecutorLease,
    lease_identity,
)
from gangline.executors.ledger import Entry, LedgerError
from gangline.executors.model import (
    EndStep,
    PlaceHold,
    RemoveHold,
    Requeue,
    ScheduledJob,
    SchedulerError,
    Step,
)
from tests.executors.kubernetes_site import KubernetesSite
from tests.fake_kubernetes import with_token
from tests.kubernetes_cluster import (
    ADMIN_TOKEN,
    EXECUTOR_TOKEN,
    MANIFESTS,
    MISSING,
    NAMESPACE,
    UsedCluster,
    has_kubernetes,
    path_of,
    until,
)

REAL = pytest.mark.skipif(not has_kubernetes(), reason=MISSING)

NO_JOB = ScheduledJob("", "PENDING")


@pytest.fixture(params=["fake_cluster", pytest.param("real_cluster", marks=REAL)])
def cluster(request: pytest.FixtureRequest) -> UsedCluster:
    fixture: UsedCluster = request.getfixturevalue(request.param)
    return fixture


@pytest.fixture
def site(cluster: UsedCluster) -> Iterator[KubernetesSite]:
    site = KubernetesSite(cluster)
    yield site
    site.clean()


def succeed(site: KubernetesSite, *steps: Step) -> None:
    assert site.kubernetes.apply(steps) == {}


def hold(number: int, node: str, seconds: float = 600.0, evict: bool = False) -> PlaceHold:
    name = f"gangline_a{number}{'_evict' if evict else ''}"
    return PlaceHold(f"a{number}", "why", name, node, seconds)


@pytest.mark.parametrize("rounds", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_two_writers_lose_nobodys_taint(site: KubernetesSite, rounds: int) -> None:
    """`taints` is a single list: a client that writes back an older list deletes the taints added since."""
    people, lost = site.people, []

    def others() -> None:
        for number in range(rounds):
            people.taint("n1", f"repair.example/{number % 3}", str(number))
            if f"repair.example/{number % 3}={number}:NoSchedule" not in people.taints("n1"):
                lost.append(number)

    thread = threading.Thread(target=others)
    thread.start()
    turn = 0
    while thread.is_alive():
        turn += 1
        errors = site.kubernetes.apply([hold(turn, "n1")])
        assert all(
            "Conflict" in error or "422" in error or "409" in error for error in errors.values()
        )
        site.kubernetes.apply([RemoveHold(f"a{turn}", "why", f"gangline_a{turn}")])
    thread.join()
    assert not lost
    assert len([taint for taint in people.taints("n1") if taint.startswith("repair.example")]) == 3
    for number in range(3):
        people.untaint("n1", f"repair.example/{number}")


def test_two_holds_on_a_node_are_one_taint(site: KubernetesSite) -> None:
    """A taint is identified by key and effect: the second advisory's hold must not end with the first one's."""
    succeed(site, hold(7, "n2"), hold(12, "n2"))
    assert site.people.taints("n2") == ["gangline.io/avoid=a12:NoSchedule"]
    succeed(site, RemoveHold("a12", "why", "gangline_a12"))
    assert site.people.taints("n2") == ["gangline.io/avoid=a7:NoSchedule"]
    assert site.kubernetes.read_holds().keys() == {"gangline_a7"}
    succeed(site, RemoveHold("a7", "why", "gangline_a7"), RemoveHold("a7", "why", "gangline_a7"))
    assert site.people.taints("n2") == []
    assert "gangline.io/holds" not in (site.people.node("n2")["metadata"].get("annotations") or {})


def test_each_hold_is_one_event_of_its_node(site: KubernetesSite) -> None:
    """kubectl shows the reason and how often the hold was set or extended, in a single event."""
    number = time.time_ns() // 1000
    succeed(site, hold(number, "n2"), hold(number, "n2", 700))
    events, _ = site.people.api.list_all("/api/v1/namespaces/default/events")
    (event,) = (event for event in events if event["metadata"]["name"] == f"n2.gangline-a{number}")
    assert event["message"] == f"gangline_a{number}: why" and event["type"] == "Warning"
    assert event["involvedObject"]["name"] == "n2" and event["count"] == 2


def test_no_execute_only_where_it_is_asked_for(cluster: UsedCluster) -> None:
    """A NoExecute taint evicts every pod of the node, whatever its budget: the executor sets it
    only with `no_execute`.
    """
    for no_execute in (False, True):
        site = KubernetesSite(cluster, no_execute=no_execute)
        succeed(site, hold(3, "n3", evict=True))
        taints = ["gangline.io/avoid=a3:NoSchedule", "gangline.io/evict=a3:NoExecute"]
        assert site.people.taints("n3") == taints[: 1 + no_execute]
        succeed(site, RemoveHold("a3", "why", "gangline_a3_evict"))
        assert site.people.taints("n3") == []
        site.clean()


def test_what_is_past_its_end_is_taken_away(cluster: UsedCluster) -> None:
    """An executor that has ended left a taint, and Kubernetes itself never removes taints."""
    now = time.time()
    site = KubernetesSite(cluster, wall=lambda: now)
    succeed(site, hold(1, "n1", 60), hold(2, "n1", 600), hold(3, "n2", 60))
    site.people.taint("n4", "gangline.io/avoid", "a4")  # without an end
    until(lambda: "gangline_a4" in site.kubernetes.read_holds(), "it is seen")
    now += 100
    site.kubernetes.remove_expired()
    assert site.kubernetes.read_holds().keys() == {"gangline_a2"}
    now += 1000
    site.kubernetes.remove_expired()
    assert not site.kubernetes.read_holds()
    assert all(site.people.taints(f"n{index}") == [] for index in range(1, 9))
    site.clean()


@REAL
def test_without_any_executor_kubectl_takes_away_what_is_past_its_end(
    real_cluster: UsedCluster, tmp_path: Path
) -> None:
    """The CronJob's script from the manifest: foreign taints and unexpired holds stay."""
    site = KubernetesSite(real_cluster)
    people = site.people
    people.taint("n1", "repair.example/fan")
    people.taint("n3", "zone.example/late")
    succeed(site, hold(1, "n1", -60), hold(2, "n2", 600), hold(3, "n2", -60), hold(4, "n3", -60))
    people.taint("n1", "repair.example/later")
    people.taint("n4", "gangline.io/avoid", "a5")
    assert run_expiry(real_cluster, tmp_path) == ""
    assert people.taints("n1") == ["repair.example/fan=:NoSchedule", "repair.example/later=:NoSchedule"]  # fmt: skip
    assert people.taints("n2") == ["gangline.io/avoid=a3:NoSchedule"]
    assert people.taints("n3") == ["zone.example/late=:NoSchedule"]
    assert people.taints("n4") == []
    for node, key in (("n1", "repair.example/fan"), ("n1", "repair.example/later"), ("n3", "zone.example/late")):  # fmt: skip
        people.untaint(node, key)
    site.clean()


def run_expiry(cluster: UsedCluster, folder: Path) -> str:
    """Run the script of executors/kubernetes/manifests/expiry.yaml; return its errors."""
    lines = (MANIFESTS / "expiry.yaml").read_text().splitlines()
    first = lines.index("  expire.sh: |") + 1
    end = next(index for index in range(first, len(lines)) if lines[index] == "---")
    script = "\n".join(line[4:] for line in lines[first:end]).replace("/tmp/", f"{folder}/")
    done = run_script(cluster, folder, script)
    assert done.returncode == 0, done.stderr
    return done.stderr


@REAL
def test_the_line_without_gangline_removes_every_taint(
    real_cluster: UsedCluster, tmp_path: Path
) -> None:
    """kubectl changes no node that lacks one of the named taints, so the documented line removed nothing."""
    page = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
    match = re.search(r"Without Gangline:\s+`([^`]+)`", page)
    assert match
    people = real_cluster.people
    people.taint("n1", "gangline.io/avoid", "a1")
    people.taint("n1", "repair.example/fan")
    people.taint("n2", "gangline.io/avoid", "a2")
    people.taint("n2", "gangline.io/evict", "a2", "NoExecute")
    run_script(real_cluster, tmp_path, match[1])
    assert people.taints("n1") == ["repair.example/fan=:NoSchedule"] and not people.taints("n2")
    people.untaint("n1", "repair.example/fan")


def run_script(cluster: UsedCluster, folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run *script* with kubectl in its PATH."""
    kubectl = path_of("kubectl")
    assert cluster.real and kubectl
    environment = {
        "PATH": f"{Path(kubectl).parent}:/usr/bin:/bin", "HOME": str(folder),
        "KUBECONFIG": str(cluster.real.kubeconfig(ADMIN_TOKEN)),
    }  # fmt: skip
    return subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False)  # fmt: skip


def test_a_budget_keeps_the_whole_gang(site: KubernetesSite) -> None:
    """The API server looks at one pod at a time: with a budget of two it would end two of three, and the third would hold its GPUs."""
    job = site.submit(3)
    app = job.rpartition("/")[2]
    site.people.add_budget(app, 1)
    try:
        until(lambda: allowed(site, app) == 2, "the budget is known")
        (error,) = site.kubernetes.apply([Requeue("a1", "why", job, 0)]).values()
        assert f"disruption budget {NAMESPACE}/{app} allows 2 disruptions, and 3 pods of the gang are under it" in error  # fmt: skip
        assert len(live_pods(site)) == 3 and site.kubernetes.read_jobs()[job].restarts == 0
    finally:
        site.people.remove_budget(app)
    succeed(site, Requeue("a1", "why", job, 0))
    until(lambda: site.kubernetes.read_jobs()[job].is_running, "it runs again")
    assert site.kubernetes.read_jobs()[job].restarts == 1


def allowed(site: KubernetesSite, app: str) -> int:
    path = f"/apis/policy/v1beta1/namespaces/{NAMESPACE}/poddisruptionbudgets/{app}"
    status = site.people.api.call("GET", path).get("status") or {}
    return int(status.get("disruptionsAllowed", 0))


def live_pods(site: KubernetesSite) -> list[Any]:
    return [pod for pod in site.people.pods() if not pod["metadata"].get("deletionTimestamp")]


def test_an_elastic_gang_loses_only_its_pod_there(site: KubernetesSite) -> None:
    """torchrun with --nnodes=MIN:MAX continues without the pod: ending the whole gang would cost
    the work that it saves.
    """
    job = site.submit_annotated(3, {"gangline.io/elastic": "true"})
    gang = site.kubernetes.read_jobs()[job]
    assert gang.restarts_itself
    node = min(gang.nodes)
    before = {pod["metadata"]["uid"] for pod in live_pods(site) if pod["spec"].get("nodeName") != node}  # fmt: skip
    succeed(site, hold(5, node, evict=True), EndStep("a5", "why", job, node))
    until(lambda: node not in site.kubernetes.read_jobs()[job].nodes and len(site.kubernetes.read_jobs()[job].nodes) == 3, "its pod is elsewhere")  # fmt: skip
    assert before <= {pod["metadata"]["uid"] for pod in live_pods(site)}


def test_a_pod_that_the_watch_does_not_show_yet_is_seen_behind_the_hold(
    site: KubernetesSite,
) -> None:
    """A gang started just before the taint, and the watch was late: the eviction was DONE while the
    gang ran on the node.
    """
    site.kubernetes.read_jobs()
    pods: Any = site.kubernetes._pods
    with delayed(pods):
        job = site.people.submit(1)
        until(
            lambda: [pod for pod in live_pods(site) if pod["spec"].get("nodeName")], "it is bound"
        )
        (node,) = {pod["spec"]["nodeName"] for pod in live_pods(site)}
        assert not site.kubernetes.read_jobs().get(f"{NAMESPACE}/job/{job}", NO_JOB).nodes
        succeed(site, hold(6, node, evict=True))
        assert site.kubernetes.read_jobs()[f"{NAMESPACE}/job/{job}"].nodes == {node}


@contextmanager
def delayed(objects: Any) -> Iterator[None]:
    take, main = objects._take, threading.get_ident()
    waiting: list[tuple[str, Any]] = []

    def hold_back(kind: str, thing: Any) -> str:
        if threading.get_ident() == main:
            return str(take(kind, thing))
        waiting.append((kind, thing))
        return ""

    objects._take = hold_back
    try:
        yield
    finally:
        objects._take = take
        for kind, thing in waiting:
            take(kind, thing)


@REAL
def test_the_manifest_gives_what_is_needed_and_nothing_else(real_cluster: UsedCluster) -> None:
    """Two executors are two logins with rights over a whole cluster: each needless right could be stolen."""
    with closing(ApiServer(real_cluster.access)) as api:
        scheduler = Kubernetes(api)
        lines = list(
            kubernetes_doctor.findings(api, scheduler, KubernetesConfig(kubeconfig="its own"), True)
        )
        assert [line.level for line in lines] == ["ok"] * 4, lines
        forbidden: list[tuple[str, str, Any]] = [
            ("GET", "/api/v1/secrets", None),
            ("GET", "/api/v1/namespaces/kube-system/configmaps/other", None),
            ("GET", "/api/v1/namespaces/gangline/configmaps/other", None),
            ("DELETE", "/api/v1/nodes/n1", None),
            ("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/any", None),
            ("PUT", "/api/v1/nodes/n1/status", {}),
            ("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", {}),
            ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles", None),
        ]
        for method, path, body in forbidden:
            with pytest.raises(ApiError, match="forbidden") as caught:
                api.call(method, path, body)
            assert caught.value.status == 403
        scheduler.close()


@REAL
def test_the_command(real_cluster: UsedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The emergency commands: list the marks, and remove all of them."""
    assert real_cluster.real
    site = KubernetesSite(real_cluster)
    way = ["--set", f"kubeconfig={real_cluster.real.kubeconfig(EXECUTOR_TOKEN)}"]
    succeed(site, hold(9, "n5"))
    assert run(["executor", "kubernetes", "status", *way], capsys) == (0, "nothing is set\n", "")
    code, output, _ = run(["executor", "kubernetes", "undo", "--all", *way], capsys)
    assert (code, output) == (0, "undone: RemoveHold hold=gangline_a9\n")
    assert site.people.taints("n5") == []
    code, output, _ = run(["executor", "kubernetes", "undo", "--all", *way], capsys)
    assert output == "nothing in Kubernetes was set by an executor\n"
    site.clean()


def test_outside_a_cluster_the_command_says_how_to_get_in(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any login the message names the two places where it was sought, and the setting."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", "/nowhere/config")
    code, _, error = run(["executor", "kubernetes", "status"], capsys)
    assert code == 1
    assert "not a pod with a service account, and there is no kubeconfig /nowhere/config" in error
    assert "set kubeconfig = FILE" in error
    code, _, error = run(["executor", "kubernetes", "--set", 'actions=["REBOOT"]'], capsys)
    assert code == 2 and "expected actions without REBOOT" in error
    code, _, error = run(["executor", "kubernetes", "--set", "mark=drain"], capsys)
    assert code == 2 and "only people cordon nodes" in error


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = command(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_one_replica_has_the_lease(cluster: UsedCluster, request: pytest.FixtureRequest) -> None:
    name, now = f"lease-{time.time_ns()}", 1000.0
    access = admin_access(cluster)

    def lease(holder: str) -> ExecutorLease:
        lease = ExecutorLease(ApiServer(access), "gangline", name, holder, monotonic=lambda: now)
        request.addfinalizer(lease.release)
        return lease

    ensure_namespace(cluster)
    first, second = lease("one"), lease("two")
    assert first.attempt() == "" and second.attempt() == "one"
    now += LEASE_SECONDS - 1
    assert first.attempt() == "" and second.attempt() == "one"
    now += LEASE_SECONDS - 1
    assert second.attempt() == "one"
    now += 2
    assert second.attempt() == "" and first.attempt() == "two"
    second.release()
    assert first.attempt() == ""


def test_two_executors_of_one_host_have_two_identities(
    cluster: UsedCluster, request: pytest.FixtureRequest
) -> None:
    """Both had the host's name: each took the Lease for its own, and overwrote the other's ledger."""
    ensure_namespace(cluster)
    name, identities = f"lease-{time.time_ns()}", (lease_identity(), lease_identity())
    assert all(len(identity) <= 63 for identity in identities)
    leases = [
        ExecutorLease(ApiServer(admin_access(cluster)), "gangline", name, identity)
        for identity in identities
    ]
    for lease in leases:
        request.addfinalizer(lease.release)
    assert leases[0].attempt() == "" and leases[1].attempt() == identities[0]


def test_a_replica_that_lost_the_lease_cannot_write_the_ledger(cluster: UsedCluster) -> None:
    """The replica was suspended for a minute, and does not know yet that another replica acts."""
    ensure_namespace(cluster)
    with closing(ApiServer(admin_access(cluster))) as api:
        name = f"ledger-{time.time_ns()}"
        first = ConfigMapLedger(api, "gangline", name)
        first.add(Entry("a1", "n1", "AVOID", "one", 3, 100.0, 200.0, "hold", "gangline_a1"))
        first.save()
        second = ConfigMapLedger(api, "gangline", name)
        assert second.entries == first.entries and second.tokens == {"a1": 3}
        second.save()
        with pytest.raises(LedgerError, match="another executor wrote it"):
            first.save()
        second.save()


def test_a_write_of_the_ledger_whose_answer_was_lost_is_known_again(cluster: UsedCluster) -> None:
    """The connection broke after the API server had stored the ledger: each later write would have been refused."""
    ensure_namespace(cluster)
    with closing(ApiServer(admin_access(cluster))) as api:
        ledger = ConfigMapLedger(api, "gangline", f"ledger-{time.time_ns()}")
        ledger.save()
        ledger.add(Entry("a1", "n1", "AVOID", "one", 3, 100.0, 200.0))
        with losing_answers(api), pytest.raises(LedgerError, match="no answer"):
            ledger.save()
        ledger.add(Entry("a2", "n2", "AVOID", "one", 4, 100.0, 200.0))
        ledger.save()
        ledger.load()
        assert ledger.entries.keys() == {"a1", "a2"}


@contextmanager
def losing_answers(api: Any) -> Iterator[None]:
    """Send calls to the API server, and drop its answers."""
    call = api.call

    def lost(*arguments: Any) -> Any:
        call(*arguments)
        raise ApiError(0, "no answer")

    api.call = lost
    try:
        yield
    finally:
        api.call = call


def admin_access(cluster: UsedCluster) -> ApiAccess:
    return cluster.real.access(ADMIN_TOKEN) if cluster.real else cluster.access


def ensure_namespace(cluster: UsedCluster) -> None:
    try:
        cluster.people.add_namespace("gangline")
    except ApiError as error:
        assert error.status == 409, error


def test_a_stale_patch_is_a_conflict(cluster: UsedCluster) -> None:
    """A conflict, whatever its status code, must be retried from the newest version."""
    api = cluster.people.api
    version = cluster.people.node("n1")["metadata"]["resourceVersion"]
    cluster.people.taint("n1", "test.example/one")
    patch = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, {"op": "add", "path": "/spec/taints", "value": []}]  # fmt: skip
    with pytest.raises(ApiError) as caught:
        api.call("PATCH", "/api/v1/nodes/n1", patch, "application/json-patch+json")
    assert caught.value.is_conflict
    assert cluster.people.taints("n1") == ["test.example/one=:NoSchedule"]
    cluster.people.untaint("n1", "test.example/one")


def test_a_list_in_pages_is_whole(cluster: UsedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 nodes do not fit in a single answer."""
    monkeypatch.setattr("gangline.executors.kubernetes.api.PAGE_OBJECTS", 3)
    nodes, version = cluster.people.api.list_all("/api/v1/nodes")
    assert [node["metadata"]["name"] for node in nodes] == [f"n{index}" for index in range(1, 9)]
    assert int(version) > 0


def test_a_wrong_token_is_said(cluster: UsedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expired token looked like an empty cluster."""
    with closing(ApiServer(with_token(cluster.access, "wrong"))) as api:
        with pytest.raises(ApiError, match="401: Unauthorized"):
            api.call("GET", "/api/v1/nodes")
        scheduler = Kubernetes(api)
        with pytest.raises(ApiError, match="Unauthorized"):
            scheduler.capabilities()
        # Without waiting for LIST_SECONDS_MAX.
        monkeypatch.setattr(kubernetes, "LIST_SECONDS_MAX", 3600.0)
        with closing(scheduler), pytest.raises(SchedulerError, match="Unauthorized"):
            scheduler.read_nodes()


def test_while_the_watch_is_lost_nothing_is_said_of_the_cluster(site: KubernetesSite) -> None:
    """The state read before the loss is out of date: pods may have ended, and nodes been cordoned."""
    nodes: Any = site.kubernetes._nodes
    assert site.kubernetes.read_nodes() and not site.kubernetes.read_jobs()
    until(lambda: nodes._watch, "the watch")
    with no_route(nodes._api):
        nodes._watch.close()
        until(lambda: fails(site.kubernetes.read_nodes), "it is said")
    until(lambda: not fails(site.kubernetes.read_nodes), "it is back")


@contextmanager
def no_route(api: Any) -> Iterator[None]:
    """Block all calls to the API server; watches that have begun continue."""
    watch, lists = api.watch, api.list_all

    def broken(*arguments: Any) -> Any:
        raise ApiError(0, "no route to host")

    api.watch = api.list_all = broken
    try:
        yield
    finally:
        api.watch, api.list_all = watch, lists


def fails(call: Callable[[], object]) -> bool:
    try:
        call()
    except SchedulerError:
        return True
    return False
