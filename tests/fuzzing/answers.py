"""Files behind the host's own answers: the policy file, the status file, and the state kept over a restart."""

from __future__ import annotations

import json
import random

from gangline.agent.gpu_list import parse_gpus
from gangline.agent.local import check
from gangline.agent.local.check import StatusError
from gangline.agent.local.findings_state import FindingsState, format_state, parse_state
from gangline.agent.recorder.recorder import REASON_CHARACTERS_MAX
from gangline.agent.release_state import (
    RELEASE_SECONDS_MAX,
    ReleasedGpu,
    format_released,
    parse_released,
)
from gangline.contract.faults import policy_file as host_policy_file
from gangline.contract.faults.policy import PolicyError
from gangline.contract.faults.policy_file import overlay
from gangline.contract.faults.table import builtin
from gangline.contract.gpu_set import GPUS_MAX
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.fuzzing.damage import ACCEPTED, REFUSED, damaged, flipped

NOW_NS = 5_000_000_000_000
POLICY = b"""version = "2026-11-20"
rollout_share = 0.5
off = ["nvlink_down"]

[[row]]
name = "my_row"
when = ["gpu.clock_event_reasons_flags has 0x40", "gpu.pcie_width_lanes < gpu.pcie_width_max_lanes"]
unless = ["gpu.mig_mode_state in 1,2"]
for_seconds = 30
severity = "fatal"
message = "is odd ({value})"
action = "call me"
clears = "reading"
enforceable = true
source = "assumed"
"""
RELEASED = format_released(
    b"b" * 16,
    [
        ReleasedGpu("0000:1b:00.0", NOW_NS + 10**9, "reset"),
        ReleasedGpu(None, NOW_NS + 2 * 10**9, ""),
    ],
)
STATUS = json.dumps(
    {
        "format": check.FORMAT, "host": "gpu-017", "agent_version": "0.1.0", "policy": "1", "boot_id": "ab" * 16,
        "boottime_ns": NOW_NS, "enforcing": ["xid79"], "permit": {"until_ns": NOW_NS + 10**10, "reason": "ops"},
        "notes": ["policy.toml is not used"], "left_out": 0,
        "findings": [
            {
                "name": "xid79", "device": "GPU-3f2a", "address": "0000:9b:00.0", "severity": "fatal", "problem": "node",
                "message": "GPU has fallen off the bus", "action": "drain now", "scope": "host", "enforceable": True,
                "clears_when": "the host boots", "since_ns": NOW_NS, "confirmed_ns": NOW_NS, "count": 1,
            }
        ],
    }
).encode()  # fmt: skip
GPUS = b'{"gpus": {"GPU-3f2a": "0000:9b:00.0", "GPU-77c1": ""}}'
KEPT = format_state(
    FindingsState(
        bytes(16),
        7,
        8,
        (HealthEvent(event_id="e1", name="gpu.xid", code=79, device="0000:9b:00.0"),),
        {"GPU-3f2a": 1},
        {"GPU-3f2a": 5e6},
        {"rdma_port_down": ["mlx5_0/1"]},
    )
)


def fuzz_policy(source: random.Random) -> str:
    """A policy file: a policy whose rows can be read, or PolicyError in a single line."""
    try:
        result = overlay(
            host_policy_file.parse(damaged(POLICY, source).decode(errors="replace")), builtin()
        )
    except PolicyError as error:
        assert str(error).isprintable() and len(str(error)) < 700, error
        return REFUSED
    for row in result.rows:
        for condition in row.when:
            condition.holds(float(source.choice((0, 1, 2**53))), None)
    assert len(result.rows) <= 2 * host_policy_file.ROWS_MAX
    return ACCEPTED


def fuzz_status(source: random.Random) -> str:
    """A status file: a document with a summary line, or StatusError."""
    damage = source.choice((damaged, flipped))
    try:
        shown = check.parse(damage(STATUS, source))
    except StatusError as error:
        assert str(error).isprintable(), error
        return REFUSED
    assert check.summary(shown, NOW_NS).isprintable(), shown
    for finding in check.enforced_findings(shown, NOW_NS):
        assert finding["name"] in shown["enforcing"] and shown["permit"], finding
    return ACCEPTED


def fuzz_kept(source: random.Random) -> str:
    """The kept state of this boot: a value of the same type, or ValueError."""
    damage = source.choice((damaged, flipped))
    try:
        kept = parse_state(damage(KEPT, source))
    except ValueError as error:
        assert len(str(error)) < 300, error
        return REFUSED
    assert parse_state(format_state(kept)) == kept
    return ACCEPTED


def fuzz_released(source: random.Random) -> str:
    """Released GPUs: GPUs and times within their limits, or ValueError."""
    damage = source.choice((damaged, flipped))
    try:
        released = parse_released(damage(RELEASED, source), b"b" * 16, NOW_NS)
    except ValueError as error:
        assert len(str(error)) < 300, error
        return REFUSED
    assert all(0 < release.until_ns - NOW_NS <= RELEASE_SECONDS_MAX * 1e9 for release in released)
    assert all(
        len(release.reason) <= REASON_CHARACTERS_MAX and release.reason.isprintable()
        for release in released
    )
    return ACCEPTED


def fuzz_gpu_list(source: random.Random) -> str:
    """The list of a host's known GPUs: names within their limits, or ValueError."""
    damage = source.choice((damaged, flipped))
    try:
        addresses = parse_gpus(damage(GPUS, source))
    except ValueError as error:
        assert len(str(error)) < 300, error
        return REFUSED
    assert len(addresses) <= GPUS_MAX
    assert all(
        key.startswith("GPU-") and len(key) + len(address) <= 256
        for key, address in addresses.items()
    )
    return ACCEPTED


TARGETS = {
    "gpu-list": fuzz_gpu_list,
    "policy": fuzz_policy,
    "status-file": fuzz_status,
    "findings-kept": fuzz_kept,
    "released": fuzz_released,
}
