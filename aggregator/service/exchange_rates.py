"""Exchange rates of a request: its own, else its tenant's declared ones; and which of them have no effect."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any

import numpy as np

from ...contract.wire import placement_pb2
from ..declared.model import ExchangeRates
from ..scoring.evaluate import Judgement
from .validation import check_real, check_text

#: Exchange rates and preferences above this are a mistake, in GPU-hours.
RATE_MAX = 1e9
TENANT_CHARACTERS_MAX = 128
#: Field of the request and of a declared tenant -> field of the requirements.
RATE_FIELDS: Mapping[str, str] = {
    "gpu_hours_per_stranded_gpu_hour": "stranded_gpu_rate",
    "gpu_hours_per_delay_hour": "delay_rate",
    "gpu_hours_per_currency_unit": "currency_rate",
}


def rates_of(
    gang: placement_pb2.GangRequirements, tenants: Mapping[str, ExchangeRates]
) -> dict[str, Any]:
    """Return the fields of the requirements that are exchange rates. Raises InvalidArgument."""
    check_text("gang.tenant", gang.tenant, TENANT_CHARACTERS_MAX)
    declared = tenants.get(gang.tenant, ExchangeRates())
    found: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, field in RATE_FIELDS.items():
        known: Any = name
        if gang.HasField(known):
            check_real(f"gang.{name}", getattr(gang, name), RATE_MAX)
            found[field] = getattr(gang, name)
        elif not isnan(rate := getattr(declared, name)):
            found[field], origins[field] = rate, f"declared for tenant {gang.tenant}"
    return {**found, "rate_origins": origins}


def notes_of(gang: placement_pb2.GangRequirements, snapshot: Judgement) -> list[str]:
    """Return the parts of the request that have no effect, and why."""
    notes: list[str] = []
    declared = snapshot.tenants.get(gang.tenant)
    if gang.tenant and declared is None:
        notes.append(
            f"tenant {gang.tenant!r} is not declared: only exchange rates of the request count; declare it as [[tenant]]"
        )
    rate = gang.gpu_hours_per_currency_unit
    if not gang.HasField("gpu_hours_per_currency_unit") and declared is not None:
        rate = declared.gpu_hours_per_currency_unit
    if rate > 0.0 and not np.isfinite(snapshot.facts.costs.price).any():
        notes.append(
            "gpu_hours_per_currency_unit has no effect: price_per_gpu_hour is declared for no node"
        )
    return notes
