"""Host sets in Slurm's notation, `gpu[001-128,200],head`, by ClusterShell's NodeSet.

Names are counted before expansion: `gpu[0-999999999]` is short but means a billion names. Groups
(`@rack1`) are not supported, because their definition depends on the machine.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import prod

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
from ClusterShell.RangeSet import RangeSet, RangeSetException

#: Default maximum of hosts in a set.
HOSTS_MAX = 100_000
_CHARACTERS = re.compile(r"[A-Za-z0-9._,!&^ \[\]/-]*")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?(?:/([1-9][0-9]{0,8}))?")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_OPERATORS = re.compile(r"[,!&^](?![^\[]*\])")
_EXPECTED = "expected host names, as gpu[001-016,020],head (letters, digits, '.', '_', '-')"


class HostSetError(ValueError):
    """A text is not a set of hosts; the message says why and what would be right."""


def expand_hosts(text: str, hosts_max: int = HOSTS_MAX) -> list[str]:
    """Return the distinct names of *text*, in order of its items; sorted if `!`, `&` or `^` occur.

    Raises HostSetError, for more than *hosts_max* names before any expansion.
    """
    if not _CHARACTERS.fullmatch(text):
        raise HostSetError(_EXPECTED)
    items = [item.strip() for item in _OPERATORS.split(text)]
    if not all(items) or any(" " in item for item in items):
        raise HostSetError(_EXPECTED)
    count = sum(map(_count, items))
    if count > hosts_max:
        raise HostSetError(f"{count:,} hosts, expected at most {hosts_max:,}")
    if not re.search("[!&^]", text):
        return list(dict.fromkeys(name for item in items for name in _expand(item)))
    return list(_expand(text))


def _count(item: str) -> int:
    """Return the maximum number of names in *item*. Raises HostSetError for a malformed bracket."""
    brackets = _BRACKET.findall(item)
    if "[" in (rest := _BRACKET.sub("", item)) or "]" in rest:
        raise HostSetError("a bracket without its other half: expected a range as gpu[001-016]")
    if "/" in rest:
        raise HostSetError(_EXPECTED)
    return prod(sum(map(_range_count, bracket.split(","))) for bracket in brackets)


def _range_count(text: str) -> int:
    match = _RANGE.fullmatch(text.strip())
    if not match:
        raise HostSetError(f"[{text[:20]}] is not a range: expected numbers as [001-016,020]")
    first, last = match[1], match[2] or match[1]
    padded = any(len(number) > 1 and number.startswith("0") for number in (first, last))
    if int(last) < int(first) or (padded and len(first) != len(last)):
        raise HostSetError(
            f"[{text[:20]}]: expected the lower number first, both with as many digits where there are leading zeros, as [001-016]"
        )
    return (int(last) - int(first)) // int(match[3] or 1) + 1


def _expand(text: str) -> Iterator[str]:
    if not re.search(r"[\[!&^]", text):
        yield text
        return
    try:
        yield from NodeSet(text, resolver=RESOLVER_NOGROUP)
    except (
        NodeSetException,
        RangeSetException,
        ValueError,  # thousands of digits in a name
        AssertionError,  # a number too large, from a bracket and adjacent digits
        LookupError,
        TypeError,
        OverflowError,
    ) as error:
        raise HostSetError(f"{str(error)[:200]}; {_EXPECTED}") from error


def fold_hosts(names: Iterable[str]) -> str:
    """Return *names* as `gpu-[001-029,031],head`. Only trailing numbers are folded."""
    numbers: dict[str, list[str]] = defaultdict(list)
    items = set[str]()
    for name in names:
        match = re.fullmatch(r"(.*?[^0-9])([0-9]{1,9})", name)
        if match is None:
            items.add(name)
        else:
            numbers[match[1]].append(match[2])
    for prefix, suffixes in numbers.items():
        folded = RangeSet.fromlist(suffixes)
        items.add(f"{prefix}[{folded}]" if len(folded) > 1 else f"{prefix}{folded}")
    return ",".join(sorted(items))
