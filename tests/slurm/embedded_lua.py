"""Lua as Slurm embeds it: liblua5.1, by ctypes, with slurmctld's additions."""

from __future__ import annotations

import ctypes
from pathlib import Path

MISSING = "liblua 5.1 is not installed: apt-get install --no-install-recommends liblua5.1-0"
SCRIPT = Path(__file__).parents[2] / "executors" / "slurm" / "plugin" / "job_submit.lua"

#: The part of Slurm's own table that the script uses, and a job in Slurm's form: an unset field has
#: its NO_VAL.
SLURM = """
heard, logged = {}, {}
slurm = { SUCCESS = 0, NO_VAL = 4294967294 }
function slurm.log_user(form, ...) heard[#heard + 1] = string.format(form, ...) end
function slurm.log_info(form, ...) logged[#logged + 1] = string.format(form, ...) end
function a_job(given)
    local job = { min_nodes = 4294967294, max_nodes = 4294967294, num_tasks = 4294967294, req_switch = 4294967294,
        het_job_offset = 4294967294, ntasks_per_gpu = 65534, ntasks_per_tres = 65534, contiguous = 0 }
    for name, value in pairs(given) do job[name] = value end
    return job
end
partitions = { main = { min_nodes = 0 } }
function submitted(given)
    heard, logged = {}, {}
    local job = a_job(given)
    local code = slurm_job_submit(job, partitions, 0)
    return table.concat({ tostring(code), tostring(job.exc_nodes), tostring(job.prefer), table.concat(heard, "|"),
        table.concat(logged, "|") }, "\\n")
end
"""


def _library() -> ctypes.CDLL | None:
    for name in ("liblua5.1.so.0", "liblua5.1.so", "liblua-5.1.so"):
        try:
            return ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    return None


def has_lua() -> bool:
    """Say whether the library is here."""
    return _library() is not None


class Lua:
    """One state of the interpreter."""

    def __init__(self) -> None:
        library = _library()
        assert library is not None, MISSING
        self._library = library
        library.luaL_newstate.restype = ctypes.c_void_p
        library.lua_tolstring.restype = ctypes.c_char_p
        self._state = ctypes.c_void_p(library.luaL_newstate())
        library.luaL_openlibs(self._state)

    def run(self, code: str) -> str:
        """Run *code*, and return what it returns, as a text. Raises AssertionError with Lua's message."""
        library, state = self._library, self._state
        failed = library.luaL_loadstring(state, code.encode()) or library.lua_pcall(state, 0, 1, 0)
        value = library.lua_tolstring(state, -1, None)
        library.lua_settop(state, 0)
        assert not failed, value
        return value.decode() if value is not None else ""

    def close(self) -> None:
        self._library.lua_close(self._state)


def script(mirror: Path, *, exclude: bool = False, prefer: str = "", tell: bool = True) -> str:
    """Return job_submit.lua with a site's choices at its top."""
    text = SCRIPT.read_text()
    for before, after in {
        'local MIRROR = "/run/gangline-mirror/nodes"': f'local MIRROR = "{mirror}"',
        "local TELL = true": f"local TELL = {str(tell).lower()}",
        "local EXCLUDE = false": f"local EXCLUDE = {str(exclude).lower()}",
        'local PREFER = ""': f'local PREFER = "{prefer}"',
    }.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text
