"""The fingerprint of a run: averages of the activity of its GPUs, comparable with other runs.

Every number may be unknown (NaN): a GPU without GPM reports no tensor activity, an older agent no phases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

#: Rises when a number changes its meaning. Fingerprints of two versions are never compared.
FINGERPRINT_VERSION = 1

#: Shares of the run's time: the five coarse states.
STATES = ("compute_ratio", "wait_ratio", "host_stall_ratio", "checkpoint_ratio", "idle_ratio")
#: Use of the GPUs and of their hosts.
RESOURCES = (
    "sm_ratio",
    "tensor_ratio",
    "memory_bandwidth_ratio",
    "pcie_bytes_per_second",
    "nvlink_bytes_per_second",
    "nic_bytes_per_second",
    "host_cpu_ratio",
    "disk_pressure_ratio",
)
#: All numbers of a fingerprint, in the order of `Fingerprint.values`. Power is a share of the power limit.
NUMBERS = (
    "step_seconds",
    *STATES,
    "compute_power_ratio",
    "wait_power_ratio",
    "power_ratio",
    "utilization_ratio",
    *RESOURCES,
    "checkpoint_interval_seconds",
)

#: Spread between two runs of one workload, in the unit of the feature; below it a difference means little. Periods and
#: rates are compared by their logarithm, and a run that is a fifth slower must still be found.
_LOG_SECONDS, _LOG_BYTES = 0.06, 0.2
_SCALES = {
    "step_seconds": _LOG_SECONDS,
    "checkpoint_interval_seconds": _LOG_SECONDS,
    "pcie_bytes_per_second": _LOG_BYTES,
    "nvlink_bytes_per_second": _LOG_BYTES,
    "nic_bytes_per_second": _LOG_BYTES,
}
_SHARE = 0.05
#: Traffic below this is noise: 10 MB/s.
_BYTES_FLOOR = 1e7
#: Larger numbers are errors of a driver and count as unknown.
_NUMBER_MAX = 1e15

SCALES: Floats = np.array([_SCALES.get(name, _SHARE) for name in NUMBERS])
_IS_SECONDS = np.array([name.endswith("_seconds") for name in NUMBERS])
_IS_BYTES = np.array([name.endswith("_bytes_per_second") for name in NUMBERS])
#: A fingerprint with fewer known numbers identifies no workload.
KNOWN_MIN = 4


class FingerprintVersionError(ValueError):
    """The fingerprint has a version that this program cannot compare."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Activity of a run. `values`: by NUMBERS, NaN where unknown."""

    values: tuple[float, ...] = (nan,) * len(NUMBERS)
    step_confidence: float = nan
    gpus: int = 0
    hosts: int = 0
    gpu_model: str = ""
    version: int = FINGERPRINT_VERSION

    def value(self, name: str) -> float:
        """Return the value of *name*, an entry of NUMBERS."""
        return self.values[NUMBERS.index(name)]

    def columns(self) -> dict[str, Any]:
        """Return the columns of a row, in the form that `decode` reads."""
        return {
            "fingerprint_version": self.version,
            "step_confidence": self.step_confidence,
            "gpus": self.gpus,
            "hosts": self.hosts,
            "gpu_model": self.gpu_model,
            **dict(zip(NUMBERS, self.values, strict=True)),
        }


def decode(columns: Mapping[str, Any]) -> Fingerprint:
    """Return the fingerprint of a row. Raises FingerprintVersionError for another version.

    A missing value, or a value that is not a number, becomes NaN.
    """
    version = columns.get("fingerprint_version")
    if version != FINGERPRINT_VERSION:
        raise FingerprintVersionError(
            f"fingerprint of version {version}: this is version {FINGERPRINT_VERSION}; it is compared with none"
        )
    return Fingerprint(
        values=tuple(_number(columns.get(name)) for name in NUMBERS),
        step_confidence=_number(columns.get("step_confidence")),
        gpus=int(columns.get("gpus") or 0),
        hosts=int(columns.get("hosts") or 0),
        gpu_model=str(columns.get("gpu_model") or ""),
    )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else nan


def features_of(values: npt.ArrayLike) -> Floats:
    """Return the features for distances, by NUMBERS in the last axis; NaN where unknown.

    One unit is the spread between two runs of one workload. Never raises on odd numbers: negative, infinite and absurd
    numbers are unknown.
    """
    found = np.array(values, dtype=np.float64, ndmin=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.where((found >= 0) & (found <= _NUMBER_MAX), found, np.nan)
        seconds = np.log(np.where(found > 0, found, np.nan))
        rates = np.log1p(found / _BYTES_FLOOR)
    return np.asarray(np.where(_IS_SECONDS, seconds, np.where(_IS_BYTES, rates, found)) / SCALES)


def features(fingerprints: Sequence[Fingerprint]) -> Floats:
    """Return the features of *fingerprints*, a row each."""
    if not fingerprints:
        return np.zeros((0, len(NUMBERS)))
    return features_of([one.values for one in fingerprints])
