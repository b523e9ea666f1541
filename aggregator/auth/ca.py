"""A certificate authority for a small cluster: ECDSA P-256, certificates valid for a year, by the library `cryptography`.

Larger sites have their own CA (SPIRE, Vault, cert-manager): its certificates work as well (`principal.py`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ...contract.durable_file import os_error_message
from ..principal import NAME_FORM, Role, is_name
from .tokens import private_folder, write_private

CA_DAYS = 3650
LEAF_DAYS, LEAF_DAYS_MAX = 365, 825
#: Clocks differ between machines, so a certificate is valid from this long before its creation.
BACKDATE = timedelta(minutes=10)
COMMON_NAME_CHARACTERS_MAX = 64


class AuthorityError(Exception):
    """A certificate cannot be created; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class CertificatePaths:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


def certificate_paths(folder: Path, name: str) -> CertificatePaths:
    """Return the paths of the certificate *name*."""
    return CertificatePaths(folder / f"{name}.pem", folder / f"{name}.key")


def check_days(days: int) -> None:
    """Raise AuthorityError unless *days* is allowed."""
    if not 1 <= days <= LEAF_DAYS_MAX:
        raise AuthorityError(f"{days} days: expected 1 to {LEAF_DAYS_MAX}")


def make_authority(
    folder: Path, trust: str, now: datetime, *, force: bool = False
) -> CertificatePaths:
    """Create a CA for the trust domain *trust* in *folder*: the files ca.pem and ca.key.

    Raises AuthorityError, OSError.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(f"Gangline CA of {trust}")
    certificate = (
        _certificate(subject, subject, key.public_key(), now, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(_alternatives([x509.UniformResourceIdentifier(f"spiffe://{trust}")]), False)
        .sign(key, hashes.SHA256())
    )
    return _write_pair(folder, "ca", certificate, key, force=force)


class Authority:
    """The CA of a folder."""

    def __init__(self, folder: Path, now: datetime) -> None:
        """Read ca.pem and ca.key. Raises AuthorityError."""
        self.folder, self._now = folder, now
        files = certificate_paths(folder, "ca")
        try:
            self._certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
            key = serialization.load_pem_private_key(files.key.read_bytes(), None)
        except FileNotFoundError as error:
            raise AuthorityError(
                f"there is no CA in {folder} (no {Path(str(error.filename)).name}). Create one "
                "with `gangline admin cert init`"
            ) from error
        except OSError as error:
            raise AuthorityError(f"{error.filename}: {os_error_message(error)}") from error
        except (ValueError, TypeError) as error:
            raise AuthorityError(
                f"the CA in {folder} cannot be read: {files.certificate.name} or {files.key.name} "
                "is not valid PEM. Restore both from a copy, or create a CA in another folder"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise AuthorityError(
                f"the CA in {folder} was not created by Gangline: its key is not an elliptic-curve "
                "key"
            )
        self._key = key
        if now >= self._certificate.not_valid_after_utc:
            raise AuthorityError(
                f"the CA in {folder} expired on {self._certificate.not_valid_after_utc:%Y-%m-%d}. "
                "Create another in another folder (--folder DIR)"
            )

    @property
    def trust(self) -> str:
        """Return the trust domain of the names in its certificates."""
        with suppress(x509.ExtensionNotFound):
            names = self._certificate.extensions.get_extension_for_class(
                x509.SubjectAlternativeName
            )
            for uri in names.value.get_values_for_type(x509.UniformResourceIdentifier):
                return uri.removeprefix("spiffe://")
        return "gangline"

    def issue_server(
        self, names: Sequence[str], days: int, *, force: bool = False
    ) -> CertificatePaths:
        """Create server.pem for DNS names and addresses. Raises AuthorityError, OSError."""
        if not names:
            raise AuthorityError(
                "a server's certificate needs a name or an address that clients connect to"
            )
        alternatives = [_alternative_name(name) for name in names]
        return self._issue(
            "server", names[0], alternatives, ExtendedKeyUsageOID.SERVER_AUTH, days, force=force
        )

    def issue(self, role: Role, name: str, days: int, *, force: bool = False) -> CertificatePaths:
        """Create ROLE-NAME.pem with the identity spiffe://TRUST/gangline/ROLE/NAME.

        Raises AuthorityError, OSError.
        """
        if not is_name(name):
            raise AuthorityError(f"{name[:64]!r}: expected {NAME_FORM}")
        uri = x509.UniformResourceIdentifier(f"spiffe://{self.trust}/gangline/{role}/{name}")
        return self._issue(
            f"{role}-{name}", name, [uri], ExtendedKeyUsageOID.CLIENT_AUTH, days, force=force
        )

    def _issue(
        self,
        file: str,
        name: str,
        alternatives: list[x509.GeneralName],
        purpose: x509.ObjectIdentifier,
        days: int,
        *,
        force: bool,
    ) -> CertificatePaths:
        check_days(days)
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self._certificate.subject
        certificate = (
            _certificate(_subject(name), issuer, key.public_key(), self._now, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(_alternatives(alternatives), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False
            )
            .sign(self._key, hashes.SHA256())
        )
        return _write_pair(self.folder, file, certificate, key, force=force)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:COMMON_NAME_CHARACTERS_MAX])])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternatives(names: list[x509.GeneralName]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName(names)


def _alternative_name(name: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(name))
    if not is_name(name):
        raise AuthorityError(f"{name[:64]!r}: neither a DNS name nor an address")
    return x509.DNSName(name)


def _write_pair(
    folder: Path,
    name: str,
    certificate: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    *,
    force: bool,
) -> CertificatePaths:
    """Write both files atomically; only the owner can read the key."""
    private_folder(folder)
    files = certificate_paths(folder, name)
    existing = [str(path) for path in (files.certificate, files.key) if path.exists()]
    if existing and not force:
        raise AuthorityError(
            f"{' and '.join(existing)} would be overwritten. Use --force to overwrite"
        )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(files.key, secret, 0o600)
    write_private(files.certificate, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return files
