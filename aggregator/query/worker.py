"""One question in one process: read it, check it, run it, send its rows; then the process ends."""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.ipc

from ..workers import limit_cpu
from . import messages, sandbox
from .messages import (
    FAILED,
    MEMORY,
    NO_SNAPSHOT,
    REFUSED,
    TIME,
    Answered,
    Place,
    Question,
    too_long,
    too_much,
)
from .sandbox import Refused, complaint, explained, make_views, short

#: Rows taken from DuckDB at a time.
BATCH_ROWS = 2048

_TELLS_PLACES = duckdb.__version__.startswith("1.")


def serve(connected: socket.socket, place: Place) -> None:
    """Read the question from *connected* and write its answer, or what is wrong with it."""
    with connected, connected.makefile("rwb") as stream:
        question = _question(stream)
        limit_cpu(question.seconds or 10**6, place.threads)
        try:
            kind, words = answered(question, place, stream)
        except (BrokenPipeError, ConnectionResetError):
            return  # nobody reads any more
        if kind:
            stream.write(messages.json_message(messages.ERROR, {"kind": kind, "words": words}))


def _question(stream: Any) -> Question:
    _, size = messages.HEAD.unpack(stream.read(messages.HEAD.size))
    return Question(**json.loads(stream.read(size)))


def answered(question: Question, place: Place, stream: Any) -> tuple[str, str]:
    """Answer; return what went wrong and its words, or two empty strings."""
    file = sandbox.snapshot_of(place.folder)
    try:
        connection = sandbox.opened(
            file, memory_bytes_max=place.memory_bytes_max, threads=place.threads
        )
    except FileNotFoundError:
        return NO_SNAPSHOT, messages.no_snapshot(file)
    except (duckdb.Error, OSError) as error:
        return FAILED, f"{file} cannot be opened: {short(str(error))[:400]}{_remedy(error)}"
    try:
        sandbox.check(connection, question.sql)
        _run(connection, question, place, stream)
    except Refused as refused:
        return REFUSED, str(refused)
    except UnicodeError:
        return REFUSED, sandbox.UNREADABLE
    except duckdb.InterruptException:
        return TIME, too_long(question.seconds)
    except (duckdb.OutOfMemoryException, MemoryError, pa.ArrowMemoryError):
        return MEMORY, too_much(place.memory_bytes_max)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except (OSError, pa.ArrowException) as error:
        return _midway(complaint(error).text, question, place)
    except duckdb.Error as error:
        if _of_memory(error):
            return MEMORY, too_much(place.memory_bytes_max)
        return REFUSED, explained(error, question.sql, lambda: there_is(connection))
    return "", ""


def _remedy(error: Exception) -> str:
    if isinstance(error, PermissionError) or "Permission denied" in str(error):
        return ". Ask as the aggregator's user or root, or the aggregator: --server ADDRESS:PORT"
    return ". An aggregator that runs writes it anew within half a minute; if that does not help, its log says why"


def _of_memory(error: duckdb.Error) -> bool:
    """Whether the process had no memory left, which DuckDB does not always say by its class."""
    text = str(error)
    if "bad_alloc" in text or "thread constructor failed" in text:
        return True
    of_its_own = isinstance(error, (duckdb.InternalException, duckdb.FatalException))
    return of_its_own and "allocat" in complaint(error).text.lower()


def _midway(text: str, question: Question, place: Place) -> tuple[str, str]:
    """Return what went wrong after the first rows: Arrow tells it by its text alone."""
    if "Out of Memory" in text or "bad_alloc" in text or "allocation failure" in text:
        return MEMORY, too_much(place.memory_bytes_max)
    if text.startswith("INTERRUPT"):
        return TIME, too_long(question.seconds)
    return REFUSED, short(text)


def _run(
    connection: duckdb.DuckDBPyConnection, question: Question, place: Place, stream: Any
) -> None:
    begin = time.monotonic()
    timer = threading.Timer(question.seconds or threading.TIMEOUT_MAX, connection.interrupt)
    timer.daemon = True
    timer.start()
    missing = ""
    try:
        taken_us, reader = _begun(connection, question)
    except duckdb.CatalogException:
        connection.execute("ROLLBACK")
        missing = make_views(connection, place.folder)
        taken_us, reader = _begun(connection, question)
    rows, size, cut = _sent(reader, question, stream)
    end = Answered(rows, size, time.monotonic() - begin, cut, taken_us, missing)
    stream.write(messages.json_message(messages.SUMMARY, end))
    stream.flush()


