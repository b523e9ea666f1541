"""An answer written somewhere: to the terminal, a pipe, or a file that is there whole or not at all."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.ipc

from ...cli import FAILED, USAGE
from .client import CommandError
from .sqldoors import Answer
from .sqlforms import plan, records, table, write_csv, write_json
from .sqlvalues import rows

_BINARY = frozenset({"parquet", "arrow"})


def write(answer: Answer, form: str, output: Path | None, *, rows_max: int, width: int) -> str:
    """Write the answer in *form* to *output* (None: standard output); return why it was cut, "" if not.

    *rows_max*: 0 for all. A file is put in place when all of it is there. Raises QueryError, CommandError.
    """
    reader = pa.ipc.open_stream(cast(Any, _buffered(answer)))
    if form in _BINARY:
        with _binary(output, form) as file:
            _write_batches(reader, form, file)
            cut = answer.finish().truncated_reason
            _check_whole(cut, output, rows_max)
        return cut
    with _text(output) as out:
        shown = itertools.islice(rows(reader), rows_max or None)
        _write_text(list(reader.schema.names), shown, form, out, width)
        cut = answer.finish().truncated_reason
        _check_whole(cut, output, rows_max)
    return cut


def _check_whole(cut: str, output: Path | None, rows_max: int) -> None:
    """A file that looks complete and is not misleads whoever finds it: unless so many rows were asked for."""
    if cut and output is not None and not rows_max:
        raise CommandError(
            f"{output} is not written, as the answer is cut: {cut}. Ask for less, or say --rows N",
            FAILED,
        )


def _buffered(answer: Answer) -> Any:
    return io.BufferedReader(answer, 1 << 18)


def _write_text(
    names: list[str], shown: Iterator[Any], form: str, out: IO[str], width: int
) -> None:
    if form == "json":
        write_json(names, shown, cast(Any, out))
    elif form == "csv":
        write_csv(names, shown, cast(Any, out))
    else:
        print(text(names, list(shown), width), file=out)


def text(names: list[str], shown: list[Any], width: int, *, expanded: bool = False) -> str:
    """Return rows as a person reads them."""
    if names == ["explain_key", "explain_value"]:
        return plan(shown)
    return records(names, shown) if expanded else table(names, shown, width)


def _write_batches(reader: Any, form: str, file: BinaryIO) -> None:
    try:
        with _writer(reader.schema, form, file) as writer:
            for batch in reader:
                writer.write_batch(batch)
    except pa.ArrowNotImplementedError as error:
        raise CommandError(
            f"{form} has no such type: {error}. Cast the column: column::VARCHAR", USAGE
        ) from error


def _writer(schema: Any, form: str, file: BinaryIO) -> Any:
    if form == "arrow":
        return pa.ipc.new_stream(file, schema)
    from pyarrow.parquet import ParquetWriter  # 50 ms, which only this form pays

    return ParquetWriter(file, schema, compression="zstd")


@contextlib.contextmanager
def _text(output: Path | None) -> Iterator[IO[str]]:
    if output is None:
        yield sys.stdout
        return
    with _whole(output) as temporary, open(temporary, "w", encoding="utf-8") as file:
        yield file


@contextlib.contextmanager
def _binary(output: Path | None, form: str) -> Iterator[BinaryIO]:
    if output is not None:
        with _whole(output) as temporary, open(temporary, "wb") as file:
            yield file
        return
    if sys.stdout.isatty():
        raise CommandError(f"{form} is not for a terminal: name a file with --output", USAGE)
    yield sys.stdout.buffer


@contextlib.contextmanager
def _whole(output: Path) -> Iterator[Path]:
    """A name to write under, which becomes *output* when all went well and vanishes otherwise."""
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        temporary.replace(output)
    except OSError as error:
        raise CommandError(f"{output} cannot be written: {error.strerror}", FAILED) from error
    finally:
        with contextlib.suppress(OSError):  # not there, nor the folder it would be in
            temporary.unlink()
