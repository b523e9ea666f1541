"""Confirms how long a core or a task is stuck, by an earlier report with a shorter time.

A real lockup is reported every twenty seconds, a hung task every two minutes, with times that grow
as the clock does. A virtual machine that was suspended or migrated resumes with a single line,
"stuck for 3208s", although it is healthy.
"""

from __future__ import annotations

from collections import OrderedDict

from .record import ParsedLine

#: Attributes with the time and with the name of the core or the task.
_FIELDS = (("stuck_seconds", "cpu"), ("blocked_seconds", "pid"))
#: Remembered cores and tasks; the oldest are forgotten first.
STUCK_MAX = 1024
#: Largest difference between the growth of the reported time and the time that passed.
DIFFERENCE_SECONDS_MAX = 60.0


class StuckTimes:
    """The reports of this boot. For one thread."""

    def __init__(self) -> None:
        #: (event name, core or task) -> reported seconds, and time of the report in seconds since
        #: boot.
        self._reported: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()

    def confirm(self, parsed: ParsedLine, log_seconds: float) -> ParsedLine:
        """Return *parsed*, written at *log_seconds*; with code 0 if no earlier line confirms its time."""
        for time_name, subject in _FIELDS:
            text = parsed.attributes.get(time_name, "")
            if text.isascii() and text.isdigit():
                name = parsed.attributes.get(subject) or str(parsed.process_id)
                return self._confirm(parsed, (parsed.name, name), int(text[:10]), log_seconds)
        return parsed

    def _confirm(
        self, parsed: ParsedLine, key: tuple[str, str], seconds: int, log_seconds: float
    ) -> ParsedLine:
        before, before_log_seconds = self._reported.pop(key, (seconds, log_seconds))
        self._reported[key] = seconds, log_seconds
        while len(self._reported) > STUCK_MAX:
            self._reported.popitem(last=False)
        difference = (seconds - before) - (log_seconds - before_log_seconds)
        if before < seconds and abs(difference) <= DIFFERENCE_SECONDS_MAX:
            return parsed
        return parsed._replace(code=0)
