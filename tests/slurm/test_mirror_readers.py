"""The mirror file read from Python, C and Lua: all read the same, and none believes a file that is damaged or planted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.executors import mirror_file
from gangline.executors.mirror_file import MirrorFileError
from gangline.executors.mirror_format import (
    FILE_BYTES_MAX,
    FIXED_BYTES,
    LINE_BYTES_MAX,
    TAIL_BYTES,
    VALID_SECONDS_MAX,
    MirrorError,
    stale_reason,
)
from tests.processes import GUARD_SECONDS
from tests.slurm.embedded_lua import MISSING, SCRIPT, SLURM, Lua, has_lua, script
from tests.slurm.mirrors import DAMAGES, NEEDS_ROOT, PLANTED, mirror

C_SOURCE = SCRIPT.with_name("mirror_reader.c")
compiler = pytest.mark.skipif(
    shutil.which("cc") is None, reason="no C compiler: apt-get install gcc libc6-dev"
)
lua = pytest.mark.skipif(not has_lua(), reason=MISSING)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
PLANTED_CASES = [
    pytest.param(case, marks=as_root) if case == NEEDS_ROOT else case for case in PLANTED
]

#: Damages within a file that begins and ends as before.
SAME_FILE = (
    "a digit of the validity",
    "a digit of a limit",
    "a character of a list",
    "blocks of zeros",
)
#: As `posix.sys.stat` of the package lua-posix answers, of one file and one folder.
LUA_POSIX = """
package.preload["posix.sys.stat"] = function()
    local function answer(path)
        return answers[path] and { st_mode = answers[path][1], st_uid = answers[path][2] }
    end
    return { lstat = answer, stat = answer,
        S_ISREG = function(mode) return math.floor(mode / 4096) == 8 and 1 or 0 end }
end
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Yield the path of a good mirror, in a folder that others cannot write."""
    folder = tmp_path / "mirror"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    mirror_file.write(folder / "nodes", mirror(time.time(), "gpu8"))
    return folder / "nodes"


@pytest.fixture(scope="module")
def c_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("c") / "mirror_reader"
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-o", built, C_SOURCE], check=True)
    return built


def read_by_c(reader: Path, *arguments: str | Path) -> tuple[int, str]:
    done = subprocess.run([reader, *arguments], capture_output=True, text=True, check=False, timeout=GUARD_SECONDS)  # fmt: skip
    return done.returncode, done.stdout


@pytest.fixture
def state() -> Iterator[Lua]:
    lua_state = Lua()
    lua_state.run(SLURM)
    yield lua_state
    lua_state.close()


def excluded_by_lua(state: Lua, path: Path) -> str:
    """Return the nodes that the plugin excludes for a job of a single node, after the code it returns."""
    state.run(script(path, exclude=True))
    code, excluded, _, _, logged = state.run("return submitted({})").split("\n")
    assert (code, logged) == ("0", "")
    return excluded


def test_python_reads_what_was_written(path: Path) -> None:
    """All fields, and the records in order."""
    parsed = mirror_file.read(path)
    assert stale_reason(parsed, time.time()) == ""
    assert [node.name for node in parsed.nodes] == [f"gpu{index}" for index in range(1, 9)]
    assert parsed.lists["b0"] == "gpu[1-7]" and parsed.counts["b0"] == 7
    assert parsed.lists["out"] == parsed.lists["exclude"] == "gpu8"
    assert parsed.exclude_safe_nodes == 7 and parsed.by_slurm and not parsed.degraded


@compiler
def test_c_reads_what_was_written(path: Path, c_reader: Path) -> None:
    """A node's record is found by bisection."""
    assert read_by_c(c_reader, path) == (0, "valid, 8 nodes\n")
    code, text = read_by_c(c_reader, path, "gpu8")
    assert code == 0
    assert re.search(r"^gpu8 +3 0 0\.000000 1\.00000e-04 1\.0000 UNHEALTHY", text, re.MULTILINE)
    assert read_by_c(c_reader, path, "gpu9")[0] == 4


