"""Facts of a process about its isolation from others, from /proc and its control groups (`contract/isolation.py`).

No file here takes the lock of the process's memory. Device nodes are listed only on a file system in memory: the root of a
container may be on a network file system that hangs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from ...contract.isolation import EMPTY, numbers_text
from ...ext import place
from .files import names_in, parse_unsigned, read_text
from .mig_capabilities import parse_capability_minor
from .process_owner import CGROUP_BYTES_MAX, Owner, owner_of
from .process_state import STATUS_BYTES_MAX
from .processes import PROC

#: Longer facts are left out: a list of cores has a range per gap.
FACT_CHARACTERS_MAX = 200
#: In a longer file a mount may be missed, so its facts are left out.
MOUNTS_BYTES_MAX = 1 << 18
#: With more names in a folder of /dev its nodes are unknown: a container may fill its own.
DEVICE_NAMES_MAX = 16384
#: Levels of control groups above a process; deeper ones are left out.
LEVELS_MAX = 24
#: Turns for which the driver's list of instance capabilities is used again.
CAPABILITY_TURNS = 10
#: Major numbers (Documentation/admin-guide/devices.txt), for nodes that show none.
_NVIDIA_MAJOR, _UVERBS_MAJOR = 195, 231
#: Minor number of `uverbs0`.
_UVERBS_MINOR = 192
_MEMORY_FILESYSTEMS = ("tmpfs", "devtmpfs", "ramfs")
_LISTS = {
    "affinity": re.compile(rb"^Cpus_allowed_list:\t([0-9,-]+)$", re.MULTILINE),
    "mems": re.compile(rb"^Mems_allowed_list:\t([0-9,-]+)$", re.MULTILINE),
}
_NAMESPACE = re.compile(r"ipc:\[([0-9]{1,20})\]")
_GPU_NODE = re.compile(r"nvidia([0-9]{1,4})")
_CAPABILITY_NODE = re.compile(r"nvidia-cap([0-9]{1,6})")
_UVERBS_NODE = re.compile(r"uverbs([0-9]{1,4})")
_RULE = re.compile(r"([abc]) ([0-9]{1,7}|\*):([0-9]{1,7}|\*) ([rwm]{1,3})")
_DISK = re.compile(r"[0-9]{1,7}:[0-9]{1,7}")
_RDMA_DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: Mount point -> device and root (`0:45/`), and type.
Mounts = dict[str, tuple[str, str]]


class IsolationReader:
    """Reads facts of processes. Never raises: an unreadable fact is missing."""

    def __init__(self, proc: Path, sys: Path) -> None:
        self._proc, self._sys = proc, sys
        self._is_kernel = proc == Path("/proc")  # else files stand for device nodes
        self._is_unified = os.path.exists(sys / "fs/cgroup/cgroup.controllers")
        #: Minor number of a capability -> GPU's minor number and instance: `0/1`.
        self._instances: dict[int, str] = {}
        self._turns = 0
        #: Facts of control groups, and mounts, read in this turn: processes share them.
        self._groups: dict[str, dict[str, str]] = {}
        self._mounts: dict[tuple[str, str], Mounts] = {}

    def begin_turn(self) -> None:
        """Drop the facts of control groups and the mounts of the last turn."""
        self._groups.clear()
        self._mounts.clear()
        self._turns -= 1

    def read(self, pid: int) -> dict[str, str]:
        """Return the facts of a process."""
        place.enter(PROC.encode(), b"read isolation")
        try:
            return self._read(f"{self._proc}/{pid}")
        finally:
            place.leave()

    def _read(self, folder: str) -> dict[str, str]:
        facts: dict[str, str] = {}
        status = _read_part(f"{folder}/status", STATUS_BYTES_MAX)
        for key, pattern in _LISTS.items():
            if match := pattern.search(status):
                facts[key] = match[1].decode()
        with contextlib.suppress(OSError):
            if namespace := _NAMESPACE.fullmatch(os.readlink(f"{folder}/ns/ipc")):
                facts["ipc"] = namespace[1]
        cgroup = _read_part(f"{folder}/cgroup", CGROUP_BYTES_MAX).decode(errors="replace")
        groups = self._group_facts(cgroup)
        facts |= {key: value for key, value in groups.items() if key != "devices"}
        if "cpus" in facts:  # includes the affinity, which a process may change at any time
            facts.pop("affinity", None)
        mounts = self._mounts_of(folder)
        if shm := shm_of(mounts):
            facts["shm"] = shm
        if "/dev" in mounts and mounts["/dev"][1] in _MEMORY_FILESYSTEMS:
            is_host = mounts["/dev"][1] == "devtmpfs"
            rules = groups.get("devices")
            facts |= self._nodes(
                f"{folder}/root/dev", None if rules is None else parse_rules(rules)
            )
            known = "list" if rules is not None else "host" if is_host else "own"
            facts |= {"nodes": known} if "gpus" in facts else {}
        return {key: value for key, value in facts.items() if len(value) <= FACT_CHARACTERS_MAX}

    def _mounts_of(self, folder: str) -> Mounts:
        """Return the mounts that a process sees; read once per turn for one namespace and root."""
        try:
            view = os.readlink(f"{folder}/ns/mnt"), os.readlink(f"{folder}/root")
        except OSError:
            view = folder, ""
        if view not in self._mounts:
            data = _read_part(f"{folder}/mountinfo", MOUNTS_BYTES_MAX)
            self._mounts[view] = parse_mounts(data)
        return self._mounts[view]

    def _nodes(self, dev: str, rules: Sequence[tuple[str, str]] | None) -> dict[str, str]:
        """Return the nodes that the process sees, and that *rules* permit; None: no rules are visible."""
        facts: dict[str, str] = {}
        gpus = self._permitted(dev, _GPU_NODE, rules, (_NVIDIA_MAJOR, 0))
        if gpus is None:
            return facts
        facts["gpus"] = numbers_text(gpus)
        minors = self._permitted(f"{dev}/nvidia-caps", _CAPABILITY_NODE, rules)
        if minors:
            self._refresh_instances()
        if minors is not None:
            facts["instances"] = _items(self._instances.get(minor, "") for minor in minors)
        verbs = (_UVERBS_MAJOR, _UVERBS_MINOR)
        uverbs = self._permitted(f"{dev}/infiniband", _UVERBS_NODE, rules, verbs)
        if uverbs is not None:
            facts["rdma"] = _items(self._rdma_device(number) for number in uverbs)
        return facts

    def _permitted(
        self,
        folder: str,
        pattern: re.Pattern[str],
        rules: Sequence[tuple[str, str]] | None,
        first: tuple[int | None, int] = (None, 0),
    ) -> set[int] | None:
        """Return the numbers of the device nodes in *folder* that *rules* permit; None if it is not readable.

        *first*: major and minor of number 0; None: the major is dynamic. Other files are ignored, and a
        renamed node counts by its minor number.
        """
        numbers: set[int] = set()
        try:
            names = _device_names(folder)
        except FileNotFoundError:
            return numbers if os.path.isdir(os.path.dirname(folder)) else None
        except OSError:
            return None
        for name in names:
            match = pattern.fullmatch(name)
            number = parse_unsigned(match[1]) if match else None
            if number is None:
                continue
            node = first[0], first[1] + number
            if self._is_kernel:
                try:
                    result = os.stat(f"{folder}/{name}", follow_symlinks=False)
                except OSError:
                    continue
                node = os.major(result.st_rdev), os.minor(result.st_rdev)
                if not stat.S_ISCHR(result.st_mode):
                    continue
                if node[0] == first[0] or first[0] is None:
                    number = node[1] - first[1]
            if rules is None or any(
                m in ("*", str(node[0])) and n in ("*", str(node[1])) for m, n in rules
            ):
                numbers.add(number)
        return numbers

    def _refresh_instances(self) -> None:
        if self._turns > 0:
            return
        self._turns = CAPABILITY_TURNS
        self._instances = {}
        folder = self._proc / "driver/nvidia/capabilities"
        for gpu in names_in(folder):
            for instance in names_in(folder / gpu / "mig"):
                if gpu.startswith("gpu") and instance.startswith("gi"):
                    text = read_text(folder / gpu / "mig" / instance / "access")
                    minor = parse_capability_minor(text or "")
                    if minor is not None:
                        self._instances[minor] = f"{gpu[3:]}/{instance[2:]}"

    def _rdma_device(self, number: int) -> str:
        """Return `mlx5_0@0000:17:00`: a device, and the slot of its adapter, also for virtual functions."""
        name = read_text(self._sys / f"class/infiniband_verbs/uverbs{number}/ibdev") or ""
        if not _RDMA_DEVICE.fullmatch(name):
            return f"uverbs{number}"
        device = os.path.realpath(self._sys / "class/infiniband" / name / "device")
        with contextlib.suppress(OSError):
            device = os.readlink(f"{device}/physfn")
        return f"{name}@{os.path.basename(device).rpartition('.')[0] or name}"

    def _group_facts(self, cgroup: str) -> dict[str, str]:
        known = self._groups.get(cgroup)
        if known is None:
            known = self._groups[cgroup] = self._read_groups(parse_paths(cgroup))
        return known

    def _read_groups(self, paths: Mapping[str, str]) -> dict[str, str]:
        facts: dict[str, str] = {}
        cpus = "cpuset.cpus.effective" if self._is_unified else "cpuset.effective_cpus"
        for level in _levels(self._folder(paths, "cpuset")):
            if text := read_text(f"{level}/{cpus}"):  # empty: the control group above decides
                facts["cpus"] = text
                break
        limits = [parse_rdma_max(t) for t in self._own_texts(paths, "rdma", "rdma.max")]
        facts |= {"rdma_max": _items(sorted(set().union(*limits)))} if limits else {}
        if self._is_unified:
            disks = [parse_io_max(text) for text in self._own_texts(paths, "io", "io.max")]
            facts |= {"io_max": _items(sorted(set().union(*disks))), "io": "2"} if disks else {}
        elif throttled := self._throttled(paths):
            facts |= {"io_max": _items(sorted(set.intersection(*throttled))), "io": "1"}
        if not self._is_unified and (folder := self._folder(paths, "devices")):
            rules = read_text(f"{folder}/devices.list")
            # A list that permits all devices may have exceptions, which the kernel does not show.
            facts |= {} if rules is None or rules.startswith("a ") else {"devices": rules}
        return facts

    def _throttled(self, paths: Mapping[str, str]) -> list[set[str]]:
        """Return the disks with limits of reads, and with limits of writes (version 1); [] if unknown."""
        result: list[set[str]] = []
        for direction in ("read", "write"):
            texts = [
                text
                for unit in ("bps", "iops")
                for text in self._own_texts(
                    paths, "blkio", f"blkio.throttle.{direction}_{unit}_device"
                )
            ]
            if not texts:
                return []
            lines = (line.split() for text in texts for line in text.splitlines())
            result.append({words[0] for words in lines if words and _DISK.fullmatch(words[0])})
        return result

    def _own_texts(self, paths: Mapping[str, str], controller: str, file: str) -> list[str]:
        """Return *file* of each control group that belongs to the process's owner alone."""
        path = paths.get("" if self._is_unified else controller, "")
        folder = self._folder(paths, controller)
        own = len(own_levels(path))
        texts = (read_text(f"{level}/{file}") for level in _levels(folder)[:own])
        return [text for text in texts if text is not None]

    def _folder(self, paths: Mapping[str, str], controller: str) -> str:
        """Return the folder of the process's control group; "" if unknown."""
        path = paths.get("" if self._is_unified else controller)
        if path is None:
            return ""
        root = f"{self._sys}/fs/cgroup"
        return f"{root}{path}" if self._is_unified else f"{root}/{controller}{path}"


