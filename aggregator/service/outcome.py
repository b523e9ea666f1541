"""OutcomeService: stores the outcomes that schedulers report, with the expectation from scores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from math import isfinite, nan
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ...contract.wire import outcome_pb2
from ...contract.wire.outcome_pb2_grpc import OutcomeServiceServicer
from ...fingerprints.sensitivity import NETWORK, NVLINK
from ..advisories.advisory_limits import HOUR_NS, SECOND_NS
from ..advisories.engine import AdvisoryEngine
from ..advisories.outcome_rows import ExpectedOutcome, OutcomeHost, OutcomeRecord
from ..calibration_log import CalibrationLog, domains_of
from ..decisions.calibration import ThroughputReport
from ..decisions.node_search import OPTIONS_MAX
from ..decisions.requirements import PRICED_TIERS
from ..errors import InvalidArgument
from ..principal import current_principal
from ..scoring.evaluate import Judgement
from ..store.rows import time_us
from . import validation
from .advisory import name_of
from .gang_sizes import THROUGHPUT_MAX
from .idempotency import IdempotencyCache
from .score import SnapshotSource

OUTCOMES_MAX = 1000
NODES_MAX = 4096
#: Maximum nodes of all outcomes in a call.
NODES_OF_ALL_MAX = 100_000
ID_CHARACTERS_MAX = 128
WORKLOAD_CHARACTERS_MAX, DECISION_CHARACTERS_MAX = 256, 128
END_REASON_CHARACTERS_MAX = 200
LOST_GPU_HOURS_MAX = 1e9
SECONDS_MAX = 366 * 86_400
#: A caller's clock may be ahead by this.
AHEAD_SECONDS_MAX = 600


class OutcomePlacement(NamedTuple):
    """Communication share of a job, and domains per tier, except tiers unknown for a node."""

    domains: Mapping[str, float] = MappingProxyType({})
    communication_share: float = nan


class OutcomeService(OutcomeServiceServicer):
    """Coroutine of grpc.aio. A `ServiceError` becomes its status in the interceptor."""

    def __init__(
        self,
        engine: AdvisoryEngine,
        wall_ns: Callable[[], int],
        calibration: CalibrationLog | None = None,
        source: SnapshotSource | None = None,
    ) -> None:
        """*calibration*: compares throughputs. *source*: its snapshot has the domains of nodes."""
        self._engine, self._wall_ns = engine, wall_ns
        self._calibration, self._source = calibration, source
        self._idempotency_cache = IdempotencyCache()
        #: Serializes calls: each may read the scores of 100,000 hosts over a year.
        self._lock = asyncio.Lock()

    async def ReportOutcomes(
        self, request: outcome_pb2.ReportOutcomesRequest, context: Any
    ) -> bytes:
        """Store all outcomes or none. Raises InvalidArgument, ServiceUnavailable."""
        outcomes = request.outcomes
        if not 1 <= len(outcomes) <= OUTCOMES_MAX:
            raise InvalidArgument("outcomes", f"{len(outcomes)}, expected 1 to {OUTCOMES_MAX}")
        if sum(len(outcome.nodes) for outcome in outcomes) > NODES_OF_ALL_MAX:
            raise InvalidArgument(
                "outcomes", f"more than {NODES_OF_ALL_MAX} nodes in all. Report them in parts"
            )
        for index, outcome in enumerate(outcomes):
            check_outcome(index, outcome, self._wall_ns())
        spans = [
            OutcomeHost(
                index, host, *_span(outcome), outcome.interrupted, _is_suspect(outcome, host)
            )
            for index, outcome in enumerate(outcomes)
            for host in _hosts(outcome)
        ]
        skips_expected = request.validate_only or self._idempotency_cache.has(request, context)
        async with self._lock:
            expected = {} if skips_expected else await self._engine.expected_outcomes(spans)
        reporter = validation.actor_with_login(current_principal(context), "scheduler")
        placed = self._placed(outcomes)
        rows = [self._row(o, expected.get(i), reporter, placed[i]) for i, o in enumerate(outcomes)]
        throughputs = [
            ThroughputReport(
                outcome=outcome.outcome_id,
                reporter=reporter,
                time_ns=self._wall_ns(),
                workload=outcome.workload,
                nodes=len(_hosts(outcome)),
                throughput=outcome.throughput,
                domains=domains_of(placed[index].domains),
                communication_share=placed[index].communication_share,
            )
            for index, outcome in enumerate(outcomes)
            if outcome.throughput > 0.0
        ]

        def response(new: int) -> outcome_pb2.ReportOutcomesResponse:
            return outcome_pb2.ReportOutcomesResponse(
                accepted_count=new, known_count=len(rows) - new
            )

        names = [(reporter, outcome.outcome_id) for outcome in outcomes]
        return await self._idempotency_cache.once(
            request,
            context,
            lambda: response(self._add(rows, throughputs)),
            self._engine.persisted,
            preview=lambda: response(self._engine.count_new_outcomes(names)),
        )

    def _add(self, rows: Sequence[OutcomeRecord], throughputs: Sequence[ThroughputReport]) -> int:
        """Add outcomes, on disk after `persisted`; return the count of new ones.

        Raises ServiceUnavailable.
        """
        new = [r for r in throughputs if self._engine.count_new_outcomes([(r.reporter, r.outcome)])]
        count = self._engine.add_outcomes(rows, self._wall_ns())
        if self._calibration is not None:
            self._calibration.add_throughputs(new)
        return count

    def _placed(self, outcomes: Sequence[outcome_pb2.Outcome]) -> list[OutcomePlacement]:
        """Return the placement of each outcome, from the current snapshot."""
        snapshot = self._source.snapshot if self._source is not None else None
        if not isinstance(snapshot, Judgement) or not any(
            outcome.throughput for outcome in outcomes
        ):
            return [OutcomePlacement()] * len(outcomes)
        index = {name: position for position, name in enumerate(snapshot.names)}
        nodes = ([index.get(host, -1) for host in _hosts(outcome)] for outcome in outcomes)
        pairs = zip(nodes, outcomes, strict=True)
        return [placement_of(snapshot, n, outcome.workload) for n, outcome in pairs]

    def _row(
        self,
        outcome: outcome_pb2.Outcome,
        expected: ExpectedOutcome | None,
        reporter: str,
        placed: OutcomePlacement,
    ) -> OutcomeRecord:
        advisory = name_of(outcome.advisory) if outcome.advisory else ""
        known = self._engine.find(advisory) if advisory else None
        (started, ended), hosts = _span(outcome), _hosts(outcome)
        blamed = validation.node_of(outcome.blamed_node) if outcome.blamed_node else ""
        host_hours = (ended - started) / HOUR_NS * len(hosts)
        queue_hours = validation.hours_of("queue_time", outcome, "queue_time", SECONDS_MAX)
        row = (
            time_us(self._wall_ns()), outcome.outcome_id, advisory, reporter, outcome.workload,
            hosts, time_us(started), time_us(ended), outcome.interrupted,
            blamed, outcome.end_reason, outcome.advice_followed, outcome.lost_gpu_hours,
            host_hours, expected.interruptions if expected else None, known.reason if known else "",
            expected.by_hazard if expected else None,
            [share * outcome.interrupted for share in expected.shares] if expected else None,
            outcome.decision_id, outcome.option, outcome.throughput or nan, queue_hours * 3600.0,
            list(placed.domains.items()), placed.communication_share,
        )  # fmt: skip
        return OutcomeRecord(
            outcome=outcome.outcome_id,
            reporter=reporter,
            interrupted=outcome.interrupted,
            expected=expected,
            row=row,
            host_hours=host_hours,
            hosts=len(hosts),
        )


def check_outcome(at: int, one: outcome_pb2.Outcome, now_ns: int) -> None:
    """Raise InvalidArgument with the field and the outcome's position *at*."""
    try:
        _check_one(one, now_ns)
    except InvalidArgument as error:
        raise InvalidArgument(f"outcomes[{at}].{error.field}", error.field_message) from None


