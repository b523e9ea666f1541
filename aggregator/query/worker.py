"""One query in one process: reads it, checks it, runs it, sends its rows, and exits."""

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
from duckdb import DuckDBPyConnection as Connection

from ..process_limits import limit_cpu
from . import messages, sandbox
from .messages import (
    AnswerSummary,
    NoSnapshot,
    QueryError,
    QueryFailed,
    QueryOutOfMemory,
    QueryOutOfTime,
    QueryRefused,
    QuerySettings,
    Question,
    memory_message,
    timeout_message,
)
from .sandbox import explain_error, first_lines, make_views, parse_error

#: Rows per batch from DuckDB.
BATCH_ROWS = 2048

_REPORTS_POSITIONS = duckdb.__version__.startswith("1.")

#: Views first: for `hosts` the suggestion should be `ops.hosts`, which is made for operators.
_NAMES = """
SELECT schema_name || '.' || view_name FROM duckdb_views() WHERE schema_name IN ('ops', 'history')
UNION ALL SELECT DISTINCT schema_name || '.' || function_name || '(' || array_to_string(parameters, ', ') || ')'
FROM duckdb_functions() WHERE schema_name IN ('ops', 'history')
UNION ALL SELECT if(schema_name = 'main', '', schema_name || '.') || table_name FROM duckdb_tables()
"""


def serve(connected: socket.socket, settings: QuerySettings) -> None:
    """Read the question from *connected*; write the answer or an error."""
    with connected, connected.makefile("rwb") as stream:
        question = _question(stream)
        limit_cpu(question.seconds or 10**6, settings.threads)
        try:
            run_question(question, settings, stream)
        except (BrokenPipeError, ConnectionResetError):
            return  # the reader disconnected
        except QueryError as error:
            report = {"kind": type(error).__name__, "message": str(error)}
            stream.write(messages.json_message(messages.ERROR, report))


def _question(stream: Any) -> Question:
    _, size = messages.HEADER.unpack(stream.read(messages.HEADER.size))
    return Question(**json.loads(stream.read(size)))


def run_question(question: Question, settings: QuerySettings, stream: Any) -> None:
    """Run the query. Raises QueryError."""
    file = sandbox.snapshot_path(settings.folder)
    try:
        connection = sandbox.open_snapshot(
            file, memory_bytes_max=settings.memory_bytes_max, threads=settings.threads
        )
    except FileNotFoundError:
        raise NoSnapshot(messages.no_snapshot_message(file)) from None
    except (duckdb.Error, OSError) as error:
        reason = f"{first_lines(str(error))[:400]}{_remedy(error)}"
        raise QueryFailed(f"{file} cannot be opened: {reason}") from error
    try:
        sandbox.check(connection, question.sql)
        _run(connection, question, settings, stream)
    except UnicodeError:
        raise QueryRefused(sandbox.UNREADABLE) from None
    except duckdb.InterruptException:
        raise QueryOutOfTime(timeout_message(question.seconds)) from None
    except (duckdb.OutOfMemoryException, MemoryError, pa.ArrowMemoryError):
        raise QueryOutOfMemory(memory_message(settings.memory_bytes_max)) from None
    except (BrokenPipeError, ConnectionResetError):
        raise
    except (OSError, pa.ArrowException) as error:
        raise _stream_error(parse_error(error).text, question, settings) from error
    except duckdb.Error as error:
        if _is_out_of_memory(error):
            raise QueryOutOfMemory(memory_message(settings.memory_bytes_max)) from error
        message = explain_error(error, question.sql, lambda: available_names(connection))
        raise QueryRefused(message) from error


def _remedy(error: Exception) -> str:
    if isinstance(error, PermissionError) or "Permission denied" in str(error):
        return ". Ask as the aggregator's user or root, or the aggregator: --server ADDRESS:PORT"
    return ". A running aggregator rewrites it within half a minute; otherwise its log says why"


def _is_out_of_memory(error: duckdb.Error) -> bool:
    """Return whether memory was exhausted; DuckDB does not always raise the right class."""
    text = str(error)
    if "bad_alloc" in text or "thread constructor failed" in text:
        return True
    is_internal = isinstance(error, (duckdb.InternalException, duckdb.FatalException))
    return is_internal and "allocat" in parse_error(error).text.lower()


def _stream_error(text: str, question: Question, settings: QuerySettings) -> QueryError:
    """Return the failure after the first rows, which Arrow reports as text only."""
    if "Out of Memory" in text or "bad_alloc" in text or "allocation failure" in text:
        return QueryOutOfMemory(memory_message(settings.memory_bytes_max))
    if text.startswith("INTERRUPT"):
        return QueryOutOfTime(timeout_message(question.seconds))
    return QueryRefused(first_lines(text))


