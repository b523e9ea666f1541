"""The rules of the aggregator, and what follows from them: what is kept in memory, what is a finding, what is a fault."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...contract.signals import SIGNALS
from ..rule_declaration import FindingWhen, HazardClass, RateRule, Rule, RuleRow, ThresholdRule
from . import agent, events, gang, gpu, host, network, nvlink, pcie


def _declared(value: Any) -> Iterator[Rule | RuleRow]:
    """Yield the rules in *value*: one, or a table of rows."""
    if isinstance(value, Rule | ThresholdRule | RateRule):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from _declared(one)
    elif isinstance(value, Mapping):
        yield from _declared(tuple(value.values()))


def _by_name(rules: Iterable[Rule]) -> Mapping[str, Rule]:
    found: dict[str, Rule] = {}
    for rule in rules:
        if found.setdefault(rule.name, rule) is not rule:
            raise ValueError(f"rule {rule.name} is declared twice: give one of them another name")
    return found


_DECLARED = tuple(
    one
    for module in (gpu, nvlink, pcie, network, host, gang, events, agent)
    for name, value in vars(module).items()
    if not name.startswith("__")
    for one in _declared(value)
)
#: The rules that are a row alone, or a row beside a function.
ROWS: tuple[RuleRow, ...] = tuple(one for one in _DECLARED if not isinstance(one, Rule))
#: All rules, by name.
RULES: Mapping[str, Rule] = _by_name(
    one if isinstance(one, Rule) else one.rule for one in _DECLARED
)

#: The counters that are followed from reading to reading, in memory. To follow one costs three times the memory of its
#: latest value, and most of the time of a judgement.
COUNTERS = frozenset(
    {one.signal for one in ROWS if isinstance(one, RateRule)}.union(
        *(rule.counts for rule in RULES.values())
    )
)
#: The signals that any rule reads. The signals that count counter resets are read with them.
SIGNALS_READ = COUNTERS.union(
    (one.signal for one in ROWS),
    (one.name for one in SIGNALS if one.column == "counter_epoch_count"),
    *(rule.reads for rule in RULES.values()),
)

#: Rules whose symptoms are findings, whatever they cost; and those that are while they cost their host its state.
FINDING_RULES = tuple(name for name, rule in RULES.items() if rule.finding is FindingWhen.ALWAYS)
#: Faults of a host -> the class of each.
FAULTS: Mapping[str, HazardClass] = {
    name: rule.fault_class for name, rule in RULES.items() if rule.fault_class is not None
}
PERSISTENT_RULES = (
    *FAULTS,
    *(name for name, rule in RULES.items() if rule.finding is FindingWhen.COSTLY),
)

#: Names of rules that are made one by one, for each code, counter or event: each is that of all of them.
FAMILIES = tuple(name for name, rule in RULES.items() if rule.is_family)
#: What is never noise -> what to declare instead.
NEVER_NOISE: Mapping[str, str] = {
    name: rule.never_noise for name, rule in RULES.items() if rule.never_noise
}
#: The rules that an override may name.
OVERRIDABLE_RULES = frozenset(RULES) - NEVER_NOISE.keys() - {agent.UNEXPECTED.name}


def faults_sql() -> str:
    """Return the statements that make `ops.is_fault`."""
    names = ", ".join(f"'{name}'" for name in FAULTS)
    return (
        f"CREATE OR REPLACE MACRO ops.is_fault(finding) AS finding IN ({names});\n"
        "COMMENT ON MACRO ops.is_fault IS 'whether a finding of this name is a fault of its host, for training and "
        "judging: SELECT host, name, since FROM ops.findings WHERE ops.is_fault(name)';\n"
    )
