"""Owner of a process (job, container, user), from its path in /proc/PID/cgroup (cgroups(7)).

Slurm, Kubernetes, container engines and systemd name cgroups after their contents. The forms are
those of Slurm's cgroup/v1 and cgroup/v2 plugins (slurm.schedmd.com/cgroup_v2.html), of kubelet's
two cgroup drivers, and of systemd.slice(5). A name counts only under the path that its manager
creates. A user with a delegated cgroup can choose any name below it, so `/user.slice/.../job_7` is
ignored.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import DecodeError

from ...ext import place
from .files import READ, names_in, parse_unsigned
from .processes import PROC, parse_task

#: Maximum that is read of the file; 14 hierarchies of a deep pod have 4 kB.
CGROUP_BYTES_MAX = 1 << 16
#: Maximum length of a path in the kernel (PATH_MAX); a longer one is ignored.
PATH_CHARACTERS_MAX = 4096
PARTS_MAX = 64

SLURM, KUBERNETES, CONTAINER, SYSTEMD = "slurm", "kubernetes", "container", "systemd"
#: Order of preference: a job's process is also in a unit of systemd.
_ORDER = (SLURM, KUBERNETES, CONTAINER, SYSTEMD, "")


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


_HEX = "[0-9a-f]{64}"
_UID = "[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_QOS = "burstable|besteffort"
_TASKS = (
    r"(?:/step_(?P<step>[0-9]{1,10}(?:\+[0-9]{1,10})?|batch|extern|interactive)(?:/(?:user|slurm))?"
)
_TASKS += r"(?:/task_(?P<task>[0-9]{1,10}|special))?)?(?:/(?P<rest>.*))?"
_SLURM_1 = re.compile(
    r"slurm(?:_(?P<node>[A-Za-z0-9._-]{1,253}))?/uid_(?P<user>[0-9]{1,10})/job_(?P<job>[0-9]{1,10})"
    + _TASKS
)
_SLURM_2 = re.compile(
    r"system\.slice/(?:(?P<node>[A-Za-z0-9._-]{1,253})_)?slurmstepd\.scope/job_(?P<job>[0-9]{1,10})"
    + _TASKS
)
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


def parse_cgroup(data: bytes) -> Owner:
    """Return the owner of a process.

    Lines not of the form hierarchy:controllers:path are ignored; never raises.
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


# `stat`, `status` and `cgroup` do not take the lock of the process's memory, as `environ` and
# `cmdline` do. `cgroup` takes the lock of all control groups, and blocks its reader while that is
# stuck: so a sampler reads it.

#: `status` is far smaller, even with thousands of groups.
STATUS_BYTES_MAX = 1 << 16
STAT_BYTES_MAX = 4096
#: `/proc/self/ns/pid` in the host's PID namespace (include/linux/proc_ns.h, PROC_PID_INIT_INO).
HOST_PID_NAMESPACE = "pid:[4026531836]"
#: The name of /proc in a sampler's `exclude` (`agent/collector.py`).
DEVICE_NAME = PROC

_STATUS_UID = re.compile(rb"^Uid:\t([0-9]{1,10})\t", re.MULTILINE)
_NAMESPACE_PIDS = re.compile(rb"^NSpid:((?:\t[0-9]{1,10}){1,32})$", re.MULTILINE)
#: The owner of a process without a known owner.
UNKNOWN = Owner()
_THREADS = 17  # index after the name (field 20 of proc(5))


class ProcessState(Enum):
    """The state of a process at a read."""

    RUNNING = "running"
    ZOMBIE = "zombie"  # all threads have ended, but the parent has not waited for it
    GONE = "gone"  # no such process
    HIDDEN = "hidden"  # not visible in /proc
    CHANGED = "changed"  # the PID was reused during the read


@dataclass(frozen=True, slots=True)
class ProcessSnapshot:
    """A read of a process. Without a start nothing was visible."""

    state: ProcessState
    start_ticks: int = 0  # since boot; identity together with the PID
    name: str = ""
    user_id: int | None = None
    namespace_pid: int | None = None  # PID in its own PID namespace, if that is another
    owner: Owner = UNKNOWN


