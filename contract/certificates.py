"""Certificates in PEM: read with a limit, parsed, their dates checked. Needs cryptography."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from cryptography import x509

#: Limit for a chain of certificates, or all CAs of a fleet.
FILE_BYTES_MAX = 1 << 20


class CertificateError(Exception):
    """A certificate, key or CA is unusable; the message names the file and the remedy."""


def check_dates(path: Path, now: datetime) -> None:
    """Raise CertificateError unless the certificate at *path* is valid now."""
    check_certificate_dates(path, parse_certificates(path, read_pem(path))[0], now)


def check_certificate_dates(path: Path, certificate: x509.Certificate, now: datetime) -> None:
    """Raise CertificateError unless *certificate*, read from *path*, is valid now."""
    since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not since <= now < until:
        raise CertificateError(
            f"{path} holds from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC, and this machine's "
            f"clock says {now:%Y-%m-%d %H:%M}: renew it, or set the clock"
        )


def read_pem(path: Path) -> bytes:
    """Return the content of *path*, at most FILE_BYTES_MAX. Raises CertificateError."""
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CertificateError(f"{path}: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise CertificateError(f"{path}: longer than {FILE_BYTES_MAX} bytes")
    return data


def parse_certificates(path: Path, data: bytes) -> list[x509.Certificate]:
    """Return the certificates in *data*, read from *path*. Raises CertificateError."""
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise CertificateError(
            f"{path}: not a PEM certificate, which begins with -----BEGIN CERTIFICATE-----. Is the "
            "path right?"
        ) from error
