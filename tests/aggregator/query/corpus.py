"""The hostile corpus: `tests/aggregator/hostile/*.sql`, whose README says how it is written."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "hostile"
_HEAD = re.compile(r"^--# (.+?) -> (refused|cut rows|cut|answered):? ?(.*)$", re.MULTILINE)
_MANY = re.compile(r"\{\{('.*?') \* (\d+)\}\}")


@dataclass(frozen=True)
class Statement:
    name: str
    outcome: str
    message: str
    sql: str


def statements(file: str) -> list[Statement]:
    parts = _HEAD.split((FOLDER / file).read_text())
    assert not parts[0].strip(), f"{file}: begins with no head"
    heads = zip(*(parts[index::4] for index in (1, 2, 3, 4)), strict=True)
    return [
        Statement(name, what, expected, _many(sql.strip("\n")))
        for name, what, expected, sql in heads
    ]


def _many(sql: str) -> str:
    def repeated(match: re.Match[str]) -> str:
        text, count = ast.literal_eval(match[1]), int(match[2])
        if "%d" in text:
            return "".join(text % number for number in range(count))
        return str(text * count)

    return _MANY.sub(repeated, sql)
