"""The history beside the snapshot: views over the Parquet files of the data folder, made when a question names them.

They are in schemas of the question's own empty database, which are in its search path: `FROM past.gpu_1s`.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

from ..history import views

#: Schemas of `history.views`, made empty at first: to bind a year of files takes longer than most answers.
SCHEMAS = ("past",)
#: Folders of the data folder that hold the files.
FOLDERS = ("segments", "rollups")


def make_views(connection: duckdb.DuckDBPyConnection, folder: Path) -> str:
    """Make the views over the history of *folder*. Returns "" or which of them could not be made, and why."""
    missing = ""
    own = (
        connection.cursor()
    )  # it looks in `memory` first, as the connection did before it was fenced
    for statement in _statements(folder):
        try:
            own.execute(statement)
        except duckdb.Error as error:
            missing = missing or f"a part of the history cannot be read: {_first_line(error)}"
    return missing


def _statements(folder: Path) -> list[str]:
    try:
        return views.statements(folder)
    except (OSError, ValueError):
        return []


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
