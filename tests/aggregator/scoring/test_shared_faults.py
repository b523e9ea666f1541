"""Faults with a cause outside the host: a dead leaf looked like a dead fleet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.aggregator.model import HealthState, Reason, SharedCause
from gangline.aggregator.rule_catalogue import network
from gangline.aggregator.rule_declaration import Rule
from gangline.aggregator.scoring.score import HostInput, ObservedSymptom, score_host
from gangline.aggregator.scoring.shared_faults import attribute_shared
from gangline.aggregator.scoring.symptom import Symptom

LEAF = SharedCause("leaf leaf-00 network", "a5", 30, 1)


def one_symptom(rule: Rule, reason: Reason, capacity_ratio: float) -> Symptom:
    return Symptom(
        rule=replace(rule, reason=reason), host=0, device="mlx5_4/1", signal="rdma.port_state", value=1.0, normal="4",
        message="RDMA port mlx5_4/1 is down", sql="", capacity_ratio=capacity_ratio,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "reason", "capacity_ratio", "state"),
    [
        (network.PORT_DOWN, Reason.RAIL_DOWN, 7 / 8, HealthState.SUSPECT),
        (network.PORT_FLAPS, Reason.RAIL_DOWN, 1.0, HealthState.WATCH),
        (network.PORT_DOWN, Reason.RAIL_DOWN, 0.0, HealthState.UNHEALTHY),  # no port is left
        (network.PORT_DOWN, Reason.XID_FATAL, 7 / 8, HealthState.UNHEALTHY),  # a fault of its own
    ],
)
def test_a_shared_cause_outside_the_host_does_not_make_it_unhealthy(
    rule: Rule, reason: Reason, capacity_ratio: float, state: HealthState
) -> None:
    """A host that only shows a fault of its leaf is at most SUSPECT, and names the leaf."""
    symptom = one_symptom(rule, reason, capacity_ratio)
    causes = {("h", reason.name, symptom.device): LEAF}
    observed = {0: [ObservedSymptom(symptom, 1)]}
    host = HostInput("h", 0, False, 8, 1, True, 1.0)
    score = score_host(host, attribute_shared(["h"], observed, causes)[0])
    assert score.state is state
    if reason is Reason.RAIL_DOWN:
        assert score.shared_cause is LEAF
        assert (
            score.reason_message == f"leaf leaf-00 network, shared by 30 hosts: {symptom.message}"
        )
        assert score.evidence[0].message == symptom.message, (
            "evidence is what the host itself shows"
        )


def test_the_same_fault_of_another_device_is_the_hosts_own() -> None:
    """A cable that breaks while the leaf is dead is still reported as the host's fault."""
    symptom = one_symptom(network.PORT_DOWN, Reason.RAIL_DOWN, 7 / 8)
    own = replace(symptom, device="mlx5_5/1")
    causes = {("h", "RAIL_DOWN", symptom.device): LEAF}
    observed = {0: [ObservedSymptom(symptom, 1), ObservedSymptom(own, 1)]}
    host = HostInput("h", 0, False, 8, 1, True, 1.0)
    score = score_host(host, attribute_shared(["h"], observed, causes)[0])
    assert score.state is HealthState.UNHEALTHY and score.shared_cause is None
