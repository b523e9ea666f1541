"""Files of /proc, as the kernel writes them, and then not."""

from __future__ import annotations

import random

from gangline.agent.hardware import (
    cpu_cores,
    isolation_facts,
    lustre,
    nfs,
    nvidia,
    proc_files,
    processes,
    settings,
    storage,
)
from gangline.agent.hardware.files import KEY_BYTES_MAX, device_key, parse_unsigned
from gangline.agent.hardware.mig_capabilities import parse_capability_minor, parse_is_administrator
from gangline.agent.inventory.links import parse_vlans
from gangline.contract import isolation
from gangline.ext.hostfiles import CoreTimes, diskstats, line_numbers, pressure
from tests.fuzzing.damage import ACCEPTED, REFUSED, check, damaged, outcome, text

STAT = (
    b"cpu  84 2 31 900 12 3 4 5 0 0\ncpu0 42 1 16 450 6 1 2 2 0 0\ncpu1 42 1 15 450 6 2 2 3 0 0\n"
    b"intr 8885917 17 0 0\nctxt 1990473\nbtime 1062191376\nprocesses 2915\nprocs_running 1\nprocs_blocked 0\n"
    b"softirq 183433 0 21755 12 39\n"
)
MEMINFO = (
    b"MemTotal:       2113461760 kB\nMemFree:        1934012 kB\nMemAvailable:   2000 kB\nDirty:  64 kB\n"
    b"HugePages_Total:       8\nHugePages_Free:        7\nHugepagesize:       2048 kB\n"
)
VMSTAT = b"nr_free_pages 483503\noom_kill 3\noom_kill_other 9\n"
PRESSURE = (
    b"some avg10=1.84 avg60=0.94 avg300=0.24 total=4498343\n"
    b"full avg10=0.50 avg60=0.10 avg300=0.02 total=98343\n"
)
DISKSTATS = b"".join(
    b" 259       %d nvme%dn1 47114 4 4643973 21650 1078320 43950 39451633 1011053 0 222766 1032546 3 4 5 6 7 8\n"
    % (i, i)
    for i in range(4)
)
DISKS = ("nvme0n1", "nvme1n1", "nvme2n1", "nvme3n1")
MOUNTINFO = (
    b"36 35 259:2 / / rw,noatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro\n"
    b"37 35 259:3 / /scratch\\040disk rw shared:2 master:3 - xfs /dev/nvme1n1 ro,attr2\n"
    b"38 35 0:50 / /home rw - nfs4 10.0.0.9:/home rw,vers=4.2\n39 35 0:51 / /w rw - fuse.wekafs weka rw\n"
)
CONTAINER_MOUNTS = (
    b"100 1 0:50 / / rw,relatime - overlay overlay rw,lowerdir=/a\n101 100 0:70 / /dev rw,nosuid - tmpfs tmpfs rw\n"
    b"102 101 0:60 /llm /dev/shm rw,nosuid - tmpfs shm rw,size=65536k\n"
)
CGROUPS = (
    b"12:rdma:/\n5:cpuset:/slurm/uid_1000/job_12/step_0\n4:cpu,cpuacct:/slurm/uid_1000/job_12\n"
    b"0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n"
)
IO_MAX = b"259:0 rbps=1048576 wbps=1048576 riops=max wiops=max\n8:16 rbps=max wbps=2097152 riops=120 wiops=max\n"
RDMA_MAX = b"mlx5_0 hca_handle=2 hca_object=2000\nmlx5_1 hca_handle=max hca_object=max\n"
DEVICE_RULES = b"c 1:3 rwm\nc 195:0 rw\nc 195:255 rw\nc 195:* m\nb *:* m\nc 231:192 rw\n"
FACTS = (
    b"affinity=0-7 mems=0 ipc=4026532000 cpus=0-15,32-47 rdma_max=mlx5_0 io_max=259:0 io=2 shm=0:60/ gpus=0 "
    b"instances=- rdma=mlx5_0@0000:18:00 nodes=own mps_threads=30"
)
MOUNTSTATS = (
    b"device rootfs mounted on / with fstype rootfs\n"
    b"device 10.0.0.9:/home mounted on /home with fstype nfs4 statvers=1.1\n"
    b"\topts:\trw,vers=4.2,hard,proto=tcp\n\tage:\t12968\n\tcaps:\tcaps=0xfbffdf,wtmult=512\n"
    b"\tevents:\t52 226 0 0 1 13 398 0 0 331 0 47 0 0 77 0 0 77 0 0 0 0 0 0 0 0 0\n"
    b"\tbytes:\t1207640230 0 0 0 1210214218 500 295483 0\n\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)\n"
    b"\txprt:\ttcp 832 0 1 0 11 6428 6428 0 12154 0 24 26 5726\n\tper-op statistics\n"
    b"\t        READ: 1298 1298 0 207680 1210292152 6 79386 79407 0\n"
    b"\t       WRITE: 2 3 1 208 152 6 79 85 1\n\n"
)
LUSTRE_STATS = (
    b"snapshot_time             1707141372.481 secs.nsecs\nstart_time 0.0 secs.nsecs\n"
    b"read_bytes                15 samples [bytes] 4096 1048576 12345678 42\n"
    b"write_bytes               7 samples [bytes] 1 1048576 7340033 9\nopen  4 samples [usecs] 3 9 20 130\n"
    b"getattr                   99 samples [regs]\n"
)
LUSTRE_IMPORT = (
    b"import:\n    name: scratch-OST0000-osc-ffff8881\n    target: scratch-OST0000_UUID\n    state: FULL\n"
    b"    connection:\n       failover_nids: [ 10.0.0.1@o2ib ]\n       connection_attempts: 1\n       generation: 1\n"
    b"       in-progress_invalidations: 0\n    rpcs:\n       inflight: 2\n       unregistering: 0\n"
    b"       timeouts: 5\n       avg_waittime: 3512 usec\n"
)
TASK = b"4711 (python3 (a) b) D 1 4711 4711 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 9 0 123456 1 2 18446744073709551615\n"
FILE_NR = b"1952\t0\t9223372036854775807\n"
CAPABILITY = b"DeviceFileMinor: 2\nDeviceFileMode: 256\nDeviceFileModify: 1\n"
STATUS = b"Name:\tgangline\nCapInh:\t0000000000000000\nCapEff:\t0000000000200000\nSeccomp:\t2\n"
GPU = b"Model: \t NVIDIA H100\nGPU UUID: \t GPU-11111111-2222-3333-4444-555555555555\nBus Type: \t PCIe\n"
VLANS = (
    b"VLAN Dev name    | VLAN ID\nName-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\n"
    b"eth0.100       | 100  | eth0\neth0.101       | 101  | eth0\n"
)


