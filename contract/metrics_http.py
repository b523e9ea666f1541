"""Parser of one HTTP/1.1 request and its response: bytes in, bytes out. No request body, no keep-alive."""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

#: Limit of a request line with its headers; a scraper's request has 300 bytes.
REQUEST_BYTES_MAX = 8192
HEADERS_MAX = 64
END = b"\r\n\r\n"
_PATH = "/metrics"
_STATUS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    505: "HTTP Version Not Supported",
}
_PLAIN = "text/plain; charset=utf-8"

log = logging.getLogger(__name__)


class RequestError(ValueError):
    """The request cannot be answered; the message states the correct form."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """A request; the names of its headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def parse_request(head: bytes) -> Request:
    """Return the request whose head, up to the empty line, is *head*. Raises RequestError."""
    if len(head) > REQUEST_BYTES_MAX:
        raise RequestError(431, f"a request has at most {REQUEST_BYTES_MAX} bytes")
    # Latin-1 decodes every byte, so no request is refused for its encoding.
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not all(parts):
        raise RequestError(400, "expected a request line, as GET /metrics HTTP/1.1")
    method, target, version = parts
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise RequestError(505, "expected HTTP/1.1 or HTTP/1.0")
    return Request(method, target.partition("?")[0], _headers(lines))


def _headers(lines: list[str]) -> dict[str, str]:
    if len(lines) > HEADERS_MAX:
        raise RequestError(431, f"a request has at most {HEADERS_MAX} headers")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise RequestError(400, "expected headers as `Name: value`, one a line")
        headers[name.lower()] = value.strip()
    return headers


#: The `Accept` header -> (the exposition, its media type).
Render = Callable[[str], tuple[bytes, str]]


def respond(head: bytes, render: Render) -> bytes:
    """Return the complete response to a request. Never raises, unless *render* raises a non-Exception."""
    try:
        request = parse_request(head)
        _check(request)
        body, media_type = render(request.headers.get("accept", ""))
    except RequestError as error:
        return _response(error.status, f"{error}\n".encode(), _PLAIN)
    except Exception as error:
        log.exception("/metrics cannot be rendered", extra={"cause": "metrics.render"})
        return _response(500, f"{type(error).__name__}: {error}\n".encode(errors="replace"), _PLAIN)
    gzipped = "gzip" in _accepted_codings(request.headers.get("accept-encoding", ""))
    body = zlib.compress(body, 1, _GZIP) if gzipped else body
    return _response(200, body, media_type, gzipped=gzipped, head_only=request.method == "HEAD")


#: zlib's request for a gzip header: 16, plus the largest window.
_GZIP = 16 + zlib.MAX_WBITS


def _check(request: Request) -> None:
    if request.path != _PATH:
        raise RequestError(404, f"not found: only {_PATH} is served")
    if request.method not in ("GET", "HEAD"):
        raise RequestError(405, f"only GET {_PATH} is supported")


def _accepted_codings(accepted: str) -> set[str]:
    """Return the accepted encodings; an encoding with `q=0` is not accepted."""
    codings: set[str] = set()
    for each in accepted.lower().split(","):
        name, _, quality = each.partition(";")
        if quality.replace(" ", "").rstrip("0") not in ("q=", "q=0."):
            codings.add(name.strip())
    return codings


def _response(
    status: int,
    body: bytes,
    media_type: str,
    *,
    gzipped: bool = False,
    head_only: bool = False,
) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_STATUS[status]}",
        f"Content-Type: {media_type}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(["Content-Encoding: gzip"] if gzipped else []),
        *(["Vary: Accept, Accept-Encoding"] if status == 200 else []),
        *(["Allow: GET, HEAD"] if status == 405 else []),
    ]
    head = "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"
    return head if head_only else head + body


# ----------------------------------------------------------------------
# The exposition format of Prometheus: from families of samples to text.
#
# OpenMetrics 1.0, and the older Prometheus text format 0.0.4 for clients that ask for it by name.


class ExpositionFormat(Enum):
    """The two formats, by media type."""

    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    TEXT = "text/plain; version=0.0.4; charset=utf-8"


def negotiate_format(accept: str) -> ExpositionFormat:
    """Return the format for an `Accept` header: the older format only if it is listed and OpenMetrics is not."""
    wants_text = "text/plain" in accept and "application/openmetrics-text" not in accept
    return ExpositionFormat.TEXT if wants_text else ExpositionFormat.OPENMETRICS


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of one name: (labels as text, value as text)."""

    name: str  # without `_total`
    #: `counter`, `gauge`, `info`, or `bare_counter`: a counter without the suffix `_total`, because its name is not
    #: ours; OpenMetrics has no type for it.
    kind: str
    unit: str  # suffix of the name, or empty
    help: str
    samples: Sequence[tuple[str, str]]


def format_number(value: float) -> str:
    """Return a number in the syntax of the format."""
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def escape_label(text: str) -> str:
    """Return *text* escaped for the quotes of a label's value.

    Bytes that are not UTF-8 (of a mount point) become escapes: two equal labels would make the whole exposition
    invalid.
    """
    encoded = text.encode(errors="backslashreplace").decode()
    return encoded.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def format_labels(labels: Mapping[str, str]) -> str:
    """Return `{uuid="...",port="1"}`; empty for no labels. The names are Gangline's and need no escape."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{escape_label(value)}"' for name, value in labels.items()) + "}"


def render_exposition(families: Iterable[Family], exposition: ExpositionFormat) -> bytes:
    """Return the whole exposition."""
    lines: list[str] = []
    for family in families:
        lines += (
            _openmetrics(family)
            if exposition is ExpositionFormat.OPENMETRICS
            else _text_format(family)
        )
    lines += ["# EOF"] if exposition is ExpositionFormat.OPENMETRICS else []
    return "".join(f"{line}\n" for line in lines).encode()


_SUFFIXES = {
    "counter": "_total",
    "info": "_info",
    "gauge": "",
    "bare_counter": "",
}
#: Names of our kinds in the two formats, if they differ.
_OPENMETRICS_KINDS = {"bare_counter": "unknown"}
_TEXT_KINDS = {"info": "gauge", "bare_counter": "counter"}


def _openmetrics(family: Family) -> Iterable[str]:
    yield f"# TYPE {family.name} {_OPENMETRICS_KINDS.get(family.kind, family.kind)}"
    if family.unit:
        yield f"# UNIT {family.name} {family.unit}"
    yield f"# HELP {family.name} {escape_label(family.help)}"
    sample = family.name + _SUFFIXES[family.kind]
    for labels, value in family.samples:
        yield f"{sample}{labels} {value}"


def _text_format(family: Family) -> Iterable[str]:
    """Yield the older format: it has type and help for the sample's own name, and no `info`."""
    sample = family.name + _SUFFIXES[family.kind]
    help_text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {sample} {help_text}"
    yield f"# TYPE {sample} {_TEXT_KINDS.get(family.kind, family.kind)}"
    for labels, value in family.samples:
        yield f"{sample}{labels} {value}"
