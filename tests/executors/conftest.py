"""Clusters of Kubernetes for the tests here. The real one starts once in a worker, and all files that use it run in one worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.fake_kubernetes import fake_kubernetes
from tests.kubernetes_cluster import (
    Binder,
    JobController,
    Kubelets,
    UsedCluster,
    executor_cluster,
    used_cluster,
)


@pytest.fixture(scope="module")
def fake_cluster() -> Iterator[UsedCluster]:
    with ExitStack() as stack:
        fake, access = stack.enter_context(fake_kubernetes())
        loops = (Kubelets, JobController, Binder)
        people = stack.enter_context(used_cluster(access, *loops))
        yield UsedCluster(access, people, define=fake.define)


@pytest.fixture(scope="session")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UsedCluster]:
    with executor_cluster(tmp_path_factory.mktemp("kubernetes")) as cluster:
        yield cluster
