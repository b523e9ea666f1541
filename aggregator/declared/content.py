"""What files hold, as they are read one after another; `reading` makes one `Declared` of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from .model import Expected, Override, Place, Window
from .problems import Where
from .rollout import Rollout


@dataclass(slots=True)
class Content:
    """What one or more files hold."""

    #: (host, its place, where it is said)
    places: list[tuple[str, Place, Where]] = field(default_factory=list[tuple[str, Place, Where]])
    expectations: list[Expected] = field(default_factory=list[Expected])
    windows: list[Window] = field(default_factory=list[Window])
    overrides: list[Override] = field(default_factory=list[Override])
    thresholds: dict[str, tuple[float, Where]] = field(
        default_factory=dict[str, tuple[float, Where]]
    )
    rollouts: dict[str, Rollout] = field(default_factory=dict[str, Rollout])
