"""Follows requeued jobs until they run again: requests a plan, and reports the duration of each phase of the recovery.

A job restarts without this module too: without a plan in time, or without an aggregator, the scheduler chooses the nodes. A
recovery is not reported if the executor is killed before its end.
"""

from __future__ import annotations

import logging

from ..contract.wire import recovery_pb2
from .client import AggregatorClient, ClientError, NodeDictionary, PendingPlan
from .model import Advice, Requeue, SchedulerState
from .recovery import (
    PLAN_SECONDS,
    RECOVERIES_MAX,
    RECOVERY_POLLED_SECONDS,
    FollowedRecovery,
    free_nodes,
    plan_request,
    read_plan,
    report_of,
)
from .settings import NodeNames

log = logging.getLogger(__name__)

#: Period of reading the names of hosts, also after a failure.
DICTIONARY_SECONDS = 60.0


class RecoveryFollower:
    """The recoveries in progress, their plans and unsent reports. Used only by the executor's thread."""

    def __init__(self, client: AggregatorClient, names: NodeNames, cluster: str) -> None:
        self._client, self._names, self._cluster = client, names, cluster
        self._dictionary: NodeDictionary | None = None
        self._indexes: dict[str, int] = {}
        self._read_at = float("-inf")
        self._is_silent = False
        #: (advisory, job) -> recovery.
        self._followed: dict[tuple[str, str], FollowedRecovery] = {}
        self._pending: dict[tuple[str, str], PendingPlan] = {}
        #: (advisory, job) -> text of the plan, the oldest first.
        self._texts: dict[tuple[str, str], str] = {}
        self._reports: list[recovery_pb2.ReportRecoveryRequest] = []

    def refresh(self, monotonic: float) -> None:
        """Read the names of hosts every DICTIONARY_SECONDS, so that a plan can be requested at once."""
        if monotonic - self._read_at < DICTIONARY_SECONDS:
            return
        self._read_at = monotonic
        try:
            found = self._client.node_dictionary()
        except ClientError as error:
            if not self._is_silent:
                log.info(
                    "no plan is requested, because the names of the hosts are unknown: %s", error
                )
            self._is_silent = True
            return
        self._is_silent = False
        if found != self._dictionary:
            self._dictionary = found
            self._indexes = {name: index for index, name in enumerate(found.names)}

    def begin(self, requeue: Requeue, advice: Advice | None, state: SchedulerState) -> None:
        """Follow a job that is about to be requeued, and request a plan for it."""
        job = state.jobs.get(requeue.job)
        if job is None or advice is None or len(self._followed) >= RECOVERIES_MAX:
            return
        key = requeue.advisory, requeue.job
        self._followed[key] = FollowedRecovery(
            requeue.advisory, job, advice.node, max(0.0, advice.proposed)
        )
        if self._dictionary is None or not self._client.is_live():
            return
        request = plan_request(
            job, advice.node, self._indexes, self._dictionary.version, self._names.host_of, free_nodes(state)
        )  # fmt: skip
        if request is None:
            log.info(
                "job %s: no plan, the scheduler chooses: the aggregator does not know all its nodes",
                job.name,
            )
        else:
            self._pending[key] = self._client.plan_recovery(request, PLAN_SECONDS)

    def note(self, requeue: Requeue, error: str, now: float) -> None:
        """Record the scheduler's answer to a requeue: on *error* forget the recovery."""
        key = requeue.advisory, requeue.job
        if error:
            self._followed.pop(key, None)
            self._pending.pop(key, None)
        elif key in self._followed:
            self._followed[key].decided = now

    def collect(self) -> None:
        """Store the plans that have arrived."""
        for key, pending in list(self._pending.items()):
            if not pending.is_done():
                continue
            del self._pending[key]
            try:
                reply = pending.result()
            except ClientError as error:
                log.info("job %s: no plan, the scheduler chooses: %s", key[1], error)
                self._read_at = float("-inf")  # the node dictionary may be outdated
                continue
            dictionary, one = self._dictionary, self._followed.get(key)
            if one is None or dictionary is None:
                continue
            if reply.dictionary_version == dictionary.version or not reply.dictionary_version:
                one.plan = read_plan(reply, dictionary.names, self._names.node_of)
            if one.plan is not None:
                log.info("job %s: %s (decision %s)", key[1], one.plan.text(), one.plan.decision)
                self._texts[key] = f"job {key[1]}: {one.plan.text()}"
                if len(self._texts) > RECOVERIES_MAX:
                    del self._texts[next(iter(self._texts))]

    def planned_nodes(self) -> frozenset[str]:
        """Return the planned nodes of all recoveries in progress."""
        plans = (one.plan for one in self._followed.values())
        return frozenset(name for plan in plans if plan is not None for name in plan.nodes)

    def plan_texts(self, advisory: str) -> list[str]:
        """Return the texts of the plans for the jobs of *advisory*."""
        return [text for (name, _), text in self._texts.items() if name == advisory]

    def forget(self) -> None:
        """Forget plans and recoveries, because their advisories belong to another store."""
        for pending in (self._followed, self._pending, self._texts):
            pending.clear()

    def is_urgent(self, now: float) -> bool:
        """Return whether a job was requeued less than RECOVERY_POLLED_SECONDS ago and does not run yet."""
        return any(now - one.decided < RECOVERY_POLLED_SECONDS for one in self._followed.values())

    def finish(self, state: SchedulerState, now: float) -> None:
        """Queue the reports of finished recoveries."""
        for key, one in list(self._followed.items()):
            if not one.decided:
                continue
            report = report_of(one, state, now, self._cluster, self._client.ahead_seconds)
            if report is None:
                continue
            del self._followed[key]
            self._pending.pop(key, None)
            if len(self._reports) < RECOVERIES_MAX:
                self._reports.append(report)

    def send(self) -> None:
        """Send the queued reports; drop only a refused report. Raises ClientError."""
        while self._reports:
            try:
                self._client.report_recovery(self._reports[0])
            except ClientError as error:
                if not error.is_temporary:
                    del self._reports[0]
                raise
            del self._reports[0]
