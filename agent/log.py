"""The daemon's log: one line a record on stderr, and at most one line a cause a minute."""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Callable
from typing import TextIO

REPEAT_SECONDS_MIN = 60.0
#: Past this many different causes the ones least lately seen are forgotten.
CAUSES_MAX = 256
WORDS_CHARACTERS_MAX = 1000


class OncePerMinute(logging.Filter):
    """Lets the first record of a cause through, and then one a minute that tells how many it stands
    for. The cause is the record's `cause` (`extra={"cause": ...}`), else where it was logged."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._seen: dict[str, tuple[float, int]] = {}  # cause -> (when last let through, since)

    def filter(self, record: logging.LogRecord) -> bool:
        cause = getattr(record, "cause", f"{record.name}:{record.lineno}")
        now = self._monotonic()
        at, kept_back = self._seen.pop(cause, (now - REPEAT_SECONDS_MIN, 0))
        passes = now - at >= REPEAT_SECONDS_MIN
        self._seen[cause] = (now, 0) if passes else (at, kept_back + 1)
        if len(self._seen) > CAUSES_MAX:
            del self._seen[next(iter(self._seen))]
        record.cause, record.repeated = cause, kept_back
        return passes


class Line(logging.Formatter):
    """`time=... level=... cause=... words="..."`: one line, whatever the words hold."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        words = record.getMessage()[:WORDS_CHARACTERS_MAX]
        line = f"time={when} level={record.levelname.lower()}"
        line += f" cause={getattr(record, 'cause', record.name)} words={json.dumps(words)}"
        if repeated := getattr(record, "repeated", 0):
            line += f" repeated={repeated}"
        if record.exc_info and record.exc_info[0]:
            frames = traceback.format_exception(*record.exc_info)
            line += f" trace={json.dumps(''.join(frames)[-4 * WORDS_CHARACTERS_MAX :])}"
        return line


def start(stream: TextIO, level: int = logging.INFO) -> logging.Handler:
    """Send the records of the whole house to *stream*; return the handler, for `stop`."""
    logging.raiseExceptions = False  # a log that cannot be written must not matter
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Line())
    handler.addFilter(OncePerMinute())
    house = logging.getLogger(__name__.partition(".")[0])
    house.setLevel(level)
    house.propagate = False
    house.addHandler(handler)
    return handler


def stop(handler: logging.Handler) -> None:
    """Undo `start`."""
    logging.getLogger(__name__.partition(".")[0]).removeHandler(handler)
