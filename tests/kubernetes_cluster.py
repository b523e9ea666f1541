"""A Kubernetes of eight GPU nodes for tests: the real API server, etcd and scheduler if installed,
and users of the cluster.

No kubelet runs: `Kubelets` reports the states of pods on nodes. Jobs are restored by the real
controller manager if installed, else by `JobController`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from gangline.executors.kubernetes.api import (
    JSON_PATCH,
    MERGE_PATCH,
    ApiAccess,
    ApiError,
    ApiServer,
    find_access,
)
from gangline.executors.model import SchedulerError
from tests.processes import GUARD_SECONDS, free_port, listening

PROGRAMS = ("etcd", "kube-apiserver", "kube-scheduler", "kubectl")
CONTROLLERS = "job,disruption,replicaset"
MISSING = (
    "kube-apiserver, kube-scheduler and etcd are not here: "
    "tests/rigs/kubernetes.sh FOLDER builds them; then export GANGLINE_KUBERNETES=FOLDER/bin"
)
GPUS = 4
NAMESPACE = "ml"
MANIFESTS = Path(__file__).parents[1] / "executors" / "kubernetes" / "manifests"
ADMIN_TOKEN, EXECUTOR_TOKEN = "admin-token", "executor-token"
EXECUTOR_USER = "system:serviceaccount:gangline:gangline-executor"


def path_of(name: str) -> str | None:
    folder = os.environ.get("GANGLINE_KUBERNETES", "")
    return shutil.which(name, path=f"{folder}:{os.environ.get('PATH', '')}")


def has_kubernetes() -> bool:
    return all(map(path_of, PROGRAMS))


class RealKubernetes:
    """Started by `running_kubernetes`. Rights are checked (RBAC); the executor has those of executors/kubernetes/manifests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self._etcd_port, self._peer_port = free_port(), free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._scheduler: subprocess.Popen[bytes] | None = None
        self.has_controller_manager = path_of("kube-controller-manager") is not None

    def access(self, token: str) -> ApiAccess:
        """Return the access of a login."""
        return find_access(kubeconfig=str(self.kubeconfig(token)))

    def kubeconfig(self, token: str) -> Path:
        path = self.folder / f"{token}.json"
        cluster = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": str(self.folder / "certificates" / "apiserver.crt")}  # fmt: skip
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
        }  # fmt: skip
        path.write_text(json.dumps(document))
        return path

    def start(self) -> None:
        """Start etcd, the API server, and what schedules; return when it is ready."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        signing = self.folder / "service-accounts.key"
        signing.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        tokens = self.folder / "tokens.csv"
        tokens.write_text(
            f'{ADMIN_TOKEN},admin,admin,"system:masters"\n{EXECUTOR_TOKEN},{EXECUTOR_USER},executor\n'
        )
        etcd = f"http://127.0.0.1:{self._etcd_port}"
        peer = f"http://127.0.0.1:{self._peer_port}"
        self._run(
            "etcd", "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", "--unsafe-no-fsync",
        )  # fmt: skip
        self._run(
            "kube-apiserver", f"--etcd-servers={etcd}", f"--secure-port={self.port}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
            f"--cert-dir={self.folder / 'certificates'}", "--authorization-mode=RBAC", "--allow-privileged=true", f"--token-auth-file={tokens}",
            "--service-account-issuer=https://localhost", f"--service-account-key-file={signing}",
            f"--service-account-signing-key-file={signing}", "--endpoint-reconciler-type=none",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition", "--watch-cache=true", "--v=0",
        )  # fmt: skip
        until(self._listens, "the API server listens")
        with closing(ApiServer(self.access(ADMIN_TOKEN))) as api:
            until(lambda: _succeeds(lambda: api.call("GET", "/api/v1/namespaces/default")), "the API server is ready")  # fmt: skip
        self.start_scheduler()
        config = str(self.kubeconfig(ADMIN_TOKEN))
        if self.has_controller_manager:
            self._run("kube-controller-manager", f"--kubeconfig={config}", "--leader-elect=false", "--port=0",
                      f"--secure-port={free_port()}", f"--controllers={CONTROLLERS}", f"--cert-dir={self.folder / 'controllers'}")  # fmt: skip

    def start_scheduler(self, **settings: Any) -> None:
        """Start the scheduler in place of the running one; *settings*: of its configuration, as `extenders`."""
        self.stop_scheduler()
        connection = {"kubeconfig": str(self.kubeconfig(ADMIN_TOKEN)), "qps": 5000, "burst": 5000}
        plain = f"127.0.0.1:{free_port()}"  # by default 10251 of all addresses
        document = {
            "apiVersion": "kubescheduler.config.k8s.io/v1beta1", "kind": "KubeSchedulerConfiguration",
            "healthzBindAddress": plain, "metricsBindAddress": plain,
            "clientConnection": connection, "leaderElection": {"leaderElect": False}, **settings,
        }  # fmt: skip
        path = self.folder / "scheduler.json"
        path.write_text(json.dumps(document))
        self._run("kube-scheduler", f"--config={path}", f"--secure-port={free_port()}",
                  f"--cert-dir={self.folder / 'scheduler'}")  # fmt: skip
        self._scheduler = self._processes[-1]

    def stop_scheduler(self) -> None:
        if self._scheduler is not None:
            os.killpg(self._scheduler.pid, signal.SIGKILL)
            self._scheduler.wait(GUARD_SECONDS)
            self._processes.remove(self._scheduler)
            self._scheduler = None

    def _listens(self) -> bool:
        """Return whether the API server has made its certificate and listens."""
        for process in self._processes:
            assert process.poll() is None, (self.folder / f"{Path(process.args[0]).name}.log").read_text()[-3000:]  # type: ignore[index, arg-type]  # fmt: skip
        return listening(self.port)

    def _run(self, name: str, *options: str) -> None:
        program = path_of(name)
        assert program
        with open(self.folder / f"{name}.log", "wb") as output:
            self._processes.append(
                subprocess.Popen(
                    [program, *options], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                )
            )  # fmt: skip

    def close(self) -> None:
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(GUARD_SECONDS)


@contextmanager
def running_kubernetes(folder: Path) -> Iterator[RealKubernetes]:
    cluster = RealKubernetes(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + GUARD_SECONDS
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)


class Background:
    """A loop in a thread, over a connection of its own, that survives refusals."""

    def __init__(self, access: ApiAccess) -> None:
        self.api = ApiServer(access)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def turn(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        while not self._stopped.wait(0.02):
            try:
                self.turn()
            except SchedulerError:
                continue

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join(GUARD_SECONDS)
        self.api.close()


def pod_path(pod: Any) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


class Kubelets(Background):
    """Pods on nodes run at once, and disappear as soon as they are deleted."""

    def turn(self) -> None:
        pods, _ = self.api.list_all("/api/v1/pods")
        for pod in pods:
            if pod["metadata"].get("deletionTimestamp"):
                self.api.call("DELETE", pod_path(pod), {"gracePeriodSeconds": 0})
            elif pod["spec"].get("nodeName") and pod["status"].get("phase") == "Pending":
                status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                patch = {"status": status}
                # Conditions are merged by type.
                self.api.call(
                    "PATCH",
                    pod_path(pod) + "/status",
                    patch,
                    "application/strategic-merge-patch+json",
                )


class JobController(Background):
    """Recreates missing pods of a Job."""

    def turn(self) -> None:
        jobs, _ = self.api.list_all("/apis/batch/v1/jobs")
        pods, _ = self.api.list_all("/api/v1/pods")
        for job in jobs:
            metadata = job["metadata"]
            owned = [
                pod for pod in pods
                if any(owner["uid"] == metadata["uid"] for owner in pod["metadata"].get("ownerReferences") or [])
            ]  # fmt: skip
            live = [pod for pod in owned if not pod["metadata"].get("deletionTimestamp")]
            for _ in range(job["spec"]["parallelism"] - len(live)):
                template = job["spec"]["template"]
                owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"], "controller": True}  # fmt: skip
                pod = {
                    "apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
                    "metadata": {**template["metadata"], "generateName": f"{metadata['name']}-", "ownerReferences": [owner]},
                }  # fmt: skip
                self.api.call("POST", f"/api/v1/namespaces/{metadata['namespace']}/pods", pod)


class Binder(Background):
    """A scheduler: the first free node without a taint that the pod does not tolerate."""

    def turn(self) -> None:
        nodes, _ = self.api.list_all("/api/v1/nodes")
        pods, _ = self.api.list_all("/api/v1/pods")
        busy = {pod["spec"].get("nodeName") for pod in pods}
        free = [
            node["metadata"]["name"] for node in nodes
            if not node["spec"].get("unschedulable") and node["metadata"]["name"] not in busy
            and not any(taint["effect"] != "PreferNoSchedule" for taint in node["spec"].get("taints") or [])
        ]  # fmt: skip
        for pod in pods:
            if free and not pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp"):  # fmt: skip
                target = {"apiVersion": "v1", "kind": "Node", "name": free.pop(0)}
                name = pod["metadata"]["name"]
                body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}  # fmt: skip
                self.api.call("POST", pod_path(pod) + "/binding", body)


class People:
    """Actions of administrators and users of a cluster."""

    def __init__(self, access: ApiAccess) -> None:
        self.api = ApiServer(access)
        self._number = 0

    def add_nodes(self, count: int) -> None:
        for index in range(1, count + 1):
            node = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": f"n{index}"},
                "spec": {},
            }
            self.api.call("POST", "/api/v1/nodes", node)
            resources = {"cpu": "64", "memory": "1Ti", "pods": "100", "nvidia.com/gpu": str(GPUS)}
            conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
            status = {"capacity": resources, "allocatable": resources, "conditions": conditions}
            self.api.call(
                "PATCH", f"/api/v1/nodes/n{index}/status", {"status": status}, MERGE_PATCH
            )

    def add_namespace(self, name: str = NAMESPACE) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        self.api.call("POST", "/api/v1/namespaces", body)

    def node(self, name: str) -> Any:
        return self.api.call("GET", f"/api/v1/nodes/{name}")

    def taints(self, name: str) -> list[str]:
        taints = self.node(name)["spec"].get("taints") or []
        return [f"{taint['key']}={taint.get('value', '')}:{taint['effect']}" for taint in taints]

    def pods(self) -> list[Any]:
        pods, _ = self.api.list_all("/api/v1/pods")
        return pods

    def submit(self, pods: int, annotations: dict[str, str] | None = None) -> str:
        """Submit a Job of *pods* pods, one per node; return its name."""
        self._number += 1
        name = f"train{self._number}"
        container = {
            "name": "main", "image": "none",
            "resources": {"limits": {"nvidia.com/gpu": str(GPUS)}, "requests": {"nvidia.com/gpu": str(GPUS)}},
        }  # fmt: skip
        template = {
            "metadata": {"labels": {"job-name": name, "app": name}, "annotations": annotations or {}},
            "spec": {"containers": [container], "restartPolicy": "Never", "automountServiceAccountToken": False},
        }  # fmt: skip
        job = {
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"parallelism": pods, "completions": pods, "backoffLimit": 1000, "template": template},
        }  # fmt: skip
        self.api.call("POST", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs", job)
        return name

    def cancel(self, name: str) -> None:
        options = {"propagationPolicy": "Background"}
        self.api.call("DELETE", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{name}", options)
        self.remove_pods(name)

    def remove_pods(self, job: str = "") -> int:
        """Delete the pods of a Job, or all (no garbage collector runs, and a controller may be late); return how many there were."""
        pods = [
            pod
            for pod in self.pods()
            if job in ("", pod["metadata"].get("labels", {}).get("job-name"))
        ]
        for pod in pods:
            try:
                self.api.call("DELETE", pod_path(pod), {"gracePeriodSeconds": 0})
            except ApiError as error:
                assert error.status == 404, error
        return len(pods)

    def cordon(self, node: str, reason: str = "") -> None:
        body = {
            "spec": {"unschedulable": True},
            "metadata": {"annotations": {"gangline.io/reason": reason}},
        }
        self.api.call("PATCH", f"/api/v1/nodes/{node}", body, MERGE_PATCH)

    def uncordon(self, node: str) -> None:
        body = {"spec": {"unschedulable": None}, "metadata": {"annotations": {"gangline.io/reason": None}}}  # fmt: skip
        self.api.call("PATCH", f"/api/v1/nodes/{node}", body, MERGE_PATCH)

    def annotate(self, node: str, key: str, value: str | None) -> None:
        body = {"metadata": {"annotations": {key: value}}}
        self.api.call("PATCH", f"/api/v1/nodes/{node}", body, MERGE_PATCH)

    def taint(self, node: str, key: str, value: str = "", effect: str = "NoSchedule") -> None:
        """Add a taint without changing others; retry after a conflict."""
        self._edit_taints(node, lambda taints: [*(taint for taint in taints if taint["key"] != key), {"key": key, "value": value, "effect": effect}])  # fmt: skip

    def untaint(self, node: str, key: str) -> None:
        self._edit_taints(node, lambda taints: [taint for taint in taints if taint["key"] != key])

    def _edit_taints(self, node: str, change: Callable[[list[Any]], list[Any]]) -> None:
        while True:
            node_object = self.node(node)
            patch = [
                {"op": "test", "path": "/metadata/resourceVersion", "value": node_object["metadata"]["resourceVersion"]},
                {"op": "add", "path": "/spec/taints", "value": change(node_object["spec"].get("taints") or [])},
            ]  # fmt: skip
            try:
                self.api.call("PATCH", f"/api/v1/nodes/{node}", patch, JSON_PATCH)
            except ApiError as error:
                if error.is_conflict:
                    continue
                raise
            return

    def add_budget(self, app: str, available: int, version: str = "v1beta1") -> None:
        """Add a disruption budget over the pods of a job, with this minimum of available pods."""
        path = f"/apis/policy/{version}/namespaces/{NAMESPACE}/poddisruptionbudgets"
        budget = {
            "apiVersion": f"policy/{version}", "kind": "PodDisruptionBudget", "metadata": {"name": app},
            "spec": {"minAvailable": available, "selector": {"matchLabels": {"app": app}}},
        }  # fmt: skip
        self.api.call("POST", path, budget)

    def remove_budget(self, app: str, version: str = "v1beta1") -> None:
        path = f"/apis/policy/{version}/namespaces/{NAMESPACE}/poddisruptionbudgets/{app}"
        self.api.call("DELETE", path)


@dataclass(frozen=True)
class UsedCluster:
    """Access of the executor and of other users. `real`: the processes of the cluster, if any."""

    access: ApiAccess
    people: People
    real: RealKubernetes | None = None
    #: Of the fake: offers a custom resource.
    define: Callable[[Any], None] | None = None


@contextmanager
def used_cluster(access: ApiAccess, *loops: type[Background]) -> Iterator[People]:
    """Yield eight nodes, a namespace, and *loops* that act on them."""
    with ExitStack() as stack:
        people = People(access)
        stack.callback(people.api.close)
        until(lambda: _succeeds(people.add_namespace), "a namespace")
        people.add_nodes(8)
        for loop in loops:
            stack.enter_context(loop(access))
        yield people


@contextmanager
def executor_cluster(folder: Path) -> Iterator[UsedCluster]:
    """Yield the real parts, the loops in place of missing parts, and an executor's rights from its manifest."""
    kubectl = path_of("kubectl")
    assert kubectl
    with running_kubernetes(folder) as real:
        subprocess.run(
            [kubectl, f"--kubeconfig={real.kubeconfig(ADMIN_TOKEN)}", "apply", "-f", str(MANIFESTS / "executor-rights.yaml")],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        loops = [Kubelets] if real.has_controller_manager else [Kubelets, JobController]
        with used_cluster(real.access(ADMIN_TOKEN), *loops) as people:
            yield UsedCluster(real.access(EXECUTOR_TOKEN), people, real)


def _succeeds(act: Callable[[], object]) -> bool:
    try:
        act()
    except SchedulerError:
        return False
    return True
