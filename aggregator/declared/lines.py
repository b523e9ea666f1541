"""On which line of a TOML text something stands, for words: tomllib does not tell."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TABLE = re.compile(r"\s*\[(\[?)\s*([A-Za-z0-9_.\"' -]+?)\s*\]{1,2}\s*(?:#.*)?$")
_KEY = re.compile(r"\s*(?:\"([^\"]*)\"|'([^']*)'|([A-Za-z0-9_.-]+))\s*=")
_QUOTES = ('"""', "'''")


class Lines:
    """Where each table begins and each key of it stands. Best effort: a wrong guess costs only a line number."""

    def __init__(self, text: str) -> None:
        self._tables: dict[tuple[str, int], int] = {}
        self._keys: dict[tuple[str, int, str], int] = {}
        counts: dict[str, int] = {}
        table, ordinal = "", 0
        for number, line in _outside_of_strings(text):
            if found := _TABLE.match(line):
                table = found[2].strip("\"'")
                ordinal = counts.get(table, 0)
                counts[table] = ordinal + 1
                self._tables.setdefault((table, ordinal), number)
            elif found := _KEY.match(line):
                key = found[1] or found[2] or found[3] or ""
                self._keys.setdefault((table, ordinal, key), number)

    def of(self, table: str, ordinal: int = 0, key: str = "") -> int:
        """Return the line of *key* in the table's *ordinal*th (from 0) coming, else of the table; 0: not found."""
        return self._keys.get((table, ordinal, key), self._tables.get((table, ordinal), 0))


def _outside_of_strings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers, but for those within texts of several lines."""
    closing = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not closing:
            yield number, line
        for quote in _QUOTES:
            if closing in ("", quote) and line.count(quote) % 2:
                closing = "" if closing else quote
                break
