"""Owner of a process (job, container, user), from its path in /proc/PID/cgroup (cgroups(7)).

Slurm, Kubernetes, container engines and systemd name cgroups after their contents. The forms are
those of Slurm's cgroup/v1 and cgroup/v2 plugins (slurm.schedmd.com/cgroup_v2.html), of kubelet's
two cgroup drivers, and of systemd.slice(5). A name counts only under the path that its manager
creates. A user with a delegated cgroup can choose any name below it, so `/user.slice/.../job_7` is
ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace

#: Maximum that is read of the file; 14 hierarchies of a deep pod have 4 kB.
CGROUP_BYTES_MAX = 1 << 16
#: Maximum length of a path in the kernel (PATH_MAX); a longer one is ignored.
PATH_CHARACTERS_MAX = 4096
PARTS_MAX = 64

SLURM, KUBERNETES, CONTAINER, SYSTEMD = "slurm", "kubernetes", "container", "systemd"
#: Order of preference: a job's process is also in a unit of systemd.
_ORDER = (SLURM, KUBERNETES, CONTAINER, SYSTEMD, "")

_HEX = "[0-9a-f]{64}"
_UID = "[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_QOS = "burstable|besteffort"
_POD = re.compile(
    rf"pod(?P<folder>{_UID})|(?:kubelet-)?kubepods(?:-(?P<qos>{_QOS}))?-pod(?P<uid>{_UID})\.slice"
    rf"(?::cri-containerd:(?P<id>{_HEX}))?"
)
#: Services with pods below them: kubelet's, or its runtime's. Others may be delegated to a user.
_KUBELETS = (
    r"system\.slice/(?:k3s|k3s-agent|rke2-server|rke2-agent|k0scontroller|k0sworker|kubelet|containerd|docker|crio"
    r"|snap\.[a-z0-9]{1,32}\.daemon-(?:kubelite|kubelet|containerd))\.service"
)
#: Path above a pod: containers that are nodes (kind), kubelet's service and root, the QoS class.
_BEFORE_POD = re.compile(
    rf"(?:(?:docker/{_HEX}|system\.slice/docker-{_HEX}\.scope|machine\.slice/libpod-{_HEX}\.scope(?:/container)?)/){{0,3}}"
    rf"(?:{_KUBELETS}/)?(?:kubelet(?:\.slice)?/)?(?:kubepods(?:/(?P<folder>{_QOS}))?"
    rf"|(?:kubelet-)?kubepods\.slice(?:/(?:kubelet-)?kubepods-(?:{_QOS})\.slice)?)"
    rf"|(?:{_KUBELETS})?"
)
#: Possible rest of that path when its beginning is missing.
_LEFT_BEFORE_POD = re.compile(
    rf"(?:kubelet(?:\.slice)?|kubepods|(?P<folder>{_QOS})|(?:kubelet-)?kubepods(?:-(?:{_QOS}))?\.slice|/)*"
)
_CONTAINER = re.compile(
    rf"(?:(?P<runtime>cri-containerd|crio-conmon|crio|docker|libpod|nerdctl)-)?(?P<id>{_HEX})(?:\.scope)?"
)
#: Engines that run containers without a pod.
_ENGINES = ("docker", "libpod", "nerdctl")
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,246}\.(?:service|scope|socket|mount)")
_SLICE = re.compile(r"[A-Za-z0-9:_.\\@-]{1,249}\.slice")
_USER_SLICE = re.compile(r"user-([0-9]{1,10})\.slice")
_SESSION = re.compile(r"session-([A-Za-z0-9]{1,32})\.scope")
_LXC = re.compile(r"lxc\.payload\.(?P<name>[A-Za-z0-9_.-]{1,64})")

_TASKS = (
    r"(?:/step_(?P<step>[0-9]{1,10}(?:\+[0-9]{1,10})?|batch|extern|interactive)(?:/(?:user|slurm))?"
    r"(?:/task_(?P<task>[0-9]{1,10}|special))?)?(?:/(?P<rest>.*))?"
)
_SLURM_1 = re.compile(
    r"slurm(?:_(?P<node>[A-Za-z0-9._-]{1,253}))?/uid_(?P<user>[0-9]{1,10})/job_(?P<job>[0-9]{1,10})"
    + _TASKS
)
_SLURM_2 = re.compile(
    r"system\.slice/(?:(?P<node>[A-Za-z0-9._-]{1,253})_)?slurmstepd\.scope/job_(?P<job>[0-9]{1,10})"
    + _TASKS
)


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a process; empty values are unknown."""

    source: str = ""  # slurm, kubernetes, container, systemd
    #: Slurm's number of the job; a task of an array, or a part of a het job, has its own number.
    job_id: str = ""
    step: str = ""  # 0, 0+1 (het), batch, extern, interactive
    task: str = ""  # on this host, not the rank; special: of the batch script
    node: str = ""  # if a host has several slurmd
    job_user_id: str = ""  # owner of the job; cgroup v1 only
    pod_uid: str = ""
    qos: str = ""  # guaranteed, burstable, besteffort
    container_id: str = ""
    runtime: str = ""  # name in the group: cri-containerd, crio, docker, libpod
    unit: str = ""
    user_unit: str = ""  # unit of a user's own systemd
    session: str = ""
    slice_user_id: str = ""  # 1000 for user-1000.slice
    #: The path was seen from another control group (`/../..`), without its beginning.
    is_relative: bool = False

    def attributes(self) -> dict[str, str]:
        """Return the known values by name."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if isinstance(value, str) and value}


def parse_cgroup(data: bytes) -> Owner:
    """Return a process's owner. Never raises.

    Lines not of the form hierarchy:controllers:path are ignored.
    """
    lines = data[:CGROUP_BYTES_MAX].split(b"\n")
    if len(data) >= CGROUP_BYTES_MAX:
        lines.pop()  # it may be truncated
    owners = [owner_of(path) for path in map(_path, lines) if path]
    return min(owners, key=lambda owner: _ORDER.index(owner.source), default=Owner())


def _path(line: bytes) -> str:
    number, _, rest = line.partition(b":")
    path = rest.partition(b":")[2]
    is_line = number.isdigit() and path.startswith(b"/") and len(path) <= PATH_CHARACTERS_MAX
    return path.decode(errors="replace") if is_line else ""


def owner_of(path: str) -> Owner:
    """Return the owner of a control group's processes, by its path."""
    parts = [part for part in path.removesuffix(" (deleted)").split("/") if part]
    is_relative = parts[:1] == [".."]
    while parts[:1] == [".."]:
        del parts[0]
    if len(parts) > PARTS_MAX or ".." in parts:
        return Owner()
    owner = _slurm(parts) or _pod(parts, is_relative) or _container(parts) or _systemd(parts)
    return replace(owner, is_relative=is_relative)


