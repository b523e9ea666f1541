"""What `gangline admin backup`, `verify` and the others share: the store stopped or held, words and exit codes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import grpc

from ...fingerprints.settings import SettingsError
from ...fingerprints.wire import admin_pb2
from ...fingerprints.wire.admin_pb2_grpc import AdminServiceStub
from ..access.authority import AuthorityError
from ..access.names import NAME_FORM, is_name
from ..access.tokens import TokensError
from ..config import AggregatorConfig
from ..store.storefile import FILE, StoreError
from ..store.upkeep.copying import CopyError, why
from ..store.upkeep.still import Still, in_use, no_store, stopped, unmoved
from . import client
from .client import FAILED, NO_ANSWER, SILENCE, accepts, translated
from .way import ADDRESS_VARIABLE, CommandError, Way, add_way, dialled

#: Who has the files may still not tell the service to hold them.
LOGIN = (
    "Log in as an admin: --token-file FILE (gangline admin token new --role admin --name NAME), or --cert and "
    "--key (gangline admin cert issue --role admin --name NAME)"
)
DATA_DEFAULT: Path = AggregatorConfig.__dataclass_fields__["data"].default  # type: ignore[assignment]


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """Add --data, and the way to the aggregator."""
    add_data_option(parser)
    add_way(parser)


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """Add --data."""
    parser.add_argument(
        "--data", type=Path, default=DATA_DEFAULT, metavar="DIR",
        help=f"the aggregator's folder (default: {DATA_DEFAULT})",
    )  # fmt: skip


def caller_name(text: str) -> str:
    """Return *text* as it is if a caller may be named so. Raises argparse.ArgumentTypeError with words."""
    if not is_name(text):
        raise argparse.ArgumentTypeError(f"{text[:64]!r}: expected {NAME_FORM}")
    return text


def guarded(command: str, run: Callable[[], int]) -> int:
    """Run it; failures become words on stderr and an exit code. Ctrl-C is 130, after what it began is swept."""

    def told() -> int:
        try:
            return run()
        except (CopyError, StoreError, SettingsError, AuthorityError, TokensError) as error:
            raise CommandError(str(error), FAILED) from error
        except OSError as error:
            words = why(error) if error.filename is None else f"{error.filename}: {why(error)}"
            raise CommandError(words, FAILED) from error

    return client.guarded(f"admin {command}", told)


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
            raise told(error, data, way) from error
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
            raise told(call, data, way)
        unchanged()

    micros = file.stood_still_microseconds
    return Still(data, True, file.wal_bytes, file.wall_time_ns, journal, micros, check)


def told(error: Any, data: Path, way: Way) -> CommandError:
    """Return what to say of a call to the aggregator of *data* that ended or never was."""
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return CommandError(str(error.details()), FAILED)
    if error.code() is grpc.StatusCode.PERMISSION_DENIED:
        return CommandError(f"{error.details()}. {LOGIN}", FAILED)
    if error.code() in SILENCE and not accepts(way.aggregator):
        return CommandError(
            f"{data} is in use, and no aggregator answers at {way.aggregator}: name where that of {data} listens "
            f"with --aggregator ADDRESS:PORT or {ADDRESS_VARIABLE}",
            NO_ANSWER,
        )
    other = translated(error, way)
    return CommandError(f"{data} is in use by an aggregator, and {other}", other.code)
