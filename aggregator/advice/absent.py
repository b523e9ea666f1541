"""Hosts that somebody took out himself, and tells us of: budgets count them, for as long as he says so.

By the same word ends what advice that has ended holds out, which would else stand for as long as its fault does."""

from __future__ import annotations

from collections.abc import Iterable

from .advisory import Action, State
from .desk import Absent, Desk, Hold, Memory
from .events import Back, Out, PutBack, StillOut, TakenOut

#: Hosts that are told of at once; one of whom two tell is two.
HOSTS_MAX = 50_000


def room_for(memory: Memory, out: Iterable[TakenOut]) -> bool:
    """Say whether so many may be told of, too."""
    absent = memory.absent
    new = {
        (one.host, event.by)
        for event in out
        for one in event.members
        if event.by not in absent.get(one.host, ())
    }
    return sum(map(len, absent.values())) + len(new) <= HOSTS_MAX


def taken_out(desk: Desk, event: TakenOut) -> None:
    """Count the hosts of *event* as out until it ends, or until it is said again."""
    memory, again = desk.memory, list[str]()
    if event.until_ns <= desk.now_ns:
        return
    for one in event.members:
        told = memory.absent.setdefault(one.host, {})
        before = told.get(event.by)
        since_ns = before.since_ns if before else desk.now_ns
        told[event.by] = Absent(event.words, since_ns, event.until_ns, one.place, one.job)
        if before is None or before.words != event.words:
            desk.say(Out(one.host, event.by, event.until_ns, event.words))
        else:
            again.append(one.host)
    if again:
        desk.say(StillOut(event.by, tuple(again), event.until_ns, event.words))
    memory.absent_due_ns = min(memory.absent_due_ns or event.until_ns, event.until_ns)
    desk.touched = True


def put_back(desk: Desk, event: PutBack) -> None:
    """Count them as in service again, but for what others took out.

    Of a host that he did not take out himself he gives up what advice set that has ended; what is being carried out goes on.
    """
    for host in event.hosts:
        if event.by in desk.memory.absent.get(host, ()):
            _forget(desk, host, event.by, f"{event.by} put it back")
        elif hold := desk.memory.holds.get(host):
            _give_up(desk, hold, f"{event.by} says that it is in service again")


def _give_up(desk: Desk, hold: Hold, words: str) -> None:
    """Have what an advisory set that has ended taken away. Where its fault stands it is not asked for again at once."""
    if hold.name in desk.memory.advisories:
        return
    for one in desk.open_of(hold.host):
        if one.action is Action.RETURN_TO_SERVICE and one.state is not State.ACCEPTED:
            desk.put(one, words, state=State.WITHDRAWN)
    desk.clear(hold, words)
    desk.mute(f"host {hold.host}", hold.action, desk.limits.again_seconds)


def expire(desk: Desk) -> None:
    """Forget what nobody said again in time."""
    memory, now_ns = desk.memory, desk.now_ns
    if not memory.absent or now_ns < memory.absent_due_ns:
        return
    for host, told in list(memory.absent.items()):
        for by in [by for by, one in told.items() if one.until_ns <= now_ns]:
            _forget(desk, host, by, f"{by} did not say again that it is out")
    ends = [one.until_ns for told in memory.absent.values() for one in told.values()]
    memory.absent_due_ns = min(ends, default=0)
    desk.touched = True


def _forget(desk: Desk, host: str, by: str, words: str) -> None:
    told = desk.memory.absent[host]
    del told[by]
    if not told:
        del desk.memory.absent[host]
    desk.touched = True
    desk.say(Back(host, by, words))
