"""Gradient-boosted trees as plain arrays: exported from scikit-learn, served by numpy alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indexes = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]

#: Limits of a forest that is read from a file: larger ones were not written by the training.
TREES_MAX, NODES_MAX, DEPTH_MAX = 512, 1 << 14, 16
_INDEXES, _NUMBERS = ("roots", "feature", "left", "right"), ("threshold", "value")
_HUGE = float(np.finfo(np.float64).max)


class ForestError(ValueError):
    """The arrays are not a forest."""


class Forest(NamedTuple):
    """Sum of `baseline` and of a value of each tree.

    A node goes left if its feature is at most its threshold; a missing feature goes left if `missing_go_left`. A leaf
    is its own left and right child. `roots`: the first node of each tree; `depth`: the longest path.
    """

    baseline: float
    roots: Indexes
    feature: Indexes
    threshold: Floats
    left: Indexes
    right: Indexes
    value: Floats
    missing_go_left: Flags
    depth: int

    def predict(self, features: Floats) -> Floats:
        """Return the value of each row of *features* (rows, features); NaN: missing."""
        if not self.roots.size:
            return np.full(len(features), self.baseline)
        rows, count = features.shape
        # A missing feature is -inf for the nodes that send it left, and +inf for the others.
        is_missing = np.isnan(features)
        finite = np.clip(features, -_HUGE, _HUGE)
        columns = np.empty((rows, 2 * count))
        columns[:, :count] = np.where(is_missing, np.inf, finite)
        columns[:, count:] = np.where(is_missing, -np.inf, finite)
        flat = columns.ravel()
        column = self.feature + np.where(self.missing_go_left, count, 0)
        children = np.stack([self.left, self.right], axis=1).ravel()
        start = (np.arange(rows) * (2 * count))[:, None]
        node = np.broadcast_to(self.roots, (rows, self.roots.size))
        for _ in range(self.depth):
            goes_right = flat[start + column[node]] > self.threshold[node]
            node = children[2 * node + goes_right]
        return np.asarray(self.baseline + self.value[node].sum(axis=1))

    def columns(self) -> dict[str, Any]:
        """Return the forest in the form that `decode_forest` reads."""
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in self._asdict().items()
        }


def decode_forest(columns: dict[str, Any], features: int) -> Forest:
    """Return the forest that `Forest.columns` gave. Raises ForestError if a node leads outside of the arrays."""
    try:
        roots, feature, left, right = (np.array(columns[name], dtype=np.intp) for name in _INDEXES)
        threshold, value = (np.array(columns[name], dtype=np.float64) for name in _NUMBERS)
        goes_left = np.array(columns["missing_go_left"], dtype=np.bool_)
        baseline, depth = float(columns["baseline"]), int(columns["depth"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ForestError(f"not a forest: {error!r}; train the model again") from None
    forest = Forest(baseline, roots, feature, threshold, left, right, value, goes_left, depth)
    nodes = forest.feature.size
    if forest.roots.size > TREES_MAX or nodes > NODES_MAX or not 0 <= forest.depth <= DEPTH_MAX:
        raise ForestError(
            f"not a forest: {forest.roots.size} trees, {nodes} nodes, depth {forest.depth}; "
            f"at most {TREES_MAX}, {NODES_MAX} and {DEPTH_MAX}"
        )
    by_node = (forest.threshold, forest.left, forest.right, forest.value, forest.missing_go_left)
    if any(array.shape != (nodes,) for array in (forest.feature, *by_node)):
        raise ForestError("not a forest: its arrays differ in length; train the model again")
    limits = ((forest.roots, nodes), (forest.left, nodes), (forest.right, nodes))
    for array, limit in (*limits, (forest.feature, features)):
        if array.ndim != 1 or ((array < 0) | (array >= limit)).any():
            raise ForestError(f"not a forest: an index is outside of 0 to {limit - 1}")
    if not all(np.isfinite(array).all() for array in (forest.threshold, forest.value)):
        raise ForestError("not a forest: a threshold or a value is not a finite number")
    return forest
