"""Host patterns: names and ranges match exactly the hosts that the operator wrote."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.declared.host_placement import HostPlacement
from gangline.aggregator.declared.patterns import HostPattern, parse_host_pattern
from gangline.aggregator.declared.selection import Selection, SelectionIndex

WORDS = st.text(string.ascii_lowercase + "-", max_size=6)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[str, set[str]]:
    """Draw a bracket, and the numbers in it as they are written."""
    first = draw(st.integers(0, 60))
    last = draw(st.integers(first, 70))
    digits = draw(st.sampled_from((1, 3)))
    names = {f"{number:0{digits}d}" for number in range(first, last + 1)}
    return f"[{first:0{digits}d}-{last:0{digits}d}]", names


@given(WORDS, ranges(), WORDS, ranges())
def test_a_range_means_its_hosts_and_no_others(
    before: str, one: tuple[str, set[str]], between: str, other: tuple[str, set[str]]
) -> None:
    """A window for gpu-[001-016] must not drain gpu-017 or gpu-1."""
    between = f"-{between}"  # ClusterShell has no two brackets in a row
    pattern = parse_host_pattern(f"{before}{one[0]}{between}{other[0]}")
    names = {f"{before}{a}{between}{b}" for a in one[1] for b in other[1]}
    assert pattern.names == names
    assert all(map(pattern.matches, names))
    for name in (f"{before}071{between}071", f"{before}0000{between}0000", f"x{min(names)}"):
        assert pattern.matches(name) == (name in names)


@given(
    st.lists(st.tuples(WORDS, ranges(), WORDS), max_size=4),
    st.lists(st.sampled_from(("a-01", "a?", "-*", "[1-3]*", "a[5]b[07-12]")), max_size=3),
    st.lists(st.text("a-0123456789", max_size=5), max_size=5),
)
def test_an_index_says_what_each_selection_says(
    parts: list[tuple[str, tuple[str, set[str]], str]],
    others: list[str],
    hosts: list[str],
) -> None:
    """An index of many selections loses no window and adds no host."""
    numbered = [f"{before}{numbers[0]}{after}" for before, numbers, after in parts]
    named = [f"{before}{min(numbers[1])}{after}" for before, numbers, after in parts]
    chosen: list[Selection | None] = [
        Selection((parse_host_pattern(selection),)) for selection in numbered
    ]
    chosen += [None, Selection(tuple(map(parse_host_pattern, others)))]
    chosen += [Selection((), {"rack": frozenset("rs"), "leaf": frozenset("r")})]
    looked_up = SelectionIndex(chosen)
    for host in (*hosts, *named, *others):
        for place in (
            HostPlacement(),
            HostPlacement(rack="s"),
            HostPlacement(spine="r"),
            HostPlacement(rack="r", leaf="r"),
        ):
            expected = [
                n
                for n, selection in enumerate(chosen)
                if selection and selection.matches(host, place)
            ]
            assert list(looked_up.entries_for(host, place)) == expected


@given(st.text(max_size=150) | st.text("[]-*?,a01", max_size=30), st.text("a01-x", max_size=20))
def test_whatever_is_typed_is_a_pattern_or_words(text: str, host: str) -> None:
    """An editor's slip must not end the aggregator, nor match at random."""
    try:
        pattern = parse_host_pattern(text)
    except ValueError as error:
        assert len(str(error)) < 200
        return
    assert pattern.matches(host) in (True, False)
    if pattern.is_name:
        assert pattern.matches(text) and pattern.names == {text}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu-[001-016", "without its other half"),
        ("gpu-[1-999999]", "at most 50,000"),
        ("gpu-[1-99999]*", "at most 10,000"),
        ("gpu-[016-001]", "lower number first"),
        ("gpu-[1-016]", "as many digits"),
        ("gpu-[a-b]", "not a range"),
        ("gpu-[]", "not a range"),
        ("gpu 1", "expected host names"),
        ("*-*-*-*-*", "write several"),
        ("g" * 129, "at most 128"),
        ("", "expected host names"),
        (7, "expected host names"),
        ("gpu-[1234567890]", "not a range"),
    ],
)
def test_what_is_no_pattern_is_told(text: object, message: str) -> None:
    """An error without the right form sends the operator to the source."""
    with pytest.raises(ValueError, match=message.replace("]", r"\]")):
        parse_host_pattern(text)


def test_wildcards_and_places() -> None:
    """A rack's window holds for all hosts in the rack, also for new hosts."""
    selection = Selection((parse_host_pattern("gpu-0?"),), {"rack": frozenset({"r1"})})
    assert selection.matches("gpu-01", HostPlacement())
    assert not selection.matches("gpu-011", HostPlacement())
    assert selection.matches("x", HostPlacement(rack="r1"))
    assert not selection.matches("x", HostPlacement(rack="r2"))
    assert selection.description == "gpu-0?, rack r1" and not selection.is_all
    assert Selection((parse_host_pattern("*"),)).is_all
    assert isinstance(selection.patterns[0], HostPattern) and selection.patterns[0].has_wildcards