def parse_user_id(status: bytes) -> int | None:
    """Return the real user id in a `status` file, in this reader's user namespace."""
    match = _STATUS_UID.search(status)
    return parse_unsigned(match[1]) if match else None


def parse_namespace_pid(status: bytes) -> int | None:
    """Return the PID in the innermost PID namespace; None if that is this reader's, or unknown."""
    match = _NAMESPACE_PIDS.search(status)
    numbers = match[1].split() if match else []
    return parse_unsigned(numbers[-1]) if len(numbers) > 1 else None


def parse_ended(stat: bytes) -> bool:
    """Return whether the process of a `stat` file has ended with all its threads.

    The state is also zombie if only its first thread has ended; then it still runs.
    """
    tokens = stat.rpartition(b")")[2].split()
    return len(tokens) > _THREADS and tokens[0] in (b"Z", b"X") and tokens[_THREADS] in (b"0", b"1")


def read_process_state(proc: Path, pid: int) -> ProcessSnapshot:
    """Return only state and start, from one small file. Never raises."""
    try:
        stat = _read(f"{proc}/{pid}/stat", STAT_BYTES_MAX)
    except (FileNotFoundError, ProcessLookupError):
        return ProcessSnapshot(ProcessState.GONE)
    except OSError:
        return ProcessSnapshot(ProcessState.HIDDEN)
    task = parse_task(stat)
    if task is None or task.number != pid:
        return ProcessSnapshot(ProcessState.HIDDEN)
    return ProcessSnapshot(
        ProcessState.ZOMBIE if parse_ended(stat) else ProcessState.RUNNING,
        task.start_ticks,
        task.name,
    )


def read_process(proc: Path, pid: int) -> ProcessSnapshot:
    """Return a complete read of a process; CHANGED if the PID was reused meanwhile.

    Never raises.
    """
    first = read_process_state(proc, pid)
    if not first.start_ticks:
        return first
    status = _read_or_nothing(f"{proc}/{pid}/status", STATUS_BYTES_MAX)
    cgroup = _read_or_nothing(f"{proc}/{pid}/cgroup", CGROUP_BYTES_MAX)
    last = read_process_state(proc, pid)
    if last.state is ProcessState.GONE:
        return last
    if last.start_ticks != first.start_ticks:
        return ProcessSnapshot(ProcessState.CHANGED)
    return ProcessSnapshot(
        last.state,
        last.start_ticks,
        last.name,
        parse_user_id(status),
        parse_namespace_pid(status),
        parse_cgroup(cgroup),
    )


def shows_all(proc: Path) -> bool:
    """Return whether /proc shows the processes of all users: PID 1 always exists."""
    return read_process_state(proc, 1).state in (ProcessState.RUNNING, ProcessState.ZOMBIE)


def in_host_pid_namespace(proc: Path) -> bool:
    """Return whether this reader is in the host's PID namespace.

    Return True if unknown (/proc is a folder). In another namespace a PID from a driver may be that
    of another process.
    """
    try:
        return os.readlink(proc / "self/ns/pid") == HOST_PID_NAMESPACE
    except OSError:
        return True


def _read_or_nothing(path: str, bytes_max: int) -> bytes:
    try:
        return _read(path, bytes_max)
    except OSError:
        return b""


def _read(path: str, bytes_max: int) -> bytes:
    """Return the first *bytes_max* bytes of a file. Raises OSError."""
    place.enter(DEVICE_NAME.encode(), f"read {path[-64:]}".encode())
    try:
        descriptor = os.open(path, READ)
        try:
            data = part = os.read(descriptor, bytes_max)
            while part and len(data) < bytes_max:
                part = os.read(descriptor, bytes_max - len(data))
                data += part
            return data
        finally:
            os.close(descriptor)
    finally:
        place.leave()


#: Below the host's root (default of kubelet's --pod-logs-dir). A folder's name is
#: NAMESPACE_NAME_UID; a control group has only the UID, and kubelet's PodResources only the name.
POD_LOGS = "var/log/pods"
#: Names are DNS names (RFC 1123), without underscores.
_POD_LOG_FOLDER = re.compile(
    r"(?P<namespace>[a-z0-9-]{1,63})_(?P<name>[a-z0-9.-]{1,253})_(?P<uid>[0-9a-f-]{32,36})"
)


