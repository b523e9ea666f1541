"""Which call a device hangs in, as its agent said when it began: rows of `probe_1s` carry numbers only."""

from __future__ import annotations

from typing import NamedTuple

from ..messages import EventLike

#: Devices of one host of which the words are kept; more are shown without.
DEVICES_PER_HOST_MAX = 64
WORDS_CHARACTERS_MAX = 240
CALL_CHARACTERS_MAX = 80
SECOND_NS = 1_000_000_000
#: A call that its agent says lasted for longer began at an unknown time.
SECONDS_MAX = 86_400
EVENTS = ("probe.hung", "probe.driver_hung")


class Hang(NamedTuple):
    """What the agent said of it."""

    collector: str
    words: str
    call: str
    since_ns: int  # when the call began, by our clock; 0: nobody said


NOTHING = Hang("", "", "", 0)


class Hangs:
    """The last words on each row of `probe_1s`."""

    def __init__(self) -> None:
        self._hosts: dict[int, dict[str, Hang]] = {}

    def take(self, host: int, event: EventLike, time_ns: int) -> None:
        """Take over one of `EVENTS`, told at *time_ns* of our clock."""
        lane, device = event.attributes.get("lane", ""), event.attributes.get("device", "")
        collector = event.attributes.get("collector", "")
        whole = event.name == "probe.driver_hung" and lane == "gpu"
        row = lane if whole else f"{lane} {device or collector}"
        held = self._hosts.setdefault(host, {})
        held.pop(row, None)
        while len(held) >= DEVICES_PER_HOST_MAX:
            del held[next(iter(held))]  # the oldest
        words, call = event.message[:WORDS_CHARACTERS_MAX], event.attributes.get("call", "")
        began_ns = max(0, time_ns - event.code * SECOND_NS) if event.code <= SECONDS_MAX else 0
        held[row] = Hang(collector, words, call[:CALL_CHARACTERS_MAX], began_ns)

    def of(self, host: int, row: str) -> Hang:
        """Return what is known of a row."""
        return self._hosts.get(host, {}).get(row, NOTHING)
