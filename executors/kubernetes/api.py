"""Client of the Kubernetes API server over HTTPS, with the standard library only: login, calls, paged lists and watches.

A login is a pod's service account, a kubeconfig in JSON, or a local address where `kubectl proxy` listens.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import os
import socket
import ssl
import tempfile
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model import SchedulerError

CALL_SECONDS = 10.0
#: A larger answer of a call, or a larger event of a watch, is refused.
ANSWER_BYTES_MAX, EVENT_BYTES_MAX = 256 << 20, 8 << 20
#: Number of objects per page of a list; an object has a few KB.
PAGE_OBJECTS = 500
#: The server ends a watch after the first time; a connection that is silent for the second time is closed.
WATCH_SECONDS, WATCH_SILENCE_SECONDS = 240, 300.0
KUBECONFIG_BYTES_MAX = 4 << 20
TOKEN_BYTES_MAX = 64 << 10
MESSAGE_CHARACTERS_MAX = 300

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


class ApiError(SchedulerError):
    """The API server refused a call (HTTP `status`, with the server's message), or did not answer (`status` 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_conflict(self) -> bool:
        """Whether the object has another version now: 409, or 422 for a JSON patch whose `test` fails."""
        return self.status in (409, 422)


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """Address of the API server, and the login."""

    host: str
    port: int
    #: None: without TLS, only for a proxy on this machine.
    tls: ssl.SSLContext | None = None
    token: str = ""
    #: File of the token, read again for each call, because service account tokens change every hour.
    token_file: str = ""
    path: str = ""

    @property
    def shown(self) -> str:
        """The address, for messages."""
        return f"http{'s' if self.tls else ''}://{self.host}:{self.port}{self.path}"

    def authorization(self) -> dict[str, str]:
        """Return the Authorization header; {} for a login without a token. Raises ApiError."""
        token = self.token
        if self.token_file:
            try:
                with open(self.token_file, "rb") as file:
                    token = file.read(TOKEN_BYTES_MAX).decode("ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ApiError(0, f"{self.token_file}: {error}") from error
        return {"Authorization": f"Bearer {token}"} if token else {}


def find_access(server: str = "", kubeconfig: str = "") -> ApiAccess:
    """Return access by *server*, else *kubeconfig*, else service account. Raises SchedulerError."""
    if server:
        return _proxy_access(server)
    if kubeconfig:
        return kubeconfig_access(Path(kubeconfig))
    return service_account_access(os.environ, SERVICE_ACCOUNT)


def _proxy_access(server: str) -> ApiAccess:
    parts = urllib.parse.urlsplit(server)
    try:
        port = parts.port or 8001
    except ValueError as error:
        raise SchedulerError(f"kubernetes_server = {server[:80]!r}: {error}") from error
    if parts.scheme != "http" or parts.hostname not in LOCAL_HOSTS:
        raise SchedulerError(
            f"kubernetes_server = {server[:80]!r}: expected http://127.0.0.1:PORT, where `kubectl proxy` listens; "
            "for another address use kubeconfig"
        )
    return ApiAccess(str(parts.hostname), port, path=parts.path.rstrip("/"))


def service_account_access(environment: Mapping[str, str], folder: Path) -> ApiAccess:
    """Return the access by a pod's service account. Raises SchedulerError outside a pod."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal() or not (folder / "token").exists():
        raise SchedulerError(
            "this is not a pod with a service account. Set kubeconfig (JSON, of `kubectl config "
            "view --raw --minify --flatten -o json`), "
            "or kubernetes_server = http://127.0.0.1:8001 with `kubectl proxy`"
        )
    try:
        tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    except (OSError, ssl.SSLError) as error:
        raise SchedulerError(f"{folder / 'ca.crt'}: {error}") from error
    return ApiAccess(host, int(port), tls, token_file=str(folder / "token"))


def kubeconfig_access(path: Path) -> ApiAccess:
    """Return the access by the current context of a kubeconfig in JSON. Raises SchedulerError."""
    try:
        if path.stat().st_size > KUBECONFIG_BYTES_MAX:
            raise SchedulerError(f"{path}: larger than {KUBECONFIG_BYTES_MAX} bytes")
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise SchedulerError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SchedulerError(
            f"{path}: not JSON; write it with `kubectl config view --raw --minify --flatten -o "
            "json`"
        ) from error
    try:
        context = _named(document, "contexts", document["current-context"])["context"]
        cluster = _named(document, "clusters", context["cluster"])["cluster"]
        user = _named(document, "users", context["user"])["user"]
        return _access_of(path, cluster, user)
    except (KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise SchedulerError(f"{path}: not a valid kubeconfig: {error!r}") from error


def _named(document: Any, kind: str, name: str) -> Any:
    for one in document[kind]:
        if one["name"] == name:
            return one
    raise KeyError(f"{kind} {name}")


def _access_of(path: Path, cluster: Any, user: Any) -> ApiAccess:
    parts = urllib.parse.urlsplit(str(cluster["server"]))
    if parts.scheme != "https" or not parts.hostname:
        raise SchedulerError(f"{path}: server {cluster['server']!r}: expected https://HOST:PORT")
    if "exec" in user or "auth-provider" in user:
        raise SchedulerError(
            f"{path}: the user logs in through another program; run `kubectl proxy`, and set kubernetes_server = http://127.0.0.1:8001"
        )
    if cluster.get("insecure-skip-tls-verify"):
        raise SchedulerError(
            f"{path}: insecure-skip-tls-verify is not accepted; name the CA of the cluster"
        )
    try:
        authority = cluster.get("certificate-authority-data")
        text = base64.b64decode(authority).decode("ascii") if authority else None
        tls = ssl.create_default_context(
            cafile=cluster.get("certificate-authority") if not text else None, cadata=text
        )
        _load_certificate(tls, user)
    except (OSError, ssl.SSLError, UnicodeDecodeError) as error:
        raise SchedulerError(f"{path}: certificates: {error}") from error
    return ApiAccess(
        parts.hostname, parts.port or 443, tls, str(user.get("token", "")), str(user.get("tokenFile", "")), parts.path.rstrip("/")
    )  # fmt: skip


def _load_certificate(tls: ssl.SSLContext, user: Any) -> None:
    """Load the client certificate of *user*; an embedded certificate is written to a private temporary folder first."""
    if "client-certificate" in user and "client-certificate-data" not in user:
        tls.load_cert_chain(user["client-certificate"], user.get("client-key"))
    elif "client-certificate-data" in user:
        with tempfile.TemporaryDirectory() as folder:
            names = []
            for kind in ("client-certificate-data", "client-key-data"):
                file = Path(folder, kind)
                file.touch(0o600)
                file.write_bytes(base64.b64decode(user[kind]))
                names.append(str(file))
            tls.load_cert_chain(*names)


class ApiServer:
    """The API server: all calls share a connection, and each watch has its own.

    Several threads may use it. All methods raise ApiError.
    """

    def __init__(self, access: ApiAccess, seconds_max: float = CALL_SECONDS) -> None:
        """*seconds_max*: timeout of a call."""
        self.access, self._seconds_max = access, seconds_max
        self._connection: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connection of calls."""
        with self._lock:
            self._drop()

    def call(self, method: str, path: str, body: Any = None, content_type: str = JSON) -> Any:
        """Return the answer's JSON. If the server has closed the idle connection, reconnect once."""
        data = json.dumps(body).encode() if body is not None else None
        with self._lock:
            is_fresh = self._connection is None
            try:
                status, answer = self._attempt(method, path, data, content_type)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
                self._drop()
                if is_fresh:
                    raise self._silent(error) from error
                try:
                    status, answer = self._attempt(method, path, data, content_type)
                except (OSError, http.client.HTTPException) as again:
                    self._drop()
                    raise self._silent(again) from again
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                raise self._silent(error) from error
            except BaseException:
                self._drop()
                raise
        return _document(status, answer, f"{method} {path.partition('?')[0]}")

    def list_all(self, path: str, query: str = "") -> tuple[list[Any], str]:
        """Return (all objects of a list, version of the list), read page by page."""
        objects: list[Any] = []
        more = ""
        while True:
            token = f"&continue={urllib.parse.quote(more)}" if more else ""
            document = self.call("GET", f"{path}?limit={PAGE_OBJECTS}{token}{query}")
            try:
                objects += document["items"] or []
                metadata = document["metadata"]
                version, more = str(metadata["resourceVersion"]), str(metadata.get("continue", ""))
            except (KeyError, TypeError, AttributeError) as error:
                raise ApiError(0, f"{path}: not a valid list: {error!r}") from error
            if not more:
                return objects, version

    def watch(self, path: str, version: str) -> ApiWatch:
        """Return a watch of a list, which begins after *version*."""
        connection = self.connect(WATCH_SILENCE_SECONDS)
        query = f"watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}"
        return ApiWatch(self.access, connection, f"{path}?{query}")

    def _attempt(
        self, method: str, path: str, data: bytes | None, content_type: str
    ) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self.connect(self._seconds_max)
        headers = {"Accept": JSON, **self.access.authorization()}
        if data is not None:
            headers["Content-Type"] = content_type
        self._connection.request(method, self.access.path + path, data, headers)
        response = self._connection.getresponse()
        answer = response.read(ANSWER_BYTES_MAX + 1)
        if len(answer) > ANSWER_BYTES_MAX:
            self._drop()
            raise ApiError(0, f"{method} {path}: an answer of more than {ANSWER_BYTES_MAX} bytes")
        if response.will_close:
            self._drop()
        return response.status, answer

    def connect(self, seconds_max: float) -> http.client.HTTPConnection:
        access = self.access
        connection = (
            http.client.HTTPSConnection(
                access.host, access.port, timeout=self._seconds_max, context=access.tls
            )
            if access.tls
            else http.client.HTTPConnection(access.host, access.port, timeout=self._seconds_max)
        )
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise self._silent(error) from error
        plain: socket.socket = connection.sock
        plain.settimeout(seconds_max)
        # A dead host does not close the connection, so the kernel probes it after 20 s of silence.
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _silent(self, error: Exception) -> ApiError:
        return _silence(self.access, error)


def _silence(access: ApiAccess, error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    return ApiError(0, f"{access.shown}: {str(error) or type(error).__name__}")


class ApiWatch:
    """Iterates (kind, object), also bookmarks, until the server ends the watch. Raises ApiError."""

    def __init__(
        self, access: ApiAccess, connection: http.client.HTTPConnection, path: str
    ) -> None:
        self._access, self._connection, self._path = access, connection, path
        self._shown = f"watch {path.partition('?')[0]}"

    def close(self) -> None:
        """End the watch, and wake a thread that waits for an event."""
        plain = self._connection.sock
        if plain is not None:
            with suppress(OSError):
                plain.shutdown(socket.SHUT_RDWR)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        response = None
        try:
            headers = {"Accept": JSON, **self._access.authorization()}
            self._connection.request("GET", self._access.path + self._path, headers=headers)
            response = self._connection.getresponse()
            if response.status != 200:
                _document(response.status, response.read(EVENT_BYTES_MAX), self._shown)
            while line := response.readline(EVENT_BYTES_MAX + 1):
                if len(line) > EVENT_BYTES_MAX:
                    raise ApiError(
                        0, f"{self._shown}: an event of more than {EVENT_BYTES_MAX} bytes"
                    )
                yield self._event(line)
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            raise _silence(self._access, error) from error
        finally:
            if response is not None:
                response.close()
            self._connection.close()

    def _event(self, line: bytes) -> tuple[str, Any]:
        event = _parse(line, self._shown)
        try:
            kind, thing = str(event["type"]), event["object"]
        except (KeyError, TypeError) as error:
            raise ApiError(0, f"{self._shown}: not a valid event: {error!r}") from error
        if kind == "ERROR":
            code = thing.get("code") if isinstance(thing, dict) else 0
            raise ApiError(
                code if isinstance(code, int) else 0, f"{self._shown}: {_message(thing)}"
            )
        return kind, thing


def _parse(answer: bytes, what: str) -> Any:
    try:
        return json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise ApiError(0, f"{what}: the response is not JSON") from error


def _document(status: int, answer: bytes, what: str) -> Any:
    """Return the JSON of an answer. Raises ApiError with the server's message for a refusal."""
    if status < 300:
        return _parse(answer, what) if answer else {}
    try:
        message = _message(json.loads(answer))
    except (ValueError, RecursionError):
        message = answer[:MESSAGE_CHARACTERS_MAX].decode("utf-8", "replace").strip()
    raise ApiError(status, f"{what}: {status}: {message or http.client.responses.get(status, '')}")


def _message(status: Any) -> str:
    """Return the message of a Status object, with its causes, where a disruption budget gives its reason."""
    if not isinstance(status, dict):
        return ""
    words = [str(status.get("message", ""))]
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    for cause in causes[:3] if isinstance(causes, list) else []:
        if isinstance(cause, dict) and cause.get("message"):
            words.append(str(cause["message"]))
    return " ".join("; ".join(words).split())[:MESSAGE_CHARACTERS_MAX]
