"""Shared parts of the history: its folder, access to the live file, and the list of valid files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.ipc

from . import segment_files
from .segment_files import RAW, UNFINISHED_SUFFIX, ParquetSegment
from .views import rollup_views
from .worker_client import PackerError, PackerHandle

#: Folder for what does not count and may still be wanted: a file that is damaged, or that nobody recorded.
ASIDE_FOLDER = "aside"

#: Rows taken from the live file at a time: no more of them are in memory twice.
BATCH_ROWS = 30_000

Work = Callable[[duckdb.DuckDBPyConnection], Any]


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """The ways into the live file, as `Store` has them."""

    transact: Callable[[Work], Any]
    cursor: Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]]


class SegmentStore:
    """Used by one thread. `step` is called with the name of each step; the whole must survive a crash between any two."""

    def __init__(
        self,
        folder: Path,
        access: StoreAccess,
        packer: PackerHandle,
        *,
        rows_max: int,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.folder = folder
        self.rows_max = rows_max
        self.step = step
        self.now_us = 0
        self.recorded: dict[str, ParquetSegment] = {}
        self.exported_rows = 0
        self._encodings: dict[tuple[str, str], dict[str, Any]] = {}
        self._access = access
        self._packer = packer

    def cursor(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """Return a cursor for reading from the live file."""
        return self._access.cursor()

    def totals(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return how many files count and how many bytes they hold, by grain."""
        counts: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for one in self.recorded.values():
            counts[one.grain] = counts.get(one.grain, 0) + 1
            sizes[one.grain] = sizes.get(one.grain, 0) + one.bytes
        return counts, sizes

    # -- reading -------------------------------------------------------------------------------------

    @contextmanager
    def live_stream(self, query: str, parameters: Sequence[Any] = ()) -> Iterator[int]:
        """Yield the descriptor of a file in memory: an Arrow stream from the live file, for `pack`."""
        memory = os.memfd_create("gangline-readings")
        try:
            with self._access.cursor() as cursor:
                reader = cursor.sql(query, params=list(parameters)).to_arrow_reader(BATCH_ROWS)
                place = f"/proc/self/fd/{memory}"
                with pa.OSFile(place, "wb") as sink, pa.ipc.new_stream(sink, reader.schema) as out:
                    for batch in reader:
                        out.write_batch(batch)
            yield memory
        finally:
            os.close(memory)

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Return rows from the live file."""
        with self._access.cursor() as cursor:
            return cursor.execute(query, list(parameters)).fetchall()

    def of_grain(self, grain: str, table: str | None = None) -> list[ParquetSegment]:
        """Return the files of a grain, oldest received first."""
        found = [
            one
            for one in self.recorded.values()
            if one.grain == grain and table in (None, one.table)
        ]
        return sorted(found, key=lambda one: (one.bucket, one.path))

    # -- writing -------------------------------------------------------------------------------------

    @contextmanager
    def files(self, table: str, bucket: str, grains: Iterable[str]) -> Iterator[str]:
        """Begin an unfinished file of each grain; yield what `pack` calls them.

        What has not been named by `finish` goes again.
        """
        places = {
            grain: segment_files.free_segment_path(self.folder, grain, table, bucket)
            for grain in grains
        }
        file_set = f"{table} {bucket}"
        self._packer.start()
        try:
            self.pack(
                "begin", file_set, places, {g: self._encodings.get((g, table), {}) for g in places}
            )
            yield file_set
        finally:
            with suppress(PackerError):
                self.pack("discard", file_set)
            for place in places.values():  # of a packer that was killed
                (self.folder / (place + UNFINISHED_SUFFIX)).unlink(missing_ok=True)

    def pack(self, name: str, *arguments: Any, memory: int | None = None) -> Any:
        """Call a method of the packer, within `files`. Raises PackerError."""
        return self._packer.call(name, *arguments, memory=memory)

    def finish(self, file_set: str, table: str, bucket: str) -> list[ParquetSegment]:
        """Make the files durable and give them their names; return them, not recorded yet."""
        made = self.pack("end", file_set)
        self.step("written")
        found = []
        for grain, one in made.items():
            self._encodings[grain, table] = one.pop("encodings")
            if one["rows"]:
                size, crc32 = segment_files.finish(self.folder, one["path"])
                found.append(
                    ParquetSegment(
                        grain=grain, table=table, bucket=bucket, bytes=size, crc32=crc32, **one
                    )
                )
        self.step("synced")
        for one in found:
            segment_files.reveal(self.folder, one.path)
            self.step(f"revealed {one.grain}")
        return found

    def record(
        self,
        table: str,
        new: Sequence[ParquetSegment],
        old: Sequence[ParquetSegment],
        work: Work | None = None,
    ) -> None:
        """Record *new* and mark *old* as gone, with *work*, in one transaction."""

        def run(connection: duckdb.DuckDBPyConnection) -> list[ParquetSegment]:
            if work is not None:
                work(connection)
            counted = segment_files.record(connection, new, self.now_us)
            segment_files.mark_gone(connection, old, self.now_us)
            self.step("recording")
            return counted

        recorded = self._access.transact(run)
        for one in old:
            self.recorded.pop(one.path, None)
        for one in recorded:
            self.recorded[one.path] = one
        self.step("recorded")
        self.publish(table)
        self.step("published")

    def transact(self, work: Work) -> Any:
        """Run *work* between two commits."""
        return self._access.transact(work)

    def publish(self, table: str) -> None:
        """Tell readers outside which files of *table* count."""
        found = [one for one in self.recorded.values() if one.table == table]
        segment_files.write_manifest(
            self.folder, table, sorted(found, key=lambda one: (one.bucket, one.path))
        )

    def drop(self, paths: Sequence[str]) -> None:
        """Unlink files that count no more, then forget them."""
        for path in paths:
            segment_files.unlink(self.folder, path)
        self.step("unlinked")
        self._access.transact(lambda connection: segment_files.forget(connection, paths))
        self.step("forgotten")

    def set_aside(self, segment: ParquetSegment) -> str:
        """Let a damaged file count no more and move it away; return where it is now."""
        self._access.transact(lambda connection: segment_files.forget(connection, [segment.path]))
        self.recorded.pop(segment.path, None)
        self.publish(segment.table)
        return self.move_aside(segment.path)

    def move_aside(self, path: str) -> str:
        """Move a file of the data folder away; return where it is now, "" when it was not there."""
        place = self.folder / ASIDE_FOLDER / path.replace("/", "--")
        place.parent.mkdir(exist_ok=True)
        try:
            os.rename(self.folder / path, place)
        except FileNotFoundError:
            return ""
        return str(place)

    def make_rollup_views(self, table: str) -> None:
        """Make the live file's views of a table's rollups again."""
        found = [one for one in self.recorded.values() if one.table == table and one.grain != RAW]

        def run(connection: duckdb.DuckDBPyConnection) -> None:
            for statement in rollup_views(self.folder, table, found):
                connection.execute(statement)

        self._access.transact(run)