def fuzz_stat(source: random.Random) -> str:
    """/proc/stat, twice: shares between 0 and 1 whatever the two readings were."""
    times = CoreTimes(0.05)
    times.take(damaged(STAT, source))
    now = times.take(damaged(STAT, source))
    for share in (
        *now[:7],
        *(core_share for core in times.shares().values() for core_share in core),
    ):
        assert share is None or 0 <= share <= 1, share
    assert len(times.cores) == times.count
    return ACCEPTED if now.user is not None and times.count else REFUSED


def fuzz_cpu_list(source: random.Random) -> str:
    """`0-3,8`: a list of cores, or ValueError in short words."""
    cpus = text(damaged(b"0-3,8,10-11,64-127\n", source))
    try:
        cores = cpu_cores.parse_cpu_list(cpus)
    except ValueError as error:
        assert str(error), "no words"
        return REFUSED
    assert all(core < cpu_cores.CORES_MAX for core in cores)
    assert len(cores) <= cpu_cores.CORES_MAX * max(1, cpus.count(","))
    return outcome(cores)


def fuzz_meminfo(source: random.Random) -> str:
    """Bytes where the unit is kB, pages where there is no unit, else nothing."""
    return outcome(
        line_numbers(damaged(MEMINFO, source), (b"MemTotal:", b"HugePages_Free:", b"Dirty:"))
    )


def fuzz_vmstat(source: random.Random) -> str:
    """`oom_kill` is not `oom_kill_other`."""
    return outcome(proc_files.parse_vmstat(damaged(VMSTAT, source), b"oom_kill"))


def fuzz_pressure(source: random.Random) -> str:
    """Ratios within 0 and 1."""
    return outcome(pressure(damaged(PRESSURE, source)))


def fuzz_decimals(source: random.Random) -> str:
    """The first number of loadavg and uptime: finite, not negative, written as the kernel writes it."""
    data = damaged(b"3.05 2.10 1.99 3/1234 4711\n", source)
    value = proc_files.parse_first_decimal(data)
    assert value is None or b"_" not in data.split(None, 1)[0], data[:64]
    return outcome(value)


def fuzz_diskstats(source: random.Random) -> str:
    """One damaged line costs one disk: the others read as before."""
    lines = DISKSTATS.split(b"\n")
    index = source.randrange(len(DISKS))
    lines[index] = damaged(lines[index], source).replace(b"\n", b" ")
    names = {name.encode(): name for name in DISKS}
    parsed = diskstats(b"\n".join(lines), names)
    whole = diskstats(DISKSTATS, names)
    rest = [name for name in DISKS if name != DISKS[index] and name.encode() not in lines[index]]
    assert all(parsed[name] == whole[name] for name in rest)
    return outcome(parsed.get(DISKS[index]))


