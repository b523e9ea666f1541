"""Count the tests of each real system: how many ran, and how many were skipped because the system is missing.

A test belongs to a system if the reason of a `skipif` mark, or of its own `pytest.skip`, matches the system's pattern.
A skip that matches no pattern fails: nobody would miss such a test. `.ci/run` sums the counts of its runs:
    python tests/real_systems.py COUNTS
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

#: Names the file to which a run of pytest appends one line of counts. Not for the runs that tests start.
VARIABLE = "GANGLINE_TEST_COUNTS"
COUNTS = os.environ.pop(VARIABLE, "")
#: Name of a system -> pattern of the reasons for which its tests are skipped. The first match counts.
SYSTEMS = {
    "Slurm": "Slurm is not installed|Slurm's plugin|liblua",
    "Kubernetes": "kube-apiserver|kubectl",
    "HTCondor": "Debian 13 with condor",
    "Ray": "Ray is not here",
    "NVIDIA's launcher": "NVIDIA's resiliency extension|Debian 13 with torch",
    "torch": "no torch:",
    "Lightning": "no Lightning:",
    "torchft": "no torchft:",
    "trackers (MLflow, W&B)": "no MLflow or W&B",
    "Prometheus": "promtool",
    "Helm": "helm-python-sdk|kubernetes-validate",
    "Ansible": "ansible-core",
    "DuckDB 2": "DuckDB|duckdb",
    "oldest dependencies": "install them",
    "built packages": "built packages",
    "built images": "built images|mmdebstrap$|iproute2",
    "a Debian that boots": "mmdebstrap systemd-container|can be made here|systemd-nspawn",
    "package tools (dpkg, rpm, lintian, gnupg)": "dpkg|rpm|lintian|gnupg|shtab",
    "systemd": "systemd-analyze",
    "DCGM": "host engine",
    "Linux: root, mounts, namespaces, FUSE, eBPF": (
        "root|mount|FUSE|virtual interfaces|user namespaces|dmesg_restrict|schedstat|C compiler|malloc|glibc"
    ),
    "the kernel's log": "kernel's log|/dev/kmsg|how many records|kernel log",
    "recordings of ../shared/data": r"shared/|recording|CONTRIBUTING\.md|catalogue",
    "CPUs to themselves": "not valid|CPU",
    "not applicable": "this executor moves no jobs|this scheduler has no weights|the stand-in has no|micro-batches",
}
UNNAMED = "the reason of a skip matches no row of SYSTEMS in tests/real_systems.py"
_PATTERNS = {name: re.compile(pattern) for name, pattern in SYSTEMS.items()}


def system_of(reason: str) -> str | None:
    """Return the system that the *reason* of a skip names; None if no pattern matches."""
    return next((name for name, pattern in _PATTERNS.items() if pattern.search(reason)), None)


# Hooks of pytest: tests/conftest.py imports them.


def pytest_itemcollected(item: pytest.Item) -> None:
    """Record the systems that the test needs, missing or not, in its reports."""
    for mark in item.iter_markers("skipif"):
        reason = str(mark.kwargs.get("reason", ""))
        name = system_of(reason)
        if name is None:
            raise ValueError(f"{item.nodeid}: {UNNAMED}: {reason}")
        item.user_properties.append(("real system", name))


def refuse_unnamed_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip whose reason matches no system into a failure."""
    reason = _reason(report)
    if reason is not None and system_of(reason) is None:
        report.outcome = "failed"
        report.longrepr = f"{UNNAMED}: {reason}"


def _reason(report: Any) -> str | None:
    """Return the reason if *report* is of a skip."""
    if not report.skipped or not isinstance(report.longrepr, tuple):
        return None
    return str(report.longrepr[2]).removeprefix("Skipped: ")


def counts(reports: Iterable[Any]) -> dict[str, dict[str, int]]:
    """Return system -> "ran" and "skipped" -> number of tests; "" counts all tests as "passed", "failed", "skipped"."""
    numbers: dict[str, Counter[str]] = {"": Counter(passed=0, failed=0, skipped=0)}
    for report in reports:
        if report.outcome == "passed" and report.when != "call":
            continue
        numbers[""][report.outcome] += 1
        names = {
            value for key, value in getattr(report, "user_properties", ()) if key == "real system"
        }
        if (reason := _reason(report)) is not None:
            names = {system_of(reason) or reason}
        for name in names:
            numbers.setdefault(name, Counter())["skipped" if reason is not None else "ran"] += 1
    return {name: dict(number) for name, number in numbers.items()}


def append_counts(path: Path, reports: Iterable[Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(counts(reports)) + "\n")


def summary(lines: Iterable[str]) -> Iterator[str]:
    """Yield the sums of the *lines* that `append_counts` wrote: a line per system in the order of SYSTEMS, then all tests."""
    sums: dict[str, Counter[str]] = {}
    for line in lines:
        for name, numbers in json.loads(line).items():
            sums.setdefault(name, Counter()).update(numbers)
    for name in SYSTEMS:
        if number := sums.get(name):
            yield f"{name}: {number['ran']} tests ran, {number['skipped']} skipped"
    total = sums.get("", Counter())
    yield f"tests: {total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped"


if __name__ == "__main__":
    print(*summary(Path(sys.argv[1]).read_text().splitlines()), sep="\n")
