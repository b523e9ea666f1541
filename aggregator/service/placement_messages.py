"""Plans on the wire: validates requests field by field, and encodes responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite, isnan, nan, prod
from typing import Any

import numpy as np

from ...contract.text import counted
from ...contract.wire import placement_pb2
from ..arrays import Flags, Indexes
from ..decisions.elastic import work_hours
from ..decisions.groups import GroupSpans
from ..decisions.node_search import OPTIONS_MAX, Candidates
from ..decisions.node_table import NodeTable
from ..decisions.planner import PlacementChoice
from ..decisions.price import GangPrice, PricePart
from ..decisions.quantity import Quantity
from ..decisions.requirements import (
    GPUS_PER_NODE_MAX,
    HOURS_MAX,
    NODES_MAX,
    PRICED_TIERS,
    SEGMENT_NODES_MAX,
    GangRequirements,
    Tier,
)
from ..declared.model import ExchangeRates
from ..errors import FailedPrecondition, InvalidArgument
from ..reservations import reservation_key
from ..scoring.evaluate import Judgement
from ..scoring.reported_factors import NOTHING_REPORTED, ReportedFactors
from .exchange_rates import RATE_MAX, rates_of
from .gang_sizes import sizes_of
from .score import BITMAP_BYTES_MAX, WORKLOAD_CHARACTERS_MAX
from .score_messages import packed
from .validation import check_range, check_real, check_text, span_seconds

#: Maximum reservations that a request may name as the caller's own.
OWN_RESERVATIONS_MAX = 16
REQUEST_ID_CHARACTERS_MAX = 128
WEEK_SECONDS, YEAR_SECONDS = 7 * 86400.0, HOURS_MAX * 3600.0
#: Maximum jobs with a priority in a request.
PRIORITIES_MAX = 10_000
#: Maximum relative traffic of a kind of groups.
TRAFFIC_MAX = 1e6
NO_TENANTS: Mapping[str, ExchangeRates] = {}
#: GPUs of a node that may be partly free: the mask is a byte.
SHARED_GPUS_MAX = 8


def requirements_of(
    gang: placement_pb2.GangRequirements,
    reports: ReportedFactors = NOTHING_REPORTED,
    tenants: Mapping[str, ExchangeRates] = NO_TENANTS,
) -> GangRequirements:
    """Return a gang's requirements, without its workload. Raises InvalidArgument.

    *reports*: reported values that replace assumed constants. *tenants*: exchange rates for
    requests that have none.
    """
    elastic = sizes_of(gang, reports.throughputs)
    nodes = elastic.allowed[-1] if elastic else gang.nodes
    check_range("gang.nodes", nodes, 1, NODES_MAX)
    check_range("gang.gpus_per_node", gang.gpus_per_node, 0, GPUS_PER_NODE_MAX)
    check_real("gang.node_score_min", gang.node_score_min, 1.0)
    if not 0.0 <= gang.survival_min < 1.0:
        raise InvalidArgument("gang.survival_min", f"{gang.survival_min:g}, expected 0 to below 1")
    if gang.HasField("communication_share"):
        check_real("gang.communication_share", gang.communication_share, 1.0)
    for name in ("tensor", "pipeline", "data"):
        check_range(f"gang.groups.{name}", getattr(gang.groups, name), 0, NODES_MAX * 8)
        traffic = f"{name}_traffic"
        check_real(f"gang.groups.{traffic}", getattr(gang.groups, traffic), TRAFFIC_MAX)
    length = _hours(gang, "length", 60.0, YEAR_SECONDS)
    return GangRequirements(
        nodes=nodes,
        gpus_per_node=gang.gpus_per_node,
        hours=24.0 if isnan(length) else length,
        **_invariants(gang.invariants, nodes),
        score_min=gang.node_score_min,
        survival_min=gang.survival_min,
        detect_hours=_hours(gang, "detect", 0.0, WEEK_SECONDS),
        decide_hours=_hours(gang, "decide", 0.0, WEEK_SECONDS),
        restart_hours=_hours(gang, "restart", 0.0, WEEK_SECONDS),
        checkpoint_interval_hours=_hours(gang, "checkpoint_interval", 1.0, WEEK_SECONDS),
        checkpoint_write_hours=_hours(gang, "checkpoint_write", 0.0, WEEK_SECONDS),
        repair_hours=_hours(gang, "repair", 0.0, YEAR_SECONDS),
        communication_share=gang.communication_share
        if gang.HasField("communication_share")
        else nan,
        preferences=_preferences(gang.preferences),
        **rates_of(gang, tenants),
        tensor_parallel=gang.groups.tensor,
        pipeline_parallel=gang.groups.pipeline,
        data_parallel=gang.groups.data,
        tensor_traffic=gang.groups.tensor_traffic,
        pipeline_traffic=gang.groups.pipeline_traffic,
        data_traffic=gang.groups.data_traffic,
        priority=gang.priority if gang.HasField("priority") else None,
        elastic=elastic,
        reports=reports,
    )


def check_groups(needs: GangRequirements, nodes: int, gpus_per_node: int) -> None:
    """Raise InvalidArgument if the groups do not form a gang of *nodes* nodes."""
    if not needs.groups_make_up(nodes * gpus_per_node):
        raise InvalidArgument(
            "gang.groups",
            f"{_groups_text(needs)}, expected a divisor of the gang's {nodes * gpus_per_node} GPUs "
            f"({nodes} nodes of {gpus_per_node})",
        )


def grouped_sizes(needs: GangRequirements, gpus_per_node: int) -> GangRequirements:
    """Return *needs* with the sizes that groups can form. Raises InvalidArgument."""
    elastic = needs.elastic
    if elastic is None or not needs.has_groups:
        return needs
    allowed = tuple(n for n in elastic.allowed if needs.groups_make_up(n * gpus_per_node))
    if not allowed:
        raise InvalidArgument(
            "gang.groups",
            f"{_groups_text(needs)}, expected a divisor of the GPUs of at least one of the gang's sizes: "
            f"{elastic.allowed[0]} to {elastic.allowed[-1]} nodes of {gpus_per_node}",
        )
    left_out = tuple(sorted({*elastic.allowed} - {*allowed}))
    return replace(
        needs, nodes=allowed[-1], elastic=replace(elastic, allowed=allowed, left_out=left_out)
    )


def size_notes(needs: GangRequirements) -> list[str]:
    """Return notes on omitted sizes with the reason, and on a jump of throughput between sizes."""
    if needs.elastic is None:
        return []
    left_out, warning = needs.elastic.left_out, needs.elastic.curve.warning
    notes = [f"throughput by nodes is {warning}"] if warning else []
    if not left_out:
        return notes
    examples = ", ".join(map(str, left_out[:8])) + (", ..." if left_out[8:] else "")
    return [*notes, f"sizes left out, which the groups do not make up: {examples}"]


def _groups_text(needs: GangRequirements) -> str:
    sizes = [
        max(size, 1)
        for size in (needs.tensor_parallel, needs.pipeline_parallel, needs.data_parallel)
    ]
    return f"{' x '.join(map(str, sizes))} (tensor x pipeline x data) = {prod(sizes)} GPUs"


def _invariants(requested: placement_pb2.PlacementInvariants, nodes: int) -> dict[str, Any]:
    prefix = "gang.invariants"
    segment = requested.segment_nodes
    if segment > 1:
        check_range(f"{prefix}.segment_nodes", segment, 0, SEGMENT_NODES_MAX)
        if nodes % segment:
            raise InvalidArgument(
                f"{prefix}.segment_nodes",
                f"{segment} does not divide the {nodes} nodes; expected a divisor, or nodes = "
                f"{max(nodes // segment, 1) * segment}",
            )
    tier = _tier(f"{prefix}.segment_tier", requested.segment_tier, priced=True)
    if (tier is None) != (segment <= 1):
        raise InvalidArgument(
            f"{prefix}.segment_tier",
            "expected together with segment_nodes of 2 or more: one gives the size, the other the "
            "tier of the domain",
        )
    spread = _tier(f"{prefix}.spread_over", requested.spread_over)
    if (spread is None) != (requested.spread_nodes_max == 0):
        raise InvalidArgument(
            f"{prefix}.spread_nodes_max",
            "expected together with spread_over: the maximum number of nodes in one of its domains",
        )
    if spread is not None:
        check_range(f"{prefix}.spread_nodes_max", requested.spread_nodes_max, 1, NODES_MAX)
    return {
        "within": _tier(f"{prefix}.within", requested.within),
        "segment_nodes": max(segment, 1),
        "segment_tier": tier,
        "same_rails": requested.same_rails,
        "spread_over": spread,
        "spread_nodes_max": requested.spread_nodes_max,
    }


def _preferences(requested: Sequence[placement_pb2.TierPreference]) -> dict[Tier, float]:
    preferences: dict[Tier, float] = {}
    for index, preference in enumerate(requested):
        field = f"gang.preferences[{index}]"
        tier = _tier(f"{field}.tier", preference.tier, priced=True)
        if tier is None:
            raise InvalidArgument(
                f"{field}.tier", "unspecified, expected TIER_NVLINK_DOMAIN to TIER_CORE"
            )
        if tier in preferences:
            raise InvalidArgument(
                f"{field}.tier", f"TIER_{tier.name} is listed twice; expected one preference a tier"
            )
        check_real(f"{field}.gpu_hours_per_domain", preference.gpu_hours_per_domain, RATE_MAX)
        preferences[tier] = preference.gpu_hours_per_domain
    return preferences


def _tier(field: str, value: int, *, priced: bool = False) -> Tier | None:
    if value == 0:
        return None
    known = [int(tier) for tier in (PRICED_TIERS if priced else Tier)]
    if value not in known:
        names = "TIER_NVLINK_DOMAIN to TIER_COOLING_DOMAIN"
        if priced:
            names = "TIER_NVLINK_DOMAIN to TIER_CORE"
        raise InvalidArgument(field, f"{value}, expected {names}, or unspecified")
    return Tier(value)


def _hours(gang: placement_pb2.GangRequirements, name: Any, low: float, high: float) -> float:
    """Return a duration of *gang* in hours; NaN if unset."""
    if not gang.HasField(name):
        return nan
    seconds = span_seconds(f"gang.{name}", getattr(gang, name))
    if not low <= seconds <= high:
        raise InvalidArgument(f"gang.{name}", f"{seconds:.10g} s, expected {low:.0f} to {high:.0f}")
    return seconds / 3600.0


def options_max_of(value: int) -> int:
    """Return the requested number of options; 1 for 0. Raises InvalidArgument."""
    check_range("options_max", value, 0, OPTIONS_MAX)
    return value or 1


def check_epoch(field: str, version: int, snapshot: Judgement) -> None:
    """Raise FailedPrecondition if the node indexes are from another epoch."""
    if version not in (0, snapshot.dictionary_version):
        raise FailedPrecondition(
            f"{field} {version}: node indexes were renumbered, the version is now "
            f"{snapshot.dictionary_version}; call GetNodeDictionary again"
        )


def candidates_of(message: placement_pb2.PlacementCandidates, snapshot: Judgement) -> Candidates:
    """Return the eligible nodes. Raises InvalidArgument, FailedPrecondition."""
    check_epoch("candidates.dictionary_version", message.dictionary_version, snapshot)
    count = len(snapshot.names)
    if message.node_bitmap:
        nodes, source = _bitmap(message.node_bitmap, count), "the request's node_bitmap"
    else:
        nodes = np.ones(count, dtype=bool)
        nodes[[node for node in snapshot.jobs if node < count]] = False
        source = (
            f"no allocation was given: the {counted(int(nodes.sum()), 'node')} on which no agent reports a job; "
            "allocated nodes whose job has not started are unknown"
        )
    shared = message.shared_node_index
    if len(shared) != len(message.shared_gpu_mask):
        raise InvalidArgument(
            "candidates.shared_gpu_mask",
            f"{len(message.shared_gpu_mask)} bytes for {len(shared)} of shared_node_index, expected one each",
        )
    gpus: dict[int, int] = {}
    for node, mask in zip(shared, message.shared_gpu_mask, strict=True):
        check_range("candidates.shared_node_index", node, 0, count - 1)
        has = int(snapshot.facts.gpus[node])
        if node in gpus:
            raise InvalidArgument(
                "candidates.shared_node_index", f"{node} is listed twice; expected each once"
            )
        if has > SHARED_GPUS_MAX or mask >= 1 << has:
            raise InvalidArgument(
                "candidates.shared_gpu_mask",
                f"{mask:#x} for node {node} of {has} GPUs; expected bits below {min(has, SHARED_GPUS_MAX)}, "
                f"and nodes of at most {SHARED_GPUS_MAX} GPUs",
            )
        gpus[node] = mask
        nodes[node] = mask > 0
    reserved = reserved_nodes(message, snapshot)
    left_out = int(nodes[reserved].sum())
    if left_out:
        nodes[reserved] = False
        source += f"; without {left_out} that others have reserved"
    return Candidates(nodes, gpus, source, priorities=priorities_of(message))


def priorities_of(message: placement_pb2.PlacementCandidates) -> dict[str, int]:
    """Return the priorities of running jobs. Raises InvalidArgument."""
    field = "candidates.job_priorities"
    if len(message.job_priorities) > PRIORITIES_MAX:
        reason = f"{len(message.job_priorities)} jobs, expected at most {PRIORITIES_MAX}"
        raise InvalidArgument(field, reason)
    priorities: dict[str, int] = {}
    for index, job_priority in enumerate(message.job_priorities):
        check_text(f"{field}[{index}].job", job_priority.job, WORKLOAD_CHARACTERS_MAX)
        if not job_priority.job:
            raise InvalidArgument(f"{field}[{index}].job", "empty, expected the name of a job")
        if job_priority.job in priorities:
            reason = f"{job_priority.job[:100]!r} is listed twice, expected each once"
            raise InvalidArgument(f"{field}[{index}].job", reason)
        priorities[job_priority.job] = job_priority.priority
    return priorities


def claim_reservations(message: placement_pb2.PlacementCandidates, login: str) -> None:
    """Replace the names in *message* by keys of *login*: another login's reservation frees no node.

    Call this before the request is answered or recorded. Raises InvalidArgument.
    """
    names = list(message.reservation)
    if len(names) > OWN_RESERVATIONS_MAX:
        reason = f"{len(names)} names, expected at most {OWN_RESERVATIONS_MAX}"
        raise InvalidArgument("candidates.reservation", reason)
    for name in names:
        check_text("candidates.reservation", name, REQUEST_ID_CHARACTERS_MAX)
    if not names:
        return
    del message.reservation[:]
    message.reservation.extend(reservation_key(name, login) for name in names)


def reserved_nodes(message: placement_pb2.PlacementCandidates, snapshot: Judgement) -> Indexes:
    """Return the nodes that others have reserved."""
    others = [nodes for name, nodes in snapshot.reservations if name not in message.reservation]
    return np.concatenate(others) if others else np.zeros(0, dtype=np.intp)


def members_of(requested: Sequence[int], job: str, snapshot: Judgement) -> Indexes:
    """Return a running gang's nodes: *requested*, else those of *job*. Raises InvalidArgument."""
    if requested:
        return node_list_of("current_node_index", requested, snapshot)
    if not job:
        reason = "empty, expected the gang's nodes in rank order, or gang.workload.job"
        raise InvalidArgument("current_node_index", reason)
    nodes = sorted(node for node, name in snapshot.jobs.items() if name == job)
    if not nodes:
        reason = (
            f"empty, and job {job[:100]!r} is seen on no node; expected its nodes in rank order"
        )
        raise InvalidArgument("current_node_index", reason)
    return np.array(nodes, dtype=np.intp)


