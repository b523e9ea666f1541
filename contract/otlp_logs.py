"""Client that sends log records to an OpenTelemetry collector: OTLP/HTTP with JSON, by the standard library only.

The protocol is at opentelemetry.io/docs/specs/otlp.

Callers never wait for the collector: records wait in a bounded queue; further records are dropped and counted.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import ssl
import threading
import time
import urllib.parse
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

PATH = "/v1/logs"
#: Limit of the queue; further records are dropped and counted.
QUEUE_RECORDS_MAX = 4096
#: Records per request, and the time that the first record waits for others.
BATCH_RECORDS, BATCH_SECONDS = 256, 1.0
REQUEST_SECONDS_MAX = 5.0
ANSWER_BYTES_MAX = 1 << 20
#: A failure is retried after this time; the delay doubles each time.
RETRY_SECONDS, RETRY_SECONDS_MAX = 1.0, 60.0
#: Statuses after which a batch is sent again; any other refusal drops the batch.
LATER = (429, 502, 503, 504)
TEXT_CHARACTERS_MAX, ATTRIBUTES_MAX = 4096, 32
HEADERS_VARIABLE = "OTEL_EXPORTER_OTLP_HEADERS"
HEADERS_MAX = 16
#: Severities of OpenTelemetry.
INFO, WARN, ERROR = 9, 13, 17
_SEVERITY_TEXTS = {INFO: "INFO", WARN: "WARN", ERROR: "ERROR"}


@dataclass(frozen=True, slots=True)
class OtlpRecord:
    """One log record. *event*: its kind; *attributes*: without empty values."""

    event: str
    text: str
    time_ns: int
    severity: int = INFO
    attributes: Mapping[str, str | int | float] = field(default_factory=dict)


def check_url(url: str) -> None:
    """Raise ValueError unless *url* is empty or the address of a collector."""
    parts = urllib.parse.urlsplit(url)
    try:
        bad = url and (
            parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
        )
    except ValueError:
        bad = True
    if bad or parts.query or parts.username:
        raise ValueError(
            f"the address of an OTLP collector, as http://127.0.0.1:4318; {PATH} is added"
        )


def parse_headers(text: str) -> dict[str, str]:
    """Return the headers in `key=value,key=value`, with percent-encoded values. Raises ValueError."""
    headers = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, equals, value = part.partition("=")
        found = urllib.parse.unquote(value.strip())
        if (
            not equals
            or not name.strip().isascii()
            or not found.isprintable()
            or " " in name.strip()
        ):
            raise ValueError(f"{HEADERS_VARIABLE}: expected key=value,key=value")
        headers[name.strip()] = found
    if len(headers) > HEADERS_MAX:
        raise ValueError(f"{HEADERS_VARIABLE}: at most {HEADERS_MAX} headers")
    return headers


def encode_records(
    service: str, instance: str, records: Sequence[OtlpRecord], now_ns: int
) -> bytes:
    """Return an ExportLogsServiceRequest in OTLP's JSON: 64-bit integers as text, field names in lower camel case."""
    resource = [_attribute("service.name", service), _attribute("service.instance.id", instance)]
    document = {
        "resourceLogs": [{
            "resource": {"attributes": resource},
            "scopeLogs": [{"scope": {"name": "gangline"}, "logRecords": [_encode(one, now_ns) for one in records]}],
        }]
    }  # fmt: skip
    return json.dumps(document, separators=(",", ":")).encode()


def _encode(record: OtlpRecord, now_ns: int) -> dict[str, object]:
    some = list(record.attributes.items())[:ATTRIBUTES_MAX]
    return {
        "timeUnixNano": str(record.time_ns),
        "observedTimeUnixNano": str(now_ns),
        "severityNumber": record.severity,
        "severityText": _SEVERITY_TEXTS.get(record.severity, ""),
        "eventName": record.event,
        "body": {"stringValue": _text(record.text)},
        "attributes": [_attribute(key, value) for key, value in some if value != ""],
    }


