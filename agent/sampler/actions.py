"""What the supervisor has done: the facade carries it out, a test compares it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .codec import Task

What = Literal["hung", "slow", "answers", "driver_hung", "driver_answers"]


@dataclass(frozen=True, slots=True)
class Fork:
    """Have a sampler forked; from now on it is known by this number."""

    serial: int


@dataclass(frozen=True, slots=True)
class Warm:
    """Have a standby make ready."""

    serial: int


@dataclass(frozen=True, slots=True)
class Give:
    """Give a sampler its task, or another one."""

    serial: int
    task: Task


@dataclass(frozen=True, slots=True)
class End:
    """Ask a sampler to end."""

    serial: int


@dataclass(frozen=True, slots=True)
class Kill:
    """End a sampler by SIGKILL, as far as that goes."""

    serial: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell an operator."""

    what: What
    lane: str
    device: str
    collector: str
    call: str
    seconds: float
    words: str


Action = Fork | Warm | Give | End | Kill | Tell
