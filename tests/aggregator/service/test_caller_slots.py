"""Planning and watching are shared by login: one login's calls refuse no other's."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from gangline.aggregator.errors import ResourceExhausted
from gangline.aggregator.principal import LOCAL, Principal, Role, set_principal
from gangline.aggregator.service.caller_slots import CallerSlots

MAX = 16


def scheduler(name: str) -> Principal:
    return Principal(Role.SCHEDULER, name, auth_method=f"token {name}", proof=(1, 1))


def taken(slots: CallerSlots, stack: ExitStack, who: Principal, count: int) -> int:
    """Take up to *count* slots for *who*; return the number taken."""
    set_principal(who)
    for number in range(count):
        try:
            stack.enter_context(slots.slot(MAX, "full", 1.0))
        except ResourceExhausted:
            return number
    return count


async def test_one_login_leaves_slots_to_the_others() -> None:
    """With 40 threads of A, 74 of 81 plans of B were refused; A held all 64 watches as well."""
    slots = CallerSlots()
    with ExitStack() as stack:
        assert taken(slots, stack, scheduler("a"), 40) == MAX // 2
        with pytest.raises(ResourceExhausted, match="the login 'scheduler a' has 8, at most 8"):
            stack.enter_context(slots.slot(MAX, "full", 1.0))
        assert taken(slots, stack, scheduler("b"), 40) == MAX // 2
        # All slots are held: a login without a slot gets one, up to a bound.
        first = [taken(slots, stack, scheduler(f"c{number}"), 2) for number in range(40)]
        assert first == [1] * MAX + [0] * (40 - MAX)
    assert slots.count == 0
    with ExitStack() as stack:
        assert taken(slots, stack, LOCAL, 40) == MAX, "without logins there is one caller"
