"""Replicas of torchft: locates them through the lighthouse, and ends a replica before its heartbeats time out.

A replica's manager answers `/torchft.ManagerService/Kill` by ending its process; the lighthouse's page `/status` has each
manager's address. torchft is not imported, because both are plain requests over a socket. Tried with torchft 0.2.0.
"""

from __future__ import annotations

import html
import ipaddress
import re
import socket
import urllib.request
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

import grpc

from ..model import together
from ..settings import parse_http_address

#: Timeout of a request; a lighthouse or a manager that does not answer in this time is skipped.
CALL_SECONDS = 2.0
#: A longer page is read only up to this limit; further replicas on a node are not ended.
PAGE_BYTES_MAX, REPLICAS_MAX = 4 << 20, 64
KILL_METHOD = "/torchft.ManagerService/Kill"
MESSAGE_BYTES_MAX = 127

#: A member of the last quorum in the page: its name and its manager's address.
_MEMBER = re.compile(
    r"<b>\s*([^<]{1,512}?)\s*</b>(?:(?!<b>|</div>).){0,2000}?Manager:\s*(http://[^\s<]{1,512})",
    re.DOTALL,
)


class LighthouseError(Exception):
    """A lighthouse or a manager did not give torchft's response; the message describes the response."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica of a job, and its manager's address."""

    name: str
    host: str
    port: int


def parse_status(page: str) -> list[Replica]:
    """Return the replicas in a lighthouse's `/status`. Raises LighthouseError."""
    if "quorum" not in page.lower():
        raise LighthouseError("its page /status is not a lighthouse's")
    replicas = {}
    for name, address in _MEMBER.findall(page):
        try:
            host, port = parse_http_address(html.unescape(address))
        except ValueError:
            continue
        name = html.unescape(name)
        replicas[name] = Replica(name, host, port)
    return list(replicas.values())


def read_replicas(lighthouse: str) -> list[Replica]:
    """Return the replicas that the lighthouse at http://HOST:PORT knows. Raises LighthouseError."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{lighthouse.rstrip('/')}/status", timeout=CALL_SECONDS) as answer:
            page = answer.read(PAGE_BYTES_MAX)
    except (OSError, ValueError) as error:  # the errors of urllib are subclasses of OSError
        reason = getattr(error, "reason", error)
        raise LighthouseError(f"no answer: {reason}") from error
    return parse_status(page.decode("utf-8", "replace"))


def is_on_node(replica: Replica, names: Collection[str], addresses: Collection[str]) -> bool:
    """Return whether a replica's manager is on the node with *names* and IP *addresses*; a name may lack its domain."""
    host = replica.host.lower()
    if is_address(host):
        return host in addresses
    wanted = {name.lower() for name in names}
    if host in wanted:
        return True
    # At least one of the two names must lack a domain: names with different domains are different hosts.
    short = {name.partition(".")[0] for name in wanted}
    return host.partition(".")[0] in short and ("." not in host or host.partition(".")[0] in wanted)


def is_address(host: str) -> bool:
    """Return whether *host* is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def addresses_of(names: Collection[str]) -> set[str]:
    """Return the IP addresses of a node, without loopback addresses, to which a host may resolve its own name."""
    found = set()
    for name in names:
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            continue
        found |= {str(answer[4][0]) for answer in answers}
    return {one for one in found if not ipaddress.ip_address(one.partition("%")[0]).is_loopback}


def kill_request(message: str) -> bytes:
    """Return a serialized KillRequest, whose field 1 is the string *message*."""
    text = message.encode()[:MESSAGE_BYTES_MAX].decode(errors="ignore").encode()
    return b"\x0a" + bytes([len(text)]) + text


def kill_replica(replica: Replica, message: str) -> None:
    """End a replica: its manager's process exits during the request. Raises LighthouseError."""
    host = f"[{replica.host}]" if ":" in replica.host else replica.host
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"{host}:{replica.port}", options=options) as channel:
        try:
            grpc.channel_ready_future(channel).result(CALL_SECONDS)
        except grpc.FutureTimeoutError:
            raise LighthouseError(f"{host}:{replica.port} does not answer") from None
        call = channel.unary_unary(KILL_METHOD, bytes, bytes)
        try:
            call(kill_request(message), timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            # UNAVAILABLE means success: the connection was ready, and ended with the process.
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise LighthouseError(f"{error.code().name}: {error.details()}") from error


class ReplicaKiller:
    """Ends the replicas on a node, for all jobs whose lighthouse is in the settings."""

    def __init__(self, lighthouses: Collection[str]) -> None:
        self._lighthouses = tuple(lighthouses)

    def kill(self, names: Collection[str], message: str) -> tuple[str, str]:
        """End the replicas on the node with *names*; return (a note for people, errors or "")."""
        replicas: list[Replica] = []
        errors: list[str] = []
        for lighthouse, found in zip(
            self._lighthouses,
            together([partial(_try_read, one) for one in self._lighthouses]),
            strict=True,
        ):
            if isinstance(found, LighthouseError):
                errors.append(f"lighthouse {lighthouse}: {found}")
            else:
                replicas += found
        addresses = addresses_of(names) if any(is_address(one.host) for one in replicas) else set()
        here = [one for one in replicas if is_on_node(one, names, addresses)][:REPLICAS_MAX]
        ended = []
        for replica, failure in zip(
            here, together([partial(_try_kill, one, message) for one in here]), strict=True
        ):
            if failure:
                errors.append(f"replica {replica.name}: {failure}")
            else:
                ended.append(replica.name)
        parts = [f"ended replica {', '.join(ended)} of torchft"] if ended else []
        if errors:
            parts.append(f"torchft failed: {'; '.join(errors)}")
        return "; ".join(parts) or "no replica of torchft was on it", "; ".join(errors)


def _try_read(lighthouse: str) -> list[Replica] | LighthouseError:
    try:
        return read_replicas(lighthouse)
    except LighthouseError as error:
        return error


def _try_kill(replica: Replica, message: str) -> str:
    try:
        kill_replica(replica, message)
    except LighthouseError as error:
        return str(error)
    return ""
