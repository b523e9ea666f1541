"""Owner of a process (job, container, user), from its cgroup path: /proc/PID/cgroup (cgroups(7), proc(5)).

Slurm, Kubernetes, container engines and systemd name a cgroup after what runs in it. The forms are those of Slurm's
cgroup/v1 and cgroup/v2 plugins (slurm.schedmd.com/cgroup_v2.html), of kubelet's two cgroup drivers, and of
systemd.slice(5). A name counts only under the path that its manager creates. A user with a delegated cgroup can choose
any name below it, so `/user.slice/.../job_7` is ignored.
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

#: Of the file, no more than this is looked at; 14 hierarchies of a deep pod have 4 kB.
CGROUP_BYTES_MAX = 1 << 16
#: The kernel shows no longer path (PATH_MAX); nor is a longer one believed.
PATH_CHARACTERS_MAX = 4096
PARTS_MAX = 64

SLURM, KUBERNETES, CONTAINER, SYSTEMD = "slurm", "kubernetes", "container", "systemd"
#: Who is believed first: what a job runs in is also a unit of systemd.
_ORDER = (SLURM, KUBERNETES, CONTAINER, SYSTEMD, "")


@dataclass(frozen=True, slots=True)
class Owner:
    """Who runs a process. What is empty is not known."""

    source: str = ""  # slurm, kubernetes, container, systemd
    #: Slurm's own number of the job: of a task of an array, or a part of a het job, its own.
    job_id: str = ""
    step: str = ""  # 0, 0+1 (het), batch, extern, interactive
    task: str = ""  # on this host, not the rank; special: of the batch script
    node: str = ""  # of several slurmd on one host
    job_user_id: str = ""  # whose the job is; cgroup v1 only
    pod_uid: str = ""
    qos: str = ""  # guaranteed, burstable, besteffort
    container_id: str = ""
    runtime: str = ""  # as it names itself in the group: cri-containerd, crio, docker, libpod
    unit: str = ""
    user_unit: str = ""  # of a user's own systemd
    session: str = ""
    slice_user_id: str = ""  # of user-1000.slice
    #: The path was shown from within another control group (`/../..`), so that its beginning is missing.
    is_relative: bool = False

    def attributes(self) -> dict[str, str]:
        """Return what is known, by name."""
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
#: Services that put pods below themselves: kubelet's own, or its runtime's. Others may have been delegated to somebody.
_KUBELETS = (
    r"system\.slice/(?:k3s|k3s-agent|rke2-server|rke2-agent|k0scontroller|k0sworker|kubelet|containerd|docker|crio"
    r"|snap\.[a-z0-9]{1,32}\.daemon-(?:kubelite|kubelet|containerd))\.service"
)
#: What comes before a pod: containers that are themselves a node (kind), kubelet's service and root, the QoS class.
_BEFORE_POD = re.compile(
    rf"(?:(?:docker/{_HEX}|system\.slice/docker-{_HEX}\.scope|machine\.slice/libpod-{_HEX}\.scope(?:/container)?)/){{0,3}}"
    rf"(?:{_KUBELETS}/)?(?:kubelet(?:\.slice)?/)?(?:kubepods(?:/(?P<folder>{_QOS}))?"
    rf"|(?:kubelet-)?kubepods\.slice(?:/(?:kubelet-)?kubepods-(?:{_QOS})\.slice)?)"
    rf"|(?:{_KUBELETS})?"
)
#: What may be left of that where the path begins in the middle.
_LEFT_BEFORE_POD = re.compile(
    rf"(?:kubelet(?:\.slice)?|kubepods|(?P<folder>{_QOS})|(?:kubelet-)?kubepods(?:-(?:{_QOS}))?\.slice|/)*"
)
_CONTAINER = re.compile(
    rf"(?:(?P<runtime>cri-containerd|crio-conmon|crio|docker|libpod|nerdctl)-)?(?P<id>{_HEX})(?:\.scope)?"
)
#: Those that may stand by themselves; the others belong to a pod.
_ENGINES = ("docker", "libpod", "nerdctl")
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,246}\.(?:service|scope|socket|mount)")
_SLICE = re.compile(r"[A-Za-z0-9:_.\\@-]{1,249}\.slice")
_USER_SLICE = re.compile(r"user-([0-9]{1,10})\.slice")
_SESSION = re.compile(r"session-([A-Za-z0-9]{1,32})\.scope")
_LXC = re.compile(r"lxc\.payload\.(?P<name>[A-Za-z0-9_.-]{1,64})")


def parse_cgroup(data: bytes) -> Owner:
    """Return whose a process is. Lines that are none (hierarchy:controllers:path) count for nothing; never raises."""
    lines = data[:CGROUP_BYTES_MAX].split(b"\n")
    if len(data) >= CGROUP_BYTES_MAX:
        lines.pop()  # it may be cut
    found = [owner_of(path) for path in map(_path, lines) if path]
    return min(found, key=lambda owner: _ORDER.index(owner.source), default=Owner())


def _path(line: bytes) -> str:
    number, _, rest = line.partition(b":")
    path = rest.partition(b":")[2]
    is_line = number.isdigit() and path.startswith(b"/") and len(path) <= PATH_CHARACTERS_MAX
    return path.decode(errors="replace") if is_line else ""


def owner_of(path: str) -> Owner:
    """Return whose the processes of a control group are, by its path."""
    parts = [part for part in path.removesuffix(" (deleted)").split("/") if part]
    is_relative = parts[:1] == [".."]
    while parts[:1] == [".."]:
        del parts[0]
    if len(parts) > PARTS_MAX or ".." in parts:
        return Owner()
    found = _slurm(parts) or _pod(parts, is_relative) or _container(parts) or _systemd(parts)
    return replace(found, is_relative=is_relative)


def _slurm(parts: list[str]) -> Owner | None:
    path = "/".join(parts)
    found = _SLURM_2.fullmatch(path) or _SLURM_1.fullmatch(path)
    if found is None:
        return None
    groups = found.groupdict(default="")
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
    at, found = next(((i, m) for i, p in enumerate(parts) if (m := _POD.fullmatch(p))), (0, None))
    if found is None:
        return _container_of_pod(parts) if is_relative else None
    before = (_LEFT_BEFORE_POD if is_relative else _BEFORE_POD).fullmatch("/".join(parts[:at]))
    if before is None or (found["folder"] and not (before[0] or is_relative)):
        return None
    guaranteed = "" if is_relative and found["folder"] and not before[0] else "guaranteed"
    pod = Owner(
        KUBERNETES,
        pod_uid=(found["uid"] or found["folder"]).replace("_", "-"),
        qos=found["qos"] or before["folder"] or guaranteed,
        container_id=found["id"] or "",
        runtime="cri-containerd" if found["id"] else "",
    )
    return _within_pod(pod, parts[at + 1 :])


def _within_pod(pod: Owner, parts: list[str]) -> Owner:
    """Add the container; and the job, where it is a Slurm node that runs in the pod."""
    container = _CONTAINER.fullmatch(parts[0]) if parts else None
    if container is None:
        return pod
    pod = replace(pod, container_id=container["id"], runtime=container["runtime"] or "")
    job = _slurm(parts[1:])
    if job is None:
        return pod
    return replace(pod, source=SLURM, job_id=job.job_id, step=job.step, task=job.task)


def _container_of_pod(parts: list[str]) -> Owner | None:
    """Return the container, seen from its neighbour in the same pod: which pod that is, is not shown."""
    found = _CONTAINER.fullmatch(parts[0]) if parts else None
    if found is None or not (found["runtime"] or "").startswith("cri"):
        return None
    return Owner(KUBERNETES, container_id=found["id"], runtime=found["runtime"])


def _container(parts: list[str]) -> Owner | None:
    """Return a container of an engine without Kubernetes, with the unit that it runs in."""
    inside = _container_in(parts)
    if inside is None:
        return None
    around = _systemd(parts)
    return replace(
        around, source=CONTAINER, container_id=inside.container_id, runtime=inside.runtime
    )


def _container_in(parts: list[str]) -> Owner | None:
    for before, part in zip(["", *parts], parts, strict=False):
        found = _CONTAINER.fullmatch(part)
        runtime = (found["runtime"] or before) if found else ""
        if found and runtime in _ENGINES:
            return Owner(CONTAINER, container_id=found["id"], runtime=runtime)
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


# ----------------------------------------------------------------------
# One process as /proc shows it, without what could wait for it: `stat`, `status` and `cgroup`.
#
# None of the three takes the lock of the process's memory, as `environ` and `cmdline` do. `cgroup`
# takes the lock of all control groups: a host on which that one is stuck holds its reader too, so
# this is read in a sampler.

#: `status` ends far below this, with thousands of groups.
STATUS_BYTES_MAX = 1 << 16
STAT_BYTES_MAX = 4096
#: What `/proc/self/ns/pid` shows in the host's own PID namespace (include/linux/proc_ns.h, PROC_PID_INIT_INO).
HOST_PID_NAMESPACE = "pid:[4026531836]"
#: The name by which a sampler is told not to look here (`agent/collector.py`, `exclude`).
DEVICE_NAME = PROC

_STATUS_UID = re.compile(rb"^Uid:\t([0-9]{1,10})\t", re.MULTILINE)
_NAMESPACE_PIDS = re.compile(rb"^NSpid:((?:\t[0-9]{1,10}){1,32})$", re.MULTILINE)
#: Whose a process is that is not known.
UNKNOWN = Owner()
_THREADS = 17  # of the words behind the name (proc(5) field 20)


class ProcessState(Enum):
    """How a process was found."""

    RUNNING = "running"
    ZOMBIE = "zombie"  # ended, all its threads, and its parent has not taken notice
    GONE = "gone"  # no such process
    HIDDEN = "hidden"  # /proc does not show it to us
    CHANGED = "changed"  # another took its number while we looked


@dataclass(frozen=True, slots=True)
class ProcessSnapshot:
    """A process at one look. Without a start it was not seen."""

    state: ProcessState
    start_ticks: int = 0  # since boot; with the number it is the process's identity
    name: str = ""
    user_id: int | None = None
    namespace_pid: int | None = None  # its number in its own PID namespace, where that is another
    owner: Owner = UNKNOWN


def parse_user_id(status: bytes) -> int | None:
    """Return the real user of a `status` file, as this reader's user namespace numbers him."""
    found = _STATUS_UID.search(status)
    return parse_unsigned(found[1]) if found else None


