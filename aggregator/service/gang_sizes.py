"""Sizes of a gang in messages: validates the conditions, lists the sizes, and encodes costs."""

from __future__ import annotations

from math import isfinite

from ...contract.wire import placement_pb2
from ..decisions.elastic import SizePrice
from ..decisions.quantity import QuantitySource
from ..decisions.requirements import NODES_MAX
from ..decisions.scaling import POINTS_MAX, SIZES_MAX, ElasticSizes, ScalingCurve, scaling_curve
from ..errors import InvalidArgument
from ..scoring.reported_factors import ReportedThroughputs
from .validation import check_range, check_real, check_text

WORKLOAD_NAME_CHARACTERS_MAX = 256
#: Larger throughputs are rejected as mistakes.
THROUGHPUT_MAX = 1e15
FIELD = "gang.sizes"


def sizes_of(
    gang: placement_pb2.GangRequirements, reported: ReportedThroughputs
) -> ElasticSizes | None:
    """Return the sizes that a gang may have; None: a fixed size. Raises InvalidArgument.

    *reported*: used if the request has no throughputs.
    """
    curve = curve_of(gang, reported)
    if not gang.HasField("sizes"):
        return None
    requested, segment = gang.sizes, max(gang.invariants.segment_nodes, 1)
    check_real(f"{FIELD}.free_gpu_value", requested.free_gpu_value, 1.0)
    check_range("gang.nodes", gang.nodes, 0, NODES_MAX)
    sizes = _listed(requested, segment) if requested.allowed_nodes else _ranged(requested, segment)
    if len(sizes) > SIZES_MAX:
        raise InvalidArgument(
            FIELD,
            f"{len(sizes)} sizes, expected at most {SIZES_MAX}: set powers_of_two, or a larger multiple_of",
        )
    return ElasticSizes(tuple(sizes), curve, requested.free_gpu_value, gang.nodes)


def _listed(requested: placement_pb2.GangSizes, segment: int) -> list[int]:
    if (
        requested.min_nodes
        or requested.max_nodes
        or requested.multiple_of
        or requested.powers_of_two
    ):
        raise InvalidArgument(
            f"{FIELD}.allowed_nodes",
            "expected alone, without min_nodes, max_nodes, multiple_of and powers_of_two",
        )
    field = f"{FIELD}.allowed_nodes"
    if len(requested.allowed_nodes) > SIZES_MAX:
        raise InvalidArgument(
            field, f"{len(requested.allowed_nodes)} sizes, expected at most {SIZES_MAX}"
        )
    for size in requested.allowed_nodes:
        check_range(field, size, 1, NODES_MAX)
        if size % segment:
            raise InvalidArgument(
                field,
                f"{size} nodes are not whole segments of {segment}; expected multiples of {segment}",
            )
    sizes = sorted(set(requested.allowed_nodes))
    if len(sizes) < len(requested.allowed_nodes):
        raise InvalidArgument(field, "a size is listed twice, expected each once")
    return sizes


def _ranged(requested: placement_pb2.GangSizes, segment: int) -> list[int]:
    check_range(f"{FIELD}.max_nodes", requested.max_nodes, 1, NODES_MAX)
    check_range(f"{FIELD}.min_nodes", requested.min_nodes, 1, requested.max_nodes)
    check_range(f"{FIELD}.multiple_of", requested.multiple_of, 0, NODES_MAX)
    multiple = max(requested.multiple_of, 1)
    if requested.powers_of_two:
        every = [1 << bit for bit in range(NODES_MAX.bit_length())]
    else:
        every = list(range(multiple, requested.max_nodes + 1, multiple))
    sizes = [
        size
        for size in every
        if requested.min_nodes <= size <= requested.max_nodes
        and size % multiple == 0
        and size % segment == 0
    ]
    if not sizes:
        conditions = [f"{requested.min_nodes} to {requested.max_nodes} nodes"]
        conditions += [f"a multiple of {multiple}"] if multiple > 1 else []
        conditions += ["a power of two"] if requested.powers_of_two else []
        conditions += [f"whole segments of {segment}"] if segment > 1 else []
        raise InvalidArgument(
            FIELD, f"no size is {', '.join(conditions)}; expected at least one that is"
        )
    return sizes


def curve_of(gang: placement_pb2.GangRequirements, reported: ReportedThroughputs) -> ScalingCurve:
    """Return throughput by size: the request's, else the outcomes'. Raises InvalidArgument."""
    points = gang.throughputs
    check_text("gang.workload_name", gang.workload_name, WORKLOAD_NAME_CHARACTERS_MAX)
    name = gang.workload_name or gang.workload.job
    if not points and (known := reported.points(name)):
        return scaling_curve(known, QuantitySource.REPORTED)
    if len(points) > POINTS_MAX:
        raise InvalidArgument(
            "gang.throughputs", f"{len(points)} points, expected at most {POINTS_MAX}"
        )
    for index, point in enumerate(points):
        check_range(f"gang.throughputs[{index}].nodes", point.nodes, 1, NODES_MAX)
        if not 0.0 < point.throughput <= THROUGHPUT_MAX:
            raise InvalidArgument(
                f"gang.throughputs[{index}].throughput",
                f"{point.throughput:g}, expected above 0, to {THROUGHPUT_MAX:g}",
            )
    return scaling_curve([(point.nodes, point.throughput) for point in points])


def add_sizes(
    reply: placement_pb2.PlanPlacementResponse,
    elastic: ElasticSizes,
    sizes: tuple[SizePrice, ...],
    *,
    explain: bool,
) -> None:
    """Add the cost of each size to *reply*."""
    for size in sizes:
        efficiency = elastic.efficiency(size.nodes)
        message = reply.sizes.add(
            nodes=size.nodes,
            gpu_hours_min=size.gpu_hours_min if isfinite(size.gpu_hours_min) else 0.0,
            does_not_fit=size.gpu_hours == float("inf"),
        )
        if isfinite(size.gpu_hours):
            message.gpu_hours = size.gpu_hours
        message.scaling_efficiency.value = efficiency.value
        message.scaling_efficiency.lower = efficiency.lower
        message.scaling_efficiency.upper = efficiency.upper
        message.scaling_efficiency.source = int(efficiency.source)  # type: ignore[assignment]
        message.scaling_efficiency.evidence = efficiency.evidence if explain else ""
