"""Options of `gangline sql`: output forms, limits, table width, and the query of `\\d`."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from ..query.messages import Question

#: Rows of a table without `--rows`.
TABLE_ROWS = 1000
#: Maximum rows of a table, which is laid out in memory.
TABLE_ROWS_MAX = 100_000
FORMS = ("table", "csv", "json", "parquet", "arrow")
#: Forms written as rows arrive, so that a long answer takes little memory.
STREAMED = frozenset(FORMS) - {"table"}
#: Maximum of `--timeout`.
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
    """Output form, file (None: standard output), maximum rows (0: default), timeout in seconds.

    *source*: the aggregator whose data is shown, if no option names it.
    """

    form: str
    output: Path | None
    rows: int
    seconds: float
    source: str = ""

    def question(self, sql: str) -> Question:
        """Return a question with these limits."""
        rows = self.rows or (0 if self.form in STREAMED else TABLE_ROWS)
        return Question(sql, self.seconds, rows_max=rows)


def width() -> int:
    """Return the line width: COLUMNS, else the terminal's; 0 (unlimited) without a terminal."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size((160, 24)).columns
    return 0
