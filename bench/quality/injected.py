"""The section "Injected": real agents and a real aggregator, with faults at the hardware boundary."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from .injected_faults import KINDS, InjectedKind
from .injected_hosts import MEMORY, folder, prepare
from .injected_stage import APART_SECONDS, LISTED_SECONDS, POLL_SECONDS, InjectedHost, Stage
from .markdown import counted, table
from .progress import Progress

#: Number of fleets, and how many run at once: a host takes about 40 MB of memory.
ROUNDS, AT_ONCE = 5, 3
#: A narrow link is named last, after 26 s under load: link and load are read every 10 s.
WATCH_SECONDS = 42.0 + APART_SECONDS
#: After the aggregator was killed and answers again, each host must keep its state for this long.
RESTART_SECONDS = 12.0

METHOD = """\
Real parts are the agent's daemon with its samplers, the aggregator, sockets, spools, the store and the API.

**The hardware is fake, and the fault is injected there.** A host is a folder with /sys, /proc and /dev of an H100 host (8 GPUs,
4 InfiniBand ports, at work). NVML is a stand-in, and the kernel log is a FIFO. A network cut is a relay that goes silent.
A wrong clock is an LD_PRELOADed `clock_gettime`.

Each row has its own host in a fleet of {hosts}, all at once under one aggregator. The settings are the defaults, except
those for a full disk and for the number of hosts out of service. {rounds} rounds use fresh fleets; seed {seed} draws host, GPU,
port and call. Each host is watched for {watch:.0f} s through `ScoreService`, which is polled every {look:g} s.

