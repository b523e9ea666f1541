"""Calls of the Kubernetes API server, its paged lists and its watches, over logins and connections of the official client.

The client finds and renews the login and owns the connections. Objects stay JSON: its model classes are not used.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import socket
import ssl
import subprocess
import threading
import time
import urllib.parse
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from ..model import SchedulerError

if TYPE_CHECKING:
    from kubernetes.client import Configuration
    from urllib3 import BaseHTTPResponse, PoolManager

log = logging.getLogger(__name__)

CALL_SECONDS = 10.0
#: A larger answer of a call, or a larger event of a watch, is refused.
ANSWER_BYTES_MAX, EVENT_BYTES_MAX = 256 << 20, 8 << 20
#: Bytes of a watch per read.
READ_BYTES = 64 << 10
#: Number of objects per page of a list; an object has a few KB.
PAGE_OBJECTS = 500
#: The server ends a watch after the first time; a connection that is silent for the second time is closed.
WATCH_SECONDS, WATCH_SILENCE_SECONDS = 240, 300.0
#: A login that the API server refuses is loaded again, but only after this time.
RENEW_SECONDS = 10.0
#: A login's program that runs longer is killed: calls of all threads wait for it.
LOGIN_SECONDS_MAX = 60.0
KUBECONFIG_BYTES_MAX = 1 << 20
MESSAGE_CHARACTERS_MAX = 300
#: A dead host does not close a connection, so the kernel probes each connection after 20 s of silence.
SOCKET_OPTIONS = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_KUBECONFIG = "~/.kube/config"
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


class ApiAccess:
    """Address of the API server, and the login. Several threads may use it."""

    def __init__(
        self,
        source: str,
        load: Callable[[], Configuration],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """*source*: where the login comes from, for messages; *load*: may raise any exception."""
        self.source, self._load, self._monotonic = source, load, monotonic
        self._lock = threading.Lock()
        self._loaded_at = monotonic()
        #: Why the last renewal failed; "" if it did not.
        self._failure = ""
        self.configuration = self._loaded()

    @property
    def shown(self) -> str:
        """The address, for messages."""
        return str(self.configuration.host)

    def authorization(self) -> dict[str, str]:
        """Return the Authorization header; {} for a login without a token. Raises ApiError.

        The client renews an expired token here: with the login's program, or from the pod's file each minute.
        """
        with self._lock:
            try:
                setting = self.configuration.auth_settings().get("BearerToken")
            except Exception as error:
                raise ApiError(0, f"{self.source}: the login was not renewed: {error}") from error
        # A token read from a file may end with a newline, which no header may contain.
        return {"Authorization": str(setting["value"]).strip()} if setting else {}

    def renew(self, refused: Configuration) -> bool:
        """Load the login again; return whether another login than *refused* is active now. Raises ApiError.

        The client never reads again a token file, an OIDC token, or a certificate of the login's program.
        """
        with self._lock:
            if self.configuration is not refused:
                return True
            now = self._monotonic()
            is_due = now - self._loaded_at >= RENEW_SECONDS
            if is_due:
                self._loaded_at, self._failure = now, ""
                try:
                    self.configuration = self._loaded()
                except SchedulerError as error:
                    self._failure = str(error)
            if self._failure:
                raise ApiError(401, self._failure)
            return is_due

    def _loaded(self) -> Configuration:
        try:
            configuration = self._load()
            login = urllib.parse.urlsplit(configuration.proxy or "").netloc.rpartition("@")[0]
            if login:  # urllib3 sends it only as a header
                login = b64encode(urllib.parse.unquote(login).encode()).decode()
                configuration.proxy_headers = {"Proxy-Authorization": f"Basic {login}"}
            return configuration
        # The client parses files, runs programs and calls identity providers.
        except Exception as error:
            raise SchedulerError(f"{self.source}: {str(error) or repr(error)}") from error


def find_access(server: str = "", kubeconfig: str = "") -> ApiAccess:
    """Return access by *server*, else *kubeconfig*, else the pod's service account, else kubectl's kubeconfig.

    Raises SchedulerError.
    """
    try:
        import kubernetes.config  # noqa: F401  (0.4 s and 37 MB: nothing else pays for it)
    except ImportError as error:
        raise SchedulerError(
            f"the official client of Kubernetes is missing ({error}): pip install 'gangline[executor]'"
        ) from error
    if server:
        return ApiAccess(f"kubernetes_server = {server[:80]!r}", partial(_load_server, server))
    if kubeconfig:
        return ApiAccess(f"kubeconfig {kubeconfig}", partial(_load_kubeconfig, kubeconfig))
    if is_in_pod():
        return ApiAccess(
            f"service account {SERVICE_ACCOUNT}",
            partial(_load_service_account, os.environ, SERVICE_ACCOUNT),
        )
    default = os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
    if not _existing(default):
        raise SchedulerError(
            f"this is not a pod with a service account, and there is no kubeconfig {default}. "
            "Log in as for kubectl, or set kubeconfig = FILE (`kubectl config view` shows kubectl's own)"
        )
    return ApiAccess(f"kubeconfig {default}", partial(_load_kubeconfig, default))


def is_in_pod() -> bool:
    """Return whether this process runs in a pod with a service account."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (SERVICE_ACCOUNT / "token").exists()


