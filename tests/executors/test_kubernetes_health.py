"""Health of nodes in Kubernetes: a condition and a label of Gangline's own, each with an expiry."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gangline.contract.wire import score_pb2
from gangline.executors.client import ClientError
from gangline.executors.kubernetes.api import MERGE_PATCH, ApiError, ApiServer
from gangline.executors.kubernetes.health import (
    BETTER_SECONDS,
    VALID_SECONDS,
    WRITES_PER_TURN,
    BucketHysteresis,
    NodeHealthPublisher,
    condition_of,
    label_patch,
)
from gangline.executors.kubernetes.marks import KubernetesNode
from gangline.executors.model import PlaceHold
from gangline.executors.scores import NodeHealth, health_of
from gangline.executors.undo import undo_all
from tests.executors.kubernetes_site import KubernetesSite
from tests.executors.test_kubernetes import run_expiry
from tests.kubernetes_cluster import MISSING, UsedCluster, has_kubernetes, until

REAL = pytest.mark.skipif(not has_kubernetes(), reason=MISSING)
WELL = NodeHealth(0, True, "HEALTHY")
BROKEN = NodeHealth(3, False, "UNHEALTHY", "XID_UNCORRECTABLE")


@pytest.fixture(params=["fake_cluster", pytest.param("real_cluster", marks=REAL)])
def cluster(request: pytest.FixtureRequest) -> UsedCluster:
    fixture: UsedCluster = request.getfixturevalue(request.param)
    return fixture


@pytest.fixture
def site(cluster: UsedCluster) -> Iterator[KubernetesSite]:
    site = KubernetesSite(cluster)
    yield site
    undo_all(site.scheduler)
    site.clean()


class Scores:
    """The aggregator's scores, and the current time."""

    def __init__(self, site: KubernetesSite) -> None:
        self.health: dict[str, NodeHealth] = {}
        self.now = time.time()
        api: Any = site.kubernetes._api
        self.publisher = NodeHealthPublisher(
            api, site.kubernetes.current_nodes, self.read, wall=lambda: self.now
        )

    def read(self) -> dict[str, NodeHealth]:
        return self.health


def conditions(site: KubernetesSite, node: str) -> dict[str, Any]:
    return {
        condition["type"]: condition for condition in site.people.node(node)["status"]["conditions"]
    }


def bucket(site: KubernetesSite, node: str) -> str | None:
    labels = site.people.node(node)["metadata"].get("labels") or {}
    label: str | None = labels.get("gangline.io/bucket")
    return label


def seen(site: KubernetesSite, node: str, value: str | None) -> None:
    until(lambda: site.kubernetes.current_nodes()[node].bucket_label == value, f"bucket {value}")


def test_condition_and_bucket_of_a_node(site: KubernetesSite) -> None:
    """Conditions of a node are one list: a merge patch would have taken Ready away."""
    scores = Scores(site)
    site.people.api.call(
        "PATCH", "/api/v1/nodes/n1", {"metadata": {"labels": {"zone": "a"}}}, MERGE_PATCH
    )
    scores.health = {"n1": BROKEN, "n2": WELL, "elsewhere": WELL}
    assert scores.publisher.turn() == 2
    shown = conditions(site, "n1")
    assert shown["Ready"]["status"] == "True"
    assert shown["GanglineHealthy"]["status"] == "False"
    assert shown["GanglineHealthy"]["reason"] == "Unhealthy"
    assert "xid uncorrectable" in shown["GanglineHealthy"]["message"]
    assert conditions(site, "n2")["GanglineHealthy"]["status"] == "True"
    assert (bucket(site, "n1"), bucket(site, "n2"), bucket(site, "n3")) == ("3", "0", None)
    assert site.people.node("n1")["metadata"]["labels"]["zone"] == "a"
    seen(site, "n1", "3")
    seen(site, "n2", "0")
    assert scores.publisher.turn() == 0


