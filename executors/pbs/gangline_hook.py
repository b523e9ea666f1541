"""PBS hook for the event exechost_periodic: sets the resource gangline_bucket of this host's vnodes (docs/batch_schedulers.md).

Bucket 0 is the best, 3 the worst; an unknown host gets 0, like all hosts without Gangline. An error of the hook is logged and
changes nothing.
"""

import os
import stat
import time

import pbs

#: File of `gangline mirror`, its maximum size, and the maximum time for which it is valid.
MIRROR_FILE, MIRROR_BYTES_MAX, MIRROR_SECONDS_MAX = "/run/gangline-mirror/nodes", 8732989, 60
RECORD_BYTES = 127
RESOURCE = "gangline_bucket"


def read_bucket(file, host):
    """Return the bucket of *host*; 0 if the host is unknown.

    The result is also 0 unless the file is complete, current, and writable only by its owner.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return 0
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        # An attacker may have planted a link, a FIFO, or a file that others may write.
        folder = os.stat(os.path.dirname(file) or ".")
        is_private = not (status.st_mode | folder.st_mode) & 0o022
        if (
            not stat.S_ISREG(status.st_mode)
            or not is_private
            or status.st_uid not in (0, os.geteuid(), folder.st_uid)
        ):
            return 0
        content = stream.read(MIRROR_BYTES_MAX + 1)
    lines = content.decode("ascii", "replace").split("\n")
    first = lines[0].split()
    head = dict(pair.split("=", 1) for pair in first if pair.count("=") == 1)
    try:
        whole = first[:2] == ["gangline-mirror", "1"] and int(head["file"]) == len(content)
        until = int(head["valid_until"])
    except (KeyError, ValueError):
        return 0
    now = time.time()
    ends = [line.split()[1:2] == [head.get("check")] for line in lines if line.startswith("end ")]
    if not whole or not now <= until <= now + MIRROR_SECONDS_MAX or ends != [True]:
        return 0
    for line in lines[1:]:
        if len(line) == RECORD_BYTES and line.split()[:1] == [host] and line[65] in "0123":
            return int(line[65])
    return 0


def main():
    """Set the resource gangline_bucket of each vnode of this host."""
    event = pbs.event()
    if event.type != pbs.EXECHOST_PERIODIC:
        event.accept()
    try:
        name = pbs.get_local_nodename()
        bucket = read_bucket(MIRROR_FILE, name) or read_bucket(MIRROR_FILE, name.partition(".")[0])
        for vnode in event.vnode_list.values():
            vnode.resources_available[RESOURCE] = bucket
    except Exception as error:  # noqa: BLE001
        pbs.logmsg(pbs.LOG_WARNING, "gangline_hook: %s: %s" % (type(error).__name__, error))  # noqa: UP031
    event.accept()


main()
