"""Runs a module at the lowest CPU priority: its real counterpart runs on another machine.

python -m bench.load.lowest MODULE ARGUMENT...
python -m bench.load.lowest burn SECONDS         only uses CPU

Start it as the leader of a session. It prints the output of the module.
"""

from __future__ import annotations

import importlib
import runpy
import sys
import time

from gangline.aggregator.process_limits import lower_priority, lower_session_priority


def main() -> None:
    """Lower the priority and run the module."""
    del sys.argv[0]
    burns = sys.argv[0] == "burn"
    if not burns:  # imports first: at this priority they would take very long on a busy machine
        importlib.import_module(sys.argv[0])
        del sys.modules[sys.argv[0]]
    lower_session_priority()
    lower_priority()
    if not burns:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    print("begins", flush=True)
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        pass
    print("{}")


if __name__ == "__main__":
    main()
