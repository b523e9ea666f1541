"""Reports of hosts that executors or people took out of service, or put back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .advisory import Action, AdvisoryState
from .limits import OUT_ALREADY
from .messages import Back, Out, PutBack, StillOut, TakenOut
from .state import DeclaredOut, Hold, MachineState, StateEditor

#: Maximum of reported hosts; a host that two actors report counts twice.
HOSTS_MAX = 50_000


def has_room_for(state: MachineState, out: Iterable[TakenOut]) -> bool:
    """Return whether *out* fits into HOSTS_MAX."""
    declared_out = state.absent
    new = {
        (member.host, event.by)
        for event in out
        for member in event.members
        if event.by not in declared_out.get(member.host, ())
    }
    return sum(map(len, declared_out.values())) + len(new) <= HOSTS_MAX


def declare_out(editor: StateEditor, event: TakenOut) -> None:
    """Count the hosts of *event* as out until it ends; a repeated report extends it."""
    state, repeated = editor.state, list[str]()
    if event.until_ns <= editor.now_ns:
        return
    for member in event.members:
        by_actor = state.absent.setdefault(member.host, {})
        before = by_actor.get(event.by)
        since_ns = before.since_ns if before else editor.now_ns
        by_actor[event.by] = DeclaredOut(
            event.message, since_ns, event.until_ns, member.place, member.job, event.new_work_only
        )
        if before is None or before.message != event.message:
            editor.emit(Out(member.host, event.by, event.until_ns, event.message))
        else:
            repeated.append(member.host)
    if repeated:
        editor.emit(StillOut(event.by, tuple(repeated), event.until_ns, event.message))
    state.absent_due_ns = min(state.absent_due_ns or event.until_ns, event.until_ns)
    editor.is_changed = True


def declare_in_service(editor: StateEditor, event: PutBack) -> None:
    """Count hosts as in service again, except those that other actors reported out.

    If the actor had not reported a host, remove the effect of ended advice on it; an advisory that
    is being carried out continues.
    """
    for host in event.hosts:
        if event.by in editor.state.absent.get(host, ()):
            _remove_declared_out(editor, host, event.by, f"{event.by} put it back")
        elif hold := editor.state.holds.get(host):
            _release_ended_hold(editor, hold, f"{event.by} reports that it is back in service")


def _release_ended_hold(editor: StateEditor, hold: Hold, reason: str) -> None:
    """Remove the effect of an ended advisory, and mute its host for `again_seconds`.

    Without the mute, a fault that lasts would be proposed again at once.
    """
    if hold.name in editor.state.advisories:
        return
    for advisory in editor.open_advisories(hold.host):
        if (
            advisory.action is Action.RETURN_TO_SERVICE
            and advisory.state is not AdvisoryState.ACCEPTED
        ):
            editor.put(advisory, reason, state=AdvisoryState.WITHDRAWN)
    editor.clear(hold, reason)
    editor.mute(f"host {hold.host}", hold.action, editor.limits.again_seconds)


def expire_declared_out(editor: StateEditor) -> None:
    """Remove reports that were not repeated in time."""
    state, now_ns = editor.state, editor.now_ns
    if not state.absent or now_ns < state.absent_due_ns:
        return
    for host, by_actor in list(state.absent.items()):
        for by in [by for by, declared_out in by_actor.items() if declared_out.until_ns <= now_ns]:
            _remove_declared_out(editor, host, by, f"{by} did not renew that it is out")
    ends = [
        declared_out.until_ns
        for by_actor in state.absent.values()
        for declared_out in by_actor.values()
    ]
    state.absent_due_ns = min(ends, default=0)
    editor.is_changed = True


def _remove_declared_out(editor: StateEditor, host: str, by: str, reason: str) -> None:
    by_actor = editor.state.absent[host]
    del by_actor[by]
    if not by_actor:
        del editor.state.absent[host]
    editor.is_changed = True
    editor.emit(Back(host, by, reason))
    for advisory in editor.open_advisories(host) if host not in editor.state.absent else ():
        if advisory.state is AdvisoryState.DEFERRED and advisory.state_message.startswith(
            OUT_ALREADY
        ):
            due = replace(
                advisory, deferred_until_ns=editor.now_ns
            )  # proposed again with the next Tick
            editor.state.advisories[advisory.name] = due
