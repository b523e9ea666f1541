"""The scheduler extender: it may remove nodes, never adds a node to the request, and passes all nodes on any fault."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from gangline.cli import main as command
from gangline.executors.kubernetes import extender, extender_server
from gangline.executors.kubernetes.extender import (
    ANSWERS,
    NEIGHBOR,
    NO_TABLE,
    HealthTable,
    RequestBodyError,
    filter_answer,
    prioritize_answer,
    table_of,
)
from gangline.executors.kubernetes.extender_server import BODY_BYTES_MAX
from gangline.executors.mirror_format import Mirror, MirrorNode
from tests.executors.serving_extender import (
    ServedExtender,
    mirror_node,
    serving_extender,
    write_mirror,
)
from tests.processes import GUARD_SECONDS, Process, free_port, listening, until

START_SECONDS = 60.0
DOCS = Path(__file__).parents[2] / "docs"
FILTER, PRIORITIZE = "/extender/v1/filter", "/extender/v1/prioritize"
POD = {"metadata": {"name": "train-0", "namespace": "ml"}}
NODES = [mirror_node("n1"), mirror_node("n2", 1), mirror_node("n3", 2), mirror_node("n4", 3), mirror_node("n5", 3, ready=False)]  # fmt: skip

GO = b'{"Pod":%s,"Nodes":null,"NodeNames":[%s]}'


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    path = tmp_path / "mirror" / "nodes"
    path.parent.mkdir()
    write_mirror(path, NODES)
    return path


@pytest.fixture
def served(mirror: Path) -> Iterator[ServedExtender]:
    with serving_extender(mirror) as result:
        yield result


def names(*found: str) -> dict[str, Any]:
    return {"Pod": POD, "Nodes": None, "NodeNames": list(found)}


def test_a_broken_node_is_filtered_with_the_reason(served: ServedExtender) -> None:
    """`kubectl describe pod` shows it as the reason why the pod waits."""
    answer = served.post(FILTER, names("n1", "n5", "n9"))
    assert answer["NodeNames"] == ["n1", "n9"] and answer["Error"] == ""
    assert answer["FailedNodes"] == {
        "n5": "gangline: UNHEALTHY (XID); gangline explain n5 says why"
    }


def test_only_names_of_the_request_are_answered(served: ServedExtender) -> None:
    """kube-scheduler fails the whole pod if the answer has a node outside its request."""
    assert served.post(FILTER, names("n2"))["FailedNodes"] == {}
    assert served.post(FILTER, names())["NodeNames"] == []
    assert [score["Host"] for score in served.post(PRIORITIZE, names("n9", "n4"))] == ["n9", "n4"]


def test_scores_follow_the_buckets(served: ServedExtender) -> None:
    """A node without a mirror entry gets the median score of the nodes in service."""
    answer = served.post(PRIORITIZE, names("n1", "n2", "n3", "n4", "n9"))
    assert [score["Score"] for score in answer] == [10, 7, 3, 0, 7]


def test_a_neighbor_decides_only_between_nodes_of_a_bucket() -> None:
    """Pods went to the node on which one job slowed another, while an equal one was free."""
    slowed = {f"n{bucket}": mirror_node(f"n{bucket}", bucket)._replace(reason=NEIGHBOR) for bucket in range(4)}  # fmt: skip
    calm = [mirror_node(f"m{bucket}", bucket) for bucket in range(4)]
    scores = table_of(mirrored([*slowed.values(), *calm])).scores
    assert [scores[f"n{bucket}"] for bucket in range(4)] == [9, 6, 2, 0]
    order = ["m0", "n0", "m1", "n1", "m2", "n2", "m3"]
    assert sorted(order, key=lambda name: -scores[name]) == order


def test_an_unknown_node_is_as_good_as_most(mirror: Path) -> None:
    """Nodes without an agent got no pod as long as a healthy known node was free."""
    fleet = [
        mirror_node(f"n{index}", 0 if index < 8 else 3, ready=index < 9) for index in range(10)
    ]
    table = table_of(mirrored(fleet))
    answers = json.loads(prioritize_answer(json.dumps(names("n0", "n8", "new")).encode(), table))
    assert [answer["Score"] for answer in answers] == [10, 0, 10]
    nothing = json.loads(prioritize_answer(json.dumps(names("n0", "new")).encode(), NO_TABLE))
    assert len({score["Score"] for score in nothing}) == 1


def documented_timeout() -> float:
    """Return httpTimeout of docs/kubernetes_scheduling.md, in seconds."""
    match = re.search(r"httpTimeout: ([0-9]+)ms", (DOCS / "kubernetes_scheduling.md").read_text())
    assert match
    return int(match[1]) / 1000.0


def test_a_frozen_extender_delays_a_call_by_the_documented_timeout(mirror: Path) -> None:
    """A frozen process accepts connections and sends no answer.

    The client behaves as kube-scheduler, which takes an ignorable extender's timeout for "all nodes
    pass". Once the process continues, calls are answered again.
    """
    port = free_port()
    settings = f"extender_mirror={mirror}", f"extender_listen=127.0.0.1:{port}"
    command_line = ["executor", "kubernetes", "extender"]
    for setting in settings:
        command_line += ["--set", setting]
    body = json.dumps(names("n1", "n5")).encode()

    def call(path: str, seconds: float) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
        with closing(connection):
            connection.request("POST", path, body)
            return json.loads(connection.getresponse().read())

    with Process(command_line, mirror.parent.parent / "log") as process:
        until(lambda: listening(port), process.said, START_SECONDS)
        until(lambda: call(FILTER, GUARD_SECONDS)["NodeNames"] == ["n1"], "it filters")
        os.kill(process.pid, signal.SIGSTOP)
        try:
            for path in (FILTER, PRIORITIZE) * 3:
                with pytest.raises(TimeoutError):
                    call(path, documented_timeout())
        finally:
            os.kill(process.pid, signal.SIGCONT)
        assert call(FILTER, GUARD_SECONDS)["NodeNames"] == ["n1"]


def test_whole_nodes_are_answered_as_whole_nodes(served: ServedExtender) -> None:
    """A scheduler without nodeCacheCapable sends nodes, and reads nodes."""
    items = [{"metadata": {"name": name, "labels": {"a": "b"}}} for name in ("n1", "n5")]
    answer = served.post(FILTER, {"Pod": POD, "Nodes": {"items": items}, "NodeNames": None})
    assert answer["Nodes"]["items"] == items[:1] and answer["NodeNames"] is None
    assert list(answer["FailedNodes"]) == ["n5"]
    scores = served.post(PRIORITIZE, {"Pod": POD, "Nodes": {"items": items}})
    assert scores == [{"Host": "n1", "Score": 10}, {"Host": "n5", "Score": 0}]


@pytest.mark.parametrize(
    "body",
    [
        GO % (b"{}", b'"n1","n5"'),
        GO % (b"{}", b""),
        GO % (b"{}", b'"n5"'),
        GO % (b"{}", b'"n5","n5","n9"'),
        GO % (rb'{"a":"\"NodeNames\":[\"x\"]}"}', b'"n1","n5"'),
        GO % (b'{"NodeNames":["x"]}', b'"n1","n5"'),
        b'{"NodeNames":["n1"],"Pod":{"NodeNames":["n5"]}}',
        b' {"NodeNames": ["n1", "n5"]} ',
        b'{"NodeNames":["n1","n\\u0035"]}',
    ],
)
def test_names_are_found_with_and_without_parsing_the_pod(body: bytes) -> None:
    """Names are cut out of a body in Go's format; the answer must equal that of a full parse."""
    table = table_of(mirrored(NODES))
    given = json.loads(body)["NodeNames"]
    answer = json.loads(filter_answer(body, table))
    assert answer["NodeNames"] == [name for name in given if name != "n5"]
    assert set(answer["FailedNodes"]) == {"n5"} & set(given)
    assert [load["Host"] for load in json.loads(prioritize_answer(body, table))] == given