def _slurm(parts: list[str]) -> Owner | None:
    path = "/".join(parts)
    match = _SLURM_2.fullmatch(path) or _SLURM_1.fullmatch(path)
    if match is None:
        return None
    groups = match.groupdict(default="")
    inside = _container_in(groups["rest"].split("/")) or Owner()
    return replace(
        inside,
        source=SLURM,
        job_id=groups["job"],
        step=groups["step"],
        task=groups["task"],
        node=groups["node"],
        job_user_id=groups.get("user", ""),
    )


def _pod(parts: list[str], is_relative: bool) -> Owner | None:
    index, match = next(
        ((i, m) for i, p in enumerate(parts) if (m := _POD.fullmatch(p))), (0, None)
    )
    if match is None:
        return _container_of_pod(parts) if is_relative else None
    before = (_LEFT_BEFORE_POD if is_relative else _BEFORE_POD).fullmatch("/".join(parts[:index]))
    if before is None or (match["folder"] and not (before[0] or is_relative)):
        return None
    guaranteed = "" if is_relative and match["folder"] and not before[0] else "guaranteed"
    pod = Owner(
        KUBERNETES,
        pod_uid=(match["uid"] or match["folder"]).replace("_", "-"),
        qos=match["qos"] or before["folder"] or guaranteed,
        container_id=match["id"] or "",
        runtime="cri-containerd" if match["id"] else "",
    )
    return _within_pod(pod, parts[index + 1 :])


def _within_pod(pod: Owner, parts: list[str]) -> Owner:
    """Add the container to *pod*, and the job if the container is a Slurm node."""
    container = _CONTAINER.fullmatch(parts[0]) if parts else None
    if container is None:
        return pod
    pod = replace(pod, container_id=container["id"], runtime=container["runtime"] or "")
    job = _slurm(parts[1:])
    if job is None:
        return pod
    return replace(pod, source=SLURM, job_id=job.job_id, step=job.step, task=job.task)


def _container_of_pod(parts: list[str]) -> Owner | None:
    """Return a container seen from another one in the same pod; the pod itself is not visible."""
    match = _CONTAINER.fullmatch(parts[0]) if parts else None
    if match is None or not (match["runtime"] or "").startswith("cri"):
        return None
    return Owner(KUBERNETES, container_id=match["id"], runtime=match["runtime"])


def _container(parts: list[str]) -> Owner | None:
    """Return a container without Kubernetes, with its unit."""
    inside = _container_in(parts)
    if inside is None:
        return None
    around = _systemd(parts)
    return replace(
        around, source=CONTAINER, container_id=inside.container_id, runtime=inside.runtime
    )


def _container_in(parts: list[str]) -> Owner | None:
    for before, part in zip(["", *parts], parts, strict=False):
        match = _CONTAINER.fullmatch(part)
        runtime = (match["runtime"] or before) if match else ""
        if match and runtime in _ENGINES:
            return Owner(CONTAINER, container_id=match["id"], runtime=runtime)
        if lxc := _LXC.fullmatch(part):
            return Owner(CONTAINER, container_id=lxc["name"], runtime="lxc")
    return None


def _systemd(parts: list[str]) -> Owner:
    slices = 0
    while slices < len(parts) and _SLICE.fullmatch(parts[slices]):
        slices += 1
    unit = next((part for part in parts[slices : slices + 1] if _UNIT.fullmatch(part)), "")
    if not unit:
        return Owner()
    user = next((m[1] for p in parts[:slices] if (m := _USER_SLICE.fullmatch(p))), "")
    session = _SESSION.fullmatch(unit)
    user_units = [part for part in parts[slices + 1 :] if _UNIT.fullmatch(part)]
    return Owner(
        SYSTEMD,
        unit=unit,
        user_unit=user_units[-1] if user_units and unit.startswith("user@") else "",
        session=session[1] if session and user else "",
        slice_user_id=user,
    )
