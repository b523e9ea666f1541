"""`gangline admin cert` and `token`: the created files work, and the printed lines can be pasted."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from gangline import cli
from gangline.aggregator.auth.access import tokens_file
from gangline.aggregator.auth.ca import CertificatePaths
from gangline.aggregator.auth.tokens import read_tokens
from gangline.aggregator.commands import admin_access, admin_store
from gangline.aggregator.store.store_folder import lock_folder
from gangline.contract.wire import permit_pb2
from tests.aggregator.auth.secured import Secured, permits, telemetry


def made(*arguments: str, folder: Path) -> int:
    return admin_access.cert_main([*arguments, "--data", str(folder)])


def test_one_command_makes_a_cluster_that_works(
    lab: Any, make_agent: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings it prints, pasted: the aggregator starts with them, the agent registers, the operator asks."""
    data = tmp_path / "data"
    assert (
        made(
            "cluster",
            "--server",
            "localhost",
            "--host",
            "host-1",
            "--operator",
            "alice",
            folder=data,
        )
        == cli.OK
    )
    aggregator_says, agent_says, operator_says = capsys.readouterr().out.split("\n\n")
    settings = tomllib.loads(aggregator_says)
    assert settings.pop("listen") == "0.0.0.0:7600"
    agent, operator = tomllib.loads(agent_says), tomllib.loads(operator_says)
    assert (
        agent["host"] == "host-1"
        and agent["aggregator"] == operator["aggregator"] == "localhost:7600"
    )
    folder = data / "access"
    secured = Secured.__new__(Secured)
    secured.folder = folder

    async def way() -> None:
        async with lab.aggregator(**settings) as aggregator:
            files = CertificatePaths(
                folder / Path(agent["tls_certificate_file"]).name,
                folder / Path(agent["tls_key_file"]).name,
            )
            channel = secured.channel(aggregator.port, files)
            await telemetry(channel).RegisterNode(make_agent().registration())
            person = secured.channel(
                aggregator.port,
                CertificatePaths(Path(operator["certificate"]), Path(operator["key"])),
            )
            await permits(person).GetPermit(permit_pb2.GetPermitRequest())
            await channel.close()
            await person.close()

    asyncio.run(way())
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == (0o600 if file.suffix == ".key" else 0o644)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_nothing_is_overwritten_without_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An arrow-up in a shell replaced the CA of the whole fleet."""
    assert made("init", folder=tmp_path) == cli.OK
    assert made("issue", "--role", "agent", "--host", "h", folder=tmp_path) == cli.OK
    before = {file: file.read_bytes() for file in (tmp_path / "access").iterdir()}
    assert made("init", folder=tmp_path) == cli.FAILED
    assert made("issue", "--role", "agent", "--host", "h", folder=tmp_path) == cli.FAILED
    assert "--force" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in (tmp_path / "access").iterdir()} == before
    assert made("issue", "--role", "agent", "--host", "h", "--force", folder=tmp_path) == cli.OK
    leaf = tmp_path / "access" / "agent-h.pem"
    assert leaf.read_bytes() != before[leaf]


def test_leaves_are_for_what_they_are_for(tmp_path: Path) -> None:
    """An agent's key must neither serve as the aggregator's nor sign certificates."""
    made("cluster", "--trust", "site", "--server", "10.0.0.5", "--host", "h", folder=tmp_path)
    agent, server, ca = (
        x509.load_pem_x509_certificate((tmp_path / "access" / f"{name}.pem").read_bytes())
        for name in ("agent-h", "server", "ca")
    )

    def of(certificate: x509.Certificate, kind: Any) -> Any:
        return certificate.extensions.get_extension_for_class(kind).value

    assert [use._name for use in of(agent, x509.ExtendedKeyUsage)] == ["clientAuth"]
    assert [use._name for use in of(server, x509.ExtendedKeyUsage)] == ["serverAuth"]
    assert not of(agent, x509.BasicConstraints).ca and not of(server, x509.BasicConstraints).ca
    assert of(ca, x509.BasicConstraints).ca and of(ca, x509.BasicConstraints).path_length == 0
    names = of(agent, x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [
        "spiffe://site/gangline/agent/h"
    ]
    assert (
        str(of(server, x509.SubjectAlternativeName).get_values_for_type(x509.IPAddress)[0])
        == "10.0.0.5"
    )
    assert 364 <= (agent.not_valid_after_utc - agent.not_valid_before_utc).days <= 366


@pytest.mark.parametrize(
    "arguments",
    [
        ["issue", "--role", "agent", "--name", "a/b"],
        ["issue", "--role", "root", "--name", "a"],
        ["issue", "--role", "agent", "--name", "../../etc/x"],
        ["init", "--trust", "Not A Domain"],
        ["cluster", "--host", ""],
        [],
    ],
)
def test_wrong_usage_is_said(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        admin_access.cert_main(arguments and [*arguments, "--data", str(tmp_path)])
    assert ended.value.code == cli.USAGE and not list(tmp_path.iterdir())
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["issue", "--role", "agent", "--name", "a"], "admin cert init"),
        (["issue", "--role", "agent", "--name", "a", "--days", "99999"], "admin cert init"),
        (["server", "head.example"], "admin cert init"),
    ],
)
def test_without_a_ca_it_says_how_to_make_one(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The wrong folder, most often."""
    assert made(*arguments, folder=tmp_path) == cli.FAILED
    assert message in capsys.readouterr().err


