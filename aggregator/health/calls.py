"""gRPC calls counted: by method, and those that failed by status code."""

from __future__ import annotations

from collections import Counter


class Calls:
    """Written by the loop's thread, read by any. Methods and codes are ours: their number is bounded."""

    def __init__(self) -> None:
        #: `TelemetryService/RegisterNode` -> calls begun.
        self.begun: Counter[str] = Counter()
        #: (method, `RESOURCE_EXHAUSTED`) -> calls that ended so.
        self.failed: Counter[tuple[str, str]] = Counter()
