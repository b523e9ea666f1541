"""A CA with certificates and tokens in a folder, and connections of a real agent or person with them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc

from gangline.aggregator.auth import tokens
from gangline.aggregator.auth.access import tokens_file
from gangline.aggregator.auth.ca import (
    Authority,
    CertificatePaths,
    certificate_paths,
    make_authority,
)
from gangline.aggregator.principal import Role
from gangline.contract.wire.permit_pb2_grpc import PermitServiceStub
from gangline.contract.wire.score_pb2_grpc import ScoreServiceStub
from gangline.contract.wire.telemetry_pb2_grpc import TelemetryServiceStub


class Secured:
    """The operator's material for one aggregator."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self.data = folder, data
        make_authority(folder, "test", datetime.now(UTC))
        self.server = self.authority().issue_server(["localhost", "127.0.0.1"], 30)

    def authority(self, ago: timedelta = timedelta()) -> Authority:
        return Authority(self.folder, datetime.now(UTC) - ago)

    @property
    def ca(self) -> Path:
        return certificate_paths(self.folder, "ca").certificate

    def settings(self, *, client_certificates: bool = True, **changes: Any) -> dict[str, Any]:
        """Return the aggregator's settings, as `gangline admin cert` prints them."""
        return {
            "tls_certificate_file": str(self.server.certificate),
            "tls_key_file": str(self.server.key),
            "tls_client_ca_file": str(self.ca) if client_certificates else "",
            "access_look_seconds": 0.1,
            **changes,
        }

    def certificate(
        self, role: str, name: str, ago: timedelta = timedelta(), *, force: bool = False
    ) -> CertificatePaths:
        return self.authority(ago).issue(Role(role), name, 30, force=force)

    def token(self, role: str, name: str, days: float = 1.0) -> str:
        secret, kept = tokens.make_token(Role(role), name, days, int(time.time()))
        tokens.update_tokens(tokens_file(self.data), lambda before: [*before, kept])
        return secret

    def revoke(self, name: str) -> None:
        tokens.update_tokens(
            tokens_file(self.data), lambda all_: [token for token in all_ if token.name != name]
        )

    def channel(self, port: int, files: CertificatePaths | None = None) -> grpc.aio.Channel:
        """Return a connection of its own by TLS, with a certificate if given."""
        given = (files.key.read_bytes(), files.certificate.read_bytes()) if files else (None, None)
        credentials = grpc.ssl_channel_credentials(self.ca.read_bytes(), *given)
        alone = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(f"localhost:{port}", credentials, options=alone)


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def scores(channel: Any) -> Any:
    return ScoreServiceStub(channel)  # type: ignore[no-untyped-call]


def permits(channel: Any) -> Any:
    return PermitServiceStub(channel)  # type: ignore[no-untyped-call]


def telemetry(channel: Any) -> Any:
    return TelemetryServiceStub(channel)  # type: ignore[no-untyped-call]


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), str(error.details())
    return grpc.StatusCode.OK, ""
