"""Loads declaration files into a `Declared`: finds, parses and merges the files."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from .csv_topograph import parse_csv, parse_topograph
from .host_placement import NOWHERE, PLACE_FIELDS, HostPlacement, PlaceSource, merge_places
from .limits import (
    ENTRIES_MAX,
    FILE_BYTES_MAX,
    FILES_MAX,
    HOSTS_MAX,
    MATCH_COST_MAX,
    SOURCES_PER_HOST_MAX,
    TOML_BYTES_MAX,
    TOTAL_BYTES_MAX,
)
from .model import Declared
from .problems import DeclaredError, Problems, SourceLocation, quote_value
from .toml_file import Content, parse_toml

log = logging.getLogger(__name__)

#: Maximum length of an unexpected exception's message.
REASON_CHARACTERS_MAX = 200
#: File endings that are read; other files are skipped, except likely mistakes.
ENDINGS = (".toml", ".csv", ".json")
_YAML = (".yaml", ".yml")
_YAML_MESSAGE = "YAML is not supported: declare it as TOML, or use Topograph's graph as JSON (the response of its graph engine)"
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class DeclaredFile:
    """A file's name and content."""

    name: str
    data: bytes


def files_in(path: Path) -> list[Path]:
    """Return the files of *path*, a folder or one file, by name. Raises DeclaredError."""
    try:
        if not path.is_dir():
            return [path]
        names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    except OSError as error:
        raise DeclaredError([f"{path}: {error.strerror}"]) from error
    paths = [path / name for name in names if name.endswith((*ENDINGS, *_YAML))]
    if len(paths) > FILES_MAX:
        raise DeclaredError([f"{path}: {len(paths)} files, at most {FILES_MAX}"])
    return paths


def read_files(paths: Iterable[Path]) -> list[DeclaredFile]:
    """Return the files' content, at most TOTAL_BYTES_MAX. Raises DeclaredError; never blocks."""
    files: list[DeclaredFile] = []
    left_bytes = TOTAL_BYTES_MAX
    for path in (file_path for folder in paths for file_path in files_in(folder)):
        if not path.name.isprintable():  # the name could not be stored or reported
            raise DeclaredError(
                [f"{quote_value(path.name)}: expected a name of printable characters"]
            )
        try:
            files.append(DeclaredFile(path.name, _read_file(path)))
        except OSError as error:
            raise DeclaredError([f"{path}: {error.strerror}"]) from error
        left_bytes -= len(files[-1].data)
        if left_bytes < 0:
            raise DeclaredError(
                [
                    f"{path}: with this one the files are longer than {TOTAL_BYTES_MAX} bytes together"
                ]
            )
    names = [file.name for file in files]
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise DeclaredError([f"two files are named {min(duplicates)}: give them different names"])
    return files


def _read_file(path: Path) -> bytes:
    """Return a file's first FILE_BYTES_MAX + 1 bytes. Raises DeclaredError, OSError."""
    descriptor = os.open(path, _OPEN)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DeclaredError([f"{path}: not a regular file but a folder, a pipe, or a device"])
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(FILE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)


