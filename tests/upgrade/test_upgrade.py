"""Upgrade and downgrade: another version takes up the same spool, under load, and nothing is lost or doubled."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from gangline.agent.kernel_log.checkpoint_file import FILE_NAME, parse_position
from gangline.agent.spool import spool as run
from gangline.agent.spool.event_queue import EventQueue
from gangline.agent.spool.spool import JUMP_SEQUENCES, Spool
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.client.connection import CommandError
from gangline.contract.client.score_client import ScoreClient
from tests.fake_nvml.build import compiler
from tests.processes import Process, free_port, listening, until
from tests.upgrade.keep import BOOT_ID, EVENTS, FRAMES, OWNER, RUN_ID, blocks, event
from tests.upgrade.kept_stores import GPU_ROWS as KEPT_GPU_ROWS
from tests.upgrade.kept_stores import STORES, unpack

ROOT = Path(__file__).parent.parent.parent
KEPT = Path(__file__).parent / "kept"
VERSIONS = sorted(folder.name for folder in KEPT.iterdir())

#: The modules that make a frame: with another version's there would be no frames.
COMPILED = ("columns", "counterfiles")


@pytest.fixture(params=VERSIONS)
def left_behind(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of the files that an agent of that version left on disk."""
    return Path(shutil.copytree(KEPT / request.param, tmp_path / "left"))


def cells(block: Block) -> dict[tuple[str, int], float | None]:
    return {
        (device, signal_id): value
        for row, device in enumerate(block.devices)
        for signal_id, value in block.values(row)
    }


@pytest.mark.parametrize("boot_id", [BOOT_ID, b"the boot after it"[:16]])
def test_what_an_earlier_version_left_is_read(left_behind: Path, boot_id: bytes) -> None:
    """A new version renumbered a field, and took each spool of the fleet for a damaged one."""
    spool = Spool.open(left_behind / "spool", bytes_max=1 << 20, boot_id=boot_id, owner=OWNER)
    try:
        assert (spool.notice, spool.run_id, spool.dropped_frames) == ("", RUN_ID, 0)
        pending = spool.pending(0, 100)
        assert [sequence for sequence, _ in pending] == list(range(1, FRAMES + 1))
        assert (spool.next_sequence() == FRAMES + 1) is (boot_id == BOOT_ID)
        for sequence, data in pending:
            frame = frames.decode(data)
            assert (frame.stamp.sequence, frame.stamp.boot_id) == (sequence, BOOT_ID)
            assert_same(frame.blocks, blocks(sequence))
    finally:
        spool.close()
    queue = EventQueue.open(left_behind / "events")
    kept = queue.pending(100)
    queue.close()
    assert kept == [event(number) for number in range(1, EVENTS + 1)]
    position = parse_position((left_behind / "state" / FILE_NAME).read_bytes())
    assert (position.sequence, position.epoch, position.incidents) == (1234, 0, ())


def assert_same(read: tuple[Block, ...], made: list[Block]) -> None:
    """Check that all cells of *read* equal those of *made*, except tables that are new in this version."""
    now = {block.table: cells(block) for block in made}
    for block in read:
        then = cells(block)
        assert len(then) > 0
        common = then.keys() & now[block.table].keys()
        assert len(common) > len(then) // 2, "ids were given anew"
        assert {key: then[key] for key in common} == {key: now[block.table][key] for key in common}
    assert {block.table for block in read} == now.keys()


