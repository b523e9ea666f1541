"""The owner of a process, from /proc/PID/cgroup: every known form, and look-alikes."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gangline.agent.hardware.kubelet import Pod, parse_pod_log_folder
from gangline.agent.hardware.process_owner import (
    CGROUP_BYTES_MAX,
    PATH_CHARACTERS_MAX,
    Owner,
    owner_of,
    parse_cgroup,
)
from gangline.agent.hardware.process_state import parse_ended, parse_namespace_pid, parse_user_id

ID = "c0ffee" + "0123456789abcdef" * 3 + "0123456789"
UID = "12345678-1234-4321-aaaa-123456789abc"
UNDERSCORES = UID.replace("-", "_")
STATIC = "0123456789abcdef" * 2  # a static pod's
POD = {"source": "kubernetes", "pod_uid": UID, "container_id": ID}
BURSTABLE = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORES}.slice"

KUBERNETES = [
    (f"/kubepods/burstable/pod{UID}/{ID}", POD | {"qos": "burstable"}),
    (f"/kubepods/besteffort/pod{UID}/{ID}", POD | {"qos": "besteffort"}),
    (f"/kubepods/pod{UID}/{ID}", POD | {"qos": "guaranteed"}),
    (
        f"/kubepods/burstable/pod{UID}/crio-{ID}",
        POD | {"qos": "burstable", "runtime": "crio"},
    ),
    (
        f"/{BURSTABLE}/cri-containerd-{ID}.scope",
        POD | {"qos": "burstable", "runtime": "cri-containerd"},
    ),
    (f"/{BURSTABLE}/docker-{ID}.scope", POD | {"qos": "burstable", "runtime": "docker"}),
    (
        f"/kubepods.slice/kubepods-pod{UNDERSCORES}.slice/crio-{ID}.scope/container",
        POD | {"qos": "guaranteed", "runtime": "crio"},
    ),
    (
        f"/system.slice/containerd.service/kubepods-besteffort-pod{UNDERSCORES}.slice:cri-containerd:{ID}",
        POD | {"qos": "besteffort", "runtime": "cri-containerd"},
    ),
    (
        f"/kubelet.slice/kubelet-{BURSTABLE.replace('/', '/kubelet-')}/cri-containerd-{ID}.scope",
        POD | {"qos": "burstable", "runtime": "cri-containerd"},
    ),
    (f"/docker/{ID}/kubelet/kubepods/pod{UID}/{ID}", POD | {"qos": "guaranteed"}),
    (
        f"/kubepods/burstable/pod{STATIC}/{ID}",
        POD | {"qos": "burstable", "pod_uid": STATIC},
    ),
    (
        f"/kubepods/pod{UID}",
        {"source": "kubernetes", "pod_uid": UID, "qos": "guaranteed"},
    ),
    (
        f"/system.slice/k3s.service/{BURSTABLE}/cri-containerd-{ID}.scope",
        POD | {"qos": "burstable", "runtime": "cri-containerd"},
    ),
    (
        f"/system.slice/k3s-agent.service/kubepods/burstable/pod{UID}/{ID}",
        POD | {"qos": "burstable"},
    ),
    (
        f"/system.slice/snap.microk8s.daemon-kubelite.service/kubepods-pod{UNDERSCORES}.slice:cri-containerd:{ID}",
        POD | {"qos": "guaranteed", "runtime": "cri-containerd"},
    ),
    (  # kind, within a container of a build host
        f"/docker/{ID}/docker/{ID}/kubelet/kubepods/besteffort/pod{UID}/{ID}",
        POD | {"qos": "besteffort"},
    ),
    (
        f"/system.slice/docker-{ID}.scope/kubelet.slice/kubelet-{BURSTABLE.replace('/', '/kubelet-')}/cri-containerd-{ID}.scope",
        POD | {"qos": "burstable", "runtime": "cri-containerd"},
    ),
]
SESSION = {"source": "systemd", "unit": "session-3.scope", "session": "3", "slice_user_id": "1000"}
OTHERS = [
    (f"/docker/{ID}", {"source": "container", "container_id": ID, "runtime": "docker"}),
    (
        f"/system.slice/docker-{ID}.scope",
        {
            "source": "container",
            "container_id": ID,
            "runtime": "docker",
            "unit": f"docker-{ID}.scope",
        },
    ),
    (
        f"/machine.slice/libpod-{ID}.scope/container",
        {
            "source": "container",
            "container_id": ID,
            "runtime": "libpod",
            "unit": f"libpod-{ID}.scope",
        },
    ),
    (
        "/lxc.payload.web/system.slice/x.service",
        {"source": "container", "container_id": "web", "runtime": "lxc"},
    ),
    ("/user.slice/user-1000.slice/session-3.scope", SESSION),
    ("/system.slice/nv-hostengine.service", {"source": "systemd", "unit": "nv-hostengine.service"}),
    (
        "/system.slice/system-getty.slice/getty@tty1.service",
        {"source": "systemd", "unit": "getty@tty1.service"},
    ),
    (
        "/user.slice/user-1000.slice/user@1000.service/app.slice/app-jupyter.service",
        {
            "source": "systemd",
            "unit": "user@1000.service",
            "user_unit": "app-jupyter.service",
            "slice_user_id": "1000",
        },
    ),
    ("/init.scope", {"source": "systemd", "unit": "init.scope"}),
    ("/", {}),
]
PIECES = st.sampled_from(
    "slurm uid_1 job_123 job_9 step_0 user task_0 system.slice slurmstepd.scope user.slice kubepods.slice kubepods "
    f"docker a.service session-1.scope .. pod{UID} {ID} kubepods-pod{UNDERSCORES}.slice cri-containerd-{ID}.scope".split()
)
STATUS = "Name:\tpython3\nUid:\t1000\t0\t0\t0\nNSpid:\t4711\t17\t3\nThreads:\t8\n"


def job(step: str = "", **more: str) -> dict[str, str]:
    return {"source": "slurm", "job_id": "123", **({"step": step} if step else {}), **more}


SLURM = [
    ("/slurm/uid_1000/job_123", job(job_user_id="1000")),
    ("/slurm/uid_1000/job_123/step_0/task_0", job("0", task="0", job_user_id="1000")),
    ("/slurm/uid_0/job_123/step_batch/task_0", job("batch", task="0", job_user_id="0")),
    ("/slurm_n17/uid_1000/job_123/step_4", job("4", node="n17", job_user_id="1000")),
    ("/system.slice/slurmstepd.scope/job_123/step_0/user/task_0", job("0", task="0")),
    ("/system.slice/slurmstepd.scope/job_123/step_0/slurm", job("0")),
    (
        "/system.slice/slurmstepd.scope/job_123/step_batch/user/task_special",
        job("batch", task="special"),
    ),
    ("/system.slice/slurmstepd.scope/job_123/step_extern/user/task_0", job("extern", task="0")),
    ("/system.slice/slurmstepd.scope/job_123/step_interactive/user", job("interactive")),
    ("/system.slice/gpu-n17_slurmstepd.scope/job_123/step_0", job("0", node="gpu-n17")),
    ("/system.slice/slurmstepd.scope/job_123/step_0+1/user/task_3", job("0+1", task="3")),  # het
    ("/system.slice/slurmstepd.scope/job_123/step_2/user/task_0 (deleted)", job("2", task="0")),
    (
        f"/system.slice/slurmstepd.scope/job_123/step_0/user/task_0/libpod-{ID}.scope",
        job("0", task="0", container_id=ID, runtime="libpod"),
    ),
    (
        f"/{BURSTABLE}/cri-containerd-{ID}.scope/system.slice/slurmstepd.scope/job_123/step_0/user/task_0",
        POD | job("0", task="0", qos="burstable", runtime="cri-containerd"),
    ),
]


@pytest.mark.parametrize(("path", "said"), SLURM + KUBERNETES + OTHERS)
def test_each_form_is_known(path: str, said: dict[str, str]) -> None:
    """An unknown form of path left a whole cluster without job names."""
    assert parse_cgroup(f"0::{path}\n".encode()).attributes() == said


@pytest.mark.parametrize(
    "path",
    [
        "/user.slice/user-1000.slice/user@1000.service/app.slice/job_123/step_0",
        "/user.slice/user-1000.slice/user@1000.service/slurm/uid_0/job_123",
        "/user.slice/user-1000.slice/user@1000.service/system.slice/slurmstepd.scope/job_123",
        "/system.slice/slurmstepd.scope/job_123x/step_0",
        "/system.slice/slurmstepd.scope/job_/step_0",
        "/system.slice/slurmstepd.scope/job_99999999999",
        "/system.slice/slurmstepd.scope/job_٣",
        "/system.slice/slurmstepd.scope/system",
        "/slurm/job_123",
        "/pbspro.service/jobid/123.server",
        "/slurmish/uid_1000/job_123",
        f"/user.slice/kubepods/pod{UID}/{ID}",
        f"/system.slice/notebooks.service/{BURSTABLE}/cri-containerd-{ID}.scope",  # delegated to its user
        f"/system.slice/notebooks.service/kubepods-pod{UNDERSCORES}.slice:cri-containerd:{ID}",
        "/system.slice/notebooks.service/slurm/uid_0/job_123",
        f"/user.slice/user-1000.slice/user@1000.service/{BURSTABLE}/cri-containerd-{ID}.scope",
        f"/pod{UID}/{ID}",
        "/kubepods/pod1234/x",
        "/kubepods/burstable",
    ],
)
def test_what_only_looks_like_one_is_none(path: str) -> None:
    """A user created a nested group called job_123, and another user's job was drained for it."""
    result = owner_of(path)
    assert result.source in ("", "systemd")
    assert not (result.job_id or result.pod_uid or result.container_id)


