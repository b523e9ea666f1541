"""Checks NVML fields whose ids moved between drivers before their values are used.

A wrong id returns another quantity without an error. So such a field is verified only after it has
behaved as expected: nanoseconds that grow while their clock event reason is set, no faster than
time, and stay constant otherwise. Settings and percentages do not behave like that. A field that
contradicts this is excluded until the driver changes.

A constant zero neither proves nor contradicts a field. On a GPU that was never throttled a zero is
published as unverified if it has the right type (unsigned 64 bits, checked by the sweep) and the
neighboring fields answer too. From the first sample with its reason set only a verified value is
published.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

from ...ext import nvml as library
from ...ext.nvml import ALL_BITS, Rows
from .block_writer import Cells

#: Samples (one per second) in which the value must grow with its reason set; a setting changes less
#: often.
CONFIRMATIONS_MIN = 3
#: Samples in which the value must rest without its reason, else it may count something permanent.
IDLE_SAMPLES_MIN = 1
#: A smaller step is not throttling, but perhaps a setting that was raised by one.
CONFIRMING_STEP_NS_MIN = 1_000_000
#: A step may exceed the time between two samples by this, the delay of a sample on a busy host.
CONFIRMING_LATE_NS_MAX = 50_000_000
#: A larger excess is not a measure of time: drivers renew their counts about once a second.
IMPOSSIBLE_LATE_NS = 1_000_000_000
#: Allowed steps of more than half the time between samples without the reason at either end or at
#: the sample before (a late count). Each CONFIRMATIONS_PER_REASONLESS confirmations allow one more,
#: for months of true throttling.
REASONLESS_STEPS_MAX = 2
CONFIRMATIONS_PER_REASONLESS = 10
#: After a GPU's values stop changing its fields are evaluated for this many more samples.
SETTLING_TURNS = 2
#: Fields of the same request with unchanged ids: an answer from any shows that the GPU's fields are
#: readable.
STABLE_FIELDS = ("gpu.violation_power_nanoseconds", "gpu.violation_board_limit_nanoseconds")

log = logging.getLogger(__name__)


class FieldState(IntEnum):
    """The state of a field; the number is sent as `gpu.violation_*_field_state`."""

    UNSUPPORTED = 0  # missing in the driver, or contradicted
    UNVERIFIED = 1
    VERIFIED = 2


class FieldValidator:
    """The evidence about one field of one GPU. Pure."""

    def __init__(self, flag: int) -> None:
        """*flag*: the bit of the clock event reasons that accompanies the field."""
        self._flag = flag
        self.contradiction = ""  # text; empty: none
        self.restart()

    @property
    def state(self) -> FieldState:
        """The state after the last sample."""
        if self.contradiction or self._last is None:
            return FieldState.UNSUPPORTED
        return FieldState.VERIFIED if self.is_verified else FieldState.UNVERIFIED

    @property
    def is_verified(self) -> bool:
        """Whether the evidence suffices, without a contradiction."""
        enough = self._confirmations >= CONFIRMATIONS_MIN and self._idle_samples >= IDLE_SAMPLES_MIN
        return enough and not self.contradiction

    def recall(self, *, verified: bool, contradicted: bool) -> None:
        """Take over the evidence of another process."""
        if verified:
            self._confirmations, self._idle_samples = CONFIRMATIONS_MIN, IDLE_SAMPLES_MIN
        if contradicted:
            self.contradiction = "its values do not fit its definition"

    def restart(self) -> None:
        """Forget the evidence, except a contradiction, after a driver reload or a GPU reset."""
        self._first: tuple[int, int] | None = None
        self._last: tuple[int, int] | None = None
        self._last_sample: tuple[int | None, int | None] | None = None
        # Whether the reason was set at the last two samples
        self._reason_was_set = (False, False)
        self._confirmations = self._idle_samples = self._reasonless = 0
        self._reason_ever_set = self._reason_set_meanwhile = False

    def observe(self, time_ns: int, value: int | None, reasons: int | None) -> bool:
        """Take a sample, and return whether its value may be published. None: could not be read."""
        self._last_sample = value, reasons
        is_set = reasons is None or bool(reasons & self._flag)  # unknown proves nothing either way
        self._reason_ever_set |= reasons is not None and is_set
        if value is None or self.contradiction:  # also between two turns of a slow field
            self._reason_set_meanwhile |= is_set
            return False
        is_set |= self._reason_set_meanwhile
        self._reason_set_meanwhile = False
        if self._first is None or self._last is None:
            self._first = time_ns, value
        else:
            self._evaluate(time_ns, value, is_set, known=reasons is not None)
        self._last, self._reason_was_set = (time_ns, value), (self._reason_was_set[1], is_set)
        is_rest = value == 0 and reasons is not None and not self._reason_ever_set
        return is_rest or self.is_verified

    def observe_idle(self, time_ns: int) -> None:
        """Repeat the last sample at this time."""
        if self._last_sample is not None:
            self.observe(time_ns, *self._last_sample)

    def _evaluate(self, time_ns: int, value: int, is_set: bool, *, known: bool) -> None:
        assert self._first is not None and self._last is not None
        step, elapsed = value - self._last[1], time_ns - self._last[0]
        grown, passed = value - self._first[1], time_ns - self._first[0]
        set_at_an_end = is_set or self._reason_was_set[1]
        if step < 0:
            self.contradiction = "it decreased without a reset"
        elif max(step - elapsed, grown - passed) > IMPOSSIBLE_LATE_NS:
            self.contradiction = "it grew faster than time"
        elif step == 0:
            self._idle_samples += not set_at_an_end
        elif set_at_an_end:
            credible = CONFIRMING_STEP_NS_MIN <= step <= elapsed + CONFIRMING_LATE_NS_MAX
            self._confirmations += known and credible
        elif not self._reason_was_set[0]:
            self._count_reasonless(step, elapsed)

    def _count_reasonless(self, step: int, elapsed: int) -> None:
        """Count a step without its reason.

        Less than half the time may have passed unseen between samples.
        """
        self._reasonless += 2 * step >= elapsed
        allowed = REASONLESS_STEPS_MAX + self._confirmations // CONFIRMATIONS_PER_REASONLESS
        if self._reasonless > allowed:
            self.contradiction = "it grew repeatedly while its clock event reason was not set"


class FieldValidators:
    """The evidence about the fields of all GPUs."""

    def __init__(self, flags: Mapping[str, int]) -> None:
        """*flags*: reading -> the bit of the clock event reasons that accompanies it."""
        self._flags = flags
        #: All bits of *flags*.
        self.flags = sum(set(flags.values()))
        #: (reading, its signal, the signal of its state).
        self.names = [(r, f"gpu.{r}", f"gpu.{state_of(r)}") for r in flags]
        self._validators: dict[tuple[str, str], FieldValidator] = {}
        self._reported: set[tuple[str, str]] = set()

    def restart(self, keys: Iterable[str]) -> None:
        """Forget the evidence of these GPUs: their counters restarted."""
        for key in keys:
            for reading in self._flags:
                self._validator(key, reading).restart()

    def state_bits(self, key: str) -> int:
        """Return a GPU's evidence for `recall`: bits of verified, then of contradicted fields."""
        validators = [self._validator(key, reading) for reading in self._flags]
        bits = [validator.is_verified for validator in validators] + [
            bool(validator.contradiction) for validator in validators
        ]
        return sum(is_set << bit for bit, is_set in enumerate(bits))

    def recall(self, key: str, bits: int) -> None:
        """Take over the evidence of another process with the same driver."""
        for bit, reading in enumerate(self._flags):
            contradicted = bool(bits >> len(self._flags) + bit & 1)
            self._validator(key, reading).recall(
                verified=bool(bits >> bit & 1), contradicted=contradicted
            )
            if contradicted:
                self._reported.add((key, reading))

    def evaluate(
        self, time_ns: int, row: int, key: str, cells: Cells
    ) -> list[tuple[bool, int | None]]:
        """Take a turn's values of a GPU, and return (may be published, state) per field.

        The state is None if the GPU is lost or its fields cannot be read. An unverified field is
        not published unless its neighbors answer as well.
        """
        reasons = cells.integer("gpu.clock_event_reasons_flags", row)
        has_answer = any(cells.integer(signal, row) is not None for signal in STABLE_FIELDS)
        shown: list[bool] = []
        for reading, signal, _ in self.names:
            value = cells.integer(signal, row)
            has_answer |= value is not None
            shown.append(self._validator(key, reading).observe(time_ns, value, reasons))
        validators = [self._validator(key, reading) for reading in self._flags]
        agree = all(validator.state is not FieldState.UNSUPPORTED for validator in validators)
        return [
            (is_shown and (agree or validator.is_verified), validator.state if has_answer else None)
            for is_shown, validator in zip(shown, validators, strict=True)
        ]

    def observe_idle(self, time_ns: int, key: str) -> None:
        """Repeat the last samples of a GPU at this time."""
        for reading in self._flags:
            self._validator(key, reading).observe_idle(time_ns)

    def new_contradictions(self) -> list[str]:
        """Return messages about new contradictions, each once."""
        new = [
            field
            for field, validator in self._validators.items()
            if validator.contradiction and field not in self._reported
        ]
        self._reported.update(new)
        return [
            f"GPU {field[0]}: gpu.{field[1]} is not published: {self._validators[field].contradiction}"
            for field in new
        ]

    def _validator(self, key: str, reading: str) -> FieldValidator:
        validator = self._validators.get((key, reading))
        if validator is None:
            validator = self._validators[key, reading] = FieldValidator(self._flags[reading])
        return validator