def node_list_of(field: str, requested: Sequence[int], snapshot: Judgement) -> Indexes:
    """Return the nodes of a field, which may be empty. Raises InvalidArgument for duplicates."""
    nodes = np.array(requested, dtype=np.intp)
    count = len(snapshot.names)
    if nodes.size > NODES_MAX:
        raise InvalidArgument(field, f"{nodes.size} nodes, expected at most {NODES_MAX}")
    if nodes.size and nodes.max() >= count:
        raise InvalidArgument(field, f"{nodes.max()}, expected below {count}, the number of nodes")
    if nodes.size and np.bincount(nodes).max() > 1:
        raise InvalidArgument(field, "a node is listed twice, expected each once")
    return nodes


def _bitmap(bitmap: bytes, count: int) -> Flags:
    if len(bitmap) > BITMAP_BYTES_MAX:
        raise InvalidArgument(
            "candidates.node_bitmap", f"{len(bitmap)} bytes, expected at most {BITMAP_BYTES_MAX}"
        )
    bits = np.unpackbits(np.frombuffer(bitmap, dtype=np.uint8), bitorder="little")
    if bits[count:].any():
        beyond = count + int(np.flatnonzero(bits[count:])[0])
        raise InvalidArgument(
            "candidates.node_bitmap",
            f"index {beyond} is set, expected below {count}, the number of nodes",
        )
    nodes = np.zeros(count, dtype=bool)
    size = min(count, bits.size)
    nodes[:size] = bits[:size]
    return nodes


