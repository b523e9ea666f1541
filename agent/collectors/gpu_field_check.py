"""Fields whose ids moved between drivers must prove that they are what the table takes them for.

A wrong id answers with another quantity and no error, and while nothing is throttled both are zero. So such a
field is published only once it has behaved as what it should be: nanoseconds that grow while their clock event
reason is set, no faster than time passes, and rest while it is not. Settings and percentages do none of that.
What contradicts it is out for good, until there is another driver.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

from ...ext import nvml as library
from ...ext.nvml import ALL_BITS, Rows
from .block_writer import Cells

#: So many seconds (at one sample a second) it must grow with its reason set; a setting is not changed so often.
CONFIRMATIONS_MIN = 3
#: So often it must have rested while its reason was not set: or it might count something that always is.
RESTS_MIN = 1
#: Nobody throttles for less; a setting that was counted up by one is no time.
CONFIRMING_STEP_NS_MIN = 1_000_000
#: A step may be longer than the time between two samples by what a busy host delays one of them.
CONFIRMING_LATE_NS_MAX = 50_000_000
#: More than that is no measure of time: drivers renew their counts about once a second.
IMPOSSIBLE_LATE_NS = 1_000_000_000
#: So often it may grow through more than half of the time between samples with its reason set at neither end, nor
#: at the sample before (the count comes late); and once more for each so many confirmations: in months of true
#: throttling that happens again and again.
REASONLESS_STEPS_MAX = 2
CONFIRMATIONS_PER_REASONLESS = 10
#: A field whose GPU says the same again is judged for so many turns more: then nothing comes of it.
SETTLING_TURNS = 2

log = logging.getLogger(__name__)


class FieldState(IntEnum):
    """What is known of a field; the number travels as `gpu.violation_*_field_state`."""

    UNSUPPORTED = 0  # the driver does not have it, or it contradicted what it should be
    UNVERIFIED = 1
    VERIFIED = 2


class FieldProof:
    """What one field of one GPU has shown. Pure: observations in, a verdict out."""

    def __init__(self, flag: int) -> None:
        """*flag*: the bit of the clock event reasons that must go with it."""
        self._flag = flag
        self.contradiction = ""  # in words; empty: none
        self.restart()

    @property
    def state(self) -> FieldState:
        """What is known now."""
        if self.contradiction or self._last is None:
            return FieldState.UNSUPPORTED
        return FieldState.VERIFIED if self.is_proved else FieldState.UNVERIFIED

    @property
    def is_proved(self) -> bool:
        """Whether it has shown enough, and nothing else."""
        enough = self._confirmations >= CONFIRMATIONS_MIN and self._rests >= RESTS_MIN
        return enough and not self.contradiction

    def recall(self, *, proved: bool, contradicted: bool) -> None:
        """Take what it has shown to another process."""
        if proved:
            self._confirmations, self._rests = CONFIRMATIONS_MIN, RESTS_MIN
        if contradicted:
            self.contradiction = "it contradicted what it should be"

    def restart(self) -> None:
        """Begin anew: the driver was loaded again, or the GPU was reset. What contradicted stays out."""
        self._first: tuple[int, int] | None = None
        self._last: tuple[int, int] | None = None
        self._last_seen: tuple[int | None, int | None] | None = None
        self._set = False, False  # its reason, at the last sample but one and at the last
        self._confirmations = self._rests = self._reasonless = 0

    def observe(self, time_ns: int, value: int | None, reasons: int | None) -> bool:
        """Take a sample, and say whether its value may be published. None: could not be read."""
        self._last_seen = value, reasons
        if value is None or self.contradiction:
            return False
        is_set = reasons is None or bool(reasons & self._flag)  # unknown proves nothing either way
        if self._first is None or self._last is None:
            self._first = time_ns, value
        else:
            self._judge(time_ns, value, is_set, known=reasons is not None)
        self._last, self._set = (time_ns, value), (self._set[1], is_set)
        return self.state is FieldState.VERIFIED

    def rested(self, time_ns: int) -> None:
        """Take a sample at this time that was as the last one."""
        if self._last_seen is not None:
            self.observe(time_ns, *self._last_seen)

    def _judge(self, time_ns: int, value: int, is_set: bool, *, known: bool) -> None:
        assert self._first is not None and self._last is not None
        step, elapsed = value - self._last[1], time_ns - self._last[0]
        grown, passed = value - self._first[1], time_ns - self._first[0]
        set_at_an_end = is_set or self._set[1]
        if step < 0:
            self.contradiction = "it fell, and nothing was reset"
        elif max(step - elapsed, grown - passed) > IMPOSSIBLE_LATE_NS:
            self.contradiction = "it grew faster than time passes"
        elif step == 0:
            self._rests += not set_at_an_end
        elif set_at_an_end:
            credible = CONFIRMING_STEP_NS_MIN <= step <= elapsed + CONFIRMING_LATE_NS_MAX
            self._confirmations += known and credible
        elif not self._set[0]:
            self._note_reasonless(step, elapsed)

    def _note_reasonless(self, step: int, elapsed: int) -> None:
        """Count a step without its reason; one shorter than half the time may have fallen between samples."""
        self._reasonless += 2 * step >= elapsed
        allowed = REASONLESS_STEPS_MAX + self._confirmations // CONFIRMATIONS_PER_REASONLESS
        if self._reasonless > allowed:
            self.contradiction = "it grew again and again while its clock event reason was not set"


class FieldProofs:
    """The proofs of all GPUs: hides what is not proven, and says in which state each field is."""

    def __init__(self, flags: Mapping[str, int]) -> None:
        """*flags*: reading -> the bit of the clock event reasons that must go with it."""
        self._flags = flags
        #: All bits of them.
        self.flags = sum(set(flags.values()))
        #: Reading, its signal, the signal of its state.
        self.names = [(r, f"gpu.{r}", f"gpu.{state_of(r)}") for r in flags]
        self._proofs: dict[tuple[str, str], FieldProof] = {}
        self._said: set[tuple[str, str]] = set()

    def restart(self, keys: Iterable[str]) -> None:
        """The counters of these GPUs began anew."""
        for key in keys:
            for reading in self._flags:
                self._proof(key, reading).restart()

    def known(self, key: str) -> int:
        """Return what a GPU's fields have shown, for `recall`: a bit for each that is proved, then for each that is out."""
        proofs = [self._proof(key, reading) for reading in self._flags]
        said = [each.is_proved for each in proofs] + [bool(each.contradiction) for each in proofs]
        return sum(is_set << bit for bit, is_set in enumerate(said))

    def recall(self, key: str, known: int) -> None:
        """Take what another process with the same driver has seen of a GPU's fields."""
        for bit, reading in enumerate(self._flags):
            contradicted = bool(known >> len(self._flags) + bit & 1)
            self._proof(key, reading).recall(
                proved=bool(known >> bit & 1), contradicted=contradicted
            )
            if contradicted:
                self._said.add((key, reading))

    def judge(
        self, time_ns: int, row: int, key: str, cells: Cells
    ) -> list[tuple[bool, int | None]]:
        """Take a turn's values of a GPU, and return of each field whether it may be published, and its state.

        The states of a GPU that was lost, or whose fields could not be asked for, are missing.
        """
        reasons = cells.integer("gpu.clock_event_reasons_flags", row)
        answers = cells.integer("gpu.violation_power_nanoseconds", row) is not None
        verdicts: list[tuple[bool, int | None]] = []
        for reading, signal, _ in self.names:
            proof = self._proof(key, reading)
            value = cells.integer(signal, row)
            shown = proof.observe(time_ns, value, reasons)
            verdicts.append((shown, proof.state if answers or value is not None else None))
        return verdicts

    def rested(self, time_ns: int, key: str) -> None:
        """Take it that at this time a GPU said what it had said the time before."""
        for reading in self._flags:
            self._proof(key, reading).rested(time_ns)

    def new_contradictions(self) -> list[str]:
        """Return in words what was found out since the last call, each once."""
        new = [
            at for at, proof in self._proofs.items() if proof.contradiction and at not in self._said
        ]
        self._said.update(new)
        return [
            f"GPU {at[0]}: gpu.{at[1]} is not published: {self._proofs[at].contradiction}"
            for at in new
        ]

    def _proof(self, key: str, reading: str) -> FieldProof:
        proof = self._proofs.get((key, reading))
        if proof is None:
            proof = self._proofs[key, reading] = FieldProof(self._flags[reading])
        return proof


