"""Fuzz targets of access control: certificates' names, patterns, tokens, the token file, gRPC's names of peers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict

from gangline.aggregator.auth.limits import peer_address
from gangline.aggregator.auth.tokens import Token, TokensError, make_token, parse_tokens
from gangline.aggregator.principal import (
    GRANTABLE_ROLES,
    CertificateIdentity,
    Role,
    certificate_names,
    is_name,
    parse_name_pattern,
)
from tests.fuzzing.damage import ACCEPTED, REFUSED, damaged, flipped

NAMES = CertificateIdentity(("agent={name}.gpu.example", "operator=ops-{name}"), "cluster.example")
KEPT = make_token(Role.AGENT, "gpu-001", 1.0, 1_760_000_000)[1]


def fuzz_certificate_names(source: random.Random) -> str:
    """A certificate's names, damaged: a known role with a host's name, or no principal."""
    texts = (
        b"spiffe://cluster.example/gangline/agent/gpu-001",
        b"gpu-001.gpu.example",
        b"ops-alice",
    )
    keys = ("peer_uri", "peer_dns", "x509_common_name")
    auth = {key: [damaged(text, source)] for key, text in zip(keys, texts, strict=True)}
    holder = NAMES.principal(auth)
    assert certificate_names(auth).isprintable()
    assert holder is None or (holder.role in GRANTABLE_ROLES and is_name(holder.name))
    return ACCEPTED if holder else REFUSED


def fuzz_patterns(source: random.Random) -> str:
    """An operator's pattern: it matches as documented, or an error."""
    text = damaged(b"agent={name}.gpu.example", source).decode(errors="replace")
    try:
        pattern = parse_name_pattern(text)
    except ValueError as error:
        assert "ROLE=PATTERN" in str(error)
        return REFUSED
    holder = pattern.match(f"{pattern.before}x1{pattern.after}")
    assert holder is not None and holder.name == "x1"
    return ACCEPTED


def fuzz_tokens(source: random.Random) -> str:
    """The token file after a bad disk: valid tokens, or an error."""
    text = json.dumps({"tokens": [asdict(KEPT)] * 3})
    data = source.choice((damaged, flipped))(text.encode(), source).decode(errors="replace")
    try:
        tokens = parse_tokens(data)
    except TokensError as error:
        assert len(str(error)) < 400
        return REFUSED
    assert all(
        isinstance(token, Token) and token.role in GRANTABLE_ROLES and is_name(token.name)
        for token in tokens
    )
    return ACCEPTED


def fuzz_peers(source: random.Random) -> str:
    """gRPC's name of a peer, damaged: an address and a port, or none."""
    text = damaged(source.choice((b"ipv4:10.0.0.1:4711", b"ipv6:%5Bfe80::1%25eth0%5D:80")), source)
    address = peer_address(text.decode(errors="replace"))
    assert address is None or (isinstance(address[0], str) and address[1] >= 0)
    return ACCEPTED if address else REFUSED


TARGETS: dict[str, Callable[[random.Random], str]] = {
    "certificate-names": fuzz_certificate_names,
    "certificate-patterns": fuzz_patterns,
    "token-file": fuzz_tokens,
    "peer-names": fuzz_peers,
}