def nodes_of(message: placement_pb2.EvaluatePlacementRequest, snapshot: Judgement) -> Indexes:
    """Return the nodes that the caller chose. Raises InvalidArgument, FailedPrecondition."""
    check_epoch("dictionary_version", message.dictionary_version, snapshot)
    nodes = np.array(message.node_index, dtype=np.intp)
    count = len(snapshot.names)
    if not 1 <= nodes.size <= NODES_MAX:
        raise InvalidArgument("node_index", f"{nodes.size} nodes, expected 1 to {NODES_MAX}")
    if nodes.max() >= count:
        raise InvalidArgument(
            "node_index", f"{nodes.max()}, expected below {count}, the number of nodes"
        )
    if np.bincount(nodes).max() > 1:
        raise InvalidArgument("node_index", "a node is listed twice, expected each once")
    if not message.gang.HasField("sizes") and message.gang.nodes not in (0, nodes.size):
        raise InvalidArgument(
            "gang.nodes", f"{message.gang.nodes}, expected {nodes.size}, as in node_index, or 0"
        )
    return nodes


def estimate_message(one: Quantity, *, explain: bool) -> placement_pb2.Estimate:
    """Return a quantity as a message."""
    source: Any = int(one.source)
    return placement_pb2.Estimate(
        value=one.value,
        lower=one.lower,
        upper=one.upper,
        source=source,
        evidence=one.evidence if explain else "",
    )


