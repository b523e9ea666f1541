"""Options and table of `gangline plan` for gangs that may have several sizes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from ...contract.client.terminal import table
from ...contract.wire import placement_pb2 as wire

POWER_OF_TWO, MULTIPLE_OF = "power-of-two", "multiple-of-"
#: Maximum count of numbers in an option.
NUMBERS_MAX = 256


def sizes_option(text: str) -> wire.GangSizes:
    match = re.fullmatch(
        rf"(\d{{1,6}})\.\.(\d{{1,6}})(?::({POWER_OF_TWO}|{MULTIPLE_OF}\d{{1,6}}))?", text, re.ASCII
    )
    if match is not None:
        sizes = wire.GangSizes(min_nodes=int(match[1]), max_nodes=int(match[2]))
        sizes.powers_of_two = match[3] == POWER_OF_TWO
        if match[3] and not sizes.powers_of_two:
            sizes.multiple_of = int(match[3].removeprefix(MULTIPLE_OF))
        return sizes
    if re.fullmatch(r"\d{1,6}(,\d{1,6})*", text, re.ASCII) and text.count(",") < NUMBERS_MAX:
        return wire.GangSizes(allowed_nodes=[int(number) for number in text.split(",")])
    raise argparse.ArgumentTypeError(
        f"{text[:40]!r}: expected 8..64, 8..64:{POWER_OF_TWO}, 8..64:{MULTIPLE_OF}4, or 8,12,16"
    )


def throughputs_option(text: str) -> list[wire.ThroughputPoint]:
    """Return the points of `8=1200,16=2310`: node count and the whole gang's throughput."""
    points: list[wire.ThroughputPoint] = []
    for point in text.split(",", NUMBERS_MAX):
        match = re.fullmatch(r"(\d{1,6})=(\d+(?:\.\d+)?(?:e\d{1,2})?)", point, re.ASCII)
        if match is None:
            raise argparse.ArgumentTypeError(
                f"{point[:40]!r}: expected NODES=THROUGHPUT, as 8=1200,16=2310"
            )
        points.append(wire.ThroughputPoint(nodes=int(match[1]), throughput=float(match[2])))
    return points


def add_size_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for gangs with several possible sizes."""
    add = parser.add_argument
    add(
        "--sizes",
        type=sizes_option,
        metavar="8..64",
        help="any of these sizes: 8..64, 8..64:power-of-two, 8..64:multiple-of-4, or 8,12,16; "
        "--for is the length at --nodes, by default at the largest",
    )
    add(
        "--throughput",
        type=throughputs_option,
        default=[],
        metavar="N=T,N=T",
        help="throughput of earlier runs by nodes, in any unit, as 8=1200,16=2310",
    )
    add(
        "--free-gpu-value",
        type=float,
        default=0.0,
        metavar="V",
        help="what a GPU-hour left free is worth to others, 0 to 1 (default 0: it is idle)",
    )


def apply_sizes(gang: wire.GangRequirements, options: argparse.Namespace) -> None:
    """Copy the size options into *gang*."""
    gang.throughputs.extend(options.throughput)
    if options.sizes is None:
        return
    gang.sizes.CopyFrom(options.sizes)
    gang.sizes.free_gpu_value = options.free_gpu_value


def sizes_lines(sizes: Sequence[wire.PlacementSize], chosen: int) -> list[str]:
    """Return a table of the sizes, with a mark at the size of the first option."""
    rows = [("NODES", "LOST GPU-H", "SCALING", "90 %", "")]
    for size in sizes:
        scaling = size.scaling_efficiency
        cost = (
            f"{size.gpu_hours:.1f}" if size.HasField("gpu_hours") else f"> {size.gpu_hours_min:.1f}"
        )
        rows.append(
            (
                str(size.nodes),
                "does not fit" if size.does_not_fit else cost,
                f"{scaling.value:.3f}",
                f"{scaling.lower:.2f} to {scaling.upper:.2f}",
                "<- option 1" if size.nodes == chosen else "",
            )
        )
    lines = table(rows).splitlines()
    known = {
        wire.EstimateSource.Name(size.scaling_efficiency.source).rpartition("_")[2].lower()
        for size in sizes
    }
    return [*lines, f"scaling: {', '.join(sorted(known))}"]