def parse_namespace_pid(status: bytes) -> int | None:
    """Return the process's number in the innermost PID namespace; None if that is ours (or unknown)."""
    found = _NAMESPACE_PIDS.search(status)
    numbers = found[1].split() if found else []
    return parse_unsigned(numbers[-1]) if len(numbers) > 1 else None


def parse_ended(stat: bytes) -> bool:
    """Return whether a `stat` file is of a process that has ended as a whole. One whose first thread has ended and
    others have not is a zombie by its state, and runs."""
    tokens = stat.rpartition(b")")[2].split()
    return len(tokens) > _THREADS and tokens[0] in (b"Z", b"X") and tokens[_THREADS] in (b"0", b"1")


def read_process_state(proc: Path, pid: int) -> ProcessSnapshot:
    """Return state and start only: one small file. Never raises."""
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
    """Return all that is known of a process; CHANGED when it was not the same one throughout. Never raises."""
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
    """Return whether /proc shows the processes of all users: the first of all always is there."""
    return read_process_state(proc, 1).state in (ProcessState.RUNNING, ProcessState.ZOMBIE)


def in_host_pid_namespace(proc: Path) -> bool:
    """Return whether this reader counts processes as the host does. In a container of its own it does not, and a number
    that a driver names may be another process's there. True if unknown: a /proc that is a folder."""
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
    """Return the start of a file. Raises OSError."""
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