def test_version_1_has_a_line_for_each_hierarchy() -> None:
    """systemd's line has slurmd.service, the device hierarchy has the job."""
    lines = (
        b"12:devices:/slurm/uid_1000/job_123/step_0/task_0\n11:pids:/system.slice/slurmd.service\n"
        b"4:memory:/slurm/uid_1000/job_123/step_0/task_0\n1:name=systemd:/system.slice/slurmd.service\n0::/\n"
    )
    assert parse_cgroup(lines).job_id == "123"
    turned = b"\n".join(reversed(lines.strip().split(b"\n"))) + b"\n"
    assert parse_cgroup(turned) == parse_cgroup(lines)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/../../../system.slice/slurmstepd.scope/job_123/step_0", job("0")),
        (
            f"/../../kubepods-besteffort-pod{UNDERSCORES}.slice/cri-containerd-{ID}.scope",
            POD | {"qos": "besteffort", "runtime": "cri-containerd"},
        ),
        (f"/../../../besteffort/pod{UID}/{ID}", POD | {"qos": "besteffort"}),
        (f"/../../pod{UID}/{ID}", POD),  # of the same class as the agent, which is not shown
        (
            f"/../cri-containerd-{ID}.scope",
            {"source": "kubernetes", "container_id": ID, "runtime": "cri-containerd"},
        ),
        ("/../../../user.slice/user-1000.slice/session-3.scope", SESSION),
        ("/../..", {}),
        (f"/../{ID}", {}),
    ],
)
def test_a_path_seen_from_another_group(path: str, said: dict[str, str]) -> None:
    """An agent in a pod sees the paths of others relative to its own."""
    result = owner_of(path)
    assert (result.attributes(), result.is_relative) == (said, True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n",
        b"0::",
        b"::/system.slice/slurmstepd.scope/job_1",
        b"x:y:/slurm/uid_1/job_1",
        b"0::slurm/uid_1/job_1",
        b"0::/" + b"a" * CGROUP_BYTES_MAX,
        b"0::/slurm/uid_1/job_1/" + b"a/" * PATH_CHARACTERS_MAX,
        b"0::/slurm/uid_1/job_1/../../x",
        b"0::/slurm/uid_1\n/job_1\n",
        b"0::/slurm/uid_1/job_\xff1\n",
        b"\0" * 4096,
    ],
)
def test_a_hostile_file_says_nothing(data: bytes) -> None:
    """64 kB of a name, line ends in it, invalid UTF-8, a path that climbs."""
    assert parse_cgroup(data) == Owner()