class World:
    """A real aggregator, and real agents one after another on the same folders."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.port = free_port()
        address = f"127.0.0.1:{self.port}"
        # Its store comes from an aggregator of version 1, and keeps its data regardless of age.
        unpack(STORES / "version-1.tar.xz", place / "aggregator")
        data = ["--data", str(place / "aggregator"), "--listen", address]
        for setting in ("retention_hours=8784", "segments_hours=87840", "history_days=3660"):
            data += ["--set", setting]
        self.aggregator = Process(["aggregator", *data], place / "aggregator.log")
        folders = [f"{name}_folder={place / name}" for name in ("spool", "events", "state")]
        folders.append(f"spool_head_folder={place}")
        self._arguments = ["agent", "--aggregator", address, "--set", "host=upgraded"]
        self._arguments += [word for folder in folders for word in ("--set", folder)]
        self.agent: Process | None = None

    def start_aggregator(self) -> None:
        self.aggregator.start()
        until(lambda: listening(self.port), f"listening; {self.aggregator.said()}")

    def start_agent(self, path: Path, name: str, *more: str) -> Process:
        """Start the agent with *path* first on its module path, which sets its code or version."""
        agent = Process([*self._arguments, *more], self.place / f"{name}.log")
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = str(path)
        try:
            agent.start()
        finally:
            os.environ.pop("PYTHONPATH")
            os.environ |= {"PYTHONPATH": before} if before else {}
        self.agent = agent
        return agent

    def frames_bytes(self) -> int:
        """Return the size of the pending frames, on disk and in memory."""
        status = (self.place / "spool").stat()
        head = self.place / f"gangline-spool-{status.st_dev:x}-{status.st_ino:x}"
        files = [*(self.place / "spool").glob("*.seg"), *head.glob("*.seg")]
        return sum(file.stat().st_size for file in files)

    def is_heard(self) -> bool:
        """Whether a frame of the host has come within the last second or two."""
        try:
            with ScoreClient(f"127.0.0.1:{self.port}") as client:
                score = client.host("upgraded")
        except CommandError:
            return False
        return score.HasField("data_age") and score.data_age.ToNanoseconds() < 2_000_000_000

    def next_and_waiting(self) -> tuple[int, set[int]]:
        """Return the next agent's view: the next sequence, and the frames that it would send (again)."""
        boot_id = bytes.fromhex(
            Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")
        )
        noted = run.read_run(self.place / "spool")
        assert noted is not None
        spool = Spool.open(
            self.place / "spool",
            bytes_max=1 << 28,
            boot_id=boot_id,
            owner=noted.owner,
            memory_folder=self.place,
        )
        try:
            assert (spool.notice, spool.dropped_frames) == ("", 0)
            waiting: set[int] = set()
            while result := spool.pending(max(waiting, default=0), 1000):
                waiting |= {number for number, _ in result}
            return spool.next_sequence(), waiting
        finally:
            spool.close()

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with duckdb.connect(str(self.place / "aggregator/gangline.duckdb"), read_only=True) as base:
            return base.execute(query).fetchall()

    def close(self) -> None:
        if self.agent is not None:
            self.agent.kill()
        self.aggregator.kill()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    created = World(tmp_path)
    yield created
    created.close()


def version(place: Path, name: str) -> Path:
    """A folder that makes the code of this tree go by another version."""
    (place / name / f"gangline-{name}.dist-info").mkdir(parents=True)
    return place / name


def frames_wait(world: World, agent: Process) -> None:
    size = world.frames_bytes()
    until(
        lambda: world.frames_bytes() > size + 2000 or not agent.alive(), f"frames; see {agent.log}"
    )


def assert_nothing_lost_or_doubled(world: World) -> None:
    """Each frame that was made is at the aggregator, once, or waits for the next agent; and each event."""
    ((kept,),) = world.rows("SELECT count(*) FROM readings.gpu_1s WHERE host LIKE 'kept-%'")
    assert kept == KEPT_GPU_ROWS
    received = world.rows(
        "SELECT first_sequence, last_sequence FROM received WHERE host = 'upgraded' ORDER BY 1"
    )
    numbers = [n for first, last in received for n in range(int(str(first)), int(str(last)) + 1)]
    following, waiting = world.next_and_waiting()
    assert len(numbers) == len(set(numbers)) > 3
    sequences = sorted({*numbers, *waiting})
    assert sequences[0] == 1
    for before, after in itertools.pairwise([*sequences, following]):
        # Numbers jump where a version cannot be sure of the earlier ones; never back.
        assert after == before + 1 or (after > before and after % JUMP_SEQUENCES == 0)
    for table in ("host_1s", "agent_10s"):
        ((rows, times),) = world.rows(
            f"SELECT count(*), count(DISTINCT boottime_ns) FROM readings.{table} WHERE host = 'upgraded'"
        )
        assert rows == times
        assert int(str(rows)) > 0
    ((events, ids),) = world.rows(
        "SELECT count(*), count(DISTINCT event_id) FROM events WHERE host = 'upgraded'"
    )
    assert events == ids
    assert int(str(events)) > 0
    queue = EventQueue.open(world.place / "events")
    unsent, dropped = queue.pending(100), queue.dropped_events
    queue.close()
    assert (unsent, dropped) == ([], 0)


