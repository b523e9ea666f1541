"""`gangline admin backup`, `restore`, `compact` and `verify`, and their common code."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from ...cli import json_object
from ...contract.client import connection
from ...contract.client.command_line import add_connection_options, host_set_option
from ...contract.client.connection import (
    ADDRESS_VARIABLE,
    FAILED,
    NO_ANSWER,
    NO_ANSWER_CODES,
    OK,
    CommandError,
    ConnectionOptions,
    accepts_connections,
    command_error,
    open_channel,
    read_connection_options,
)
from ...contract.client.terminal import ProgressBar
from ...contract.durable_file import (
    CopyError,
    copy_with_checksum,
    format_bytes,
    free_bytes,
    os_error_message,
)
from ...contract.options import add_former_names
from ...contract.settings import SettingsError
from ...contract.wire import admin_pb2
from ...contract.wire.admin_pb2_grpc import AdminServiceStub
from ..auth.ca import AuthorityError
from ..auth.tokens import TokensError
from ..config import AggregatorConfig
from ..principal import NAME_FORM, is_name
from ..store import durability_mark
from ..store.durability_mark import size_of
from ..store.maintenance import backup_files, verify
from ..store.maintenance.backup import Backup, BackupResult, remove_all_but
from ..store.maintenance.compact import compact
from ..store.maintenance.consistent_view import (
    ConsistentView,
    change_check,
    in_use,
    no_store_message,
    open_stopped_store,
    why_no_migration,
)
from ..store.maintenance.restore import RestoreResult, check_files, restore
from ..store.maintenance.verify import VerifyReport
from ..store.store import Store
from ..store.store_folder import STORE_FILE, VERIFY_SCRATCH_PREFIX, StoreError, wal_of

#: Hint for a caller who can read the files but may not ask the service to hold them.
LOGIN = (
    "Log in as an admin: --token-file FILE (gangline admin token new --role admin --name NAME), or --cert and "
    "--key (gangline admin cert issue --role admin --name NAME)"
)
DATA_DEFAULT: Path = AggregatorConfig.__dataclass_fields__["data"].default  # type: ignore[assignment]


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """Add --data, and the connection options."""
    add_data_option(parser)
    add_connection_options(parser)


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """Add --data."""
    parser.add_argument(
        "--data",
        type=Path,
        default=DATA_DEFAULT,
        metavar="DIR",
        help=f"the aggregator's folder (default: {DATA_DEFAULT})",
    )


def caller_name(text: str) -> str:
    """Return *text* unchanged if it is a valid caller name. Raises ArgumentTypeError."""
    if not is_name(text):
        raise argparse.ArgumentTypeError(f"{text[:64]!r}: expected {NAME_FORM}")
    return text


def caller_names(text: str) -> list[str]:
    """Return the callers of *text*, a name or a host set. Raises ArgumentTypeError."""
    if is_name(text):
        return [text]
    return [caller_name(name) for name in host_set_option(text)]


def guarded(command: str, run: Callable[[], int]) -> int:
    """Run the command; print a failure and return its exit code, 130 for Ctrl-C."""

    def run_translated() -> int:
        try:
            return run()
        except (CopyError, StoreError, SettingsError, AuthorityError, TokensError) as error:
            raise CommandError(str(error), FAILED) from error
        except OSError as error:
            if error.filename is None:
                detail = os_error_message(error)
            else:
                detail = f"{error.filename}: {os_error_message(error)}"
            raise CommandError(detail, FAILED) from error

    return connection.guarded(f"admin {command}", run_translated)


def consistent_view(
    data: Path, connection_options: ConnectionOptions
) -> AbstractContextManager[ConsistentView]:
    """Return a consistent view of the store in *data*, which a running aggregator holds still."""
    if not (data / STORE_FILE).exists():
        raise CopyError(no_store_message(data))
    return held_store(data, connection_options) if in_use(data) else open_stopped_store(data)


@contextmanager
def admin_stub(connection_options: ConnectionOptions) -> Iterator[Any]:
    """Yield a stub of the admin service. Raises CommandError."""
    with open_channel(connection_options, [("grpc.enable_retries", 0)]) as channel:
        yield AdminServiceStub(channel)  # type: ignore[no-untyped-call]


@contextmanager
def held_store(data: Path, connection_options: ConnectionOptions) -> Iterator[ConsistentView]:
    """Yield the store in *data*, held still by its aggregator. Raises CommandError, CopyError."""
    with admin_stub(connection_options) as stub:
        call = stub.HoldStore(admin_pb2.HoldStoreRequest())
        try:
            journal, answers = bytearray(), bytearray()
            file: admin_pb2.HeldFile | None = None
            while file is None:
                message = next(call)
                journal += message.journal
                answers += message.answers
                file = message.file if message.HasField("file") else None
            yield _held_view(data, connection_options, call, file, bytes(journal), bytes(answers))
        except grpc.RpcError as error:
            raise call_error(error, data, connection_options) from error
        finally:
            call.cancel()


def _held_view(
    data: Path,
    connection_options: ConnectionOptions,
    call: Any,
    file: admin_pb2.HeldFile,
    journal: bytes,
    answers: bytes,
) -> ConsistentView:
    path = data / STORE_FILE
    if path.stat().st_ino != file.inode:
        raise CopyError(
            f"the aggregator at {connection_options.aggregator} stores in {file.path}, not in "
            f"{data}: name that folder with --data, or the aggregator of this folder with "
            "--server ADDRESS:PORT"
        )
    unchanged = change_check(path)

    def check() -> None:
        if not call.is_active():
            raise call_error(call, data, connection_options)
        unchanged()

    micros = file.stood_still_microseconds
    return ConsistentView(
        data=data,
        is_running=True,
        wal_bytes=file.wal_bytes,
        as_of_ns=file.wall_time_ns,
        journal=journal,
        answers=answers,
        paused_microseconds=micros,
        check=check,
    )


def call_error(error: Any, data: Path, connection_options: ConnectionOptions) -> CommandError:
    """Return the error for a call to the aggregator of *data* that failed or could not start."""
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return CommandError(str(error.details()), FAILED)
    if error.code() is grpc.StatusCode.PERMISSION_DENIED:
        return CommandError(f"{error.details()}. {LOGIN}", FAILED)
    if error.code() in NO_ANSWER_CODES and not accepts_connections(connection_options.aggregator):
        return CommandError(
            f"{data} is in use, and no aggregator answers at {connection_options.aggregator}: name where that of {data} listens "
            f"with --server ADDRESS:PORT or {ADDRESS_VARIABLE}",
            NO_ANSWER,
        )
    other = command_error(error, connection_options)
    return CommandError(f"{data} is in use by an aggregator, and {other}", other.code)


def backup_main(arguments: list[str]) -> int:
    """Make a backup. Exit codes: 1 failed, with a message; 3 the store's aggregator is silent."""
    options = _backup_parser().parse_args(arguments)
    return guarded("backup", lambda: _run_backup(options))


