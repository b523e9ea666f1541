"""Host sets as operators and Slurm write them: no host is lost or invented, and no text takes all memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.contract.host_sets import HostSetError, expand_hosts, fold_hosts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[001-003,200]", ["gpu001", "gpu002", "gpu003", "gpu200"]),
        ("gpu[08-11],login", ["gpu08", "gpu09", "gpu10", "gpu11", "login"]),
        (" head , gpu[2,1] ", ["head", "gpu1", "gpu2"]),
        ("gpu[1-3,2],gpu2", ["gpu1", "gpu2", "gpu3"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("gpu[1-7/3]-ib", ["gpu1-ib", "gpu4-ib", "gpu7-ib"]),
        ("gpu[1-4]!gpu[2-3]", ["gpu1", "gpu4"]),
        ("gpu[1-4]&gpu[3-9]", ["gpu3", "gpu4"]),
        ("gpu[1-2]^gpu[2-3]", ["gpu1", "gpu3"]),
    ],
)
def test_a_set_is_what_clustershell_says(text: str, names: list[str]) -> None:
    """A host set has the same meaning as in clush; the order of the items is that of ranks."""
    assert expand_hosts(text) == names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["gpu1"], "gpu1"),
        (["gpu1", "gpu2", "gpu3"], "gpu[1-3]"),
        (["gpu9", "gpu10", "gpu11", "gpu8"], "gpu[8-11]"),
        (["gpu09", "gpu10", "gpu11"], "gpu[09-11]"),
        (["gpu1", "gpu01", "gpu2", "gpu10"], "gpu[1-2,01,10]"),
        (["a01", "a02", "a100", "a99"], "a[01-02,99-100]"),
        (["rack1-gpu1", "rack1-gpu2", "rack2-gpu1"], "rack1-gpu[1-2],rack2-gpu1"),
        (["head", "7", "gpu-1.site", "x1234567890"], "7,gpu-1.site,head,x1234567890"),
    ],
)  # fmt: skip
def test_names_are_folded_as_slurm_reads_them(names: list[str], text: str) -> None:
    """Padding is a name's own: gpu1 is another node than gpu01."""
    assert set(fold_hosts(names).split(",")) == set(text.split(",")) and sorted(
        expand_hosts(text) if text else []
    ) == sorted(names)


@given(
    st.sets(
        st.from_regex(r"[a-c][a-c0-9.-]{0,3}[0-9]{0,4}", fullmatch=True), min_size=1, max_size=20
    )
)
def test_a_folded_set_names_each_host_once(names: set[str]) -> None:
    assert sorted(expand_hosts(fold_hosts(names))) == sorted(names)


@given(
    st.text(max_size=80)
    | st.text("[]-,/!&^ @a019", max_size=30)
    | st.from_regex(r"[a-z]?(\[[0-9]-[0-9]\]|[0-9]{0,25}){1,4}", fullmatch=True)
)
def test_whatever_is_typed_is_a_set_or_an_error(text: str) -> None:
    """A typing error gives a message, not a traceback of a library."""
    try:
        names = expand_hosts(text, 1000)
    except HostSetError as error:
        assert len(str(error)) < 400
        return
    assert len(set(names)) == len(names) <= 1000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu[1-999999999]", "999,999,999 hosts, expected at most 100,000"),
        ("n[1-1000]x[1-1000]", "1,000,000 hosts, expected at most 100,000"),
        (",".join(["a[1-60000]"] * 2), "120,000 hosts"),
        ("gpu[1-2", "without its other half"),
        ("[1-2]]", "without its other half"),
        ("gpu[a-b]", "not a range"),
        ("gpu[1--2]", "not a range"),
        ("gpu[1234567890]", "not a range"),
        ("gpu[3-1]", "lower number first"),
        ("gpu[001-3]", "as many digits"),
        (f"gpu{'1' * 5000}!a", "expected host names"),
        ("[0-9]9999999999", "range too large"),
        ("a[1-2]99999999999999999999", "range too large"),
        ("a b", "expected host names"),
        ("a,,b", "expected host names"),
        ("@rack1", "expected host names"),
        ("gpu*", "expected host names"),
        ("", "expected host names"),
    ],
)
def test_what_is_no_set_is_rejected_before_it_is_expanded(text: str, message: str) -> None:
    """A billion names are ten characters; groups would be read from the machine at hand."""
    with pytest.raises(HostSetError, match=message):
        expand_hosts(text)
