"""Names of the jobs that own processes on GPUs, from the attributes of `gpu.process` events."""

from __future__ import annotations

from collections.abc import Mapping

NAME_CHARACTERS_MAX = 256
#: With these managers a name means the same on every host; `session-3.scope` differs by host.
CLUSTER_MANAGERS = ("slurm", "kubernetes")
#: Manager -> attributes that name the job; the first existing one counts.
NAME_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "slurm": ("job_id",),
    "kubernetes": ("pod_uid", "container_id"),
    "container": ("container_id",),
    "systemd": ("user_unit", "unit"),
}


def job_name(source: str, attributes: Mapping[str, str]) -> str:
    """Return the name of a process's job, as in `ops.jobs`; "" if unknown."""
    if source == "kubernetes" and "namespace" in attributes and "pod" in attributes:
        return f"{attributes['namespace']}/{attributes['pod']}"[:NAME_CHARACTERS_MAX]
    names = (attributes[name] for name in NAME_ATTRIBUTES.get(source, ()) if attributes.get(name))
    return next(names, "")[:NAME_CHARACTERS_MAX]