def test_a_cluster_that_cannot_be_made_leaves_no_ca(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--days 0` made a CA first, and the next command signed with it."""
    assert made("cluster", "--days", "0", folder=tmp_path) == cli.FAILED
    assert "expected 1 to" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_token_where_no_aggregator_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--data` was mistyped: the token opened nothing, and `list` of the right folder showed none."""
    assert token(tmp_path, "list") == cli.OK
    assert "no token exists" in capsys.readouterr().err
    assert token(tmp_path, "new", "--role", "operator", "--name", "a") == cli.OK
    assert "holds no store yet" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["cert init", "token list", "verify"])
def test_a_data_folder_that_is_a_file(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A message with the file's name, and no traceback."""
    (tmp_path / "file").touch()
    assert cli.main(["admin", *command.split(), "--data", str(tmp_path / "file")]) == cli.FAILED
    assert str(tmp_path) in capsys.readouterr().err


def test_a_disk_that_is_full_is_no_file_named_none(capsys: pytest.CaptureFixture[str]) -> None:
    """An error while writing does not know the file's name."""

    def run() -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert admin_store.guarded("backup", run) == cli.FAILED
    assert capsys.readouterr().err == "gangline admin backup: No space left on device\n"


def token(folder: Path, *arguments: str) -> int:
    return admin_access.token_main([*arguments, "--data", str(folder)])


def test_what_is_made_before_the_aggregator_is_not_open_to_all(tmp_path: Path) -> None:
    """`token new` created the data folder, readable by everyone, and it stayed so with the store in it."""
    data = tmp_path / "var" / "aggregator"
    assert (
        admin_access.token_main(["new", "--role", "operator", "--name", "a", "--data", str(data)])
        == 0
    )
    assert data.stat().st_mode & 0o027 == 0
    lock_folder(tmp_path / "new").release()
    assert (tmp_path / "new").stat().st_mode & 0o027 == 0


def test_a_token_is_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert token(tmp_path, "new", "--role", "operator", "--name", "alice") == cli.OK
    output = capsys.readouterr()
    secret = output.out.strip()
    assert "needs a login, even on loopback" in output.err and secret not in output.err
    assert token(tmp_path, "list") == token(tmp_path, "list", "--json") == cli.OK
    listed = capsys.readouterr().out
    assert "alice" in listed and secret not in listed and secret.split("_", 2)[2] not in listed
    (kept,) = read_tokens(tokens_file(tmp_path))
    assert kept.sha256 not in listed
    assert [load["name"] for load in json.loads(listed.splitlines()[-1])] == ["alice"]


def test_tokens_of_many_hosts_go_into_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sixteen hosts, without a secret on a screen or in a shell's history."""
    hosts = [f"gpu-{number:03}" for number in range(16)]
    names = [word for host in hosts for word in ("--host", host)]
    into = tmp_path / "tokens"
    assert token(tmp_path, "new", "--role", "agent", *names, "--into", str(into)) == cli.OK
    files = sorted(into.iterdir())
    assert [file.name for file in files] == [f"agent-{host}.token" for host in hosts]
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    output = capsys.readouterr()
    assert not any(file.read_text().strip() in output.out + output.err for file in files)
    assert token(tmp_path, "new", "--role", "agent", *names, "--into", str(into)) == cli.FAILED
    assert "--force" in capsys.readouterr().err and len(read_tokens(tokens_file(tmp_path))) == 16


def test_revoking_by_id_and_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Revoke a single token, then all of a person's; an unknown token is reported."""
    for _ in range(3):
        token(tmp_path, "new", "--role", "operator", "--name", "alice")
    first = read_tokens(tokens_file(tmp_path))[0].id
    assert token(tmp_path, "revoke", first) == cli.OK
    assert [token.id == first for token in read_tokens(tokens_file(tmp_path))] == [False, False]
    assert token(tmp_path, "revoke", "--name", "alice") == cli.OK
    assert read_tokens(tokens_file(tmp_path)) == []
    assert token(tmp_path, "revoke", "--name", "alice") == cli.NOT_FOUND
    assert token(tmp_path / "elsewhere", "revoke", first) == cli.FAILED
    assert "no token 'alice'" in capsys.readouterr().err
