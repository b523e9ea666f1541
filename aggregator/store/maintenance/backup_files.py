"""Files of a backup: `manifest.json` is written last, so a folder without it is no backup."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

from ....contract.durable_file import CopyError, os_error_message, write_new_file
from ..store_folder import BACKUP_HOLDS_FOLDER

MANIFEST_FILE = "manifest.json"
FORMAT = 1
#: A year of 5-minute segments of thirty tables: three million files with lines of about 150 bytes.
MANIFEST_BYTES_MAX = 1 << 30
_NAME = re.compile(r"\d{8}T\d{6}Z(-\d+)?$")

#: Folders whose files are written under a temporary name, renamed, and never changed.
FOLDERS = ("segments", "rollups")


class NoManifestError(ValueError):
    """The bytes are not a manifest; the message says why."""


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A file of a backup: bytes, SHA-256 in hex (as `sha256sum` prints it), and modification time
    of the original; 0: unknown.
    """

    size_bytes: int
    sha256: str
    modified_ns: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """A backup as of `as_of_ns` (aggregator's clock); file names are relative to its folder."""

    as_of_ns: int
    host: str
    gangline: str
    duckdb: str
    schema_version: int
    rows: int
    access: bool = False
    files: Mapping[str, BackupFile] = field(default_factory=dict)
    #: Parquet files that retention deleted during the copy.
    gone: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Return the total size of all files."""
        return sum(file.size_bytes for file in self.files.values())

    @property
    def as_of(self) -> str:
        """Return the time of the content as text."""
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.as_of_ns // 1_000_000_000))

    def write(self, folder: Path) -> None:
        """Write the manifest into *folder*, durably. Raises OSError."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1)
        new = folder / f"{MANIFEST_FILE}.new"
        write_new_file(new, text.encode())
        new.replace(folder / MANIFEST_FILE)


def read(folder: Path) -> Manifest:
    """Return the manifest of the backup in *folder*. Raises CopyError."""
    path = folder / MANIFEST_FILE
    try:
        if path.stat().st_size > MANIFEST_BYTES_MAX:
            raise CopyError(f"{path} is longer than {MANIFEST_BYTES_MAX} bytes: not a manifest")
        data = path.read_bytes()
    except FileNotFoundError:
        raise CopyError(_no_backup_message(folder)) from None
    except OSError as error:
        raise CopyError(f"{path} cannot be read: {os_error_message(error)}") from error
    try:
        return parse(data)
    except NoManifestError as error:
        raise CopyError(f"{path} is not the manifest of a backup: {error}") from error


def parse(data: bytes) -> Manifest:
    """Return the manifest in *data*. Raises NoManifestError."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NoManifestError(f"not JSON: {str(error)[:150]!r}") from error
    if not isinstance(document, dict):
        raise NoManifestError("not an object")
    fields = cast("dict[str, Any]", document)
    if fields.get("format") != FORMAT:
        raise NoManifestError(
            f"format {str(fields.get('format'))[:20]!r}, this gangline reads {FORMAT}"
        )
    files = {_name(name): _file(name, entry) for name, entry in _object(fields, "files").items()}
    gone = fields.get("gone", [])
    if not isinstance(gone, list):
        raise NoManifestError("gone: expected a list")
    return Manifest(
        as_of_ns=_number(fields, "as_of_ns"),
        host=_text(fields, "host"),
        gangline=_text(fields, "gangline"),
        duckdb=_text(fields, "duckdb"),
        schema_version=_number(fields, "schema_version"),
        rows=_number(fields, "rows"),
        access=fields.get("access") is True,
        files=files,
        gone=tuple(str(entry) for entry in cast("list[object]", gone)),
    )


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise NoManifestError(f"{name}: expected a whole number, not {str(value)[:40]!r}")
    return value


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or len(value) > 1000:
        raise NoManifestError(f"{name}: expected a text of at most 1000 characters")
    return value


def _object(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name)
    if not isinstance(value, dict):
        raise NoManifestError(f"{name}: expected an object")
    return cast("dict[str, Any]", value)


def _file(name: str, each: object) -> BackupFile:
    if not isinstance(each, dict):
        raise NoManifestError(f"{name[:80]!r}: expected size_bytes and sha256")
    fields = cast("dict[str, Any]", each)
    digest = fields.get("sha256")
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise NoManifestError(f"{name[:80]!r}: sha256: expected 64 hexadecimal digits")
    modified_ns = _number(fields, "modified_ns") if "modified_ns" in fields else 0
    return BackupFile(_number(fields, "size_bytes"), digest, modified_ns)


def _name(name: str) -> str:
    """Return *name* if it stays within the folder: a manifest is untrusted input."""
    path = PurePosixPath(name)
    inside = not path.is_absolute() and ".." not in path.parts and str(path) == name
    if not inside or not name.isprintable() or not path.name:
        raise NoManifestError(f"{name[:80]!r} is not the name of a file of a backup")
    return name


def backups(folder: Path) -> list[Path]:
    """Return the complete backups in *folder*, oldest first. Raises OSError."""
    if not folder.is_dir():
        return []
    folders = (entry for entry in folder.iterdir() if _NAME.fullmatch(entry.name))
    return sorted(entry for entry in folders if (entry / MANIFEST_FILE).exists())


def newest(folder: Path) -> Path:
    """Return *folder* if it is a backup, else the newest backup in it. Raises CopyError."""
    if (folder / MANIFEST_FILE).exists():
        return folder
    try:
        existing = backups(folder)
    except OSError as error:
        raise CopyError(f"{folder} cannot be read: {os_error_message(error)}") from error
    if not existing:
        raise CopyError(_no_backup_message(folder))
    return existing[-1]


def _no_backup_message(folder: Path) -> str:
    if not folder.exists():
        return f"{folder} is not there: name the folder that `gangline admin backup -o` was given"
    return f"{folder} is not a backup and contains none: there is no {MANIFEST_FILE} (it is written last; without it a backup is incomplete). Name the folder that `gangline admin backup -o` was given"


def files(folder: Path) -> list[str]:
    """Return the sorted names of all Parquet files in *folder*, relative to it."""
    result: list[str] = []
    for top in FOLDERS:
        for path, folders, names in os.walk(folder / top):
            folders[:] = [name for name in folders if not name.startswith(".")]
            inside = Path(path).relative_to(folder)
            result += [str(inside / name) for name in names if name.endswith(".parquet")]
    return sorted(result)


@contextmanager
def hold_files(data: Path, names: list[str]) -> Iterator[Path]:
    """Yield a folder that keeps the files *names* of *data*, even if they are deleted meanwhile.

    It has hard links within *data*; if *data* is not writable it is *data* itself. Names that no
    longer exist are missing.
    """
    stage = data / BACKUP_HOLDS_FOLDER / str(os.getpid())
    try:
        stage.mkdir(parents=True)
    except OSError:
        yield data
        return
    try:
        for name in names:
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                os.link(data / name, stage / name)
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        with suppress(OSError):  # other processes use it
            stage.parent.rmdir()