def price_message(price: GangPrice, *, explain: bool) -> placement_pb2.PlacementPrice:
    """Return a price as a message."""
    return parts_message(price.total, price.parts, explain=explain)


def parts_message(
    total: Quantity, parts: Sequence[PricePart], *, explain: bool
) -> placement_pb2.PlacementPrice:
    """Return a total and its parts as a message."""
    return placement_pb2.PlacementPrice(
        total_gpu_hours=estimate_message(total, explain=explain),
        parts=[
            placement_pb2.PlacementPricePart(
                name=part.name, gpu_hours=estimate_message(part.gpu_hours, explain=explain)
            )
            for part in parts
        ],
    )


def option_message(
    table: NodeTable,
    option: PlacementChoice,
    *,
    explain: bool,
    violations: Sequence[str] = (),
    needs: GangRequirements | None = None,
) -> placement_pb2.PlacementOption:
    """Return an option as a message, with its scaling if *needs* has several sizes."""
    reply = placement_pb2.PlacementOption(
        gpu_mask=option.gpu_masks.tobytes(),
        spares_wanted=option.backups_wanted,
        survival=estimate_message(option.price.survival, explain=explain),
        speed=estimate_message(option.price.speed, explain=explain),
        topology_factor=estimate_message(option.price.topology, explain=explain),
        goodput=estimate_message(option.price.goodput, explain=explain),
        price=price_message(option.price, explain=explain),
        gap_gpu_hours_max=option.gap_gpu_hours if isfinite(option.gap_gpu_hours) else 0.0,
        violations=violations,
    )
    reply.MergeFromString(packed(placement_pb2.PlacementOption, {"node_index": option.nodes}))
    reply.spare_node_index.extend(option.backups.tolist())
    names = table.facts.domains.names
    if option.groups is not None:
        _add_groups(reply, option.groups, table, explain=explain)
    for tier, domains, unknown in zip(PRICED_TIERS, option.domains, option.unknown, strict=True):
        if names[tier.row]:
            reply.spanned.add(tier=_number(tier), domains=domains, unknown_nodes=unknown)
    for stranded_tier, before, after in option.strands:
        reply.strands.add(tier=_number(stranded_tier), nodes_before=before, nodes_after=after)
    if needs is not None and needs.elastic is not None:
        size = int(option.nodes.size)
        efficiency = needs.elastic.efficiency(size)
        until = work_hours(needs.elastic, option.price, size, needs.hours)
        reply.scaling_efficiency.CopyFrom(estimate_message(efficiency, explain=explain))
        reply.work_hours.CopyFrom(estimate_message(until, explain=explain))
    return reply


