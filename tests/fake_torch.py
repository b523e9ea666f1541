"""A fake of torch's optimizers: the module `torch.optim.optimizer` with only the global hook of torch 2.0 and later."""

from __future__ import annotations

from pathlib import Path

_OPTIMIZER = """
_hooks = {}

class _Handle:
    def __init__(self, hook):
        _hooks[id(self)] = hook

def register_optimizer_step_post_hook(hook):
    return _Handle(hook)

class Optimizer:
    def step(self):
        for hook in list(_hooks.values()):
            hook(self, (), {})
"""


def write(folder: Path) -> Path:
    """Write the package into *folder*, which belongs on PYTHONPATH then."""
    package = folder / "torch" / "optim"
    package.mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("from . import optim\n")
    (package / "__init__.py").write_text(
        "from .optimizer import Optimizer\nclass SGD(Optimizer):\n    pass\n"
    )
    (package / "optimizer.py").write_text(_OPTIMIZER)
    return folder
