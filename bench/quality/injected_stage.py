"""A fleet with one fault or look-alike per host under one real aggregator, and when its API reports
which of them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import grpc

from bench.quality.injected_faults import Act, InjectedKind
from bench.quality.injected_hosts import InjectedHostFolder
from gangline.aggregator.model import HealthState, Reason
from gangline.contract.client.connection import CommandError
from gangline.contract.client.score_client import ScoreClient
from gangline.contract.wire import advisory_pb2
from gangline.contract.wire.advisory_pb2_grpc import AdvisoryServiceStub
from gangline.contract.wire.score_pb2 import Contribution, NodeScore
from tests.processes import GUARD_SECONDS, Process, free_port, listening, until

#: Interval between API requests, and so the resolution of delays.
POLL_SECONDS = 0.2
#: Injections are spread over this time: each meets the ten-second collectors at another moment.
APART_SECONDS = 5.0
#: A restarted aggregator lists all hosts within this time: they register one after another.
LISTED_SECONDS = 5.0
NOT_LISTED = "not listed"
#: No limits of advice: in a small fleet one host may be out at a time, so the first fault would
#: hide wrong advice about other hosts.
UNLIMITED = {
    "advice_rack_hosts_max": 10_000,
    "advice_job_hosts_max": 10_000,
    "advice_cluster_share_max": 1,
}
#: States without findings.
CALM = (HealthState.HEALTHY, HealthState.UNKNOWN)
#: Until these have reported, an injected fault would count as the host's normal state.
READ_FIRST = ("gpu_1s", "gpu_10s", "rdma_1s", "net_1s", "pcie_10s")


class NamedHost(NamedTuple):
    """A finding about a host."""

    reason: Reason
    device: str
    message: str

    @property
    def name(self) -> str:
        """Return its reason; its message if the host is not listed."""
        return self.reason.name if self.reason is not Reason.NONE else self.message


@dataclass(eq=False)
class InjectedHost:
    """A host, its actions, and its results."""

    kind: InjectedKind
    host: InjectedHostFolder
    act: Act
    # time of the next action, monotonic; inf: none. Before `play`: a share of the spread
    due: float
    began: float = 0.0  # 0: not yet
    named_seconds: float | None = None
    state: HealthState = HealthState.UNKNOWN  # as last seen
    played: HealthState = HealthState.UNKNOWN  # last state before the aggregator was killed
    reason: Reason = Reason.NONE
    named: HealthState = HealthState.UNKNOWN  # state in which the fault was named
    named_for: Reason = Reason.NONE  # and its reason
    message: str = ""  # and its message
    others: dict[tuple[Reason, str], NamedHost] = field(default_factory=dict)
    advised: list[str] = field(default_factory=list)  # proposed actions
    changed: list[str] = field(default_factory=list)  # after a restart of the aggregator

    @property
    def is_lasting(self) -> str:
        """Return its last state and reason."""
        return f"{self.state.name} for {self.reason.name}"

    def change(self, message: str) -> None:
        """Record a difference to the state before the restart, each once."""
        if message not in self.changed:
            self.changed.append(message)

    def is_about(self, device: str) -> bool:
        """Return whether *device* is the faulty device; any device, if the whole host is faulty."""
        names = self.kind.about(self.host)
        return not names or device in names


def not_listed(subject: InjectedHost) -> None:
    """Record a host missing from the API's answer: it cannot be shown as healthy."""
    subject.others.setdefault((Reason.NONE, ""), NamedHost(Reason.NONE, "", NOT_LISTED))


def not_yet(_: InjectedHost) -> None:
    """Accept a missing host: a restarted aggregator may list it later."""


def forgotten(subject: InjectedHost) -> None:
    """Record a missing host, LISTED_SECONDS after the restart."""
    subject.change(NOT_LISTED)


