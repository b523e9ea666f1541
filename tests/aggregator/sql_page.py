"""`make docs`: plays the night again and writes its answers into `docs/sql.md`."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from gangline.aggregator.commands import sql_output
from gangline.aggregator.query import sandbox
from tests.aggregator.night import night
from tests.aggregator.query.asking import rows_of

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"
WIDTH_CHARACTERS = 160
_ASKED = re.compile(
    r'^```\n\$ gangline sql "(?P<query>.+)"\n(?P<answer>(?:.*\n)*?)```$', re.MULTILINE
)


def queries(page: str) -> list[str]:
    return [match["query"] for match in _ASKED.finditer(page)]


def answered(page: str, answer: Callable[[str], str]) -> str:
    """Return *page* with what *answer* says to each of its queries."""
    return _ASKED.sub(
        lambda m: f'```\n$ gangline sql "{m["query"]}"\n{answer(m["query"])}\n```', page
    )


def asking(folder: Path) -> Callable[[str], str]:
    """Yield a function that answers a query from the operators' file in *folder*, in the format of `gangline sql`."""
    connection = sandbox.open_snapshot(folder / "operators.duckdb")

    def answer(query: str) -> str:
        sandbox.check(connection, query)
        return sql_output.table(connection.execute(query).to_arrow_table(), WIDTH_CHARACTERS)

    return answer


def empty(page: str, folder: Path) -> list[str]:
    """Return the queries of the page that show no row of the operators' file in *folder*: `sql_page FOLDER`, of a
    `gangline run --scenario night` that has run for four minutes."""
    connection = sandbox.open_snapshot(folder / "operators.duckdb")
    return [query for query in queries(page) if not rows_of(connection, query)[1]]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit("\n".join(empty(PAGE.read_text(), Path(sys.argv[1]))))
    with tempfile.TemporaryDirectory() as place:
        with night(Path(place)):
            pass
        PAGE.write_text(answered(PAGE.read_text(), asking(Path(place))))