def _run_backup(options: argparse.Namespace) -> int:
    if options.before_migration and (reason := why_no_migration(options.data)):
        print(json_object({"backup": None, "why": reason}) if options.json else reason)
        return OK
    with ProgressBar(quiet=options.json) as progress:
        backup = Backup(options.to, progress, access=options.with_access)
        result = backup.make(
            lambda: consistent_view(options.data, read_connection_options(options))
        )
    removed = remove_all_but(options.to, options.keep) if options.keep else []
    if options.json:
        print(json_object(_backup_document(result, removed)))
        return OK
    print(_print_backup(result))
    for folder in removed:
        print(f"removed {folder}")
    return OK


def _backup_document(made: BackupResult, removed: list[Path]) -> dict[str, object]:
    manifest = made.manifest
    return {
        "backup": str(made.folder), "as_of": manifest.as_of, "as_of_ns": manifest.as_of_ns, "rows": manifest.rows,
        "files": len(manifest.files), "size_bytes": manifest.size_bytes, "copied_bytes": made.copied_bytes,
        "stood_still_microseconds": made.paused_microseconds, "removed": [str(folder) for folder in removed],
    }  # fmt: skip


def _print_backup(made: BackupResult) -> str:
    manifest = made.manifest
    return (
        f"{made.folder}: as of {manifest.as_of}, {manifest.rows:,} rows in the live file, {len(manifest.files)} files, "
        f"{format_bytes(manifest.size_bytes)}, {format_bytes(made.copied_bytes)} copied"
        + f"; for {made.paused_microseconds / 1000:.1f} ms nothing was stored"
        * bool(made.paused_microseconds)
    )