class FieldFilter:
    """Evaluates the fields of the open GPUs, and hides unverified values.

    A row without a change runs no Python code.
    """

    def __init__(
        self,
        validators: FieldValidators,
        keys: Sequence[str],
        addresses: Sequence[str],
        cells: Cells,
    ) -> None:
        self._validators, self._keys, self._cells = validators, keys, cells
        self._addresses = addresses
        column_of, rows = cells.column_of, len(keys)
        evidence = [(*column_of(signal), ALL_BITS) for _, signal, _ in validators.names]
        evidence += [(*column_of("gpu.clock_event_reasons_flags"), validators.flags)]
        evidence += [(*column_of(signal), 0) for signal in STABLE_FIELDS]  # whether they answer
        self._evidence = Rows(rows, evidence)
        self._unsettled: dict[int, int] = {}  # row -> turns with further evaluation
        #: Signal -> per row 1: hidden.
        self._hidden = {signal: b"\1" * rows for _, signal, _ in validators.names}
        self._mask_writes = self._build_mask_writes()
        self._updated_ns = 0

    def update(self, now_ns: int) -> None:
        """Take a turn's values."""
        for row in self._evidence.changed():
            if row not in self._unsettled and self._updated_ns:
                self._validators.observe_idle(self._updated_ns, self._keys[row])
            self._unsettled[row] = SETTLING_TURNS + 1
        if self._unsettled:
            self._evaluate(now_ns)
        for valid, rows, nothing in self._mask_writes:
            valid[rows] = nothing
        self._updated_ns = now_ns

    def _build_mask_writes(self) -> list[tuple[bytearray, slice, bytes]]:
        hidden = self._hidden.items()
        return [write for signal, rows in hidden for write in self._cells.mask_writes(signal, rows)]

    def _evaluate(self, now_ns: int) -> None:
        hidden = {signal: bytearray(rows) for signal, rows in self._hidden.items()}
        for row, turns in list(self._unsettled.items()):
            verdicts = self._validators.evaluate(now_ns, row, self._keys[row], self._cells)
            for (_, signal, state), (shown, field_state) in zip(
                self._validators.names, verdicts, strict=True
            ):
                hidden[signal][row] = not shown
                self._cells.put(state, row, field_state)
            library.remember(
                self._addresses[row], proofs=self._validators.state_bits(self._keys[row])
            )
            if turns > 1:
                self._unsettled[row] = turns - 1
            else:
                del self._unsettled[row]
        self._hidden = {signal: bytes(rows) for signal, rows in hidden.items()}
        self._mask_writes = self._build_mask_writes()
        for message in self._validators.new_contradictions():
            log.warning("%s", message, extra={"cause": "gpu.field"})


def state_of(reading: str) -> str:
    """Return the column with the state of a reading's field."""
    return reading.removesuffix("_nanoseconds") + "_field_state"
