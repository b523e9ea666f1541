"""Commands connect to an aggregator over TLS, and explain a failed connection."""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gangline import cli
from gangline.aggregator.commands import sql
from gangline.aggregator.server import Aggregator
from gangline.aggregator.store.store_folder import OPS_FILE
from gangline.contract.client import connection
from gangline.contract.client.command_line import add_connection_options
from gangline.contract.client.connection import (
    CommandError,
    ConnectionOptions,
    read_connection_options,
)
from tests.aggregator.auth.secured import Secured
from tests.processes import GUARD_SECONDS, until


class Served:
    """An aggregator on a loop of its own, so that commands can block."""

    def __init__(self, config: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.aggregator = Aggregator(config)
        self.do(self.aggregator.start())

    def do(self, what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self.loop).result(60)

    def end(self) -> None:
        self.do(self.aggregator.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(60)
        self.loop.close()


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the user's variables and files, and give the diagnosis of a failed connection enough time."""
    monkeypatch.setattr(connection, "PROBE_SECONDS", GUARD_SECONDS)
    for name in (
        "AGGREGATOR",
        "CA",
        "CERT",
        "KEY",
        "TOKEN",
        "TOKEN_FILE",
        "SERVER_NAME",
        "CLIENT_CONFIG",
    ):
        monkeypatch.delenv(f"GANGLINE_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def served(lab: Any, secured: Secured) -> Iterator[Served]:
    config = lab.config(**secured.settings(listen_tokens="127.0.0.1:0"))
    served = Served(config)
    yield served
    served.end()


def test_an_operator_asks_by_certificate_token_and_file(
    served: Served,
    secured: Secured,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By options, by the environment, and by the file that `gangline admin cert` prints; the permit has the login."""
    files = secured.certificate("operator", "alice")
    way = ["--ca", str(secured.ca), "--cert", str(files.certificate), "--key", str(files.key)]
    address = ["--aggregator", f"localhost:{served.aggregator.port}"]
    assert (
        cli.main(["permit", "grant", "--for", "60s", "--reason", "trial", *address, *way]) == cli.OK
    )
    assert "operator alice: " in capsys.readouterr().out

    token = tmp_path / "token"
    token.write_text(secured.token("operator", "bob"))
    served.do(served.aggregator.access_control.refresh())
    monkeypatch.setenv("GANGLINE_CA", str(secured.ca))
    monkeypatch.setenv("GANGLINE_TOKEN_FILE", str(token))
    monkeypatch.setenv("GANGLINE_AGGREGATOR", f"localhost:{served.aggregator.token_port}")
    assert cli.main(["permit", "show", "--json"]) == cli.OK
    assert json.loads(capsys.readouterr().out)["seconds_left"]

    file = tmp_path / "config" / "gangline" / "client.toml"
    file.parent.mkdir(parents=True)
    file.write_text(
        f'aggregator = "127.0.0.1:{served.aggregator.token_port}"\nserver_name = "localhost"\n'
    )
    monkeypatch.delenv("GANGLINE_AGGREGATOR")
    assert cli.main(["permit", "show"]) == cli.OK
    capsys.readouterr()


def failing(
    arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = cli.FAILED
) -> str:
    assert cli.main(["permit", "show", *arguments]) == code
    return capsys.readouterr().err


def test_what_goes_wrong_is_said(
    served: Served,
    secured: Secured,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gRPC says `failed to connect to all addresses` for each of these."""
    port, token_port = served.aggregator.port, served.aggregator.token_port
    address, ca = ["--aggregator", f"localhost:{port}"], ["--ca", str(secured.ca)]
    assert "it speaks TLS: name the CA" in failing(address, capsys)
    assert "it requires a client certificate" in failing([*address, *ca], capsys)
    other = Secured(tmp_path / "other", tmp_path / "unused")
    assert "no CA in" in failing([*address, "--ca", str(other.ca)], capsys)
    assert "not for 'head.example'" in failing(
        [*address, *ca, "--server-name", "head.example"], capsys
    )
    assert "No such file" in failing([*address, "--ca", "/nowhere.pem"], capsys)
    other_address = ["--aggregator", f"localhost:{token_port}", *ca]
    assert "rejected the login" in failing(other_address, capsys)
    monkeypatch.setenv("GANGLINE_TOKEN", "gangline_000000000000_" + "A" * 43)
    message = failing(other_address, capsys)
    assert "revoked" in message and "AAAA" not in message
    assert "sent unencrypted" in failing(["--aggregator", "10.0.0.1:7600"], capsys, cli.USAGE)


def test_an_aggregator_is_named_alike_by_every_command() -> None:
    """`gangline advise --server head:7600`, copied from a line of `gangline explain`, was taken for
    --server-name: the command asked this machine, which had no aggregator.
    """
    parser = argparse.ArgumentParser()
    add_connection_options(parser)
    for option in ("--aggregator", "--server"):
        assert (
            read_connection_options(parser.parse_args([option, "head:7600"])).aggregator
            == "head:7600"
        )
        assert sql._parser().parse_args(["SELECT 1", option, "head:7600"]).server == "head:7600"


def test_a_file_of_settings_that_is_none_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names a mistyped key in client.toml, and the valid keys."""
    parser = argparse.ArgumentParser()
    add_connection_options(parser)
    file = tmp_path / "client.toml"
    monkeypatch.setenv("GANGLINE_CLIENT_CONFIG", str(file))
    with pytest.raises(CommandError, match=f"GANGLINE_CLIENT_CONFIG={file}: No such file"):
        read_connection_options(parser.parse_args([]))
    for text, message in (
        ("token = 'x'", "unknown setting 'token'; did you mean 'token_file'"),
        ("aggregator = 'nowhere'", "expected ADDRESS:PORT"),
        ("ca = 1", "expected a text"),
        ("= = =", "not TOML"),
        ("certificate = 'c'\nkey = 'k'", "Name the aggregator's CA"),
    ):
        file.write_text(text)
        with pytest.raises(CommandError, match=message) as refused:
            read_connection_options(parser.parse_args([]))
        assert refused.value.code == cli.USAGE
    file.write_text("ca = 'a'\naggregator = 'head:1'")
    assert read_connection_options(
        parser.parse_args(["--aggregator", "other:2"])
    ) == ConnectionOptions("other:2", "a")


@pytest.mark.slow
@pytest.mark.usefixtures("live_operators_files")
def test_sql_and_admin_go_by_tls_with_certificate_and_token(
    served: Served, secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They dialled by themselves once, in plain text and without a login, and the first token shut them out."""
    ca = ["--ca", str(secured.ca)]
    alice, root = secured.certificate("operator", "alice"), secured.certificate("admin", "root")
    token = tmp_path / "token"
    token.write_text(secured.token("operator", "bob"))
    scheduler = tmp_path / "scheduler"
    scheduler.write_text(secured.token("scheduler", "slurm"))
    served.do(served.aggregator.access_control.refresh())
    until((secured.data / OPS_FILE).exists, "the operators' file")
    port, by_token = served.aggregator.port, served.aggregator.token_port

    def asked(at: int, *login: str) -> tuple[int, str, str]:
        question = ["sql", "--csv", "SELECT 6 * 7 AS answer", "--server", f"localhost:{at}"]
        code = cli.main([*question, *login])
        output = capsys.readouterr()
        return code, output.out, output.err

    by_certificate = ["--cert", str(alice.certificate), "--key", str(alice.key)]
    for service_port, login in ((port, by_certificate), (by_token, ["--token-file", str(token)])):
        code, out, err = asked(service_port, *ca, *login)
        assert code == cli.OK and "42" in out, err
    log = secured.data / "queries.log"
    until(lambda: log.read_text().count("\n") == 2, "both in the log")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["who"] for line in lines] == ["alice", "bob"] and lines[0]["role"] == "operator"
    secrets = (token.read_text(), scheduler.read_text())
    assert not any(secret in log.read_text() for secret in secrets)

    code, _, err = asked(by_token, *ca, "--token-file", str(scheduler))
    assert code == cli.FAILED and "may not call" in err and scheduler.read_text() not in err
    code, _, err = asked(by_token, *ca)
    assert code == cli.FAILED and "no token" in err
    other = Secured(tmp_path / "other", tmp_path / "unused")
    code, _, err = asked(port, "--ca", str(other.ca))
    assert code == cli.FAILED and "no CA in" in err, "not: name the CA, which was named"
    late = secured.certificate("operator", "late", ago=timedelta(days=40))
    code, _, err = asked(port, *ca, "--cert", str(late.certificate), "--key", str(late.key))
    assert code == cli.FAILED and f"{late.certificate} holds from" in err and "renew it" in err
    code, _, err = asked(port, *ca, "--cert", str(late.certificate))
    assert code == cli.FAILED and "no certificate or no key in it" in err
    agent = tmp_path / "agent"
    agent.write_text(secured.token("agent", "gpu-001"))
    served.do(served.aggregator.access_control.refresh())
    address = ["--aggregator", f"localhost:{by_token}", *ca, "--token-file", str(agent)]
    assert cli.main(["hosts", *address]) == cli.FAILED
    assert "it is for scheduler, operator, admin\n" in capsys.readouterr().err

    there_it_is = ["--data", str(secured.data), "--aggregator", f"localhost:{port}", *ca]
    as_alice = [*there_it_is, *by_certificate]
    as_root = [*there_it_is, "--cert", str(root.certificate), "--key", str(root.key)]
    for command in (["backup", "--to", str(tmp_path / "backups")], ["compact"]):
        assert cli.main(["admin", *command, *as_alice]) == cli.FAILED
        message = capsys.readouterr().err
        assert "it is for admin. Log in as an admin: --token-file" in message
        assert cli.main(["admin", *command, *as_root]) == cli.OK, capsys.readouterr().err
        capsys.readouterr()
    copied = [path.name for path in (tmp_path / "backups").rglob("*")]
    assert "gangline.duckdb" in copied and "tokens.json" not in copied
    assert not [name for name in copied if name.endswith((".key", ".pem"))]