def last_version(world: World) -> str:
    ((name,),) = world.rows("SELECT agent_version FROM hosts WHERE host = 'upgraded'")
    return str(name)


def changed_under_load(world: World, versions: list[tuple[str, Path]]) -> None:
    """Run these agents one after another, the first two across an absence of the aggregator."""
    world.start_aggregator()
    for index, (name, path) in enumerate(versions):
        agent = world.start_agent(path, f"agent-{index}-{name}")
        if index == 1:  # the agent has taken over the previous agent's frames, and has made some
            frames_wait(world, agent)
            world.start_aggregator()
        heard(world, agent)
        if index == 0:
            world.aggregator.kill()
            frames_wait(world, agent)
        assert agent.alive(), agent.said()
        assert agent.stop() == 0, agent.said()
        assert "trace=" not in agent.said()
    assert world.aggregator.stop() == 0


def heard(world: World, agent: Process) -> None:
    """Wait until this agent is connected and its host's readings are current."""
    connected = "cause=aggregator.connected"
    until(
        lambda: (connected in agent.said() and world.is_heard()) or not agent.alive(),
        f"heard; see {agent.log}",
    )
    assert agent.alive(), agent.said()


def earlier_code(place: Path) -> Path:
    """Return a folder with the code of the commit before the newest that changed the agent, and
    fitting compiled modules.

    Without such a commit (a shallow clone, a tarball) the folder has none: the current code is the
    earlier code.
    """
    git = ["git", "-C", str(ROOT)]
    log = subprocess.run(
        [*git, "log", "-2", "--format=%H", "--", "agent"],
        check=False,
        capture_output=True,
        text=True,
    )
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "agent"], check=False)
    commits = log.stdout.split()
    if log.returncode or len(commits) < 2:
        return place
    commit = commits[0] if changed.returncode else f"{commits[0]}~1"
    archive = subprocess.run([*git, "archive", commit], check=False, capture_output=True)
    if archive.returncode:
        return place
    tree = place / "gangline"
    tree.mkdir()
    subprocess.run(["tar", "-x", "-C", str(tree)], check=True, input=archive.stdout)
    for part in (ROOT / "ext").glob("*.so"):
        name = part.name.partition(".")[0]
        if name in COMPILED and not same(ROOT / f"ext/{name}.pyx", tree / f"ext/{name}.pyx"):
            compiled(tree / "ext", name, part.name)
        else:  # useless on a host without GPUs, but needed at the start
            shutil.copy(part, tree / "ext")
    if not starts(place):
        shutil.rmtree(tree)
    return place


def starts(path: Path) -> bool:
    """Say whether the agent of this folder can be imported: its compiled parts may not fit."""
    command = [sys.executable, "-c", "import gangline.agent.main as m; print(m.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(path)}
    tried = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=path, env=environment
    )
    return tried.returncode == 0 and tried.stdout.startswith(str(path))


def same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.read_bytes() == other.read_bytes()


def compiled(folder: Path, name: str, result: str) -> None:
    """Compile one of the earlier parts; a few seconds, and only where it has changed since."""
    source = folder / f"{name}.c"
    cython = [sys.executable, "-m", "cython", "-3", "--module-name", f"gangline.ext.{name}"]
    subprocess.run(
        [*cython, "-I", str(folder), "-o", str(source), f"{name}.pyx"], check=True, cwd=folder
    )
    include = f"-I{sysconfig.get_path('include')}"
    build = [*compiler(), "-shared", "-fPIC", "-O0", "-w", include, f"-I{folder}", str(source)]
    subprocess.run([*build, "-o", str(folder / result)], check=True)


@pytest.mark.slow
def test_upgrade_and_downgrade_under_load(world: World, tmp_path: Path) -> None:
    """A rolling update of the fleet met a restart of its aggregator; then it was rolled back, with
    a store of version 1.

    The version under test had been tried only on its own files; the fleet's version had written
    others.
    """
    old, new = earlier_code(version(tmp_path, "0.0.9")), version(tmp_path, "9.9.9")
    changed_under_load(world, [("old", old), ("new", new), ("old", old)])
    assert last_version(world) == "0.0.9"
    assert_nothing_lost_or_doubled(world)
