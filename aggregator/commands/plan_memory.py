"""The option `--memory` of `gangline plan`: memory and transfers of a member, in GB."""

from __future__ import annotations

import argparse
import re

from ...contract.wire import placement_pb2 as wire

#: Name in the option -> field of the request.
FIELDS = {
    "hbm": "hbm_bytes",
    "smaller-batch-hbm": "smaller_batch_hbm_bytes",
    "host-per-step": "host_bytes_per_step",
    "nvme-per-step": "nvme_bytes_per_step",
    "page-cache": "page_cache_bytes",
}
STEP = "step"
_ITEM = re.compile(r"([a-z-]+)=([0-9]{1,6}(?:\.[0-9]{1,6})?)(GB|s)")
_FORM = f"NAME=SIZE, as hbm=70GB or step=2.5s, separated by commas; the names are {', '.join(FIELDS)} and {STEP}"


def memory_option(text: str) -> wire.MemoryNeeds:
    """Return the memory of a member. Raises ArgumentTypeError."""
    memory, seen = wire.MemoryNeeds(), set[str]()
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        name = match[1] if match else ""
        if match is None or name in seen or match[3] != ("s" if name == STEP else "GB"):
            raise argparse.ArgumentTypeError(f"{item[:40]!r}: expected {_FORM}, each once")
        seen.add(name)
        if name == STEP:
            memory.step.FromNanoseconds(round(float(match[2]) * 1e9))
        elif name in FIELDS:
            setattr(memory, FIELDS[name], float(match[2]) * 1e9)
        else:
            raise argparse.ArgumentTypeError(f"{item[:40]!r}: expected {_FORM}")
    return memory


def add_memory_option(parser: argparse.ArgumentParser) -> None:
    """Add `--memory`."""
    parser.add_argument(
        "--memory",
        type=memory_option,
        metavar="NAME=SIZE,...",
        help="memory and transfers of a member: hbm per GPU, page-cache per node; with step, host-per-step of each GPU and "
        "nvme-per-step of each node; smaller-batch-hbm: with a smaller batch that the job may use, too. As "
        "hbm=70GB,host-per-step=20GB,step=2.5s (default: as agents saw it of --job)",
    )
