"""Logins at a Kubernetes API server: kubeconfigs of each kind, service accounts, proxies, and their renewal."""

from __future__ import annotations

import base64
import gc
import json
import os
import socket
import ssl
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from gangline.executors.kubernetes import api as kubernetes_api
from gangline.executors.kubernetes.api import ApiAccess, ApiError, ApiServer, find_access
from gangline.executors.model import SchedulerError
from tests.aggregator.auth.secured import Secured
from tests.processes import GUARD_SECONDS

Json = dict[str, Any]
PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy")
EKS = {"token": "t-eks", "expirationTimestamp": "2096-01-01T00:00:00Z"}
GKE = {"provideClusterInfo": True, "interactiveMode": "IfAvailable", "installHint": "Install gke-gcloud-auth-plugin"}  # fmt: skip


def json_web_token(expires: int, number: int = 0) -> str:
    payload = base64.urlsafe_b64encode(json.dumps({"exp": expires, "n": number}).encode())
    return f"e30.{payload.decode().rstrip('=')}.sig"


#: They expire in 2001 and in 2096.
EXPIRED, VALID = json_web_token(1_000_000_000), json_web_token(4_000_000_000)
RENEWED = json_web_token(4_000_000_000, 1)


class ApiHost:
    """An API server over TLS that knows its callers; it is the identity provider of OIDC, too."""

    def __init__(self, secured: Secured) -> None:
        self.secured = secured
        #: Authorization headers that it accepts, and the callers of its answers.
        self.accepted: set[str] = set()
        self.callers: list[str] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(secured.server.certificate, secured.server.key)
        context.load_verify_locations(secured.ca)
        context.verify_mode = ssl.CERT_OPTIONAL
        handler = type("BoundHandler", (Handler,), {"host": self})
        self.server = Server(("127.0.0.1", 0), handler)
        self.server.socket = context.wrap_socket(
            self.server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.url = f"https://127.0.0.1:{self.server.server_address[1]}"
        self.watch_ended = threading.Event()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class Handler(BaseHTTPRequestHandler):
    host: ApiHost
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/.well-known/openid-configuration":
            self._send(200, {"token_endpoint": f"{self.host.url}/token"})
            return
        certificate: Any = self.connection.getpeercert()
        subject = dict(pair for (pair,) in certificate["subject"]) if certificate else {}
        # The scheme is the same in any case (RFC 9110).
        authorization = self.headers.get("Authorization", "").replace("bearer", "Bearer")
        caller = authorization or f"CN={subject.get('commonName', '')}"
        if not subject and caller not in self.host.accepted:
            self._send(401, {"kind": "Status", "message": "Unauthorized"})
        elif "watch=1" in self.path:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            self.host.watch_ended.wait(GUARD_SECONDS)
            self.close_connection = True
        else:
            self.host.callers.append(caller)
            self._send(200, {"items": [], "metadata": {"resourceVersion": "7"}})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._send(200, {"access_token": "a", "id_token": RENEWED, "refresh_token": "second"})

    def _send(self, code: int, answer: Any) -> None:
        data = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Secured:
    folder = tmp_path_factory.mktemp("ca")
    return Secured(folder / "ca", folder)


@pytest.fixture
def host(secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiHost]:
    for name in (*PROXY_VARIABLES, "KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    # Temporary files of the client, with client keys.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    created = ApiHost(secured)
    thread = threading.Thread(target=created.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield created
    created.watch_ended.set()
    created.server.shutdown()
    thread.join()
    created.server.server_close()
    with warnings.catch_warnings():
        # The client leaves its connection to the identity provider open.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@contextmanager
def connect_proxy() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a proxy that knows CONNECT, and the heads of its requests."""
    heads: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pump(source: socket.socket, target: socket.socket) -> None:
            try:
                while data := source.recv(65536):
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)
            except OSError:
                return

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                heads.append(client.recv(65536).decode())
                name, _, port = heads[-1].split()[1].rpartition(":")
                with client, socket.create_connection((name, int(port)), GUARD_SECONDS) as target:
                    client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                    back = threading.Thread(target=pump, args=(target, client), daemon=True)
                    back.start()
                    pump(client, target)
                    back.join()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", heads
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def kubeconfig(folder: Path, host: ApiHost, user: Json, *, dump: Callable[[Any], str] = yaml.safe_dump, name: str = "config", **cluster: Any) -> Path:  # fmt: skip
    """Write a kubeconfig with *user*; entries of *cluster* have `_` for `-`, and None removes an entry."""
    entries = {"server": host.url, "certificate_authority": str(host.secured.ca), **cluster}
    document = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {key.replace("_", "-"): value for key, value in entries.items() if value is not None}}],
        "users": [{"name": "u", "user": user}],
    }  # fmt: skip
    path = folder / name
    path.write_text(dump(document))
    return path


def login_program(folder: Path, status: Json, version: str = "v1beta1", **settings: Any) -> Json:
    """Return an exec login whose program prints *status*, read again at each run, and records its runs in FOLDER/runs."""
    (folder / "status.json").write_text(json.dumps(status))
    code = (
        "import json, os, sys\n"
        f"with open({str(folder / 'runs')!r}, 'a') as runs: runs.write(sys.argv[1] + os.environ['REGION'] + '\\n')\n"
        f"json.dump({{'kind': 'ExecCredential', 'apiVersion': 'client.authentication.k8s.io/{version}',\n"
        f"  'status': json.load(open({str(folder / 'status.json')!r}))}}, sys.stdout)\n"
    )
    (folder / "login.py").write_text(code)
    return {
        "apiVersion": f"client.authentication.k8s.io/{version}", "command": sys.executable,
        "args": [str(folder / "login.py"), "get-token"], "env": [{"name": "REGION", "value": "-eu"}], **settings,
    }  # fmt: skip


def embedded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def oidc(host: ApiHost, token: str) -> Json:
    config = {
        "client-id": "i", "client-secret": "s", "id-token": token, "refresh-token": "first",
        "idp-issuer-url": host.url, "idp-certificate-authority": str(host.secured.ca),
    }  # fmt: skip
    return {"auth-provider": {"name": "oidc", "config": config}}


def token_file(folder: Path) -> Json:
    (folder / "token").write_text("t-file\n")
    return {"tokenFile": "token"}


def certificate_files(host: ApiHost) -> Json:
    files = host.secured.certificate("operator", "ops", force=True)
    return {"client-certificate": str(files.certificate), "client-key": str(files.key)}


def certificate_data(host: ApiHost) -> Json:
    files = host.secured.certificate("operator", "ops", force=True)
    return {"client-certificate-data": embedded(files.certificate), "client-key-data": embedded(files.key)}  # fmt: skip


def certificate_program(folder: Path, host: ApiHost) -> Json:
    files = host.secured.certificate("operator", "ops", force=True)
    status = {"clientCertificateData": files.certificate.read_text(), "clientKeyData": files.key.read_text()}  # fmt: skip
    return {"exec": login_program(folder, status)}


#: Kind of login -> (user of its kubeconfig, the caller that the API server sees).
KINDS: dict[str, tuple[Callable[[Path, ApiHost], Json], str]] = {
    "token": (lambda folder, host: {"token": "t"}, "Bearer t"),
    "token file with a newline, beside the kubeconfig": (lambda folder, host: token_file(folder), "Bearer t-file"),
    "EKS": (lambda folder, host: {"exec": login_program(folder, EKS)}, "Bearer t-eks"),
    "GKE": (lambda folder, host: {"exec": login_program(folder, {"token": "t-gke"}, "v1", **GKE)}, "Bearer t-gke"),
    "certificate of a program": (certificate_program, "CN=ops"),
    "certificate files": (lambda folder, host: certificate_files(host), "CN=ops"),
    "certificate data": (lambda folder, host: certificate_data(host), "CN=ops"),
    "OIDC": (lambda folder, host: oidc(host, VALID), f"Bearer {VALID}"),
    "OIDC that has expired": (lambda folder, host: oidc(host, EXPIRED), f"Bearer {RENEWED}"),
    "password": (lambda folder, host: {"username": "ops", "password": "secret"}, "Basic b3BzOnNlY3JldA=="),
}  # fmt: skip


@pytest.mark.parametrize("dump", [yaml.safe_dump, json.dumps], ids=["YAML", "JSON"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_kubeconfig_logs_in(
    kind: str, dump: Callable[[Any], str], host: ApiHost, tmp_path: Path
) -> None:
    """Only JSON without a login program was read; `kubectl proxy`, used instead, gives each local user its rights."""
    user, caller = KINDS[kind]
    host.accepted = {caller}
    path = kubeconfig(tmp_path, host, user(tmp_path, host), dump=dump)
    with closing(ApiServer(find_access(kubeconfig=str(path)))) as api:
        api.list_all("/api/v1/nodes")
    assert host.callers == [caller]


def test_a_renewed_refresh_token_is_kept(host: ApiHost, tmp_path: Path) -> None:
    """At the next start the identity provider refused the refresh token that it had replaced."""
    path = kubeconfig(tmp_path, host, oidc(host, EXPIRED))
    find_access(kubeconfig=str(path))
    (user,) = yaml.safe_load(path.read_text())["users"]
    config = user["user"]["auth-provider"]["config"]
    assert (config["id-token"], config["refresh-token"]) == (RENEWED, "second")


@pytest.mark.parametrize(
    "cluster",
    [
        {"certificate_authority": None, "certificate_authority_data": "CA"},
        {"certificate_authority": None, "insecure_skip_tls_verify": True},
        {"tls_server_name": "localhost"},
    ],
)
def test_the_server_of_a_kubeconfig(cluster: Json, host: ApiHost, tmp_path: Path) -> None:
    """A CA in the kubeconfig, no check of the CA, and a certificate for another name than the address."""
    host.accepted = {"Bearer t"}
    cluster = {key: embedded(host.secured.ca) if value == "CA" else value for key, value in cluster.items()}  # fmt: skip
    path = kubeconfig(tmp_path, host, {"token": "t"}, **cluster)
    with closing(ApiServer(find_access(kubeconfig=str(path)))) as api:
        assert api.list_all("/api/v1/nodes") == ([], "7")


@pytest.mark.parametrize(
    ("variables", "proxy_url", "through"),
    [
        ({}, "http://{}", True),
        ({"NO_PROXY": "other.example"}, "http://ops:p%40ss@{}", True),
        ({"HTTPS_PROXY": "http://{}"}, None, True),
        ({"https_proxy": "http://{}", "no_proxy": "k.example,127.0.0.0/8"}, None, False),
        ({"HTTP_PROXY": "http://127.0.0.1:1"}, None, False),
    ],
)
def test_a_proxy(
    variables: dict[str, str], proxy_url: str | None, through: bool,
    host: ApiHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Versions before 37 of the client ignore proxy-url and NO_PROXY."""
    host.accepted = {"Bearer t"}
    with connect_proxy() as (address, heads):
        for name, value in variables.items():
            monkeypatch.setenv(name, value.format(address))
        url = proxy_url and proxy_url.format(address)
        path = kubeconfig(tmp_path, host, {"token": "t"}, proxy_url=url)
        with closing(ApiServer(find_access(kubeconfig=str(path)))) as api:
            api.list_all("/api/v1/nodes")
            watch = api.watch("/api/v1/nodes", "7")
            host.watch_ended.set()
            with pytest.raises(ApiError):
                list(watch)
    assert bool(heads) is through
    if proxy_url and "@" in proxy_url:
        assert all("Proxy-Authorization: Basic b3BzOnBAc3M=" in head for head in heads)


def pod(folder: Path, host: ApiHost, token: str) -> Callable[[], Any]:
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_bytes(host.secured.ca.read_bytes())
    address, _, port = host.url.rpartition("//")[2].partition(":")
    environment = {"KUBERNETES_SERVICE_HOST": address, "KUBERNETES_SERVICE_PORT": port}
    return partial(kubernetes_api._load_service_account, environment, folder)


def from_kubeconfig(folder: Path, host: ApiHost, user: Json) -> Callable[[], Any]:
    return partial(kubernetes_api._load_kubeconfig, str(kubeconfig(folder, host, user)))


#: Login -> (how it is loaded, how another token comes to it, the two callers).
RENEWALS: dict[str, tuple[Callable[[Path, ApiHost], Any], Callable[[Path, ApiHost], Any], tuple[str, str]]] = {
    "service account": (lambda folder, host: pod(folder, host, "one"), lambda folder, host: (folder / "token").write_text("two"), ("Bearer one", "Bearer two")),
    "token file": (
        lambda folder, host: from_kubeconfig(folder, host, token_file(folder)), lambda folder, host: (folder / "token").write_text("two\n"),
        ("Bearer t-file", "Bearer two"),
    ),
    "program whose token is revoked": (
        lambda folder, host: from_kubeconfig(folder, host, {"exec": login_program(folder, EKS)}),
        lambda folder, host: login_program(folder, {"token": "two"}), ("Bearer t-eks", "Bearer two"),
    ),
    "OIDC": (
        lambda folder, host: from_kubeconfig(folder, host, oidc(host, VALID)),
        lambda folder, host: kubeconfig(folder, host, oidc(host, EXPIRED)), (f"Bearer {VALID}", f"Bearer {RENEWED}"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", RENEWALS)
def test_a_login_that_the_server_refuses_is_loaded_again(
    kind: str, host: ApiHost, tmp_path: Path
) -> None:
    """The client reads a token file and an OIDC token once: after an hour each call got 401."""
    load, change, (first, second) = RENEWALS[kind]
    now = 100.0
    access = ApiAccess("test", load(tmp_path, host), monotonic=lambda: now)
    host.accepted = {first}
    with closing(ApiServer(access)) as api:
        api.list_all("/api/v1/nodes")
        change(tmp_path, host)
        host.accepted = {second}
        # A refused login is not loaded at each call: its program may take seconds.
        with pytest.raises(ApiError, match="401: Unauthorized; test: its login has expired"):
            api.list_all("/api/v1/nodes")
        now += kubernetes_api.RENEW_SECONDS
        api.list_all("/api/v1/nodes")
    assert host.callers == [first, second]


def test_a_program_runs_again_when_its_token_expires(host: ApiHost, tmp_path: Path) -> None:
    """EKS's tokens are valid for 15 minutes."""
    login = login_program(tmp_path, {**EKS, "expirationTimestamp": "2001-01-01T00:00:00Z"})
    path = kubeconfig(tmp_path, host, {"exec": login})
    host.accepted = {"Bearer t-eks", "Bearer two"}
    with closing(ApiServer(find_access(kubeconfig=str(path)))) as api:
        login_program(tmp_path, {**EKS, "token": "two"})
        api.list_all("/api/v1/nodes")
        api.list_all("/api/v1/nodes")
    assert host.callers == ["Bearer two", "Bearer two"]
    assert (tmp_path / "runs").read_text() == "get-token-eu\n" * 2


def test_a_program_that_hangs_is_killed(
    host: ApiHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`aws` waited for a second factor: the executor neither carried out advice nor reported anything."""
    monkeypatch.setattr(kubernetes_api.LoginProgram.communicate, "__defaults__", (None, 0.2))
    login = login_program(tmp_path, EKS)
    (tmp_path / "login.py").write_text(
        "import time; time.sleep(3600)"
    )  # the call waits for its end
    path = kubeconfig(tmp_path, host, {"exec": login})
    with pytest.raises(SchedulerError, match=r"exec: .* ran longer than 0\.2 s and was killed"):
        find_access(kubeconfig=str(path))


def test_a_login_that_cannot_be_renewed_says_why(host: ApiHost, tmp_path: Path) -> None:
    """`Unauthorized` alone does not show that the program of the login fails since yesterday."""
    now = 100.0
    login = login_program(tmp_path, {"token": "one"})
    load = from_kubeconfig(tmp_path, host, {"exec": login})
    access = ApiAccess("kubeconfig x", load, monotonic=lambda: now)
    (tmp_path / "login.py").write_text("import sys; sys.exit('Session has expired, run aws sso login')")  # fmt: skip
    now += kubernetes_api.RENEW_SECONDS
    with closing(ApiServer(access)) as api, pytest.raises(ApiError) as raised:
        api.call("GET", "/api/v1/nodes")
    assert raised.value.status == 401
    # A watch logs each message once: the next call, before the login is due again, has the same.
    with closing(ApiServer(access)) as api, pytest.raises(ApiError) as again:
        api.call("GET", "/api/v1/nodes")
    assert str(again.value) == str(raised.value)
    assert "kubeconfig x: exec: process returned 1. Session has expired, run aws sso login" in str(raised.value)  # fmt: skip


@pytest.mark.parametrize(
    ("user", "cluster", "message"),
    [
        ({}, {}, "has no token and no certificate; `kubectl auth whoami` must work with it"),
        ({"token": "t"}, {"server": "http://k.example"}, "server 'http://k.example': expected https://HOST:PORT"),
        ({"token": "t"}, {"server": None}, "Expected key server|expected https://HOST:PORT"),
        ({"token": "t"}, {"certificate_authority": "/nowhere"}, "File does not exist: /nowhere"),
        ({"token": "t"}, {"certificate_authority": None, "certificate_authority_data": "AAA"}, "padding"),
        ({"tokenFile": "/nowhere"}, {}, "No such file or directory: '/nowhere'"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/nowhere/aws"}}, {}, "No such file or directory: '/nowhere/aws'"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "false"}}, {}, "exec: process returned 1"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "true"}}, {}, "exec: failed to decode process output"),
        ({"exec": {"command": "true"}}, {}, "missing key 'apiVersion'"),
        ({"exec": 7}, {}, "config"),
        ({"auth-provider": {"name": "oidc", "config": {"id-token": "x"}}}, {}, "has no token and no certificate"),
    ],
)  # fmt: skip
def test_a_kubeconfig_that_cannot_be_used_says_why(
    user: Json, cluster: Json, message: str, host: ApiHost, tmp_path: Path
) -> None:
    """A login that fails must not end as an anonymous caller, whom the server only calls unauthorized."""
    path = kubeconfig(tmp_path, host, user, **cluster)
    with pytest.raises(SchedulerError, match=message) as raised:
        find_access(kubeconfig=str(path))
    assert str(raised.value).startswith(f"kubeconfig {path}: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "neither YAML nor JSON"),
        (b"\xff\xfe\x00", "neither YAML nor JSON"),
        (b"[" * 100_000, "neither YAML nor JSON"),
        (b"", "expected the mapping that `kubectl config view --raw` prints"),
        (b"- 7", "expected the mapping"),
        (b"{}", "no current-context; `kubectl config use-context NAME` sets it"),
        (b"current-context: c", "config"),
        (b"current-context: c\ncontexts: [7]\nclusters: 7", "config"),
        (b"current-context: c\ncontexts: [{name: d, context: {}}]", "Expected object with name c"),
        (b" " * (kubernetes_api.KUBECONFIG_BYTES_MAX + 1), "larger than"),
    ],
)
def test_a_file_that_is_no_kubeconfig_says_so(text: bytes, message: str, tmp_path: Path) -> None:
    """The message names the file and the fault."""
    path = tmp_path / "config"
    path.write_bytes(text)
    with pytest.raises(SchedulerError, match=message) as raised:
        find_access(kubeconfig=str(path))
    assert str(path) in str(raised.value)


def test_a_server_of_another_ca_says_which_ca_is_missing(host: ApiHost, tmp_path: Path) -> None:
    """`certificate verify failed` alone does not say where the right CA belongs."""
    other = Secured(tmp_path / "other", tmp_path)
    path = kubeconfig(tmp_path, host, {"token": "t"}, certificate_authority=str(other.ca))
    with closing(ApiServer(find_access(kubeconfig=str(path)))) as api:
        messages = set()
        for _ in range(2):
            with pytest.raises(ApiError, match=r"is not certificate-authority of kubeconfig .*: self") as raised:  # fmt: skip
                api.call("GET", "/api/v1/nodes")
            messages.add(str(raised.value))
    # A watch logs each message once, so it must not change.
    assert len(messages) == 1


def test_no_answer_has_one_message(tmp_path: Path, host: ApiHost) -> None:
    """urllib3's text has the address of an object, so a watch would log each of its retries."""
    for proxy, message in ((None, "Connection refused"), ("http://127.0.0.1:1", r"proxy 127\.0\.0\.1:1: .*Connection refused")):  # fmt: skip
        path = kubeconfig(tmp_path, host, {"token": "t"}, server="https://127.0.0.1:1", proxy_url=proxy)  # fmt: skip
        with closing(ApiServer(find_access(kubeconfig=str(path)))) as api:
            with pytest.raises(ApiError, match=message) as raised:
                api.call("GET", "/api/v1/nodes")
            assert "0x" not in str(raised.value) and str(raised.value).startswith("https://127.0.0.1:1: ")  # fmt: skip


def test_the_order_of_logins(
    host: ApiHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting comes first, then the pod, then kubectl's files, of which the first with a context wins.

    The client itself takes the context of the last file: the executor would act in another cluster than kubectl shows.
    """
    with pytest.raises(SchedulerError, match=r"not a pod with a service account.*~/\.kube/config"):
        find_access()
    first = kubeconfig(tmp_path, host, {"token": "t"}, server="https://first.example", name="first")
    last = kubeconfig(tmp_path, host, {"token": "t"}, server="https://last.example", name="last")
    document = yaml.safe_load(last.read_text())
    document["current-context"] = document["contexts"][0]["name"] = "other"
    last.write_text(yaml.safe_dump(document))
    home = tmp_path / "home" / ".kube"
    home.mkdir(parents=True)
    (home / "config").write_bytes(last.read_bytes())
    assert find_access().shown == "https://last.example"
    monkeypatch.setenv("KUBECONFIG", f"/nowhere{os.pathsep}{first}{os.pathsep}{last}")
    assert find_access().shown == "https://first.example"
    assert find_access(kubeconfig=str(last)).shown == "https://last.example"
    monkeypatch.setattr(kubernetes_api, "SERVICE_ACCOUNT", tmp_path)
    pod(tmp_path, host, "t")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert find_access().shown == "https://10.0.0.1:443"
    assert find_access("http://127.0.0.1/").shown == "http://127.0.0.1:8001"


@pytest.mark.parametrize("server", ["http://k.example:8001", "127.0.0.1", "ftp://127.0.0.1", "http://[", "http://127.0.0.1:x"])  # fmt: skip
def test_without_tls_only_this_machine(server: str) -> None:
    """A token sent in the clear over a network is public."""
    with pytest.raises(SchedulerError, match="kubernetes_server = "):
        find_access(server)


def test_the_end_of_a_watch_wakes_its_reader(host: ApiHost, tmp_path: Path) -> None:
    """A stopped executor waited until the server ended the watch; over TLS a shutdown of the socket acts otherwise."""
    host.accepted = {"Bearer t"}
    path = kubeconfig(tmp_path, host, {"token": "t"})
    with closing(ApiServer(find_access(kubeconfig=str(path)))) as api:
        watch = api.watch("/api/v1/nodes", "7")
        ended = threading.Event()

        def read() -> None:
            with pytest.raises(ApiError):
                list(watch)
            ended.set()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        watch.close()
        assert ended.wait(GUARD_SECONDS)
        thread.join()
        watch.close()
        api.list_all("/api/v1/nodes")
