"""A symptom: what a rule sees wrong with one device at one moment, with its evidence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, log

from ...fingerprints.catalogue import BY_NAME
from ..verdicts import SEVERITY, Evidence, Reason, State


@dataclass(frozen=True, slots=True)
class Rule:
    """What a kind of symptom means. `hazard_factor` multiplies the host's hazard.

    It counts once it was there for `enter_seconds` on end, and is over once it was away for
    `leave_seconds`; `clears` says the second in words.
    """

    name: str
    state: State
    reason: Reason
    clears: str
    enter_seconds: float = 0.0
    leave_seconds: float = 60.0
    hazard_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Symptom:
    """One device, one rule, now. `value` is in `unit`; `speed` below 1 costs relative speed."""

    rule: Rule
    host: int
    device: str
    signal: str
    value: float
    normal: str
    words: str
    sql: str
    unit: str = ""
    speed: float = 1.0
    hazard_factor: float = 0.0  # 0: the rule's
    state: State | None = None  # None: the rule's
    reason: Reason | None = None
    clears: str = ""
    #: Whose fault it shows, where it is not its device's: a driver's that does not answer, as several devices show.
    whose: str = ""
    #: Of two that weigh alike the greater is told first; what is read now, before what was reported.
    precedence: tuple[float, ...] = (inf,)

    @property
    def fault_of(self) -> str:
        """Whose fault it shows: several symptoms of one are one fault. A link's is its GPU's."""
        whole = self.device.partition("/")[0] if self.device.startswith("GPU-") else self.device
        return self.whose or whole

    @property
    def key(self) -> tuple[str, str]:
        """What makes two symptoms of a host the same, moments apart."""
        return self.rule.name, self.device

    @property
    def log_hazard_delta(self) -> float:
        """What it adds to the logarithm of the hazard when nothing else is wrong with the device."""
        return log(self.hazard_factor or self.rule.hazard_factor)

    @property
    def severity(self) -> int:
        """How bad: higher is worse; HEALTHY is 0."""
        return len(SEVERITY) - 1 - SEVERITY.index(self.host_state)

    @property
    def host_state(self) -> State:
        """The state that it puts its host in."""
        return self.rule.state if self.state is None else self.state

    @property
    def weight(self) -> tuple[int, float, tuple[float, ...]]:
        """Sort key: which of several symptoms is the strongest."""
        costs = self.log_hazard_delta - log(max(self.speed, 0.01))
        return self.severity, costs, self.precedence

    def without_weight(self, words: str, clears: str) -> Symptom:
        """Return it as somebody's word has it: known, in the evidence, and of no weight."""
        return replace(
            self, state=State.HEALTHY, reason=Reason.POLICY, hazard_factor=1.0, speed=1.0,
            words=words, clears=clears,
        )  # fmt: skip

    def evidence(self, log_hazard_delta: float, score_delta: float, seen_ns: int) -> Evidence:
        """Return it, last seen at *seen_ns*, as evidence that moved ln(hazard) and score by so much."""
        known = BY_NAME.get(self.signal)
        return Evidence(
            signal=self.signal,
            device=self.device,
            value=self.value,
            unit=self.unit or (known.unit if known else ""),
            normal=self.normal,
            log_hazard_delta=log_hazard_delta,
            relative_speed_factor=self.speed,
            score_delta=score_delta,
            reason=self.rule.reason if self.reason is None else self.reason,
            words=self.words,
            observed_ns=seen_ns,
            sql=self.sql,
        )


def short(device: str) -> str:
    """Return a device's name as a sentence can bear it: `GPU-3f2a…` for a UUID, `GPU-3f2a…/link4` for a part of it."""
    whole, slash, part = device.partition("/")
    if whole.startswith(("GPU-", "MIG-")) and len(whole) > 12:
        whole = f"{whole[:8]}…"
    return f"{whole}{slash}{part}"
