"""The daemon's log: one line a record on stderr, at most one line a cause a minute, and no secret in any."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import TextIO

REPEAT_SECONDS_MIN = 60.0
#: Of more different causes within a minute, all further ones are told as one.
CAUSES_MAX = 256
OTHERS = "log.others"
WORDS_CHARACTERS_MAX = 1000
#: Shorter values of the environment are no secrets, but words that occur anywhere.
SECRET_CHARACTERS_MIN = 6
HIDDEN = "***"

_SECRET_NAME = r"[\w-]*(?:token|secret|passw|credential|api[_-]?key|private[_-]?key)[\w-]*"
_SECRET = re.compile(
    # name=value, name: "value"
    rf"""(?P<name>\b{_SECRET_NAME}["']?\s*[=:]\s*)(?:"[^"]*"|'[^']*'|[^\s,;]+)"""
    r"|(?P<scheme>\b(?:authorization\s*[=:]\s*(?:\w+\s+)?|bearer\s+))[\w.~+/=-]{6,}"
    r"""|(?<![\w.-])[\w.%+-]*:[^\s:@/"']+@(?=[\w\[])""",  # user:password@host
    re.IGNORECASE,
)


class OncePerMinute(logging.Filter):
    """Lets the first record of a cause through, and then one a minute that tells how many it stands
    for. The cause is the record's `cause` (`extra={"cause": ...}`), else where it was logged.

    A recovery is let through at once if the last line of its topic told of trouble, so that the log does not end
    on what is over: `extra={"topic": ..., "well": True}`, and of the trouble the same topic and `"well": False`.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # cause -> (when last let through, how many kept back since); the least lately seen is first
        self._seen: dict[str, tuple[float, int]] = {}
        self._ill: dict[str, bool] = {}  # topic -> whether its last line told of trouble

    def filter(self, record: logging.LogRecord) -> bool:
        cause = getattr(record, "cause", f"{record.name}:{record.lineno}")
        topic, well = getattr(record, "topic", ""), getattr(record, "well", False)
        with self._lock:
            now = self._monotonic()
            if cause not in self._seen and not self._has_room(now):
                cause = OTHERS
            at, kept_back = self._seen.pop(cause, (now - REPEAT_SECONDS_MIN, 0))
            passes = now - at >= REPEAT_SECONDS_MIN or (well and self._ill.get(topic, False))
            if topic and passes and (topic in self._ill or len(self._ill) < CAUSES_MAX):
                self._ill[topic] = not well
            self._seen[cause] = (now, 0) if passes else (at, kept_back + 1)
        record.cause, record.repeated = cause, kept_back
        return passes

    def _has_room(self, now: float) -> bool:
        """Make room for one more cause; False if each of them has been told within the last minute."""
        if len(self._seen) < CAUSES_MAX:
            return True
        oldest = next(iter(self._seen))
        at, kept_back = self._seen[oldest]
        if now - at < REPEAT_SECONDS_MIN:
            return False
        del self._seen[oldest]
        if kept_back:  # what it would have told when it spoke again is told with the others
            at, others = self._seen.get(OTHERS, (now - REPEAT_SECONDS_MIN, 0))
            self._seen[OTHERS] = at, others + kept_back
        return True


class Line(logging.Formatter):
    """`time=... level=... cause=... words="..."`: one line, whatever the words hold."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """What looks like a secret in *environment* is in no line."""
        super().__init__()
        self._secrets = secrets_of(environment or {})

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        words = self._clean(record.getMessage()[: 4 * WORDS_CHARACTERS_MAX])
        line = f"time={when} level={record.levelname.lower()}"
        line += f" cause={getattr(record, 'cause', record.name)}"
        line += f" words={json.dumps(words[:WORDS_CHARACTERS_MAX])}"
        if repeated := getattr(record, "repeated", 0):
            line += f" repeated={repeated}"
        if record.exc_info and record.exc_info[0]:
            frames = self._clean("".join(traceback.format_exception(*record.exc_info)))
            line += f" trace={json.dumps(frames[-4 * WORDS_CHARACTERS_MAX :])}"
        return line

    def _clean(self, words: str) -> str:
        return redacted(words, self._secrets)


def secrets_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables that are named as secrets are, the longest first."""
    named = re.compile(_SECRET_NAME, re.IGNORECASE)
    values = {value for name, value in environment.items() if named.fullmatch(name)}
    return tuple(sorted((v for v in values if len(v) >= SECRET_CHARACTERS_MIN), key=len))[::-1]


def redacted(words: str, secrets: tuple[str, ...] = ()) -> str:
    """Return *words* without *secrets*, and without what a name, a header or an address says is one."""
    for secret in secrets:
        words = words.replace(secret, HIDDEN)
    return _SECRET.sub(_hidden, words)


def _hidden(match: re.Match[str]) -> str:
    if match["name"] is None and match["scheme"] is None:
        return f"{HIDDEN}@"
    return f"{match['name'] or match['scheme']}{HIDDEN}"


def start(stream: TextIO, level: int = logging.INFO) -> logging.Handler:
    """Send the records of the whole house to *stream*; return the handler, for `stop`."""
    logging.raiseExceptions = False  # a log that cannot be written must not matter
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Line(os.environ))
    handler.addFilter(OncePerMinute())
    house = logging.getLogger(__name__.partition(".")[0])
    house.setLevel(level)
    house.propagate = False
    house.addHandler(handler)
    return handler


def stop(handler: logging.Handler) -> None:
    """Undo `start`."""
    logging.getLogger(__name__.partition(".")[0]).removeHandler(handler)