def _backup_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline admin backup",
        description="Copies the current store into a new folder under DIR: the file, the journals of events and answers, the permit, and "
        "the Parquet files. Files that the previous backup has are hard-linked. The aggregator continues to store. The backup "
        "is read back while it is written, and is complete or absent.",
        epilog="exit codes: 0 done, 1 failed, 2 wrong usage, 3 no aggregator answers",
    )
    add_store_options(parser)
    add = parser.add_argument
    output = add(
        "-o",
        "--output",
        dest="to",
        type=Path,
        required=True,
        metavar="DIR",
        help="created if missing; best on another disk",
    )
    add_former_names(parser, output, "--to")
    add(
        "--keep",
        type=_count,
        default=0,
        metavar="N",
        help="then remove all but the newest N (default: remove none)",
    )
    add(
        "--before-migration",
        action="store_true",
        help="only if this version would migrate the store; else do nothing (exit code 0)",
    )
    add("--with-access", action="store_true", help="include certificates, keys and hashed tokens")
    add("--json", action="store_true", help="one JSON object, no progress")
    return parser


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and int(text)):
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected how many to keep, 1 to 9999")
    return int(text)


def restore_main(arguments: list[str]) -> int:
    """Restore a backup. Exit code 1: nothing was changed; a message says why."""
    options = _restore_parser().parse_args(arguments)
    return guarded("restore", lambda: _run_restore(options))


def _run_restore(options: argparse.Namespace) -> int:
    with ProgressBar(quiet=options.json) as progress:
        done = restore(
            options.backup or options.source, options.data, progress, force=options.force
        )
    if options.json:
        document = {
            "data": str(options.data),
            "backup": str(done.backup),
            "as_of": done.manifest.as_of,
            "as_of_ns": done.manifest.as_of_ns,
            "rows": done.manifest.rows,
            "replaced": str(done.replaced) if done.replaced else None,
        }
        print(json_object(document))
    else:
        print(_print_restore(done, options.data))
    return OK


def _print_restore(done: RestoreResult, data: Path) -> str:
    manifest = done.manifest
    lines = (
        f"{data}: restored as of {manifest.as_of} from {done.backup}: {manifest.rows:,} rows in the live file, {len(manifest.files)} files. "
        "Data stored after that moment is not in it; agents resend what has not been acknowledged"
    )
    if done.replaced:
        lines += f"\nthe previous contents are in {done.replaced}: remove that folder once everything works"
    return f"{lines}\nstart it with: gangline aggregator --data {data}"


def _restore_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline admin restore",
        description="Restores a backup into a data folder. First verifies the backup against its checksums. No aggregator may "
        "use this folder; an aggregator on another folder may run.",
        epilog="exit codes: 0 done, 1 failed and nothing was changed, 2 wrong usage",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "backup",
        nargs="?",
        type=Path,
        metavar="BACKUP",
        help="a backup, or a folder of backups (the newest is used)",
    )
    source.add_argument("--from", dest="source", type=Path, help=argparse.SUPPRESS)
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        default=DATA_DEFAULT,
        metavar="DIR",
        help=f"the data folder (default: {DATA_DEFAULT})",
    )
    add(
        "--force",
        action="store_true",
        help="replace an existing store; it is moved to a folder beside it",
    )
    add("--json", action="store_true", help="one JSON object, no progress")
    return parser


