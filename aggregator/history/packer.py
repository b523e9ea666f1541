"""`python -m gangline.aggregator.history.packer SETTINGS`: sorts readings, rolls them up, writes Parquet files.

A process of its own that goes last at the processor: in the aggregator's own, commits would wait for it, for a
processor and for Python's lock. It opens nothing of the store. Readings come to it as a file in memory, and what it
writes counts only once the aggregator has synced, named and recorded it: wherever it is killed nothing is lost.

Its standard input is a socket of packets in JSON: the name of a method of `Packer` and its arguments; it answers each
with `{"value": ..}` or `{"error": words}`. A packet is short, however many hosts there are: Linux takes no more than 200 KB.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import duckdb
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet  # used below, once the limit on address space holds

from ...ext import process
from ..query.confine import address_space_bytes, die_first, go_last, limit
from ..sql import quoted
from ..store.layout import COLUMNS, LAYOUTS, typed_empty
from .parquet import ParquetFile
from .ranges import Range, order_of, ranges
from .rollup import IS_TAIL, roll, shapes
from .segments import MINUTE, RAW, TAIL
from .views import LATE_SECONDS, span_us

#: A packet is shorter than this.
PACKET_BYTES_MAX = 1 << 20
#: A device that was not heard of for so long is compared with nothing when it comes back.
TAIL_SECONDS_MAX = 7 * 86_400
#: Address space that a row of a piece may take, beside what the engine may: as it came, sorted, and rolled up.
ROW_BYTES_MAX = 8 << 10


@dataclass(frozen=True, slots=True)
class Settings:
    """What a packer is started with. `parent`: the process it ends with. `is_behind`: it does not go last."""

    folder: str
    rows_max: int
    memory_bytes_max: int
    parent: int
    is_behind: bool

    def to_text(self) -> str:
        """Return what `from_text` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return what `to_text` wrote."""
        return cls(**json.loads(text))


@dataclass(slots=True)
class _Making:
    """The files of one table and bucket, by grain, and the ranges of hosts that they are written by."""

    files: dict[str, ParquetFile]
    ranges: list[Range] = field(default_factory=list[Range])


class Packer:
    """Makes files, unfinished. Raises OSError, duckdb.Error, ArrowException.

    Those of several tables and buckets at a time, each called by a name (*of*): an export does not wait for a merge.
    """

    def __init__(self, folder: Path, memory_bytes_max: int) -> None:
        self._folder = folder
        self._made: dict[str, _Making] = {}
        spill = folder / "spill-history"
        shutil.rmtree(spill, ignore_errors=True)  # of one that was killed
        self._engine = duckdb.connect(
            config={
                "memory_limit": f"{memory_bytes_max // 1_000_000}MB",
                "threads": 1,
                "temp_directory": str(spill),
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            }
        )

    def begin(self, of: str, places: dict[str, str], encodings: dict[str, dict[str, Any]]) -> None:
        """Begin the file of each grain at its place; *encodings* by grain, as `end` returned them."""
        files = {
            grain: ParquetFile(self._folder, place, encodings.get(grain))
            for grain, place in places.items()
        }
        self._made[of] = _Making(files)

    def _making(self, of: str) -> _Making:
        if of not in self._made:
            raise OSError(f"{of} was begun by a process that has ended; it is begun again")
        return self._made[of]

    def readings(
        self,
        of: str,
        table: str,
        part: str,
        hosts: Sequence[Any],
        tails: Sequence[str],
        memory: int,
    ) -> None:
        """Write the readings in the Arrow stream of descriptor *memory*, with their rollup and their tails.

        *hosts*: the fields of the Range that they are of. *tails*: files with each device's last readings before.
        """
        files = self._making(of).files
        with pa.memory_map(f"/proc/self/fd/{memory}") as mapped:
            chunk = pa.ipc.open_stream(mapped).read_all()
            if table in LAYOUTS:
                before = self._tails(table, part, Range(*hosts), tails)
                self._write_rolled(files, table, chunk, before)
            else:
                ordered = self._ask(f"FROM chunk ORDER BY {order_of(table)}", chunk=chunk)
                files[RAW].write(ordered)

    def _write_rolled(
        self, files: dict[str, ParquetFile], table: str, chunk: Any, tails: Any
    ) -> None:
        columns = [*COLUMNS[table], (IS_TAIL, "BOOLEAN")]
        ordered = self._ask(
            f"FROM ({typed_empty(columns)} UNION ALL BY NAME SELECT *, false AS {IS_TAIL} FROM chunk "
            f"UNION ALL BY NAME SELECT *, true AS {IS_TAIL} FROM tails) "
            f"ORDER BY host, device, time, {IS_TAIL}",
            chunk=chunk,
            tails=tails,
        )
        rolled = roll(ordered, table)
        readings = ordered
        if ordered.num_rows != chunk.num_rows:
            readings = ordered.filter(pa.array(~ordered[IS_TAIL].to_numpy()))
        files[RAW].write(readings.select(chunk.column_names))
        files[MINUTE].write(rolled.minutes)
        files[TAIL].write(rolled.tail)

    def _tails(self, table: str, part: str, hosts: Range, tails: Sequence[str]) -> Any:
        """Return the last readings of those hosts' devices before *part*."""
        columns = shapes(table).tail_columns
        names = ", ".join(f'"{name}"' for name, _ in columns)
        parts = [typed_empty(columns)]
        parts += [f"FROM read_parquet({quoted(str(self._folder / path))})" for path in tails]
        _, end_us = span_us(part)
        newest_us = end_us + LATE_SECONDS * 1_000_000
        return self._ask(
            f"SELECT {names} FROM ({' UNION ALL BY NAME '.join(parts)}) WHERE {hosts.where} "
            "AND time BETWEEN make_timestamp(?) AND make_timestamp(?)",
            [*hosts.parameters, newest_us - TAIL_SECONDS_MAX * 1_000_000, newest_us],
        )

    def ranges(self, of: str, source: str, rows_max: int) -> int:
        """Return how many ranges all hosts of *source* (a table function, or a query in brackets) come to."""
        hosts = self._count("host", source)
        found = ranges(
            hosts, rows_max, lambda host: self._count("device", f"{source} WHERE host = ?", host)
        )
        self._making(of).ranges = found
        return len(found)

    def _count(self, key: str, source: str, *parameters: str) -> list[tuple[str, int]]:
        query = f"SELECT {key}, count(*) FROM {source} GROUP BY {key} ORDER BY {key}"
        return self._engine.sql(query, params=list(parameters)).fetchall()

    def range(self, of: str, at: int) -> Range:
        """Return one of the ranges."""
        return self._making(of).ranges[at]

    def write(self, of: str, grain: str, query: str, parameters: Sequence[Any]) -> None:
        """Append what *query* answers to the file of *grain*."""
        self._making(of).files[grain].write(self._ask(query, parameters))

    def end(self, of: str) -> dict[str, dict[str, Any]]:
        """End the files; return of each what a Segment says of it, and which encodings are small."""
        made = {}
        for grain, file in self._making(of).files.items():
            file.close()
            made[grain] = file.said()
        del self._made[of]
        pa.default_memory_pool().release_unused()
        return made

    def discard(self, of: str) -> None:
        """Remove files, if any, that were begun and not ended."""
        if of in self._made:
            for file in self._made.pop(of).files.values():
                file.discard()

    def close(self) -> None:
        """Let go of all."""
        for of in list(self._made):
            self.discard(of)
        self._engine.close()

    def _ask(self, query: str, parameters: Sequence[Any] = (), **tables: Any) -> Any:
        """Return a `pyarrow.Table` from the engine, over *tables* by name."""
        for name, table in tables.items():
            self._engine.register(name, table)
        try:
            return self._engine.sql(query, params=list(parameters)).to_arrow_table()
        finally:
            for name in tables:
                self._engine.unregister(name)


