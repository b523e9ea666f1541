"""The agent's settings: names of a host, addresses, and messages for wrong values."""

from __future__ import annotations

import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.config import AgentConfig, check_address, check_host, label_error
from gangline.agent.main import read_labels
from gangline.contract import topology
from gangline.contract.settings import SettingsError, load


def test_the_defaults_are_settings() -> None:
    config = load(AgentConfig)
    assert config.host_name == socket.gethostname()
    assert config.roots.is_this_machine
    assert config.roots.nvml_library is None


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("spool_bytes=1000000", "unknown setting 'spool_bytes'; did you mean 'spool_bytes_max'?"),
        ("spool_bytes_max=4096", "spool_bytes_max = 4096: expected 1048576 to 1099511627776"),
        ("aggregator=10.0.0.5", "aggregator = '10.0.0.5': expected host:port"),
        ("host=a b", "host = 'a b': expected a host name"),
        ("collectors_off=[1]", "collectors_off = [1]: expected a list of texts"),
        ("metrics_series_max=1", "metrics_series_max = 1: expected 10 to 100000"),
    ],
)
def test_a_wrong_setting_is_named_with_what_would_be_right(assignment: str, message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        load(AgentConfig, None, [assignment])


@pytest.mark.parametrize(
    "name", ["", "a", "gpu-017", "gpu_017", "1234", "GPU-017.cluster.example", "a" * 63, "a.b" * 60]
)
def test_names_of_hosts(name: str) -> None:
    check_host(name)


@pytest.mark.parametrize(
    "name", ["-a", "a-", "a..b", ".a", "a.", "a b", "a/b", "ä", "a\n", "a" * 64, "a." * 127 + "aa"]
)
def test_names_that_cannot_name_a_host(name: str) -> None:
    """A name with a slash in it would be another resource in `nodes/{node}`."""
    with pytest.raises(ValueError, match=": at most 253 letters"):
        check_host(name)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:7600", "aggregator:1", "a.b-c.example:65535", "[::1]:7600", "[fe80::5%eth0]:1"],
)
def test_addresses(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize(
    "address",
    ["", ":", "a", "a:", ":7600", "a:0", "a:65536", "a:port", "a:٣", "::1:7600", "[]:1", "a b:1",
     "http://a:1", "a:1/x", "[::1:1", "a:007600",
     "a\0:1", "ä:1", "a\n:1", "a:1\n"],
)  # fmt: skip
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="host:port with a port of 1 to 65535"):
        check_address(address)


@given(st.text(max_size=300))
def test_any_text_is_an_address_and_a_host_or_is_refused_with_words(text: str) -> None:
    for check in (check_address, check_host):
        try:
            check(text)
        except ValueError as error:
            assert str(error).startswith(("host:port", "a host name"))
        else:
            assert text.isascii() and not any(c.isspace() or c == "/" for c in text)


def test_a_host_name_that_cannot_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container runtime had named the machine `gpu 7`; the agent ended with a traceback."""
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu 7")
    with pytest.raises(
        SettingsError, match="this machine's name 'gpu 7' is not a valid host name; set host"
    ):
        _ = AgentConfig().host_name
    assert AgentConfig(host="gpu-7").host_name == "gpu-7"


def test_labels_are_names_with_values() -> None:
    """A rack without a name would be meaningless; a second value of one name, a mistake."""
    given = ("gangline.rack=r12", "site=a=b c")
    assert load(AgentConfig, None, ["labels=" + ",".join(given)]).labels == given
    for wrong in ("r12", "=r12", "gangline.rack=", "a b=c", "a=1,a=2", "a=" + "x" * 513, "a=b\tc"):
        with pytest.raises(SettingsError, match="NAME=VALUE"):
            load(AgentConfig, None, [f"labels={wrong}"])


def test_a_label_of_ours_that_no_aggregator_reads() -> None:
    """A thousand hosts with `gangline.rak` had no place: a dark rack was a dozen dark hosts."""
    for wrong in ("gangline.rak=r12", "gangline.=r12"):
        name = wrong.partition("=")[0]
        assert label_error(wrong).startswith(
            f"{name}: expected one of gangline.rack, gangline.power_d"
        )
    for long in ("rack=" + "x" * 129, "rails=" + "x" * 129, "rails=" + " ".join("x" * 65)):
        message = "at most 128 characters (of gangline.rails up to 64 such names)"
        assert message in label_error(topology.LABEL_PREFIX + long)
    for good in ("rails=" + " ".join(["x" * 128] * 3), *(f"{name}=x" for name in topology.FIELDS)):
        assert not label_error(topology.LABEL_PREFIX + good)
    assert not label_error("site=a")


def test_such_a_label_is_left_out_at_a_start(caplog: pytest.LogCaptureFixture) -> None:
    """Settings for the next version came first: no agent started after the next reboot."""
    assert load(AgentConfig, None, ["labels=gangline.pod=p"]).labels == ("gangline.pod=p",)
    assert read_labels(("gangline.pod=p", "gangline.rack=r", "site=a=b")) == {
        "gangline.rack": "r",
        "site": "a=b",
    }
    assert "the label gangline.pod: expected one of" in caplog.text