@lua
def test_lua_reads_what_was_written(path: Path, state: Lua) -> None:
    """The plugin reads only the first line, and a new file replaces its knowledge."""
    assert excluded_by_lua(state, path) == "gpu8"
    mirror_file.write(path, mirror(time.time(), "gpu3", "gpu4"))
    assert state.run("return submitted({})").split("\n")[1] == "gpu[3-4]"


@pytest.mark.parametrize("case", DAMAGES)
def test_python_believes_no_damaged_file(path: Path, case: str) -> None:
    """Missing, stale, torn, absurd: as if the file did not exist."""
    DAMAGES[case](path, path.read_bytes())
    try:
        assert stale_reason(mirror_file.read(path), time.time())
    except (MirrorError, MirrorFileError) as error:
        assert str(error)


@compiler
@pytest.mark.parametrize("case", DAMAGES)
def test_c_believes_no_damaged_file(path: Path, c_reader: Path, case: str) -> None:
    DAMAGES[case](path, path.read_bytes())
    assert read_by_c(c_reader, path) == (1, "not used\n")


@lua
@pytest.mark.parametrize("case", DAMAGES)
@pytest.mark.parametrize("known", [False, True])
def test_lua_believes_no_damaged_file(path: Path, state: Lua, case: str, known: bool) -> None:
    """Also where it has read the good file before: then it knows the line, and only that counts, not what became of it."""
    content = path.read_bytes()
    if known:
        assert excluded_by_lua(state, path) == "gpu8"
    DAMAGES[case](path, content)
    excluded = (
        state.run("return submitted({})").split("\n")[1] if known else excluded_by_lua(state, path)
    )
    assert excluded == ("gpu8" if known and case in SAME_FILE else "nil")


@pytest.mark.parametrize("case", PLANTED_CASES)
def test_python_believes_no_planted_file(path: Path, case: str) -> None:
    """A good file that others could have written."""
    PLANTED[case](path, path.read_bytes())
    with pytest.raises(MirrorFileError):
        mirror_file.read(path)


@compiler
@pytest.mark.parametrize("case", PLANTED_CASES)
def test_c_believes_no_planted_file(path: Path, c_reader: Path, case: str) -> None:
    PLANTED[case](path, path.read_bytes())
    assert read_by_c(c_reader, path) == (1, "not used\n")


@lua
@pytest.mark.parametrize("case", PLANTED_CASES)
def test_lua_believes_no_planted_file_where_it_can_see_it(
    path: Path, state: Lua, case: str
) -> None:
    """With the package lua-posix the plugin knows the owner; without, the folder's mode is what keeps others out."""
    content = path.read_bytes()
    state.run(LUA_POSIX)
    for planted in (False, True):
        if planted:
            PLANTED[case](path, content)
        answers = []
        for owned in (path, path.parent):
            status = os.lstat(owned)
            # As if root ran slurmctld: only its own files and the folder owner's count.
            answers.append(f'["{owned}"] = {{ {status.st_mode}, {status.st_uid} }}')
        state.run(f"answers = {{ {', '.join(answers)} }}")
        assert excluded_by_lua(state, path) == ("nil" if planted else "gpu8")


@lua
def test_the_limits_are_those_of_the_writer(state: Lua) -> None:
    """The numbers in the plugin and in the C program are the writer's."""
    limits = f"{LINE_BYTES_MAX}, {FILE_BYTES_MAX}, {FIXED_BYTES}"
    assert f"FIXED_BYTES = {limits}\n" in SCRIPT.read_text()
    assert f"VALID_SECONDS_MAX = {TAIL_BYTES}, {VALID_SECONDS_MAX}\n" in SCRIPT.read_text()
    source = C_SOURCE.read_text()
    assert f"FIXED = {FIXED_BYTES}, RECORD = 128, NAME = 64, TAIL = {TAIL_BYTES}," in source
    assert f"LINE_MAX_BYTES = {LINE_BYTES_MAX}, FILE_MAX_BYTES = {FILE_BYTES_MAX} " in source
    assert f"VALID_SECONDS_MAX = {VALID_SECONDS_MAX}," in source
    assert mirror(0).index(b"b0=") == FIXED_BYTES
