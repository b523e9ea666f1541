"""Parsers of topology files: CSV with one line per host, and Topograph's graph as JSON."""

from __future__ import annotations

import csv
import difflib
import io
import json
from dataclasses import replace
from typing import Any

from ...contract.topology import NAME_CHARACTERS_MAX, RAILS_MAX
from .fields import non_empty_list, one_line
from .host_placement import PLACE_FIELDS, HostPlacement
from .limits import COLUMNS_MAX, PLACES_MAX
from .patterns import parse_host_pattern
from .problems import Problems, SourceLocation, quote_value
from .reported_inventory import LABEL_NAMES, characters_max, place_of
from .toml_file import Content

#: Minimum similarity at which an unknown column is taken for a typing error, not for a column of
#: another tool.
_SIMILARITY_MIN = 0.75

LABELS_MAX, LAYERS_MAX = 256, 16
_EXAMPLE = (
    '{"instances": [{"id": "node-1", "network_layers": ["leaf-a", "spine-a"], "labels": {}}]}'
)


def parse_csv(text: str, file: str, content: Content, problems: Problems) -> None:
    """Add the locations of *text* to *content*, and its errors to *problems*. Never raises."""
    delimiter = _delimiter(text)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    columns: dict[str, int] | None = None
    width, has_hosts, next_location = 0, False, SourceLocation(file, 1)
    try:
        for row in rows:
            row_location, next_location = (
                next_location,
                SourceLocation(file, rows.line_num + 1),
            )  # a quoted value may span lines
            if _is_blank(row):
                continue
            if columns is None:
                columns, width = _columns(row, row_location, problems), len(row)
                if not columns:
                    return
                continue
            has_hosts = True
            if problems.should_stop():
                return
            if len(content.places) >= PLACES_MAX:
                problems.add(
                    row_location, f"with this one there are more than {PLACES_MAX} places of hosts"
                )
                return
            if any(cell.strip() for cell in row[width:]):
                problems.add(row_location, _width_error(len(row), width, delimiter))
            else:
                _parse_row(row, columns, row_location, content, problems)
    except (csv.Error, UnicodeError) as error:
        problems.add(next_location, f"not CSV: {_csv_error(error)}")
        return
    if columns is None:
        first = f"host,{','.join(PLACE_FIELDS[:4])}"
        problems.add(SourceLocation(file), f"empty: expected a first line as {first}")
    elif not has_hosts:  # more likely an export that failed
        problems.add(
            SourceLocation(file),
            "no host below the first line: if that is intended, remove the file",
        )


def _delimiter(text: str) -> str:
    """Return the delimiter of the first line that is not empty or a comment."""
    lines = (
        line for line in io.StringIO(text) if line.strip() and not line.lstrip().startswith("#")
    )
    first = next(lines, "")
    return ";" if first.count(";") > first.count(",") else ","


def _is_blank(row: list[str]) -> bool:
    return not any(cell.strip() for cell in row) or row[0].lstrip().startswith("#")


def _width_error(count: int, width: int, delimiter: str) -> str:
    return (
        f"{count} values for {width} columns: what has a {delimiter} in it needs quotes, "
        f'as "hall 2{delimiter} row 7"'
    )


def _csv_error(error: Exception) -> str:
    """Return the error; for an unclosed quote the library reports only the end of the file."""
    unclosed = "unexpected end of data" in str(error)
    return "a quote begins here and does not end" if unclosed else str(error)


def _columns(row: list[str], where: SourceLocation, problems: Problems) -> dict[str, int]:
    """Return the index of each known column; empty if the line is not a valid header."""
    if len(row) > COLUMNS_MAX:
        problems.add(where, f"{len(row)} columns, at most {COLUMNS_MAX}")
        return {}
    names = [cell.strip().lower() for cell in row]
    known = ("host", *PLACE_FIELDS)
    for name in names:
        if name in known or not name:
            if name and names.count(name) > 1:
                problems.add(where, f"column {name} is there {names.count(name)} times")
                return {}
        elif like := difflib.get_close_matches(name, known, 1, _SIMILARITY_MIN):
            problems.add(where, f"column {quote_value(name)} is unknown: did you mean {like[0]}?")
            return {}
        else:
            problems.note(where, f"column {quote_value(name)} is not read")
    columns = {name: names.index(name) for name in known if name in names}
    if "host" not in columns or len(columns) < 2:
        problems.add(
            where,
            "expected a first line of names separated by commas or semicolons: host, and any of "
            + ", ".join(PLACE_FIELDS),
        )
        return {}
    return columns