def _add_groups(
    reply: placement_pb2.PlacementOption, spans: GroupSpans, table: NodeTable, *, explain: bool
) -> None:
    """Add the domains that each group spans to *reply*."""
    names = table.facts.domains.names
    reply.pipeline_stages_together = spans.stages_together
    for kind in spans.kinds:
        group = reply.groups.add(kind=kind.kind, size=kind.size, groups=kind.count)
        group.traffic_share.CopyFrom(estimate_message(kind.traffic, explain=explain))
        for tier, crossing, unknown in zip(PRICED_TIERS, kind.crossing, kind.unknown, strict=True):
            if names[tier.row]:
                group.crossing.add(tier=_number(tier), groups=crossing, unknown_groups=unknown)


def _number(tier: Tier | None) -> Any:
    """Return *tier* as the type that protobuf's stubs accept; they do not know IntEnum."""
    return 0 if tier is None else int(tier)


def listed_tier(value: int) -> Tier:
    """Return a tier of the request. Raises InvalidArgument."""
    tier = _tier("tier", value)
    if tier is None:
        names = "TIER_NVLINK_DOMAIN to TIER_COOLING_DOMAIN"
        raise InvalidArgument("tier", f"unspecified, expected {names}")
    return tier


def domains_message(
    table: NodeTable, candidates: Candidates, tier: Tier
) -> placement_pb2.ListTopologyDomainsResponse:
    """Return the domains of a tier, by name."""
    ids = table.facts.domains.ids[tier.row]
    names = table.facts.domains.names[tier.row]
    free, usable = candidates.nodes, candidates.nodes & ~table.excluded
    reply = placement_pb2.ListTopologyDomainsResponse(
        unknown_node_index=np.flatnonzero(ids < 0).tolist(),
        free_bitmap=np.packbits(free, bitorder="little").tobytes(),
        excluded_bitmap=np.packbits(table.excluded, bitorder="little").tobytes(),
        candidates_source=candidates.source,
        score_version=table.snapshot.version,
        dictionary_version=table.snapshot.dictionary_version,
    )
    nodes = np.argsort(ids, kind="stable")
    starts = np.searchsorted(ids[nodes], np.arange(len(names) + 1))
    for index in sorted(range(len(names)), key=lambda domain: names[domain]):
        members = nodes[starts[index] : starts[index + 1]]
        if members.size:  # a domain without remaining nodes is omitted
            reply.domains.add(
                name=names[index],
                node_index=members.tolist(),
                free_nodes=int(free[members].sum()),
                usable_nodes=int(usable[members].sum()),
            )
    return reply