def compact_main(arguments: list[str]) -> int:
    """Compact the store. Exit codes: 1 unchanged, with a message; 3 its aggregator is silent."""
    options = _compact_parser().parse_args(arguments)
    return guarded("compact", lambda: _run_compact(options))


def _run_compact(options: argparse.Namespace) -> int:
    if not (options.data / STORE_FILE).exists():
        raise CopyError(no_store_message(options.data))
    running = in_use(options.data)
    with ProgressBar(quiet=options.json, format_amount=lambda rows: f"{rows:,} rows") as progress:
        progress.begin("copying", 0)
        if running:
            done = _running(options.data, read_connection_options(options), progress)
        else:
            done = _stopped(options.data, progress)
    before, after, micros = done
    if options.json:
        sizes = {"bytes_before": before, "bytes_after": after}
        print(json_object({**sizes, "stood_still_microseconds": micros}))
    else:
        print(
            f"{options.data / STORE_FILE}: {format_bytes(after)}, was {format_bytes(before)}"
            + f"; for {micros / 1e6:.2f} s nothing was stored" * running
        )
    return OK


def _running(
    data: Path, connection_options: ConnectionOptions, progress: ProgressBar
) -> tuple[int, int, int]:
    with held_store(data, connection_options):
        pass  # fails if the aggregator there has another store, which must not be compacted
    with admin_stub(connection_options) as stub:
        call = stub.CompactStore(admin_pb2.CompactStoreRequest())
        try:
            for message in call:
                progress.at(message.rows, message.rows_total)
                if message.done:
                    sizes = message.bytes_before, message.bytes_after
                    return *sizes, message.stood_still_microseconds
        except grpc.RpcError as error:
            detail = str(error.details()) if hasattr(error, "details") else ""
            if "compacted" in detail:
                raise CommandError(detail, FAILED) from error
            raise call_error(error, data, connection_options) from error
        finally:
            call.cancel()
    raise CommandError(
        f"the aggregator at {connection_options.aggregator} did not report the result", FAILED
    )


def _stopped(data: Path, progress: ProgressBar) -> tuple[int, int, int]:
    store = Store.open(data, AggregatorConfig(data=data))
    try:
        done = compact(store, progress.at)
    finally:
        store.close()
    return done.bytes_before, done.bytes_after, done.paused_microseconds


def _compact_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline admin compact",
        description="Rewrites the store's file without the free space of dropped data, and replaces the old file. Needs "
        "as much free disk space as the data in use. The aggregator receives readings throughout. While the files are "
        "swapped, nothing is stored or acknowledged; the command prints for how long.",
        epilog="exit codes: 0 done, 1 failed and the store is as it was, 2 wrong usage, 3 no aggregator answers",
    )
    add_store_options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object, no progress")
    return parser


def verify_main(arguments: list[str]) -> int:
    """Read everything back. Exit codes: 0 intact; 1 problems, each on a line."""
    options = _verify_parser().parse_args(arguments)
    return guarded("verify", lambda: _run_verify(options))


def _run_verify(options: argparse.Namespace) -> int:
    with ProgressBar(quiet=options.json) as progress:
        if options.backup is not None:
            what, report = _backup(options.backup, progress)
        else:
            what, report = str(options.data), _store(options, progress)
    if options.json:
        document = {
            "verified": what,
            "schema_version": report.schema_version,
            "tables": report.tables,
            "rows": report.rows,
            "frames": report.frames,
            "parquet_files": report.parquet_files,
            "wrong": report.problems,
        }
        print(json_object(document))
    else:
        print(_print_verify(what, report))
    return FAILED if report.problems else OK