def test_a_worse_bucket_at_once_a_better_one_later(site: KubernetesSite) -> None:
    """A host that flaps would move the label each second, and the scheduler with it."""
    scores = Scores(site)
    scores.health = {"n1": WELL}
    scores.publisher.turn()
    seen(site, "n1", "0")
    scores.health = {"n1": BROKEN}
    scores.publisher.turn()
    seen(site, "n1", "3")
    scores.health = {"n1": WELL}
    scores.publisher.turn()
    assert bucket(site, "n1") == "3"
    assert conditions(site, "n1")["GanglineHealthy"]["status"] == "True"
    scores.now += BETTER_SECONDS
    scores.publisher.turn()
    assert bucket(site, "n1") == "0"


def test_both_have_an_end(site: KubernetesSite) -> None:
    """An aggregator that forgot a host left its last label on the node forever."""
    scores = Scores(site)
    scores.health = {"n1": BROKEN, "n2": WELL}
    scores.publisher.turn()
    seen(site, "n1", "3")
    seen(site, "n2", "0")
    scores.health = {"n2": WELL}
    scores.now += VALID_SECONDS / 2 + 1
    assert scores.publisher.turn() == 1  # n2, written again
    assert bucket(site, "n1") == "3"
    scores.now += VALID_SECONDS / 2 + 1
    scores.publisher.turn()
    assert bucket(site, "n1") is None and "GanglineHealthy" not in conditions(site, "n1")
    assert bucket(site, "n2") == "0"


def test_undo_takes_both_away(site: KubernetesSite) -> None:
    """`undo --all` promises that nothing of executors is left."""
    scores = Scores(site)
    scores.health = {"n1": BROKEN}
    scores.publisher.turn()
    seen(site, "n1", "3")
    assert undo_all(site.scheduler) == (["health of n1"], [])
    assert bucket(site, "n1") is None and conditions(site, "n1").keys() == {"Ready"}
    until(lambda: site.kubernetes.current_nodes()["n1"].health is None, "no condition")
    assert undo_all(site.scheduler) == ([], [])


@REAL
def test_without_any_executor_kubectl_takes_the_bucket_away(
    real_cluster: UsedCluster, tmp_path: Path
) -> None:
    """The script that ends taints also removes a bucket that is no longer renewed."""
    site = KubernetesSite(real_cluster)
    scores = Scores(site)
    scores.health = {"n1": BROKEN, "n2": BROKEN}
    scores.publisher.turn()
    site.people.annotate("n1", "gangline.io/bucket-until", "1000")
    site.people.taint("n1", "gangline.io/avoid", "a5")
    run_expiry(real_cluster, tmp_path)
    assert (bucket(site, "n1"), bucket(site, "n2")) == (None, "3")
    assert site.people.taints("n1") == []
    undo_all(site.scheduler)
    site.clean()


def test_an_aggregator_that_is_away_changes_nothing(site: KubernetesSite) -> None:
    """Nodes keep the last published health until it expires; a turn never raises."""
    scores = Scores(site)
    scores.health = {"n1": BROKEN}
    scores.publisher.turn()
    seen(site, "n1", "3")

    def away() -> dict[str, NodeHealth]:
        raise ClientError("scores: UNAVAILABLE", True)

    publisher = NodeHealthPublisher(
        site.people.api, site.kubernetes.current_nodes, away, wall=lambda: scores.now
    )
    assert publisher.turn() == 0
    assert bucket(site, "n1") == "3"


def test_health_ends_with_the_hold_of_its_node(site: KubernetesSite) -> None:
    """The aggregator was away: the taint ended, and bucket 3 and the condition False stayed on a node that took pods."""
    scores = Scores(site)
    scores.health = {"n1": BROKEN, "n2": BROKEN}
    scores.publisher.turn()
    seen(site, "n1", "3")
    assert not site.kubernetes.apply([PlaceHold("a1", "why", "gangline_a1_evict", "n1", 600.0)])
    assert scores.publisher.turn() == 1  # its end
    until(lambda: scores.publisher.turn() == 0, "it is written")

    def away() -> dict[str, NodeHealth]:
        raise ClientError("scores: UNAVAILABLE", True)

    publisher = NodeHealthPublisher(
        site.people.api, site.kubernetes.current_nodes, away, wall=lambda: scores.now
    )
    assert publisher.turn() == 0
    scores.now = time.time() + 660  # the hold began later than `scores`
    # The watch of a real cluster may show the node's label a moment later.
    until(lambda: publisher.turn() == 1, "the end of its health")
    assert (bucket(site, "n1"), bucket(site, "n2")) == (None, "3")
    assert "GanglineHealthy" not in conditions(site, "n1")


