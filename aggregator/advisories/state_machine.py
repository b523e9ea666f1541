"""The advisory state machine: events in, instructions out. Deterministic; no I/O, no clock.

Invariants, for any input (`tests/aggregator/advisories/invariants.py` checks each):
  - it removes only its own effects, and no effect outlasts its expiry unless renewed;
  - an advisory that was withdrawn, rejected, done, failed or expired has no further effect;
  - the number of hosts out at once, and within an hour, is limited per rack, per job and for the fleet, including hosts
    that others took out; beyond the limit a breaker opens, and tries one host before it closes;
  - a host returns only after it was healthy for long enough, and is then on probation;
  - a case is in one advisory, however often it is reported; hosts that fail together are one cause;
  - a certain fault of a host's own device, on no other host at the same time, does not wait for others of its cause;
  - a statistical verdict leads to AVOID or DRAIN_AFTER_JOB, EVICT_NOW needs certainty, and a drain at a checkpoint
    needs a known checkpoint interval; every action names its scope;
  - while the fleet's state is frozen nothing is proposed and nothing granted.
"""

from __future__ import annotations

from dataclasses import replace

from . import messages
from .advisory import Advisory, Case, restrict_to_basis
from .advisory_limits import AdvisoryLimits
from .answers import apply_answer, preview
from .declared_out import declare_in_service, declare_out
from .limits import is_material_change
from .proposals import propose
from .state import MachineState, OpenCase, StateEditor, UnavailableHost
from .timers import apply_clock_jump, expire, remove_closed_cases, resume, unfreeze, withdraw_empty


class AdvisoryStateMachine:
    """Call `step` with each event, then with a Tick: only a Tick makes proposals."""

    def __init__(self, limits: AdvisoryLimits, state: MachineState | None = None) -> None:
        self._editor = StateEditor(limits, state)
        #: Whether the last step changed the state: only such events need storing.
        self.is_changed = False

    @property
    def state(self) -> MachineState:
        return self._editor.state

    def stamped(self, event: messages.Event) -> messages.Event:
        """Return *event* for storage: its time never decreases, even if the clock was set back."""
        return replace(event, now_ns=max(event.now_ns, self.state.now_ns))

    def resume(self, now_ns: int) -> None:
        """Continue after a restart. No event records this: store the whole state afterwards."""
        self.state.now_ns = max(now_ns, self.state.now_ns)
        resume(self._editor)

    def apply_clock_jump(self, jump_ns: int, now_ns: int) -> None:
        """Shift all times after the clock jumped by *jump_ns* to *now_ns*. No event records this.

        If the clock had been set back before, our time did not advance until the clock passed it:
        only the rest of the jump counts.
        """
        jump_ns = min(jump_ns, now_ns - self.state.now_ns)
        if jump_ns > 0:
            apply_clock_jump(self._editor, jump_ns)
            self.state.now_ns += jump_ns

    def preview(self, answer: messages.Acked) -> Advisory:
        """Return the result of *answer*, without any effect. Raises ServiceError."""
        return preview(self._editor, answer)

    def step(self, event: messages.Event) -> list[messages.Instruction]:
        """Process *event* and return the instructions. No content of *event* raises an error."""
        editor = self._editor
        editor.state.now_ns = max(event.now_ns, editor.state.now_ns)
        editor.instructions, editor.is_changed = [], False
        if isinstance(event, messages.Acked | messages.Tick):
            expire(editor)
        self._apply(event)
        if isinstance(event, messages.Tick) and not editor.state.frozen:
            remove_closed_cases(editor)
            propose(editor)
            withdraw_empty(editor)
        self.is_changed = editor.is_changed
        return editor.instructions

    def _apply(self, event: messages.Event) -> None:
        editor, state = self._editor, self.state
        match event:
            case messages.CaseSeen(case=case):
                _open_case(
                    editor,
                    replace(restrict_to_basis(case), since_ns=min(case.since_ns, editor.now_ns)),
                )
            case messages.CaseGone(key=key):
                _close_case(editor, key)
            case messages.Unavailable(host=host, by=by, place=place, job=job):
                unavailable_host = UnavailableHost(by, place, job)
                editor.is_changed |= state.taken.get(host) != unavailable_host
                state.taken[host] = unavailable_host
            case messages.Available(host=host):
                editor.is_changed |= state.taken.pop(host, None) is not None
            case messages.TakenOut():
                declare_out(editor, event)
            case messages.PutBack():
                declare_in_service(editor, event)
            case messages.Well(host=host, well=well):
                _set_well(editor, host, well)
            case messages.FleetSize(hosts=hosts):
                editor.is_changed |= hosts != state.hosts
                state.hosts = hosts
            case messages.Frozen(message=reason):
                editor.is_changed |= reason != state.frozen
                is_over = bool(state.frozen) and not reason
                state.frozen = reason
                if is_over:
                    unfreeze(editor)
            case messages.Acked():
                apply_answer(editor, event)
            case messages.Tick():
                pass


def _open_case(editor: StateEditor, case: Case) -> None:
    """Record *case*; a material change of an assigned case is evaluated again.

    The case began when it was first reported, not when its symptom was last seen, unless the fault
    has changed.
    """
    before = editor.state.cases.get(case.key)
    if before is None:
        editor.state.cases[case.key] = OpenCase(case, editor.now_ns)
        editor.is_changed = True
        return
    if not is_material_change(before.case, case):
        return
    if case.reason == before.case.reason:
        case = replace(case, since_ns=before.case.since_ns)
    before.case = case
    editor.is_changed = True
    before.changed = before.advisory in editor.state.advisories


def _close_case(editor: StateEditor, key: str) -> None:
    if editor.state.cases.pop(key, None) is not None:
        editor.is_changed = True
    editor.drop_hold_back(key)


def _set_well(editor: StateEditor, host: str, well: bool) -> None:
    if well == (host in editor.state.well):
        return
    editor.is_changed = True
    if well:
        editor.state.well[host] = editor.now_ns
    else:
        del editor.state.well[host]
