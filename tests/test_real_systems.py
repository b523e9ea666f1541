"""No skipped test goes unnoticed: each is counted for the system whose absence skipped it."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import real_systems

HERE = Path(__file__).parent


def report(outcome: str, when: str = "call", reason: str = "", *systems: str) -> SimpleNamespace:
    return SimpleNamespace(
        outcome=outcome,
        when=when,
        skipped=outcome == "skipped",
        longrepr=("test_x.py", 1, f"Skipped: {reason}"),
        user_properties=[("real system", name) for name in systems],
    )


def literal(value: ast.expr, module: ast.Module) -> str | None:
    """Return the text of a string, of a module's constant, and the constant parts of an f-string; None if it is computed."""
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(literal(part, module) or "" for part in parts)
        case ast.FormattedValue(value=inner) | ast.Call(args=[inner]):
            return literal(inner, module)
        case ast.Name(id=name) if name.isupper():
            for node in module.body:
                if isinstance(node, ast.ImportFrom) and name in [
                    alias.asname or alias.name for alias in node.names
                ]:
                    return str(getattr(importlib.import_module(node.module or ""), name))
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                    return literal(node.value, module)
    return None


def reasons_of_skips() -> Iterator[tuple[str, str]]:
    """Yield where and why tests call `pytest.skip` with a literal reason."""
    for path in sorted(HERE.rglob("*.py")):
        text = path.read_text()
        if "pytest.skip(" not in text:
            continue
        module = ast.parse(text)
        for node in ast.walk(module):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "pytest.skip":
                continue
            if reason := literal(node.args[0], module):
                yield f"{path.relative_to(HERE)}:{node.lineno}", reason


def test_each_reason_of_a_skip_names_a_system() -> None:
    """On the machine that lacks a system the run must name the gap; it must not fail for an unnamed reason."""
    found = dict(reasons_of_skips())
    assert len(found) > 40
    assert {
        place: reason for place, reason in found.items() if real_systems.system_of(reason) is None
    } == {}


def test_an_unnamed_skip_fails() -> None:
    """A skip that no line counts hides a test for years."""
    unnamed, named = (
        report("skipped", "setup", "no reason"),
        report("skipped", "setup", "no torch: x"),
    )
    for skip in (unnamed, named):
        real_systems.refuse_unnamed_skip(skip)  # type: ignore[arg-type]
    assert (unnamed.outcome, named.outcome) == ("failed", "skipped")
    assert unnamed.longrepr == f"{real_systems.UNNAMED}: no reason"


def test_the_counts_of_two_runs_are_summed(tmp_path: Path) -> None:
    """The closing lines of CI say how many tests of each system ran."""
    path = tmp_path / "counts"
    quick = [
        *(report("passed", when, "", "Slurm") for when in ("setup", "call", "teardown")),
        report("failed", "setup", "", "Slurm"),
        report("skipped", "setup", "Ray is not here: make it", "Ray"),
        report("skipped", "call", "needs root", "Kubernetes"),
    ]
    real_systems.append_counts(path, quick)
    real_systems.append_counts(path, [report("passed", "call", "", "Ray"), report("passed")])
    assert list(real_systems.summary(path.read_text().splitlines())) == [
        "Slurm: 2 tests ran, 0 skipped",
        "Ray: 1 tests ran, 1 skipped",
        "Linux: root, mounts, namespaces, FUSE, eBPF: 0 tests ran, 1 skipped",
        "tests: 3 passed, 1 failed, 2 skipped",
    ]


def test_a_mark_without_a_named_system_stops_the_collection(pytester_item: SimpleNamespace) -> None:
    """The reason of a `skipif` is known before its system is missing."""
    with pytest.raises(ValueError, match="matches no row of SYSTEMS"):
        real_systems.pytest_itemcollected(pytester_item)  # type: ignore[arg-type]


@pytest.fixture
def pytester_item() -> SimpleNamespace:
    """Stand in for a test with an unnamed reason."""
    marks = [pytest.mark.skipif(False, reason="no reason").mark]
    return SimpleNamespace(nodeid="x", user_properties=[], iter_markers=lambda _: marks)