def test_a_file_that_is_cut_loses_its_last_line_only() -> None:
    """A job's number cut in half is another job."""
    good = b"9:devices:/slurm/uid_1000/job_123\n"
    cut = good + b"0::/" + b"a" * (CGROUP_BYTES_MAX - len(good) - 60)
    cut = (cut + b"\n0::/system.slice/slurmstepd.scope/job_777").ljust(CGROUP_BYTES_MAX, b"7")
    assert parse_cgroup(cut[:CGROUP_BYTES_MAX]).job_id == "123"


@given(st.text())
@example("/../../../../")
def test_any_path_has_an_answer(path: str) -> None:
    """Attributes of an event are short, printable and of known names, for any group name."""
    reported = owner_of(path).attributes()
    assert all(0 < len(value) <= 255 and value.isprintable() for value in reported.values())


@given(st.lists(PIECES, max_size=8))
def test_a_job_stands_where_slurm_puts_it(pieces: list[str]) -> None:
    """Pieces of true paths: a job only below slurmd's group at the root, or in a pod."""
    result = owner_of("/" + "/".join(pieces))
    if not result.job_id:
        return
    parts = [piece for piece in pieces if piece not in ("", "..")]
    at = parts.index(f"job_{result.job_id}")
    before = parts[:at]
    assert before[-2:] in (["slurm", "uid_1"], ["system.slice", "slurmstepd.scope"])
    assert not before[:-2] or result.pod_uid


