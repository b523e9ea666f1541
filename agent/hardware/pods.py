"""Names of pods by their UID, as kubelet names the folders of their logs: NAMESPACE_NAME_UID.

A control group tells the UID only, and kubelet's PodResources the name only; here are both, on the host itself.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ...ext import place
from .files import names_in

#: Below the root of the host (kubelet's --pod-logs-dir; its default).
LOGS = "var/log/pods"
#: Names are those of DNS (RFC 1123), in which there is no underscore.
_FOLDER = re.compile(
    r"(?P<namespace>[a-z0-9-]{1,63})_(?P<name>[a-z0-9.-]{1,253})_(?P<uid>[0-9a-f-]{32,36})"
)


class Pod(NamedTuple):
    """A pod by its name."""

    namespace: str
    name: str


def parse_folder(folder: str) -> tuple[str, Pod] | None:
    """Return a pod's UID and name; None for a folder that is not of a pod."""
    found = _FOLDER.fullmatch(folder)
    return (found["uid"], Pod(found["namespace"], found["name"])) if found else None


def names_of_pods(root: Path) -> dict[str, Pod]:
    """Return the pods that this host has or had lately, by UID; none where there is no kubelet."""
    place.enter(b"/var/log", b"list /var/log/pods")
    try:
        folders = names_in(root / LOGS)
    finally:
        place.leave()
    return dict(found for folder in folders if (found := parse_folder(folder)))
