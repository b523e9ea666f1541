"""`process.Filling`: allocations after a fork go to new pages."""

from __future__ import annotations

import platform

import pytest

from gangline.ext import process

PAGE_BYTES = 4096
SMALL, LARGE = 200, 5_000  # of Python's own allocator, and of malloc(3)


def with_holes(size: int) -> tuple[list[bytes], set[int]]:
    """Return objects of *size* with holes between them, and the pages where the holes begin."""
    result = [bytes(size) for _ in range(600)]
    holes = {id(item) // PAGE_BYTES for item in result[::2]}
    del result[::2]
    return result, holes


def pages_of_new(size: int) -> set[int]:
    result = [bytes(size) for _ in range(200)]
    return {id(item) // PAGE_BYTES for item in result}


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_nothing_new_goes_where_there_was_room_before(size: int) -> None:
    """Four forks each copied every page with a hole for about forty bytes: 3 MB of holes."""
    if size == LARGE and not _is_glibc_from(2, 33):
        pytest.skip("where its heap ends is told by glibc 2.33 and later")
    kept, holes = with_holes(size)
    filling = process.Filling()
    assert not pages_of_new(size) & holes
    del filling
    assert pages_of_new(size) & holes  # all memory was given back
    assert kept


def test_it_is_bounded_and_gives_back_what_it_held() -> None:
    """A fork server that dies each second creates it each second, for weeks."""
    process.Filling()
    before = _resident_bytes()
    for _ in range(50):
        process.Filling()
    assert _resident_bytes() < before + (4 << 20)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


def _is_glibc_from(*version: int) -> bool:
    name, has = platform.libc_ver()
    return name == "glibc" and tuple(map(int, has.split(".")[:2])) >= version