class Pod(NamedTuple):
    """A pod's name."""

    namespace: str
    name: str


def parse_pod_log_folder(folder: str) -> tuple[str, Pod] | None:
    """Return a pod's UID and name; None for any other folder."""
    match = _POD_LOG_FOLDER.fullmatch(folder)
    return (match["uid"], Pod(match["namespace"], match["name"])) if match else None


def pods_by_uid(root: Path) -> dict[str, Pod]:
    """Return the current and recent pods of this host by UID; empty without kubelet."""
    place.enter(b"/var/log", b"list /var/log/pods")
    try:
        folders = names_in(root / POD_LOGS)
    finally:
        place.leave()
    return dict(pod for folder in folders if (pod := parse_pod_log_folder(folder)))


#: PodResources of kubelet, a Unix socket below the host's root. An allocation does not show a
#: process: a pod may leave its GPU idle, and a process may use a GPU without kubelet.
KUBELET_SOCKET = "var/lib/kubelet/pod-resources/kubelet.sock"
LIST_METHOD = "/v1.PodResourcesLister/List"
#: Timeout of kubelet's whole answer, shorter than a sampler's time limit.
ANSWER_SECONDS_MAX = 0.5
#: Allocations beyond this number are dropped.
ALLOCATIONS_MAX = 4096
#: Prefix of resources that are GPUs or parts of GPUs; driver of claimed GPUs.
_RESOURCES, _DRIVER = "nvidia.com/", "gpu.nvidia.com"
_NAME_CHARACTERS_MAX = 253
_DEVICE_CHARACTERS_MAX = 90


class KubeletError(Exception):
    """kubelet did not answer, or not as expected; the message says how."""


class Allocation(NamedTuple):
    """A device held by a container.

    `replica`: the share of a GPU that kubelet allocates several times.
    """

    namespace: str
    pod: str
    container: str
    resource: str  # nvidia.com/gpu; with dynamic allocation the claim's driver
    device: str  # UUID, or else kubelet's name
    replica: str = ""


def parse_allocations(message: bytes) -> list[Allocation]:
    """Return the GPU allocations.

    Raises KubeletError unless *message* is a ListPodResourcesResponse.
    """
    from ...contract.wire.podresources_pb2 import ListPodResourcesResponse

    try:
        answer = ListPodResourcesResponse.FromString(message)
    except DecodeError as error:
        raise KubeletError("the response is not a ListPodResourcesResponse") from error
    allocations: list[Allocation] = []
    for pod in answer.pod_resources:
        for container in pod.containers:
            container_names = (
                pod.namespace[:_NAME_CHARACTERS_MAX],
                pod.name[:_NAME_CHARACTERS_MAX],
                container.name[:_NAME_CHARACTERS_MAX],
            )
            for devices in container.devices:
                if devices.resource_name.startswith(_RESOURCES):
                    resource = devices.resource_name[:_NAME_CHARACTERS_MAX]
                    allocations += (
                        Allocation(*container_names, resource, *_device(i))
                        for i in devices.device_ids
                    )
            for claim in container.dynamic_resources:
                for claimed in claim.claim_resources:
                    if claimed.driver_name == _DRIVER:
                        name = f"{claimed.pool_name}/{claimed.device_name}"[:_DEVICE_CHARACTERS_MAX]
                        allocations.append(Allocation(*container_names, _DRIVER, name))
    return allocations[:ALLOCATIONS_MAX]


def _device(device_id: str) -> tuple[str, str]:
    """Return device and replica of `GPU-uuid` or, if it is shared, `GPU-uuid::3`."""
    device, _, replica = device_id.partition("::")
    return device[:_DEVICE_CHARACTERS_MAX], replica[:16]


def list_allocations(path: Path, seconds_max: float = ANSWER_SECONDS_MAX) -> list[Allocation]:
    """Return the GPU allocations within *seconds_max*.

    Raises KubeletError, and OSError if no kubelet listens or without permission.
    """
    os.stat(path)
    # Imported late: it loads h2, which samplers without kubelet should not load.
    from ..transport.grpc_http2 import CallFailed, call

    try:
        return parse_allocations(call(path, LIST_METHOD, b"", seconds_max))
    except CallFailed as error:
        raise KubeletError(f"{error.status}: {error}") from None
