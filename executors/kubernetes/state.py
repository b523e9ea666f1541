"""State of executors in Kubernetes: the ledger in a ConfigMap, and a Lease that elects one active replica.

Each write names the version that it replaces. A replica that has lost the Lease without noticing can no longer write the
ledger, and takes no step without it.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..ledger import ExecutorLedger, LedgerError
from ..model import SchedulerError
from .api import ApiError, ApiServer
from .jobs import parse_time

log = logging.getLogger(__name__)

LEDGER_KEY, WRITER_KEY = "ledger.json", "writer"
#: Limit of the ledger's length: a Kubernetes object has at most 1 MiB.
LEDGER_BYTES_MAX = 900_000
#: Maximum length of a holder's name. The API server accepts more, but tools show only this many characters.
IDENTITY_CHARACTERS_MAX = 63
#: A Lease is free if it was not renewed for this long. Its holder renews it after a third of this time, and gives it up
#: when a fifth of this time is left.
LEASE_SECONDS = 15
RENEW_SECONDS, GIVE_UP_SECONDS, RETRY_SECONDS = LEASE_SECONDS / 3, LEASE_SECONDS * 0.8, 2.0


def lease_identity() -> str:
    """Return a unique name of this process: pods with the host's network share a host name."""
    unique = uuid.uuid4().hex
    return f"{socket.gethostname()[: IDENTITY_CHARACTERS_MAX - len(unique) - 1]}_{unique}"


class ConfigMapLedger(ExecutorLedger):
    """The ledger in a ConfigMap of *namespace*."""

    def __init__(self, api: ApiServer, namespace: str, name: str) -> None:
        """Read the ConfigMap, which may be missing. Raises LedgerError."""
        self._api, self._namespace, self._name = api, namespace, name
        self._collection = f"/api/v1/namespaces/{namespace}/configmaps"
        self._version = ""
        #: Identifies this process, so that its first write makes a new version even if the ledger is unchanged.
        self._writer = uuid.uuid4().hex
        #: Text of this process's last write if the write was not answered.
        self._unanswered: str | None = None
        self.place = f"configmap {namespace}/{name}"
        self.path = Path(self.place)
        self.load()

    def read_text(self) -> str | None:
        """Return the stored text; None if nothing is stored. Raises LedgerError."""
        try:
            document = self._api.call("GET", f"{self._collection}/{self._name}")
            self._version = str(document["metadata"]["resourceVersion"])
            text = (document.get("data") or {}).get(LEDGER_KEY)
        except ApiError as error:
            if error.status == 404:
                self._version = ""
                return None
            raise LedgerError(f"{self.place}: {error}") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise LedgerError(f"{self.place}: not a valid ConfigMap: {error!r}") from error
        return None if text is None else str(text)

    def write_text(self, text: str) -> None:
        """Replace the version that this process read or wrote last.

        Raises LedgerError, also if another executor has written since.
        """
        if len(text) > LEDGER_BYTES_MAX:
            raise LedgerError(f"{self.place}: more than {LEDGER_BYTES_MAX} bytes; lower marks_max")
        try:
            self._write(text)
        except ApiError as error:
            if error.status == 409 and self._is_own_write():
                self.write_text(text)
                return
            if not error.status:  # no answer: the API server may have stored the write
                self._unanswered = text
            if error.status == 409:
                raise LedgerError(f"{self.place}: another executor wrote it") from error
            raise LedgerError(f"{self.place}: {error}") from error
        except (KeyError, TypeError) as error:
            raise LedgerError(f"{self.place}: not a valid ConfigMap: {error!r}") from error
        self._unanswered = None

    def _is_own_write(self) -> bool:
        """Return whether the stored text is this process's unanswered write. Reads the stored version."""
        unanswered, self._unanswered = self._unanswered, None
        return unanswered is not None and self.read_text() == unanswered

    def _write(self, text: str) -> None:
        metadata = {"name": self._name, "namespace": self._namespace}
        document: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {LEDGER_KEY: text, WRITER_KEY: self._writer},
        }
        if self._version:
            metadata["resourceVersion"] = self._version
            answer = self._api.call("PUT", f"{self._collection}/{self._name}", document)
        else:
            answer = self._api.call("POST", self._collection, document)
        self._version = str(answer["metadata"]["resourceVersion"])


