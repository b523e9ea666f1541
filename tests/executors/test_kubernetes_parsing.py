"""Parsing of Kubernetes objects: gangs, marks, and invalid answers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from gangline.executors.kubernetes import api as kubernetes_api
from gangline.executors.kubernetes import doctor as kubernetes_doctor
from gangline.executors.kubernetes.api import ApiError, ApiServer, find_access
from gangline.executors.kubernetes.doctor import cluster_findings, resource_findings
from gangline.executors.kubernetes.jobs import (
    RECREATED_SECONDS_MAX,
    GangHistory,
    GangPod,
    budget_refusal,
    count_gpus,
    parse_pod,
    parse_time,
    selects,
)
from gangline.executors.kubernetes.marks import (
    NODE_HOLDS_MAX,
    format_holds,
    has_expired,
    holds_patch,
    node_of,
    parse_holds,
    parse_node,
    usual_keys,
)
from gangline.executors.kubernetes.settings import GPU_RESOURCES, USUAL_TAINTS, KubernetesConfig

Json = dict[str, Any]


def node(*taints: str, annotations: Json | None = None, cordoned: bool = False, ready: str = "True", name: str = "n1") -> Json:  # fmt: skip
    """A node with taints as KEY=VALUE:EFFECT."""
    parsed = []
    for text in taints:
        key, _, rest = text.partition("=")
        value, _, effect = rest.partition(":")
        parsed.append({"key": key, "value": value, "effect": effect})
    metadata: Json = {"name": name, "resourceVersion": "7"}
    if annotations is not None:
        metadata["annotations"] = annotations
    conditions = [{"type": "Ready", "status": ready, "reason": "KubeletReady"}]
    return {"metadata": metadata, "spec": {"taints": parsed, "unschedulable": cordoned}, "status": {"conditions": conditions}}  # fmt: skip


def pod(name: str = "p-0", **more: Any) -> Json:
    """A pod of eight GPUs; *more*: labels, annotations, owner, gpus, spec, status."""
    owner = more.get("owner", {"kind": "Job", "name": "train", "uid": "j", "controller": True})
    metadata = {
        "namespace": "ml", "name": name, "uid": f"uid-{name}", "resourceVersion": "9", "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": more.get("labels", {}), "annotations": more.get("annotations", {}), "ownerReferences": [owner] if owner else [],
    }  # fmt: skip
    limits = {"nvidia.com/gpu": more.get("gpus", "8")} if more.get("gpus", "8") else {}
    spec = {"nodeName": "n1", "containers": [{"resources": {"limits": limits}}], **more.get("spec", {})}  # fmt: skip
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}  # fmt: skip
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running", "conditions": [scheduled], **more.get("status", {})}}  # fmt: skip


def parsed(name: str = "p-0", **more: Any) -> GangPod:
    parsed_pod = parse_pod(pod(name, **more), GPU_RESOURCES)
    assert parsed_pod is not None
    return parsed_pod


def test_others_taints_count_unless_they_say_what_kind_of_node_it_is() -> None:
    """Every GPU node has nvidia.com/gpu:NoSchedule: the whole fleet would have been out of service."""
    nodes = [parse_node(node("team=vision:NoSchedule", "nvidia.com/gpu=present:NoSchedule", name=f"n{index}")) for index in range(4)]  # fmt: skip
    nodes.append(parse_node(node("repair=fan:NoSchedule", "soft=x:PreferNoSchedule", name="n9")))
    common = usual_keys(nodes)
    assert common == {"team", "nvidia.com/gpu"}
    out = {node.name: node_of(node, USUAL_TAINTS, common).out for node in nodes}
    assert {name: reason for name, reason in out.items() if reason} == {"n9": "tainted repair=fan:NoSchedule"}  # fmt: skip


@pytest.mark.parametrize(
    ("document", "out", "down"),
    [
        (node(), "", ""),
        (node(cordoned=True), "cordoned", ""),
        (node(cordoned=True, annotations={"gangline.io/reason": "bad\n fan"}), "cordoned: bad fan", ""),
        (node("node.kubernetes.io/unreachable=:NoExecute", ready="Unknown"), "", "NotReady: KubeletReady"),
        (node("node.kubernetes.io/out-of-service=x:NoExecute"), "tainted node.kubernetes.io/out-of-service=x:NoExecute", ""),
        (node("gangline.io/avoid=a1:NoSchedule"), "", ""),
    ],
)  # fmt: skip
def test_who_took_a_node_out(document: Json, out: str, down: str) -> None:
    """Kubernetes' own taints repeat its conditions; the executor's taint is not an outage."""
    node_state = node_of(parse_node(document), USUAL_TAINTS, frozenset())
    assert (node_state.out, node_state.down) == (out, down)
    assert node_state.is_responding == (document["status"]["conditions"][0]["status"] != "Unknown")


def test_a_patch_names_the_version_and_keeps_others_in_their_order() -> None:
    """The patch replaces the whole list."""
    parsed_node = parse_node(node("a=1:NoSchedule", "gangline.io/avoid=a1:NoSchedule", "b=2:NoExecute", annotations={"gangline.io/holds": "gangline_a1=100"}))  # fmt: skip
    test, taints, annotation = holds_patch(parsed_node, {"gangline_a1": 100.0, "gangline_a2": 300.0}, False)  # fmt: skip
    assert test == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    assert [taint["key"] for taint in taints["value"]] == ["a", "b", "gangline.io/avoid"]
    assert annotation["path"] == "/metadata/annotations/gangline.io~1holds"
    assert annotation["value"] == "gangline_a1=100 gangline_a2=300"
    assert holds_patch(parse_node(node(annotations={})), {}, True) == []
    first = holds_patch(parse_node(node()), {"gangline_a1": 100.0}, False)
    assert first[-1]["value"] == {"gangline.io/holds": "gangline_a1=100"}


@pytest.mark.parametrize("text", ["", "x", "gangline_a1", "gangline_a1=", "gangline_a1=1e9", "gangline_a1=9999999999999", "gangline_b1=5", "a=1 " * 9000])  # fmt: skip
def test_an_annotation_that_nobody_can_read_has_no_holds(text: str) -> None:
    """A taint without a readable end counts as expired, and is removed."""
    assert parse_holds(text) == {}
    parsed_node = parse_node(node("gangline.io/avoid=a1:NoSchedule", annotations={"gangline.io/holds": text}))  # fmt: skip
    assert parsed_node.holds == {"gangline_a1": 0.0} and has_expired(parsed_node, 1.0)


def test_holds_on_a_node_are_limited() -> None:
    """An annotation of any size is read up to a limit."""
    many = {f"gangline_a{index}": 5.0 for index in range(10_000)}
    assert len(parse_holds(format_holds(many))) == 2 * NODE_HOLDS_MAX


def test_without_our_taint_no_hold_stands() -> None:
    """A person removed the taint and left the annotation, whose end is in the future."""
    parsed_node = parse_node(node(annotations={"gangline.io/holds": "gangline_a1=500"}))
    assert (
        parsed_node.holds == {}
        and not has_expired(parsed_node, 400.0)
        and has_expired(parsed_node, 500.0)
    )
    assert has_expired(parse_node(node("gangline.io/evict=a1:NoExecute")), 1.0)


@pytest.mark.parametrize(
    ("more", "gang"),
    [
        ({}, "ml/job/train"),
        ({"labels": {"job-name": "b", "jobset.sigs.k8s.io/jobset-name": "llama"}}, "ml/jobset/llama"),
        ({"labels": {"ray.io/cluster": "r"}}, "ml/raycluster/r"),
        ({"annotations": {"scheduling.k8s.io/group-name": "g"}}, "ml/podgroup/g"),
        ({"labels": {"kueue.x-k8s.io/pod-group-name": "k", "ray.io/cluster": "r"}}, "ml/podgroup/k"),
        ({"owner": {"kind": "StatefulSet", "name": "s", "controller": True}}, "ml/statefulset/s"),
        ({"owner": None}, "ml/pod/p-0"),
    ],
)  # fmt: skip
def test_the_widest_name_is_the_gang(more: Json, gang: str) -> None:
    """A JobSet has a Job for each replica: each by itself would be evicted without the others."""
    assert parsed(**more).gang == gang


def test_a_label_of_the_site_comes_first() -> None:
    parsed_pod = parse_pod(pod(labels={"job-name": "b", "corp.example/run": "r9"}), GPU_RESOURCES, ["corp.example/run"])  # fmt: skip
    assert parsed_pod is not None and parsed_pod.gang == "ml/run/r9"


@pytest.mark.parametrize(
    ("limits", "gpus"),
    [
        ({"nvidia.com/gpu": "8", "cpu": "4"}, 8),
        ({"nvidia.com/mig-3g.40gb": "1"}, 1),
        ({"nvidia.com/mig-1g.10gb.me": "2", "nvidia.com/mig-2g.20gb": "1"}, 3),
        ({"nvidia.com/gpu.shared": "1"}, 1),
        ({"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "2"}, 2),
        ({"nvidia.com/gpu-a100": "4"}, 4),
        ({"nvidia.com/GRID_T4-2Q": "1"}, 1),
        ({"nvidia.com/NVIDIA_L40S-48Q": "1"}, 1),
        ({"nvidia.com/GA102GL_A10": "2"}, 2),
        ({"nvidia.com/pgpu": "1"}, 1),
        ({"nvidia.com/vgpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}, 1),
        ({"nvidia.com/gpumem-percentage": "50"}, 1),
        ({"amd.com/gpu": "8"}, 8),
        ({"amd.com/cpx_nps4": "8"}, 8),
        ({"gpu.intel.com/i915": "1", "gpu.intel.com/memory.max": "1000"}, 1),
        ({"gpu.intel.com/xe": "2"}, 2),
        ({"habana.ai/gaudi": "8"}, 8),
        ({"k8s.amazonaws.com/vgpu": "10"}, 10),
        ({"aliyun.com/gpu-mem": "12"}, 1),
        ({"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "3000"}, 2),
        ({"nvidia.com/hostdev": "8", "rdma/hca": "1", "cpu": "4", "hugepages-2Mi": "4Mi"}, 0),
        ({"gpu.intel.com/i915_monitoring": "1"}, 0),
        ({"nvidia.com/gpu": "none"}, 0),
    ],
)  # fmt: skip
def test_pods_are_known_by_every_kind_of_gpu(limits: dict[str, str], gpus: int) -> None:
    """Pods with MIG instances or shared GPUs were not seen: a drain ended at once, and a reset could run under the pod."""
    for containers in ("containers", "initContainers"):
        spec = {"containers": [{}], containers: [{"resources": {"limits": limits}}]}
        parsed_pod = parse_pod(pod(spec=spec), GPU_RESOURCES)
        assert (parsed_pod.gpus if parsed_pod else 0) == gpus
    assert count_gpus(parse_node(node_with(limits)).gpus, GPU_RESOURCES) == gpus


def node_with(allocatable: dict[str, str]) -> Json:
    document = node()
    document["status"]["allocatable"] = allocatable
    return document


def test_the_doctor_names_resources_that_look_like_gpus() -> None:
    """Pods with a site's own GPU resource were ignored, and the doctor did not report that."""
    offered = {
        "corp.example/fast-gpu": "8",
        "example.com/fpga": "1",
        "nvidia.com/mig-3g.40gb": "2",
        "old.example/gpu": "0",
    }
    nodes = [parse_node(node_with(offered))]
    (finding,) = resource_findings(nodes, GPU_RESOURCES)
    assert finding.text.startswith(
        "nodes offer corp.example/fast-gpu, which gpu_resources does not match"
    )
    assert not list(resource_findings(nodes, (*GPU_RESOURCES, "corp.example/*")))


