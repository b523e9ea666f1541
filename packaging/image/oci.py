"""Writes a single-layer OCI image as a layout, from a tar of a root file system, reproducibly.

Format: OCI image-spec 1.1 (image-layout.md, manifest.md, config.md, layer.md).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import struct
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

MEDIA = "application/vnd.oci.image"
#: Names of linux/capability.h, by their bit.
CAPABILITIES = {"dac_override": 1, "dac_read_search": 2, "sys_ptrace": 19, "sys_admin": 21, "syslog": 34}  # fmt: skip
#: VFS_CAP_REVISION_2 of linux/capability.h.
_REVISION = 0x02000000
#: Folders that a container runtime mounts or fills; their contents are left out.
_EMPTY = ("dev/", "proc/", "sys/", "run/", "tmp/")


class ImageError(Exception):
    """The image cannot be made; the message gives the reason."""


@dataclass(frozen=True)
class Image:
    """The metadata of an image."""

    name: str
    version: str
    architecture: str
    user: str
    entrypoint: tuple[str, ...]
    working_folder: str
    labels: Mapping[str, str] = field(default_factory=dict)


def file_capabilities(names: tuple[str, ...]) -> str:
    """Return the value of security.capability: *names* are permitted, but none is effective at the start.

    With the effective bit, a container that lacks any of these capabilities could not start the program at all.
    """
    bits = sum(1 << CAPABILITIES[name] for name in names)
    data = struct.pack("<5I", _REVISION, bits & 0xFFFFFFFF, 0, bits >> 32, 0)
    return data.decode("utf-8", "surrogateescape")


def write_layer(
    root: Path, layer: Path, epoch: int, capabilities: Mapping[str, tuple[str, ...]]
) -> str:
    """Write the tar *root* as the gzip file *layer*; return the SHA-256 of the uncompressed tar.

    *capabilities*: file name -> names of its capabilities.
    """
    digest = hashlib.sha256()
    pending = dict(capabilities)
    with (
        tarfile.open(root) as source,
        layer.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, mtime=0) as packed,
        tarfile.open(fileobj=_Hashed(packed, digest), mode="w|", format=tarfile.PAX_FORMAT) as to,
    ):
        # Hard links come after their targets.
        for member in sorted(source.getmembers(), key=lambda each: (each.islnk(), each.name)):
            name = member.name.removeprefix("./")
            if name in ("", ".") or name.startswith(_EMPTY):
                continue
            copied = _copied(member, name, epoch)
            if names := pending.pop(name, ()):
                copied.pax_headers = {"SCHILY.xattr.security.capability": file_capabilities(names)}
            to.addfile(copied, source.extractfile(member) if member.isreg() else None)
    if pending:
        raise ImageError(
            f"{root}: no file {next(iter(pending))}: expected one that gets capabilities"
        )
    return digest.hexdigest()


def _copied(member: tarfile.TarInfo, name: str, epoch: int) -> tarfile.TarInfo:
    copied = tarfile.TarInfo(name)
    copied.type, copied.mode, copied.size = member.type, member.mode, member.size
    copied.uid, copied.gid = member.uid, member.gid
    copied.devmajor, copied.devminor = member.devmajor, member.devminor
    copied.linkname = member.linkname.removeprefix("./") if member.islnk() else member.linkname
    copied.mtime = min(int(member.mtime), epoch)
    return copied


class _Hashed(io.RawIOBase):
    """A writer that passes data on, and adds the data to a hash."""

    def __init__(self, to: Any, digest: Any) -> None:
        self._to, self._digest = to, digest

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._digest.update(data)
        return int(self._to.write(data))


def write_layout(image: Image, root: Path, folder: Path, epoch: int, capabilities: Mapping[str, tuple[str, ...]]) -> str:  # fmt: skip
    """Write the layout into *folder*, which is replaced; return the digest of the manifest."""
    shutil.rmtree(folder, ignore_errors=True)
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    made = folder / "layer"
    content = write_layer(root, made, epoch, capabilities)
    with made.open("rb") as file:
        packed = hashlib.file_digest(file, "sha256").hexdigest()
    layer = _descriptor(f"{MEDIA}.layer.v1.tar+gzip", packed, made.stat().st_size)
    made.rename(blobs / packed)
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {
        "org.opencontainers.image.title": image.name,
        "org.opencontainers.image.version": image.version,
        "org.opencontainers.image.licenses": "Apache-2.0",
        **image.labels,
    }
    config = {
        "created": created,
        "architecture": image.architecture,
        "os": "linux",
        "config": {
            "User": image.user,
            "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "Entrypoint": list(image.entrypoint),
            "WorkingDir": image.working_folder,
            "Labels": labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{content}"]},
        "history": [{"created": created, "created_by": "packaging/image/image.py"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{MEDIA}.manifest.v1+json",
        "config": _blob(blobs, f"{MEDIA}.config.v1+json", config),
        "layers": [layer],
        "annotations": labels,
    }
    listed = _blob(blobs, f"{MEDIA}.manifest.v1+json", manifest)
    platform = {"architecture": image.architecture, "os": "linux"}
    reference = {"org.opencontainers.image.ref.name": image.version}
    index = {
        "schemaVersion": 2,
        "mediaType": f"{MEDIA}.index.v1+json",
        "manifests": [{**listed, "platform": platform, "annotations": reference}],
    }
    (folder / "index.json").write_bytes(_json(index))
    (folder / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
    return str(listed["digest"])


def _blob(blobs: Path, media_type: str, document: object) -> dict[str, Any]:
    data = _json(document)
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return _descriptor(media_type, digest, len(data))


def _descriptor(media_type: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
