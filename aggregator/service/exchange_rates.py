"""Exchange rates of a request: its own, else its tenant's; with notes on rates without effect."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any

import numpy as np

from ...contract.wire import placement_pb2
from ..declared.model import ExchangeRates
from ..scoring.evaluate import Judgement
from .validation import check_real, check_text

#: Larger exchange rates and preferences, in GPU-hours, are rejected as mistakes.
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
    """Return the exchange rates as fields of the requirements. Raises InvalidArgument."""
    check_text("gang.tenant", gang.tenant, TENANT_CHARACTERS_MAX)
    declared = tenants.get(gang.tenant, ExchangeRates())
    rates: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, field in RATE_FIELDS.items():
        known: Any = name
        if gang.HasField(known):
            check_real(f"gang.{name}", getattr(gang, name), RATE_MAX)
            rates[field] = getattr(gang, name)
        elif not isnan(rate := getattr(declared, name)):
            rates[field], origins[field] = rate, f"declared for tenant {gang.tenant}"
    return {**rates, "rate_origins": origins}


def notes_of(gang: placement_pb2.GangRequirements, snapshot: Judgement) -> list[str]:
    """Return notes on the parts of the request without effect, with reasons."""
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
