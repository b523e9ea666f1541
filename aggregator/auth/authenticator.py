"""From a call's metadata and its connection to a caller."""

from __future__ import annotations

import hashlib
import ipaddress
import urllib.parse
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from ..errors import NoLogin
from .principal import ANYONE, LOCAL, Caller, Names, Role, shown
from .tokens import Tokens

#: Certificates whose holders are remembered, by their bytes; those asked for longest ago go first.
CERTIFICATES_MAX = 20_000

Metadata = Iterable[tuple[str, Any]]


class Login:
    """Who calls. Owned by the loop's thread, as `Tokens.look` must be too."""

    def __init__(
        self,
        tokens: Tokens,
        names: Names,
        *,
        tls: bool,
        client_certificates: bool,
        seconds: Callable[[], float],
    ) -> None:
        """*tls*: the port speaks it; *client_certificates*: callers may show one; *seconds*: Unix time."""
        self._tokens, self._names, self._seconds = tokens, names, seconds
        self._tls, self._client_certificates = tls, client_certificates
        self._holders: OrderedDict[bytes, Caller] = OrderedDict()

    @property
    def required(self) -> bool:
        """Whether a caller must prove who it is: with TLS, or as soon as there is a token."""
        return self._tls or self._tokens.configured

    def by_token(self, metadata: Metadata, *, needed: bool = False) -> Caller | None:
        """Return who the call's token says calls, None if it has none. Raises NoLogin.

        Before a message of the call is read. Whoever shows no token where nothing else would do (*needed*, or no
        certificates are asked for at all) is refused here too.
        """
        if not self.required:
            return None
        for key, value in metadata:
            if key == "authorization":
                return self._of_token(str(value))
        if needed or not self._client_certificates:
            raise NoLogin(
                "no token: send metadata `authorization: Bearer TOKEN` (an agent: token_file; a command: "
                "--token-file); one is made by `gangline admin token new` on the aggregator's machine"
            )
        return None

    def _of_token(self, text: str) -> Caller:
        kind, _, secret = text.partition(" ")
        token = (
            self._tokens.find(secret.strip(), self._seconds()) if kind.lower() == "bearer" else None
        )
        if token is None:
            raise NoLogin(
                "the token is none of this aggregator's: mistyped, run out or revoked "
                "(`gangline admin token list` shows which there are)"
            )
        role = Role(token.role)
        host = token.name if role is Role.AGENT else ""
        way = f"token {token.id}"
        return Caller(role, token.name, host, way, (1, token.made), token.until)

    def by_connection(self, context: Any, peer: str) -> Caller:
        """Return who the connection, by gRPC's *peer*, belongs to. Raises NoLogin."""
        if not self.required:
            return LOCAL if is_here(peer) else ANYONE
        auth = context.auth_context()
        pem = b"".join(auth.get("x509_pem_cert", ()))
        if not pem:
            raise NoLogin("neither a certificate nor a token: this port takes one or the other")
        caller = self._holders.get(pem) or self._new(pem, auth)
        self._holders.move_to_end(pem)
        if not self.valid(caller):
            raise NoLogin(f"the certificate of {caller} has run out: renew it")
        return caller

    def _new(self, pem: bytes, auth: Mapping[str, Iterable[bytes]]) -> Caller:
        holder = self._names.holder(auth)
        if holder is None:
            raise NoLogin(
                f"the certificate ({shown(auth)}) names no role: a URI spiffe://TRUST/gangline/ROLE/NAME, "
                "or a DNS name that certificate_names of the aggregator has a pattern for"
            )
        from cryptography import x509  # loaded already, by who read our own certificate

        certificate = x509.load_pem_x509_certificate(pem)
        host = holder.name if holder.role is Role.AGENT else ""
        proof = 2, int(certificate.not_valid_before_utc.timestamp())
        way = f"certificate {hashlib.sha256(pem).hexdigest()[:12]}"
        until = int(certificate.not_valid_after_utc.timestamp())
        caller = self._holders[pem] = Caller(holder.role, holder.name, host, way, proof, until)
        while len(self._holders) > CERTIFICATES_MAX:
            self._holders.popitem(last=False)
        return caller

    def valid(self, caller: Caller) -> bool:
        """Whether what *caller* proved itself by still holds: it has not run out, and is not revoked."""
        if caller.until and self._seconds() >= caller.until:
            return False
        kind, _, identity = caller.way.partition(" ")
        if kind == "token":
            return self._tokens.holds(identity)
        return caller.known or not self.required


@lru_cache(4096)
def is_here(peer: str) -> bool:
    """Say whether gRPC's *peer* (`ipv4:127.0.0.1:4711`) is on this machine."""
    kind, _, rest = peer.partition(":")
    if kind == "unix":
        return True
    address = urllib.parse.unquote(rest).rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
