"""How other tools act on an XID, with the source of that knowledge. The table is `xid_tools.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Other:
    """What one tool does on a code."""

    tool: str
    words: str
    source: str


@cache
def _tools() -> list[dict[str, Any]]:
    text = Path(__file__).with_name("xid_tools.toml").read_text(encoding="utf-8")
    tools: list[dict[str, Any]] = tomllib.loads(text)["tool"]
    return tools


def others(code: int) -> list[Other]:
    """Return what other tools do on XID *code*; a tool of which nothing is known is left out."""
    found = []
    for tool in _tools():
        said = [says["words"] for says in tool["says"] if code in says["codes"]]
        if words := (said[0] if said else tool.get("default", "")):
            found.append(Other(tool["name"], words, tool["source"]))
    return found


def known_codes() -> set[int]:
    """Return every code that a tool is said to act on."""
    return {code for tool in _tools() for says in tool["says"] for code in says["codes"]}