def test_pods_without_gpus_and_daemons_are_no_gangs() -> None:
    """A driver's DaemonSet requests GPUs on some sites; a drain would never have ended."""
    assert parse_pod(pod(gpus=""), GPU_RESOURCES) is None
    assert parse_pod(pod(owner={"kind": "DaemonSet", "name": "d", "controller": True}), GPU_RESOURCES) is None  # fmt: skip
    assert parse_pod(pod(annotations={"kubernetes.io/config.mirror": "x"}), GPU_RESOURCES) is None
    claimed = parse_pod(pod(gpus="", spec={"resourceClaims": [{"name": "gpus"}]}), GPU_RESOURCES)
    assert claimed is not None and claimed.gpus == 0


@pytest.mark.parametrize(
    ("annotations", "may", "checkpoint"),
    [
        ({}, True, 0.0),
        ({"gangline.io/requeue": "false"}, False, 0.0),
        ({"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}, False, 0.0),
        ({"gangline.io/checkpoint-seconds": "1800"}, True, 1800.0),
        ({"gangline.io/checkpoint-seconds": "-3"}, True, 0.0),
        ({"gangline.io/checkpoint-seconds": "99999999999"}, True, 0.0),
        ({"gangline.io/checkpoint-seconds": "604801"}, True, 0.0),
    ],
)  # fmt: skip
def test_what_the_owner_says(annotations: Json, may: bool, checkpoint: float) -> None:
    parsed_pod = parsed(annotations=annotations)
    assert (parsed_pod.may_requeue, parsed_pod.checkpoint_seconds) == (may, checkpoint)
    assert not parsed(owner=None).may_requeue


@pytest.mark.parametrize("document", [{}, {"metadata": None}, {"metadata": {}, "spec": {}}, [], None, 7, {"metadata": {"name": "../x"}, "spec": {}}])  # fmt: skip
def test_what_is_no_object_is_refused(document: Any) -> None:
    """The watch skips each of these, and continues."""
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        parse_node(document)


def test_times() -> None:
    assert parse_time("2026-01-01T00:00:05Z") == parse_time("2026-01-01T00:00:05.123456Z") == 1767225605.0  # fmt: skip
    assert parse_time("2026-13-01T00:00:00Z") == parse_time("yesterday") == parse_time(None) == 0.0


def test_a_gang_that_loses_pods_restarts_once() -> None:
    """Three pods that leave one after another were three restarts, and three outcomes."""
    history = GangHistory()
    pods = [parsed(f"p-{index}") for index in range(3)]
    assert history.jobs(pods, (), 0.0)["ml/job/train"].restarts == 0
    assert history.jobs(pods[1:], (), 1.0)["ml/job/train"].restarts == 1
    assert history.jobs(pods[2:], (), 2.0)["ml/job/train"].restarts == 1
    again = [parsed(f"q-{index}") for index in range(3)]
    assert history.jobs(again, (), 3.0)["ml/job/train"].restarts == 1
    assert history.jobs(again[:2], (), 4.0)["ml/job/train"].restarts == 2


def test_an_evicted_gang_waits_for_its_new_pods_and_not_for_ever() -> None:
    """Its controller creates them a moment later: until then the gang was taken for ended."""
    history = GangHistory()
    pods = [parsed(f"p-{index}") for index in range(2)]
    history.jobs(pods, (), 0.0)
    leaving = {pod.uid for pod in pods}
    assert history.jobs(pods, leaving, 1.0)["ml/job/train"].state == "PENDING"
    gone = history.jobs([], leaving, 2.0)["ml/job/train"]
    assert (gone.state, gone.nodes, gone.restarts) == ("PENDING", frozenset(), 1)
    assert history.jobs([], (), 3.0 + RECREATED_SECONDS_MAX) == {}


@pytest.mark.parametrize(
    ("statuses", "state"),
    [
        ([{"phase": "Succeeded"}], "COMPLETED"),
        ([{"phase": "Succeeded"}, {"phase": "Failed"}], "FAILED"),
        ([{"phase": "Failed", "reason": "NodeShutdown"}], "NODE_FAIL"),
    ],
)  # fmt: skip
def test_how_a_gang_ended(statuses: list[Json], state: str) -> None:
    """Hazards are learned from outcomes."""
    pods = [parsed(f"p-{index}", status=status) for index, status in enumerate(statuses)]
    (job,) = GangHistory().jobs(pods, (), 0.0).values()
    assert job.state == state and job.ended


def budget(allowed: int, selector: Any) -> Json:
    return {"metadata": {"namespace": "ml", "name": "b"}, "spec": {"selector": selector}, "status": {"disruptionsAllowed": allowed}}  # fmt: skip


def test_budgets_are_added_up() -> None:
    """Only pods that are ready count, as the API server counts."""
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    pods = [parsed(f"p-{index}", labels={"app": "x"}, status=ready) for index in range(3)]
    assert "allows 2 disruptions, and 3 pods" in budget_refusal(pods, [budget(2, {"matchLabels": {"app": "x"}})])  # fmt: skip
    assert not budget_refusal(pods, [budget(3, {}), budget(0, {"matchLabels": {"app": "y"}}), budget(0, None)])  # fmt: skip
    assert not budget_refusal([parsed(labels={"app": "x"})], [budget(0, {})])


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ({"key": "a", "operator": "In", "values": ["1"]}, True),
        ({"key": "a", "operator": "NotIn", "values": ["1"]}, False),
        ({"key": "b", "operator": "NotIn", "values": ["1"]}, True),
        ({"key": "a", "operator": "Exists"}, True),
        ({"key": "a", "operator": "DoesNotExist"}, False),
        ({"key": "a", "operator": "Other"}, False),
    ],
)  # fmt: skip
def test_selectors(expression: Json, holds: bool) -> None:
    """Selectors match as in the API server."""
    assert selects({"matchExpressions": [expression]}, {"a": "1"}) is holds


