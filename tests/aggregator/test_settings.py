"""The aggregator's settings, and where it may listen."""

from __future__ import annotations

import socket

import pytest

from gangline.aggregator.commands import aggregator
from gangline.aggregator.config import AggregatorConfig, parse_listen
from gangline.aggregator.server import StartError, check_endpoint_free, listen_endpoints
from gangline.contract.settings import SettingsError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:7600", ("127.0.0.1", 7600)),
        ("127.8.9.1:0", ("127.8.9.1", 0)),
        ("localhost:1", ("localhost", 1)),
        ("[::1]:7600", ("[::1]", 7600)),
    ],
)
def test_loopback_is_fine(text: str, expected: tuple[str, int]) -> None:
    assert parse_listen(text, beyond_loopback=False) == expected


@pytest.mark.parametrize("text", ["0.0.0.0:7600", "[::]:7600", "10.0.0.1:7600", ":7600", "host:1"])
def test_what_others_reach_must_be_asked_for(text: str) -> None:
    """Plain text without login on a network by accident."""
    with pytest.raises(SettingsError, match="listen_beyond_loopback=true"):
        parse_listen(text, beyond_loopback=False)
    assert parse_listen(text, beyond_loopback=True)[1] == int(text.rpartition(":")[2])


@pytest.mark.parametrize("text", ["7600", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000", "a:-1"])
def test_what_is_no_address(text: str) -> None:
    """The error names the setting, with a valid example."""
    with pytest.raises(SettingsError, match=r"expected address:port, such as 127\.0\.0\.1:7600"):
        parse_listen(text, beyond_loopback=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "commit_second=1"], "did you mean 'commit_seconds'"),
        (["--set", "retention_hours=0"], "expected 1 to"),
        (["--set", "advice_verify_seconds=0"], "expected 10 to"),
        (["--listen", "0.0.0.0:7600"], "not loopback"),
        (["--config", "/nonexistent.toml"], "/nonexistent.toml"),
    ],
)
def test_a_wrong_setting_is_exit_2_and_words(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The service does not start half configured, and touches no folder."""
    assert aggregator.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_place_that_cannot_be_is_said_by_the_setting_that_names_it() -> None:
    """An invalid listen_tokens was reported as a wrong `listen`, with the hint to use another --listen."""
    with pytest.raises(SettingsError, match=r"^listen_tokens = '7601': expected address:port"):
        listen_endpoints(AggregatorConfig(listen_tokens="7601"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        _, second = listen_endpoints(AggregatorConfig(listen_tokens=taken))
        with pytest.raises(StartError, match=r"with --set listen_tokens=127\.0\.0\.1:PORT"):
            check_endpoint_free(second)