def test_status_says_user_and_inner_number() -> None:
    """The job's own log named PID 3, and the host had no such process."""
    assert parse_user_id(STATUS.encode()) == 1000
    assert parse_namespace_pid(STATUS.encode()) == 3
    assert parse_namespace_pid(STATUS.replace("\t17\t3", "").encode()) is None
    assert parse_namespace_pid(b"NSpid:\tx\t3\n") is None
    assert parse_user_id(b"Uid:\t-1\t0\n") is None


@pytest.mark.parametrize(
    ("state", "threads", "ended"),
    [("Z", 1, True), ("Z", 2, False), ("X", 0, True), ("S", 1, False), ("D", 1, False)],
)
def test_only_a_whole_process_has_ended(state: str, threads: int, ended: bool) -> None:
    """The first thread may have ended long before the others."""
    stat = f"7 (a) Z 1) {state} 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 {threads} 0 5000 0\n"
    assert parse_ended(stat.encode()) is ended


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        (f"ml_trainer-0_{UID}", (UID, Pod("ml", "trainer-0"))),
        (f"kube-system_etcd-n1.example_{STATIC}", (STATIC, Pod("kube-system", "etcd-n1.example"))),
        ("ml_trainer-0", None),
        (f"a_b_c_{UID}", None),
        (f"../_x_{UID}", None),
        (f"ml_{'x' * 300}_{UID}", None),
    ],
)
def test_a_pod_log_folder_names_its_pod(folder: str, expected: tuple[str, Pod] | None) -> None:
    """kubelet's own name for it, and nothing that resembles it."""
    assert parse_pod_log_folder(folder) == expected
