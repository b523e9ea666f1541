"""Topograph's graph as JSON: `{"instances": [{"id", "network_layers": [leaf, spine, core], "labels": {}}]}`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from .content import Content
from .fields import listed, one_line
from .hostset import parse_pattern
from .limits import HOSTS_MAX
from .model import Place
from .problems import Problems, Where, shown
from .told import NAMES, place_of

LABELS_MAX = 256
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
    if len(instances) > HOSTS_MAX:
        problems.add(where, f"{len(instances)} instances, at most {HOSTS_MAX}")
        return
    for number, instance in enumerate(instances):
        try:
            content.places.append((*_host(instance), where))
        except ValueError as error:
            name = instance.get("id") if isinstance(instance, dict) else None
            problems.add(where, f"instances[{number}] (id {shown(name)}): {error}")


def _host(instance: Any) -> tuple[str, Place]:
    """Return a host and its place. Raises ValueError with words."""
    if not isinstance(instance, dict):
        raise ValueError(f"expected an object, as {_FORM}")  # noqa: TRY004 - what a file holds is a value
    host = one_line(instance.get("id"))
    if not parse_pattern(host).is_name:
        raise ValueError("id: expected one host's name")
    labels = instance.get("labels") or {}
    if not isinstance(labels, dict) or len(labels) > LABELS_MAX:
        raise ValueError(f"labels: expected an object of at most {LABELS_MAX} texts")
    told = place_of({key: one_line(labels[key]) for key in NAMES & labels.keys()})
    layers = instance.get("network_layers") or []
    named = [one_line(one) for one in listed(layers, 16)] if layers else []
    leaf, spine, core = (*named, "", "", "")[:3]  # what is further out is not asked for
    return host, replace(
        told, leaf=leaf or told.leaf, spine=spine or told.spine, core=core or told.core
    )