class ExecutorLease:
    """A Lease in *namespace*: call `acquire`, then `keep`, which renews it in a thread until it is lost or released."""

    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        name: str,
        holder: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """*api*: a connection for this Lease alone, so that no other call delays a renewal."""
        self._api, self._holder, self._monotonic = api, holder[:IDENTITY_CHARACTERS_MAX], monotonic
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path, self._name = f"{self._collection}/{name}", name
        self.place = f"lease {namespace}/{name}"
        #: Version of another holder's last write, and when this process first saw it on its monotonic clock. The times
        #: in the Lease are not used, because the clocks of two machines differ.
        self._seen: tuple[str, float] = ("", 0.0)
        self._renewed = 0.0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, stopped: threading.Event) -> bool:
        """Wait until this process holds the Lease; return False once *stopped* is set.

        While the API server does not respond, the wait continues.
        """
        waited_for = ""
        while not stopped.is_set():
            try:
                holder = self.attempt()
            except SchedulerError as error:
                holder = f"nobody: {error}"
            if not holder:
                return True
            if holder != waited_for:
                log.info("standby: %s is held by %s", self.place, holder)
                waited_for = holder
            stopped.wait(RETRY_SECONDS)
        return False

    def attempt(self) -> str:
        """Acquire or renew the Lease; return "" on success, else its holder. Raises SchedulerError."""
        now = self._monotonic()
        try:
            document = self._api.call("GET", self._path)
        except ApiError as error:
            if error.status != 404:
                raise
            document = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name},
            }
        try:
            spec = document.get("spec") or {}
            holder = str(spec.get("holderIdentity") or "")
            version = str(document["metadata"].get("resourceVersion", ""))
        except (KeyError, TypeError, AttributeError) as error:
            raise SchedulerError(f"{self.place}: not a valid Lease: {error!r}") from error
        if holder not in ("", self._holder):
            if self._seen[0] != version:
                self._seen = version, now
            if now - self._seen[1] < float(spec.get("leaseDurationSeconds") or LEASE_SECONDS):
                return holder
        document["spec"] = self._spec(spec, holder)
        try:
            if version:
                self._api.call("PUT", self._path, document)
            else:
                self._api.call("POST", self._collection, document)
        except ApiError as error:
            if error.status != 409:
                raise
            return "another replica that was faster"
        self._renewed = now
        return ""

    def _spec(self, spec: Any, holder: str) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_new = holder != self._holder
        changes = spec.get("leaseTransitions")
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now,
            "acquireTime": now
            if is_new or not parse_time(spec.get("acquireTime"))
            else spec["acquireTime"],
            "leaseTransitions": (changes if isinstance(changes, int) else 0) + is_new,
        }

    def keep(self, lost: Callable[[], None]) -> None:
        """Start a thread that renews the Lease; it calls *lost* once, before another process can acquire the Lease."""
        self._thread = threading.Thread(target=self._keep, args=(lost,), daemon=True)
        self._thread.start()

    def _keep(self, lost: Callable[[], None]) -> None:
        while not self._stopped.wait(RENEW_SECONDS):
            try:
                holder = self.attempt()
            except SchedulerError as error:
                log.warning("%s was not renewed: %s", self.place, error)
                holder = ""
            if holder or self._monotonic() - self._renewed > GIVE_UP_SECONDS:
                log.error("%s is lost%s: exiting", self.place, f" to {holder}" if holder else "")
                lost()
                return

    def release(self) -> None:
        """Stop renewing, and free the Lease for another replica at once. Logs failures of the API server."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(RENEW_SECONDS)
        try:
            document = self._api.call("GET", self._path)
            if (document.get("spec") or {}).get("holderIdentity") == self._holder:
                document["spec"]["holderIdentity"] = ""
                self._api.call("PUT", self._path, document)
        except (SchedulerError, KeyError, TypeError, AttributeError) as error:
            log.info("%s was not released: %s", self.place, error)
        self._api.close()
