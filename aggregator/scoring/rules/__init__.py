"""Rules that find symptoms: functions, one file per kind of fault; simple rules are only a row of `rule_catalogue/`."""

from __future__ import annotations

from ...rule_catalogue import ROWS
from ..symptom import Detector, row_detector
from . import (
    agent,
    clock,
    configuration,
    events,
    fabric,
    gang,
    gang_links,
    gpu,
    host,
    missing_gpus,
    pcie,
)

_FUNCTIONS = tuple(
    one
    for module in (
        agent, clock, configuration, events, fabric, gang, gang_links, gpu, host, missing_gpus, pcie,
    )
    for one in vars(module).values()
    if isinstance(one, Detector)
)  # fmt: skip
_BY_FUNCTION = frozenset[str]().union(*(one.rules for one in _FUNCTIONS))
#: All of them, in no order that matters.
DETECTORS: tuple[Detector, ...] = (
    *dict.fromkeys(_FUNCTIONS),  # some modules use those of others
    *(row_detector(row) for row in ROWS if row.rule.name not in _BY_FUNCTION),
)
