"""What `address:port` a server may listen on, by its settings."""

from __future__ import annotations

import ipaddress

from ..fingerprints.settings import SettingsError

#: What is wanted of an address.
_ADDRESS_PORT = "address:port, such as"


def parse_listen(text: str, *, beyond_loopback: bool, name: str = "listen") -> tuple[str, int]:
    """Return (address, port) of `address:port`. Raises SettingsError with what would be right."""
    address, port = _address_port(text)
    if not port:
        raise SettingsError(f"{name} = {text!r}: expected {_ADDRESS_PORT} 127.0.0.1:7600")
    if not is_loopback(address) and not beyond_loopback:
        raise SettingsError(
            f"{name} = {text!r}: {address or 'no address'} is not loopback, and without TLS all would be "
            "plain text; set tls_certificate_file and tls_key_file (`gangline admin cert` makes them), "
            "listen on 127.0.0.1, or say --set listen_beyond_loopback=true if the network is trusted"
        )
    return address, int(port)


def _address_port(text: str) -> tuple[str, str]:
    """Return the address and the port of *text*, an empty port when that is none."""
    address, _, port = text.rpartition(":") if ":" in text else ("", "", "")
    digits = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    return address, port if digits else ""


def check_metrics(text: str) -> None:
    """Raise SettingsError for what is no address:port, nor empty."""
    if text and not _address_port(text)[1]:
        raise SettingsError(f"{_ADDRESS_PORT} 127.0.0.1:9477, or nothing for none")


def is_loopback(address: str) -> bool:
    """Say whether only this machine reaches *address*, which may be in brackets."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False
