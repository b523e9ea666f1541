"""What `gangline admin backup`, `verify` and the others share: the store stopped or held, words and exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import grpc

from ...fingerprints.settings import SettingsError
from ...fingerprints.wire import admin_pb2
from ...fingerprints.wire.admin_pb2_grpc import AdminServiceStub
from ..config import AggregatorConfig
from ..store.storefile import FILE, StoreError
from ..store.upkeep.copying import CopyError
from ..store.upkeep.still import Still, in_use, no_store, stopped, unmoved
from .client import FAILED, translated
from .way import CommandError, Way, add_way, dialled

#: The writer ends the commit that is under way first; on a slow disk that takes a while.
HOLD_SECONDS = 60.0
DATA_DEFAULT: Path = AggregatorConfig.__dataclass_fields__["data"].default  # type: ignore[assignment]


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """Add --data, and the way to the aggregator."""
    parser.add_argument(
        "--data", type=Path, default=DATA_DEFAULT, metavar="DIR",
        help=f"the aggregator's folder (default: {DATA_DEFAULT})",
    )  # fmt: skip
    add_way(parser)


def guarded(command: str, run: Callable[[], int]) -> int:
    """Run it; failures become words on stderr and an exit code. Ctrl-C is 130, after what it began is swept."""
    try:
        return run()
    except CommandError as error:
        words, code = str(error), error.code
    except (CopyError, StoreError, SettingsError) as error:
        words, code = str(error), FAILED
    except PermissionError as error:
        words = f"{error.filename}: permission denied; run it as the aggregator's user, or as root"
        code = FAILED
    print(f"gangline admin {command}: {words}", file=sys.stderr)
    return code


def still(data: Path, way: Way) -> AbstractContextManager[Still]:
    """Return the store in *data*, held by its aggregator while that runs."""
    if not (data / FILE).exists():
        raise CopyError(no_store(data))
    return held(data, way) if in_use(data) else stopped(data)


@contextmanager
def channel(way: Way) -> Iterator[Any]:
    """Yield a stub of the admin service. Raises CommandError."""
    with dialled(way, [("grpc.enable_retries", 0)]) as made:
        yield AdminServiceStub(made)  # type: ignore[no-untyped-call]


@contextmanager
def held(data: Path, way: Way) -> Iterator[Still]:
    """Yield the store in *data*, held still by its aggregator. Raises CommandError, CopyError."""
    with channel(way) as stub:
        call = stub.HoldStore(admin_pb2.HoldStoreRequest())
        try:
            journal = bytearray()
            file: admin_pb2.HeldFile | None = None
            while file is None:
                message = next(call)
                journal += message.journal
                file = message.file if message.HasField("file") else None
            yield _still(data, way, call, file, bytes(journal))
        except grpc.RpcError as error:
            raise _told(error, data, way) from error
        finally:
            call.cancel()


def _still(data: Path, way: Way, call: Any, file: admin_pb2.HeldFile, journal: bytes) -> Still:
    path = data / FILE
    if path.stat().st_ino != file.inode:
        raise CopyError(
            f"the aggregator at {way.aggregator} stores in {file.path}, not in {data}: name that folder with "
            "--data, or the aggregator of this one with --aggregator ADDRESS:PORT"
        )
    unchanged = unmoved(path)

    def check() -> None:
        if not call.is_active():
            raise _told(call, data, way)
        unchanged()

    micros = file.stood_still_microseconds
    return Still(data, True, file.wal_bytes, file.wall_time_ns, journal, micros, check)


def _told(error: Any, data: Path, way: Way) -> Exception:
    """Return what to say of a hold that ended or never was."""
    if error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.PERMISSION_DENIED):
        return CommandError(str(error.details()), FAILED)
    told = translated(error, way)
    return CommandError(f"{data} is in use by an aggregator, and {told}", told.code)
