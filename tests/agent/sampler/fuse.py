"""A file system whose reads return on the test's command: a driver call that even SIGKILL does not
end.

The kernel waits for the answer of a read that was passed to the file system, even after a kill
(fs/fuse/dev.c, request_wait_answer). The protocol is in include/uapi/linux/fuse.h; only the calls
for reading a file are used.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_IN = struct.Struct("<IIQQIIII")  # fuse_in_header
_OUT = struct.Struct("<IiQ")  # fuse_out_header
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")  # fuse_attr
_KSTATFS = struct.Struct("<QQQQQIIII24x")  # fuse_kstatfs
LOOKUP, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT, FORGET = 1, 3, 14, 15, 17, 18, 25, 26, 2
DIRECT_IO = 1
MNT_DETACH, MNT_FORCE = 2, 1
BUFFER_BYTES = 1 << 18
ROOT = 1
#: The mount point itself, for `Files.stick`: statvfs of it hangs.
MOUNT = "."


class Files:
    """Files of one folder, each with the content `1` unless stuck."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder, self._names = folder, names
        self._stuck: set[str] = set()
        self._waiting: list[tuple[str, int, bytes]] = []  # name, request, its answer
        self._lock = threading.Lock()
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"test", os.fsencode(folder), b"fuse", 0, options.encode()):
            number = ctypes.get_errno()
            os.close(self._device)
            raise OSError(number, os.strerror(number))
        self._libc = libc
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stick(self, name: str) -> None:
        """Block reads of that file; for `MOUNT`, statvfs."""
        with self._lock:
            self._stuck.add(name)

    def let(self, name: str) -> None:
        with self._lock:
            self._stuck.discard(name)
            ready = [(number, body) for waits, number, body in self._waiting if waits == name]
            self._waiting = [each for each in self._waiting if each[0] != name]
        for number, body in ready:
            self._answer(number, body)

    def waiting(self) -> int:
        with self._lock:
            return len(self._waiting)

    def close(self) -> None:
        """Unmount it; blocked callers get an error."""
        self._libc.umount2(os.fsencode(self.folder), MNT_DETACH | MNT_FORCE)
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, BUFFER_BYTES)
            except OSError as error:
                if error.errno == errno.ENOENT:  # a request was interrupted
                    continue
                os.close(self._device)
                return
            _, code, number, node, *_ = _IN.unpack_from(request)
            self._handle(code, number, node, request[_IN.size :])

    def _handle(self, code: int, number: int, node: int, body: bytes) -> None:
        if code == INIT:
            self._answer(
                number, struct.pack("<IIIIHHIIHHI7I", 7, 31, 0, 0, 8, 8, 4096, 1, 0, 0, 0, *[0] * 7)
            )
        elif code == LOOKUP:
            name = body.rstrip(b"\0").decode()
            if name in self._names:
                node = 2 + self._names.index(name)
                self._answer(number, struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + _attr(node))
            else:
                self._answer(number, b"", errno.ENOENT)
        elif code == GETATTR:
            self._answer(number, struct.pack("<QII", 0, 0, 0) + _attr(node))
        elif code == OPEN:
            self._answer(number, struct.pack("<QII", 0, DIRECT_IO, 0))
        elif code == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            name = self._names[node - 2]
            self._answer_in_time(number, name, b"" if offset else b"1\n"[:size])
        elif code == STATFS:
            room = _KSTATFS.pack(1000, 600, 500, 100, 50, 4096, 255, 4096, 0)
            self._answer_in_time(number, MOUNT, room)
        elif code in (RELEASE, FLUSH):
            self._answer(number, b"")
        elif code != FORGET:
            self._answer(number, b"", errno.ENOSYS)

    def _answer_in_time(self, number: int, name: str, body: bytes) -> None:
        with self._lock:
            if name in self._stuck:
                self._waiting.append((name, number, body))
                return
        self._answer(number, body)

    def _answer(self, number: int, body: bytes, error: int = 0) -> None:
        try:
            os.write(self._device, _OUT.pack(_OUT.size + len(body), -error, number) + body)
        except OSError as problem:  # the caller ended
            assert problem.errno in (errno.ENOENT, errno.ENODEV), problem


def _attr(node: int) -> bytes:
    mode = 0o40755 if node == ROOT else 0o100444
    return _ATTR.pack(node, 2, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


@contextmanager
def mounted(folder: Path, names: list[str]) -> Iterator[Files]:
    """Mount it, or skip the test with a reason."""
    folder.mkdir()
    try:
        files = Files(folder, names)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error.strerror}; it takes /dev/fuse and the right to mount")
    try:
        yield files
    finally:
        files.close()
