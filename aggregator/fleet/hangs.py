"""Which call a device hangs in, as its agent said when it began: rows of `probe_1s` carry numbers only."""

from __future__ import annotations

from typing import NamedTuple

from .messages import EventLike

#: Devices of one host of which the words are kept; more are shown without.
DEVICES_PER_HOST_MAX = 64
WORDS_CHARACTERS_MAX = 240
EVENTS = ("probe.hung", "probe.driver_hung")


class Hang(NamedTuple):
    """What the agent said of it."""

    collector: str
    words: str


NOTHING = Hang("", "")


class Hangs:
    """The last words on each row of `probe_1s`."""

    def __init__(self) -> None:
        self._hosts: dict[int, dict[str, Hang]] = {}

    def take(self, host: int, event: EventLike) -> None:
        """Take over one of `EVENTS`."""
        lane, device = event.attributes.get("lane", ""), event.attributes.get("device", "")
        collector = event.attributes.get("collector", "")
        whole = event.name == "probe.driver_hung"
        row = lane if whole else f"{lane} {device or collector}"
        held = self._hosts.setdefault(host, {})
        held.pop(row, None)
        while len(held) >= DEVICES_PER_HOST_MAX:
            del held[next(iter(held))]  # the oldest
        held[row] = Hang(collector, event.message[:WORDS_CHARACTERS_MAX])

    def of(self, host: int, row: str) -> Hang:
        """Return what is known of a row."""
        return self._hosts.get(host, {}).get(row, NOTHING)
