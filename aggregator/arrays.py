"""Types of the arrays that the aggregator computes with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Times = NDArray[np.int64]
Indexes = NDArray[np.intp]
Codes = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
