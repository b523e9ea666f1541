"""Reads the scheduler's nodes, jobs and holds, and joins them with the advice."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from . import core, model
from .context import ExecutorContext


class ClusterReader:
    """The scheduler's state as it was last read. Methods raise SchedulerError."""

    def __init__(self, context: ExecutorContext) -> None:
        self._context = context
        self.capabilities = model.Capabilities()
        self.state = model.SchedulerState()
        #: Monotonic time at which all nodes were read.
        self.all_nodes_at = -1e9
        self._has_capabilities = False

    def ask_capabilities(self) -> None:
        """Ask the scheduler, once, what it can do."""
        if not self._has_capabilities:
            self.capabilities = self._context.scheduler.capabilities()
            self._has_capabilities = True

    def read(self) -> None:
        """Read jobs, holds and the nodes of interest; every `nodes_poll_seconds` read all nodes."""
        now = self._context.monotonic()
        nodes = dict(self.state.nodes)
        if now - self.all_nodes_at >= self._context.config.nodes_poll_seconds:
            nodes = self._context.scheduler.read_nodes()
            self.all_nodes_at = now
        else:
            wanted = core.nodes_of_interest(
                self._context.client.advice().values(), self._context.ledger
            )
            nodes |= self._context.scheduler.read_nodes(wanted) if wanted else {}
        jobs = {
            name: job if job.is_running else replace(job, previous_nodes=self._previous_nodes(name))
            for name, job in self._context.scheduler.read_jobs().items()
        }
        state = model.SchedulerState(nodes, jobs, self._context.scheduler.read_holds())
        for job in state.jobs.values():
            if job.problem:
                self._context.warn(f"job {job.name} is not seen on any node", job.problem)
        if core.missing_marks(self._context.ledger, state):
            state = replace(state, started=self._context.scheduler.started())
        self.state = state

    def situation(self) -> model.Situation:
        """Return the advice, the state as it was last read, and the time: all inputs of a decision."""
        return model.Situation(
            self._context.client.advice(),
            self.state,
            self._context.wall(),
            self._context.client.is_live(),
            self.capabilities,
            self._context.policy,
        )

    def _previous_nodes(self, job: str) -> frozenset[str]:
        before = self.state.jobs.get(job)
        if before is None:
            return frozenset()
        return before.nodes if before.is_running else before.previous_nodes

    def read_again(self, nodes: Collection[str]) -> None:
        """Read these *nodes* again, after their weights were set."""
        fresh = self._context.scheduler.read_nodes(set(nodes))
        self.state = replace(self.state, nodes={**self.state.nodes, **fresh})
