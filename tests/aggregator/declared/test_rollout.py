"""Rollouts: a changed policy reaches 1 % of hosts, then 10 %, then all; the others preview it."""

from __future__ import annotations

import pytest

from gangline.aggregator.declared import rows as record
from gangline.aggregator.declared.loader import DeclaredFile, parse_files
from gangline.aggregator.declared.problems import DeclaredError
from gangline.aggregator.declared.thresholds import is_rolled_out, rollout_rank
from tests.aggregator.declared.test_judged import declare
from tests.worlds import START_NS, World

NAMES = [f"gpu-{number:05d}" for number in range(10_000)]
NAMES_OF_WORLD = ["h0", "h1", "h2", "h3"]


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_a_share_is_the_same_hosts_each_time_and_grows_by_adding(share: float) -> None:
    """The 10 % were other hosts than the 1 % before: the policy was new to all of them."""
    first = {name for name in NAMES if is_rolled_out(share, name)}
    assert len(first) == pytest.approx(share * len(NAMES), rel=0.25)
    assert first <= {name for name in NAMES if is_rolled_out(2 * share, name)}
    assert all(is_rolled_out(1.0, name) for name in NAMES)
    assert not any(is_rolled_out(0.0, n) for n in NAMES)
    assert rollout_rank("gpu-001") == pytest.approx(
        0.7401050242265335
    )  # equal on any machine, in any version


def between(names: list[str]) -> float:
    """Return a share that includes only the first of *names* in order."""
    first, second = sorted(rollout_rank(name) for name in names)[:2]
    return (first + second) / 2


def said(world: World) -> dict[str, str]:
    assert world.snapshot is not None
    return {h.host: "; ".join(e.message for e in h.evidence) for h in world.snapshot.hosts}


@pytest.mark.parametrize(
    ("text", "readings", "first_state", "others_state", "expected"),
    [
        # Set for all hosts at once, it made half of the fleet WATCH without a warning.
        ('[thresholds]\n"host.cpu_steal_ratio" = {{ value = 0.03, rollout = {share} }}\n',
         {"cpu_steal_ratio": 0.05}, "WATCH", "HEALTHY", "not rolled out to this host yet"),
        # It was to silence a rule; outside the share the rule continues, and announces its end.
        ('[thresholds]\n"host.cpu_steal_ratio" = {{ value = 0.3, before = 0.12, rollout = {share} }}\n',
         {"cpu_steal_ratio": 0.15}, "HEALTHY", "WATCH", "no longer, by a threshold"),
        # An override that was too wide hid a real fault in the whole fleet at once.
        (('[[override]]\nhosts = ["h*"]\nrule = "host.cpu_*"\nuntil = 2024-01-01T00:00:00Z\n'
          'who = "b"\nwhy = "builds"\nrollout = {share}\n'),
         {"pressure_cpu_some_ratio": 0.9}, "HEALTHY", "WATCH", "noise by an override"),
    ],
    ids=["stricter threshold", "milder threshold", "override"],
)  # fmt: skip
def test_a_change_counts_on_its_share_and_is_shown_on_the_rest(
    text: str, readings: dict[str, float], first_state: str, others_state: str, expected: str
) -> None:
    world = World()
    for host in world.hosts:
        host.set("host_1s", "host", **readings)
    share = between(NAMES_OF_WORLD)
    declare(world, text.format(share=share))
    world.run(40)
    (first,) = [name for name in NAMES_OF_WORLD if is_rolled_out(share, name)]
    states = world.states()
    assert states.pop(first) == first_state and set(states.values()) == {others_state}
    assert all(expected in message for name, message in said(world).items() if name != first)
    if first_state == "WATCH":
        assert expected not in said(world)[first]
        declare(world, "[thresholds]\nhost.cpu_steal_ratio = { value = 0.03, rollout = 1.0 }\n")
        world.run(40)
        assert set(world.states().values()) == {"WATCH"}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("{ value = 0.2 }", "expected a number, or { value = 0.2, rollout = 0.01 }"),
        ("{ value = 0.2, rollout = 0.1, until = 3 }", "expected a number, or"),
        ("{ value = 7, rollout = 0.1 }", "expected a number from 0.005 to 1"),
        ("{ value = 0.2, rollout = 10 }", "rollout: expected a number from 0 to 1, the share"),
        (
            '{ value = 0.2, rollout = 0.1, before = "x" }',
            "expected a number without quotes, from 0.005 to 1",
        ),
    ],
)
def test_what_a_roll_out_may_not_be(value: str, told: str) -> None:
    """`rollout = 10` was meant as ten percent."""
    text = f'[thresholds]\n"host.cpu_steal_ratio" = {value}\n'
    with pytest.raises(DeclaredError) as raised:
        parse_files([DeclaredFile("a.toml", text.encode())], START_NS)
    assert "a.toml:2: host.cpu_steal_ratio: " in str(raised.value) and told in str(raised.value)


def test_what_is_rolled_out_is_on_record() -> None:
    """The record shows in the morning how far it is."""
    text = '[thresholds]\n"host.cpu_steal_ratio" = { value = 0.2, rollout = 0.1 }\n'
    declared = parse_files([DeclaredFile("a.toml", text.encode())], START_NS)
    rows = {row[0]: (row[1], *row[-2:]) for row in record.thresholds(declared)}
    assert rows["host.cpu_steal_ratio"] == (0.2, 0.1, 0.1)
    assert rows["gpu.slow_below_ratio"] == (0.9, 1.0, 0.9)
