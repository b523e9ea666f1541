"""Clusters of Kubernetes for the tests here: the real one is started once a module."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.fake_kubernetes import fake_kubernetes
from tests.kubernetes_cluster import (
    ADMIN_TOKEN,
    EXECUTOR_TOKEN,
    MANIFESTS,
    Background,
    Binder,
    JobController,
    Kubelets,
    UsedCluster,
    path_of,
    running_kubernetes,
    used_cluster,
)


@pytest.fixture(scope="module")
def fake_cluster() -> Iterator[UsedCluster]:
    with ExitStack() as stack:
        fake, access = stack.enter_context(fake_kubernetes())
        loops = (Kubelets, JobController, Binder)
        people = stack.enter_context(used_cluster(access, *loops))
        yield UsedCluster(access, people, define=fake.define)


@pytest.fixture(scope="module")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UsedCluster]:
    with ExitStack() as stack:
        cluster = stack.enter_context(running_kubernetes(tmp_path_factory.mktemp("kubernetes")))
        kubectl = path_of("kubectl")
        assert kubectl
        config = cluster.kubeconfig(ADMIN_TOKEN)
        subprocess.run(
            [kubectl, f"--kubeconfig={config}", "apply", "-f", str(MANIFESTS / "executor-rights.yaml")],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        loops: list[type[Background]] = [Kubelets]
        if not cluster.has_controller_manager:
            loops.append(JobController)
        people = stack.enter_context(used_cluster(cluster.access(ADMIN_TOKEN), *loops))
        yield UsedCluster(cluster.access(EXECUTOR_TOKEN), people, cluster)
