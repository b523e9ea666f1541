"""Reports the scheduler's gangs, unavailable nodes, outcomes and recoveries to the aggregator."""

from __future__ import annotations

from collections.abc import Iterable

from . import model, reports
from .client import ClientError
from .context import ExecutorContext
from .launchers.launchers import Launchers
from .recovery_follower import RecoveryFollower


class Reporter:
    """Sends the reports that the settings allow. Call `send` each turn."""

    def __init__(
        self, context: ExecutorContext, recoveries: RecoveryFollower, launchers: Launchers | None
    ) -> None:
        self._context, self._recoveries, self._launchers = context, recoveries, launchers
        self._reported = _nothing_reported(context)
        #: The aggregator's store that has these reports.
        self._store = context.ledger.store

    def send(self, state: model.SchedulerState) -> None:
        """Report what changed since the last call; everything, if the aggregator has another store.

        A failure is logged. Raises LedgerError.
        """
        now, names = self._context.wall(), self._context.names
        if self._store and self._store != self._context.ledger.store:
            self._reported = _nothing_reported(self._context)
        self._store = self._context.ledger.store
        if self._launchers is not None:
            state = self._launchers.refine(state)
        try:
            if self._context.config.report_gangs:
                gangs, ended = reports.gang_updates(self._reported, state, now, names.host_of)
                if gangs or ended:
                    self._context.client.report_gangs(gangs, ended)
                    reports.record_gangs(self._reported, state, gangs, ended, now)
            if self._context.config.report_unavailable:
                fresh, back = reports.unavailable_updates(
                    self._reported, state, self._context.ledger, now, names.host_of
                )
                self._remember_reported(fresh)
                if fresh or back:
                    self._context.client.report_unavailable(fresh, reports.TTL_SECONDS, back)
                    reports.record_unavailable(self._reported, fresh, back, now, names.node_of)
            if self._context.config.report_outcomes:
                self._report_outcomes(state, now)
                self._recoveries.send()
            self._recoveries.refresh(self._context.monotonic())
        except ClientError as error:
            self._context.warn("a report was not accepted", str(error))

    def _remember_reported(self, fresh: Iterable[str]) -> None:
        """Store the nodes before they are reported as out, so that after a kill the next process reports their return."""
        names = {
            self._context.names.node_of(host) for host in fresh
        } | self._reported.unavailable.keys()
        if names != self._context.ledger.reported:
            self._context.ledger.reported = frozenset(names)
            self._context.ledger.save()

    def _report_outcomes(self, state: model.SchedulerState, now: float) -> None:
        reported, context = self._reported, self._context
        cluster = reports.ReportedCluster(context.config.cluster, state, now, context.names.host_of)
        reports.collect_outcomes(reported, cluster, context.ledger)
        some = reported.outcomes[: reports.OUTCOMES_PER_REQUEST]
        if not some:
            return
        try:
            self._context.client.report_outcomes(some)
        except ClientError as error:
            if error.is_temporary:
                raise
            self._context.warn("outcomes were rejected and are dropped", str(error))
        del reported.outcomes[: len(some)]


def _nothing_reported(context: ExecutorContext) -> reports.Reported:
    return reports.Reported(unavailable=reports.earlier_reports(context.ledger.reported))
