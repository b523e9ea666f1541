"""Names in certificates and patterns of operators, with any content."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.principal import (
    CertificateIdentity,
    CertificateSubject,
    Principal,
    Role,
    certificate_names,
    check_name_patterns,
    is_name,
    parse_name_pattern,
    parse_spiffe,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "spiffe://cluster.example/gangline/agent/gpu-001",
            CertificateSubject(Role.AGENT, "gpu-001"),
        ),
        ("spiffe://c/gangline/operator/alice", CertificateSubject(Role.OPERATOR, "alice")),
        ("spiffe://c/gangline/anyone/alice", None),  # no certificate gives that
        ("spiffe://c/gangline/root/alice", None),
        ("spiffe://c/gangline/agent/a/b", None),
        ("spiffe://c/gangline/agent/", None),
        ("spiffe://c/gangline/agent/..", None),
        ("spiffe://c/ns/prod/sa/default", None),
        ("spiffe://C/gangline/agent/a", None),
        ("https://c/gangline/agent/a", None),
        ("spiffe://c/gangline/agent/a\n", None),
        ("spiffe://c/gangline/agent/a%2fb", None),
        ("spiffe://c/gangline/agent/" + "a" * 3000, None),
        ("", None),
    ],
)
def test_a_spiffe_name_is_whole_or_none(text: str, found: CertificateSubject | None) -> None:
    assert parse_spiffe(text) == found


def test_a_trust_domain_that_is_set_is_the_only_one() -> None:
    """A CA that several clusters share."""
    name = "spiffe://other/gangline/admin/eve"
    assert parse_spiffe(name) and parse_spiffe(name, "other") and not parse_spiffe(name, "ours")
    assert CertificateIdentity((), "ours").principal({"peer_uri": [name.encode()]}) is None


@given(st.text(max_size=300))
def test_any_text_is_a_holder_of_ours_or_none(text: str) -> None:
    """Any signed name is a role and a host's name, or refused; and it is safe to print."""
    names = CertificateIdentity(("agent={name}", "operator=ops-{name}.example"), "")
    auth = {
        key: [text.encode("utf-8", "surrogatepass")]
        for key in ("peer_uri", "peer_dns", "x509_common_name")
    }
    holder = names.principal(auth)
    assert holder is None or (
        holder.role in (Role.AGENT, Role.OPERATOR, Role.SCHEDULER, Role.ADMIN)
        and is_name(holder.name)
    )
    assert certificate_names(auth).isprintable()
    parsed = parse_spiffe("spiffe://t/gangline/agent/" + text)
    assert parsed is None or parsed.name == text


def test_patterns_name_a_role_by_a_dns_name() -> None:
    """The site's own CA. The first pattern that fits counts, letters' case does not."""
    names = CertificateIdentity(("operator=ops-{name}.example", "agent={name}.gpu.example"), "")
    dns = {"peer_dns": [b"GPU-1.gpu.example"], "x509_common_name": [b"ops-eve.example"]}
    assert names.principal(dns) == CertificateSubject(Role.AGENT, "gpu-1")
    assert names.principal({"x509_common_name": [b"ops-eve.example"]}) == CertificateSubject(
        Role.OPERATOR, "eve"
    )
    assert names.principal({"peer_dns": [b"gpu-1.gpu.example.evil"]}) is None
    assert names.principal({"peer_dns": [b".gpu.example"]}) is None
    mixed = {"peer_uri": [b"spiffe://t/gangline/scheduler/slurm"], "peer_dns": [b"a.gpu.example"]}
    assert names.principal(mixed) == CertificateSubject(Role.SCHEDULER, "slurm")


def test_a_common_name_does_not_stand_in_for_a_foreign_uri() -> None:
    """A foreign service's SPIFFE certificate, whose common name was chosen freely."""
    auth = {"peer_uri": [b"spiffe://t/ns/x/sa/y"], "x509_common_name": [b"ops-eve.example"]}
    assert CertificateIdentity(("operator=ops-{name}.example",), "").principal(auth) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "agent",
        "agent=",
        "agent=host",
        "root={name}",
        "anyone={name}",
        "agent={name}{name}",
        "agent={name} x",
        "={name}",
    ],
)
def test_a_pattern_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"ROLE=PATTERN with one \{name\}"):
        parse_name_pattern(text)
    with pytest.raises(ValueError, match="at most 64"):
        check_name_patterns(["agent={name}"] * 65)


def test_a_caller_is_told_apart_by_role_name_and_way() -> None:
    """An operator and an agent of the same name share no limit; an agent writes only as itself, an admin as any host."""
    agent = Principal(Role.AGENT, "a", "a", "token 1", (1, 1))
    assert agent.writes_as("a") and not agent.writes_as("b") and agent.is_authenticated
    assert Principal(Role.ADMIN, "root").writes_as("b")
    assert "agent 'a'" in str(agent)
