"""An executor's connection to the aggregator: watches advisories, sends answers and scheduler reports."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from ..contract.wire import advisory_pb2 as wire
from ..contract.wire import outcome_pb2, recovery_pb2, score_pb2
from ..contract.wire.advisory_pb2_grpc import AdvisoryServiceStub
from ..contract.wire.outcome_pb2_grpc import OutcomeServiceStub
from ..contract.wire.recovery_pb2_grpc import RecoveryServiceStub
from ..contract.wire.score_pb2_grpc import ScoreServiceStub
from .model import ADVISORY_NAME, NODE_NAME, Advice

log = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 64 << 20
#: Timeout of a call.
CALL_SECONDS = 5.0
#: Timeout of calls for scores and names of nodes, which are only a hint.
SCORES_SECONDS = 1.0
#: The aggregator sends a bookmark every 15 s. After this time without any event the known advisories are not current.
SILENCE_SECONDS_MAX = 45.0
#: Delay before a lost connection is retried, and its maximum; the delay doubles each time.
RETRY_SECONDS, RETRY_SECONDS_MAX = 0.2, 5.0
#: By default gRPC waits up to two minutes between attempts, and no new advisory is accepted in this time.
CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
)
STORE_CHARACTERS_MAX = 64
#: How long an ended advisory is remembered.
ENDED_SECONDS = 120.0
#: Limit of known advisories; further advisories are ignored.
ADVISORIES_MAX = 20_000
#: Smaller differences between the clocks of two machines are ignored.
CLOCK_SECONDS = 1.0
#: Status codes of temporary failures: the call may succeed later.
LATER = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)

_LASTING = (wire.PROPOSED, wire.ACCEPTED, wire.DEFERRED, wire.DONE)


class ClientError(Exception):
    """The aggregator does not respond, or refused a call. `is_temporary`: the call may succeed later."""

    def __init__(self, message: str, is_temporary: bool) -> None:
        super().__init__(message)
        self.is_temporary = is_temporary


@dataclass(frozen=True, slots=True)
class NodeDictionary:
    """Names of hosts by node index. Indexes are valid only with the dictionary of the same `version`."""

    version: int
    names: tuple[str, ...]


class PendingPlan:
    """The answer to a plan request, which may not have arrived yet."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def is_done(self) -> bool:
        """Return whether `result` will not block."""
        return bool(self._call.done())

    def result(self) -> recovery_pb2.PlanRecoveryResponse:
        """Wait for the answer and return it. Raises ClientError."""
        try:
            reply: recovery_pb2.PlanRecoveryResponse = self._call.result()
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            call: Any = error
            name = call.code().name if isinstance(error, grpc.RpcError) else "CANCELLED"
            details = call.details() if isinstance(error, grpc.RpcError) else "given up"
            raise ClientError(f"{name}: {details}", True) from error
        return reply