def _attribute(key: str, value: str | float) -> dict[str, object]:
    if isinstance(value, bool | str):
        return {"key": key, "value": {"stringValue": _text(str(value))}}
    if isinstance(value, int):
        return {"key": key, "value": {"intValue": str(value)}}
    return {"key": key, "value": {"doubleValue": value}}


def _text(text: str) -> str:
    """Return *text* as valid UTF-8, cut to its limit."""
    return text[:TEXT_CHARACTERS_MAX].encode(errors="backslashreplace").decode()


class OtlpLogExporter:
    """`export` works from any thread; a separate thread sends. Never raises for the collector's failures."""

    def __init__(
        self,
        url: str,
        service: str,
        instance: str,
        *,
        headers: Mapping[str, str] | None = None,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """*url*: of the collector, without its path. *headers*: defaults to OTEL_EXPORTER_OTLP_HEADERS. Raises
        ValueError."""
        check_url(url)
        self._parts = urllib.parse.urlsplit(url)
        self._service, self._instance, self._wall_ns = service, instance, wall_ns
        self._headers = dict(
            parse_headers(os.environ.get(HEADERS_VARIABLE, "")) if headers is None else headers
        )
        self._queue: deque[OtlpRecord] = deque()
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._connection: http.client.HTTPConnection | None = None
        self._problem = ""
        self.dropped_count = 0
        self._thread = threading.Thread(target=self._run, name="otlp-logs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Send at most one further batch, and end; waits at most twice REQUEST_SECONDS_MAX."""
        self._stopped.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(2 * REQUEST_SECONDS_MAX)
        if not self._thread.is_alive():
            self._drop()

    def export(self, record: OtlpRecord) -> bool:
        """Queue *record*; if the queue is full, drop and count it, and return False. Never waits."""
        if len(self._queue) >= QUEUE_RECORDS_MAX:
            self.dropped_count += 1
            return False
        self._queue.append(record)
        self._wake.set()
        return True

    def _run(self) -> None:
        pause = RETRY_SECONDS
        while not self._stopped.is_set():
            self._wake.wait()
            self._wake.clear()
            self._stopped.wait(BATCH_SECONDS)
            while self._queue and not self._stopped.is_set():
                if self.flush():
                    pause = RETRY_SECONDS
                    continue
                self._stopped.wait(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)
        self.flush()
        self._drop()

    def flush(self) -> bool:
        """Send one batch; return whether it left the queue. For the sending thread, or without such a thread."""
        count = min(len(self._queue), BATCH_RECORDS)
        if not count:
            return True
        batch = [self._queue[at] for at in range(count)]
        try:
            status, reason = self._post(
                encode_records(self._service, self._instance, batch, self._wall_ns())
            )
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            self._complain(str(error) or type(error).__name__)
            return False
        if status in LATER:
            self._complain(f"{status} {reason}")
            return False
        for _ in batch:
            self._queue.popleft()
        if 200 <= status < 300:
            self._problem = ""
        else:
            self.dropped_count += count
            self._complain(f"{status} {reason}: {count} records are dropped")
        return True

    def _post(self, body: bytes) -> tuple[int, str]:
        if self._connection is None:
            self._connection = self._connect()
        path = self._parts.path.rstrip("/")
        path = path if path.endswith(PATH) else path + PATH
        self._connection.request(
            "POST", path, body, {"Content-Type": "application/json", **self._headers}
        )
        response = self._connection.getresponse()
        response.read(ANSWER_BYTES_MAX)
        if response.will_close or not response.isclosed():
            self._drop()
        return response.status, response.reason

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port or 4318
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(
                host, port, timeout=REQUEST_SECONDS_MAX, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(host, port, timeout=REQUEST_SECONDS_MAX)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _complain(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("%s does not accept OTLP logs: %s", self._parts.netloc, problem)
        self._problem = problem
