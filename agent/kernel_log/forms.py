"""The distinct forms of a storm's lines: the lines without their numbers, few kept, more counted."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Forms kept in words, as of HealthEvent.forms.
FORMS_MAX = 32
#: Distinct forms are told apart up to here; a count that stands there means "or more".
FORMS_COUNTED_MAX = 256
FORM_CHARACTERS_MAX = 120

#: Numbers, hexadecimal or not, alone or at the end of a word (`GPC2`).
_NUMBERS = re.compile(
    r"0x[0-9a-fA-F]+|(?<![0-9A-Za-z])[0-9a-fA-F]*[0-9][0-9a-fA-F]*(?![0-9A-Za-z])|[0-9]+"
)


def form_of(text: str) -> str:
    """Return the line with `#` for each number, cut to FORM_CHARACTERS_MAX."""
    return _NUMBERS.sub("#", text[: 4 * FORM_CHARACTERS_MAX])[:FORM_CHARACTERS_MAX]


class Forms:
    """The forms seen so far. Bounded, however many lines and forms there are."""

    __slots__ = ("_hashes", "count", "words")

    def __init__(self, words: Iterable[str] = (), count: int = 0) -> None:
        """Take up what was kept: *count* may be more than there are words."""
        self.words: list[str] = list(words)[:FORMS_MAX]
        self._hashes = {hash(form) for form in self.words}
        self.count = max(count, len(self.words))

    def add(self, text: str) -> None:
        """Note the form of a line."""
        form = form_of(text)
        key = hash(form)
        if key in self._hashes or self.count >= FORMS_COUNTED_MAX:
            return
        self._hashes.add(key)
        self.count += 1
        if len(self.words) < FORMS_MAX:
            self.words.append(form)
