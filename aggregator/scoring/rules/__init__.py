"""Detectors of symptoms, a module per kind of fault; simple rules are rows of `rule_catalogue/`."""

from __future__ import annotations

from ...rule_catalogue import ROWS
from ..detectors import Detector, row_detector
from . import (
    agent,
    clock,
    configuration,
    events,
    fabric,
    gang,
    gang_gaps,
    gang_links,
    gang_neighbors,
    gpu,
    host,
    missing_gpus,
    pcie,
)

_FUNCTIONS = tuple(
    value
    for module in (
        agent, clock, configuration, events, fabric, gang, gang_gaps, gang_links, gang_neighbors, gpu,
        host, missing_gpus, pcie,
    )
    for value in vars(module).values()
    if isinstance(value, Detector)
)  # fmt: skip
_BY_FUNCTION = frozenset[str]().union(*(detector.rules for detector in _FUNCTIONS))
#: All detectors, in any order.
DETECTORS: tuple[Detector, ...] = (
    *dict.fromkeys(_FUNCTIONS),  # modules import detectors of others
    *(row_detector(row) for row in ROWS if row.rule.name not in _BY_FUNCTION),
)