def _backup(folder: Path, progress: ProgressBar) -> tuple[str, VerifyReport]:
    folder = backup_files.newest(folder)
    manifest = backup_files.read(folder)
    wrong = check_files(folder, manifest, progress)
    try:
        with TemporaryDirectory(prefix=VERIFY_SCRATCH_PREFIX) as spill:
            report = _read(folder / STORE_FILE, folder, Path(spill), progress)
    except CopyError as error:
        report = VerifyReport(problems=[str(error)])
    report.problems = wrong + report.problems
    return str(folder), report


def _store(options: argparse.Namespace, progress: ProgressBar) -> VerifyReport:
    """Copy the file, which is still written to, release the store, and read the copy."""
    data: Path = options.data
    if not (data / STORE_FILE).exists():
        raise CopyError(no_store_message(data))
    where = options.scratch or data
    with ExitStack() as stack:
        scratch = Path(
            stack.enter_context(TemporaryDirectory(prefix=VERIFY_SCRATCH_PREFIX, dir=where))
        )
        with consistent_view(data, read_connection_options(options)) as source:
            # A running aggregator reported a loss at its start, and its mark has moved since.
            lost = "" if source.is_running else durability_mark.loss_message(source.file)
            segments = stack.enter_context(backup_files.hold_files(data, backup_files.files(data)))
            _copy(source, scratch, progress)
        try:
            report = _read(scratch / STORE_FILE, segments, scratch, progress)
        except CopyError as error:  # name the store, not its temporary copy
            report = VerifyReport(problems=[str(error).replace(str(scratch), str(data))])
    report.problems += [lost] if lost else []
    return report


def _copy(source: ConsistentView, scratch: Path, progress: ProgressBar) -> None:
    size = size_of(source.file) + source.wal_bytes
    if size > free_bytes(scratch):
        raise CopyError(
            f"{scratch.parent} has {format_bytes(free_bytes(scratch))} free, and the copy needs "
            f"{format_bytes(size)}. Name another folder with --scratch DIR"
        )
    progress.begin("a copy of the store", size)
    copy_with_checksum(source.file, scratch / STORE_FILE, progress.advance)
    if source.wal_bytes:
        copy_with_checksum(
            wal_of(source.file), wal_of(scratch / STORE_FILE), progress.advance, source.wal_bytes
        )
    source.check()


def _read(file: Path, folder: Path, spill: Path, progress: ProgressBar) -> VerifyReport:
    progress.begin("reading back", 0)
    return verify.verify_store(file, folder, spill, lambda _, done, total: progress.at(done, total))


def _print_verify(what: str, report: VerifyReport) -> str:
    line = (
        f"{what}: version {report.schema_version}, {report.tables} tables and "
        f"{report.parquet_files} Parquet "
        f"files, {report.rows:,} rows, {report.frames:,} frames on the ledger"
    )
    if not report.problems:
        return f"{line}: all read back, nothing is wrong"
    return "\n".join([line, *(f"WRONG: {problem}" for problem in report.problems)])


def _verify_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline admin verify",
        description=(
            "Verifies a store or a backup: reads every block of every table, and checks the "
            "ledger of frames, duplicate readings, and missing segments. In a backup, also "
            "compares each file with its checksum. While the aggregator runs, the command "
            "reads a copy."
        ),
        epilog="exit codes: 0 all is well, 1 something is wrong, 2 wrong usage, 3 no aggregator answers",
    )
    parser.add_argument(
        "backup",
        nargs="?",
        type=Path,
        metavar="BACKUP",
        help="a backup, or a folder of backups (the newest is used); default: the store in --data",
    )
    add_store_options(parser)
    parser.add_argument(
        "--scratch", type=Path, metavar="DIR", help="folder for the copy (default: the data folder)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, no progress")
    return parser
