"""The aggregator's fleet and judge, with any reports from one of three hosts."""

from __future__ import annotations

import math
import random
import warnings
from contextlib import suppress
from functools import cache

from gangline.agent.kernel_log.rules import RULES
from gangline.aggregator.errors import InvalidArgument
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.ingest.sessions import check_events
from gangline.aggregator.model import HealthState
from gangline.contract import frame as frames
from gangline.contract.block import Block, is_float
from gangline.contract.frame import FrameError, Stamp
from gangline.contract.signals import TABLES
from gangline.contract.wire.telemetry_pb2 import HealthEvent, ReportEventsRequest
from tests.fuzzing.damage import ACCEPTED, ODD_WORDS, REFUSED
from tests.worlds import World

SECONDS = 2
WORDS_BYTES_MAX = 8192
ODD_FLOATS = (
    math.nan, math.inf, -math.inf, -1.0, 0.0, -0.0, 1e308, -1e308, 5e-324, 1.0, 2.0**32 - 1, 2.0**64, 101.0,
)  # fmt: skip
ODD_INTEGERS = (0, 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, 2**31, 255, 15)
_EVENT_NAMES = sorted(
    {rule.name for rule in RULES} | {"gpu.lost", "net.link", "collector.outcome", "x.y", ""}
)


@cache
def _calm() -> dict[str, HealthState]:
    world = _world()
    world.run(SECONDS)
    return {host.name: world.score(host).state for host in world.hosts}


def _world() -> World:
    return World(hosts=3, gpus=1)


def fuzz_fleet(source: random.Random) -> str:
    """A host reports odd values and events: its score is within 0 and 1, and its neighbors' scores do not change."""
    world = _world()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy's, of NaN and of overflow
        for _ in range(SECONDS):
            _tell(world, source)
            world.run(1)
    for host in world.hosts:
        host_score = world.score(host)
        assert 0 <= host_score.score_lower <= host_score.score <= host_score.score_upper <= 1, (
            host_score
        )
        assert math.isfinite(host_score.hazard_per_hour) and host_score.hazard_per_hour >= 0, (
            host_score
        )
        assert (
            len(f"{host_score.reason_message}{host_score.clears_when}".encode()) < WORDS_BYTES_MAX
        ), host_score
        assert host is world.hosts[0] or host_score.state is _calm()[host.name], host_score
    return REFUSED if world.score(world.hosts[0]).state is _calm()["h0"] else ACCEPTED


def _tell(world: World, source: random.Random) -> None:
    host = world.hosts[0]
    if source.random() < 0.5:
        for _ in range(source.randrange(1, 5)):
            _report(world, _event(source))
        return
    host.sequence += 1
    boottime_ns = source.choice((world.now_ns - host.booted_ns, 0, 1, 2**64 - 1))
    stamp = Stamp(b"R" * 16, host.boot_id, host.sequence, boottime_ns, world.now_ns)
    with suppress(FrameError):
        frame = read_frame(frames.encode(stamp, [_block(host.readings, source)]))
        world.fleet.observe(host.name, frame, world.now_ns)


def _block(readings: dict[tuple[str, str], dict[str, float]], source: random.Random) -> Block:
    """Return a table of a known or unknown host, with odd cells."""
    table, device = source.choice(sorted(readings))
    if source.random() < 0.3:
        table, device = (
            source.choice(sorted(TABLES)),
            source.choice(("", "x", "GPU-", "a/b", "host")),
        )
    block = Block(table, [device] * source.choice((1, 1, 1, 2)))
    for column, signal_id in enumerate(block.signal_ids):
        for row in range(block.rows):
            if is_float(signal_id):
                block.put_float(column, row, source.choice((None, *ODD_FLOATS)))
            else:
                block.put_int(column, row, source.choice((None, *ODD_INTEGERS)))
    block.offset_ns = source.choice((0, 0, -1, 10**15))
    return block


def _event(source: random.Random) -> HealthEvent:
    word = source.choice(ODD_WORDS).decode(errors="replace")
    name = source.choice(_EVENT_NAMES)
    return HealthEvent(
        event_id=f"e{source.getrandbits(40)}", device_kind=name.partition(".")[0], name=name,
        device=source.choice(("0000:00:00.0", "0000:01:00.0", "host", "", word)),
        code=source.choice((0, 1, 2, 31, 48, 74, 79, 94, 95, 119, 145, 154, 999_999, 2**32 - 1)),
        message=word, count=source.choice((0, 1, 10**15)), revision=source.choice((0, 1, 2**32 - 1)),
        boottime_ns=source.choice((0, 1, 2**64 - 1)), process_name=word,
        attributes={
            source.choice(("severity", "action", "recovery", "link", "pci_address", "port", "dimm", word)):
                source.choice(("fatal", "ignore", "none", "reboot", word, "x" * 1024))
            for _ in range(source.randrange(4))
        },
    )  # fmt: skip


def _report(world: World, event: HealthEvent) -> None:
    with suppress(InvalidArgument):
        check_events(ReportEventsRequest(events=[event]))
        world.fleet.observe_event(world.hosts[0].name, event, world.now_ns)


TARGETS = {"fleet": fuzz_fleet}
