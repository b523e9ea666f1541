"""A fleet with one fault or look-alike per host under one real aggregator, and what its API reports when."""

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
from gangline.aggregator.commands.connection import CommandError
from gangline.aggregator.commands.score_client import ScoreClient
from gangline.aggregator.model import HealthState, Reason
from gangline.contract.wire import advisory_pb2
from gangline.contract.wire.advisory_pb2_grpc import AdvisoryServiceStub
from gangline.contract.wire.score_pb2 import Contribution, NodeScore
from tests.processes import GUARD_SECONDS, Process, free_port, listening, until

#: How often the API is asked: delays are told to this.
POLL_SECONDS = 0.2
#: Injections begin within so long of each other: each meets what comes every ten seconds at a moment of its own.
APART_SECONDS = 5.0
#: A listing that lacks a host is held against it. An aggregator that was started again has so long from its first answer:
#: hosts that are not on its record it knows as they register again, one after the other.
LISTED_SECONDS = 5.0
NOT_LISTED = "not listed"
#: Advice as if no host were out: of a fleet so small one may be at a time, and the first fault would keep back what is
#: wrongly advised about all others.
UNLIMITED = {
    "advice_rack_hosts_max": 10_000,
    "advice_job_hosts_max": 10_000,
    "advice_cluster_share_max": 1,
}
#: States in which nothing is held against a host.
CALM = (HealthState.HEALTHY, HealthState.UNKNOWN)
#: Before these have reported well nothing is known of a host's past: what is injected then was always so.
READ_FIRST = ("gpu_1s", "gpu_10s", "rdma_1s", "net_1s", "pcie_10s")


class NamedHost(NamedTuple):
    """Something that is held against a host."""

    reason: Reason
    device: str
    message: str

    @property
    def name(self) -> str:
        """Its reason; of a host that is not listed there is none."""
        return self.reason.name if self.reason is not Reason.NONE else self.message


@dataclass(eq=False)
class InjectedHost:
    """A host, what is done to it, and what came of it."""

    kind: InjectedKind
    host: InjectedHostFolder
    act: Act
    due: float  # of the next of its acts, monotonic; inf: no further one. Until it plays: a share of what lies between
    began: float = 0.0  # 0: not yet
    named_seconds: float | None = None
    state: HealthState = HealthState.UNKNOWN  # as last seen
    played: HealthState = HealthState.UNKNOWN  # as last seen before the aggregator was killed
    reason: Reason = Reason.NONE
    named: HealthState = HealthState.UNKNOWN  # in which state it was named,
    named_for: Reason = Reason.NONE  # for which reason,
    message: str = ""  # and in which words
    others: dict[tuple[Reason, str], NamedHost] = field(default_factory=dict)
    advised: list[str] = field(default_factory=list)  # actions that were proposed
    changed: list[str] = field(default_factory=list)  # after a restart of the aggregator

    @property
    def is_lasting(self) -> str:
        """Its state and reason, as last seen."""
        return f"{self.state.name} for {self.reason.name}"

    def change(self, message: str) -> None:
        """Note that it is another than before the restart, each way once."""
        if message not in self.changed:
            self.changed.append(message)

    def is_about(self, device: str) -> bool:
        """Return whether *device* is the one that was made sick; of a host as a whole any is."""
        names = self.kind.about(self.host)
        return not names or device in names


def not_listed(subject: InjectedHost) -> None:
    """Hold it against a host that the API answered without it: what is not shown cannot be well."""
    subject.others.setdefault((Reason.NONE, ""), NamedHost(Reason.NONE, "", NOT_LISTED))


def not_yet(_: InjectedHost) -> None:
    """A restarted aggregator may list it still."""


def forgotten(subject: InjectedHost) -> None:
    """A restarted aggregator has had its time to list it."""
    subject.change(NOT_LISTED)