def parse_paths(cgroup: str) -> dict[str, str]:
    """Return controller -> path of a `cgroup` file, "" for version 2; without relative paths."""
    paths: dict[str, str] = {}
    for line in cgroup.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        parts = path.split("/")
        if path.startswith("/") and ".." not in parts and len(parts) <= LEVELS_MAX:
            paths |= dict.fromkeys(controllers.split(","), path)
    return paths


def own_levels(path: str) -> list[str]:
    """Return the paths from *path* upward that belong to its owner alone; only *path* without an owner."""
    owner, levels = owner_group(owner_of(path)), [path]
    while owner is not None and (above := levels[-1].rpartition("/")[0]):
        if owner_group(owner_of(above)) != owner:
            break
        levels.append(above)
    return levels


def owner_group(owner: Owner) -> tuple[str, str] | None:
    """Return source and name of the job, equal for all its processes; None if unknown."""
    name = owner.job_id or owner.pod_uid or owner.container_id or owner.user_unit or owner.unit
    return (owner.source, name) if name else None


def _levels(folder: str) -> list[str]:
    """Return *folder* and the control groups above it, up to the root of their tree."""
    levels: list[str] = []
    while folder and len(levels) < LEVELS_MAX and "/fs/cgroup" in folder:
        levels.append(folder)
        folder = folder.rpartition("/")[0]
    return levels


