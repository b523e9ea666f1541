"""Speeds that last: the lasting part of differences between GPUs (empirical Bayes).

  lasting speed = center + (speed - center) x between / (between + within)

`between` is the variance of the GPUs around their center beyond chance, `within` the variance of
the speed of one GPU over time. A plan that takes the fastest of many noisy speeds promises a gain
that it does not deliver: the fastest were fast by chance.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Floats


def lasting_speeds(speeds: Floats, within: Floats) -> Floats:
    """Return *speeds*, moved toward their median by chance. *within*: variances; NaN: unknown.

    A speed whose variance is not known counts as the median, because a single measurement does not
    show whether it lasts. If no variance is known, the speeds are returned unchanged. NaN speeds
    stay NaN.
    """
    known = np.isfinite(speeds) & np.isfinite(within)
    if np.count_nonzero(known) < 2:
        return speeds
    center = float(np.median(speeds[np.isfinite(speeds)]))
    between = max(float(speeds[known].var(ddof=1)) - float(within[known].mean()), 0.0)
    share = np.zeros(speeds.size)
    share[known] = 1.0
    noisy = known & (within > 0.0)
    share[noisy] = between / (between + within[noisy])
    return np.asarray(center + (speeds - center) * share)
