"""`python -m gangline.aggregator.store.parquet.parquet_worker SETTINGS`: writes Parquet files.

It sorts and rolls up readings. It is a separate process at the lowest CPU priority: inside the aggregator, commits would wait for the CPU and for the GIL. It
opens no file of the store. Readings arrive as a file in memory, and its output counts only once the aggregator has synced,
named and recorded it, so killing it at any point loses nothing.

Its standard input is a socket of packets in JSON: the name of a method of `Packer` and its arguments; the answer is
`{"value": ..}` or `{"error": message}`. Packets are short for any number of hosts, because Linux limits them to 200 KB.
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
import pyarrow.parquet

from ....contract.workers import end_with_parent
from ....ext import process
from ...process_limits import address_space_bytes, lower_priority, raise_oom_score, set_limit
from ...sql import quoted
from ..layout import COLUMNS, LAYOUTS, typed_empty
from .host_ranges import HostRange, order_of, ranges
from .parquet_file import ParquetFile
from .rollup import IS_TAIL, roll, rollup_spec
from .segment_files import MINUTE, RAW, TAIL
from .views import LATE_SECONDS, span_us

#: Maximum length of a packet.
PACKET_BYTES_MAX = 1 << 20
#: After a longer gap a device's counters are not compared with its last readings.
TAIL_SECONDS_MAX = 7 * 86_400
#: Address space per row of a piece, in addition to the engine's: unsorted, sorted, and rolled up.
ROW_BYTES_MAX = 8 << 10


@dataclass(frozen=True, slots=True)
class PackerSettings:
    """Settings of a packer, which ends with `parent`. `is_behind`: at normal priority."""

    folder: str
    rows_max: int
    memory_bytes_max: int
    parent: int
    is_behind: bool

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        return cls(**json.loads(text))


@dataclass(slots=True)
class _FileSet:
    """Files of a table and bucket by grain, and the ranges of hosts in which they are written."""

    files: dict[str, ParquetFile]
    ranges: list[HostRange] = field(default_factory=list)


class Packer:
    """Writes unfinished files. Raises OSError, duckdb.Error, ArrowException.

    Several sets of files can be open, each with a name, so that an export need not wait for a
    merge.
    """

    def __init__(self, folder: Path, memory_bytes_max: int) -> None:
        self._folder = folder
        self._file_sets: dict[str, _FileSet] = {}
        spill = folder / "spill-history"
        shutil.rmtree(spill, ignore_errors=True)  # left by a killed process
        self._engine = duckdb.connect(
            config={
                "memory_limit": f"{memory_bytes_max // 1_000_000}MB",
                "threads": 1,
                "temp_directory": str(spill),
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            }
        )

    def begin(
        self, file_set: str, places: dict[str, str], encodings: dict[str, dict[str, Any]]
    ) -> None:
        """Begin a file per grain at its path; *encodings*: by grain, from an earlier `end`."""
        files = {
            grain: ParquetFile(self._folder, place, encodings.get(grain))
            for grain, place in places.items()
        }
        self._file_sets[file_set] = _FileSet(files)

    def _file_set(self, file_set: str) -> _FileSet:
        if file_set not in self._file_sets:
            raise OSError(f"{file_set} was started by a process that has ended; it starts again")
        return self._file_sets[file_set]

    def readings(
        self,
        file_set: str,
        table: str,
        part: str,
        hosts: Sequence[Any],
        tails: Sequence[str],
        memory: int,
    ) -> None:
        """Write the readings of the Arrow stream in descriptor *memory*, their rollup and their
        tails.

        *hosts*: fields of their HostRange. *tails*: files with each device's previous readings.
        """
        files = self._file_set(file_set).files
        with pa.memory_map(f"/proc/self/fd/{memory}") as mapped:
            chunk = pa.ipc.open_stream(mapped).read_all()
            if table in LAYOUTS:
                before = self._tails(table, part, HostRange(*hosts), tails)
                self._write_rolled(files, table, chunk, before)
            else:
                ordered = self._query(f"FROM chunk ORDER BY {order_of(table)}", chunk=chunk)
                files[RAW].write(ordered)

    def _write_rolled(
        self, files: dict[str, ParquetFile], table: str, chunk: Any, tails: Any
    ) -> None:
        columns = [*COLUMNS[table], (IS_TAIL, "BOOLEAN")]
        ordered = self._query(
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

    def _tails(self, table: str, part: str, hosts: HostRange, tails: Sequence[str]) -> Any:
        """Return the last readings before *part* of the devices in *hosts*."""
        columns = rollup_spec(table).tail_columns
        names = ", ".join(f'"{name}"' for name, _ in columns)
        parts = [typed_empty(columns)]
        parts += [f"FROM read_parquet({quoted(str(self._folder / path))})" for path in tails]
        _, end_us = span_us(part)
        newest_us = end_us + LATE_SECONDS * 1_000_000
        return self._query(
            f"SELECT {names} FROM ({' UNION ALL BY NAME '.join(parts)}) WHERE {hosts.where} "
            "AND time BETWEEN make_timestamp(?) AND make_timestamp(?)",
            [*hosts.parameters, newest_us - TAIL_SECONDS_MAX * 1_000_000, newest_us],
        )

    def ranges(self, file_set: str, source: str, rows_max: int) -> int:
        """Split the hosts of *source* (table function or subquery); return the range count."""
        hosts = self._count("host", source)
        result = ranges(
            hosts, rows_max, lambda host: self._count("device", f"{source} WHERE host = ?", host)
        )
        self._file_set(file_set).ranges = result
        return len(result)

    def _count(self, key: str, source: str, *parameters: str) -> list[tuple[str, int]]:
        query = f"SELECT {key}, count(*) FROM {source} GROUP BY {key} ORDER BY {key}"
        return self._engine.sql(query, params=list(parameters)).fetchall()

    def range(self, file_set: str, at: int) -> HostRange:
        return self._file_set(file_set).ranges[at]

    def write(self, file_set: str, grain: str, query: str, parameters: Sequence[Any]) -> None:
        """Append the rows of *query* to the file of *grain*."""
        self._file_set(file_set).files[grain].write(self._query(query, parameters))

    def end(self, file_set: str) -> dict[str, dict[str, Any]]:
        """Close the files; return the metadata of each by grain."""
        metadata = {}
        for grain, file in self._file_set(file_set).files.items():
            file.close()
            metadata[grain] = file.metadata()
        del self._file_sets[file_set]
        pa.default_memory_pool().release_unused()
        return metadata

    def discard(self, file_set: str) -> None:
        """Remove the set's unfinished files, if any."""
        if file_set in self._file_sets:
            for file in self._file_sets.pop(file_set).files.values():
                file.discard()

    def close(self) -> None:
        for file_set in list(self._file_sets):
            self.discard(file_set)
        self._engine.close()

    def _query(self, query: str, parameters: Sequence[Any] = (), **tables: Any) -> Any:
        """Return the result of *query* as a `pyarrow.Table`; it can use *tables* by name."""
        for name, table in tables.items():
            self._engine.register(name, table)
        try:
            return self._engine.sql(query, params=list(parameters)).to_arrow_table()
        finally:
            for name in tables:
                self._engine.unregister(name)


