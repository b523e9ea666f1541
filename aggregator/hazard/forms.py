"""Which features of the model may have a weight: one form for each simple ranking, richer ones, and one with what is measured."""

from __future__ import annotations

from typing import NamedTuple

from .features import NAMES_ALIKE, NAMES_OF_HISTORY
from .measured import MEASURED


class Form(NamedTuple):
    """Which features may have a weight, and how dearly."""

    name: str
    names: tuple[str, ...]
    ridge: float
    #: The feature whose order is the form's: all of `names` rise with it, and its weight stays above zero.
    ordered_by: str = ""


_RIDGE = 5.0
#: Each ranks hosts exactly as the baseline of its name does (`baselines.BASELINES`): what is fitted is the calibration.
#: The first is taken unless another plainly ranks better: by what is published, faults follow a return.
SIMPLE = (
    Form("time since return", ("returned_1d", "returned_10d", "failed_before", "returned"), _RIDGE, "returned"),
    Form("count decayed over 30 days", ("failed_before", "faults_30d"), _RIDGE, "faults_30d"),
    Form("count decayed over 7 days", ("failed_before", "faults_7d"), _RIDGE, "faults_7d"),
    Form("count decayed over 90 days", ("failed_before", "faults_90d"), _RIDGE, "faults_90d"),
    Form("lifetime count", ("failed_before", "faults_ever"), _RIDGE, "faults_ever"),
    Form("count of the last 7 days", ("faults_last_7d",), _RIDGE, "faults_last_7d"),
    Form("failed before, or never", ("failed_before",), _RIDGE, "failed_before"),
)  # fmt: skip
_TIGHT = 20.0
#: Of the history of faults; "all" is all of it but for their classes.
RICHER = (
    Form("all, held tight", NAMES_ALIKE, _TIGHT),
    Form("all", NAMES_ALIKE, _RIDGE),
    Form("all, and by class, held tight", NAMES_OF_HISTORY, _TIGHT),
)
#: As the first of these, and with what is measured; tried where enough of that is on record.
WITH_MEASURED = Form(
    "history and what is measured, held tight",
    (*NAMES_ALIKE, *(each.name for each in MEASURED)),
    _TIGHT,
)
