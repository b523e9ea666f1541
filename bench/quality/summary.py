"""First section of the page, for users: its main figures, taken from the text of the other
sections.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import median

TITLE = "## In brief"
HEAD = f"""{TITLE}

Simulated figures only show that rules read the signatures of our own model of a fleet. The tables with their
intervals, baselines and negative controls follow. Stragglers and fingerprints are in [jobs](quality_jobs.md), placement
and recovery in [placement](quality_placement.md).

| question | data | answer |
|---|---|---|"""
_ABSENT = "not on this page"
_COUNTED = re.compile(r"(\d+) of (\d+)")


def with_summary(page: str) -> str:
    """Return *page* with the summary of its sections before the first section.

    An existing summary is replaced.
    """
    head, *sections = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    sections = [section for section in sections if not section.startswith(TITLE)]
    return "".join([head, summary({_title(section): section for section in sections}), *sections])


def summary(sections: dict[str, str]) -> str:
    """Return the answers to a user's questions. *sections*: title -> text; some may be missing."""
    injected, simulated = sections.get("Injected", ""), sections.get("Simulated", "")
    rows = [
        ("Is a fault named, with the right device and reason?", "injected into real processes", _named(injected, "injected")),
        ("How soon?", "injected", _delays(injected)),
        ("Is a healthy host named?", "injected", _named(injected, "control")),
        ("Which share of faults is found?", "simulated", _bullet(simulated, "Found")),
        ("How often would a healthy host be drained?", "simulated", _drains(_bullet(simulated, "False drains"))),
        ("Is a host blamed that only waits for another?", "simulated", _bullet(simulated, "Victims blamed")),
        ("Does a shared cause become one advisory?", "simulated", _bullet(simulated, "Shared causes").partition(";")[0]),
        ("What is found in recordings of healthy hosts?", "real", _captures(sections.get("Real: logs, sysfs, captures", ""))),
        ("Does the hazard predict which host fails next?", "real", _hazard(sections.get("Real: hazard", ""))),
    ]  # fmt: skip
    answers = "\n".join(f"| {question} | {data} | {answer or _ABSENT} |" for question, data, answer in rows)  # fmt: skip
    return f"{HEAD}\n{answers}\n\n"


def _title(section: str) -> str:
    return section.partition("\n")[0].removeprefix("## ").strip()


def _rows(section: str, first_column: str) -> Iterator[Sequence[str]]:
    lines = iter(section.splitlines())
    for line in lines:
        if line.startswith("|") and line.split("|")[1].strip() == first_column:
            next(lines, "")
            for row in lines:
                if not row.startswith("|"):
                    return
                yield [cell.strip() for cell in row.split("|")[1:-1]]


def _named(section: str, first_column: str) -> str:
    """Return the share of all rounds that were named, and the number of kinds."""
    counts = [
        (int(found[1]), int(found[2]))
        for cells in _rows(section, first_column)
        if (found := _COUNTED.match(cells[2]))
    ]
    if not counts:
        return ""
    named, total = (sum(column) for column in zip(*counts, strict=True))
    return f"{named} of {total} rounds of {len(counts)} kinds"


def _delays(section: str) -> str:
    seconds = {cells[0]: float(cells[4]) for cells in _rows(section, "injected") if len(cells) > 5}
    if not seconds:
        return ""
    slowest = max(seconds, key=lambda kind: seconds[kind])
    return (
        f"median over the kinds {median(seconds.values()):.1f} s from the fault to the API's answer; slowest {seconds[slowest]:.0f} s "
        f"({slowest})"
    )


def _bullet(section: str, name: str) -> str:
    """Return the simulated section's short text about *name*, without the name."""
    result = re.search(rf"^- \*\*{name}\*\*:? ?(.*(?:\n  .*)*)", section, flags=re.MULTILINE)
    return " ".join(result[1].split()).removeprefix("in ") if result else ""


def _drains(text: str) -> str:
    result = re.search(
        r"(\d+) seen in ([\d,]+) node-days, (\S+ \[.+?\]) a 1,000; the budget is (\S+)\. \*\*(.+?)\*\*",
        text,
    )
    if not result:
        return ""
    count, days, rate, budget, verdict = result.groups()
    return f"{count} in {days} node-days, {rate} per 1,000; budget {budget}: {verdict[0].lower()}{verdict[1:]}"


def _captures(section: str) -> str:
    result = re.search(r"\*\*(.+? false findings?)\*\* in ([\d.]+ host-hours)", section)
    return f"{result[1]} in {result[2]}: too few hours to show how rare they are" if result else ""


def _hazard(section: str) -> str:
    """Return the AUC of the model and of its control, and whether withholding a host pays off."""
    model = next((cells for cells in _rows(section, "ranking") if cells[0] == "model"), None)
    control = re.search(r"AUC ([\d.]+ \[[\d., ]+\]), recall", section)
    if model is None or control is None:
        return ""
    return f"weakly: AUC {model[1]}, where faults given to random hosts have {control[1]}; holding back the worst 2 % saves {model[7]} node-hours a week"
