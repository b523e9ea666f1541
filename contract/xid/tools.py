"""Actions of other tools at an XID, with the source of that knowledge (xid_tools.toml)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolAction:
    """Reaction of a tool to a code."""

    tool: str
    message: str
    source: str


@cache
def _tools() -> list[dict[str, Any]]:
    text = Path(__file__).with_name("xid_tools.toml").read_text(encoding="utf-8")
    tools: list[dict[str, Any]] = tomllib.loads(text)["tool"]
    return tools


def tool_actions(code: int) -> list[ToolAction]:
    """Return the reactions of other tools to XID *code*; tools without a known policy are left out."""
    found = []
    for tool in _tools():
        texts = [text for text, codes in tool["actions"].items() if code in codes]
        if text := (texts[0] if texts else tool.get("default", "")):
            found.append(ToolAction(tool["name"], text, tool["source"]))
    return found