# ----------------------------------------------------------------------
# Names of pods by their UID, as kubelet names the folders of their logs: NAMESPACE_NAME_UID.
#
# A control group tells the UID only, and kubelet's PodResources the name only; here are both, on
# the host itself.

#: Below the root of the host (kubelet's --pod-logs-dir; its default).
POD_LOGS = "var/log/pods"
#: Names are those of DNS (RFC 1123), in which there is no underscore.
_POD_LOG_FOLDER = re.compile(
    r"(?P<namespace>[a-z0-9-]{1,63})_(?P<name>[a-z0-9.-]{1,253})_(?P<uid>[0-9a-f-]{32,36})"
)


class Pod(NamedTuple):
    """A pod by its name."""

    namespace: str
    name: str


def parse_pod_log_folder(folder: str) -> tuple[str, Pod] | None:
    """Return a pod's UID and name; None for a folder that is not of a pod."""
    found = _POD_LOG_FOLDER.fullmatch(folder)
    return (found["uid"], Pod(found["namespace"], found["name"])) if found else None


def pods_by_uid(root: Path) -> dict[str, Pod]:
    """Return the pods that this host has or had lately, by UID; none where there is no kubelet."""
    place.enter(b"/var/log", b"list /var/log/pods")
    try:
        folders = names_in(root / POD_LOGS)
    finally:
        place.leave()
    return dict(found for folder in folders if (found := parse_pod_log_folder(folder)))


