"""All of access together: what the settings say, looked after while the service runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...fingerprints.settings import SettingsError
from ..refusals import TooMuch
from .caller import Caller, Role
from .connections import Connections, Limits, where
from .guard import Calls
from .login import Login
from .names import Names
from .rates import Bucket, Buckets
from .tokens import FILE_NAME, Tokens, TokensError

if TYPE_CHECKING:
    from ..config import AggregatorConfig
    from .certificates import Certificates

log = logging.getLogger(__name__)

FOLDER = "access"
#: Who is refused more often (20 s' worth at once) has each further refusal after HOLD_SECONDS.
REFUSALS_PER_SECOND_MAX = 5.0
HOLD_SECONDS = 5.0
#: What an event costs beside a reading's row: it is judged, synced to the journal, and looked for in the store.
EVENT_COST_ROWS = 10
#: After a look that ended more connections than this the next look comes sooner.
PRESSED_CONNECTIONS, PRESSED_SECONDS = 100, 0.5


def tokens_file(data: Path) -> Path:
    """Return where an aggregator with that data folder looks for tokens."""
    return data / FOLDER / FILE_NAME


class Door:
    """Made at the start; `watch` runs while the service does."""

    def __init__(
        self,
        config: AggregatorConfig,
        seconds: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read certificates and tokens. Raises SettingsError with words.

        *seconds*: Unix time; *steady*: a clock that nobody sets.
        """
        self._config, self._steady = config, steady
        self.certificates = _certificates(config)
        try:
            self.tokens = Tokens(tokens_file(config.data))
        except TokensError as error:
            raise SettingsError(str(error)) from error
        self.login = Login(
            self.tokens,
            Names(config.certificate_names, config.trust_domain),
            tls=self.certificates is not None,
            client_certificates=bool(config.tls_client_ca_file),
            seconds=seconds,
        )
        self.calls = Calls()
        #: Calls refused for want of a login, of the right role, or of room.
        self.refused_count = 0
        self._refusals = Buckets(REFUSALS_PER_SECOND_MAX, steady)
        self._agents = Buckets(config.agent_calls_per_minute_max / 60, steady)
        self._paces: dict[str, Pace] = {}
        self.connections: Connections | None = None
        self._said = ""
        self._pressed = False  # many connections were ended at the last look

    @property
    def trouble(self) -> str:
        """What is wrong with certificates or tokens, in words; "" when nothing is."""
        parts = (self.certificates.trouble if self.certificates else "", self.tokens.trouble)
        return "; ".join(filter(None, parts))

    @property
    def ended_connections(self) -> int:
        """Connections ended by us so far: without a login for too long, or too many."""
        return self.connections.ended_count if self.connections is not None else 0

    def bind(self, server: Any, address: str, *, by_token: bool = False) -> int:
        """Let *server* listen on `address:port`; return the port. Raises RuntimeError, as gRPC does.

        *by_token*: where callers are not asked for a certificate.
        """
        if self.certificates is None:
            return int(server.add_insecure_port(address))
        asked = bool(self._config.tls_client_ca_file) and not by_token
        credentials = self.certificates.credentials(client_certificates=asked)
        return int(server.add_secure_port(address, credentials))

    def listens(self, ports: list[int]) -> None:
        """Look after the connections on *ports* from now on."""
        config = self._config
        limits = Limits(
            config.connections_per_caller_max,
            config.connections_unknown_max,
            config.connections_unknown_per_address_max,
            config.login_seconds_max,
        )
        self.connections = Connections(ports, limits, self._steady)

    def count(self, caller: Caller, request: Any) -> None:
        """Count a call that begins. Raises TooMuch with when to come again."""
        config, running = self._config, self.calls.of(caller)
        # Without a login there is nobody to count for, and a simulated fleet comes by one of an admin.
        counted = caller.known and caller.role is not Role.ADMIN
        if counted and running >= config.calls_per_caller_max:
            words = (
                f"{caller} has {running} calls running, which is the limit (calls_per_caller_max)"
            )
            raise TooMuch(words, HOLD_SECONDS)
        if caller.role is not Role.AGENT:
            return
        if wait := self._agents.ask(caller.name):
            raise TooMuch(
                f"{caller} calls more than {config.agent_calls_per_minute_max:g} times a minute "
                f"(agent_calls_per_minute_max): come again in {wait:.1f} s",
                wait,
            )
        size = request.ByteSize() if hasattr(request, "ByteSize") else 0
        if size and (wait := self.pace(caller).ask(size, _cost_rows(request))):
            raise TooMuch(
                f"{caller} sends more than {config.agent_bytes_per_second_max:g} bytes or "
                f"{config.agent_rows_per_second_max:g} rows a second (agent_bytes_per_second_max, "
                f"agent_rows_per_second_max; a device costs as a row does, an event as {EVENT_COST_ROWS}): come "
                f"again in {wait:.1f} s",
                wait,
            )

    async def hold(self, caller: Caller | None, peer: str) -> bool:
        """Let a refusal wait, of who is refused again and again: to refuse costs us as much as to ask costs him.

        The calls of a connection, and the connections of a caller or an address, are so many: this bounds how often.
        Return whether it waited.
        """
        self.refused_count += 1
        at = where(peer)
        key = (caller.role, caller.name) if caller is not None and caller.known else at and at[0]
        if not self._refusals.ask(key):
            return False
        await asyncio.sleep(HOLD_SECONDS)
        return True

    def pace(self, caller: Caller) -> Pace:
        """Return how fast an agent may send: one for its name, however often it connects."""
        pace = self._paces.get(caller.name)
        if pace is None:
            pace = self._paces[caller.name] = Pace(self._config, self._steady)
        return pace

    async def watch(self) -> None:
        """Look at certificates, tokens, logins and connections every so often, until cancelled."""
        while True:
            seconds = self._config.access_look_seconds
            await asyncio.sleep(min(PRESSED_SECONDS, seconds) if self._pressed else seconds)
            try:
                await self.look()
            except Exception:
                log.exception("looking after access failed; it is tried again")

    async def look(self) -> None:
        """Take over files that changed, end calls whose login ended, and connections that are too many."""
        if self.certificates is not None:
            self.certificates.look()
        if self.tokens.look() and not self.tokens.trouble:
            log.info("tokens read anew: %d in force", len(self.tokens))
        if self.tokens.trouble != self._said:
            self._said = self.tokens.trouble
            if self._said:
                log.warning("%s", self._said)
        self.calls.end_all(lambda caller: not self.login.valid(caller))
        if self.connections is not None and self.login.required:
            before = self.connections.ended_count
            await asyncio.to_thread(self.connections.look, self.calls.peers)
            self._pressed = self.connections.ended_count - before > PRESSED_CONNECTIONS