def _run(connection: Connection, question: Question, settings: QuerySettings, stream: Any) -> None:
    begin = time.monotonic()
    timer = threading.Timer(question.seconds or threading.TIMEOUT_MAX, connection.interrupt)
    timer.daemon = True
    timer.start()
    missing = ""
    try:
        taken_us, reader = _begin(connection, question)
    except duckdb.CatalogException:
        connection.execute("ROLLBACK")
        missing = make_views(connection, settings.folder)
        taken_us, reader = _begin(connection, question)
    rows, size, cut = _send_batches(reader, question, stream)
    end = AnswerSummary(rows, size, time.monotonic() - begin, cut, taken_us, missing)
    stream.write(messages.json_message(messages.SUMMARY, end))
    stream.flush()


def _begin(connection: Connection, question: Question) -> tuple[int, Any]:
    """Return the snapshot's time, microseconds since 1970, and a reader of the answer."""
    connection.execute("BEGIN TRANSACTION READ ONLY")
    rows = connection.execute("SELECT epoch_us(taken) FROM snapshot").fetchall()
    # DuckDB 2 streams only from a relation; 1.5 also from a cursor, with error positions.
    execute = connection.execute if _REPORTS_POSITIONS else connection.sql
    reader = execute(question.sql).to_arrow_reader(BATCH_ROWS)
    return (int(rows[0][0]) if rows else 0), reader


def _send_batches(reader: Any, question: Question, stream: Any) -> tuple[int, int, str]:
    """Send the batches; return rows, bytes, and the reason for a cut answer ("": complete)."""
    arrow = _ArrowStream(stream, reader.schema, compressed=question.compressed)
    rows_max, bytes_max = question.rows_max, question.bytes_max
    rows = 0
    for batch in _pieces(reader):
        if rows_max and rows + batch.num_rows > rows_max:
            arrow.send(batch.slice(0, rows_max - rows))
            arrow.end()
            return rows_max, arrow.size_bytes, f"first {rows_max} rows"
        if bytes_max and arrow.size_bytes + batch.nbytes > bytes_max:
            arrow.end()
            reason = f"first {rows} rows; an answer has at most {bytes_max >> 20} MiB"
            return rows, arrow.size_bytes, reason
        arrow.send(batch)
        rows += batch.num_rows
    arrow.end()
    return rows, arrow.size_bytes, ""


def _pieces(reader: Any) -> Iterator[Any]:
    """Yield the batches of *reader*, split to fit one message each. Raises QueryRefused."""
    remaining: list[Any] = []
    for batch in reader:
        remaining.append(batch)
        while remaining:
            piece = remaining.pop()
            size = pa.ipc.get_record_batch_size(piece) if piece.num_rows else 0
            if size > messages.BATCH_BYTES and piece.num_rows > 1:
                half = piece.num_rows // 2
                remaining += [piece.slice(half), piece.slice(0, half)]
                continue
            if size > messages.PIECE_BYTES_MAX:
                raise QueryRefused(
                    f"one row takes {size / (1 << 20):.1f} MiB, more than the "
                    f"{messages.PIECE_BYTES_MAX / (1 << 20):.1f} MiB a row may: ask for fewer columns, "
                    "or for a part of the list or string (left(text, 1000), list[:100])"
                )
            if piece.num_rows:
                yield piece


class _ArrowStream:
    """Writes an Arrow IPC stream as messages, beginning with the schema."""

    def __init__(self, stream: Any, schema: Any, *, compressed: bool) -> None:
        self.size_bytes = 0
        self._stream = stream
        self._buffer = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression="zstd" if compressed else None)
        self._writer = pa.ipc.new_stream(self._buffer, schema, options=options)
        self._flush()

    def send(self, batch: Any) -> None:
        self._writer.write_batch(batch)
        self._flush()

    def end(self) -> None:
        self._writer.close()
        self._flush()

    def _flush(self) -> None:
        view = self._buffer.getbuffer()
        for begin in range(0, len(view), messages.PIECE_BYTES_MAX):
            piece = view[begin : begin + messages.PIECE_BYTES_MAX]
            self._stream.write(messages.message(messages.ARROW, piece))
            piece.release()
        self.size_bytes += len(view)
        view.release()
        self._buffer.seek(0)
        self._buffer.truncate()
        self._stream.flush()


def available_names(connection: Connection) -> list[str]:
    """Return names that can be queried: ops.hosts, ops.worst(n), latest.gpu_1s."""
    # A cursor has its own transaction: after an error DuckDB 2.0 refuses the other one.
    rows = connection.cursor().execute(_NAMES).fetchall()
    return [row[0] for row in rows]
