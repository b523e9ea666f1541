"""Which signals the judge's rules read, taken from the rules' source text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from gangline.contract.signals import TABLES

RULES = Path(__file__).parents[2] / "aggregator" / "scoring" / "rules"
#: What may be the name of a table or a column; `*` stands for what is put in at run time.
_NAME = re.compile(r"[a-z0-9_*]+")
#: So many characters of a pattern must be its own: `*_*` is nobody's name.
_OWN_CHARACTERS_MIN = 3


def signals_read() -> set[str]:
    """Return the names of all signals that a rule names: a table and a column in one file."""
    found: set[str] = set()
    for file in RULES.glob("*.py"):
        names = set(_names(ast.parse(file.read_text())))
        tables = {table for table in TABLES if _is_named(table, names)}
        found |= {
            signal.name
            for table in tables
            for signal in TABLES[table]
            if _is_named(signal.column, names)
        }
    return found


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "*" for part in node.values]
            yield from _candidates("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _candidates(node.value)


def _candidates(text: str) -> Iterator[str]:
    """Yield the names in *text*, which may be a list of columns for a query."""
    for word in text.replace("{}", "*").split(","):
        name = word.strip()
        own = len(name) - name.count("*")
        if _NAME.fullmatch(name) and own >= _OWN_CHARACTERS_MIN:
            yield name


def _is_named(name: str, patterns: set[str]) -> bool:
    return any(name == p or ("*" in p and fnmatchcase(name, p)) for p in patterns)