class AggregatorClient:
    """Connection to the aggregator: call `start`, then read `advice` after each call of *wake*.

    Besides the watch's thread only a single thread may use it.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        actor: str,
        wake: Callable[[], None],
        node_of_host: Callable[[str], str],
    ) -> None:
        """*actor*: this executor's name in answers; *node_of_host*: returns the scheduler's name of a host, or ""."""
        self._stub: Any = AdvisoryServiceStub(channel)  # type: ignore[no-untyped-call]
        self._outcomes: Any = OutcomeServiceStub(channel)  # type: ignore[no-untyped-call]
        self._recoveries: Any = RecoveryServiceStub(channel)  # type: ignore[no-untyped-call]
        self._scores: Any = ScoreServiceStub(channel)  # type: ignore[no-untyped-call]
        self.actor, self._wake, self._node_of_host = actor, wake, node_of_host
        self._lock = threading.Lock()
        self._known: dict[str, tuple[wire.Advisory, float]] = {}
        self._fresh: dict[str, tuple[wire.Advisory, float]] | None = None
        self._received = 0.0
        self._is_complete = False
        #: Seconds by which the aggregator's clock is ahead of this machine's.
        self.ahead_seconds = 0.0
        #: Why there is no connection; "" while connected.
        self.problem = "not connected yet"
        self._call: Any = None
        self._dictionary: NodeDictionary | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch-advisories", daemon=True)

    def start(self) -> None:
        """Start the thread that watches advisories."""
        self._thread.start()

    def close(self) -> None:
        """End the watch and its thread."""
        self._stopped.set()
        if self._call is not None:
            self._call.cancel()
        self._thread.join(CALL_SECONDS)

    def advice(self) -> dict[str, Advice]:
        """Return the advisories of single nodes, by name."""
        with self._lock:
            messages = [message for message, _ in self._known.values()]
        found = (self._advice(message) for message in messages)
        return {one.name: one for one in found if one is not None}

    def is_live(self) -> bool:
        """Return whether `advice` is complete and current. Cancels a watch without an event for SILENCE_SECONDS_MAX."""
        if not self._is_complete:
            return False
        if time.monotonic() - self._received < SILENCE_SECONDS_MAX:
            return True
        self._is_complete = False
        if self._call is not None:
            self._call.cancel()
        return False

    def _advice(self, message: wire.Advisory) -> Advice | None:
        """Return *message* as Advice; None if it concerns no single host, or has an invalid name."""
        name = message.name.removeprefix("advisories/")
        if not ADVISORY_NAME.fullmatch(name) or len(message.nodes) != 1:
            return None
        if not message.subject.startswith("host "):
            return None
        node = self._node_of_host(message.nodes[0].removeprefix("nodes/"))
        if not NODE_NAME.fullmatch(node):
            return None
        return Advice(
            name=name,
            etag=message.etag,
            action=_name(wire.Action, message.action),
            state=_name(wire.AdvisoryState, message.state),
            node=node,
            scope=message.scope,
            cause=_name(score_pb2.ReasonCode, message.reason),
            reason=message.reason_text[:200],
            owner=message.owner,
            token=message.fencing_token,
            expires=self._local(message.expire_time),
            lease_until=self._local(message.lease_expire_time),
            workload=message.workload,
            checkpoint_seconds=message.checkpoint_interval.seconds
            + message.checkpoint_interval.nanos / 1e9,
            proposed=self._local(message.propose_time),
            devices=tuple(sorted({one.partition("/")[0][:80] for one in message.devices})),
            basis=_name(wire.Basis, message.basis),
            store=message.store[:STORE_CHARACTERS_MAX],
        )

    def _local(self, when: Any) -> float:
        """Return a time of the aggregator by this machine's clock; 0 if the time is not set."""
        seconds = float(when.seconds) + when.nanos / 1e9
        return seconds - self.ahead_seconds if seconds else 0.0

    def _watch(self) -> None:
        rest = RETRY_SECONDS
        while not self._stopped.is_set():
            started = time.monotonic()
            try:
                # Without a resume token the watch begins with the list of all open advisories, whose end is marked.
                self._call = self._stub.WatchAdvisories(wire.WatchAdvisoriesRequest())
                for event in self._call:
                    self._take(event)
                self._lose("the aggregator ended the call")
            except grpc.RpcError as error:
                code: Any = error
                self._lose(f"{code.code().name}: {code.details()}")
            except Exception as error:  # a thread must not end unseen
                log.exception("watching advisories failed")
                self._lose(repr(error))
            if time.monotonic() - started > RETRY_SECONDS_MAX:
                rest = RETRY_SECONDS
            self._stopped.wait(rest)
            rest = min(2 * rest, RETRY_SECONDS_MAX)

    def _lose(self, problem: str) -> None:
        if self._stopped.is_set():
            return
        if problem != self.problem:
            log.warning("no connection to the aggregator: %s", problem)
        self.problem = problem
        with self._lock:
            self._is_complete, self._fresh = False, None
        self._wake()

    def _take(self, event: wire.AdvisoryEvent) -> None:
        """Process an event. Events without a token list the open advisories, up to a bookmark."""
        now = time.monotonic()
        with self._lock:
            self._received = now
            if not event.resume_token and self._fresh is None:
                self._fresh = {}
            into = self._known if self._fresh is None else self._fresh
            if event.HasField("advisory"):
                if len(into) < ADVISORIES_MAX or event.advisory.name in into:
                    into[event.advisory.name] = event.advisory, now
            else:
                self._take_bookmark(event, now)
        if event.HasField("advisory") and self._fresh is not None:
            return
        self._wake()

    def _take_bookmark(self, event: wire.AdvisoryEvent, now: float) -> None:
        ahead = event.bookmark.seconds + event.bookmark.nanos / 1e9 - time.time()
        if abs(ahead - self.ahead_seconds) > CLOCK_SECONDS:
            self.ahead_seconds = 0.0 if abs(ahead) <= CLOCK_SECONDS else ahead
        if self._fresh is not None and event.resume_token:
            self._known, self._fresh = self._fresh, None
        if not self._is_complete and self._fresh is None:
            self._is_complete = True
            if self.problem:
                log.info("connected to the aggregator")
            self.problem = ""
        for name, (message, received) in list(self._known.items()):
            over = message.state not in _LASTING and now - received > ENDED_SECONDS
            if over or (
                message.state == wire.DONE
                and now - received > ENDED_SECONDS
                and self._local(message.expire_time) < time.time()
            ):
                del self._known[name]

    def answer(
        self, advice: Advice, state: str, note: str = "", lease_seconds: float = 0.0
    ) -> Advice:
        """Answer an advisory, and return the changed advisory. Raises ClientError."""
        request = wire.AckAdvisoryRequest(
            name=f"advisories/{advice.name}",
            new_state=state,
            actor=self.actor,
            etag=advice.etag if state == "ACCEPTED" and advice.state != "ACCEPTED" else "",
            note="".join(c if c.isprintable() else " " for c in note)[:500],
        )
        if lease_seconds:
            request.lease.FromMilliseconds(int(1000 * lease_seconds))
        message: wire.Advisory = self._ask(self._stub.AckAdvisory, request)
        with self._lock:
            self._known[message.name] = message, time.monotonic()
        after = self._advice(message)
        if after is None:
            raise ClientError(f"{advice.name}: the answer is of another advisory", False)
        return after

    def report_gangs(self, gangs: Iterable[wire.Gang], ended: Sequence[str]) -> None:
        """Report running gangs with their nodes, and ended workloads. Raises ClientError."""
        self._ask(
            self._stub.ReportGangs,
            wire.ReportGangsRequest(actor=self.actor, gangs=gangs, ended_workloads=ended),
        )

    def report_unavailable(
        self, out: Mapping[str, str], ttl_seconds: float, returned: Sequence[str]
    ) -> None:
        """Report hosts that others keep out of service, and returned hosts. Raises ClientError."""
        ttl = Duration(seconds=int(ttl_seconds))
        nodes = [
            wire.UnavailableNode(
                node=f"nodes/{host}", reason=reason[:500], ttl=ttl, new_work_only=True
            )
            for host, reason in out.items()
        ]
        request = wire.ReportUnavailableNodesRequest(
            actor=self.actor, nodes=nodes, returned_nodes=[f"nodes/{host}" for host in returned]
        )
        self._ask(self._stub.ReportUnavailableNodes, request)

    def report_outcomes(self, outcomes: Sequence[outcome_pb2.Outcome]) -> None:
        """Report how jobs ended. Raises ClientError."""
        self._ask(
            self._outcomes.ReportOutcomes, outcome_pb2.ReportOutcomesRequest(outcomes=outcomes)
        )

    def node_dictionary(self) -> NodeDictionary:
        """Return the names of hosts by node index. Raises ClientError."""
        reply = self._ask(
            self._scores.GetNodeDictionary, score_pb2.GetNodeDictionaryRequest(), SCORES_SECONDS
        )
        return NodeDictionary(reply.version, tuple(reply.names))

    def buckets(self) -> dict[str, int] | None:
        """Return the bucket of each host's score, from 0 (best). Raises ClientError.

        None while the aggregator's data is degraded.
        """
        reply = self._ask(self._scores.ScoreNodes, score_pb2.ScoreNodesRequest(), SCORES_SECONDS)
        if self._dictionary is None or self._dictionary.version != reply.dictionary_version:
            self._dictionary = self.node_dictionary()
        names = self._dictionary.names
        if max(reply.node_index, default=-1) >= len(names):  # hosts are new
            self._dictionary = self.node_dictionary()
            names = self._dictionary.names
        if len(reply.bucket) != len(reply.node_index):
            raise ClientError("the aggregator's answer has columns of several lengths", False)
        if reply.degraded:
            return None
        pairs = zip(reply.node_index, reply.bucket, strict=True)
        return {names[index]: bucket for index, bucket in pairs if index < len(names)}

    def plan_recovery(
        self, request: recovery_pb2.PlanRecoveryRequest, seconds_max: float
    ) -> PendingPlan:
        """Request a recovery plan without waiting for the answer."""
        return PendingPlan(self._recoveries.PlanRecovery.future(request, timeout=seconds_max))

    def report_recovery(self, request: recovery_pb2.ReportRecoveryRequest) -> None:
        """Report the outcome of a recovery. Raises ClientError."""
        self._ask(self._recoveries.ReportRecovery, request)

    def _ask(
        self, method: Callable[..., Any], request: Any, seconds_max: float = CALL_SECONDS
    ) -> Any:
        try:
            return method(request, timeout=seconds_max)
        except grpc.RpcError as error:
            call: Any = error
            raise ClientError(
                f"{call.code().name}: {call.details()}", call.code() in LATER
            ) from error


def _name(kind: Any, number: int) -> str:
    """Return the name of an enumerated value; UNKNOWN_<number> for a value of a newer aggregator."""
    try:
        return str(kind.Name(number))
    except ValueError:
        return f"UNKNOWN_{number}"
