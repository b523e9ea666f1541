"""A booted host gets its name back at once; a second host with the name is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from gangline.aggregator.errors import AlreadyExists
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest.findings import ActiveFindings
from gangline.aggregator.ingest.sessions import REBOOT_SILENT_SECONDS, SILENT_SECONDS, Sessions
from gangline.aggregator.principal import LOCAL, Principal, Role

SECOND = 10**9
HOUR = 3600.0
START_NS = 1_800_000_000 * SECOND
CERTIFICATE = Principal(Role.AGENT, "gpu1", "gpu1", "certificate", (2, 1))

BOOTED: dict[str, Any] = {"boot": b"b", "up_seconds": 7.0, "address": "10.0.0.1:5000"}
MOVED: dict[str, Any] = {**BOOTED, "address": "10.0.0.9:1"}


@dataclass(frozen=True)
class Machine:
    """An agent that registers as gpu1."""

    run: bytes = b"r"
    boot: bytes = b"a"
    address: str = "10.0.0.1:4000"
    up_seconds: float = HOUR
    principal: Principal = LOCAL


class Name:
    """The sessions of one name.

    `stream`: the holder's stream is open, as after a crash until TCP gives up.
    """

    def __init__(self) -> None:
        self.now_ns = START_NS
        self.sessions = Sessions(ActiveFindings(Fleet(epoch=7)), hosts_max=10)

    def register(self, machine: Machine, *, stream: bool = True) -> None:
        session = self.sessions.register(
            "gpu1", machine.run * 16, machine.boot * 16, machine.address, self.now_ns, machine.principal,
            boottime_ns=round(machine.up_seconds * SECOND),
        )  # fmt: skip
        session.streams = int(stream)

    def frame(self) -> None:
        session = self.sessions.of_host("gpu1")
        assert session is not None
        session.last_received_ns = self.now_ns

    def is_accepted(self, machine: Machine) -> bool:
        try:
            self.register(machine)
        except AlreadyExists:
            return False
        return True


#: Holder, seconds of silence, whether its stream is open, newcomer, whether the newcomer gets the
#: name.
CASES: dict[str, tuple[Machine, float, bool, Machine, bool]] = {
    "a crash, the spool on disk": (Machine(), 8, True, Machine(**BOOTED), True),
    "a crash, the spool in memory": (Machine(), 8, True, Machine(run=b"s", **BOOTED), True),
    "another address by DHCP": (Machine(), 8, True, Machine(**MOVED), True),
    "another address and spool": (
        Machine(), 8, True, Machine(run=b"s", **MOVED), False,
    ),
    "the same with its certificate": (
        Machine(principal=CERTIFICATE), 8, True,
        Machine(run=b"s", principal=CERTIFICATE, **MOVED), True,
    ),
    "a certificate, the boot's age unknown": (
        Machine(principal=CERTIFICATE), REBOOT_SILENT_SECONDS, True,
        Machine(run=b"s", boot=b"b", up_seconds=0, principal=CERTIFICATE), True,
    ),
    "a clone that has been up for long": (Machine(), 2, True, Machine(boot=b"b"), False),
    "a clone that booted while the holder ran": (Machine(), 1, True, Machine(**BOOTED), False),
    "a second host with the certificate": (
        Machine(principal=CERTIFICATE), 1, True, Machine(run=b"s", boot=b"b", principal=CERTIFICATE), False,
    ),
    "a second host behind the same proxy": (Machine(), 8, True, Machine(run=b"s", boot=b"b"), False),
    "a second host after the stream ended": (
        Machine(), 8, False, Machine(run=b"s", boot=b"b", address="10.0.0.2:1"), False,
    ),
    "a second agent on the machine": (Machine(), 8, False, Machine(run=b"s"), False),
    "anybody after a minute": (Machine(), SILENT_SECONDS, True, Machine(b"s", b"b", "10.0.0.2:1"), True),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_reboot_is_told_from_a_second_host(name: str) -> None:
    """A host that booted within a minute after a crash was refused, and was blind until then."""
    holder, silent_seconds, stream, newcomer, is_accepted = CASES[name]
    sessions = Name()
    sessions.register(holder, stream=stream)
    sessions.frame()
    sessions.now_ns += round(silent_seconds * SECOND)
    assert sessions.is_accepted(newcomer) is is_accepted


@pytest.mark.parametrize("certificate", [False, True])
def test_of_two_hosts_that_alternate_the_first_keeps_the_name(certificate: bool) -> None:
    """Two live machines with one name and login: their readings would mix, second by second."""
    principal = CERTIFICATE if certificate else LOCAL
    first = Machine(principal=principal)
    second = Machine(b"s", b"b", "10.0.0.2:1", 30.0, principal)
    sessions = Name()
    sessions.register(first)
    for _ in range(2 * SILENT_SECONDS):
        sessions.now_ns += SECOND
        sessions.frame()
        sessions.now_ns += SECOND // 2
        assert not sessions.is_accepted(second)
        assert sessions.is_accepted(first)