def parse_mounts(data: bytes) -> Mounts:
    """Return mount point -> device and root (`0:45/`), and type, of `/`, `/dev` and `/dev/shm`.

    Empty for a truncated file. The last mount of a point hides the others.
    """
    mounts: Mounts = {}
    if len(data) >= MOUNTS_BYTES_MAX:
        return mounts
    for line in data.decode(errors="replace").splitlines():
        head, dash, tail = line.partition(" - ")
        fields = head.split(" ")
        if dash and len(fields) >= 6 and fields[4] in ("/", "/dev", "/dev/shm"):
            mounts[fields[4]] = f"{fields[2]}{fields[3]}", tail.partition(" ")[0]
    return mounts


def shm_of(mounts: Mounts) -> str:
    """Return device and folder of /dev/shm; "" if unknown."""
    for point in ("/dev/shm", "/dev", "/"):
        if point in mounts:
            rest = "/dev/shm".removeprefix(point.removesuffix("/"))
            return mounts[point][0].removesuffix("/") + (rest or "/")
    return ""


def parse_rules(text: str) -> list[tuple[str, str]]:
    """Return the (major, minor) of a device list that a process may read or write; `*` for all.

    `m` alone only creates a node.
    """
    rules: list[tuple[str, str]] = []
    for line in text.splitlines():
        match = _RULE.fullmatch(line.strip())
        if match and match[1] != "b" and set(match[4]) & {"r", "w"}:
            rules.append((match[2], match[3]))
    return rules