def test_verbs_of_volcano(served: ServedExtender) -> None:
    """Volcano's plugin sends Go structures without JSON names, one node at a time."""
    body = {"task": {"Name": "train-0"}, "node": {"Name": "n5"}}
    answer = served.post("/volcano/v1/predicate", body)
    assert "UNHEALTHY" in answer["status"] and answer["errorMessage"] and answer["code"] == 2
    body["node"]["Name"] = "n1"
    assert served.post("/volcano/v1/predicate", body) == {
        "status": "",
        "errorMessage": "",
        "code": 0,
    }
    answer = served.post("/volcano/v1/prioritize", {"task": {}, "nodes": [{"Name": "n1"}, {"Name": "n9"}]})  # fmt: skip
    assert answer == {"nodeScore": {"n1": 10, "n9": 7}, "errorMessage": ""}


def test_a_stale_mirror_lets_all_pass(mirror: Path) -> None:
    """`gangline mirror` or the aggregator has ended: the last known state is not the current state."""
    now = time.time()
    with serving_extender(mirror, wall=lambda: now) as served:
        assert served.post(FILTER, names("n5"))["NodeNames"] == []
        now += 100
        assert served.post(FILTER, names("n5"))["NodeNames"] == ["n5"]
        assert {score["Score"] for score in served.post(PRIORITIZE, names("n1", "n4"))} == {5}
        assert served.send("GET", "/healthz")[1].startswith(b"all nodes pass")