def _rail(text: str) -> str:
    if "," in text or ";" in text:
        raise ValueError("expected names with spaces between them, as leaf1-rail0 leaf1-rail1")
    return one_line(text)


def _parse_row(
    row: list[str],
    columns: dict[str, int],
    where: SourceLocation,
    content: Content,
    problems: Problems,
) -> None:
    values: dict[str, Any] = {}
    for name, column in columns.items():
        cell = row[column].strip() if column < len(row) else ""
        try:
            if name == "rails":
                rails = tuple(map(_rail, cell.split()))
                if len(rails) > RAILS_MAX:
                    raise ValueError(f"{len(rails)} of them, at most {RAILS_MAX}")
                values[name] = rails
            else:
                values[name] = one_line(cell) if cell else ""
        except ValueError as error:
            problems.add(where, f"{name}: {quote_value(cell)}: {error}")
            return
    host = values.pop("host")
    try:
        pattern = parse_host_pattern(host)
        if not pattern.is_name:
            raise ValueError("expected one host's name a line")
    except ValueError as error:
        problems.add(where, f"host: {quote_value(host)}: {error}")
        return
    content.places.append((host, HostPlacement(**values), where))


def parse_topograph(text: str, file: str, content: Content, problems: Problems) -> None:
    """Add the locations of *text* to *content*, and its errors to *problems*. Never raises.

    Topograph's graph is `{"instances": [{"id", "network_layers": [leaf, spine, core], "labels":
    {}}]}`.
    """
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 0)
        problems.add(SourceLocation(file, line), f"not JSON: {str(error)[:200]}")
        return
    where = SourceLocation(file)
    instances = document.get("instances") if isinstance(document, dict) else None
    if not isinstance(instances, list):
        problems.add(where, f"expected Topograph's graph, as {_EXAMPLE}")
        return
    if len(content.places) + len(instances) > PLACES_MAX:
        problems.add(
            where,
            f"{len(instances)} instances: with these there are more than {PLACES_MAX} places of hosts",
        )
        return
    if not instances:
        problems.add(where, "no instances: if that is intended, remove the file")
    for number, instance in enumerate(instances):
        location = SourceLocation(f"{file}: instances[{number}]")
        try:
            content.places.append((*_parse_instance(instance), location))
        except ValueError as error:
            name = instance.get("id") if isinstance(instance, dict) else None
            problems.add(location, f"id {quote_value(name)}: {error}")


def _parse_instance(instance: Any) -> tuple[str, HostPlacement]:
    """Return a host and its location. Raises ValueError with a message."""
    if not isinstance(instance, dict):
        raise ValueError(f"expected an object, as {_EXAMPLE}")  # noqa: TRY004 - content of a file
    host = _checked_text("id", instance.get("id"))
    if not parse_host_pattern(host).is_name:
        raise ValueError("id: expected one host's name")
    labels = instance.get("labels") or {}
    if not isinstance(labels, dict) or len(labels) > LABELS_MAX:
        raise ValueError(f"labels: expected an object of at most {LABELS_MAX} texts")
    for key in sorted(LABEL_NAMES & labels.keys()):
        if labels[key] != "":  # an empty label is ignored, as for an agent's
            _checked_text(f"labels: {key}", labels[key], characters_max(key))
    from_labels = place_of({key: labels[key] for key in LABEL_NAMES & labels.keys()})
    switches = _switches(instance.get("network_layers") or [])
    leaf, spine, core = (*switches, "", "", "")[:3]  # layers farther out are ignored
    return host, replace(
        from_labels,
        leaf=leaf or from_labels.leaf,
        spine=spine or from_labels.spine,
        core=core or from_labels.core,
    )


def _switches(layers: Any) -> list[str]:
    """Return the switches above a host, the nearest first. Raises ValueError with a message."""
    try:
        return [one_line(layer) for layer in non_empty_list(layers, LAYERS_MAX)] if layers else []
    except ValueError as error:
        raise ValueError(f"network_layers: {error}") from error


def _checked_text(name: str, value: Any, most: int = NAME_CHARACTERS_MAX) -> str:
    try:
        return one_line(value, most)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
