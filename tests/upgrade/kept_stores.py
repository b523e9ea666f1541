"""The stores that earlier versions left (`keep_store.py` made them), and opening one while a kill waits at each step.

    python -m tests.upgrade.kept_stores FOLDER WORK

opens copies of the store in FOLDER (none: an empty one) in WORK again and again, killed at the first statement,
the second, and so on until one open needs no more; after each kill it is opened by another process, and what that
finds is printed, a line each. All in forks of one process that has DuckDB loaded and nothing open.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tarfile
from pathlib import Path
from typing import Any

import duckdb

from gangline.aggregator.store import storefile

STORES = Path(__file__).parent / "kept_stores"
#: Frames times GPUs times hosts, as `keep_store.py` has them; and what else is in each.
GPU_ROWS, EVENTS, FINDINGS = 80, 6, 1


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a kept store; return the folder."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder


class Dying:
    """A connection that is killed before its n-th statement."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, statements: int) -> None:
        self._connection, self._left = connection, statements

    def execute(self, query: str, parameters: object = None) -> Dying:
        """Run the statements of *query* one by one."""
        for statement in self._connection.extract_statements(query):
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1
            self._connection.execute(statement, parameters)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def opened(path: Path, statements: int) -> bool:
    """Open the store in a process that is killed at that statement. False: it needed fewer."""
    child = os.fork()
    if child == 0:
        real = duckdb.connect
        left = [statements]

        def connect(*arguments: Any, **named: Any) -> Any:
            return Dying(real(*arguments, **named), left[0])

        duckdb.__dict__["connect"] = connect
        storefile.open_store(path).close()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def found(path: Path) -> str:
    """Open the store as the next start would, and say what is in it."""
    connection = storefile.open_store(path)
    counts = [
        connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        for table in ("events", "findings")
    ]
    hours = connection.execute(
        "SELECT sum(estimated_size)::BIGINT FROM duckdb_tables() WHERE schema_name = 'hours' "
        "AND starts_with(table_name, 'gpu_1s__')"
    ).fetchone()
    version = connection.execute("SELECT schema_version FROM gangline_store").fetchall()
    connection.close()
    return f"{version} {hours} {counts}"


def main() -> None:
    """Entry point."""
    source, work = Path(sys.argv[1]), Path(sys.argv[2])
    statements, killed = 0, True
    while killed:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(source, work)
        killed = opened(work / storefile.FILE, statements)
        child = os.fork()
        if child == 0:
            print(found(work / storefile.FILE), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, f"after a kill at statement {statements}"
        statements += 1


if __name__ == "__main__":
    main()