# ----------------------------------------------------------------------
# What kubelet has given to which container: PodResources, over kubelet's Unix socket.
#
# An allocation is no process: a pod may hold a GPU and do nothing with it, and a process may have
# come past kubelet.

#: Below the root of the host.
KUBELET_SOCKET = "var/lib/kubelet/pod-resources/kubelet.sock"
LIST_METHOD = "/v1.PodResourcesLister/List"
#: kubelet's answer, all together: shorter than the time in which a sampler must return.
ANSWER_SECONDS_MAX = 0.5
#: Of an answer, no more is kept.
ALLOCATIONS_MAX = 4096
#: Resources whose devices are GPUs or parts of GPUs; and the driver of those that are claimed.
_RESOURCES, _DRIVER = "nvidia.com/", "gpu.nvidia.com"
_NAME_CHARACTERS_MAX = 253
_DEVICE_CHARACTERS_MAX = 90


class KubeletError(Exception):
    """kubelet did not answer, or not with what it should; the words say how."""


class Allocation(NamedTuple):
    """A device that a container holds. `replica`: of a GPU that kubelet deals out several times."""

    namespace: str
    pod: str
    container: str
    resource: str  # nvidia.com/gpu; the claim's driver under dynamic allocation
    device: str  # UUID; where kubelet does not say it, the name that it says
    replica: str = ""


def parse_allocations(message: bytes) -> list[Allocation]:
    """Return who holds which GPU. Raises KubeletError for what is no ListPodResourcesResponse."""
    from ...contract.wire.podresources_pb2 import ListPodResourcesResponse

    try:
        answer = ListPodResourcesResponse.FromString(message)
    except DecodeError as error:
        raise KubeletError("the response is not a ListPodResourcesResponse") from error
    found: list[Allocation] = []
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
                    found += (
                        Allocation(*container_names, resource, *_device(i))
                        for i in devices.device_ids
                    )
            for claim in container.dynamic_resources:
                for one in claim.claim_resources:
                    if one.driver_name == _DRIVER:
                        name = f"{one.pool_name}/{one.device_name}"[:_DEVICE_CHARACTERS_MAX]
                        found.append(Allocation(*container_names, _DRIVER, name))
    return found[:ALLOCATIONS_MAX]


def _device(device_id: str) -> tuple[str, str]:
    """Return device and replica of `GPU-uuid` or, where it is shared, `GPU-uuid::3`."""
    device, _, replica = device_id.partition("::")
    return device[:_DEVICE_CHARACTERS_MAX], replica[:16]


def list_allocations(path: Path, seconds_max: float = ANSWER_SECONDS_MAX) -> list[Allocation]:
    """Return who holds which GPU, within *seconds_max* in all. Raises KubeletError, and OSError when nobody listens
    there or we may not query."""
    os.stat(path)
    # With it comes h2, which no sampler is to carry where there is no kubelet.
    from ..transport.grpc_http2 import CallFailed, call

    try:
        return parse_allocations(call(path, LIST_METHOD, b"", seconds_max))
    except CallFailed as error:
        raise KubeletError(f"{error.status}: {error}") from None
