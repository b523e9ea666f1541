"""The rules of the aggregator, and their consequences: counters in memory, findings, and faults.

A row (ThresholdRule, RateRule) has its own threshold. The thresholds of a Rule with a function are above that function:
lost, silent and unread hosts in `scoring/rules/agent.py`, clocks and heat in `clock.py`, retransmissions in `fabric.py`,
gangs in `gang.py` and `gang_links.py`, and the statistics behind gangs in `fleet/gangs.py` and
`fingerprints/stragglers.py`. `declared/thresholds.py` lists those that a site may change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...contract.signals import SIGNALS
from ..rule_declaration import FindingWhen, HazardClass, RateRule, Rule, RuleRow, ThresholdRule
from . import agent, events, faults, gang, gpu, host, network, nvlink, pcie


def _declared(value: Any) -> Iterator[Rule | RuleRow]:
    """Yield the rules in *value*: one, or a table of rows."""
    if isinstance(value, Rule | ThresholdRule | RateRule):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _declared(item)
    elif isinstance(value, Mapping):
        yield from _declared(tuple(value.values()))


def _by_name(rules: Iterable[Rule]) -> Mapping[str, Rule]:
    rules_by_name: dict[str, Rule] = {}
    for rule in rules:
        if rules_by_name.setdefault(rule.name, rule) is not rule:
            raise ValueError(f"rule {rule.name} is declared twice: give one of them another name")
    return rules_by_name


_DECLARED = tuple(
    rule
    for module in (faults, gpu, nvlink, pcie, network, host, gang, events, agent)
    for name, value in vars(module).items()
    if not name.startswith("__")
    for rule in _declared(value)
)
#: Rules that are a row, with or without a function.
ROWS: tuple[RuleRow, ...] = tuple(
    {rule.rule.name: rule for rule in _DECLARED if not isinstance(rule, Rule)}.values()
)
#: All rules, by name.
RULES: Mapping[str, Rule] = _by_name(
    rule if isinstance(rule, Rule) else rule.rule for rule in _DECLARED
)

#: Counters that are followed from reading to reading, in memory. A followed counter costs three
#: times the memory of its latest value, and most of the time of a judgement.
COUNTERS = frozenset(
    {row.signal for row in ROWS if isinstance(row, RateRule)}.union(
        *(rule.counts for rule in RULES.values())
    )
)
#: Signals that any rule reads. The signals that count counter resets are read with them.
SIGNALS_READ = COUNTERS.union(
    (row.signal for row in ROWS),
    (signal.name for signal in SIGNALS if signal.column == "counter_epoch_count"),
    *(rule.reads for rule in RULES.values()),
)

#: Rules whose symptoms are findings; PERSISTENT_RULES only while they change the state.
FINDING_RULES = tuple(name for name, rule in RULES.items() if rule.finding is FindingWhen.ALWAYS)
#: Faults of a host -> class.
FAULTS: Mapping[str, HazardClass] = {
    name: rule.fault_class for name, rule in RULES.items() if rule.fault_class is not None
}
PERSISTENT_RULES = (
    *FAULTS,
    *(name for name, rule in RULES.items() if rule.finding is FindingWhen.COSTLY),
)

#: Names of rule families, which select the rules of each code, counter or event.
FAMILIES = tuple(name for name, rule in RULES.items() if rule.is_family)
#: Rules that are never noise -> the alternative to declare.
NEVER_NOISE: Mapping[str, str] = {
    name: rule.never_noise for name, rule in RULES.items() if rule.never_noise
}
#: The rules that an override may name.
OVERRIDABLE_RULES = frozenset(RULES) - NEVER_NOISE.keys() - {agent.UNEXPECTED.name}


def faults_sql() -> str:
    """Return the statements that create `ops.is_fault`."""
    names = ", ".join(f"'{name}'" for name in FAULTS)
    return (
        f"CREATE OR REPLACE MACRO ops.is_fault(finding) AS finding IN ({names});\n"
        "COMMENT ON MACRO ops.is_fault IS 'whether a finding of this name is a fault of its host, for training and "
        "judging: SELECT host, name, since FROM ops.findings WHERE ops.is_fault(name)';\n"
    )
