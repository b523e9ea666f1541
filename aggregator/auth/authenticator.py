"""Determines the caller from a call's metadata and connection."""

from __future__ import annotations

import hashlib
import ipaddress
import urllib.parse
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from ..errors import Unauthenticated
from ..principal import ANYONE, LOCAL, CertificateIdentity, Principal, Role, certificate_names
from .tokens import Tokens

#: Cached principals of certificates; the least recently used are removed.
CERTIFICATES_MAX = 20_000

Metadata = Iterable[tuple[str, Any]]


class Authenticator:
    """Determines the caller. Owned by the loop's thread, which must also call `Tokens.refresh`."""

    def __init__(
        self,
        tokens: Tokens,
        certificate_identity: CertificateIdentity,
        *,
        tls: bool,
        client_certificates: bool,
        seconds: Callable[[], float],
    ) -> None:
        """*tls*: the port uses TLS; *client_certificates*: callers may present a certificate."""
        self._tokens = tokens
        self._certificate_identity = certificate_identity
        self._seconds = seconds
        self._tls, self._client_certificates = tls, client_certificates
        self._principals: OrderedDict[bytes, Principal] = OrderedDict()

    @property
    def required(self) -> bool:
        """Return whether callers must authenticate: with TLS, or as soon as a token exists."""
        return self._tls or self._tokens.configured

    def by_token(self, metadata: Metadata, *, needed: bool = False) -> Principal | None:
        """Return the principal of the call's token, None without a token. Raises Unauthenticated.

        This runs before a message of the call is read. A missing token is refused if no certificate
        can replace it (*needed*, or certificates are not requested).
        """
        if not self.required:
            return None
        for key, value in metadata:
            if key == "authorization":
                return self._of_token(str(value))
        if needed or not self._client_certificates:
            raise Unauthenticated(
                "no token. Send the metadata `authorization: Bearer TOKEN` (agent: token_file, "
                "command: --token-file). `gangline admin token new` on the aggregator's machine "
                "creates a token"
            )
        return None

    def _of_token(self, text: str) -> Principal:
        kind, _, secret = text.partition(" ")
        token = (
            self._tokens.find(secret.strip(), self._seconds()) if kind.lower() == "bearer" else None
        )
        if token is None:
            raise Unauthenticated(
                "unknown token: mistyped, expired or revoked (`gangline admin token list` lists "
                "the tokens)"
            )
        role = Role(token.role)
        host = token.name if role is Role.AGENT else ""
        auth_method = f"token {token.id}"
        return Principal(role, token.name, host, auth_method, (1, token.made), token.until)

    def by_connection(self, context: Any, peer: str) -> Principal:
        """Return the principal of the connection *peer* (gRPC's name). Raises Unauthenticated."""
        if not self.required:
            return LOCAL if is_local_peer(peer) else ANYONE
        auth = context.auth_context()
        pem = b"".join(auth.get("x509_pem_cert", ()))
        if not pem:
            raise Unauthenticated(
                "neither a certificate nor a token: this port requires one of them"
            )
        principal = self._principals.get(pem) or self._from_certificate(pem, auth)
        self._principals.move_to_end(pem)
        if not self.is_valid(principal):
            raise Unauthenticated(f"the certificate of {principal} has expired. Renew it")
        return principal

    def _from_certificate(self, pem: bytes, auth: Mapping[str, Iterable[bytes]]) -> Principal:
        subject = self._certificate_identity.principal(auth)
        if subject is None:
            raise Unauthenticated(
                f"the certificate ({certificate_names(auth)}) names no role: a URI spiffe://TRUST/gangline/ROLE/NAME, "
                "or a DNS name that certificate_names of the aggregator has a pattern for"
            )
        from cryptography import x509  # already loaded for the server's certificate

        certificate = x509.load_pem_x509_certificate(pem)
        host = subject.name if subject.role is Role.AGENT else ""
        proof = 2, int(certificate.not_valid_before_utc.timestamp())
        auth_method = f"certificate {hashlib.sha256(pem).hexdigest()[:12]}"
        until = int(certificate.not_valid_after_utc.timestamp())
        principal = self._principals[pem] = Principal(
            subject.role, subject.name, host, auth_method, proof, until
        )
        while len(self._principals) > CERTIFICATES_MAX:
            self._principals.popitem(last=False)
        return principal

    def is_valid(self, principal: Principal) -> bool:
        """Return whether *principal*'s credentials are still valid: not expired and not revoked."""
        if principal.until and self._seconds() >= principal.until:
            return False
        kind, _, identity = principal.auth_method.partition(" ")
        if kind == "token":
            return self._tokens.contains(identity)
        return principal.is_authenticated or not self.required


@lru_cache(4096)
def is_local_peer(peer: str) -> bool:
    """Return whether gRPC's *peer* (`ipv4:127.0.0.1:4711`) is on this machine."""
    kind, _, rest = peer.partition(":")
    if kind == "unix":
        return True
    address = urllib.parse.unquote(rest).rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
