"""The hook of PBS, against a stand-in for the `pbs` module that its Hooks Guide documents. It was never run on a real server."""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gangline.executors.mirror_format import MirrorNode, render

HOOK = Path(__file__).parents[2] / "executors" / "pbs" / "gangline_hook.py"


class Accepted(SystemExit):
    """`event.accept()` ends the hook."""


class FakePbs(ModuleType):
    """One event, of the vnodes of one host."""

    EXECHOST_PERIODIC, EXECJOB_BEGIN, LOG_WARNING = 0x100, 0x40, 4

    def __init__(self, host: str, kind: int = EXECHOST_PERIODIC) -> None:
        super().__init__("pbs")
        self.host, self.logged = host, list[str]()
        self.vnodes: Any = {
            name: SimpleNamespace(resources_available={"gangline_bucket": 2})
            for name in (host, f"{host}[0]")
        }
        self._kind = kind

    def event(self) -> SimpleNamespace:
        return SimpleNamespace(type=self._kind, vnode_list=self.vnodes, accept=self._accept)

    def _accept(self) -> None:
        raise Accepted

    def get_local_nodename(self) -> str:
        return self.host

    def logmsg(self, level: int, text: str) -> None:
        self.logged.append(text)


def mirror(until: float) -> bytes:
    nodes = [MirrorNode("n1", 3, False, 0.31, 1e-2, 0.9, "UNHEALTHY", "XID 79")]
    return render(nodes, computed_seconds=int(time.time()), valid_until_seconds=int(until), degraded=False)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "nodes"


def buckets(fake: FakePbs, file: Path, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Run the hook as PBS does; return what it set."""
    source = HOOK.read_text().replace("/run/gangline-mirror/nodes", str(file))
    script = file.parent / "hook.py"
    script.write_text(source)
    monkeypatch.setitem(sys.modules, "pbs", fake)
    with pytest.raises(Accepted):
        runpy.run_path(str(script))
    return {vnode.resources_available["gangline_bucket"] for vnode in fake.vnodes.values()}


@pytest.mark.parametrize("host", ["n1", "n1.cluster.example"])
def test_the_bucket_of_each_vnode(host: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_bytes(mirror(time.time() + 50))
    assert buckets(FakePbs(host), file, monkeypatch) == {3}
    assert buckets(FakePbs("n2"), file, monkeypatch) == {0}


def test_a_file_that_is_not_whole_and_current_says_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier value goes: a host is not shunned because Gangline is away."""
    whole = mirror(time.time() + 50)
    assert buckets(FakePbs("n1"), file, monkeypatch) == {0}
    for wrong in (b"", b"x\n" * 1000, whole[:-1], whole + b" ", mirror(time.time() - 5), mirror(time.time() + 600)):  # fmt: skip
        file.write_bytes(wrong)
        assert buckets(FakePbs("n1"), file, monkeypatch) == {0}
    file.write_bytes(whole)
    file.chmod(0o666)
    assert buckets(FakePbs("n1"), file, monkeypatch) == {0}
    file.chmod(0o644)
    file.parent.chmod(0o777)  # others may put another file there
    assert buckets(FakePbs("n1"), file, monkeypatch) == {0}
    file.unlink()
    os.mkfifo(file)
    assert buckets(FakePbs("n1"), file, monkeypatch) == {0}


def test_another_event_and_an_error_change_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_bytes(mirror(time.time() + 50))
    assert buckets(FakePbs("n1", FakePbs.EXECJOB_BEGIN), file, monkeypatch) == {2}
    broken = FakePbs("n1")
    broken.get_local_nodename = None  # type: ignore[assignment]
    assert buckets(broken, file, monkeypatch) == {2}
    assert broken.logged == ["gangline_hook: TypeError: 'NoneType' object is not callable"]
