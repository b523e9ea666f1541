"""Calls that may not return: told in `ext.place` while they last, and left out where a device is spared."""

from __future__ import annotations

from ..ext import place
from .hardware.files import device_key

#: What a place shows of a device's name.
NAME_BYTES_MAX = 63


def place_name(name: str) -> str:
    """Return the name by which a device is told to the place, and named when it is to be spared."""
    return device_key(name, NAME_BYTES_MAX)


class _Call:
    __slots__ = ("_call", "_device")

    def __init__(self, device: bytes, call: bytes) -> None:
        self._device, self._call = device, call

    def __enter__(self) -> None:
        place.enter(self._device, self._call)

    def __exit__(self, *_: object) -> None:
        place.leave()


def entering(device: str, call: str) -> _Call:
    """Tell, within the context, that a call on *device* has begun and not returned. Not to be nested.

    *call*: what is called, as the one who mends it would look for it: `statvfs`, `ETHTOOL_GSTATS`, `read state`.
    """
    return _Call(place_name(device).encode(), call.encode(errors="replace"))


class Spares:
    """A collector's `spare` (`agent.turn.Sparing`), and what it asks before it enters a device."""

    _spared: frozenset[str] = frozenset()

    def spare(self, devices: frozenset[str]) -> None:
        """Leave these devices alone from the next turn on, and no others."""
        self._spared = devices

    def is_spared(self, device: str) -> bool:
        """Say whether no call on *device* may be made."""
        return bool(self._spared) and place_name(device) in self._spared
