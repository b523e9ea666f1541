"""A symptom: a finding of a rule about one device, with evidence."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from math import inf, log

from ...contract.signals import BY_NAME
from ..model import SEVERITY, Evidence, HealthState, Reason, SharedCause
from ..rule_declaration import Rule


@dataclass(frozen=True, slots=True)
class Symptom:
    """A finding of one rule about one device now. `speed` below 1 costs relative speed."""

    rule: Rule
    host: int
    device: str
    signal: str
    value: float
    normal: str
    message: str
    sql: str
    unit: str = ""
    speed: float = 1.0
    #: Remaining share of the part, if known: lanes of a link, ports of a host. Work that needs no
    #: more does not notice, so this costs no relative speed.
    capacity_ratio: float = 1.0
    hazard_factor: float = 0.0  # 0: the rule's
    state: HealthState | None = None  # None: the rule's
    reason: Reason | None = None
    clears: str = ""
    #: The worst state that the symptom keeps up if it was in that state before: a state ends at
    #: another value than it begins. A symptom that is HEALTHY by itself begins nothing.
    retained_state: HealthState | None = None
    #: Owner of the fault, if not the device: several devices show one hung driver.
    fault_source: str = ""
    #: The cause outside the host, if several hosts show this at once.
    shared_cause: SharedCause | None = None
    #: Order among symptoms of equal weight, greatest first; readings precede events.
    precedence: tuple[float, ...] = (inf,)

    def fault_of(self, shared: Container[str]) -> str:
        """Return the fault's owner if *shared* causes explain all they may.

        Symptoms with the same owner are one fault.
        """
        if self.fault_source:
            return self.fault_source
        return f"shared {self.rule.shared}" if self.rule.shared in shared else self.parent_device

    @property
    def parent_device(self) -> str:
        """The device that has the symptom, or whose part has it.

        A GPU's link is a part of the GPU; EDAC counts one error at its controller, its row and its
        channel.
        """
        has_parts = self.device.startswith("GPU-") or self.signal.startswith("edac.")
        return self.device.partition("/")[0] if has_parts else self.device

    @property
    def key(self) -> tuple[str, str]:
        """Identity of the symptom on its host over time."""
        return self.rule.name, self.device

    @property
    def log_hazard_delta(self) -> float:
        """Increase of ln(hazard) if nothing else is wrong with the device."""
        return log(self.hazard_factor or self.rule.hazard_factor)

    @property
    def severity(self) -> int:
        """Rank of the host state: higher is worse; HEALTHY is 0."""
        return len(SEVERITY) - 1 - SEVERITY.index(self.host_state)

    @property
    def host_state(self) -> HealthState:
        """The state that the symptom gives its host."""
        return self.rule.state if self.state is None else self.state

    @property
    def weight(self) -> tuple[int, float, tuple[float, ...]]:
        """Sort key: the strongest symptom has the greatest."""
        costs = self.log_hazard_delta - log(max(self.speed, 0.01))
        return self.severity, costs, self.precedence

    def without_weight(self, message: str, clears: str) -> Symptom:
        """Return the symptom as evidence without weight, for Reason.POLICY."""
        return replace(
            self, state=HealthState.HEALTHY, reason=Reason.POLICY, hazard_factor=1.0, speed=1.0,
            capacity_ratio=1.0, message=message, clears=clears,
        )  # fmt: skip

    def evidence(self, log_hazard_delta: float, score_delta: float, observed_ns: int) -> Evidence:
        """Return the symptom as evidence with these changes of ln(hazard) and score."""
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
            message=self.message,
            observed_ns=observed_ns,
            sql=self.sql,
        )


def short(device: str) -> str:
    """Return a device name shortened for messages: `GPU-3f2a…`, or `GPU-3f2a…/link4` for a part."""
    parent, slash, part = device.partition("/")
    if parent.startswith(("GPU-", "MIG-")) and len(parent) > 12:
        parent = f"{parent[:8]}…"
    return f"{parent}{slash}{part}"
