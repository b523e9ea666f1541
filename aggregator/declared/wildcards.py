"""Patterns with `*`, `?` and `[..]` for names that are no hosts': rules, devices, models, versions."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from functools import lru_cache

from .limits import PIECES_MAX

_WILD = re.compile(r"[*?\[]")


def fits(text: str, pattern: str) -> bool:
    """Say whether *text* fits, as `fnmatchcase` does; that one compiles anew where there are more than 256 patterns."""
    return _compiled(pattern)(text) is not None if pieces(pattern) else text == pattern


@lru_cache(maxsize=4 * PIECES_MAX)
def pieces(pattern: str) -> int:
    """Return how many wildcards *pattern* has; 0: it is one name."""
    return len(_WILD.findall(pattern))


@lru_cache(maxsize=2 * PIECES_MAX)
def _compiled(pattern: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(translate(pattern)).match
