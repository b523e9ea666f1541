"""One column of what the model of hazard looks at, and how it is told to a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Feature(NamedTuple):
    """One column."""

    name: str
    unit: str
    normal: str  # what is normal, in words
    tells: str
    words: str  # of one host, for a person; {shown} is `shown` of the value
    shown: Callable[[float], float] = float

    def said(self, value: float) -> str:
        """Return *value* of a host in words."""
        return self.words.format(shown=self.shown(value))