class Stage:
    """The fleet. Within its context: `open`, `settle`, `play` for any time, `restart`."""

    def __init__(
        self, disk: Path, memory: Path, kinds: Sequence[InjectedKind], seed: int, **settings: object
    ) -> None:
        """Create it. *disk*: an empty folder for the aggregator. *memory*: a folder for the hosts,
        in memory like a real /sys.

        *settings*: of the aggregator.
        """
        source = random.Random(seed)
        self.port = free_port()
        self._address = f"127.0.0.1:{self.port}"
        given = {"disk_free_share_min": 0} | UNLIMITED | settings
        options = [w for k, v in given.items() for w in ("--set", f"{k}={v}")]
        data = ("--data", str(disk / "data"), "--listen", self._address)
        self.aggregator = Process(["aggregator", *data, *options], disk / "log")
        order = source.sample(range(len(kinds)), len(kinds))
        self.subjects = [
            self._subject(memory, kind, number, source)
            for kind, number in zip(kinds, order, strict=True)
        ]
        self._client = ScoreClient(self._address)
        self._watched_until = 0.0  # monotonic
        #: Number of API requests about all hosts, and of those unanswered within the client's 5 s.
        self.requests = self.unanswered = 0
        self._left = ExitStack()  # cleanups

    def _subject(
        self, place: Path, kind: InjectedKind, number: int, source: random.Random
    ) -> InjectedHost:
        name = f"gpu-{number:03}"
        host = InjectedHostFolder(place / name, name, self.port, source)
        act = kind.act(host)
        next(act)
        return InjectedHost(kind, host, act, source.random())

    def open(self, **settings: object) -> None:
        """Start the aggregator and all agents. *settings*: of the agents."""
        self._left.callback(self.aggregator.kill)
        self.aggregator.start()
        until(lambda: listening(self.port), f"the aggregator listens; see {self.aggregator.log}")
        for subject in self.subjects:
            subject.host.start(**settings)
            self._left.callback(subject.host.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._left.close()

    def listing(self) -> list[NodeScore]:
        """Return the API's scores of all hosts. Raises CommandError if it does not respond."""
        return self._client.hosts(full=True).scores

    def settle(self, sources: Iterable[str] = READ_FIRST) -> None:
        """Wait until every host is HEALTHY and has readings of these collectors."""
        wanted = set(sources)

        def settled() -> bool:
            scores = self._request() or []
            return len(scores) == len(self.subjects) and all(
                HealthState(score.state) is HealthState.HEALTHY
                and wanted <= {source.source for source in score.sources if source.outcome == "ok"}
                for score in scores
            )

        self.until_answered()
        until(settled, "every host is HEALTHY and read", GUARD_SECONDS * 2)

    def until_answered(self) -> None:
        """Wait until the API answers and lists a host."""

        def answers() -> bool:
            try:
                return bool(self.listing())
            except CommandError:
                return False

        until(answers, f"the aggregator knows of hosts; see {self.aggregator.log}")

    def play(
        self,
        seconds: float,
        done: Callable[[], bool] = lambda: False,
        apart_seconds: float = APART_SECONDS,
    ) -> None:
        """Run the actions and poll the API for *seconds*, or until *done*. Call this once."""
        began = time.monotonic()
        end = self._watched_until = began + seconds
        for subject in self.subjects:
            subject.due = began + subject.due * apart_seconds
        while (now := time.monotonic()) < end and not done():
            for subject in self.subjects:
                if now >= subject.due:
                    self._act(subject)
            self.poll()
            time.sleep(max(0.0, min(now + POLL_SECONDS, end) - time.monotonic()))
        self._watched_until = 0.0

    @staticmethod
    def _act(subject: InjectedHost) -> None:
        began = time.monotonic()
        subject.began = subject.began or began
        seconds = next(subject.act, None)
        subject.due = float("inf") if seconds is None else began + seconds

    def poll(self, unlisted: Callable[[InjectedHost], None] = not_listed) -> None:
        """Ask the API once and record the answer; call *unlisted* for each host missing from it."""
        scores = self._request()
        if scores is None:
            return
        now = time.monotonic()
        left = {f"nodes/{subject.host.name}": subject for subject in self.subjects}
        for score in scores:
            note(left.pop(score.node), score, now, is_watched=now <= self._watched_until)
        for finding in left.values():
            unlisted(finding)

    def _request(self) -> list[NodeScore] | None:
        """Return the listing; None without an answer, which is counted because it is a result, too."""
        self.requests += 1
        try:
            return self.listing()
        except CommandError:
            self.unanswered += 1
            return None

    def ask_advice(self) -> None:
        """Record the proposed advice per host, open or ended."""
        at = {f"nodes/{subject.host.name}": subject for subject in self.subjects}
        with grpc.insecure_channel(self._address) as channel:
            stub: Any = AdvisoryServiceStub(channel)  # type: ignore[no-untyped-call]
            request = advisory_pb2.ListAdvisoriesRequest(page_size=1000, show_ended=True)
            for advisory in stub.ListAdvisories(request, timeout=GUARD_SECONDS).advisories:
                for node in advisory.nodes:
                    at[node].advised.append(advisory_pb2.Action.Name(advisory.action))

    def restart(self, seconds: float) -> None:
        """Restart the aggregator; record for *seconds* whether each host keeps its state."""
        before = {subject.host.name: subject.is_lasting for subject in self.subjects}
        for subject in self.subjects:
            subject.played = subject.state
        self.aggregator.kill()
        self.aggregator.start()
        self.until_answered()
        began = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            self.poll(forgotten if now >= began + LISTED_SECONDS else not_yet)
            for subject in self.subjects:
                if subject.is_lasting != before[subject.host.name]:
                    subject.change(subject.is_lasting)
            time.sleep(POLL_SECONDS)


def note(subject: InjectedHost, score: NodeScore, now: float, *, is_watched: bool) -> None:
    """Record the API's score of a host. The expected finding counts only while it *is_watched*."""
    kind = subject.kind
    subject.state, subject.reason = HealthState(score.state), Reason(score.reason)
    right = []
    for finding in named_hosts(score):
        if subject.began and finding.reason in kind.reasons and subject.is_about(finding.device):
            right.append(finding)
        else:
            subject.others.setdefault((finding.reason, finding.device), finding)
    is_expected = subject.state in kind.states and subject.reason in kind.reasons
    if is_watched and right and is_expected and subject.named_seconds is None:
        subject.named_seconds = now - subject.began
        subject.named, subject.named_for = subject.state, subject.reason
        subject.message = score.reason_message


def named_hosts(score: NodeScore) -> list[NamedHost]:
    """Return the findings against a host: blindness that costs nothing does not count."""
    result = [
        NamedHost(Reason(contribution.reason), contribution.device, contribution.message)
        for contribution in score.contributions
        if _costs(contribution) or Reason(contribution.reason) is not Reason.BLIND
    ]
    if HealthState(score.state) not in CALM and not result:
        result.append(NamedHost(Reason(score.reason), "", score.reason_message))
    return [finding for finding in result if finding.reason is not Reason.NONE]


def _costs(each: Contribution) -> bool:
    return each.log_hazard_delta > 0 or each.relative_speed_factor < 1