class Stage:
    """The fleet. Within its context: `open`, `settle`, `play` as long as wanted, `restart`."""

    def __init__(
        self, disk: Path, memory: Path, kinds: Sequence[InjectedKind], seed: int, **settings: object
    ) -> None:
        """*disk*: an empty folder for the aggregator. *memory*: one for the hosts, whose /sys is on no disk either.

        *settings*: of the aggregator.
        """
        source = random.Random(seed)
        self.port = free_port()
        self._address = f"127.0.0.1:{self.port}"
        given = {"disk_free_share_min": 0} | UNLIMITED | settings
        options = [w for k, v in given.items() for w in ("--set", f"{k}={v}")]
        arguments = [
            "aggregator",
            "--data",
            str(disk / "data"),
            "--listen",
            self._address,
            *options,
        ]
        self.aggregator = Process(arguments, disk / "log")
        order = source.sample(range(len(kinds)), len(kinds))
        self.subjects = [
            self._subject(memory, kind, number, source)
            for kind, number in zip(kinds, order, strict=True)
        ]
        self._client = ScoreClient(self._address)
        self._watched_until = 0.0  # monotonic
        #: How often the API was asked of all hosts, and did not answer within the client's 5 s.
        self.requests = self.unanswered = 0
        self._left = ExitStack()  # what must be ended

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
        """Return what the API says of all hosts now. Raises CommandError where it does not respond."""
        return self._client.hosts(full=True).scores

    def settle(self, sources: Iterable[str] = READ_FIRST) -> None:
        """Return when every host is HEALTHY, and was read by these collectors."""
        wanted = set(sources)

        def settled() -> bool:
            scores = self._request() or []
            return len(scores) == len(self.subjects) and all(
                HealthState(score.state) is HealthState.HEALTHY
                and wanted <= {each.source for each in score.sources if each.outcome == "ok"}
                for score in scores
            )

        self.until_answered()
        until(settled, "every host is HEALTHY and read", GUARD_SECONDS * 2)

    def until_answered(self) -> None:
        """Return once the API answers, and knows of a host."""

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
        """Do what is done to the hosts, and look at the API, for this long, or until *done*. Once."""
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
        """Ask the API once, and note what it says; of a host that its answer lacks, by *unlisted*."""
        scores = self._request()
        if scores is None:
            return
        now = time.monotonic()
        left = {f"nodes/{each.host.name}": each for each in self.subjects}
        for score in scores:
            note(left.pop(score.node), score, now, is_watched=now <= self._watched_until)
        for each in left.values():
            unlisted(each)

    def _request(self) -> list[NodeScore] | None:
        """Return the listing; None where it is not answered, which is counted: it is a result, too."""
        self.requests += 1
        try:
            return self.listing()
        except CommandError:
            self.unanswered += 1
            return None

    def ask_advice(self) -> None:
        """Note which advice was proposed about whom, open or ended."""
        at = {f"nodes/{each.host.name}": each for each in self.subjects}
        with grpc.insecure_channel(self._address) as channel:
            stub: Any = AdvisoryServiceStub(channel)  # type: ignore[no-untyped-call]
            request = advisory_pb2.ListAdvisoriesRequest(page_size=1000, show_ended=True)
            for advisory in stub.ListAdvisories(request, timeout=GUARD_SECONDS).advisories:
                for node in advisory.nodes:
                    at[node].advised.append(advisory_pb2.Action.Name(advisory.action))

    def restart(self, seconds: float) -> None:
        """Kill the aggregator and start it again; note of each host whether it stands as before, for this long."""
        before = {each.host.name: each.is_lasting for each in self.subjects}
        for each in self.subjects:
            each.played = each.state
        self.aggregator.kill()
        self.aggregator.start()
        self.until_answered()
        began = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            self.poll(forgotten if now >= began + LISTED_SECONDS else not_yet)
            for each in self.subjects:
                if each.is_lasting != before[each.host.name]:
                    each.change(each.is_lasting)
            time.sleep(POLL_SECONDS)


def note(subject: InjectedHost, score: NodeScore, now: float, *, is_watched: bool) -> None:
    """Take note of what the API says of a host. What is right is found while it *is_watched*, and not later."""
    kind = subject.kind
    subject.state, subject.reason = HealthState(score.state), Reason(score.reason)
    right = []
    for each in named_hosts(score):
        if subject.began and each.reason in kind.reasons and subject.is_about(each.device):
            right.append(each)
        else:
            subject.others.setdefault((each.reason, each.device), each)
    is_expected = subject.state in kind.states and subject.reason in kind.reasons
    if is_watched and right and is_expected and subject.named_seconds is None:
        subject.named_seconds = now - subject.began
        subject.named, subject.named_for = subject.state, subject.reason
        subject.message = score.reason_words


def named_hosts(score: NodeScore) -> list[NamedHost]:
    """Return what counts against a host, or is said to: blindness that costs nothing is not."""
    found = [
        NamedHost(Reason(each.reason), each.device, each.words)
        for each in score.contributions
        if _costs(each) or Reason(each.reason) is not Reason.BLIND
    ]
    if HealthState(score.state) not in CALM and not found:
        found.append(NamedHost(Reason(score.reason), "", score.reason_words))
    return [each for each in found if each.reason is not Reason.NONE]


def _costs(each: Contribution) -> bool:
    return each.log_hazard_delta > 0 or each.relative_speed_factor < 1
