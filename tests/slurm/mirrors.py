"""Mirror files for tests: good files, and stale, torn, truncated or planted ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from gangline.executors.mirror_format import (
    FILE_BYTES_MAX,
    VALID_SECONDS_MAX,
    MirrorNode,
    SlurmNodes,
    render,
)

NODES = 8

NEEDS_ROOT = "of another user"


def node(name: str, state: str = "HEALTHY", bucket: int = 0) -> MirrorNode:
    """Return a node; one with a fault is not ready."""
    ready = state not in ("UNHEALTHY", "MAINTENANCE")
    score = 0.99 if ready else 0.0
    return MirrorNode(name, bucket if ready else 3, ready, score, 1e-4, 1.0, state, "")


def fleet(*faulty: str, nodes: int = NODES) -> list[MirrorNode]:
    """Return gpu1 to gpuN, of which some have a fault."""
    names = [f"gpu{index}" for index in range(1, nodes + 1)]
    return [node(name, "UNHEALTHY" if name in faulty else "HEALTHY") for name in names]


def alike(features: Mapping[str, frozenset[str]] | None = None) -> SlurmNodes:
    """Return equal nodes of Slurm; *features*: by node name."""
    names = [f"gpu{index}" for index in range(1, NODES + 1)]
    none = frozenset[str]()
    return SlurmNodes(
        dict.fromkeys(names, ("8", "gpu:h100:4", "main")),
        {name: (has := (features or {}).get(name, none), has) for name in names},
    )


def mirror(
    now: float, *faulty: str, valid_seconds: int = 30, slurm: SlurmNodes | None = None, feature: str = "", degraded: bool = False,
) -> bytes:  # fmt: skip
    return render(
        fleet(*faulty), computed_seconds=int(now), valid_until_seconds=int(now) + valid_seconds,
        slurm=alike() if slurm is None else slurm, feature=feature, degraded=degraded,
    )  # fmt: skip


def _missing(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)


def _stale(path: Path, content: bytes) -> None:
    offset = content.index(b"computed=") + 9
    path.write_bytes(mirror(int(content[offset : offset + 10]) - 100, "gpu8"))


def _valid_for_ever(path: Path, content: bytes) -> None:
    offset = content.index(b"computed=") + 9
    path.write_bytes(
        mirror(int(content[offset : offset + 10]), "gpu8", valid_seconds=VALID_SECONDS_MAX + 10)
    )


def _in_place(path: Path, content: bytes) -> None:
    """Write the next file over the previous one, as a writer that dies halfway."""
    offset = content.index(b"computed=") + 9
    later = mirror(int(content[offset : offset + 10]) + 1, "gpu8")
    path.write_bytes(later[: len(later) // 2] + content[len(later) // 2 :])


def _changed(offset: int) -> Callable[[Path, bytes], None]:
    def change(path: Path, content: bytes) -> None:
        # Another digit, so that the form stays right.
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :])

    return change


def _cut(keep: Callable[[bytes], int]) -> Callable[[Path, bytes], object]:
    return lambda path, content: path.write_bytes(content[: keep(content)])


def _zeros(path: Path, content: bytes) -> None:
    path.write_bytes(content[:190] + bytes(40) + content[230:])


def _absurd(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    os.truncate(path, FILE_BYTES_MAX * 4)


def _folder(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


#: Damages that the bytes alone reveal.
DAMAGES: dict[str, Callable[[Path, bytes], object]] = {
    "missing": _missing,
    "empty": lambda path, _: path.write_bytes(b""),
    "stale": _stale,
    "valid for ever": _valid_for_ever,
    "another version": lambda path, content: path.write_bytes(content.replace(b" 1 ", b" 2 ", 1)),
    "overwritten in place": _in_place,
    "a digit of the validity": _changed(101),
    "a digit of a limit": _changed(160),
    "a character of a list": _changed(195),
    "cut within the first line": _cut(lambda content: 150),
    "cut after the first line": _cut(lambda content: content.index(b"\n") + 1),
    "cut within the records": _cut(lambda content: len(content) - 300),
    "cut by a byte": _cut(lambda content: len(content) - 1),
    "a byte too many": lambda path, content: path.write_bytes(content + b"\n"),
    "blocks of zeros": _zeros,
    "absurd size": _absurd,
    "a folder": _folder,
    "no mirror at all": lambda path, _: path.write_bytes(b"x" * 5000),
}


def _by_link(path: Path, content: bytes) -> None:
    elsewhere = path.with_name("elsewhere")
    elsewhere.write_bytes(content)
    path.unlink(missing_ok=True)
    path.symlink_to(elsewhere)


def _pipe(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o644)


def _world_writable(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o666)


def _open_folder(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.parent.chmod(0o777)


def _of_another_user(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    os.chown(path, 65_533, 65_533)


#: Damages that owner, mode and file type reveal: a good file with the wrong owner or type.
PLANTED: dict[str, Callable[[Path, bytes], object]] = {
    "a link": _by_link,
    "a pipe": _pipe,
    "writable by all": _world_writable,
    "a folder that all may write in": _open_folder,
    "of another user": _of_another_user,
}
