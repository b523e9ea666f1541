#!/usr/bin/env python3
"""Helper of `gangline executor ray`, run in Ray's own Python, whose version must match the cluster's (docs/batch_schedulers.md).

gangline_ray.py state ADDRESS                                       prints nodes and placement groups as a line of JSON
gangline_ray.py drain ADDRESS NODE_ID MESSAGE DEADLINE_SECONDS      drains a node, which cannot be undone
gangline_ray.py labels [FILE [HOST]]                                prints the label of this machine's health, for `ray start --labels`
"""

import json
import os
import socket
import stat
import sys
import time

#: File of `gangline mirror`, its maximum size, and the maximum time for which it is valid.
MIRROR_FILE, MIRROR_BYTES_MAX, MIRROR_SECONDS_MAX = "/run/gangline-mirror/nodes", 8_732_989, 60
RECORD_BYTES = 127


def connect(address):
    """Return (module ray, state of the cluster, client of its control service)."""
    import ray
    from ray._private.state import GlobalState
    from ray._raylet import GcsClient, GcsClientOptions

    state = GlobalState()
    state._initialize_global_state(
        GcsClientOptions.create(
            address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False
        )
    )
    return ray, state, GcsClient(address=address)


def print_state(address):
    """Print nodes and placement groups as a line of JSON."""
    ray, state, _ = connect(address)
    draining = state.get_draining_nodes()
    nodes = [
        {
            "id": node["NodeID"], "name": node.get("NodeName") or "", "address": node["NodeManagerAddress"],
            "hostname": node.get("NodeManagerHostname") or "", "alive": bool(node["Alive"]), "draining": node["NodeID"] in draining,
            "death_message": node.get("DeathReasonMessage") or "",
        }
        for node in state.node_table()
    ]  # fmt: skip
    groups = [
        {
            "id": group["placement_group_id"], "name": group["name"], "state": group["state"],
            "nodes": sorted(set(filter(None, group["bundles_to_node_id"].values()))),
            "gpus": sum(bundle.get("GPU", 0) for bundle in group["bundles"].values()),
        }
        for group in state.placement_group_table().values()
    ]  # fmt: skip
    print(json.dumps({"version": ray.__version__, "nodes": nodes, "groups": groups}))


def drain(address, node, message, seconds):
    """Ask Ray to drain *node* within *seconds*; exit 1 with Ray's reason if Ray refuses."""
    from ray.core.generated import autoscaler_pb2

    _, _, client = connect(address)
    deadline_milliseconds = int((time.time() + float(seconds)) * 1000)
    accepted, refusal = client.drain_node(
        node, autoscaler_pb2.DRAIN_NODE_REASON_PREEMPTION, message, deadline_milliseconds
    )
    if not accepted:
        raise SystemExit(f"Ray refuses the drain: {refusal}")


def labels(file=MIRROR_FILE, host=""):
    """Return `gangline.io/bucket=N` (0 is the best, 3 the worst); "" if the bucket is unknown.

    With "", `ray start --labels=` behaves as without Gangline.
    """
    host = host or socket.gethostname()
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with open(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        # An attacker may have planted a link, a FIFO, or a file that others may write.
        folder = os.stat(os.path.dirname(file) or ".")
        is_private = not (status.st_mode | folder.st_mode) & 0o022
        if (
            not stat.S_ISREG(status.st_mode)
            or not is_private
            or status.st_uid not in (0, os.geteuid(), folder.st_uid)
        ):
            return ""
        content = stream.read(MIRROR_BYTES_MAX + 1)
    lines = content.decode("ascii", "replace").split("\n")
    first = lines[0].split()
    head = dict(pair.split("=", 1) for pair in first if pair.count("=") == 1)
    try:
        whole = first[:2] == ["gangline-mirror", "1"] and int(head["file"]) == len(content)
        now, until = time.time(), int(head["valid_until"])
    except (KeyError, ValueError):
        return ""
    ends = [line.split()[1:2] == [head.get("check")] for line in lines if line.startswith("end ")]
    if not whole or not now <= until <= now + MIRROR_SECONDS_MAX or ends != [True]:
        return ""
    for line in lines[1:]:
        if len(line) == RECORD_BYTES and line.split()[:1] == [host] and line[65] in "0123":
            return "gangline.io/bucket=" + line[65]
    return ""


def main(arguments):
    """Run a command; return 2 for wrong usage."""
    match arguments:
        case ["state", address]:
            print_state(address)
        case ["drain", address, node, message, seconds]:
            drain(address, node, message, seconds)
        case ["labels", *place] if len(place) <= 2:
            print(labels(*place))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
