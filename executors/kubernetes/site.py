"""How the command reaches Kubernetes, and the threads that run beside its executor."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

import grpc

from ..ledger import ExecutorLedger, UnsavedLedger
from ..model import DoctorFinding
from ..scores import ScoreReader
from ..settings import ExecutorConfig, NodeNames
from ..site import Companion, SchedulerSite
from . import doctor
from .api import ApiServer, find_access
from .health import NodeHealthPublisher
from .kueue import KueueController
from .scheduler import Kubernetes
from .settings import KubernetesConfig
from .state import ConfigMapLedger, ExecutorLease, lease_identity

log = logging.getLogger(__name__)


class KubernetesSite(SchedulerSite):
    """Kubernetes through its API server, which also stores the ledger unless a folder is set."""

    title = "Kubernetes"

    def __init__(self, config: ExecutorConfig) -> None:
        super().__init__(config)
        assert isinstance(config, KubernetesConfig)
        self._settings = config
        self._access = find_access(config.kubernetes_server, config.kubeconfig)
        self._api = ApiServer(self._access)
        self._kubernetes = Kubernetes(self._api, config)
        self.scheduler = self._kubernetes

    def findings(self, attempt: bool) -> Iterable[DoctorFinding]:
        """Yield the findings of Kubernetes' doctor."""
        return doctor.findings(self._api, self._kubernetes, self._settings, attempt)

    def read_ledger(self) -> ExecutorLedger:
        """Return the ledger for reading. Raises LedgerError."""
        if self.config.ledger:
            return super().read_ledger()
        return ConfigMapLedger(self._api, self._settings.namespace, self._settings.state_name)

    @contextmanager
    def own_ledger(self, stopped: threading.Event, shadow: bool) -> Iterator[ExecutorLedger | None]:
        """Wait for the Lease, then yield the ledger; losing the Lease sets *stopped*.

        Shadow mode needs neither, because it runs beside an acting executor.
        """
        log.info("Kubernetes at %s, login by %s", self._access.shown, self._access.source)
        if self.config.ledger:
            with super().own_ledger(stopped, shadow) as ledger:
                yield ledger
            return
        if shadow:
            yield UnsavedLedger()
            return
        settings = self._settings
        lease = ExecutorLease(
            ApiServer(self._access), settings.namespace, settings.state_name, lease_identity()
        )
        try:
            if not lease.acquire(stopped):
                yield None
                return
            lease.keep(stopped.set)
            ledger = self.read_ledger()
            ledger.save()  # the previous holder can no longer write
            yield ledger
        finally:
            lease.release()

    def companions(self, channel: grpc.Channel, names: NodeNames) -> Iterable[Companion]:
        """Yield the health publisher, with its own connection: its writes must not delay advice."""
        if self._settings.publish_health:
            api = ApiServer(self._access)
            nodes = self._kubernetes.current_nodes
            yield NodeHealthPublisher(api, nodes, ScoreReader(channel, names.node_of).read).run
        if self._settings.kueue:
            yield self._kueue().run

    def _kueue(self) -> KueueController:
        kubernetes, settings = self._kubernetes, self._settings
        return KueueController(
            ApiServer(self._access),
            kubernetes.view,
            gpu_resources=settings.gpu_resources,
            select_bucket=settings.kueue_select_bucket,
        )

    def undo_companions(self) -> list[str]:
        """Release the workloads that wait for the companions."""
        if not self._settings.kueue:
            return []
        with closing(self._kueue()) as controller:
            return controller.undo()

    def close(self) -> None:
        """End the watches."""
        self._kubernetes.close()
