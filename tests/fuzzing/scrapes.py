"""Requests for `/metrics`, as scrapers and any other clients send them."""

from __future__ import annotations

import random

from gangline.agent.local import metrics_http
from tests.fuzzing.damage import ACCEPTED, REFUSED, damaged

REQUEST = (
    b"GET /metrics?format=x HTTP/1.1\r\nHost: gpu-017:9476\r\nUser-Agent: Prometheus/3.5.0\r\n"
    b"Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1\r\n"
    b"Accept-Encoding: gzip\r\nX-Prometheus-Scrape-Timeout-Seconds: 10"
)
STATUSES = (b"200", b"400", b"404", b"405", b"431", b"505")


def fuzz_http_request(source: random.Random) -> str:
    """A single complete response with the stated length, and a status that tells client errors from server errors."""
    answer = metrics_http.respond(
        damaged(REQUEST, source), lambda accept: (b"# EOF\n", "text/plain")
    )
    head, end, body = answer.partition(metrics_http.END)
    status = head.split(b" ", 2)[1]
    assert end and status in STATUSES
    assert b"Content-Length: %d\r\n" % len(body) in head + b"\r\n" or not body
    return ACCEPTED if status == b"200" else REFUSED


TARGETS = {"http-request": fuzz_http_request}
