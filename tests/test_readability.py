"""A stranger can read the code: plain sentences, no banners, constants above the functions, no import cycles."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import prose

ROOT = Path(__file__).parent.parent
#: part -> stumbling sentences per 1,000 words, at most
STUMBLES_MAX = {
    "agent": 5.0, "aggregator": 5.0, "contract": 5.0, "ext": 5.0, "fingerprints": 5.0, "simulator": 5.0,
    "packaging": 5.0, "bench": 10.0, "tests": 10.0,
}  # fmt: skip
_BANNER = re.compile(r"^\s*# ?(?:[-=]{3,}|\w[^\n]* [-=]{8,}$)", re.MULTILINE)
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*|_?log")
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def sources(part: str) -> list[Path]:
    return [
        path
        for path in sorted((ROOT / part).rglob("*.p*"))
        if path.suffix in (".py", ".pyx", ".pxd") and "_pb2" not in path.name
    ]


@pytest.mark.parametrize("part", STUMBLES_MAX)
def test_docstrings_and_comments_are_plain(part: str) -> None:
    """A native engineer read half of our docstrings twice. `python -m tests.prose FOLDER` lists the sentences."""
    results = [prose.stumbles(path) for path in sources(part)]
    stumbles = [stumble for found, _ in results for stumble in found]
    rate = 1000 * len(stumbles) / sum(words for _, words in results)
    assert rate <= STUMBLES_MAX[part], "\n".join(map(str, stumbles[:20]))


def test_a_stumbling_sentence_is_found() -> None:
    """The check finds the constructions, and no others: it is compared with the same sentences in plain English."""
    hard = '"""Return what is known of it.\n\nOf an earlier boot only its clock tells."""\n#: One that is gone.\n'
    plain = '"""Return the facts.\n\nReadings of an earlier boot have a wall-clock time."""\n#: A child that exited.\n'
    assert [len(prose.stumbles_in(text)[0]) for text in (hard, plain)] == [3, 0]


@pytest.mark.parametrize("part", STUMBLES_MAX)
def test_no_module_has_banners(part: str) -> None:
    """A banner divides a module that holds several concepts: each belongs to a module of its own."""
    assert [str(path) for path in sources(part) if _BANNER.search(path.read_text())] == []


@pytest.mark.parametrize("part", STUMBLES_MAX)
def test_constants_are_above_the_first_function(part: str) -> None:
    """A reader looks for the limits of a module at its top; only those built from its own classes are below these."""
    late = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources(part)
        if path.suffix == ".py"
        for name in late_constants(ast.parse(path.read_text()))
    ]
    assert late == []


def late_constants(module: ast.Module) -> Iterator[str]:
    """Yield the constants and loggers below the first definition that need nothing defined in the module."""
    defined = set[str]()
    for statement in module.body:
        if isinstance(statement, _Definition):
            defined.add(statement.name)
        elif defined and isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = {
                node.id
                for target in targets
                for node in ast.walk(target)
                if isinstance(node, ast.Name)
            }
            used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)} - names
            if used & defined:
                defined |= names
            else:
                yield from (name for name in names if _CONSTANT.fullmatch(name))
