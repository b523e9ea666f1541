"""The query log: who ran what, how long it took, and its outcome, one JSON object per line in DATA/queries.log.

The first characters of each statement are logged as sent, so a secret in SQL ends up in the log. The caller's credentials
(token, certificate) never do.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

FILE = "queries.log"
#: Number of full files kept in addition to the current one.
OLDER_FILES = 3
#: Longer statements are cut in the log; their length is logged.
SQL_CHARACTERS_MAX = 4000


@dataclass(frozen=True, slots=True)
class QueryLogEntry:
    """A line. `outcome`: the QueryError's, or ok, denied (by role), cancelled, failed."""

    wall_ns: int
    who: str
    role: str
    peer: str
    sql: str
    seconds: float
    rows: int
    size_bytes: int
    outcome: str
    message: str
    cpu_seconds: float
    rss_bytes_max: int

    def line(self) -> str:
        """Return the entry as one line of JSON."""
        values: dict[str, Any] = asdict(self)
        time = datetime.fromtimestamp(values.pop("wall_ns") / 1e9, UTC)
        values["sql"] = self.sql[:SQL_CHARACTERS_MAX]
        values["sql_characters"] = len(self.sql)
        return json.dumps({"time": time.isoformat(timespec="milliseconds"), **values})


class QueryLog:
    """Appends lines; rotates full files. Only the aggregator's user may read the files."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.path = folder / FILE
        #: Lines that could not be written.
        self.lost_lines = 0
        self._lost = False
        self._file = _PrivateRotatingFile(
            self.path, maxBytes=bytes_max, backupCount=OLDER_FILES, encoding="utf-8", delay=True
        )
        self._file.on_write_error = self._on_write_error

    def append(self, entry: QueryLogEntry) -> None:
        """Write a line. Blocks on the disk; never raises, so that queries work with a full disk."""
        self._lost = False
        self._file.handle(logging.makeLogRecord({"msg": entry.line()}))
        if not self._lost and self.lost_lines:
            log.warning("query log: %d lines could not be written", self.lost_lines)
            self.lost_lines = 0

    def _on_write_error(self) -> None:
        self._lost = True
        if not self.lost_lines:
            log.error(
                "query log: %s cannot be written (%s); queries continue without it",
                self.path,
                sys.exc_info()[1],
            )
        self.lost_lines += 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _PrivateRotatingFile(logging.handlers.RotatingFileHandler):
    """Queries contain names of jobs and users: other users must not read the file."""

    on_write_error: Callable[[], None]

    def handleError(self, record: logging.LogRecord) -> None:
        """Report the error to the owner; the logging module would write to stderr for each line."""
        self.on_write_error()

    def _open(self) -> Any:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return open(descriptor, "a", encoding=self.encoding)
