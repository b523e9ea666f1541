"""The contract of executors over the real Kubernetes API server, etcd, scheduler and job controller, or over a fake."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.executors.contract import ExecutorContract, Site
from tests.executors.kubernetes_site import KubernetesSite
from tests.kubernetes_cluster import MISSING, UsedCluster, has_kubernetes


class TestFakeKubernetes(ExecutorContract):
    @pytest.fixture
    def site(self, fake_cluster: UsedCluster) -> Iterator[Site]:
        site = KubernetesSite(fake_cluster)
        yield site
        site.clean()


@pytest.mark.skipif(not has_kubernetes(), reason=MISSING)
class TestKubernetes(ExecutorContract):
    @pytest.fixture
    def site(self, real_cluster: UsedCluster) -> Iterator[Site]:
        site = KubernetesSite(real_cluster)
        yield site
        site.clean()
