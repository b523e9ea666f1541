"""`python -m gangline.aggregator.history.packer SETTINGS`: sorts readings, rolls them up, writes Parquet files.

A process of its own that goes last at the processor: in the aggregator's own, commits would wait for it, for a
processor and for Python's lock. It opens nothing of the store. Readings come to it as a file in memory, and what it
writes counts only once the aggregator has synced, named and recorded it: wherever it is killed nothing is lost.

Its standard input is a socket of packets in JSON: the name of a method of `Packer` and its arguments; it answers each
with `{"value": ..}` or `{"error": words}`.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import duckdb
import pyarrow as pa
import pyarrow.ipc

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


class Packer:
    """Makes the files of one table and bucket at a time, unfinished. Raises OSError, duckdb.Error, ArrowException."""

    def __init__(self, folder: Path, memory_bytes_max: int) -> None:
        self._folder = folder
        self._files: dict[str, ParquetFile] = {}
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

    def begin(self, places: dict[str, str], encodings: dict[str, dict[str, Any]]) -> None:
        """Begin the file of each grain at its place; *encodings* by grain, as `end` returned them."""
        self._files = {
            grain: ParquetFile(self._folder, place, encodings.get(grain))
            for grain, place in places.items()
        }

    def readings(
        self, table: str, part: str, hosts: Sequence[Any], tails: Sequence[str], memory: int
    ) -> None:
        """Write the readings in the Arrow stream of descriptor *memory*, with their rollup and their tails.

        *hosts*: the fields of the Range that they are of. *tails*: files with each device's last readings before.
        """
        with pa.memory_map(f"/proc/self/fd/{memory}") as mapped:
            chunk = pa.ipc.open_stream(mapped).read_all()
            if table in LAYOUTS:
                before = self._tails(table, part, Range(*hosts), tails)
                self._write_rolled(table, chunk, before)
            else:
                ordered = self._ask(f"FROM chunk ORDER BY {order_of(table)}", chunk=chunk)
                self._files[RAW].write(ordered)

    def _write_rolled(self, table: str, chunk: Any, tails: Any) -> None:
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
        self._files[RAW].write(readings.select(chunk.column_names))
        self._files[MINUTE].write(rolled.minutes)
        self._files[TAIL].write(rolled.tail)

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

    def ranges(self, source: str, rows_max: int) -> list[Range]:
        """Return ranges over all hosts of *source* (what follows FROM)."""
        counts = self._engine.sql(
            f"SELECT host, count(*) FROM {source} GROUP BY host ORDER BY host"
        ).fetchall()
        return ranges(counts, rows_max)

    def write(self, grain: str, query: str, parameters: Sequence[Any]) -> None:
        """Append what *query* answers to the file of *grain*."""
        self._files[grain].write(self._ask(query, parameters))

    def end(self) -> dict[str, dict[str, Any]]:
        """End the files; return of each what a Segment says of it, and which encodings are small."""
        made = {}
        for grain, file in self._files.items():
            file.close()
            made[grain] = file.said()
        self._files = {}
        pa.default_memory_pool().release_unused()
        return made

    def discard(self) -> None:
        """Remove files that were begun and not ended."""
        for file in self._files.values():
            file.discard()
        self._files = {}

    def close(self) -> None:
        """Let go of all."""
        self.discard()
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
    for each in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # of a terminal, or of systemd for all at once: the aggregator ends us
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
