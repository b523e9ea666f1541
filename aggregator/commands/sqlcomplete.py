"""What the prompt offers on Tab: names of the snapshot, and words of SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

#: All names in one question: what it is, and the name.
NAMES = """
SELECT 'macro', schema_name || '.' || function_name || '(' FROM duckdb_functions() WHERE schema_name IN ('ops', 'history')
UNION ALL SELECT 'view', schema_name || '.' || view_name FROM duckdb_views() WHERE NOT internal
UNION ALL SELECT 'table', if(schema_name = 'main', '', schema_name || '.') || table_name FROM duckdb_tables()
UNION ALL SELECT DISTINCT 'column', column_name FROM duckdb_columns() WHERE NOT internal
"""
_OFTEN_USED = (
    "SELECT FROM WHERE GROUP BY ORDER HAVING QUALIFY WINDOW PARTITION LIMIT OFFSET JOIN LEFT RIGHT FULL "
    "OUTER INNER CROSS ASOF LATERAL USING ON AS AND OR NOT IN IS NULL LIKE ILIKE BETWEEN CASE WHEN THEN "
    "ELSE END DISTINCT UNION ALL EXCEPT INTERSECT WITH RECURSIVE VALUES EXPLAIN ANALYZE DESCRIBE "
    "SUMMARIZE SHOW TABLES PIVOT UNPIVOT ASC DESC NULLS FIRST LAST INTERVAL TIMESTAMP FILTER OVER EXCLUDE "
    "REPLACE COLUMNS SAMPLE CAST count sum avg min max now list first arg_max arg_min time_bucket "
    "date_trunc lag lead row_number quantile_cont"
)
WORDS = tuple(_OFTEN_USED.split())
COMMANDS = ("\\d", "\\x", "\\rows", "\\timeout", "\\q", "\\?")
_TYPED = re.compile(r"[\\\w.]+$")
#: After these a table is meant.
_TABLE_NEXT = re.compile(r"\b(FROM|JOIN|DESCRIBE|SUMMARIZE|SHOW|\\d)\s+$", re.IGNORECASE)


class Names(Completer):
    """Offers *names*, (what it is, name) each."""

    def __init__(self, names: Sequence[tuple[str, str]] = ()) -> None:
        self.names = names

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Yield what continues the word before the cursor."""
        before = document.text_before_cursor
        match = _TYPED.search(before)
        typed = match[0] if match else ""
        tables_only = bool(_TABLE_NEXT.search(before[: len(before) - len(typed)]))
        if not typed and not tables_only:
            return
        seen = set()
        for what, name in self._candidates(tables_only):
            if name.lower().startswith(typed.lower()) and name not in seen:
                seen.add(name)
                yield Completion(name, start_position=-len(typed), display_meta=what)

    def _candidates(self, tables_only: bool) -> Iterator[tuple[str, str]]:
        yield from (one for one in self.names if not (tables_only and one[0] == "column"))
        if not tables_only:
            yield from (("", word) for word in (*WORDS, *COMMANDS))


def names_of(rows: Iterable[Any]) -> list[tuple[str, str]]:
    """Return the rows of NAMES, tables before columns."""
    order = {"view": 0, "macro": 0, "table": 1, "column": 2}
    found = [(str(what), str(name)) for what, name in rows]
    return sorted(found, key=lambda one: (order.get(one[0], 3), one[1]))