class FieldLook:
    """The proofs over one opening's rows: judges those whose GPU says something else than before, hides what is not
    proven. What stays as it is costs no look in Python."""

    def __init__(
        self, proofs: FieldProofs, keys: Sequence[str], addresses: Sequence[str], cells: Cells
    ) -> None:
        self._proofs, self._keys, self._cells = proofs, keys, cells
        self._addresses = addresses
        place, rows = cells.place, len(keys)
        evidence = [(*place(signal), ALL_BITS) for _, signal, _ in proofs.names]
        evidence += [(*place("gpu.clock_event_reasons_flags"), proofs.flags)]
        evidence += [(*place("gpu.violation_power_nanoseconds"), 0)]  # whether it answers at all
        self._evidence = Rows(rows, evidence)
        self._judging: dict[int, int] = {}  # row -> turns for which it is judged yet
        #: Signal -> of each row, 1: not to be published.
        self._hidden = {signal: b"\1" * rows for _, signal, _ in proofs.names}
        self._hiding = self._places()
        self._looked_ns = 0

    def look(self, now_ns: int) -> None:
        """Take a turn's values."""
        for row in self._evidence.changed():
            if row not in self._judging and self._looked_ns:
                self._proofs.rested(self._looked_ns, self._keys[row])
            self._judging[row] = SETTLING_TURNS + 1
        if self._judging:
            self._judge(now_ns)
        for valid, rows, nothing in self._hiding:
            valid[rows] = nothing
        self._looked_ns = now_ns

    def _places(self) -> list[tuple[bytearray, slice, bytes]]:
        hidden = self._hidden.items()
        return [each for signal, rows in hidden for each in self._cells.hiding(signal, rows)]

    def _judge(self, now_ns: int) -> None:
        hidden = {signal: bytearray(rows) for signal, rows in self._hidden.items()}
        for row, turns in list(self._judging.items()):
            verdicts = self._proofs.judge(now_ns, row, self._keys[row], self._cells)
            for (_, signal, state), (shown, said) in zip(self._proofs.names, verdicts, strict=True):
                hidden[signal][row] = not shown
                self._cells.put(state, row, said)
            library.remember(self._addresses[row], proofs=self._proofs.known(self._keys[row]))
            if turns > 1:
                self._judging[row] = turns - 1
            else:
                del self._judging[row]
        self._hidden = {signal: bytes(rows) for signal, rows in hidden.items()}
        self._hiding = self._places()
        for words in self._proofs.new_contradictions():
            log.warning("%s", words, extra={"cause": "gpu.field"})


def state_of(reading: str) -> str:
    """Return the column that tells the state of a reading's field."""
    return reading.removesuffix("_nanoseconds") + "_field_state"
