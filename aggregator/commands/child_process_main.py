"""`python -m gangline.aggregator.commands.child_process_main PARENT COMMAND ...`: a command that ends with its parent.

Whatever kills `gangline run` (kill -9, out of memory), nothing of it may go on holding the port, the store
and the spools. The kernel sends the signal; a parent that was quicker to die is noticed by its number.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from ...cli import main

#: prctl(2): the signal that this process gets when the thread that made it ends.
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Arrange for SIGTERM at the death of *parent*, now if it is dead already."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit(f"leashed: process {parent} is gone")


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
