"""Shared helpers for tests of real processes."""

from __future__ import annotations

import socket

import pytest

from tests.processes import free_port, listening


def test_a_free_port_is_its_servers_alone() -> None:
    """While an aggregator was down, a connection on its port kept it from listening again, and
    looked like a listener.
    """
    port = free_port()
    for number in (port, port + 1):
        assert not listening(number)
        with socket.socket() as client, pytest.raises(OSError, match="in use"):
            client.bind(("127.0.0.1", number))
        with socket.create_server(("127.0.0.1", number)):
            assert listening(number)