def parse_io_max(text: str) -> set[str]:
    """Return the disks with a limit of reads and a limit of writes in `io.max`."""
    disks: set[str] = set()
    for disk, *words in filter(None, map(str.split, text.splitlines())):
        limited = {name for name, _, value in (w.partition("=") for w in words) if value.isdigit()}
        if _DISK.fullmatch(disk) and limited & {"rbps", "riops"} and limited & {"wbps", "wiops"}:
            disks.add(disk)
    return disks


def parse_rdma_max(text: str) -> set[str]:
    """Return the devices with limits of handles and of objects in `rdma.max`."""
    devices: set[str] = set()
    for device, *words in filter(None, map(str.split, text.splitlines())):
        limited = {name for name, _, value in (w.partition("=") for w in words) if value.isdigit()}
        if _RDMA_DEVICE.fullmatch(device) and limited >= {"hca_handle", "hca_object"}:
            devices.add(device)
    return devices


def _items(items: Iterable[str]) -> str:
    return ",".join(sorted({item for item in items if item})) or EMPTY


def _device_names(folder: str) -> list[str]:
    """Return the names in a folder, not through a link: a container could link to a file system that hangs.

    Raises OSError, also for more than DEVICE_NAMES_MAX names: among the others a node could hide.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with os.scandir(descriptor) as entries:
            names = [entry.name for entry in islice(entries, DEVICE_NAMES_MAX + 1)]
    finally:
        os.close(descriptor)
    if len(names) > DEVICE_NAMES_MAX:
        raise OSError(errno.EFBIG, "too many names", folder)
    return names


def _read_part(path: str, bytes_max: int) -> bytes:
    """Return the first *bytes_max* bytes of a file; no bytes if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        data = b""
        while len(data) < bytes_max and (part := os.read(descriptor, bytes_max - len(data))):
            data += part
        return data
    except OSError:
        return b""
    finally:
        os.close(descriptor)
