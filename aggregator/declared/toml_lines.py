"""Line numbers of the tables and keys of a TOML file, for messages."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TABLE = re.compile(r"\s*\[(\[?)\s*([A-Za-z0-9_.\"' -]+?)\s*\]{1,2}\s*(?:#.*)?$")
_KEY = re.compile(r"\s*(?:\"([^\"]*)\"|'([^']*)'|([A-Za-z0-9_.-]+))\s*=")
_QUOTES = ('"""', "'''")


class LineIndex:
    """The lines of tables and of their keys, for messages: tomllib does not report lines.

    This is a best guess; a wrong guess only puts a wrong line number in a message.
    """

    def __init__(self, text: str) -> None:
        self._tables: dict[tuple[str, int], int] = {}
        self._keys: dict[tuple[str, int, str], int] = {}
        counts: dict[str, int] = {}
        table, ordinal = "", 0
        for number, line in _outside_of_strings(text):
            if match := _TABLE.match(line):
                table = match[2].strip("\"'")
                ordinal = counts.get(table, 0)
                counts[table] = ordinal + 1
                self._tables.setdefault((table, ordinal), number)
            elif match := _KEY.match(line):
                key = match[1] or match[2] or match[3] or ""
                self._keys.setdefault((table, ordinal, key), number)

    def line(self, table: str, ordinal: int = 0, key: str = "") -> int:
        """Return the line of *key* in the *ordinal*th table (from 0), else the table's; 0: none."""
        return self._keys.get((table, ordinal, key), self._tables.get((table, ordinal), 0))


def _outside_of_strings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines outside of multi-line strings."""
    closing = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not closing:
            yield number, line
        for quote in _QUOTES:
            if closing in ("", quote) and line.count(quote) % 2:
                closing = "" if closing else quote
                break
