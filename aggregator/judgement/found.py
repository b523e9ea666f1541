"""What judging keeps as findings: begun where operators must act on it, ended on record where its condition is gone."""

from __future__ import annotations

from collections.abc import Mapping

from ..fleet.fleet import FINDINGS_MAX, Fleet
from ..hazard.classes import class_of
from ..verdicts import Finding, Reason, State
from .faults import Standing
from .hysteresis import Hold, Key
from .restart import Before
from .rules.kernel import KINDS
from .symptoms import Symptom

#: Rules whose symptoms are findings of their own, whatever they cost.
FINDING_RULES = ("data.lost", "counter.saturated")
#: And of these what is a fault of the host, for training and for the time since its return.
FAULT_RULES = (
    "gpu.xid",
    "nvswitch.sxid",
    "gpu.lost",
    "gpu.recovery_action",
    "gpu.remap_pending",
    "gpu.remap_failed",
    "gpu.ecc_uncorrected",
    "folded",
    *sorted({kind.rule.name for kind in KINDS.values()}),
)
#: And their classes.
_FAULTS = {name: class_of(name) for name in FAULT_RULES}
#: What costs a host its state: it stands until a reset, a boot, or time ends it, and its end is to be on record. What
#: somebody expects and a host has not is no fault of the host: a slip in a file would make lemons of all.
STANDING_RULES = (*FAULT_RULES, "hardware.unexpected")
#: With so many findings none is begun that is no fault: a counter stuck on each port of a large fleet, or a slip in a
#: file, leaves room for what hosts are taken out for.
OTHERS_MAX = FINDINGS_MAX // 2
#: All of these: judging begins them and ends them.
JUDGED_FINDINGS = frozenset((*FINDING_RULES, *STANDING_RULES))


def standing_faults(fleet: Fleet) -> Standing:
    """Return the findings that stand and are faults, as training takes them from the record."""
    found = fleet.findings.values()
    return frozenset(
        (f.host, f.since_ns // 1000, _FAULTS[f.name]) for f in found if f.name in _FAULTS
    )


def report(
    fleet: Fleet, holds: Mapping[int, Mapping[Key, Hold]], before: Before, now_ns: int
) -> None:
    """Keep as findings what operators must act on; end, on record, those whose condition is gone.

    A host that is silent keeps its own: nothing of it was looked at again. So does one that was heard
    again only now, after a restart of ours.
    """
    standing: set[tuple[str, str, str]] = set()
    for host, held in holds.items():
        for symptom in (hold.worst for hold in held.values() if hold.active):
            if name := finding_name(symptom):
                key = fleet.names[host], name, finding_subject(name, symptom)
                standing.add(key)
                clears = symptom.clears or symptom.rule.clears
                most = None if name in _FAULTS else OTHERS_MAX
                fleet.find(Finding(*key, symptom.words, now_ns, 0, clears), most)
    for key in [k for k in fleet.findings if k[1] in JUDGED_FINDINGS and k not in standing]:
        if not before.keeps(key, fleet, now_ns):
            fleet.clear(*key)


def finding_name(symptom: Symptom) -> str:
    """Return under which name *symptom* is kept as a finding; "" if it is not, or somebody takes it as noise."""
    rule = symptom.rule.name
    if symptom.reason is Reason.POLICY:
        return ""
    names = FINDING_RULES if symptom.host_state is State.HEALTHY else FINDING_RULES + STANDING_RULES
    return max((n for n in names if rule == n or rule.startswith(f"{n}.")), key=len, default="")


def finding_subject(name: str, symptom: Symptom) -> str:
    """Return what a finding is about: the device, the signal, and the code or variant of it."""
    which = symptom.rule.name.removeprefix(name).lstrip(".")
    told = f" {which}" if which and not symptom.signal.endswith(which) else ""
    return f"{symptom.device} {symptom.signal}{told}"
