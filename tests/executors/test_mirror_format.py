"""The form of the mirror file, host lists, and what may be left out without refusing a job."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.executors import mirror_format
from gangline.executors.mirror_format import (
    LIST_BYTES_MAX,
    NODES_MAX,
    RECORD_BYTES,
    MirrorError,
    MirrorNode,
    SlurmNodes,
    excludable,
    parse,
    parse_slurm_nodes,
    preferable,
    render,
    stale_reason,
)

NOW = 1_800_000_000
NONE = frozenset[str]()

NODE = (
    "NodeName=gpu{at} Arch=x86_64 CoresPerSocket=4  CPUAlloc=0 CPUTot=8 CPULoad=7.7{at} AvailableFeatures={features}"
    " ActiveFeatures={features} Gres=gpu:h100:4 NodeAddr=127.0.0.1 OS=Linux 6.18 #1 SMP @0  RealMemory=100 FreeMem={at}000"
    " State=IDLE ThreadsPerCore=1 Partitions=main,large Reason=a word Partitions=x [root@2026-11-28T01:37:18]"
)


def node(name: str, state: str = "HEALTHY", **changes: Any) -> MirrorNode:
    ready = state not in ("UNHEALTHY", "MAINTENANCE")
    mirror_node = MirrorNode(name, 0, ready, 0.5, 1e-4, math.nan, state, "")
    return mirror_node._replace(**changes)


def test_a_file_is_read_as_it_was_written() -> None:
    nodes = [
        node("b" * 64, reason="STRAGGLER"),
        node("a", "MAINTENANCE", bucket=3, score=2.0, hazard_per_hour=math.inf, relative_speed=1e9),
        node("c", score=-1.0, hazard_per_hour=-1.0, relative_speed=0.12345, reason="R" * 40),
    ]
    content = render(nodes, computed_seconds=NOW, valid_until_seconds=NOW + 15)
    parsed = parse(content)
    assert [node.name for node in parsed.nodes] == ["a", "b" * 64, "c"]
    first, second, third = parsed.nodes
    assert first[:6] == ("a", 3, False, 1.0, 9.99999e99, 9.9999)
    assert math.isnan(second.relative_speed) and second.reason == "STRAGGLER"
    assert third[3:] == (0.0, 0.0, 0.1235, "HEALTHY", "R" * 18)
    assert {line + 1 for line in map(len, content.splitlines()[1:-1])} == {RECORD_BYTES}
    assert parsed.counts == {
        "b0": 2,
        "b1": 0,
        "b2": 0,
        "b3": 0,
        "out": 1,
        "exclude": 0,
        "prefer": 0,
    }
    assert (parsed.by_slurm, parsed.degraded) == (False, False)


def test_names_that_no_scheduler_takes_are_left_out() -> None:
    """A name with a blank or a comma would be two."""
    names = ("ok", "a b", "a,b", "x" * 65, "", "-a", "é")
    parsed = parse(render(map(node, names), computed_seconds=NOW, valid_until_seconds=NOW + 1))
    assert [node.name for node in parsed.nodes] == ["ok"]


def test_a_list_that_is_too_long_is_not_given() -> None:
    """The records have the names; readers know what * is."""
    names = [f"{index:05d}{'x' * 50}" for index in range(1_000)]
    parsed = parse(render(map(node, names), computed_seconds=NOW, valid_until_seconds=NOW + 1))
    assert sum(map(len, names)) > LIST_BYTES_MAX
    assert (parsed.counts["b0"], parsed.lists["b0"], len(parsed.nodes)) == (1_000, "*", 1_000)


def test_there_is_a_limit_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert NODES_MAX == 65_536
    monkeypatch.setattr(mirror_format, "NODES_MAX", 3)
    with pytest.raises(MirrorError, match="4 nodes, expected at most 3"):
        render(map(node, "abcd"), computed_seconds=NOW, valid_until_seconds=NOW + 1)


@pytest.mark.parametrize(
    ("now", "message"), [(NOW, ""), (NOW + 15, "until 0 s ago"), (NOW - 100, "would be valid")]
)
def test_it_is_valid_for_a_time(now: float, message: str) -> None:
    """The file is not valid before its time either: a clock that is an hour ahead would make it valid for an hour."""
    parsed = parse(render([], computed_seconds=NOW, valid_until_seconds=NOW + 15))
    why = stale_reason(parsed, now)
    assert message in why and bool(message) == bool(why)


def nodes_of(**kinds: str) -> SlurmNodes:
    """Return nodes by kind: `a="n1 n2"`."""
    names = {name: (kind,) for kind, text in kinds.items() for name in text.split()}
    return SlurmNodes(names, dict.fromkeys(names, (NONE, NONE)))


def test_nodes_that_are_alike_stand_in_for_each_other() -> None:
    """A job may exclude them if it has at most as many nodes as remain of each kind."""
    slurm = nodes_of(a="n1 n2 n3 n4", b="m1 m2")
    assert excludable(["n1"], slurm) == (["n1"], 3)
    assert excludable(["n1", "m1"], slurm) == (["m1", "n1"], 1)
    assert excludable(["n1", "n2", "n3"], slurm) == ([], 0)  # more than half
    assert excludable(["unknown"], slurm) == ([], 0)
    assert excludable([], slurm) == ([], 0)


def test_the_last_of_a_kind_is_never_left_out() -> None:
    slurm = nodes_of(a="n1 n2", b="m1")
    assert excludable(["m1"], slurm) == ([], 0)
    assert excludable(["m1", "n1"], slurm) == (["n1"], 1)


def test_across_switches_only_jobs_of_one_node_are_safe() -> None:
    """A job within a leaf may need the faulty one of that leaf."""
    slurm = nodes_of(a="n1 n2 n3 n4")._replace(has_topology=True)
    assert excludable(["n1"], slurm) == (["n1"], 1)
    assert preferable("x", slurm._replace(features=dict.fromkeys(slurm.kinds, (frozenset("x"), frozenset("x"))))) == 1  # fmt: skip


def test_any_job_that_fits_still_fits() -> None:
    """All jobs of small fleets: each needs a number of nodes of suitable kinds."""
    source = random.Random(1)
    for _ in range(300):
        kinds = {f"n{index}": (source.choice("abc"),) for index in range(source.randint(1, 8))}
        slurm = SlurmNodes(kinds, dict.fromkeys(kinds, (NONE, NONE)))
        faulty = [name for name in kinds if source.random() < 0.4]
        named, safe = excludable(faulty, slurm)
        assert set(named) <= set(faulty)
        for count in range(4):
            for suits in itertools.combinations("abc", count):
                suitable = [name for name, kind in kinds.items() if kind[0] in suits]
                left = len([name for name in suitable if name not in named])
                for size in range(1, min(safe, len(suitable)) + 1):
                    assert left >= size, (kinds, named, safe, suits)


def with_feature(having: str, all_names: str) -> SlurmNodes:
    has = frozenset({"well", "big"})
    return SlurmNodes(
        dict.fromkeys(all_names.split(), ("k",)),
        {
            n: (kinds := has if n in having.split() else has - {"well"}, kinds)
            for n in all_names.split()
        },
    )


@pytest.mark.parametrize(
    ("having", "safe"), [("n1 n2 n3", 3), ("n1 n2", 2), ("n1", 1), ("", 0)]
)  # fmt: skip
def test_a_feature_is_safe_to_prefer_up_to_those_that_have_it(having: str, safe: int) -> None:
    assert preferable("well", with_feature(having, "n1 n2 n3")) == safe


def test_a_feature_that_no_node_of_a_kind_has_is_not_safe() -> None:
    """A job that needs that kind would be refused."""
    slurm = with_feature("n1 n2", "n1 n2 n3")
    assert preferable("well", slurm._replace(kinds={**slurm.kinds, "n3": ("other",)})) == 0


def test_slurms_nodes_are_of_a_kind_by_what_a_job_can_ask() -> None:
    """The kind excludes load, free memory and state, which change."""
    lines = [
        NODE.format(at=index, features="(null)" if index == 1 else "a,b") for index in (1, 2, 3)
    ]
    slurm = parse_slurm_nodes("\n".join(lines), "TopologyPlugin          = topology/none\n")
    assert list(slurm.kinds) == ["gpu1", "gpu2", "gpu3"]
    assert len(set(slurm.kinds.values())) == 1
    assert slurm.features["gpu1"] == (NONE, NONE) and slurm.features["gpu2"][0] == {"a", "b"}
    assert not slurm.has_topology
    for config in ("", "TopologyPlugin = topology/tree\n"):
        assert parse_slurm_nodes(lines[0], config).has_topology
    assert excludable(["gpu1"], slurm) == ([], 0) and excludable(["gpu2"], slurm) == (["gpu2"], 1)


def test_a_text_that_is_not_slurms_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MirrorError, match="Slurm names no nodes: expected the text of"):
        parse_slurm_nodes("slurm_load_node error\n", "")
    monkeypatch.setattr(mirror_format, "NODES_MAX", 1)
    with pytest.raises(MirrorError, match="more than 1 nodes"):
        parse_slurm_nodes("NodeName=a\nNodeName=b\n", "")


@given(st.binary(max_size=300), st.integers(0, 2_000), st.binary(max_size=20))
def test_any_bytes_are_read_or_rejected(content: bytes, at: int, patch: bytes) -> None:
    """Garbage, and a good file with changed bytes, raise only MirrorError."""
    good = render([node("a"), node("b", "UNHEALTHY")], computed_seconds=NOW, valid_until_seconds=NOW + 1)  # fmt: skip
    for damaged in (content, good[:at] + patch + good[at + len(patch) :]):
        try:
            parse(damaged)
        except MirrorError as error:
            assert str(error)
