"""Access control: authenticates and limits every call, and is refreshed while the service runs."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from ...contract.settings import SettingsError
from ...contract.token_bucket import TokenBucket
from ..errors import PermissionDenied, ResourceExhausted, ServiceError, Unauthenticated
from ..principal import (
    GRANTABLE_ROLES,
    PUBLIC,
    CertificateIdentity,
    Principal,
    Role,
    roles_of,
    set_principal,
)
from .authenticator import Authenticator
from .limits import BURST_SECONDS, ConnectionLimits, Connections, KeyedTokenBuckets, peer_address
from .tokens import FILE_NAME, Tokens, TokensError

if TYPE_CHECKING:
    from ..config import AggregatorConfig
    from .certificates import Certificates


Behaviour = Callable[[Any, Any], Awaitable[Any]]
#: Called for a call that the caller's role may not make: principal, gRPC peer name, request.
DeniedCallback = Callable[["Principal", str, Any], Awaitable[None]]
#: gRPC's name of a handler by (request is a stream, response is a stream).
KINDS = {
    (False, False): "unary_unary",
    (False, True): "unary_stream",
    (True, False): "stream_unary",
    (True, True): "stream_stream",
}

log = logging.getLogger(__name__)
FOLDER = "access"
#: A caller refused more often (burst: 20 s of this rate) waits THROTTLE_SECONDS for each refusal.
REFUSALS_PER_SECOND_MAX = 5.0
THROTTLE_SECONDS = 5.0
#: Cost of an event in rows: it is evaluated, synced to the journal, and searched for in the store.
EVENT_COST_ROWS = 10
#: If a check ended more connections than this, the next check follows after BUSY_SECONDS.
BUSY_CONNECTIONS, BUSY_SECONDS = 100, 0.5


def wrap_handler(
    handler: Any,
    wrap: Callable[[Behaviour], Behaviour],
    serializer: Callable[[Any], bytes] | None = None,
    deserializer: Callable[[bytes], Any] | None = None,
) -> Any:
    """Return *handler* with its behavior wrapped, and with *serializer* and *deserializer* if
    given.

    A generator is changed to write through its context, so that one wrapper fits all four kinds.
    """
    kind = KINDS[bool(handler.request_streaming), bool(handler.response_streaming)]
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(
        wrap(_as_writer(getattr(handler, kind))),
        request_deserializer=deserializer or handler.request_deserializer,
        response_serializer=serializer or handler.response_serializer,
    )


def _as_writer(behaviour: Any) -> Behaviour:
    if not inspect.isasyncgenfunction(behaviour):
        return behaviour  # type: ignore[no-any-return]
    yielding: Callable[[Any, Any], AsyncIterator[Any]] = behaviour

    async def written(request: Any, context: Any) -> None:
        async for reply in yielding(request, context):
            await context.write(reply)

    return written


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Checks each call, or raises the ServiceError that `service/status.py` turns into a status."""

    def __init__(
        self,
        access_control: AccessControl,
        *,
        by_token: bool = False,
        on_denied: Mapping[str, DeniedCallback] | None = None,
    ) -> None:
        """*by_token*: the port requests no certificate. *on_denied*: callbacks by method for calls
        of a wrong role.

        They are not called for each call of a caller that is refused repeatedly.
        """
        self._access_control = access_control
        self._by_token = by_token
        self._on_denied = on_denied or {}

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler behind a check; a wrong token is refused before a message is read."""
        handler = await continuation(handler_call_details)
        method: Any = handler_call_details.method
        roles = roles_of(method)
        if handler is None or roles is PUBLIC:
            return handler
        try:
            metadata = handler_call_details.invocation_metadata or ()
            token_principal = self._access_control.authenticator.by_token(
                metadata, needed=self._by_token
            )
        except ServiceError as error:
            return self._refusing(error)

        def wrap(behaviour: Behaviour) -> Behaviour:
            async def answered(request: Any, context: Any) -> Any:
                principal, peer = token_principal, context.peer()
                try:
                    principal = principal or self._access_control.authenticator.by_connection(
                        context, peer
                    )
                    if principal.role not in roles:
                        allowed = (
                            ", ".join(role for role in GRANTABLE_ROLES if role in roles) or "nobody"
                        )
                        raise PermissionDenied(
                            f"{principal} may not call {method}: it is for {allowed}"
                        )
                    self._access_control.admit(principal, request)
                except ServiceError as error:
                    throttled = await self._access_control.throttle_refusal(principal, peer)
                    callback = (
                        self._on_denied.get(method) if isinstance(error, PermissionDenied) else None
                    )
                    if callback is not None and principal is not None and not throttled:
                        await callback(principal, peer, request)
                    raise
                set_principal(principal)
                return await self._access_control.running_calls.run(
                    principal, peer, lambda: behaviour(request, context)
                )

            return answered

        return wrap_handler(handler, wrap)

    def _refusing(self, error: ServiceError) -> Any:
        """Return a handler that refuses without reading the message.

        gRPC reads the message of a unary call before it calls the handler, so this is a stream.
        """

        async def refuse(request: Any, context: Any) -> None:
            await self._access_control.throttle_refusal(None, context.peer())
            raise error

        return grpc.stream_stream_rpc_method_handler(refuse)


class RunningCalls:
    """Running calls by caller: counted, and ended when the caller's login ends."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], Principal] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._ended: set[asyncio.Task[Any]] = set()
        #: gRPC's name of a connection -> principal authenticated on it.
        self.peers: dict[str, Principal] = {}

    def count_of(self, principal: Principal) -> int:
        """Return the number of running calls of *principal*."""
        return self._counts.get((principal.role, principal.name), 0)

    def __len__(self) -> int:
        return len(self._running)

    async def run(self, principal: Principal, peer: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run *work* and return its result. Raises Unauthenticated if the login ended meanwhile."""
        task = asyncio.current_task()
        assert task is not None  # gRPC runs each call in its own task
        key = principal.role, principal.name
        count = self._counts.get(key, 0)
        if principal.is_authenticated:
            self.peers[peer] = principal
        self._counts[key], self._running[task] = count + 1, principal
        try:
            return await work()
        except asyncio.CancelledError:
            if task not in self._ended:
                raise
            task.uncancel()
            raise Unauthenticated(
                f"the login of {principal} is no longer valid: log in again"
            ) from None
        finally:
            self._ended.discard(task)
            del self._running[task]
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]

    def end_matching(self, ends: Callable[[Principal], bool]) -> int:
        """End the calls of callers for which *ends* is true; return their number."""
        over = [task for task, principal in self._running.items() if ends(principal)]
        for task in over:
            if task not in self._ended:
                self._ended.add(task)
                task.cancel()
        return len(over)


def tokens_file(data: Path) -> Path:
    """Return the path of the token file in a data folder."""
    return data / FOLDER / FILE_NAME


class AccessControl:
    """Certificates, tokens and limits of the service. `watch` runs while the service does."""

    def __init__(
        self,
        config: AggregatorConfig,
        seconds: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read certificates and tokens. Raises SettingsError. *steady*: monotonic seconds."""
        self._config, self._steady = config, steady
        self.certificates = _certificates(config)
        try:
            self.tokens = Tokens(tokens_file(config.data))
        except TokensError as error:
            raise SettingsError(str(error)) from error
        self.authenticator = Authenticator(
            self.tokens,
            CertificateIdentity(config.certificate_names, config.trust_domain),
            tls=self.certificates is not None,
            client_certificates=bool(config.tls_client_ca_file),
            seconds=seconds,
        )
        self.running_calls = RunningCalls()
        #: Calls refused because of a missing login, a wrong role or a limit.
        self.refused_count = 0
        self._refusals = KeyedTokenBuckets(REFUSALS_PER_SECOND_MAX, steady)
        self._agents = KeyedTokenBuckets(config.agent_calls_per_minute_max / 60, steady)
        self._rate_limits: dict[str, AgentRateLimit] = {}
        self.connections: Connections | None = None
        self._logged_error = ""
        self._is_busy = False  # the last check ended many connections

    @property
    def error(self) -> str:
        """Return a message about invalid certificates or tokens; "" if all are valid."""
        parts = (self.certificates.error if self.certificates else "", self.tokens.error)
        return "; ".join(filter(None, parts))

    @property
    def ended_connections(self) -> int:
        """Return the number of ended connections: without a login in time, or too many."""
        return self.connections.ended_count if self.connections is not None else 0

    def bind(self, server: Any, address: str, *, by_token: bool = False) -> int:
        """Make *server* listen on `address:port`; return the port. Raises RuntimeError.

        *by_token*: do not ask callers for a certificate.
        """
        if self.certificates is None:
            return int(server.add_insecure_port(address))
        requests_certificate = bool(self._config.tls_client_ca_file) and not by_token
        credentials = self.certificates.credentials(client_certificates=requests_certificate)
        return int(server.add_secure_port(address, credentials))

    def watch_ports(self, ports: list[int]) -> None:
        """Limit the connections on *ports*."""
        config = self._config
        limits = ConnectionLimits(
            config.connections_per_caller_max,
            config.connections_unknown_max,
            config.connections_unknown_per_address_max,
            config.login_seconds_max,
        )
        self.connections = Connections(ports, limits, self._steady)

    def admit(self, principal: Principal, request: Any) -> None:
        """Count a call that begins. Raises ResourceExhausted with a retry time."""
        config, running = self._config, self.running_calls.count_of(principal)
        # Without a login calls have no known caller; a simulated fleet uses an admin's login.
        is_limited = principal.is_authenticated and principal.role is not Role.ADMIN
        if is_limited and running >= config.calls_per_caller_max:
            message = f"{principal} has {running} calls running, which is the limit (calls_per_caller_max)"
            raise ResourceExhausted(message, THROTTLE_SECONDS)
        if principal.role is not Role.AGENT:
            return
        if wait := self._agents.try_take(principal.name):
            raise ResourceExhausted(
                f"{principal} calls more than {config.agent_calls_per_minute_max:g} times a minute: "
                f"try again in {wait:.1f} s",
                wait,
            )
        size = request.ByteSize() if hasattr(request, "ByteSize") else 0
        if size and (wait := self.rate_limit(principal).try_take(size, _cost_rows(request))):
            raise ResourceExhausted(
                f"{principal} sends more than {config.agent_bytes_limit:g} bytes or "
                f"{config.agent_rows_per_second_max:g} rows a second ("
                "agent_rows_per_second_max; a device costs as a row does, an event as "
                f"{EVENT_COST_ROWS}): try again in {wait:.1f} s",
                wait,
            )

    async def throttle_refusal(self, principal: Principal | None, peer: str) -> bool:
        """Delay the refusal of a caller that is refused repeatedly; return whether it was delayed.

        A refusal costs the aggregator as much as the caller. Other limits bound a connection's
        calls and a caller's connections; this one bounds the rate.
        """
        self.refused_count += 1
        address = peer_address(peer)
        key: Any = address and address[0]
        if principal is not None and principal.is_authenticated:
            key = (principal.role, principal.name)
        if not self._refusals.try_take(key):
            return False
        await asyncio.sleep(THROTTLE_SECONDS)
        return True

    def rate_limit(self, principal: Principal) -> AgentRateLimit:
        """Return the rate limit of an agent, shared by all its connections."""
        limit = self._rate_limits.get(principal.name)
        if limit is None:
            limit = self._rate_limits[principal.name] = AgentRateLimit(self._config, self._steady)
        return limit

    async def watch(self) -> None:
        """Refresh certificates, tokens, logins and connections periodically, until canceled."""
        while True:
            seconds = self._config.access_look_seconds
            await asyncio.sleep(min(BUSY_SECONDS, seconds) if self._is_busy else seconds)
            try:
                await self.refresh()
            except Exception:
                log.exception("refreshing tokens and certificates failed; retrying")

    async def refresh(self) -> None:
        """Reload changed files, end calls whose login ended, and end excess connections."""
        if self.certificates is not None:
            self.certificates.refresh()
        if self.tokens.refresh() and not self.tokens.error:
            log.info("tokens reloaded: %d in force", len(self.tokens))
        if self.tokens.error != self._logged_error:
            self._logged_error = self.tokens.error
            if self._logged_error:
                log.warning("%s", self._logged_error)
        self.running_calls.end_matching(
            lambda principal: not self.authenticator.is_valid(principal)
        )
        if self.connections is not None and self.authenticator.required:
            before = self.connections.ended_count
            await asyncio.to_thread(self.connections.refresh, self.running_calls.peers)
            self._is_busy = self.connections.ended_count - before > BUSY_CONNECTIONS


class AgentRateLimit:
    """Rate limit of an agent: frames, bytes and rows per second, each with a burst."""

    def __init__(self, config: AggregatorConfig, steady: Callable[[], float]) -> None:
        now = steady()
        self._steady = steady
        self._frames, self._bytes, self._rows = (
            TokenBucket(rate, rate * BURST_SECONDS, now)
            for rate in (
                config.agent_frames_per_second_max,
                config.agent_bytes_limit,
                config.agent_rows_per_second_max,
            )
        )

    def take(self, frames: int, size_bytes: int, rows: int) -> float:
        """Count data that arrived; return the seconds to wait before reading more, 0: none."""
        now = self._steady()
        takes = (self._frames, frames), (self._bytes, size_bytes), (self._rows, rows)
        return max(bucket.take(count, now) for bucket, count in takes)

    def try_take(self, size_bytes: int, rows: int) -> float:
        """Count a call if it fits, and return 0; otherwise return the seconds to wait.

        A refused call is not counted, so a caller that waits exactly that long is accepted.
        """
        wait = self.take(0, size_bytes, rows)
        if wait:
            self.take(0, -size_bytes, -rows)
        return wait


def _cost_rows(request: Any) -> int:
    """Return a message's cost beyond its bytes: 3000 devices (0.3 MB) take 11 ms of the loop."""
    devices, events = (getattr(request, name, ()) for name in ("devices", "events"))
    return len(devices) + EVENT_COST_ROWS * len(events)


def _certificates(config: AggregatorConfig) -> Certificates | None:
    """Return the server's certificate, None for plain text. Raises SettingsError."""
    certificate, key = config.tls_certificate_file, config.tls_key_file
    if not certificate and not key:
        for name in ("tls_client_ca_file", "listen_tokens"):
            if getattr(config, name):
                raise SettingsError(f"{name} needs tls_certificate_file and tls_key_file")
        return None
    if not certificate or not key:
        raise SettingsError(
            "tls_certificate_file and tls_key_file go together: set both, or neither"
        )
    client_ca = Path(config.tls_client_ca_file) if config.tls_client_ca_file else None
    if config.listen_tokens and client_ca is None:
        raise SettingsError(
            "listen_tokens is a second port for callers without a certificate; without "
            "tls_client_ca_file `listen` requires no certificate. Set both, or omit listen_tokens"
        )
    from ...contract.certificates import CertificateError
    from .certificates import Certificates, ServerTlsFiles  # 0.05 s, for TLS only

    try:
        return Certificates(ServerTlsFiles(Path(certificate), Path(key), client_ca))
    except CertificateError as error:
        raise SettingsError(f"TLS: {error}") from error