def fuzz_mountinfo(source: random.Random) -> str:
    """Local and network file systems; a name of any bytes makes a key that fits a frame."""
    data = damaged(MOUNTINFO, source)
    mounts = storage.parse_mounts(data)
    assert len(mounts) <= data.count(b"\n") + 1
    for mount in mounts:
        device_key(mount.point).encode()
    local = storage.parse_mountinfo(data)
    check(local)
    assert all(mount.type in storage.LOCAL_FILESYSTEMS for mount in local)
    check(storage.parse_network_mounts(data))
    return outcome(local)


def fuzz_mountstats(source: random.Random) -> str:
    """NFS mounts; a sum counts all calls, or is missing."""
    parsed = nfs.parse_mountstats(damaged(MOUNTSTATS, source))
    for mount in parsed:
        check(mount.values)
    return outcome(parsed)


def fuzz_lustre(source: random.Random) -> str:
    """`stats` and `import` of a client, with the zero bytes that some releases leave in them."""
    check(lustre.parse_lustre_import(damaged(LUSTRE_IMPORT, source)))
    return outcome(lustre.parse_lustre_stats(damaged(LUSTRE_STATS, source)))


def fuzz_tasks(source: random.Random) -> str:
    """A process's name may hold brackets, blanks and a state."""
    return outcome(processes.parse_task(damaged(TASK, source)))


def fuzz_proc_settings(source: random.Random) -> str:
    """File handles, the bracketed option, the kernel's command line."""
    flags = settings.kernel_flags(
        text(damaged(b"BOOT_IMAGE=/v root=UUID=1 pci=realloc iommu=pt secret=1", source))
    )
    assert len(flags) <= 512
    assert not any(flag.startswith(("secret", "root", "BOOT")) for flag in flags.split())
    chosen = settings.parse_selected(text(damaged(b"always [madvise] never", source)))
    assert chosen is None or not set(chosen) & set("[] \n")
    return outcome(settings.parse_file_handles(text(damaged(FILE_NR, source))))


def fuzz_nvidia_files(source: random.Random) -> str:
    """The NVIDIA driver's files below /proc/driver/nvidia, and a process's capabilities."""
    assert parse_is_administrator(text(damaged(STATUS, source))) in (True, False)
    check(parse_capability_minor(text(damaged(CAPABILITY, source))))
    uuid = nvidia.parse_uuid(text(damaged(GPU, source)))
    assert not uuid or (uuid.isascii() and uuid.startswith("GPU-"))
    return outcome(uuid if len(uuid) <= KEY_BYTES_MAX else "")


def fuzz_vlans(source: random.Random) -> str:
    """/proc/net/vlan/config: keys of valid UTF-8, numbers of at most four digits."""
    parsed = parse_vlans(damaged(VLANS, source))
    for name, number, below in parsed:
        assert max(len(name.encode()), len(below.encode())) <= KEY_BYTES_MAX
        assert 0 <= number < 10_000
    return outcome(parsed)


def fuzz_unsigned(source: random.Random) -> str:
    """A whole number of 64 bits, or none: no unit, no sign, no other script, no underscore."""
    data = damaged(b"1234567\n", source)
    values = [parse_unsigned(data.strip()), parse_unsigned(text(data))]
    for value in values:
        assert (
            value is None or text(data).lstrip("0") == (str(value) if value else "") or b"+" in data
        ), data[:64]
    return outcome(values)


def fuzz_isolation(source: random.Random) -> str:
    """Facts about isolation fit into an attribute, and damaged limits name no disk that had none."""
    mounts = isolation_facts.shm_of(isolation_facts.parse_mounts(damaged(CONTAINER_MOUNTS, source)))
    paths = isolation_facts.parse_paths(text(damaged(CGROUPS, source)))
    disks = isolation_facts.parse_io_max(text(damaged(IO_MAX, source)))
    assert all(disk.replace(":", "").isdigit() for disk in disks), disks
    devices = isolation_facts.parse_rdma_max(text(damaged(RDMA_MAX, source)))
    rules = isolation_facts.parse_rules(text(damaged(DEVICE_RULES, source)))
    facts = isolation.parse_facts(text(damaged(FACTS, source)))
    assert all(" " not in value for value in facts.values())
    job = isolation.JobOnHost("a", frozenset(), (facts,))
    isolation.verify(job, job, isolation.HostFacts())
    return ACCEPTED if all((mounts, paths, disks, devices, rules, facts)) else REFUSED


TARGETS = {
    "isolation": fuzz_isolation,
    "stat": fuzz_stat,
    "cpu-list": fuzz_cpu_list,
    "meminfo": fuzz_meminfo,
    "vmstat": fuzz_vmstat,
    "pressure": fuzz_pressure,
    "decimals": fuzz_decimals,
    "diskstats": fuzz_diskstats,
    "mountinfo": fuzz_mountinfo,
    "mountstats": fuzz_mountstats,
    "lustre": fuzz_lustre,
    "tasks": fuzz_tasks,
    "proc-settings": fuzz_proc_settings,
    "nvidia-files": fuzz_nvidia_files,
    "vlans": fuzz_vlans,
    "unsigned": fuzz_unsigned,
}
