"""Topograph's graph as JSON: `{"instances": [{"id", "network_layers": [leaf, spine, core], "labels": {}}]}`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from ...fingerprints.place import NAME_CHARACTERS_MAX
from .content import Content
from .fields import listed, one_line
from .hostset import parse_pattern
from .limits import PLACES_MAX
from .model import Place
from .problems import Problems, Where, shown
from .told import NAMES, characters_max, place_of

LABELS_MAX, LAYERS_MAX = 256, 16
_FORM = '{"instances": [{"id": "node-1", "network_layers": ["leaf-a", "spine-a"], "labels": {}}]}'


def parse_topograph(text: str, file: str, content: Content, problems: Problems) -> None:
    """Put the places of *text* into *content*, and what is wrong with it into *problems*. Never raises."""
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 0)
        problems.add(Where(file, line), f"not JSON: {str(error)[:200]}")
        return
    where = Where(file)
    instances = document.get("instances") if isinstance(document, dict) else None
    if not isinstance(instances, list):
        problems.add(where, f"expected Topograph's graph, as {_FORM}")
        return
    if len(content.places) + len(instances) > PLACES_MAX:
        problems.add(
            where,
            f"{len(instances)} instances: with these there are more than {PLACES_MAX} places of hosts",
        )
        return
    if not instances:
        problems.add(where, "no instances: if that is so, take the file away")
    for number, instance in enumerate(instances):
        here = Where(f"{file}: instances[{number}]")
        try:
            content.places.append((*_host(instance), here))
        except ValueError as error:
            name = instance.get("id") if isinstance(instance, dict) else None
            problems.add(here, f"id {shown(name)}: {error}")


def _host(instance: Any) -> tuple[str, Place]:
    """Return a host and its place. Raises ValueError with words."""
    if not isinstance(instance, dict):
        raise ValueError(f"expected an object, as {_FORM}")  # noqa: TRY004 - what a file holds is a value
    host = _text("id", instance.get("id"))
    if not parse_pattern(host).is_name:
        raise ValueError("id: expected one host's name")
    labels = instance.get("labels") or {}
    if not isinstance(labels, dict) or len(labels) > LABELS_MAX:
        raise ValueError(f"labels: expected an object of at most {LABELS_MAX} texts")
    for key in sorted(NAMES & labels.keys()):
        if labels[key] != "":  # which tells nothing, as an agent's
            _text(f"labels: {key}", labels[key], characters_max(key))
    told = place_of({key: labels[key] for key in NAMES & labels.keys()})
    named = _layers(instance.get("network_layers") or [])
    leaf, spine, core = (*named, "", "", "")[:3]  # what is further out is not asked for
    return host, replace(
        told, leaf=leaf or told.leaf, spine=spine or told.spine, core=core or told.core
    )


def _layers(layers: Any) -> list[str]:
    """Return the switches above a host, the nearest first. Raises ValueError with words."""
    try:
        return [one_line(one) for one in listed(layers, LAYERS_MAX)] if layers else []
    except ValueError as error:
        raise ValueError(f"network_layers: {error}") from error


def _text(name: str, value: Any, most: int = NAME_CHARACTERS_MAX) -> str:
    try:
        return one_line(value, most)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
