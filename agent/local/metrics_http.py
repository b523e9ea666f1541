"""Parser of one HTTP/1.1 request for metrics, and its response: bytes in, bytes out. No request body, no keep-alive."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

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

#: zlib's request for a gzip header: 16, plus the largest window.
_GZIP = 16 + zlib.MAX_WBITS


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
    status: int, body: bytes, media_type: str, *, gzipped: bool = False, head_only: bool = False
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
