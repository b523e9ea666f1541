"""The agent's log: one line per record on stderr, at most one line per cause and minute, no secrets."""

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
#: Causes distinguished within a minute; further causes share OTHERS_CAUSE.
CAUSES_MAX = 256
OTHERS_CAUSE = "log.others"
MESSAGE_CHARACTERS_MAX = 1000
#: Shorter values in the environment are not hidden: they are common words.
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


class RateLimitFilter(logging.Filter):
    """Passes a cause's first record, then one a minute, which has the number of suppressed records.

    The cause is `extra={"cause": ...}`, else the place of the call. A recovery is logged at once if
    the last line of its topic was a failure, so that the log does not end with a resolved failure:
    `extra={"topic": ..., "well": True}`, and for the failure the same topic and `"well": False`.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # Cause -> (time of the last passed record, suppressed since), least recently seen first.
        self._causes: dict[str, tuple[float, int]] = {}
        self._failing_topics: dict[str, bool] = {}  # topic -> whether its last line was a failure

    def filter(self, record: logging.LogRecord) -> bool:
        cause = getattr(record, "cause", f"{record.name}:{record.lineno}")
        topic, well = getattr(record, "topic", ""), getattr(record, "well", False)
        with self._lock:
            now = self._monotonic()
            if cause not in self._causes and not self._has_room(now):
                cause = OTHERS_CAUSE
            passed_at, suppressed = self._causes.pop(cause, (now - REPEAT_SECONDS_MIN, 0))
            passes = now - passed_at >= REPEAT_SECONDS_MIN or (
                well and self._failing_topics.get(topic, False)
            )
            if (
                topic
                and passes
                and (topic in self._failing_topics or len(self._failing_topics) < CAUSES_MAX)
            ):
                self._failing_topics[topic] = not well
            self._causes[cause] = (now, 0) if passes else (passed_at, suppressed + 1)
        record.cause, record.repeated = cause, suppressed
        return passes

    def _has_room(self, now: float) -> bool:
        """Return whether another cause can be stored; drop the oldest cause if its line is old."""
        if len(self._causes) < CAUSES_MAX:
            return True
        oldest = next(iter(self._causes))
        passed_at, suppressed = self._causes[oldest]
        if now - passed_at < REPEAT_SECONDS_MIN:
            return False
        del self._causes[oldest]
        if suppressed:  # its suppressed records are counted with the others
            passed_at, others = self._causes.get(OTHERS_CAUSE, (now - REPEAT_SECONDS_MIN, 0))
            self._causes[OTHERS_CAUSE] = passed_at, others + suppressed
        return True


class LogfmtFormatter(logging.Formatter):
    """`time=... level=... cause=... msg="..."`: a single line for any message."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Hide the values in *environment* that look like secrets."""
        super().__init__()
        self._secrets = secret_values(environment or {})

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        message = self._redact(record.getMessage()[: 4 * MESSAGE_CHARACTERS_MAX])
        line = f"time={when} level={record.levelname.lower()}"
        line += f" cause={getattr(record, 'cause', record.name)}"
        line += f" msg={json.dumps(message[:MESSAGE_CHARACTERS_MAX])}"
        if repeated := getattr(record, "repeated", 0):
            line += f" repeated={repeated}"
        if record.exc_info and record.exc_info[0]:
            frames = self._redact("".join(traceback.format_exception(*record.exc_info)))
            line += f" trace={json.dumps(frames[-4 * MESSAGE_CHARACTERS_MAX :])}"
        return line

    def _redact(self, text: str) -> str:
        return redact(text, self._secrets)


def secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables with a secret's name, the longest first."""
    named = re.compile(_SECRET_NAME, re.IGNORECASE)
    values = {value for name, value in environment.items() if named.fullmatch(name)}
    return tuple(
        sorted((value for value in values if len(value) >= SECRET_CHARACTERS_MIN), key=len)
    )[::-1]


def redact(text: str, secrets: tuple[str, ...] = ()) -> str:
    """Return *text* without *secrets*, and without values that follow a secret's name or scheme."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return _SECRET.sub(_replacement, text)


def _replacement(match: re.Match[str]) -> str:
    if match["name"] is None and match["scheme"] is None:
        return f"{HIDDEN}@"
    return f"{match['name'] or match['scheme']}{HIDDEN}"


def start(stream: TextIO, level: int = logging.INFO) -> logging.Handler:
    """Log the package's records to *stream*; return the handler for `stop`."""
    logging.raiseExceptions = False  # a failure to write the log is ignored
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogfmtFormatter(os.environ))
    handler.addFilter(RateLimitFilter())
    package_logger = logging.getLogger(__name__.partition(".")[0])
    package_logger.setLevel(level)
    package_logger.propagate = False
    package_logger.addHandler(handler)
    return handler


def stop(handler: logging.Handler) -> None:
    package_logger = logging.getLogger(__name__.partition(".")[0])
    package_logger.removeHandler(handler)
    package_logger.propagate = True
    package_logger.setLevel(logging.NOTSET)
