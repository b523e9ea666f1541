"""Reports a training job's steps to the agent on its host: `import gangline.steps`, or `-m`.

`python -m gangline.steps train.py` runs a script with its steps reported. Every step of a torch
optimizer, or every `mark()`, writes count, time and scatter into a slot of 128 bytes in shared
memory, without a system call, thread or lock. This file imports the standard library only, runs on
Python 3.8 and later, may be copied by itself, and never raises into the job: without a slot,
nothing is reported.

The slot (little endian; the first 64 bytes are written once, the other 64 by each step):

    0 8s magic    8 u32 version    12 u32 pid    16 i32 rank (-1: unknown)    20 i32 world size (0)    24 40s job, UTF-8
    64 f64 steps    72 f64 time of the last, CLOCK_MONOTONIC, seconds    80 f64 sum of the squares of step times, seconds²
    88 f64 steps again, written first, while 64 is written last: a reader that finds two numbers must read again
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

__all__ = ["FOLDER", "HEAD", "MAGIC", "SLOT_BYTES", "STEP", "STEP_OFFSET", "VERSION", "mark"]

FOLDER = "/dev/shm/gangline"
#: Variable with another folder, such as a host folder mounted into a container.
FOLDER_VARIABLE = "GANGLINE_STEPS"
MAGIC, VERSION, SLOT_BYTES, STEP_OFFSET = b"GANGSTEP", 1, 128, 64
HEAD = struct.Struct("<8sIIii40s")
STEP = struct.Struct("<dddd")
JOB_BYTES_MAX = 40
#: Another optimizer takes over after this many steps without a step of the counted one.
_TAKEOVER_STEPS = 16

#: Variables in which launchers store rank, number of ranks, and job; the first that is set counts.
_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JOB_COMPLETION_INDEX")
_WORLD = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_JOB = ("GANGLINE_JOB", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")

_OPTIMIZER = "torch.optim.optimizer"


def _number(names: tuple, missing: int) -> int:  # type: ignore[type-arg]
    for name in names:
        text = os.environ.get(name, "")
        if text.isascii() and text.isdigit() and len(text) <= 9:
            return int(text)
    return missing


def _job() -> bytes:
    names = (os.environ.get(name, "") for name in _JOB)
    name = next((value for value in names if value and value != "none"), "")
    return name.encode(errors="replace")[:JOB_BYTES_MAX].decode(errors="ignore").encode()


class _Slot:
    """This process's slot. A step calls `write`."""

    def __init__(self) -> None:
        folder = os.environ.get(FOLDER_VARIABLE) or FOLDER
        self.pid = os.getpid()
        self.path = os.path.join(folder, f"{self.pid}-{time.monotonic_ns():x}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self.path, flags, 0o644)
        try:
            # The lock ends with the process, and identifies it to the agent across PID namespaces.
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            head = HEAD.pack(
                MAGIC,
                VERSION,
                self.pid & 0xFFFFFFFF,
                _number(_RANK, -1),
                _number(_WORLD, 0),
                _job(),
            )
            # Written, not only sized: on a full file system a missing page would cause SIGBUS.
            if os.write(self._file, head + STEP.pack(0, 0, 0, 0) + bytes(32)) != SLOT_BYTES:
                raise OSError("no room for a slot")
            self._memory = mmap.mmap(self._file, SLOT_BYTES)
            self.write = _writer(self._memory)
        except BaseException:
            os.unlink(self.path)
            os.close(self._file)
            raise

    def steps(self) -> float:
        return STEP.unpack_from(self._memory, STEP_OFFSET)[0]  # type: ignore[no-any-return]

    def remove(self) -> None:
        """Remove the slot at the process's end; forked children keep it."""
        if os.getpid() == self.pid:
            os.unlink(self.path)


def _writer(memory: mmap.mmap) -> Callable[[], None]:
    """Return the function that a step calls.

    Names are bound here, all values are floats: after a step of 1 ms nothing is in a cache.
    """
    cells, now_seconds = memoryview(memory).cast("d"), time.perf_counter
    count = squares = 0.0
    last = now_seconds()

    def write() -> None:
        nonlocal count, last, squares
        now = now_seconds()
        if count:  # the first step has no duration
            squares += (now - last) * (now - last)
        count += 1.0
        last = now
        cells[11] = count
        cells[9] = now
        cells[10] = squares
        cells[8] = count

    return write


def _nothing() -> None:
    """Report nothing, without a slot."""


def _first() -> None:
    """Open the slot at the first step: a data loader, which has no steps, gets no slot."""
    global _write, _slot
    try:
        _turns.pop()  # a single thread opens the slot
    except IndexError:
        return
    try:
        _slot = _Slot()
        _write = _slot.write
    except Exception:  # noqa: BLE001 - the job must continue after any error
        _slot, _write = None, _nothing
    _write()


_turns = [None]
_slot: _Slot | None = None
_write: Callable[[], None] = _first
#: id() of the counted optimizer: a GAN has two, but one period. 0: the next; -1: `mark` counts.
_counted = 0
#: Steps of other optimizers since the counted one's last, and the count of steps at that time.
_others, _others_since = 0, 0.0


def mark() -> None:
    """Report the end of a step; optimizers no longer count. For jobs without a torch optimizer."""
    global _counted
    _counted = -1
    _write()


def __getattr__(name: str) -> Any:
    """Create `LightningCallback` at its first use.

    `Trainer(callbacks=[gangline.steps.LightningCallback()])`.
    """
    if name != "LightningCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    # Lightning may be installed under both names, as two copies: the copy in use is already loaded.
    pytorch = sys.modules.get("lightning.pytorch") or sys.modules.get("pytorch_lightning")
    callback: Any = (pytorch or importlib.import_module("lightning.pytorch")).Callback

    class LightningCallback(callback):  # type: ignore[misc]
        """Reports a step per batch in which an optimizer stepped.

        For loops with several optimizers, or without torch's.
        """

        # Spawned workers import it by this name; the script's module is __main__.
        __module__ = "gangline.steps" if __name__ == "__main__" else __name__
        __qualname__ = "LightningCallback"
        _global_step = 0

        def on_train_start(self, trainer: Any, *_: Any) -> None:
            """Count batches instead of optimizer steps."""
            global _counted
            self._global_step, _counted = trainer.global_step, -1

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            """Report a step, unless gradients were only accumulated."""
            if trainer.global_step != self._global_step:
                self._global_step = trainer.global_step
                mark()

    globals()[name] = LightningCallback
    return LightningCallback


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Report a step of a torch optimizer (its global post hook)."""
    # By id(): a reference to the optimizer would keep its parameters in memory.
    if id(optimizer) == _counted or (_counted >= 0 and _is_next(id(optimizer))):
        _write()


def _is_next(optimizer: int) -> bool:
    """Return whether to count this optimizer from this step, instead of the current one."""
    global _counted, _others, _others_since
    steps = _slot.steps() if _slot is not None else 0.0
    _others = _others + 1 if steps == _others_since else 1
    _others_since = steps
    if _counted and _others <= _TAKEOVER_STEPS:
        return False
    _counted, _others = optimizer, 0
    return True


def _in_child() -> None:
    """Give a forked child its own slot at its first step."""
    global _write, _slot, _counted, _others
    _write, _slot, _counted, _others = _first, None, min(_counted, 0), 0
    _turns[:] = [None]


def _at_exit() -> None:
    global _write
    _write = _nothing
    with contextlib.suppress(Exception):
        if _slot is not None:
            _slot.remove()


def _register() -> None:
    """Register the hook, once, after the job imported torch, which this file never imports.

    torch before 2.0 has no such hook: call `mark()`.
    """
    global _handle
    if _handle is None:
        register = getattr(sys.modules.get(_OPTIMIZER), "register_optimizer_step_post_hook", None)
        _handle = register(_stepped) if register is not None else None


_handle: Any = None


class _ImportWatch:
    """An import finder that registers the hook once torch's optimizer module is loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _OPTIMIZER:
            return None
        try:
            sys.meta_path.remove(self)
            from importlib.util import find_spec

            spec: Any = find_spec(name)
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                _quietly(_register)

            spec.loader.exec_module = exec_module
            return spec
        except Exception:  # noqa: BLE001 - torch's import then continues without the hook
            return None


def _quietly(act: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):
        act()


def _start() -> None:
    import atexit

    os.register_at_fork(after_in_child=_in_child)
    atexit.register(_at_exit)
    if _OPTIMIZER in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _ImportWatch())


def main(arguments: list) -> int:  # type: ignore[type-arg]
    """Run a script or, after -m, a module, like `python`, with its steps reported."""
    import runpy

    is_module = arguments[:1] == ["-m"]
    if len(arguments) < 1 + is_module or (not is_module and arguments[0].startswith("-")):
        print("usage: python -m gangline.steps SCRIPT|-m MODULE [ARGUMENT ...]", file=sys.stderr)
        return 2
    target = arguments[is_module]
    sys.argv = arguments[is_module:]
    if is_module:
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return 0
    # `python -P` adds no folder of its own to the path.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.abspath(target))
    runpy.run_path(target, run_name="__main__")
    return 0


if __name__ == "__main__":
    # The job's own `import gangline.steps` must not load a second module with another slot.
    sys.modules.setdefault("gangline.steps", sys.modules["__main__"])
    if "gangline" in sys.modules:  # absent if this file was copied by itself
        sys.modules["gangline"].steps = sys.modules["gangline.steps"]  # type: ignore[attr-defined]
    _quietly(_start)
    sys.exit(main(sys.argv[1:]))
_quietly(_start)
