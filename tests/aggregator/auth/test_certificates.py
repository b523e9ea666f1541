"""The server's certificate, replaced while it serves; an unusable certificate changes nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from gangline.aggregator.auth.certificates import (
    Certificates,
    ServerTlsFiles,
    load,
)
from gangline.aggregator.server import Aggregator
from gangline.contract.certificates import CertificateError
from gangline.contract.settings import SettingsError
from gangline.contract.wire import permit_pb2
from tests.aggregator.auth.secured import Secured, permits, status_of
from tests.processes import GUARD_SECONDS


def served(port: int) -> int:
    """Return the serial number of the certificate that a port shows."""
    pem = ssl.get_server_certificate(("127.0.0.1", port), timeout=GUARD_SECONDS)
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


def serial(path: Path) -> int:
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number


@pytest.mark.slow
def test_a_new_certificate_is_taken_over_while_clients_stay(lab: Any, secured: Secured) -> None:
    """A restart for a certificate, of an aggregator of ten thousand agents, once a year and at night."""
    tls = secured.settings(client_certificates=False, access_look_seconds=60.0)

    async def way() -> None:
        async with lab.aggregator(**tls) as aggregator:
            channel = secured.channel(aggregator.port)
            token = (("authorization", f"Bearer {secured.token('operator', 'o')}"),)
            await aggregator.access_control.refresh()
            ask = permits(channel).GetPermit
            await ask(permit_pb2.GetPermitRequest(), metadata=token)
            first = await asyncio.to_thread(served, aggregator.port)
            secured.authority().issue_server(["localhost"], 30, force=True)
            await aggregator.access_control.refresh()
            second = await asyncio.to_thread(served, aggregator.port)
            assert first != second == serial(secured.server.certificate)
            await ask(permit_pb2.GetPermitRequest(), metadata=token)  # on the earlier connection
            new = secured.channel(aggregator.port)
            await permits(new).GetPermit(permit_pb2.GetPermitRequest(), metadata=token)
            assert (
                aggregator.access_control.certificates.reloads == 1
                and not aggregator.access_control.error
            )
            await channel.close()
            await new.close()

    asyncio.run(way())


def test_a_new_ca_lets_in_whom_it_signed(lab: Any, secured: Secured, tmp_path: Path) -> None:
    """The fleet moves to another CA: both are in the file for a while."""
    other = Secured(tmp_path / "other", tmp_path / "unused")
    files = other.certificate("operator", "o")
    both = secured.ca.read_bytes() + other.ca.read_bytes()

    async def way() -> None:
        async with lab.aggregator(**secured.settings(access_look_seconds=60.0)) as aggregator:
            ask = permit_pb2.GetPermitRequest()
            refused = secured.channel(aggregator.port, files)
            code, _ = await status_of(permits(refused).GetPermit(ask, timeout=GUARD_SECONDS))
            assert code.name == "UNAVAILABLE"
            secured.ca.write_bytes(both)
            await aggregator.access_control.refresh()
            taken = secured.channel(aggregator.port, files)
            code, message = await status_of(permits(taken).GetPermit(ask))
            assert code.name == "OK", message
            await refused.close()
            await taken.close()

    asyncio.run(way())


@pytest.mark.parametrize("harm", ["gone", "garbage", "another key", "run out", "no key"])
def test_one_that_cannot_be_used_keeps_the_old_one(
    harm: str, secured: Secured, tmp_path: Path
) -> None:
    """A deployment stopped halfway: the service keeps its certificate, and reports the error."""
    server = secured.server
    certificates = Certificates(ServerTlsFiles(server.certificate, server.key, None))
    before = certificates._active.certificate
    if harm == "gone":
        server.certificate.unlink()
    elif harm == "garbage":
        server.certificate.write_text("-----BEGIN CERTIFICATE-----\nnot one\n")
    elif harm == "another key":
        shutil.copy(secured.certificate("agent", "x").key, server.key)
        # of the same size, and some file systems have a clock of 4 ms
        os.utime(server.key, ns=(1, 1))
    elif harm == "no key":
        server.key.write_text("very secret words")
    else:
        secured.authority(timedelta(days=40)).issue_server(["localhost"], 30, force=True)
    assert not certificates.refresh()
    assert certificates._active.certificate == before
    assert "the previous certificate stays in force" in certificates.error
    named = server.key if harm in ("another key", "no key") else server.certificate
    assert str(named) in certificates.error and "secret" not in certificates.error
    assert not certificates.refresh()  # and it is reported once
    secured.authority().issue_server(["localhost"], 30, force=True)
    assert certificates.refresh() and not certificates.error and certificates.reloads == 1


def test_one_that_cannot_be_used_is_a_finding(lab: Any, secured: Secured, until: Any) -> None:
    """The log of a running service is not read."""

    async def way() -> None:
        tls = secured.settings(access_look_seconds=60.0, judge_seconds=0.05)
        async with lab.aggregator(**tls) as aggregator:
            good = secured.server.key.read_bytes()
            secured.server.key.write_text("nonsense")
            await aggregator.access_control.refresh()
            await until(lambda: ("(aggregator)", "access.trouble", "") in aggregator.fleet.findings)
            secured.server.key.write_bytes(good)
            await aggregator.access_control.refresh()
            await until(lambda: not aggregator.fleet.findings)

    asyncio.run(way())
    ((message, cleared),) = lab.rows(
        "SELECT message, cleared FROM findings WHERE host = '(aggregator)'"
    )
    assert "server.key" in message and "nonsense" not in message and cleared


def test_one_that_ends_soon_is_spoken_of(secured: Secured) -> None:
    """The certificate expired on a Sunday without any warning."""
    now = [datetime.now(UTC)]
    certificates = Certificates(
        ServerTlsFiles(secured.server.certificate, secured.server.key, None), lambda: now[0]
    )
    assert not certificates.error
    now[0] += timedelta(days=20)
    certificates.refresh()
    assert "ends in 9 days" in certificates.error
    now[0] += timedelta(days=8)
    certificates.refresh()
    assert "ends in 1 days" in certificates.error  # not what was true a week ago
    now[0] += timedelta(days=3)
    certificates.refresh()
    assert "has expired" in certificates.error


def test_one_that_may_not_be_read_yet_or_does_not_hold_yet_is_taken_later(
    secured: Secured, tmp_path: Path
) -> None:
    """Root gave the file to the service a minute later, or the issuing machine's clock was a minute
    ahead: neither changes the files.
    """
    files, now = secured.server, [datetime.now(UTC)]
    certificates = Certificates(ServerTlsFiles(files.certificate, files.key, None), lambda: now[0])
    secured.authority(-timedelta(hours=1)).issue_server(["localhost"], 30, force=True)
    assert not certificates.refresh() and "holds from" in certificates.error
    now[0] += timedelta(hours=1)
    assert certificates.refresh() and not certificates.error


def test_what_is_in_force_shows_nobody_the_key(secured: Secured) -> None:
    """A traceback with locals, in a bug report."""
    held = load(
        ServerTlsFiles(secured.server.certificate, secured.server.key, None), datetime.now(UTC)
    )
    assert "KEY" not in repr(held) and "BEGIN" not in repr(held)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tls_key_file": ""}, "go together"),
        ({"tls_certificate_file": ""}, "go together"),
        ({"tls_client_ca_file": "", "listen_tokens": "127.0.0.1:0"}, "requires no certificate"),
        ({"tls_client_ca_file": "/nowhere/ca.pem"}, "/nowhere/ca.pem: No such file"),
        (
            {"tls_certificate_file": "", "tls_key_file": ""},
            "tls_client_ca_file needs tls_certificate_file",
        ),
    ],
)
def test_settings_that_do_not_go_together(
    changes: dict[str, str], message: str, lab: Any, secured: Secured
) -> None:
    """Half of TLS, and a service that would have started in plain text."""
    with pytest.raises(SettingsError, match=message):
        asyncio.run(Aggregator(lab.config(**{**secured.settings(), **changes})).start())


def test_with_tls_it_listens_beyond_loopback(lab: Any, secured: Secured) -> None:
    """Encrypted connections need no second setting; without TLS the address is refused as before."""

    async def way() -> None:
        async with lab.aggregator(**secured.settings(listen="0.0.0.0:0")) as aggregator:
            assert aggregator.port

    asyncio.run(way())
    with pytest.raises(SettingsError, match="gangline admin cert"):
        asyncio.run(Aggregator(lab.config(listen="0.0.0.0:0")).start())


def test_files_too_long_are_not_read(secured: Secured, tmp_path: Path) -> None:
    """/dev/zero in a setting made the service read forever."""
    for files in (
        ServerTlsFiles(Path("/dev/zero"), secured.server.key, None),
        ServerTlsFiles(secured.server.certificate, secured.server.key, Path("/dev/zero")),
    ):
        with pytest.raises(CertificateError, match="longer than"):
            load(files, datetime.now(UTC))
