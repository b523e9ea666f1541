"""How many examples of a property are tried: see the profiles in conftest.py."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

#: Examples of the tests below.
OWN_EXAMPLES = 60
QUICK_EXAMPLES = 25

tried: list[int] = []
walks: list[int] = []


def limit() -> int:
    """Return how many examples the profile in force allows."""
    quick = settings.get_current_profile_name() == "quick"
    return QUICK_EXAMPLES if quick else OWN_EXAMPLES


@settings(max_examples=OWN_EXAMPLES)
@given(st.integers())
def test_the_quick_profile_limits_every_property(number: int) -> None:
    """Twenty properties with 300 examples of their own took seconds of every `make test`."""
    tried.append(number)
    assert len(tried) <= limit()


class Walk(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        walks.append(0)
        assert len(walks) <= limit()

    @rule(number=st.integers())
    def step(self, number: int) -> None:
        walks[-1] += number


TestTheQuickProfileLimitsStateMachines = Walk.TestCase
TestTheQuickProfileLimitsStateMachines.settings = settings(
    max_examples=OWN_EXAMPLES, stateful_step_count=2
)