def serve(control: socket.socket, packer: Packer) -> None:
    """Do what is asked until the aggregator's side closes."""
    with suppress(ConnectionError):
        while True:
            data, descriptors, _, _ = socket.recv_fds(control, PACKET_BYTES_MAX, 1)
            if not data:
                return
            name, arguments = json.loads(data)
            try:
                answer = {"value": getattr(packer, name)(*arguments, *descriptors)}
            except Exception as error:  # noqa: BLE001 - told to the aggregator, which tries again later
                answer = {"error": _words(error)}
            finally:
                for each in descriptors:
                    os.close(each)
            control.send(json.dumps(answer).encode())


def _words(error: Exception) -> str:
    is_told = isinstance(error, OSError | duckdb.Error | pa.ArrowException) and str(error)
    return str(error) if is_told else f"{type(error).__name__}: {error}"


def main() -> int:
    """Be a packer with the settings in the first argument."""
    settings = Settings.from_text(sys.argv[1])
    # Of a terminal, or of systemd for all at once: the aggregator ends us.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    process.die_with_parent()
    if os.getppid() != settings.parent:
        return 1
    process.name(b"gangline-pack")
    if not settings.is_behind:
        go_last()
    die_first()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    limit(
        resource.RLIMIT_AS,
        address_space_bytes() + 2 * settings.memory_bytes_max + settings.rows_max * ROW_BYTES_MAX,
    )
    limit(resource.RLIMIT_CORE, 0)
    packer = Packer(Path(settings.folder), settings.memory_bytes_max)
    serve(socket.socket(fileno=os.dup(0)), packer)
    packer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