def test_a_turn_writes_so_many_nodes_at_most() -> None:
    """A new aggregator that judges 5,000 nodes differently would cause 10,000 writes at once; the
    worst nodes come first.
    """
    calls: list[str] = []

    class Api:
        def call(self, method: str, path: str, *_: Any) -> None:
            calls.append(path)

    nodes = {f"n{index}": KubernetesNode(f"n{index}", "1") for index in range(300)}
    health = {name: WELL for name in nodes} | {"n299": BROKEN}
    api: Any = Api()
    publisher = NodeHealthPublisher(api, lambda: nodes, lambda: health)
    assert publisher.turn() == WRITES_PER_TURN and len(calls) == 2 * WRITES_PER_TURN
    assert calls[0] == "/api/v1/nodes/n299/status"


def test_hysteresis_takes_the_worst_of_the_wait() -> None:
    """3, then 1 and 2 in turn: the label is 2, not the latest value 1."""
    hysteresis, now = BucketHysteresis(), 100.0
    assert hysteresis.bucket("n1", None, 3, now) == 3
    assert hysteresis.bucket("n1", 3, 1, now) == 3
    assert hysteresis.bucket("n1", 3, 2, now + 30) == 3
    assert hysteresis.bucket("n1", 3, 1, now + 60) == 3
    assert hysteresis.bucket("n1", 3, 1, now + 90) == 2


def test_a_label_that_is_no_bucket_is_written_over() -> None:
    """A person typed `gangline.io/bucket=good`."""
    node = KubernetesNode("n1", "1", bucket_label="good", bucket_until="x" * 30)
    assert node.bucket is None and node.bucket_ends == 0.0
    patch = label_patch(node, 1, 1e9)
    assert patch is not None and patch["metadata"]["labels"] == {"gangline.io/bucket": "1"}


def test_a_host_that_is_silent_is_unknown() -> None:
    assert condition_of(NodeHealth(2, True, "STALE"))[0] == "Unknown"
    assert condition_of(NodeHealth(3, True, "SUSPECT", "X" * 1000))[0] == "True"
    assert len(condition_of(NodeHealth(3, True, "SUSPECT", "X" * 1000))[2]) <= 200


def test_scores_of_several_lengths_are_refused() -> None:
    """An answer is from outside."""
    reply = score_pb2.ScoreNodesResponse(
        node_index=[0, 1], state=bytes([1, 5]), bucket=bytes([0, 9]), reason=bytes([0, 0]), allowed_bitmap=b"\x01",
    )  # fmt: skip
    health = health_of(reply, ["h1", "h2"], lambda host: "" if host == "h1" else "n2")
    assert health == {"n2": NodeHealth(3, False, "UNHEALTHY", "")}
    reply.bucket = b""
    with pytest.raises(ClientError, match="several lengths"):
        health_of(reply, ["h1", "h2"], str)


def test_a_login_without_the_right_publishes_the_label_alone(cluster: UsedCluster) -> None:
    """An operator removed `nodes/status` from the rights: turns must still succeed."""
    api: Any = ApiServer(cluster.access)
    with closing(api):
        whole = api.call

        def limited(method: str, path: str, *rest: Any) -> Any:
            if path.endswith("/status"):
                raise ApiError(403, "nodes/status is forbidden")
            return whole(method, path, *rest)

        api.call = limited
        site = KubernetesSite(cluster)
        publisher = NodeHealthPublisher(api, site.kubernetes.current_nodes, lambda: {"n1": BROKEN})
        assert publisher.turn() == 1
        assert bucket(site, "n1") == "3" and "GanglineHealthy" not in conditions(site, "n1")
        seen(site, "n1", "3")
        undo_all(site.scheduler)
        site.clean()
