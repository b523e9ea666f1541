"""Advice as the wire has it: of one advisory, of what is held back, of what a rule would have done."""

from __future__ import annotations

from typing import Any

from ...fingerprints.wire import advisory_pb2
from ..advice.advisory import Advisory, Case
from ..advice.whatif import Report
from ..verdicts import Reason
from .fields import timestamp

PREFIX = "advisories/"
#: Episodes of a rule that are told one by one.
EPISODES_MAX = 1000


def message(one: Advisory, expires_ns: int) -> advisory_pb2.Advisory:
    """Return *one*, which expires then, as the wire has it."""
    said = advisory_pb2.Advisory(
        name=f"{PREFIX}{one.name}", subject=one.subject,
        nodes=[f"nodes/{host}" for host in one.hosts], devices=one.devices,
        action=_enum(one.action), then_action=_enum(one.then or 0), scope=one.scope.value,
        basis=_enum(one.basis), reason=_enum(Reason.__members__.get(one.reason, Reason.NONE)),
        reason_text=one.words, confidence=one.confidence, hazard_per_hour=one.hazard_per_hour,
        cost_of_waiting_gpu_hours=one.price.waiting_gpu_hours,
        cost_of_acting_gpu_hours=one.price.acting_gpu_hours, arithmetic=one.price.arithmetic,
        state=_enum(one.state), state_text=one.state_words, etag=one.etag, owner=one.owner,
        fencing_token=one.token, workload=one.job, count=one.count,
        propose_time=timestamp(one.proposed_ns), expire_time=timestamp(expires_ns),
        update_time=timestamp(one.changed_ns),
    )  # fmt: skip
    optional = {
        "act_by_time": one.price.act_by_ns,
        "lease_expire_time": one.lease_until_ns,
        "defer_until_time": one.deferred_until_ns,
    }
    for field, time_ns in optional.items():
        if time_ns:
            getattr(said, field).CopyFrom(timestamp(time_ns))
    if one.checkpoint_seconds:
        said.checkpoint_interval.FromMilliseconds(int(1000 * one.checkpoint_seconds))
    return said


def held_back(case: Case, words: str) -> advisory_pb2.HeldBack:
    """Return what is called for and not proposed, for the wire."""
    return advisory_pb2.HeldBack(
        node=f"nodes/{case.host}", action=_enum(case.action),
        reason_text=case.words, held_back_text=words,
    )  # fmt: skip


def evaluated(report: Report) -> advisory_pb2.EvaluateRuleResponse:
    """Return what a rule would have done, for the wire."""
    told = report.episodes[-EPISODES_MAX:]
    costs = [one.case.price for one in report.episodes]
    return advisory_pb2.EvaluateRuleResponse(
        episodes=[
            advisory_pb2.RuleEpisode(
                node=f"nodes/{one.case.host}", start_time=timestamp(one.first_ns),
                end_time=timestamp(one.last_ns), action=_enum(one.case.action),
                advised=advised, words=one.case.words,
                followed_by_fault=one.faulty_ns > 0, held_back_text="" if advised else held,
            )
            for one, advised, held in zip(told, report.are_advised(told), report.held_words(told), strict=True)
        ],
        episodes_count=len(report.episodes), advised_count=len(report.advised),
        held_back_count=report.held_back, nodes_at_once_max=report.at_once_max,
        from_time=timestamp(report.from_ns),
        followed_count=sum(one.faulty_ns > 0 for one in report.episodes),
        acting_gpu_hours=sum(one.acting_gpu_hours for one in costs),
        waiting_gpu_hours=sum(one.waiting_gpu_hours for one in costs),
    )  # fmt: skip


def _enum(value: int) -> Any:
    """Return an enumerated value as protobuf takes it: its stubs know no IntEnum."""
    return int(value)