def serve(control: socket.socket, packer: Packer) -> None:
    """Answer calls until the aggregator closes the socket."""
    with suppress(ConnectionError):
        while True:
            data, descriptors, _, _ = socket.recv_fds(control, PACKET_BYTES_MAX, 1)
            if not data:
                return
            name, arguments = json.loads(data)
            try:
                answer = {"value": getattr(packer, name)(*arguments, *descriptors)}
            except Exception as error:  # noqa: BLE001 - reported to the aggregator
                answer = {"error": _error_message(error)}
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            control.send(json.dumps(answer).encode())


def _error_message(error: Exception) -> str:
    is_expected = isinstance(error, OSError | duckdb.Error | pa.ArrowException) and str(error)
    return str(error) if is_expected else f"{type(error).__name__}: {error}"


def main() -> int:
    """Run a packer with the settings in the first argument."""
    settings = PackerSettings.from_text(sys.argv[1])
    # A terminal and systemd signal all processes of the group; the aggregator ends this one.
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)
    if not end_with_parent(settings.parent):
        return 1
    process.name(b"gangline-pack")
    if not settings.is_behind:
        lower_priority()
    raise_oom_score()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    set_limit(
        resource.RLIMIT_AS,
        address_space_bytes() + 2 * settings.memory_bytes_max + settings.rows_max * ROW_BYTES_MAX,
    )
    set_limit(resource.RLIMIT_CORE, 0)
    packer = Packer(Path(settings.folder), settings.memory_bytes_max)
    serve(socket.socket(fileno=os.dup(0)), packer)
    packer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
