"""Sets the scheduling weights of nodes by the buckets of their scores and by recovery plans."""

from __future__ import annotations

from . import weights
from .client import ClientError
from .cluster_reader import ClusterReader
from .context import ExecutorContext
from .recovery_follower import RecoveryFollower
from .step_runner import StepRunner


class WeightSetter:
    """Keeps the weights of nodes current. Call `update` each turn."""

    def __init__(
        self,
        context: ExecutorContext,
        reader: ClusterReader,
        recoveries: RecoveryFollower,
        runner: StepRunner,
    ) -> None:
        self._context, self._reader = context, reader
        self._recoveries, self._runner = recoveries, runner
        self._buckets: dict[str, int] = {}
        self._buckets_at = -1e9
        #: Inputs of the last change: time of the buckets, preferred nodes, and time of the nodes.
        self._weighed: object = None

    def update(self) -> None:
        """Set nodes' weights by buckets and recovery plans; without both settings restore the original weights."""
        live, now = self._context.client.is_live(), self._context.monotonic()
        if (
            self._context.config.weights
            and live
            and now - self._buckets_at >= self._context.config.weights_poll_seconds
        ):
            self._buckets_at = now
            try:
                found = self._context.client.buckets()
            except ClientError as error:
                self._context.warn("nodes keep their weights", str(error))
                return
            if found is not None:
                self._buckets = {
                    self._context.names.node_of(host): one for host, one in found.items()
                }
        preferred = (
            self._recoveries.planned_nodes() if self._context.config.follow_plan else frozenset()
        )
        known = (self._buckets_at, preferred, self._reader.all_nodes_at)
        if (self._context.config.weights and not self._buckets) or known == self._weighed:
            return
        self._weighed = known
        nodes = self._reader.state.nodes
        steps = weights.weight_steps(nodes, self._buckets, preferred, self._context.ledger)
        changed = weights.forget_restored(nodes, self._context.ledger)
        steps = [step for step in steps if self._runner.is_due(step)]
        if steps:
            self._runner.carry_out(self._reader.situation(), list(steps))
            self._reader.read_again({name for step in steps for name in step.nodes})
        elif changed:
            self._context.ledger.save()
