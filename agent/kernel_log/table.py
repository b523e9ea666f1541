"""The table: every kind of line that becomes an event, in the order in which they are tried."""

from __future__ import annotations

import re
from itertools import groupby

from . import machine, network, nvidia, pcie, storage, tasks
from .notice import LINE_CHARACTERS_MAX, Notice, Rule

RULES: tuple[Rule, ...] = (
    *nvidia.RULES,
    *pcie.RULES,
    *machine.RULES,
    *network.RULES,
    *tasks.RULES,
    *storage.RULES,
)

#: Rules by the word that each of their lines holds: the mass of lines holds none, and is done with.
_BY_WORD: tuple[tuple[str, tuple[Rule, ...]], ...] = tuple(
    (word, tuple(rules)) for word, rules in groupby(RULES, lambda rule: rule.word)
)


#: Lines that the kernel begins with a process's name (at most 15 characters, TASK_COMM_LEN) and goes on
#: with a file's: a user chooses both, and with them made a line that passed for a driver's.
_OF_A_PROCESS = re.compile(
    r".{1,15}(?:\[\d{1,10}\]:? | \(\d{1,10}\)[: ]| invoked oom-killer: |: page allocation |: vmalloc )",
    re.DOTALL,
)


def classify(text: str) -> Notice | None:
    """Return what a line of the kernel's tells; None for the mass of lines. Never raises.

    The first rule that matches has it. Of a longer line only the beginning is looked at.
    """
    text = text[:LINE_CHARACTERS_MAX]
    for word, rules in _BY_WORD:
        if word in text:
            for each in rules:
                if (notice := each.read(text)) is not None:
                    return None if _OF_A_PROCESS.match(text) else notice
    return None