@pytest.mark.parametrize("damage", ["missing", "torn", "writable by others"])
def test_a_mirror_that_cannot_be_believed_lets_all_pass(mirror: Path, damage: str) -> None:
    """Anyone with write access to the file could remove all nodes."""
    if damage == "missing":
        mirror.unlink()
    elif damage == "torn":
        mirror.write_bytes(mirror.read_bytes()[:-30])
    else:
        mirror.chmod(0o666)
    with serving_extender(mirror) as served:
        assert served.post(FILTER, names("n5"))["NodeNames"] == ["n5"]


def test_a_new_mirror_is_read(mirror: Path) -> None:
    """The file is swapped every 3 s."""
    tested = extender_server.Extender(mirror)
    tested.refresh()
    assert set(tested.table().failed) == {"n5"}
    write_mirror(mirror, [*NODES[1:], mirror_node("n1", 3, ready=False)])
    os.utime(mirror, ns=(1, 1))  # on file systems with a coarse clock, too
    tested.refresh()
    assert set(tested.table().failed) == {"n1", "n5"}


def test_a_fault_of_ours_lets_all_pass(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler whose extender answers 500 places no pod at all, unless it is `ignorable`."""
    tested = extender_server.Extender(mirror)

    def broken(body: bytes, table: HealthTable) -> bytes:
        if table is not NO_TABLE:
            raise ZeroDivisionError
        return filter_answer(body, table)

    monkeypatch.setattr(extender_server, "ANSWERS", {FILTER: broken})
    tested.refresh()
    status, answer = tested.answer(FILTER, json.dumps(names("n5")).encode())
    assert status == 200 and json.loads(answer)["NodeNames"] == ["n5"] and tested.faults == 1


def mirrored(nodes: list[MirrorNode], degraded: bool = False) -> Mirror:
    return Mirror(0, 100, degraded, False, 0, 0, {}, {}, nodes)


def test_when_most_nodes_are_out_none_is_filtered() -> None:
    """A rule that misfires on a whole fleet must not stop the cluster; ranking goes on."""
    bad = [mirror_node(f"b{index}", 3, ready=False) for index in range(6)]
    table = table_of(mirrored([*bad, *NODES[:4]]))
    assert not table.failed and "6 of 10 nodes are out" in table.reason and table.scores["b1"] == 0
    assert len(table_of(mirrored([*bad[:4], *NODES[:4]])).failed) == 4
    table = table_of(mirrored(NODES, degraded=True))
    assert not table.failed and "degraded" in table.reason


def test_names_of_nodes_that_are_not_names_of_hosts() -> None:
    """`node_map` translates names; a host without a node is ignored."""
    names_of = {"n5": "ip-10-0-0-5", "n1": ""}
    table = table_of(mirrored(NODES), lambda host: names_of.get(host, host))
    assert set(table.failed) == {"ip-10-0-0-5"} and "n1" not in table.scores


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b"[]", "expected a JSON object"),
        (b"{}", "expected ExtenderArgs with NodeNames"),
        (b'{"NodeNames": "n1"}', "expected a list of names"),
        (b'{"NodeNames": [1]}', "expected a list of names"),
        (b'{"NodeNames": ["%s"]}' % (b"n" * 254), "at most 253 characters"),
        (b'{"Nodes": {"items": [{}]}}', "expected a NodeList"),
        (b'{"Nodes": 7}', "expected a NodeList"),
        (b'{"NodeNames": [%s]}' % b",".join([b'"n"'] * 20_001), "at most 20000"),
    ],
)
def test_a_body_that_is_none_of_the_api(served: ServedExtender, body: bytes, message: str) -> None:
    """Each answer names the expected content; the connection stays open."""
    for path in (FILTER, PRIORITIZE):
        status, answer = served.send("POST", path, body)
        assert status == 400 and message in json.loads(answer)["error"]
    assert served.post(FILTER, names("n1"))["NodeNames"] == ["n1"]


@pytest.mark.parametrize("body", [b"{}", b'{"node": {"Name": 3}}', b'{"nodes": {"Name": "n"}}', b'{"nodes": [[]]}'])  # fmt: skip
def test_a_body_that_is_none_of_volcanos(body: bytes) -> None:
    for path in ("/volcano/v1/predicate", "/volcano/v1/prioritize"):
        with pytest.raises(RequestBodyError):
            ANSWERS[path](body, NO_TABLE)


def test_a_body_beyond_its_limit(served: ServedExtender) -> None:
    """A scheduler without nodeCacheCapable sends whole nodes: the message names the setting."""
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), GUARD_SECONDS) as plain:
        plain.sendall(head % (FILTER.encode(), BODY_BYTES_MAX + 1))
        with suppress(OSError):  # the server answers before it has read everything
            plain.sendall(b" " * (BODY_BYTES_MAX + 1))
        answer = b""
        with suppress(OSError):
            answer = b"".join(iter(lambda: plain.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 413 ") and b"nodeCacheCapable: true" in answer


def test_a_request_that_comes_in_pieces(served: ServedExtender) -> None:
    body = json.dumps(names("n1", "n5")).encode()
    whole = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (
        FILTER.encode(),
        len(body),
        body,
    )
    with socket.create_connection(("127.0.0.1", served.port), GUARD_SECONDS) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for index in range(0, len(whole), 50):
            plain.sendall(whole[index : index + 50])
        plain.sendall(whole + b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: plain.recv(65536), b""))
    assert answer.count(b"HTTP/1.1 200 OK") == 3 and answer.endswith(b"filtered: 1 of 5 nodes\n")


def test_figures(served: ServedExtender) -> None:
    """The operator of the scheduler sees when nodes are no longer filtered."""
    served.post(FILTER, names("n1"))
    served.send("POST", PRIORITIZE, b"{")
    _, text = served.send("GET", "/metrics")
    lines = text.decode().splitlines()
    requests = "gangline_extender_requests_total"
    assert f'{requests}{{outcome="answered",path="/extender/v1/filter"}} 1.0' in lines
    assert f'{requests}{{outcome="bad request",path="/extender/v1/prioritize"}} 1.0' in lines
    assert "gangline_extender_filtered_nodes 1.0" in lines


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """A port in use, an invalid address, a scheduler without an extender."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = ["executor", "kubernetes", "extender", "--set"]
        assert command([*line, f"extender_listen=127.0.0.1:{port}"]) == 1
        assert "Address already in use" in capsys.readouterr().err
    assert command([*line, "extender_listen=7611"]) == 2
    assert "expected ADDRESS:PORT" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command(["executor", "slurm", "extender"])
    assert "gangline executor kubernetes extender" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [filter_answer, prioritize_answer])
def test_names_are_escaped(answer: Callable[[bytes, HealthTable], bytes]) -> None:
    """A name comes from outside: the answer must be valid JSON with any name."""
    wild = 'n"}]\n\u2028'
    table = table_of(mirrored(NODES))
    text = answer(json.dumps(names("n1", wild)).encode(), table)
    assert wild in json.dumps(json.loads(text), ensure_ascii=False).replace('\\"', '"').replace("\\n", "\n")  # fmt: skip
    assert extender.UNKNOWN_SCORE == 5