- *Named* means this host, this device, and a correct state and reason.
- A host that an answer lacks counts as a finding against it.
- Delays are from the injection to the answer of the API.
- Intervals (90 %) are Wilson's: {rounds} rounds are few.
"""
ALONE = "`python -m bench.quality --only injected` makes this section alone.\n"

FAULTS_HEAD = (
    "injected | where | named [90 %] | as | seconds, median | max | other findings of the host"
)
CONTROLS_HEAD = ("control", "where", "named [90 %]", "as what")


def section(seed: int, progress: Progress) -> str:
    """Return the section in Markdown. Raises every error: no round is left out."""
    return page(rounds(KINDS, seed, ROUNDS, progress), seed)


class RoundResult(NamedTuple):
    """The hosts of a round; the number of API requests, and of those not answered in time."""

    subjects: Sequence[InjectedHost]
    requests: int
    unanswered: int


def rounds(
    kinds: Sequence[InjectedKind], seed: int, count: int, progress: Progress
) -> list[RoundResult]:
    """Play *count* rounds."""
    result: list[RoundResult] = []
    progress("injected faults", 0.0)
    prepare()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        playing = [pool.submit(round_of, kinds, seed * 1000 + number) for number in range(count)]
        try:
            for done, future in enumerate(playing, 1):
                result.append(future.result())
                progress(f"injected faults, {done} of {count} rounds", done / count)
        finally:
            # After an error start no further round: the page will not be written.
            pool.shutdown(wait=False, cancel_futures=True)
    return result


def round_of(kinds: Sequence[InjectedKind], seed: int) -> RoundResult:
    """Play *kinds* at once, each on its own host; restart the aggregator, and check again."""
    with folder() as disk, folder(MEMORY) as memory, Stage(disk, memory, kinds, seed) as stage:
        stage.open()
        stage.settle()
        stage.play(WATCH_SECONDS)
        stage.ask_advice()
        stage.restart(RESTART_SECONDS)
        return RoundResult(stage.subjects, stage.requests, stage.unanswered)


def page(played: Sequence[RoundResult], seed: int) -> str:
    subjects = [subject for result in played for subject in result.subjects]
    by_kind: dict[str, list[InjectedHost]] = {}
    for each in subjects:
        by_kind.setdefault(each.kind.name, []).append(each)
    groups = list(by_kind.values())
    method = METHOD.format(
        hosts=len(groups), rounds=len(played), seed=seed, watch=WATCH_SECONDS, look=POLL_SECONDS
    )
    faults = table(FAULTS_HEAD, [_fault(g) for g in groups if not g[0].kind.is_control])
    controls = table(CONTROLS_HEAD, [_control(g) for g in groups if g[0].kind.is_control])
    return "\n".join((
        "## Injected\n", method, ALONE, f"{faults}\n",
        "Negative controls: no finding may name these hosts.\n", f"{controls}\n",
        _advice(subjects), _restarts(subjects), _answers(played),
    ))  # fmt: skip


def _fault(group: Sequence[InjectedHost]) -> list[str]:
    kind = group[0].kind
    delays = sorted(subject.named_seconds for subject in group if subject.named_seconds is not None)
    named = Counter(f"{subject.named.name}, {subject.named_for.name}" for subject in group if subject.named_seconds is not None)  # fmt: skip
    text = "; ".join(named) + ("" if kind.is_lasting else f"; then {_over(group)}")
    middle, maximum = (
        (f"{statistics.median(delays):.1f}", f"{delays[-1]:.1f}") if delays else ("", "")
    )
    return [
        kind.name, kind.boundary, counted(len(delays), len(group)), text, middle, maximum, _others(group),
    ]  # fmt: skip


def _over(group: Sequence[InjectedHost]) -> str:
    ends = Counter(subject.played.name for subject in group)
    return ", ".join(f"{name} ({count} of {len(group)})" for name, count in ends.items())


def _control(group: Sequence[InjectedHost]) -> list[str]:
    kind, wrong = group[0].kind, sum(bool(subject.others) for subject in group)
    return [kind.name, kind.boundary, counted(wrong, len(group)), _others(group)]


def _others(group: Sequence[InjectedHost]) -> str:
    counts = Counter(
        name for subject in group for name in {other.name for other in subject.others.values()}
    )
    return (
        "; ".join(f"{name} ({count} of {len(group)})" for name, count in counts.items())
        or "nothing"
    )


def _advice(subjects: Sequence[InjectedHost]) -> str:
    right = Counter(action for s in subjects if not s.kind.is_control for action in s.advised)
    wrong = counted(
        sum(bool(s.advised) for s in subjects if s.kind.is_control),
        sum(s.kind.is_control for s in subjects),
    )
    actions = ", ".join(f"{name} {count}" for name, count in sorted(right.items())) or "none"
    return (
        f"Advice proposed meanwhile: {actions} about hosts with a fault; about controls, {wrong}. The limit of hosts out of service is off, "
        "because it would be one host in so small a fleet.\n"
    )


def _restarts(subjects: Sequence[InjectedHost]) -> str:
    """Return the changes by a restart of the aggregator: of lasting faults, and of healthy hosts."""
    lasting = [s for s in subjects if s.named_seconds is not None and s.kind.is_lasting]
    healthy = [s for s in subjects if s.kind.is_control]
    changed = [s for s in subjects if s.changed and (s in lasting or s in healthy)]
    lost = counted(sum(s in lasting for s in changed), len(lasting))
    false = counted(sum(s in healthy for s in changed), len(healthy))
    texts = [
        f"Then the aggregator is killed (-9) and started again. Each host is watched for {RESTART_SECONDS:.0f} s from its first answer. A fault that is named only then",
        f"counts as not named. Of the lasting faults, {lost} changed state or reason, or were not listed {LISTED_SECONDS:.0f} s after that answer; of the controls, {false}.",
    ]
    texts += [""] if changed else []
    texts += [f"- {s.kind.name}: {', '.join(s.changed)}" for s in changed]
    return "\n".join(texts) + "\n"


def _answers(played: Sequence[RoundResult]) -> str:
    """Return how often the API did not answer: its answer at these times is unknown."""
    requests, unanswered = (
        sum(result.requests for result in played),
        sum(result.unanswered for result in played),
    )
    return f"Of {requests:,} requests to the API {unanswered:,} were not answered within 5 s.\n"
