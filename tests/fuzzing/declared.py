"""Declarations of people, damaged: files of all three forms, and patterns of hosts. Each is read as
meant, or refused with an error.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import astuple

from gangline.aggregator.declared.host_placement import PLACE_FIELDS
from gangline.aggregator.declared.loader import DeclaredFile, parse_files
from gangline.aggregator.declared.model import Declared
from gangline.aggregator.declared.patterns import parse_host_pattern
from gangline.aggregator.declared.problems import DeclaredError
from gangline.aggregator.declared.thresholds import THRESHOLDS
from tests.fuzzing.damage import ACCEPTED, REFUSED, damaged, flipped

NOW_NS = 1_795_168_800 * 10**9
TOML = b"""time_zone = "Europe/Berlin"
[[place]]
hosts = ["gpu-[001-016,020]", "login-1"]
rack = "r1"
rails = ["l0", "l1"]
[[expected]]
model = "NVIDIA H100*"
gpus = 8
memory_gigabytes_min = 2000.5
nvidia_drivers = ["580.*"]
[[maintenance]]
racks = ["r1"]
begin = 2026-11-23T22:00:00
end = 2026-11-24
who = "alice"
why = "new power feed"
[[override]]
hosts = ["gpu-00?"]
xid = [63, 92]
until = 2026-12-24T10:00:00+01:00
who = "bob"
why = "a known batch"
[[cost]]
hosts = ["gpu-*"]
price_per_gpu_hour = 2.5
spot = true
preemptions_per_hour = 0.01
[[tenant]]
name = "vision"
gpu_hours_per_delay_hour = 40
[thresholds]
gpu.slow_below_ratio = 0.8
"""
CSV = b'host,rack,leaf,rails,asset\ngpu-001,r1,leaf-1,l0 l1,17\n"gpu-002",r1,"leaf-1",,\n'
GRAPH = json.dumps(
    {
        "instances": [
            {
                "id": f"node-{number}",
                "network_layers": ["leaf-a", "spine-a"],
                "labels": {"accelerator.topograph.run/domain": "nvl-1"},
            }
            for number in range(3)
        ]
    }
).encode()


def checked(name: str, data: bytes) -> str:
    """Parse a file, and check the result."""
    try:
        parsed = parse_files([DeclaredFile(name, data)], NOW_NS)
    except DeclaredError as error:
        assert error.problems and all(len(problem) < 1200 for problem in error.problems)
        return REFUSED
    sound(parsed)
    return ACCEPTED if parsed.file_places or parsed.windows or parsed.overrides else REFUSED


def sound(found: Declared) -> None:
    """Raise AssertionError if an invalid declaration is in force."""
    for host, place in found.places.items():
        assert parse_host_pattern(host).is_name
        for field in PLACE_FIELDS:
            value = getattr(place, field)
            for text in value if isinstance(value, tuple) else (value,):
                assert len(text) <= 128 and text.isprintable(), (field, text)
    for window in found.windows:
        assert 0 < window.end_ns - window.begin_ns <= 366 * 86_400 * 10**9
        assert window.who and window.why and window.selection.description
    for override in found.overrides:
        assert override.until_ns and override.why and (override.rule or override.codes)
        found.override("gpu-001", "gpu.xid.63", NOW_NS, signal="gpu.xid", code=63, device="GPU-1")
    for name, value in found.thresholds.items():
        assert math.isfinite(value) and THRESHOLDS[name].low <= value <= THRESHOLDS[name].high
    for cost in found.node_costs:
        assert not cost.price_per_gpu_hour < 0 and not cost.preemptions_per_hour > 60
    for rates in found.tenants.values():
        assert all(math.isnan(rate) or 0 <= rate <= 1e9 for rate in astuple(rates))
    assert len(found.cost("gpu-001")) == 2
    found.expected("NVIDIA H100 80GB HBM3", "gpu-001")


def fuzz_toml(source: random.Random) -> str:
    """A handwritten file with a typing error."""
    return checked("a.toml", source.choice((damaged, flipped))(TOML, source))


def fuzz_csv(source: random.Random) -> str:
    """An export of another inventory, damaged."""
    return checked("a.csv", source.choice((damaged, flipped))(CSV, source))


def fuzz_topograph(source: random.Random) -> str:
    """A truncated graph, or a graph of another engine."""
    return checked("a.json", source.choice((damaged, flipped))(GRAPH, source))


def fuzz_patterns(source: random.Random) -> str:
    """A pattern of hosts: matches, or an error."""
    text = damaged(b"gpu-[001-016,020]-*", source).decode(errors="replace")
    try:
        pattern = parse_host_pattern(text)
    except ValueError as error:
        assert len(str(error)) < 300
        return REFUSED
    assert pattern.matches("gpu-001-a") in (True, False)
    return ACCEPTED


TARGETS: dict[str, Callable[[random.Random], str]] = {
    "declared-toml": fuzz_toml,
    "declared-csv": fuzz_csv,
    "declared-topograph": fuzz_topograph,
    "declared-patterns": fuzz_patterns,
}
