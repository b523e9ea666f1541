"""Settings of an executor of a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass

from ...contract.settings import setting
from ..settings import (
    UnweightedConfig,
    cluster_setting,
    drain_mark,
)


def _check_ray_actions(actions: tuple[str, ...]) -> None:
    if any(action != "EVICT_NOW" for action in actions):
        raise ValueError(
            "EVICT_NOW or nothing: an executor of Ray can only drain a node, and a drain cannot be "
            "undone"
        )


def _check_helper(helper: tuple[str, ...]) -> None:
    if len(helper) < 2:
        raise ValueError("Ray's Python, then the path of gangline_ray.py")


@dataclass(frozen=True)
class RayConfig(UnweightedConfig):
    """Settings of an executor of a Ray cluster."""

    cluster: str = cluster_setting("ray")
    mark: str = drain_mark("which cannot be taken back")
    actions: tuple[str, ...] = setting(
        (),
        "advisories to carry out: none, unless EVICT_NOW is listed here; it drains the node "
        "permanently",
        check=_check_ray_actions,
    )
    poll_seconds: float = setting(
        10.0, "time between two reads of nodes and placement groups", low=0.2, high=300.0
    )
    ray_address: str = setting("127.0.0.1:6379", "HOST:PORT of the head node's control service")
    ray_helper: tuple[str, ...] = setting(
        ("python3", "/usr/local/libexec/gangline_ray.py"),
        "Ray's Python, of the cluster's version, and the path of gangline_ray.py",
        check=_check_helper,
    )
    ray_drain_seconds: float = setting(
        60.0,
        "deadline that a drain sets for the work that runs on the node",
        low=0.0,
        high=86_400.0,
    )
