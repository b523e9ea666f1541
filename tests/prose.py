"""Finds sentences in docstrings and comments that make a reader stumble, by their constructions.

Each pattern is a construction that our own reviews found hard to read. A match is an indicator: about one in seven is
good English, and sentences without a match may still be bad. `python -m tests.prose FOLDER` lists the matches.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_START = r"(?:^|(?<=[.:;] ))"
_PREPOSITION = r"(?:of|by|with|from|to|for|in|on|at|than)"
_BE = r"(?:is|are|was|were|be)"
_PATTERNS = {
    name: re.compile(pattern)
    for name, pattern in {
        "what": rf"\b{_PREPOSITION} what (?!if\b|happens\b|to\b)|{_START}(?:Return |Yield |Keep )?[Ww]hat \w",
        "who": rf"{_START}[Ww]ho(?:ever|se)?\b|\b(?:{_PREPOSITION}|and|or|one|those|anyone|nobody|all) whom?\b",
        "leading preposition": rf"{_START}(?:Of (?!course)|Beside |Lest |Where (?!possible|available|applicable|supported))\w",
        "bare pronoun": rf"\b(?:one|none|that) (?:that|which|without)\b|{_START}(?:One|Those|Others|All) (?:that|which|{_BE})\b",
        "so many": r"\b[Ss]o (?:many|few|often|soon|little)\b|\bas (?:many|much|often) as\b|\bno more[.;:)]",
        "odd verb": r"\b(?:stands?|stood|bears?|bore|befalls?|tells?|told|spoke|hears?|heard)\b(?! (?:for|apart))",
        "causative": rf"{_START}(?:Have|Let) \w",
        "denied noun": rf"\b{_BE} (?:none|nobody|nothing|neither)\b(?! (?:to|left))|: (?:it|they) (?:is|does|has)[.;)]",
        "person": r"\b(?:he|him|his|nobody|somebody|anybody|everybody|ourselves)\b",
        "words": r"\b(?:its|the|own|with|in|few) words?\b|\ba word\b|\bsays? so\b",
        "be and an adverb": rf"\b{_BE} (?:whole|well|there|at hand)(?=[,.;:)]|$)",
        "of now": r"\bof (?:now|before|then|ours|theirs|old|late)\b|\bfrom (?:now|then|here) on\b",
        "archaic": r"\b(?:lest|anew|hence|thereby|whence|grave|graver|hitherto|ere|amiss|for ever|but for|at odds)\b",
        "is to": rf"\b{_BE} to (?:be|have|do|go|know|say|wait|come|stay|run)\b",
        "hanging": r"\b(?:what|that|which|they|who|where|none|is|are)\b[^.;:]*\b(?:of|by|from|than|beside)(?=[.;)]|$)",
    }.items()
}
_CODE = re.compile(r"``[^`]*``|`[^`\n]*`|https?://\S+|\"[^\"\n]{1,120}\"")
_SENTENCE_END = re.compile(r"(?<=[.!?]) +(?=[A-Z*`(])|\n")
#: A docstring, a run of lines with only a comment, or a comment behind code.
_TEXT = re.compile(
    r'(?:\A|:[^\n"]*\n)[ \t]*"""(?P<docstring>.*?)"""'
    r"|^(?P<comment>(?:[ \t]*#[^\n]*\n)+)|  # (?P<behind>[^\n\"']*)$",
    re.MULTILINE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"(?:noqa|type:|fmt:|pragma|pyright|distutils|cython:|!|-{5,})")


class Stumble(NamedTuple):
    """A sentence with a construction that is hard to read."""

    path: Path
    line: int
    construction: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.construction}: {self.sentence}"


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring and comment: a line for each paragraph and list item."""
    for match in _TEXT.finditer(source):
        lines = [line.lstrip("#: ") for line in match[match.lastgroup or 0].splitlines()]
        text = ""
        for line in map(str.strip, lines):
            if not _DIRECTIVE.match(line):
                is_item = line.startswith(("- ", "* "))
                text += ("\n" if not line or is_item else " ") + (line[2:] if is_item else line)
        yield source.count("\n", 0, match.start()) + 1, text.strip()


def stumbles_in(source: str, path: Path = Path()) -> tuple[list[Stumble], int]:
    """Return the sentences of *source* that have a match, once each, and its number of words."""
    result, words = list[Stumble](), 0
    for line, text in texts(source):
        words += len(text.split())
        for sentence in _SENTENCE_END.split(text):
            blanked = _CODE.sub("x", sentence)
            for name, pattern in _PATTERNS.items():
                if pattern.search(blanked):
                    result.append(Stumble(path, line, name, sentence))
                    break
    return result, words


def stumbles(path: Path) -> tuple[list[Stumble], int]:
    """Return the same of a file."""
    return stumbles_in(path.read_text(), path)


def main() -> None:
    """List the matches in the files and folders that are named, and their number per 1,000 words."""
    found, words = list[Stumble](), 0
    for name in sys.argv[1:]:
        folder = Path(name)
        if not folder.exists():
            sys.exit(f"{name}: no such file or folder")
        for path in [folder] if folder.is_file() else sorted(folder.rglob("*.py*")):
            if path.suffix in (".py", ".pyx", ".pxd") and "_pb2" not in path.name:
                stumbling, count = stumbles(path)
                found += stumbling
                words += count
    print(*found, sep="\n")
    print(f"{len(found)} in {words} words: {1000 * len(found) / max(words, 1):.1f} per 1,000")


if __name__ == "__main__":
    main()
