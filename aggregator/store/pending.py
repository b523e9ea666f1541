"""What waits for the next commit."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass, field

from ..verdicts import Finding
from .journal import StoredEvent
from .records import HostRecord, OwnReading, ScoreOf
from .rows import Foreign, HostFrame

OnDurable = Callable[[int], None]


@dataclass(slots=True)
class Pending:
    """What waits for the next commit."""

    frames: list[tuple[HostFrame, OnDurable]] = field(
        default_factory=list[tuple[HostFrame, OnDurable]]
    )
    rows: int = 0
    size_bytes: int = 0
    events: list[StoredEvent] = field(default_factory=list[StoredEvent])
    journal_position: int = 0
    hosts: dict[str, HostRecord] = field(default_factory=dict[str, HostRecord])
    foreign: dict[int, Foreign] = field(default_factory=dict[int, Foreign])
    scores: list[ScoreOf] = field(default_factory=list[ScoreOf])
    findings: dict[tuple[str, str, str, int], Finding] = field(
        default_factory=dict[tuple[str, str, str, int], Finding]
    )
    own: list[OwnReading] = field(default_factory=list[OwnReading])
    #: When the first of `frames` came, by the monotonic clock.
    first_seconds: float = 0.0

    @property
    def empty(self) -> bool:
        """Whether there is nothing to commit."""
        several = (self.frames, self.events, self.hosts, self.foreign, self.scores, self.findings)
        return not any(several) and not self.own

    @property
    def words(self) -> str:
        """What it is, and of whom."""
        several: dict[str, Sized] = {
            "frames": self.frames, "events": self.events, "registrations": self.hosts,
            "scores": self.scores, "findings": self.findings, "signals": self.foreign,
            "readings of ourselves": self.own,
        }  # fmt: skip
        counts = ", ".join(f"{len(some)} {name}" for name, some in several.items() if some)
        hosts = {frame.host for frame, _ in self.frames} | {event.host for event in self.events}
        return f"{counts} of {', '.join(sorted(hosts | self.hosts.keys())) or 'no one host'}"

    def parts(self) -> list[Pending]:
        """Return it split: what is of one host together, then what is of none."""
        parts: dict[str, Pending] = {}
        for frame in self.frames:
            part = parts.setdefault(frame[0].host, Pending())
            part.frames.append(frame)
            part.rows += frame[0].frame.rows
        for event in self.events:
            parts.setdefault(event.host, Pending()).events.append(event)
        for host, record in self.hosts.items():
            parts.setdefault(host, Pending()).hosts[host] = record
        rest = Pending(
            foreign=self.foreign, scores=self.scores, findings=self.findings, own=self.own
        )
        return [*parts.values(), *([] if rest.empty else [rest])]
