"""OTLP logs, decoded by OpenTelemetry's own package; a bad collector only costs records."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from gangline.contract import otlp_logs
from gangline.contract.otlp_logs import (
    BATCH_RECORDS,
    ERROR,
    QUEUE_RECORDS_MAX,
    TEXT_CHARACTERS_MAX,
    OtlpLogExporter,
    OtlpRecord,
    check_url,
    encode_records,
    parse_headers,
)
from tests.processes import GUARD_SECONDS, free_port


class Collector:
    """Answers with `status`, and records its input."""

    def __init__(self) -> None:
        self.status = 200
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.received = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                outer.headers.append(dict(self.headers) | {"path": self.path})
                self.send_response(outer.status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")
                outer.received.set()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def records(self) -> list[str]:
        return [record.body.string_value for body in self.bodies for record in decoded(body)]


def decoded(body: bytes) -> list[Any]:
    request = json_format.Parse(body, ExportLogsServiceRequest())
    return [record for resource in request.resource_logs for scope in resource.scope_logs for record in scope.log_records]  # fmt: skip


@pytest.fixture
def collector() -> Iterator[Collector]:
    result = Collector()
    thread = threading.Thread(target=result.server.serve_forever, args=(0.02,))
    thread.start()
    yield result
    result.server.shutdown()
    thread.join()
    result.server.server_close()


def record(at: int) -> OtlpRecord:
    return OtlpRecord("gangline.act", f"step {at}", 10**18 + at, attributes={"gangline.advisory": f"a{at}"})  # fmt: skip


def test_a_record_decodes_field_by_field() -> None:
    """64-bit times as text, no empty attributes, text cut and always UTF-8."""
    whole = OtlpRecord(
        "gangline.act", "x" * 10_000 + "\udcff", 1_790_000_000_123_456_789, ERROR,
        {"gangline.advisory": "a7", "gangline.revision": 3, "gangline.confidence": 0.25, "empty": "", "flag": True, "odd": "a\udcffb"},
    )  # fmt: skip
    body = encode_records("gangline-executor", "head-1", [whole], 5)
    request = json_format.Parse(body, ExportLogsServiceRequest())
    (resource,) = request.resource_logs
    attributes = {
        attribute.key: attribute.value.string_value for attribute in resource.resource.attributes
    }
    assert attributes == {"service.name": "gangline-executor", "service.instance.id": "head-1"}
    (result,) = resource.scope_logs[0].log_records
    assert (result.time_unix_nano, result.observed_time_unix_nano) == (whole.time_ns, 5)
    assert (result.severity_number, result.severity_text, result.event_name) == (17, "ERROR", "gangline.act")  # fmt: skip
    assert len(result.body.string_value) == TEXT_CHARACTERS_MAX
    values = {attribute.key: attribute.value for attribute in result.attributes}
    assert values["gangline.revision"].int_value == 3
    assert values["gangline.confidence"].double_value == 0.25
    assert values["odd"].string_value == r"a\udcffb" and values["flag"].string_value == "True"
    assert "empty" not in values


def test_records_reach_the_collector(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """In order, in batches, with the headers of OpenTelemetry's own variable."""
    monkeypatch.setattr(otlp_logs, "BATCH_SECONDS", 0.01)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc, x-tenant=ml")
    exporter = OtlpLogExporter(collector.url + "/", "gangline-executor", "one")
    for index in range(BATCH_RECORDS + 10):
        exporter.export(record(index))
    exporter.start()
    assert collector.received.wait(GUARD_SECONDS)
    exporter.close()
    for _ in range(2):
        assert exporter.flush()
    exporter.close()
    assert collector.records() == [f"step {index}" for index in range(BATCH_RECORDS + 10)]
    assert not exporter.dropped_count
    assert collector.headers[0]["path"] == "/v1/logs"
    assert collector.headers[0]["authorization"] == "Bearer abc"


@pytest.mark.parametrize(("status", "is_kept"), [(503, True), (429, True), (400, False), (404, False)])  # fmt: skip
def test_a_collector_that_refuses(collector: Collector, status: int, is_kept: bool) -> None:
    """Temporary refusals are retried; permanently refused records are dropped and counted."""
    exporter = OtlpLogExporter(collector.url, "s", "i")
    exporter.export(record(1))
    collector.status = status
    assert exporter.flush() is not is_kept
    assert exporter.dropped_count == int(not is_kept)
    collector.status = 200
    exporter.flush()
    assert collector.records() == ["step 1"] * (1 + is_kept)
    exporter.close()


def test_a_collector_that_is_away_costs_records_and_no_time(caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    """The queue is bounded, further records are counted, and one log line reports it."""
    exporter = OtlpLogExporter(f"http://127.0.0.1:{free_port()}", "s", "i")
    assert exporter.flush(), "nothing waits"
    taken = [exporter.export(record(index)) for index in range(QUEUE_RECORDS_MAX + 7)]
    assert sum(taken) == QUEUE_RECORDS_MAX and exporter.dropped_count == 7
    assert not exporter.flush() and not exporter.flush()
    assert (
        len([record for record in caplog.records if "does not accept OTLP logs" in record.message])
        == 1
    )
    exporter.close()


@pytest.mark.parametrize("url", ["collector:4318", "ftp://a", "http://", "http://a:99999", "http://u:p@a", "http://a/?b"])  # fmt: skip
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="the address of an OTLP collector"):
        check_url(url)
    check_url("")


@pytest.mark.parametrize("text", ["a", "a=b\n", "a=%0d%0a", "a b=c", ",".join(f"h{index}=x" for index in range(17))])  # fmt: skip
def test_headers_that_are_none(text: str) -> None:
    """A line break in a header would begin another one."""
    if text == "a=b\n":
        assert parse_headers(text) == {"a": "b"}
        return
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_HEADERS"):
        parse_headers(text)
