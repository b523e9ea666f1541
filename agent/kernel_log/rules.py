"""All rules for kernel log lines, in the order of evaluation."""

from __future__ import annotations

import re
from itertools import groupby

from .amdgpu_rules import AMDGPU_RULES
from .gpu_rules import NVIDIA_RULES
from .machine_rules import MACHINE_RULES
from .network_rules import NETWORK_RULES
from .pcie_rules import PCIE_RULES
from .record import LINE_CHARACTERS_MAX, LineRule, ParsedLine
from .storage_rules import STORAGE_RULES
from .task_rules import TASKS_RULES

#: Every kind of line that becomes an event, in the order of evaluation.
RULES: tuple[LineRule, ...] = (
    *NVIDIA_RULES,
    *AMDGPU_RULES,
    *PCIE_RULES,
    *MACHINE_RULES,
    *NETWORK_RULES,
    *TASKS_RULES,
    *STORAGE_RULES,
)

#: Rules by their substring: most lines contain none and are skipped quickly.
_BY_SUBSTRING: tuple[tuple[str, tuple[LineRule, ...]], ...] = tuple(
    (word, tuple(rules)) for word, rules in groupby(RULES, lambda rule: rule.substring)
)


#: Lines that begin with a process's name (at most 15 characters, TASK_COMM_LEN), often followed by
#: a file's. A user chooses both, and could imitate a driver's line.
_OF_A_PROCESS = re.compile(
    r".{1,15}(?:\[\d{1,10}\]:? | \(\d{1,10}\)[: ]| invoked oom-killer: |: page allocation |: vmalloc )",
    re.DOTALL,
)


def classify(text: str) -> ParsedLine | None:
    """Return the parsed line of the first matching rule; None for most lines. Never raises.

    Only the first LINE_CHARACTERS_MAX characters are examined.
    """
    text = text[:LINE_CHARACTERS_MAX]
    for substring, rules in _BY_SUBSTRING:
        if substring in text:
            for line_rule in rules:
                if (parsed := line_rule.read(text)) is not None:
                    return None if _OF_A_PROCESS.match(text) else parsed
    return None


def why_ignored(text: str) -> str:
    """Return why `classify` ignores a line, for an operator."""
    text = text[:LINE_CHARACTERS_MAX]
    near = [word.strip() for word, _ in _BY_SUBSTRING if word in text]
    if _OF_A_PROCESS.match(text) and near:
        return "it begins with the name of a process, which a user chooses, so that a user could have written the rest too"
    if near:
        return f"rules exist for lines with {near[0]!r}, and none for these words: they are not known to tell of a fault"
    return "no rule is about such lines: they are not known to tell of a fault of the host"