def _begun(connection: duckdb.DuckDBPyConnection, question: Question) -> tuple[int, Any]:
    """Return as of when the snapshot is, microseconds since 1970, and what gives the batches of the answer."""
    connection.execute("BEGIN TRANSACTION READ ONLY")
    rows = connection.execute("SELECT epoch_us(taken) FROM snapshot").fetchall()
    # DuckDB 2 streams from a relation only; 1.5 also from a cursor, and tells the place of an error only there.
    asked = connection.execute if _TELLS_PLACES else connection.sql
    reader = asked(question.sql).to_arrow_reader(BATCH_ROWS)
    return (int(rows[0][0]) if rows else 0), reader


def _sent(reader: Any, question: Question, stream: Any) -> tuple[int, int, str]:
    """Send what *reader* gives; return how many rows and bytes, and why it was cut ("": it was not)."""
    arrow = _Arrow(stream, reader.schema, compressed=question.compressed)
    rows_max, bytes_max = question.rows_max, question.bytes_max
    rows = 0
    for batch in _pieces(reader):
        if rows_max and rows + batch.num_rows > rows_max:
            arrow.send(batch.slice(0, rows_max - rows))
            arrow.end()
            return rows_max, arrow.size_bytes, f"first {rows_max} rows"
        if bytes_max and arrow.size_bytes + batch.nbytes > bytes_max:
            arrow.end()
            return rows, arrow.size_bytes, _as_many_bytes(rows, bytes_max)
        arrow.send(batch)
        rows += batch.num_rows
    arrow.end()
    return rows, arrow.size_bytes, ""


def _as_many_bytes(rows: int, bytes_max: int) -> str:
    return f"first {rows} rows; an answer has at most {bytes_max >> 20} MiB"


def _pieces(reader: Any) -> Iterator[Any]:
    """Yield the batches of *reader*, cut so that each fits one message. Raises Refused."""
    left: list[Any] = []
    for batch in reader:
        left.append(batch)
        while left:
            one = left.pop()
            size = pa.ipc.get_record_batch_size(one) if one.num_rows else 0
            if size > messages.BATCH_BYTES and one.num_rows > 1:
                half = one.num_rows // 2
                left += [one.slice(half), one.slice(0, half)]
                continue
            if size > messages.PIECE_BYTES_MAX:
                raise Refused(
                    f"one row takes {size / (1 << 20):.1f} MiB, more than the "
                    f"{messages.PIECE_BYTES_MAX / (1 << 20):.1f} MiB a row may: ask for fewer columns, "
                    "or for a part of the list or string (left(text, 1000), list[:100])"
                )
            if one.num_rows:
                yield one


class _Arrow:
    """An Arrow IPC stream in messages: the schema first."""

    def __init__(self, stream: Any, schema: Any, *, compressed: bool) -> None:
        self.size_bytes = 0
        self._stream = stream
        self._made = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression="zstd" if compressed else None)
        self._writer = pa.ipc.new_stream(self._made, schema, options=options)
        self._sent()

    def send(self, batch: Any) -> None:
        self._writer.write_batch(batch)
        self._sent()

    def end(self) -> None:
        self._writer.close()
        self._sent()

    def _sent(self) -> None:
        made = self._made.getbuffer()
        for at in range(0, len(made), messages.PIECE_BYTES_MAX):
            piece = made[at : at + messages.PIECE_BYTES_MAX]
            self._stream.write(messages.message(messages.ARROW, piece))
            piece.release()
        self.size_bytes += len(made)
        made.release()
        self._made.seek(0)
        self._made.truncate()
        self._stream.flush()


def there_is(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Return the names of what can be asked: ops.hosts, ops.worst(n), latest.gpu_1s."""
    # Of its own transaction: after an error DuckDB 2.0 takes nothing more in the other.
    rows = connection.cursor().execute(_NAMES).fetchall()
    return [row[0] for row in rows]


#: The views first: of two of one name, as `ops.hosts` and `hosts`, one that was made for people is meant.
_NAMES = """
SELECT schema_name || '.' || view_name FROM duckdb_views() WHERE schema_name IN ('ops', 'history')
UNION ALL SELECT DISTINCT schema_name || '.' || function_name || '(' || array_to_string(parameters, ', ') || ')'
FROM duckdb_functions() WHERE schema_name IN ('ops', 'history')
UNION ALL SELECT if(schema_name = 'main', '', schema_name || '.') || table_name FROM duckdb_tables()
"""