def _existing(paths: str) -> list[str]:
    """Return the existing files of *paths*, which has the form of $KUBECONFIG."""
    files = (os.path.expanduser(path) for path in paths.split(os.pathsep) if path)
    return [file for file in files if os.path.exists(file)]


def _load_server(server: str) -> Configuration:
    from kubernetes.client import Configuration

    configuration = Configuration(host=_checked_address(server, ":8001"))
    configuration.proxy = None
    return configuration


def _load_service_account(environment: Mapping[str, str], folder: Path) -> Configuration:
    from kubernetes.client import Configuration
    from kubernetes.config.incluster_config import InClusterConfigLoader

    configuration = Configuration()
    InClusterConfigLoader(
        str(folder / "token"), str(folder / "ca.crt"), environ=environment
    ).load_and_set(configuration)
    return configuration


def _load_kubeconfig(paths: str) -> Configuration:
    """Return the login of the current context.

    The first file that sets the context wins, as for kubectl; the client would take the last, and so another cluster.
    """
    import urllib3
    from kubernetes import config
    from kubernetes.client import Configuration
    from kubernetes.config import exec_provider

    # The client waits without a limit for a login's program, here and whenever it renews the login.
    exec_provider.subprocess = SimpleNamespace(Popen=LoginProgram, PIPE=subprocess.PIPE)  # type: ignore[attr-defined,assignment]
    files = _existing(paths)
    if not files:
        raise SchedulerError("no such file")
    documents = [_read_kubeconfig(file) for file in files]
    context = next(filter(None, (document.get("current-context") for document in documents)), None)
    if not context:
        raise SchedulerError("no current-context; `kubectl config use-context NAME` sets it")
    configuration = Configuration(host="")
    problems: list[str] = []
    with _root_log_to(problems):
        config.load_kube_config(
            config_file=os.pathsep.join(files),
            context=context,
            client_configuration=configuration,
            # An identity provider may refuse the former refresh token once it has issued another.
            persist_config=all(os.access(file, os.W_OK) for file in files),
        )
    _checked_address(configuration.host)
    is_anonymous = not configuration.api_key and not configuration.cert_file
    if is_anonymous and (problems or configuration.host.startswith("https:")):
        reason = "; ".join(problems) or "the user of its context has no token and no certificate"
        raise SchedulerError(f"{reason}; `kubectl auth whoami` must work with it")
    if not configuration.verify_ssl:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        log.warning("%s: insecure-skip-tls-verify: its identity is not checked", configuration.host)
    return configuration


