"""HTTP server of the attribution service (`--ft-attribution-endpoint`): `GET /healthz`, `POST /logs`, `GET /logs?log_path=`.

There is no login: by the address of its connection, a client gets answers only about a job on its own host. No request changes
the scheduler.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from aiohttp import web

from ...contract.server.http_server import HttpLimits, HttpThread, Routes, listener
from ..settings import parse_listen
from .attribution import (
    JOB_CHARACTERS_MAX,
    LOG_PATH_CHARACTERS_MAX,
    AttributionBoard,
    AttributionRequestError,
)

log = logging.getLogger(__name__)

LIMITS = HttpLimits(connections_max=32, idle_seconds_max=10.0)
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
        self._server = HttpThread(listener(host, port), _routes(_Service(board, wall)), LIMITS)
        self.address = f"{f'[{host}]' if ':' in host else host}:{self._server.port}"

    def start(self) -> None:
        """Start the thread that answers requests."""
        self._server.start()
        log.info("attribution: http://%s", self.address)

    def close(self) -> None:
        """Stop the server, and close its connections."""
        self._server.close()


def _routes(service: _Service) -> Routes:
    async def health(request: web.BaseRequest) -> web.Response:
        del request
        return web.json_response(service.health())

    async def submit(request: web.BaseRequest) -> web.Response:
        body = await request.read()
        return await _respond(lambda: service.submit(body, _client(request)))

    async def answer(request: web.BaseRequest) -> web.Response:
        return await _respond(lambda: service.answer(request.query_string, _client(request)))

    return {("GET", "/healthz"): health, ("POST", "/logs"): submit, ("GET", "/logs"): answer}


def _client(request: web.BaseRequest) -> str:
    return request.remote or ""


async def _respond(work: Callable[[], dict[str, Any]]) -> web.Response:
    """Return the result of *work* as JSON. It runs in a thread, because it may resolve names."""
    try:
        return web.json_response(await asyncio.to_thread(work))
    except AttributionRequestError as error:
        fields = {"error_code": "invalid_request", "message": str(error)}
        return web.json_response(fields, status=error.status)


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