class Pace:
    """What one agent may send: frames, bytes and rows a second, and a burst of each."""

    def __init__(self, config: AggregatorConfig, steady: Callable[[], float]) -> None:
        now = steady()
        self._steady = steady
        self._frames = Bucket(config.agent_frames_per_second_max, now)
        self._bytes = Bucket(config.agent_bytes_per_second_max, now)
        self._rows = Bucket(config.agent_rows_per_second_max, now)

    def take(self, frames: int, size_bytes: int, rows: int) -> float:
        """Count what came; return for how many seconds nothing more is to be read, 0 for none."""
        now = self._steady()
        return max(
            self._frames.take(frames, now),
            self._bytes.take(size_bytes, now),
            self._rows.take(rows, now),
        )

    def ask(self, size_bytes: int, rows: int) -> float:
        """Count a call if there is room for it, and return 0; else count nothing, and return in how many seconds there
        will be: who is refused and comes again just then must be let in."""
        wait = self.take(0, size_bytes, rows)
        if wait:
            self.take(0, -size_bytes, -rows)
        return wait


def _cost_rows(request: Any) -> int:
    """Return what a message costs beyond its bytes: 3000 devices are 0.3 MB, and 11 ms of the loop."""
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
            "tls_client_ca_file `listen` asks for none anyway"
        )
    from .certificates import CertificateError, Certificates, Files  # 0.05 s, for TLS only

    try:
        return Certificates(Files(Path(certificate), Path(key), client_ca))
    except CertificateError as error:
        raise SettingsError(f"TLS: {error}") from error