def hash_of(files: Sequence[DeclaredFile]) -> str:
    """Return a hash of the content of *files*, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for file in files:
        for part in (file.name.encode(errors="surrogateescape"), file.data):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()[:16]


def parse_files(
    files: Sequence[DeclaredFile],
    now_ns: int,
    *,
    rules: frozenset[str] = frozenset(),
    number: int = 0,
    was_good: bool = False,
) -> Declared:
    """Return the joint declarations of *files*. Raises DeclaredError with all errors.

    *rules*: the names that an override may have; none: any. A valid version stays valid as time
    passes: only overrides without `since` depend on *now_ns*, since their end may not be too far
    away. *was_good*: the version was in force before a restart, and stays so even if this version
    of the program has tighter limits: slow is better than without its windows.
    """
    content, problems = Content(), Problems()
    places: list[tuple[str, str, HostPlacement, SourceLocation]] = []
    for file in files:
        before = len(content.places)
        try:
            _parse_file(file, content, problems, now_ns, rules)
        except Exception as error:  # a bug of the parser or a library
            log.exception("%s could not be parsed", file.name)
            reason = f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]
            problems.add(SourceLocation(file.name), f"cannot be parsed: {reason}")
        source = "topograph" if file.name.endswith(".json") else "file"
        places += [(host, source, place, where) for host, place, where in content.places[before:]]
    for kind in (
        content.windows, content.overrides, content.expectations, content.node_costs, content.tenants,
    ):  # fmt: skip
        if len(kind) > ENTRIES_MAX:
            problems.add(
                SourceLocation("all files"), f"{len(kind)} entries of a kind, at most {ENTRIES_MAX}"
            )
    file_places = _file_places(places, problems)
    problems.raise_any()
    declared = Declared(
        number=number,
        hash=hash_of(files),
        files=tuple(file.name for file in files),
        windows=tuple(content.windows),
        overrides=tuple(content.overrides),
        expectations=tuple(content.expectations),
        thresholds=MappingProxyType({n: value for n, (value, _) in content.thresholds.items()}),
        rollouts=MappingProxyType(dict(content.rollouts)),
        node_costs=tuple(content.node_costs),
        tenants={name: rates for name, (rates, _) in content.tenants.items()},
        file_places=file_places,
        places={host: merge_places(places) for host, places in file_places.items()},
        places_version=number,
        notes=tuple(problems.notes),
    )
    declared.prepare()
    if declared.match_cost > MATCH_COST_MAX and not was_good:
        problems.add(
            SourceLocation("all files"),
            f"{declared.match_cost:,} of *, ? and [..] to match names with, at most "
            f"{MATCH_COST_MAX:,}: "
            "name hosts, in ranges as gpu-[001-016] of fewer names, or by racks, leaves, power_domains",
        )
        problems.raise_any()
    return declared


def _parse_file(
    file: DeclaredFile, content: Content, problems: Problems, now_ns: int, rules: frozenset[str]
) -> None:
    bytes_max = TOML_BYTES_MAX if file.name.endswith(".toml") else FILE_BYTES_MAX
    if len(file.data) > bytes_max:
        problems.add(SourceLocation(file.name), f"longer than {bytes_max} bytes")
        return
    if file.name.endswith(_YAML):
        problems.add(SourceLocation(file.name), _YAML_MESSAGE)
        return
    try:
        text = file.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = file.data.count(b"\n", 0, error.start) + 1
        problems.add(SourceLocation(file.name, line), "not UTF-8: save it with that encoding")
        return
    if file.name.endswith(".toml"):
        parse_toml(text, file.name, content, problems, now_ns, rules)
    elif file.name.endswith(".csv"):
        parse_csv(text, file.name, content, problems)
    elif file.name.endswith(".json"):
        parse_topograph(text, file.name, content, problems)
    else:
        problems.add(
            SourceLocation(file.name), f"expected a name that ends in {', '.join(ENDINGS)}"
        )


def _file_places(
    places: Sequence[tuple[str, str, HostPlacement, SourceLocation]], problems: Problems
) -> dict[str, tuple[PlaceSource, ...]]:
    """Return each host's locations, people's own files first.

    Two files of people, or two graphs, that differ in a field are both errors: nothing shows which
    is right.
    """
    by_host: dict[str, dict[str, list[PlaceSource]]] = {}
    for host, source, place, where in places:
        sources = by_host.setdefault(host, {}).setdefault(source, [])
        if len(sources) >= SOURCES_PER_HOST_MAX:
            problems.add(where, f"{host}: named more than {SOURCES_PER_HOST_MAX} times")
            continue
        for other in sources:
            differing = _differing_fields(other.place, place)
            for name in differing:
                problems.add(where, partial(_conflict_message, host, name, place, other))
            if differing:
                break  # or it would be reported for each of the SOURCES_PER_HOST_MAX entries
        sources.append(PlaceSource(source, str(where), place))
    if len(by_host) > HOSTS_MAX:
        problems.add(
            SourceLocation("all files"), f"{len(by_host)} hosts have a place, at most {HOSTS_MAX}"
        )
    return {host: (*b.get("file", ()), *b.get("topograph", ())) for host, b in by_host.items()}


def _conflict_message(host: str, name: str, place: HostPlacement, other: PlaceSource) -> str:
    return f"{host}: {name} is {_value(place, name)} here and {_value(other.place, name)} at {other.where}"


def _differing_fields(one: HostPlacement, other: HostPlacement) -> list[str]:
    if one is other or NOWHERE in (one, other):
        return []
    return [
        name
        for name in PLACE_FIELDS
        if (a := getattr(one, name)) and (b := getattr(other, name)) and a != b
    ]


def _value(place: HostPlacement, name: str) -> str:
    value = getattr(place, name)
    return quote_value(" ".join(value)) if isinstance(value, tuple) else str(value)