def _check_one(outcome: outcome_pb2.Outcome, now_ns: int) -> None:
    if not outcome.outcome_id:
        raise InvalidArgument(
            "outcome_id", f"expected 1 to {ID_CHARACTERS_MAX} characters, the caller's own id"
        )
    validation.check_text("outcome_id", outcome.outcome_id, ID_CHARACTERS_MAX)
    validation.check_text("workload", outcome.workload, WORKLOAD_CHARACTERS_MAX)
    validation.check_text("end_reason", outcome.end_reason, END_REASON_CHARACTERS_MAX)
    if not 1 <= len(outcome.nodes) <= NODES_MAX:
        raise InvalidArgument("nodes", f"{len(outcome.nodes)}, expected 1 to {NODES_MAX}")
    if not (isfinite(outcome.lost_gpu_hours) and 0 <= outcome.lost_gpu_hours <= LOST_GPU_HOURS_MAX):
        raise InvalidArgument("lost_gpu_hours", f"{outcome.lost_gpu_hours}, expected 0 to 1e9")
    for node in outcome.nodes:
        validation.node_of(node, "nodes")
    if outcome.blamed_node:
        validation.node_of(outcome.blamed_node, "blamed_node")
        if outcome.blamed_node not in outcome.nodes:
            raise InvalidArgument("blamed_node", f"{outcome.blamed_node!r} is not one of its nodes")
    if outcome.advisory:
        name_of(outcome.advisory, "advisory")
    validation.check_text("decision_id", outcome.decision_id, DECISION_CHARACTERS_MAX)
    validation.check_range("option", outcome.option, 0, OPTIONS_MAX)
    validation.check_real("throughput", outcome.throughput, THROUGHPUT_MAX)
    if outcome.throughput and not outcome.workload:
        raise InvalidArgument("workload", "empty, expected the name whose throughput this is")
    validation.hours_of("queue_time", outcome, "queue_time", SECONDS_MAX)
    _, ended = _span(outcome)
    if ended > now_ns + AHEAD_SECONDS_MAX * SECOND_NS:
        ahead = (ended - now_ns) / HOUR_NS
        raise InvalidArgument(
            "end_time",
            f"{ahead:,.1f} h ahead of the aggregator's clock. Report it when it has ended",
        )


