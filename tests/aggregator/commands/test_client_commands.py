"""Errors of the client commands for unexpected arguments and unexpected answers."""

from __future__ import annotations

import argparse
import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest

from gangline import cli
from gangline.aggregator.commands import explain, hosts, plan, sql
from gangline.contract.client.connection import FILE_VARIABLE, CommandError, read_connection_options
from gangline.contract.client.score_client import ScoreListing
from gangline.contract.client.terminal import width_of
from gangline.contract.text import counted
from gangline.executors import command as executor
from gangline.executors.model import DoctorLevel
from tests.aggregator.commands.test_host_table import score

COMMANDS = (["hosts"], ["explain", "h0"], ["host", "h0", "--supply"], ["watch", "--once"])


class Quiet(BaseHTTPRequestHandler):
    """An HTTP/1 server that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def http_server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("command", COMMANDS)
def test_another_program_on_the_port_is_told_from_nobody(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Node exporter had the port: "no aggregator answers; start one" sent someone round in circles."""
    with http_server() as address:
        assert cli.main([*command, "--aggregator", address]) == cli.NO_ANSWER
    message = capsys.readouterr().err
    assert f"something listens at {address}" in message and "start one" not in message


def test_another_grpc_service_on_the_port_is_named_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Such a service answers UNIMPLEMENTED, which explained nothing to the user."""
    with ThreadPoolExecutor(1) as pool:
        server: Any = grpc.server(pool)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            assert cli.main(["hosts", "--aggregator", address]) == cli.NO_ANSWER
        finally:
            server.stop(None).wait()
    assert "speaks gRPC, but is not an aggregator" in capsys.readouterr().err


@pytest.mark.parametrize(
    "address", ["bad", "zzz:", ":7600", "h:0", "h:70000", "h:seven", "::1:7600", "x" * 5000]
)
@pytest.mark.parametrize("by", ["option", "variable"])
def test_an_address_that_is_none_is_a_usage_error(
    address: str, by: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--aggregator bad` waited for a name server and then advised the user to start an aggregator."""
    arguments = ["hosts", "--aggregator", address]
    if by == "variable":
        monkeypatch.setenv("GANGLINE_AGGREGATOR", address)
        arguments = ["hosts"]
    assert usage_error(arguments, capsys).count("expected ADDRESS:PORT") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["explain", ""], "empty; expected a host name"),
        (["explain", "nodes/"], "empty; expected a host name"),
        (["explain", "x" * 5000], "5000 characters"),
        (["host", ""], "empty; expected a host name"),
        (["hosts", "--watch", "x"], "'x': expected a duration from 0.1s to 1h"),
        (["hosts", "--watch", "nan"], "'nan': expected a duration from 0.1s to 1h"),
    ],
)
def test_wrong_usage_is_said_shortly(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty shell variable, a pasted page; and no name of our own functions in the answer."""
    message = usage_error(arguments, capsys)
    assert expected in message and "_seconds" not in message and len(message) < 600


def usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == cli.USAGE
    return capsys.readouterr().err


def test_small_mistakes_are_named(tmp_path: Path) -> None:
    """An empty shell variable gave a list of views, a missing file its errno and its path twice."""
    with pytest.raises(CommandError, match="the query is empty; expected SQL"):
        sql._query(argparse.Namespace(query=" "))
    missing, binary = tmp_path / "missing", tmp_path / "binary"
    binary.write_bytes(b"\xff")
    for path, reason in ((missing, "No such file or directory"), (binary, "not text")):
        with pytest.raises(CommandError) as raised:
            plan.read_host_names(str(path))
        assert str(raised.value) == f"{path}: {reason}; expected a file of host names"
    message = explain.unknown_host_message("sim-[0-3", ["sim-000"])
    assert "expected one host, not a set of hosts" in message
    assert (counted(1, "node"), counted(2, "node")) == ("1 node", "2 nodes")


def test_none_in_a_state_is_not_none_at_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "None has registered", of a fleet of thirty-two, when none was in maintenance."""
    listing = ScoreListing([score("a"), score("b")], 1, "")
    monkeypatch.setattr(
        "gangline.contract.client.score_client.ScoreClient.hosts", lambda *_: listing
    )
    arguments = ["hosts", "--state", "maintenance", "--state", "stale"]
    assert hosts.main(arguments[1:]) == cli.OK
    assert capsys.readouterr().out == "none of 2 hosts is MAINTENANCE or STALE\n"


@pytest.mark.parametrize(
    ("columns", "width"), [("60", 60), ("", 240), ("0", 240), ("wide", 240), ("-3", 240)]
)
def test_columns_is_honoured_where_there_is_no_terminal(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`COLUMNS=60 gangline hosts | less` gave lines of 240."""
    monkeypatch.setenv("COLUMNS", columns)
    assert width_of(None) == width


def test_a_home_that_may_not_be_read_has_no_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`runuser -u slurm` keeps HOME=/root: each command ended with a traceback."""
    exists = Path.exists

    def unreadable(path: Path, **more: bool) -> bool:
        if str(path).startswith("/root/"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return exists(path, **more)

    monkeypatch.setattr(Path, "exists", unreadable)
    monkeypatch.setenv("HOME", "/root")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    options = argparse.Namespace(aggregator="127.0.0.1:1")
    assert read_connection_options(options).aggregator == "127.0.0.1:1"
    monkeypatch.setenv(FILE_VARIABLE, "/root/client.toml")
    with pytest.raises(CommandError, match=r"/root/client\.toml: Permission denied"):
        read_connection_options(options)


def test_doctor_as_root_leaves_the_ledger_to_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Doctor ran as root first, and made a folder that the executor, as slurm, could not use."""
    folder = tmp_path / "state" / "executor"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert executor._ledger_finding(folder).level == DoctorLevel.NOTE and not folder.exists()
    folder.mkdir(parents=True)
    stat = folder.stat()
    monkeypatch.setattr(
        Path, "stat", lambda path, **_: os.stat_result((*stat[:4], 64030, *stat[5:]))
    )
    assert "run doctor as the user of the executor" in executor._ledger_finding(folder).text
    assert not list(folder.iterdir())
