"""The extender behind the real kube-scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.executors.serving_extender import (
    ServedExtender,
    mirror_node,
    serving_extender,
    write_mirror,
)
from tests.kubernetes_cluster import MISSING, UsedCluster, has_kubernetes, until

REAL = pytest.mark.skipif(not has_kubernetes(), reason=MISSING)


def configuration(port: int) -> dict[str, Any]:
    """Return the configuration that docs/kubernetes.md shows."""
    return {
        "urlPrefix": f"http://127.0.0.1:{port}/extender/v1", "filterVerb": "filter", "prioritizeVerb": "prioritize",
        "weight": 5, "nodeCacheCapable": True, "ignorable": True, "httpTimeout": "1s",
    }  # fmt: skip


@pytest.fixture
def served(real_cluster: UsedCluster, tmp_path: Path) -> Iterator[ServedExtender]:
    path = tmp_path / "mirror" / "nodes"
    path.parent.mkdir()
    buckets = {"n1": 3, "n2": 3, "n3": 2, "n4": 0, "n5": 2, "n6": 1, "n7": 3, "n8": 2}
    write_mirror(path, [mirror_node(name, bucket, ready=name not in ("n1", "n2")) for name, bucket in buckets.items()])  # fmt: skip
    with serving_extender(path) as served:
        assert real_cluster.real
        real_cluster.real.start_scheduler(extenders=[configuration(served.port)])
        yield served
        real_cluster.real.start_scheduler()


@REAL
def test_pods_go_to_the_best_nodes_and_never_to_broken_ones(
    real_cluster: UsedCluster, served: ServedExtender
) -> None:
    """Two pods on eight free nodes: the healthiest two; eight pods: six, and two wait with the reason."""
    people = real_cluster.people

    def nodes_of(job: str) -> set[str]:
        return {
            pod["spec"]["nodeName"] for pod in people.pods()
            if pod["metadata"]["labels"].get("job-name") == job and pod["spec"].get("nodeName")
        }  # fmt: skip

    first = people.submit(2)
    until(lambda: nodes_of(first) == {"n4", "n6"}, "the two best nodes")
    second = people.submit(6)
    until(lambda: nodes_of(second) == {"n3", "n5", "n7", "n8"}, "all that are not broken")

    def reasons() -> set[str]:
        return {
            condition["message"] for pod in people.pods() for condition in pod["status"].get("conditions") or []
            if condition["type"] == "PodScheduled" and condition["status"] == "False"
        }  # fmt: skip

    until(lambda: any("gangline: UNHEALTHY (XID)" in reason for reason in reasons()), "the reason")
    for job in (first, second):
        people.cancel(job)
    until(lambda: not people.remove_pods(), "no pods")


@REAL
def test_without_the_extender_pods_are_placed(real_cluster: UsedCluster, served: ServedExtender) -> None:  # fmt: skip
    """The extender was killed: `ignorable` lets the scheduler continue."""
    real = real_cluster.real
    assert real
    dead = {**configuration(served.port), "urlPrefix": "http://127.0.0.1:1/extender/v1"}
    real.start_scheduler(extenders=[dead])
    job = real_cluster.people.submit(1)
    until(lambda: any(pod["spec"].get("nodeName") for pod in real_cluster.people.pods()), "it is placed")  # fmt: skip
    real_cluster.people.cancel(job)
    until(lambda: not real_cluster.people.remove_pods(), "no pods")
