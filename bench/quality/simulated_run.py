"""All scores of a run, in the form that the tables need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.quality.simulated_kinds import CaseFinding, Score
from gangline.simulator.scenario import FaultClass

#: A class with a smaller share of named causes is called "not detected".
DETECTED_RATIO = 0.5


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """The data of the page."""

    scenario: str
    seed: int
    per_class: int
    hours: int
    hosts: int
    days: float
    classes: tuple[FaultClass, ...]  # classes that may occur
    scores: tuple[Score, ...]
    node_days: float  # of the world, without absent hosts

    def sampled(self) -> list[Score]:
        """Return the hours of the whole fleet."""
        return [score for score in self.scores if not score.class_name]

    def fault_scores(self) -> list[Score]:
        """Return the episodes around causes."""
        return [score for score in self.scores if score.class_name]

    def of_sort(self, sort: str) -> Iterator[tuple[FaultClass, list[Score]]]:
        """Yield each class of *sort* with its episodes."""
        for fault_class in self.classes:
            if fault_class.sort == sort:
                yield (
                    fault_class,
                    [score for score in self.scores if score.class_name == fault_class.name],
                )

    def faults(self) -> Iterator[tuple[FaultClass, list[CaseFinding]]]:
        """Yield each class of faults with the results of its causes."""
        for fault_class, scores in self.of_sort("faults"):
            yield fault_class, [score.found for score in scores if score.found]


def is_missed(found: Sequence[CaseFinding]) -> bool:
    """Return whether a class is not detected."""
    return bool(found) and sum(bool(finding.rule) for finding in found) < DETECTED_RATIO * len(
        found
    )