class LoginProgram(subprocess.Popen[str]):
    """A login's program with a limit of its time."""

    def communicate(
        self, input: str | None = None, timeout: float | None = LOGIN_SECONDS_MAX
    ) -> tuple[str, str]:
        """Return its output. Raises SchedulerError."""
        try:
            return super().communicate(input, timeout)
        except subprocess.TimeoutExpired as error:
            with self:  # waits for its end, and closes the pipes
                self.kill()
            name = cast("list[str]", self.args)[0]
            raise SchedulerError(
                f"exec: {name} ran longer than {timeout:g} s and was killed; run it by hand: it may wait for an answer"
            ) from error


def _read_kubeconfig(file: str) -> dict[str, Any]:
    import yaml

    if os.stat(file).st_size > KUBECONFIG_BYTES_MAX:
        raise SchedulerError(f"{file}: larger than {KUBECONFIG_BYTES_MAX} bytes")
    try:
        # Not CSafeLoader: the wheel of PyYAML 6.0.3 crashes on 100,000 nested lists.
        document = yaml.safe_load(Path(file).read_bytes())
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        text = " ".join(str(error).split())[:MESSAGE_CHARACTERS_MAX]
        raise SchedulerError(f"{file}: neither YAML nor JSON: {text}") from error
    if not isinstance(document, dict):
        raise SchedulerError(
            f"{file}: expected the mapping that `kubectl config view --raw` prints"
        )
    return document


def _checked_address(server: str, default_port: str = "") -> str:
    """Return *server* if it is an https address, or an http address on this machine. Raises SchedulerError, ValueError."""
    parts = urllib.parse.urlsplit(server)
    if parts.port is None and parts.scheme == "http":
        parts = parts._replace(netloc=parts.netloc + default_port)
    is_local = parts.scheme == "http" and parts.hostname in LOCAL_HOSTS
    if not parts.hostname or not (parts.scheme == "https" or is_local):
        raise SchedulerError(
            f"server {server[:80]!r}: expected https://HOST:PORT; without TLS only this machine, such as "
            "http://127.0.0.1:8001 of `kubectl proxy`"
        )
    return parts.geturl().rstrip("/")


@contextmanager
def _root_log_to(messages: list[str]) -> Iterator[None]:
    """Collect the records of the root logger itself: the client logs there when a login's program fails."""

    def collect(record: logging.LogRecord) -> bool:
        messages.append(" ".join(record.getMessage().split())[:MESSAGE_CHARACTERS_MAX])
        return False

    logging.root.addFilter(collect)
    try:
        yield
    finally:
        logging.root.removeFilter(collect)


class ApiServer:
    """The API server, over connections of its own. Several threads may use it. All methods raise ApiError."""

    def __init__(self, access: ApiAccess, seconds_max: float = CALL_SECONDS) -> None:
        """*seconds_max*: timeout of a call."""
        self.access, self._seconds_max = access, seconds_max
        self._lock = threading.Lock()
        self._login: Configuration | None = None
        self._pool: PoolManager | None = None

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            if self._pool is not None:
                self._pool.clear()

    def call(self, method: str, path: str, body: Any = None, content_type: str = JSON) -> Any:
        """Return the answer's JSON."""
        data = json.dumps(body).encode() if body is not None else None
        what = f"{method} {path.partition('?')[0]}"
        with (
            _transport_errors(self.access),
            closing(self._request(method, path, data, content_type)) as response,
        ):
            answer = response.read(ANSWER_BYTES_MAX + 1)
        if len(answer) > ANSWER_BYTES_MAX:
            raise ApiError(0, f"{what}: an answer of more than {ANSWER_BYTES_MAX} bytes")
        return _document(response.status, answer, what, self.access)

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
        query = f"watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}"
        with _transport_errors(self.access):
            response = self._request("GET", f"{path}?{query}", None, JSON)
            if plain := getattr(response.connection, "sock", None):
                plain.settimeout(WATCH_SILENCE_SECONDS)
        return ApiWatch(self.access, response, f"watch {path}")

    def _request(
        self, method: str, path: str, data: bytes | None, content_type: str
    ) -> BaseHTTPResponse:
        """Return the response, whose body is unread.

        If the server has closed the idle connection or refuses the login, repeat the request once.
        """
        from urllib3.exceptions import ProtocolError

        for is_last in (False, True):
            login, pool = self._connections()
            headers = {"Accept": JSON, **self.access.authorization()}
            if data is not None:
                headers["Content-Type"] = content_type
            try:
                response = pool.urlopen(
                    method, login.host + path, body=data, headers=headers,
                    timeout=self._seconds_max, retries=False, redirect=False, preload_content=False,
                )  # fmt: skip
            except ProtocolError as error:
                if is_last or not isinstance(error.args[-1], ConnectionError):
                    raise
                continue
            if response.status != 401 or is_last or not self.access.renew(login):
                break
            response.close()
        return response

    def _connections(self) -> tuple[Configuration, PoolManager]:
        """Return the login and its connections, which carry the login's certificate."""
        from kubernetes.client.rest import RESTClientObject

        with self._lock:
            login = self.access.configuration
            if self._pool is None or self._login is not login:
                # The client's own request methods differ between its versions; the pool does not.
                self._login, self._pool = login, RESTClientObject(login).pool_manager
                self._pool.connection_pool_kw["socket_options"] = SOCKET_OPTIONS
            return login, self._pool