def placement_of(snapshot: Judgement, nodes: list[int], workload: str) -> OutcomePlacement:
    """Return the placement of *nodes*; -1: a node that the snapshot lacks."""
    domains, indexes = snapshot.facts.domains, np.array(nodes, dtype=np.intp)
    domain_counts: dict[str, float] = {}
    for tier in PRICED_TIERS:
        ids = domains.ids[tier.row]
        if indexes.min() >= 0 and indexes.max() < ids.size and (those := ids[indexes]).min() >= 0:
            domain_counts[tier.name.lower()] = float(np.unique(those).size)
    known = snapshot.workloads.find(workload)
    share = known[0].bound[NETWORK] + known[0].bound[NVLINK] if known else nan
    return OutcomePlacement(domain_counts, share)


def _hosts(outcome: outcome_pb2.Outcome) -> list[str]:
    """Return its hosts without duplicates."""
    return list(dict.fromkeys(map(validation.node_of, outcome.nodes)))


def _is_suspect(outcome: outcome_pb2.Outcome, host: str) -> bool:
    """Return whether *host* may have caused an interruption: it is blamed, or no host is."""
    return not outcome.blamed_node or validation.node_of(outcome.blamed_node) == host


def _span(outcome: outcome_pb2.Outcome) -> tuple[int, int]:
    started = validation.time_ns_of("start_time", outcome.start_time)
    ended = validation.time_ns_of("end_time", outcome.end_time)
    if not started:
        raise InvalidArgument("start_time", "is missing: when it began")
    if not started < ended <= started + SECONDS_MAX * SECOND_NS:
        raise InvalidArgument("end_time", "expected later than start_time, by a year at most")
    return started, ended