def apply_change(gang: placement_pb2.GangRequirements, needs: GangRequirements) -> None:
    """Write changed requirements into the request's message."""
    if needs.elastic is None:  # otherwise `nodes` is the size for which the length is given
        gang.nodes = needs.nodes
        gang.ClearField("sizes")
    gang.gpus_per_node = needs.gpus_per_node
    if gang.HasField("groups"):
        groups = gang.groups
        groups.tensor, groups.pipeline = needs.tensor_parallel, needs.pipeline_parallel
        groups.data = needs.data_parallel
    gang.node_score_min, gang.survival_min = needs.score_min, needs.survival_min
    if gang.HasField("memory"):
        memory = gang.memory
        memory.hbm_bytes = needs.memory.hbm_bytes
        memory.smaller_batch_hbm_bytes = needs.memory.smaller_batch_hbm_bytes
        memory.page_cache_bytes = needs.memory.page_cache_bytes
    invariants = gang.invariants
    invariants.within = _number(needs.within)
    invariants.segment_nodes = needs.segment_nodes if needs.segment_nodes > 1 else 0
    invariants.segment_tier = _number(needs.segment_tier)
    invariants.same_rails = needs.same_rails
    invariants.spread_over = _number(needs.spread_over)
    invariants.spread_nodes_max = needs.spread_nodes_max