@contextmanager
def answering(*answers: bytes) -> Iterator[ApiServer]:
    """Answer one request of each connection, in this order and then with the last answer, and close it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in chain(answers, repeat(answers[-1])):
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    try:
                        connection.sendall(answer)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        access = find_access(f"http://127.0.0.1:{listener.getsockname()[1]}")
        with closing(ApiServer(access)) as api:
            yield api
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def http(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status.encode(), len(body), body)  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (http(b"<html>"), "not JSON"),
        (http(b"[" * 100_000), "not JSON"),
        (http(b'{"kind":"Status","message":"no such thing"}', "404 Not Found"), "404: no such thing"),
        (http(b"gateway", "502 Bad Gateway"), "502: gateway"),
        (http(b'{"message":"too many","details":{"causes":[{"message":"the budget b needs 3"}]}}', "429 X"), "too many; the budget b needs 3"),
        (http(b'{"items": 7}'), "not a valid list"),
        (http(b"x" * 2000), "more than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "not JSON|not a valid list"),
        (b"nonsense\r\n\r\n", "http://127.0.0.1"),
        (b"", "http://127.0.0.1"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_an_error(
    answer: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load balancer answers for an unreachable API server."""
    limit = 1000 if "1000" in message else 1 << 20
    monkeypatch.setattr(kubernetes_api, "ANSWER_BYTES_MAX", limit)
    with answering(answer) as api, pytest.raises(ApiError, match=message):
        api.list_all("/api/v1/nodes")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b'{"type":"ERROR","object":{"code":410,"message":"too old"}}\n', 410, "too old"),
        (b'{"type":"ERROR","object":7}\n', 0, "watch"),
        (b'{"kind":"x"}\n', 0, "not a valid event"),
        (b"7\n", 0, "not a valid event"),
        (b"x" * 2000, 0, "an event of more than 1000 bytes"),
    ],
)  # fmt: skip
def test_an_event_that_is_none_ends_the_watch(
    body: bytes, status: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch restarts from a new list."""
    monkeypatch.setattr(kubernetes_api, "EVENT_BYTES_MAX", 1000)
    with answering(http(body)) as api, pytest.raises(ApiError, match=message) as caught:
        list(api.watch("/api/v1/nodes", "1"))
    assert caught.value.status == status


def test_a_connection_that_the_server_has_closed_is_replaced() -> None:
    """API servers close idle connections, and a load balancer does while a request is on its way."""
    kept = http(b"{}").replace(b"Connection: close\r\n", b"")
    with answering(kept) as api:
        assert api.call("GET", "/version") == {}
        assert api.call("PUT", "/api/v1/nodes/n1", {}) == {}
    with answering(b"", kept) as api:
        assert api.call("PUT", "/api/v1/nodes/n1", {}) == {}
    with answering(b"", b"", kept) as api, pytest.raises(ApiError, match="closed connection"):
        api.call("GET", "/version")


def test_a_call_without_an_answer_is_not_repeated() -> None:
    """A second wait of 10 s would outlast the Lease."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        access = find_access(f"http://127.0.0.1:{listener.getsockname()[1]}")
        with closing(ApiServer(access, 0.05)) as api, pytest.raises(ApiError, match="timed out"):
            api.call("GET", "/version")
        listener.setblocking(False)
        listener.accept()[0].close()
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_events_in_pieces_of_any_size(size: int) -> None:
    """A proxy cuts the stream anywhere, and the last event may have no end of line."""
    events = [{"type": "ADDED", "object": {"name": name * 30}} for name in "abc"]
    text = "\n".join(json.dumps(event) for event in events).encode()
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked
    for head_and_text in (answer, http(text), b"HTTP/1.1 200 OK\r\n\r\n" + text):
        with answering(head_and_text) as api:
            watched = list(api.watch("/api/v1/nodes", "1"))
        assert watched == [("ADDED", event["object"]) for event in events]


@pytest.mark.parametrize(
    ("settings", "user"),
    [
        ({}, "system:serviceaccount:gangline:gangline-executor"),
        ({"kubeconfig": "/etc/gangline/kubeconfig"}, ""),
        ({"kubeconfig": "/x", "kubernetes_server": "http://127.0.0.1:8001"}, "system:serviceaccount:gangline:gangline-executor"),
        ({"kubernetes_server": "http://127.0.0.1:8001"}, "system:serviceaccount:gangline:gangline-executor"),
        ({"kubernetes_server": "http://127.0.0.1:8001", "ledger": "/var/lib/x"}, ""),
        ({"kubernetes_server": "http://127.0.0.1:8001", "namespace": "ops"}, "system:serviceaccount:ops:gangline-executor"),
    ],
)  # fmt: skip
def test_the_doctor_asks_for_the_rights_of_the_executor(
    settings: dict[str, Any], user: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a person's login it tested the administrator, who has all rights, before the service account existed."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    bodies: list[Any] = []

    class Api:
        def call(self, method: str, path: str, body: Any) -> Any:
            bodies.append((path.rpartition("/")[2], body["spec"].get("user", "")))
            if len(bodies) == 99:
                raise ApiError(403, "forbidden")
            return {"status": {"allowed": True}}

    api: Any = Api()
    (finding,) = kubernetes_doctor._rights(api, KubernetesConfig(**settings))
    assert finding.text == f"{user} has all rights that it needs".strip()
    kind = "subjectaccessreviews" if user else "selfsubjectaccessreviews"
    assert set(bodies) == {(kind, user)}
    if user:
        bodies[:] = [("", "")] * 98
        (finding,) = kubernetes_doctor._rights(api, KubernetesConfig(**settings))
        assert finding.level == "note" and user in finding.text
        (tmp_path / "token").touch()
        monkeypatch.setattr(kubernetes_api, "SERVICE_ACCOUNT", tmp_path)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        bodies.clear()
        list(kubernetes_doctor._rights(api, KubernetesConfig(**settings)))
        in_pod = "" if not settings.get("kubernetes_server") else user
        assert {user for _, user in bodies} == {in_pod}


def test_the_doctor_counts_outages() -> None:
    """A cluster where every second node has a team's taint gets no advice: the operator must see the reason."""
    nodes = {f"n{index}": node_of(parse_node(node("team=a:NoSchedule", name=f"n{index}")), (), frozenset()) for index in range(3)}  # fmt: skip
    (job,) = GangHistory().jobs([parsed(owner=None)], (), 0.0).values()
    lines = [finding.text for finding in cluster_findings(nodes, {job.name: job})]
    assert lines[0] == "3 nodes, 1 gangs with GPUs"
    assert lines[1].startswith("3 nodes taken out by others: tainted team=a")
    assert "1 gangs are not evicted" in lines[2] and "ml/pod/p-0" in lines[2]