@contextmanager
def _transport_errors(access: ApiAccess) -> Iterator[None]:
    """Raise ApiError for an error of the connection.

    Its text stays the same while the connection is lost: urllib3's messages contain addresses of objects.
    """
    from urllib3.exceptions import HTTPError, ProxyError

    try:
        yield
    except (HTTPError, OSError, ValueError, ImportError) as error:
        cause: BaseException = error
        while isinstance(nested := cause.__cause__ or (cause.args or (None,))[-1], Exception):
            cause = nested
        text = str(cause) or type(cause).__name__
        if isinstance(cause, ssl.SSLCertVerificationError):
            text = f"its CA is not certificate-authority of {access.source}: {cause.verify_message}"
        elif isinstance(cause, ssl.SSLError):
            text = f"TLS with the certificates of {access.source}: {text}"
        if isinstance(error, ProxyError):
            proxy = urllib.parse.urlsplit(str(access.configuration.proxy))
            text = f"proxy {proxy.hostname}:{proxy.port}: {text}"
        raise ApiError(0, f"{access.shown}: {text}") from error


class ApiWatch:
    """Iterates (kind, object), also bookmarks, until the server ends the watch. Raises ApiError."""

    def __init__(self, access: ApiAccess, response: BaseHTTPResponse, shown: str) -> None:
        self._access, self._response, self._shown = access, response, shown

    def close(self) -> None:
        """End the watch, and wake a thread that waits for an event."""
        with suppress(OSError, ValueError, RuntimeError):
            self._response.shutdown()

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        with closing(self._response) as response, _transport_errors(self._access):
            if response.status != 200:
                answer = response.read(EVENT_BYTES_MAX)
                _document(response.status, answer, self._shown, self._access)
            for line in self._lines():
                yield self._event(line)

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        while data := self._response.read1(READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in (*lines, rest):
                if len(line) > EVENT_BYTES_MAX:
                    raise ApiError(
                        0, f"{self._shown}: an event of more than {EVENT_BYTES_MAX} bytes"
                    )
            yield from lines
        if rest:
            yield rest

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


def _document(status: int, answer: bytes, what: str, access: ApiAccess) -> Any:
    """Return the JSON of an answer. Raises ApiError with the server's message for a refusal."""
    if status < 300:
        return _parse(answer, what) if answer else {}
    try:
        message = _message(json.loads(answer))
    except (ValueError, RecursionError):
        message = answer[:MESSAGE_CHARACTERS_MAX].decode("utf-8", "replace").strip()
    message = message or http.client.responses.get(status, "")
    if status == 401:
        message += f"; {access.source}: its login has expired, or is of another cluster"
    raise ApiError(status, f"{what}: {status}: {message}")


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
