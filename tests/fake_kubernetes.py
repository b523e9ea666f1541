"""An API server of Kubernetes in memory, over real sockets, with the calls of executors and of the
tests' cluster users.

It passes the tests that the real one passes (tests/executors/test_contract_kubernetes.py).
"""

from __future__ import annotations

import copy
import json
import re
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gangline.executors.kubernetes.api import ApiAccess, find_access
from gangline.executors.kubernetes.jobs import selects

PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>[a-z]+))?)?"
)
#: Changes that watches can begin before; earlier ones are answered with 410.
CHANGES_MAX = 2000
BOOKMARK_SECONDS = 1.0
DISCOVERY = {
    "/version": {"major": "1", "minor": "20", "gitVersion": "v1.20.0-fake"},
    "/api/v1": {"resources": [{"name": "pods/eviction", "group": "policy", "version": "v1beta1", "kind": "Eviction"}]},
    "/apis/policy": {"versions": [{"version": "v1beta1"}]},
}  # fmt: skip

Key = tuple[str, str, str]


class Refusal(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class FakeKubernetes:
    """Objects by (kind, namespace, name), and the changes behind them."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.objects: dict[Key, Any] = {}
        self.changes: list[tuple[int, str, str, Any]] = []
        self.version = 1
        self.condition = threading.Condition()
        self.is_stopped = False
        self.calls = 0
        self.discovery: dict[str, Any] = dict(DISCOVERY)

    def define(self, definition: Any) -> None:
        """Add the resource of a CustomResourceDefinition; fields are not checked."""
        spec = definition["spec"]
        for version in (definition_version["name"] for definition_version in spec["versions"]):
            group = self.discovery.setdefault(f"/apis/{spec['group']}", {"versions": []})
            if {"version": version} not in group["versions"]:
                group["versions"].append({"version": version})
            path = f"/apis/{spec['group']}/{version}"
            self.discovery.setdefault(path, {"resources": []})["resources"].append({"name": spec["names"]["plural"]})  # fmt: skip

    def serve(self, group: str, versions: Collection[str]) -> None:
        """Serve *group* in *versions* only, as after an upgrade of its controller: others end their watches and are 404."""
        with self.condition:
            self.discovery[f"/apis/{group}"] = {
                "versions": [{"version": version} for version in versions]
            }
            self.condition.notify_all()

    def is_served(self, group: str | None, version: str | None) -> bool:
        offered = self.discovery.get(f"/apis/{group}")
        return offered is None or {"version": version} in offered["versions"]

    def change(self, kind: str, key: Key, thing: Any) -> Any:
        """Store *thing*, or delete it (`DELETED`), and notify watches. An unchanged object gets no new version."""
        before = self.objects.get(key)
        if kind == "MODIFIED" and before is not None:
            thing["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
            if thing == before:
                return thing
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        if kind == "DELETED":
            del self.objects[key]
        else:
            self.objects[key] = thing
        self.changes.append((self.version, kind, key[0], copy.deepcopy(thing)))
        del self.changes[:-CHANGES_MAX]
        self.condition.notify_all()
        return thing

    def get(self, key: Key) -> Any:
        if key not in self.objects:
            raise Refusal(404, f'{key[0]} "{key[2]}" not found')
        return copy.deepcopy(self.objects[key])

    def create(self, kind: str, namespace: str, body: Any) -> Any:
        metadata = body.setdefault("metadata", {})
        if "generateName" in metadata:
            metadata["name"] = metadata.pop("generateName") + uuid.uuid4().hex[:5]
        if namespace:
            metadata["namespace"] = namespace
        key = kind, namespace, metadata["name"]
        if key in self.objects:
            raise Refusal(409, f'{kind} "{key[2]}" already exists')
        metadata.update(uid=str(uuid.uuid4()), creationTimestamp=_now())
        if kind == "pods":
            body["status"] = {"phase": "Pending"}
        if kind == "poddisruptionbudgets":
            selector = body["spec"]["selector"]
            covered = [
                thing for (other, where, _), thing in self.objects.items()
                if (other, where) == ("pods", namespace) and selects(selector, thing["metadata"].get("labels") or {})
            ]  # fmt: skip
            body["status"] = {"disruptionsAllowed": len(covered) - body["spec"]["minAvailable"]}
        return self.change("ADDED", key, body)

    def replace(self, key: Key, body: Any) -> Any:
        version = body["metadata"].get("resourceVersion")
        if version and version != self.get(key)["metadata"]["resourceVersion"]:
            raise Refusal(409, "the object has been modified")
        return self.change("MODIFIED", key, body)

    def delete(self, key: Key, body: Any) -> Any:
        thing = self.get(key)
        is_bound = key[0] == "pods" and thing["spec"].get("nodeName")
        if is_bound and (body or {}).get("gracePeriodSeconds") != 0:
            if "deletionTimestamp" in thing["metadata"]:
                return thing
            thing["metadata"]["deletionTimestamp"] = _now()
            return self.change("MODIFIED", key, thing)
        return self.change("DELETED", key, thing)

    def patch(self, key: Key, body: Any, content_type: str, dry_run: bool) -> Any:
        thing = self.get(key)
        if "json-patch" in content_type:
            json_patch(thing, body)
        else:
            merge_patch(thing, body, "strategic" in content_type)
        return thing if dry_run else self.change("MODIFIED", key, thing)

    def evict(self, key: Key, body: Any) -> Any:
        thing, options = self.get(key), body.get("deleteOptions") or {}
        if options.get("preconditions", {}).get("uid") not in (None, thing["metadata"]["uid"]):
            raise Refusal(409, "the UID in the precondition does not match")
        labels = thing["metadata"].get("labels") or {}
        for (kind, namespace, _), budget in list(self.objects.items()):
            covers = kind == "poddisruptionbudgets" and namespace == key[1]
            if covers and selects(budget["spec"]["selector"], labels):
                if not budget["status"]["disruptionsAllowed"]:
                    raise Refusal(429, "Cannot evict pod as it would violate the pod's disruption budget.")  # fmt: skip
                if not options.get("dryRun"):
                    budget["status"]["disruptionsAllowed"] -= 1
        if not options.get("dryRun"):
            self.delete(key, {})
        return {"kind": "Status", "status": "Success"}

    def bind(self, key: Key, body: Any) -> Any:
        thing = self.get(key)
        if thing["spec"].get("nodeName"):
            raise Refusal(409, "the pod is bound already")
        thing["spec"]["nodeName"] = body["target"]["name"]
        thing["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": _now()}
        ]
        return self.change("MODIFIED", key, thing)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def json_patch(thing: Any, operations: Any) -> None:
    """Apply a JSON patch of test, add and remove."""
    for operation in operations:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]  # fmt: skip
        parent = thing
        for part in parents:
            parent = parent[int(part) if isinstance(parent, list) else part]
        last_key: Any = int(last) if isinstance(parent, list) else last
        try:
            if operation["op"] == "test" and parent[last_key] != operation["value"]:
                raise Refusal(422, f"testing value {operation['path']} failed")
            if operation["op"] == "replace":
                _ = parent[last_key]
                parent[last_key] = operation["value"]
            elif operation["op"] == "add":
                parent[last_key] = operation["value"]
            elif operation["op"] == "remove":
                del parent[last_key]
        except (KeyError, IndexError) as error:
            raise Refusal(422, f"no {operation['path']}") from error


def merge_patch(thing: Any, patch: Any, by_type: bool) -> None:
    """Apply a merge patch; with *by_type*, lists of conditions are merged as strategic patches do."""
    for key, value in patch.items():
        if value is None:
            thing.pop(key, None)
        elif isinstance(value, dict):
            merge_patch(thing.setdefault(key, {}), value, by_type)
        elif by_type and key == "conditions":
            result = {condition["type"]: condition for condition in thing.get(key, [])}
            for item in value:
                if item.get("$patch") == "delete":
                    result.pop(item["type"], None)
                else:
                    result[item["type"]] = {**result.get(item["type"], {}), **item}
            thing[key] = list(result.values())
        else:
            thing[key] = value


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    fake: FakeKubernetes

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        try:
            if self.headers.get("Authorization") != f"Bearer {self.fake.token}":
                raise Refusal(401, "Unauthorized")
            if parts.path in self.fake.discovery:
                self._send(200, self.fake.discovery[parts.path])
                return
            match = PATH.fullmatch(parts.path)
            if match is None or not self.fake.is_served(match["group"], match["version"]):
                raise Refusal(404, "the server could not find the requested resource")
            if query.get("watch"):
                self._watch(match, query)
                return
            with self.fake.condition:
                self.fake.calls += 1
                answer = copy.deepcopy(self._answer(match, query, body))
            self._send(201 if self.command == "POST" else 200, answer)
        except Refusal as error:
            self._send(error.code, {"kind": "Status", "code": error.code, "message": str(error)})

    def _answer(self, match: re.Match[str], query: dict[str, str], body: Any) -> Any:
        fake, kind, namespace, name = self.fake, match["kind"], match["namespace"] or "", match["name"]  # fmt: skip
        if kind.endswith("subjectaccessreviews"):
            return {"status": {"allowed": True}}
        if name is None:
            return fake.create(kind, namespace, body) if self.command == "POST" else self._list(kind, namespace, query)  # fmt: skip
        key = kind, namespace, name
        match (self.command, match["sub"]):
            case ("GET", None):
                return fake.get(key)
            case ("PUT", None):
                return fake.replace(key, body)
            case ("DELETE", None):
                return fake.delete(key, body)
            case ("PATCH", _):
                return fake.patch(key, body, self.headers["Content-Type"], "dryRun" in query)
            case ("POST", "eviction"):
                return fake.evict(key, body)
            case ("POST", "binding"):
                return fake.bind(key, body)
            case _:
                raise Refusal(405, "method not allowed")

    def _list(self, kind: str, namespace: str, query: dict[str, str]) -> Any:
        matches = [
            thing for key, thing in sorted(self.fake.objects.items())
            if key[0] == kind and namespace in ("", key[1])
            and query.get("labelSelector", "") in ("", *(thing["metadata"].get("labels") or {}))
            and query.get("fieldSelector", "") in ("", f"spec.nodeName={(thing.get('spec') or {}).get('nodeName')}")
        ]  # fmt: skip
        first, limit = int(query.get("continue", 0)), int(query.get("limit", 500))
        more = {"continue": str(first + limit)} if first + limit < len(matches) else {}
        metadata = {"resourceVersion": str(self.fake.version), **more}
        return {"kind": "List", "metadata": metadata, "items": matches[first : first + limit]}

    def _watch(self, match: re.Match[str], query: dict[str, str]) -> None:
        kind = match["kind"]
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        version, fake = int(query["resourceVersion"]), self.fake
        end = time.monotonic() + float(query["timeoutSeconds"])
        while time.monotonic() < end and not fake.is_stopped:
            if not fake.is_served(match["group"], match["version"]):
                break
            with fake.condition:
                oldest = fake.changes[0][0] if len(fake.changes) == CHANGES_MAX else 0
                if version < oldest - 1:
                    status = {"kind": "Status", "code": 410, "message": "too old resource version"}
                    self._chunk({"type": "ERROR", "object": status})
                    break
                # Backwards: most changes have been seen by all clients.
                fresh = []
                for entry in reversed(fake.changes):
                    if entry[0] <= version:
                        break
                    fresh.append(entry)
                if not fresh and not fake.condition.wait(BOOKMARK_SECONDS):
                    bookmark = {"metadata": {"resourceVersion": str(fake.version)}}
                    fresh = [(fake.version, "BOOKMARK", kind, bookmark)]
            for number, change, changed, thing in reversed(fresh):
                version = max(version, number)
                if changed == kind and not self._chunk({"type": change, "object": thing}):
                    return
        self._finish()

    def _chunk(self, event: Any) -> bool:
        data = json.dumps(event).encode() + b"\n"
        try:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        except OSError:
            self.close_connection = True
            return False
        return True

    def _finish(self) -> None:
        try:
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def _send(self, code: int, answer: Any) -> None:
        data = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that is gone


def with_token(access: ApiAccess, token: str) -> ApiAccess:
    """Return another login at the same address."""
    configuration = copy.copy(access.configuration)
    configuration.refresh_api_key_hook = None
    configuration.api_key = {"authorization": f"Bearer {token}"}
    return ApiAccess(access.source, lambda: configuration)


@contextmanager
def fake_kubernetes(token: str = "token") -> Iterator[tuple[FakeKubernetes, ApiAccess]]:
    fake = FakeKubernetes(token)
    handler = type("BoundHandler", (Handler,), {"fake": fake})
    server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield fake, with_token(find_access(f"http://127.0.0.1:{server.server_address[1]}"), token)
    finally:
        with fake.condition:
            fake.is_stopped = True
            fake.condition.notify_all()
        server.shutdown()
        thread.join()
        server.server_close()
