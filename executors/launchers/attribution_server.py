"""HTTP server of the attribution service (`--ft-attribution-endpoint`): `GET /healthz`, `POST /logs`, `GET /logs?log_path=`.

There is no login: by the address of its connection, a client gets answers only about a job on its own host. No request changes
the scheduler.
"""

from __future__ import annotations

import json
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ..settings import parse_listen
from .attribution import (
    JOB_CHARACTERS_MAX,
    LOG_PATH_CHARACTERS_MAX,
    AttributionBoard,
    AttributionRequestError,
)

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 64 << 10
#: A further connection closes the oldest connection.
CONNECTIONS_MAX = 32
#: A connection that sends nothing for this long is closed.
IDLE_SECONDS = 10.0
#: Each refusal is logged once; further refusals beyond this limit are not logged.
LOGGED_MAX = 1000


class AttributionServer:
    """The HTTP server: call `start`, then `close`.

    Raises OSError if *listen* cannot be bound, ValueError if it is invalid.
    """

    def __init__(
        self, board: AttributionBoard, listen: str, wall: Callable[[], float] = time.time
    ) -> None:
        host, port = parse_listen(listen)
        self.board = board

        class BoundHandler(_Handler):
            service = _Service(board, wall)

        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = _LimitedServer((host, port), BoundHandler, family)
        bound = self._server.server_address
        self.address = f"[{bound[0]!s}]:{bound[1]}" if ":" in host else f"{bound[0]!s}:{bound[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="attribution", daemon=True
        )

    def start(self) -> None:
        """Start the thread that answers requests."""
        self._thread.start()
        log.info("attribution: http://%s", self.address)

    def close(self) -> None:
        """Stop the server, and close its connections."""
        self._server.shutdown()
        self._server.server_close()
        self._server.close_connections()
        self._thread.join()


class _Service:
    """Converts requests to calls of the board, and its results to JSON objects."""

    def __init__(self, board: AttributionBoard, wall: Callable[[], float]) -> None:
        self._board, self._wall = board, wall
        self._logged: set[str] = set()

    def health(self) -> dict[str, Any]:
        if self._board.view.is_live:
            return {"status": "ok", "issues": []}
        return {"status": "degraded", "issues": ["no current advice from the aggregator"]}

    def submit(self, body: bytes, client: str) -> dict[str, Any]:
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            raise AttributionRequestError(400, "the body is not JSON") from None
        if not isinstance(fields, dict):
            raise AttributionRequestError(400, "the body is not a JSON object with log_path")
        job = fields.get("job_id") or ""
        if not isinstance(job, str) or len(job) > JOB_CHARACTERS_MAX:
            raise AttributionRequestError(
                400, f"job_id: text of at most {JOB_CHARACTERS_MAX} characters"
            )
        path = _checked_path(fields.get("log_path"))
        try:
            self._board.submit(path, job, client, self._wall())
        except AttributionRequestError as error:
            if (refusal := str(error)) not in self._logged and len(self._logged) < LOGGED_MAX:
                self._logged.add(refusal)
                log.warning("attribution: a log is refused: %s", refusal)
            raise
        return {"submitted": True, "normalized_path": path, "mode": "single"}

    def answer(self, query: str, client: str) -> dict[str, Any]:
        try:
            fields = parse_qs(query, max_num_fields=20)
        except ValueError:
            raise AttributionRequestError(400, "more than 20 parameters") from None
        path = _checked_path(fields.get("log_path", [None])[-1])
        wait = fields.get("wait", ["true"])[-1].lower() not in ("false", "0", "no", "off")
        found = self._board.answer(path, client, self._wall(), wait=wait)
        recommendation = {"action": found.action, "reason": found.reason, "source": "gangline"}
        return {
            "status": "completed" if found.is_final else "in_progress",
            "mode": "single",
            "log_file": path,
            "result": {"recommendation": recommendation},
            "recommendation": recommendation,
        }


def _checked_path(path: object) -> str:
    if not isinstance(path, str) or not 0 < len(path) <= LOG_PATH_CHARACTERS_MAX:
        raise AttributionRequestError(
            400, f"log_path: the log's path, 1 to {LOG_PATH_CHARACTERS_MAX} characters"
        )
    return path


class _Handler(BaseHTTPRequestHandler):
    service: _Service
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    disable_nagle_algorithm = True
    #: Send headers and body in a single write.
    wbufsize = 1 << 16

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if address.path == "/healthz":
            self._respond(self.service.health)
        elif address.path == "/logs":
            self._respond(lambda: self.service.answer(address.query, self.client_address[0]))
        else:
            self._refuse(404, "no such path: GET /healthz, POST /logs, GET /logs?log_path=")

    def do_POST(self) -> None:
        if urlsplit(self.path).path != "/logs":
            self._refuse(404, "no such path: POST /logs")
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self._refuse(411, "Content-Length is missing")
        elif int(length[:20]) > BODY_BYTES_MAX:
            self._refuse(413, f"the body is larger than {BODY_BYTES_MAX} bytes")
        else:
            body = self.rfile.read(int(length))
            self._respond(lambda: self.service.submit(body, self.client_address[0]))

    def _respond(self, work: Callable[[], dict[str, Any]]) -> None:
        try:
            self._send(200, work())
        except AttributionRequestError as error:
            self._refuse(error.status, str(error))

    def _refuse(self, status: int, message: str) -> None:
        self.close_connection = True  # the request's body may still arrive
        self._send(status, {"error_code": "invalid_request", "message": message})

    def _send(self, status: int, fields: dict[str, Any]) -> None:
        content = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def version_string(self) -> str:
        return "gangline"

    def log_message(self, format: str, *arguments: object) -> None:
        log.debug(format, *arguments)


class _LimitedServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], handler: type[_Handler], family: socket.AddressFamily
    ) -> None:
        self.address_family = family
        self._open: dict[int, Any] = {}
        self._open_lock = threading.Lock()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind without http.server's reverse look-up of this machine's name, which can take seconds."""
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._open_lock:
            self._open[id(request)] = request
            oldest = next(iter(self._open.values())) if len(self._open) > CONNECTIONS_MAX else None
        if oldest is not None:
            _shut(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._open_lock:
            self._open.pop(id(request), None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if not isinstance(error, OSError):  # OSError: the client disconnected early
            log.error("attribution: a request failed", exc_info=error)

    def close_connections(self) -> None:
        with self._open_lock:
            waiting = list(self._open.values())
        for request in waiting:
            _shut(request)


def _shut(request: Any) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # already closed
