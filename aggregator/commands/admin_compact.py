"""`gangline admin compact`: the free space of the store given back, while readings are taken."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import grpc

from ...fingerprints.wire import admin_pb2
from ..config import AggregatorConfig
from ..store.store import Store
from ..store.storefile import FILE
from ..store.upkeep.compact import compact
from ..store.upkeep.copying import CopyError, words_of_bytes
from ..store.upkeep.still import in_use, no_store
from .admin_store import add_store_options, channel, guarded, held, told
from .client import FAILED, OK, CommandError, Way, way_of
from .progress import Progress


def main(arguments: list[str]) -> int:
    """Compact. 1: the store is as it was, with words; 3: an aggregator has it and does not answer."""
    options = _parser().parse_args(arguments)
    return guarded("compact", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    if not (options.data / FILE).exists():
        raise CopyError(no_store(options.data))
    progress = Progress(quiet=options.json, said=lambda rows: f"{rows:,} rows")
    progress.begin("copying", 0)
    running = in_use(options.data)
    if running:
        done = _running(options.data, way_of(options), progress)
    else:
        done = _stopped(options.data, progress)
    progress.end()
    before, after, micros = done
    if options.json:
        print(
            json.dumps(
                {"bytes_before": before, "bytes_after": after, "stood_still_microseconds": micros}
            )
        )
    else:
        print(
            f"{options.data / FILE}: {words_of_bytes(after)}, was {words_of_bytes(before)}"
            + f"; for {micros / 1e6:.2f} s nothing was stored" * running
        )
    return OK


def _running(data: Path, way: Way, progress: Progress) -> tuple[int, int, int]:
    with held(data, way):
        pass  # it raises where the aggregator there stores elsewhere, whose store nobody asked us to compact
    with channel(way) as stub:
        call = stub.CompactStore(admin_pb2.CompactStoreRequest())
        try:
            for message in call:
                progress.at(message.rows, message.rows_total)
                if message.done:
                    return (
                        message.bytes_before, message.bytes_after, message.stood_still_microseconds
                    )  # fmt: skip
        except grpc.RpcError as error:
            words = str(error.details()) if hasattr(error, "details") else ""
            if "compacted" in words:
                raise CommandError(words, FAILED) from error
            raise told(error, data, way) from error
        finally:
            call.cancel()
    raise CommandError(f"the aggregator at {way.aggregator} did not say how it ended", FAILED)


def _stopped(data: Path, progress: Progress) -> tuple[int, int, int]:
    store = Store.open(data, AggregatorConfig(data=data))
    try:
        done = compact(store, progress.at)
    finally:
        store.close()
    return done.bytes_before, done.bytes_after, done.stood_still_microseconds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline admin compact",
        description="Write the store's file anew without the space that dropped hours left free in it, and put "
        "it in the place of the old one. Needs as much room beside it as what is in use. Readings are taken "
        "all the while; nothing is stored, and no receipt given, for the moment of the exchange, which is said.",
        epilog="exit codes: 0 done, 1 failed and the store is as it was, 2 wrong usage, 3 no aggregator answers",
    )
    add_store_options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object, no progress")
    return parser
