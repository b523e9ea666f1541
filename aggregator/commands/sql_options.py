"""Options of `gangline sql`: forms of an answer, limits of rows and time, the width of a table, and the query of `\\d`."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from ..query.messages import Question

#: Rows that a table shows unless `--rows` says otherwise.
TABLE_ROWS = 1000
#: A table is laid out in memory; the other forms are written as rows come.
TABLE_ROWS_MAX = 100_000
#: Forms of an answer.
FORMS = ("table", "csv", "json", "parquet", "arrow")
#: Forms that are written as rows come, so that an answer of any length takes little memory.
STREAMED = frozenset(FORMS) - {"table"}
#: The longest `--timeout`.
TIMEOUT_SECONDS_MAX = 86_400.0

LIST_QUERY = """
FROM (
SELECT table_schema || '.' || table_name AS ask, table_comment AS answers FROM information_schema.tables
WHERE table_type = 'VIEW' AND table_schema IN ('ops', 'history') AND table_comment IS NOT NULL
UNION ALL
SELECT schema_name || '.' || function_name || '(' || array_to_string(parameters, ', ') || ')', comment
FROM duckdb_functions() WHERE schema_name IN ('ops', 'history') AND comment IS NOT NULL
UNION ALL
SELECT if(schema_name = 'main', '', schema_name || '.') || table_name, comment FROM duckdb_tables()
)
ORDER BY starts_with(ask, 'ops.') DESC, starts_with(ask, 'history.') DESC, contains(ask, '.'), ask
"""


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The form of an answer, its file (None: standard output), its most rows (0: the default), and the timeout in seconds."""

    form: str
    output: Path | None
    rows: int
    seconds: float

    def question(self, sql: str) -> Question:
        """Return the question with its limits."""
        rows = self.rows or (0 if self.form in STREAMED else TABLE_ROWS)
        return Question(sql, self.seconds, rows_max=rows)


def width() -> int:
    """Return the characters of a line: COLUMNS if it is set, else the terminal's; 0 without a terminal, for any length."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size((160, 24)).columns
    return 0
