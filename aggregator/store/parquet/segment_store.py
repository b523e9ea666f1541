"""Shared parts of the history: its folder, access to the live file, and the list of valid files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
from duckdb import DuckDBPyConnection as Connection

from . import segment_files
from .segment_files import RAW, UNFINISHED_SUFFIX, ParquetSegment
from .views import rollup_views
from .worker_client import PackerError, PackerHandle

#: Folder for files that are damaged or unrecorded and may still be needed.
ASIDE_FOLDER = "aside"

#: Rows per batch from the live file, which limits memory.
BATCH_ROWS = 30_000

Work = Callable[[Connection], Any]


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Access to the live file, provided by `Store`."""

    transact: Callable[[Work], Any]
    cursor: Callable[[], AbstractContextManager[Connection]]


class SegmentStore:
    """For one thread. A crash between any two of the steps named to `step` loses nothing."""

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

    def cursor(self) -> AbstractContextManager[Connection]:
        """Return a cursor for reading from the live file."""
        return self._access.cursor()

    def totals(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the number and the bytes of valid files, by grain."""
        counts: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for segment in self.recorded.values():
            counts[segment.grain] = counts.get(segment.grain, 0) + 1
            sizes[segment.grain] = sizes.get(segment.grain, 0) + segment.bytes
        return counts, sizes

    @contextmanager
    def live_stream(self, query: str, parameters: Sequence[Any] = ()) -> Iterator[int]:
        """Yield the descriptor of an Arrow stream with rows of the live file, for `pack`."""
        memory = os.memfd_create("gangline-readings")
        try:
            with self._access.cursor() as cursor:
                reader = cursor.sql(query, params=list(parameters)).to_arrow_reader(BATCH_ROWS)
                path = f"/proc/self/fd/{memory}"
                with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, reader.schema) as out:
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
        segments = [
            segment
            for segment in self.recorded.values()
            if segment.grain == grain and table in (None, segment.table)
        ]
        return sorted(segments, key=lambda segment: (segment.bucket, segment.path))

    @contextmanager
    def files(self, table: str, bucket: str, grains: Iterable[str]) -> Iterator[str]:
        """Begin an unfinished file of each grain; yield the name of the set for `pack`.

        On exit, files that `finish` has not renamed are removed.
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
            for path in places.values():  # of a killed packer
                (self.folder / (path + UNFINISHED_SUFFIX)).unlink(missing_ok=True)

    def pack(self, name: str, *arguments: Any, memory: int | None = None) -> Any:
        """Call a method of the packer, within `files`. Raises PackerError."""
        return self._packer.call(name, *arguments, memory=memory)

    def finish(self, file_set: str, table: str, bucket: str) -> list[ParquetSegment]:
        """Make the files durable and rename them; return them, not recorded yet."""
        metadata = self.pack("end", file_set)
        self.step("written")
        segments = []
        for grain, item in metadata.items():
            self._encodings[grain, table] = item.pop("encodings")
            if item["rows"]:
                size, crc32 = segment_files.finish(self.folder, item["path"])
                place = {"grain": grain, "table": table, "bucket": bucket}
                segments.append(ParquetSegment(**place, bytes=size, crc32=crc32, **item))
        self.step("synced")
        for item in segments:
            segment_files.reveal(self.folder, item.path)
            self.step(f"revealed {item.grain}")
        return segments

    def record(
        self,
        table: str,
        new: Sequence[ParquetSegment],
        old: Sequence[ParquetSegment],
        work: Work | None = None,
    ) -> None:
        """Record *new*, mark *old* as gone, and run *work*, in one transaction."""

        def run(connection: Connection) -> list[ParquetSegment]:
            if work is not None:
                work(connection)
            counted = segment_files.record(connection, new, self.now_us)
            segment_files.mark_gone(connection, old, self.now_us)
            self.step("recording")
            return counted

        recorded = self._access.transact(run)
        for segment in old:
            self.recorded.pop(segment.path, None)
        for segment in recorded:
            self.recorded[segment.path] = segment
        self.step("recorded")
        self.publish(table)
        self.step("published")

    def transact(self, work: Work) -> Any:
        """Run *work* between two commits."""
        return self._access.transact(work)

    def publish(self, table: str) -> None:
        """Write the manifest of *table*, for readers outside the aggregator."""
        segments = [segment for segment in self.recorded.values() if segment.table == table]
        segment_files.write_manifest(
            self.folder, table, sorted(segments, key=lambda segment: (segment.bucket, segment.path))
        )

    def drop(self, paths: Sequence[str]) -> None:
        """Unlink files that are marked as gone, and delete their records."""
        for path in paths:
            segment_files.unlink(self.folder, path)
        self.step("unlinked")
        self._access.transact(lambda connection: segment_files.forget(connection, paths))
        self.step("forgotten")

    def set_aside(self, segment: ParquetSegment) -> str:
        """Delete the record of a damaged file and move the file aside; return its new path."""
        self._access.transact(lambda connection: segment_files.forget(connection, [segment.path]))
        self.recorded.pop(segment.path, None)
        self.publish(segment.table)
        return self.move_aside(segment.path)

    def move_aside(self, path: str) -> str:
        """Move a file aside; return its new path, "" if it does not exist."""
        new_path = self.folder / ASIDE_FOLDER / path.replace("/", "--")
        new_path.parent.mkdir(exist_ok=True)
        try:
            os.rename(self.folder / path, new_path)
        except FileNotFoundError:
            return ""
        return str(new_path)

    def make_rollup_views(self, table: str) -> None:
        """Recreate the live file's views of a table's rollups."""
        segments = [s for s in self.recorded.values() if s.table == table and s.grain != RAW]

        def run(connection: Connection) -> None:
            for statement in rollup_views(self.folder, table, segments):
                connection.execute(statement)

        self._access.transact(run)
