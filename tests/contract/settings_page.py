"""`python -m tests.contract.settings_page`: prints all settings as the page docs/settings.md."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gangline.agent.config import AgentConfig
from gangline.aggregator.config import SETTINGS_BY_TASK, AggregatorConfig
from gangline.contract.settings import default_and_range, settings_of
from gangline.executors.command import SITES
from gangline.executors.settings import ExecutorConfig

_HEAD = """# Settings

`python -m tests.contract.settings_page > docs/settings.md` writes this page. Each program reads a TOML file (`--config
FILE`) and `--set KEY=VALUE`, which wins. A wrong key, type or range ends the start with exit code 2, and the error names
the valid form. `--help-settings` of each program prints its part of this page. The agent applies a changed file at
`systemctl reload`.

A value that no operator can choose better than Gangline is a constant: batch sizes, credits, limits of caches. A key
that was a setting before is ignored with a warning ([stability](stability.md#settings-that-became-constants)).
"""
#: Title, dataclass, and headings of its settings; without headings they are in one table.
PROGRAMS: Sequence[tuple[str, type[Any], Mapping[str, Sequence[str]]]] = (
    ("The aggregator: `gangline aggregator`", AggregatorConfig, SETTINGS_BY_TASK),
    ("The agent: `gangline agent`", AgentConfig, {}),
    ("Executors: `gangline executor SCHEDULER`", ExecutorConfig, {}),
)


def all_kinds() -> list[type[Any]]:
    """Return the settings of every program and scheduler."""
    return [AggregatorConfig, AgentConfig, *dict.fromkeys(kind for _, kind in SITES.values())]


def page() -> str:
    lines = [_HEAD]
    for title, kind, tasks in PROGRAMS:
        fields = {field.name: field for field in settings_of(kind)}
        lines.append(f"\n## {title}")
        for task, names in (tasks or {"": tuple(fields)}).items():
            if task:
                lines.append(f"\n### {task[0].upper()}{task[1:]}")
            lines += _table(fields[name] for name in names)
    known = {field.name: field for field in settings_of(ExecutorConfig)}
    for scheduler, (_, kind) in SITES.items():
        own = [
            field
            for field in settings_of(kind)
            if field.name not in known or field.default != known[field.name].default
        ]
        if own:
            lines += [f"\n### Of `{scheduler}`, or with another default", *_table(own)]
    return "\n".join(lines) + "\n"


def _table(fields: Iterable[dataclasses.Field[Any]]) -> Iterator[str]:
    yield "\n| setting | default (range) | meaning |\n|---|---|---|"
    for field in fields:
        meaning = field.metadata["says"].replace("|", "\\|")
        default = default_and_range(field).replace("|", "\\|")
        yield f"| `{field.name}` | `{default}` | {meaning} |"


if __name__ == "__main__":
    print(page(), end="")
