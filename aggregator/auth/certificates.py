"""The server's certificate: loaded, validated, and reloaded when its files change, without a restart."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import grpc
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ...contract.certificates import (
    CertificateError,
    check_certificate_dates,
    parse_certificates,
    read_pem,
)

log = logging.getLogger(__name__)

#: A certificate that ends within this time is reported.
RENEW_DAYS = 14


@dataclass(frozen=True, slots=True)
class ServerTlsFiles:
    """Paths of the server's certificate with its chain, its key, and the CA of callers; PEM."""

    certificate: Path
    key: Path
    client_ca: Path | None


@dataclass(frozen=True, slots=True)
class Material:
    """Contents of these files. `until`: when the certificate ends."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None
    until: datetime

    def __repr__(self) -> str:
        return f"Material(until={self.until})"  # without the key

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """Return the configuration for gRPC."""
        return grpc.ssl_server_certificate_configuration(
            [(self.key, self.certificate)], self.client_ca
        )


def load(files: ServerTlsFiles, now: datetime) -> Material:
    """Read and check all files together. Raises CertificateError."""
    certificate, key = read_pem(files.certificate), read_pem(files.key)
    client_ca = read_pem(files.client_ca) if files.client_ca else None
    first = parse_certificates(files.certificate, certificate)[0]
    if files.client_ca and client_ca is not None:
        parse_certificates(files.client_ca, client_ca)
    if _public(files.key, key) != first.public_key().public_bytes(
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    ):
        raise CertificateError(
            f"{files.key} is not the key of {files.certificate}. Replace both files together"
        )
    check_certificate_dates(files.certificate, first, now)
    return Material(certificate, key, client_ca, first.not_valid_after_utc)


def _public(path: Path, data: bytes) -> bytes:
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except TypeError:
        raise CertificateError(f"{path}: the key is encrypted. Store it unencrypted") from None
    except (ValueError, UnsupportedAlgorithm):
        raise CertificateError(
            f"{path}: not a private key in PEM"
        ) from None  # the content is secret
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


class Certificates:
    """The active certificate. `refresh` is for one thread; gRPC reads it in others."""

    def __init__(
        self, files: ServerTlsFiles, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Read *files*. Raises CertificateError."""
        self.files, self._now = files, now
        #: Why the files are not active, or that the certificate ends soon; "" if all is well.
        self.error = ""
        #: Number of reloads without a restart.
        self.reloads = 0
        self._last_stamp = self._stamp()
        self._unusable = False  # the current files
        self._active = load(files, now())
        self._check_expiry()

    def credentials(self, *, client_certificates: bool) -> grpc.ServerCredentials:
        """Return credentials for a port, which follow `refresh`.

        Without *client_certificates* callers are not asked for one: gRPC for Python cannot request
        certificates optionally.
        """
        served: list[Material] = [self._active]

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            active = self._active
            if active is served[0]:
                return None
            served[0] = active
            return active.configuration()

        return grpc.dynamic_ssl_server_credentials(
            self._active.configuration(),
            cast(Any, fetch),  # its type excludes None, its documentation does not
            require_client_authentication=client_certificates,
        )

    def refresh(self) -> bool:
        """Reload the files if they changed; return whether they did. Never raises.

        An unusable file changes only `error`, and is retried at each check, because permissions and
        validity can change without the files.
        """
        stamp = self._stamp()
        changed, self._last_stamp = stamp != self._last_stamp, stamp
        if not changed and not self._unusable:
            self._check_expiry()
            return False
        try:
            self._active = load(self.files, self._now())
        except CertificateError as error:
            self._unusable = True
            if changed:
                self._warn(f"the previous certificate stays in force: {error}")
            return False
        self._unusable = False
        self.reloads += 1
        log.info(
            "certificate reloaded: %s, valid until %s", self.files.certificate, self._active.until
        )
        self._check_expiry()
        return True

    def _check_expiry(self) -> None:
        days = (self._active.until - self._now()).total_seconds() / 86_400
        if days >= RENEW_DAYS:
            self.error = ""
            return
        ends = (
            f"ends in {int(days)} days, at" if days > 0 else "has expired: nobody can connect since"
        )
        self._warn(
            f"{self.files.certificate} {ends} {self._active.until:%Y-%m-%d %H:%M} UTC: renew it, no "
            "restart is needed"
        )

    def _warn(self, message: str) -> None:
        if message != self.error:
            log.warning("%s", message)
        self.error = message

    def _stamp(self) -> tuple[tuple[int, ...] | None, ...]:
        paths = (self.files.certificate, self.files.key, self.files.client_ca)
        return tuple(_stamp(path) for path in paths if path is not None)


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        now = os.stat(path)
    except OSError:
        return None
    return now.st_ino, now.st_mtime_ns, now.st_size
