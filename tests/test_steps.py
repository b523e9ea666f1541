"""`gangline.steps` in a job of its own: its reports, its cost to a job in trouble (nothing), and its imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gangline.agent.hardware import step_slots
from gangline.agent.hardware.step_slots import SlotHead
from tests import fake_torch
from tests.torch_rig import TORCH_PYTHON, needs_torch

ROOT = Path(__file__).parent.parent
REAL_LIGHTNING = Path(os.environ.get("GANGLINE_LIGHTNING") or "/nowhere")
#: Steps 5 times, and prints the slots that are there then.
SCRIPT = """
import os, sys, torch
optimizer = torch.optim.SGD({parameters})
for _ in range(5):
    optimizer.step()
print(*[open(os.path.join(os.environ["GANGLINE_STEPS"], name), "rb").read().hex()
        for name in os.listdir(os.environ["GANGLINE_STEPS"])])
print(sys.argv[1:], __name__)
"""
STAND_IN, REAL = "", "[torch.nn.Parameter(torch.zeros(2))], lr=0.1"

FORKS = """
import os, gangline.steps as steps
steps.mark(); steps.mark()
child = os.fork()
for _ in range(5 if child == 0 else 1):
    steps.mark()
if child:
    os.waitpid(child, 0)
folder = os.environ["GANGLINE_STEPS"]
if child:
    print(*[open(os.path.join(folder, name), "rb").read().hex() for name in os.listdir(folder)])
else:
    os._exit(0)
"""
THREADS = """
import os, threading, gangline.steps as steps
def train():
    for _ in range(200):
        steps.mark()
threads = [threading.Thread(target=train) for _ in range(8)]
[one.start() for one in threads]; [one.join() for one in threads]
folder = os.environ["GANGLINE_STEPS"]
print(*[open(os.path.join(folder, name), "rb").read().hex() for name in os.listdir(folder)])
"""
SPAWNS = """
import multiprocessing, os
import gangline.steps as steps

def train(rank):
    os.environ["RANK"] = str(rank)
    steps.mark()
    folder = os.environ["GANGLINE_STEPS"]
    [name] = [name for name in os.listdir(folder) if name.startswith(f"{os.getpid()}-")]
    return open(os.path.join(folder, name), "rb").read().hex()

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(*pool.map(train, [5, 6], chunksize=1))
"""
#: 5 steps of two batches each, of a loop that steps two optimizers by hand in each second batch.
LIGHTNING = """
import lightning.pytorch as pl, os, pickle, torch, gangline.steps
{model}
trainer = pl.Trainer(max_epochs=1, callbacks=[gangline.steps.LightningCallback()], **{options})
trainer.fit(Model(){data})
assert type(pickle.loads(pickle.dumps(gangline.steps.LightningCallback()))) is gangline.steps.LightningCallback
print(*[open(os.path.join(os.environ["GANGLINE_STEPS"], name), "rb").read().hex()
        for name in os.listdir(os.environ["GANGLINE_STEPS"])])
"""
FAKE_LIGHTNING = """
class Callback: pass
class Trainer:
    def __init__(self, max_epochs, callbacks):
        self.callbacks, self.global_step = callbacks, 0
    def fit(self, model):
        for one in self.callbacks: one.on_train_start(self, model)
        for at in range(10):
            if at % 2:
                for optimizer in model.optimizers: optimizer.step(); self.global_step += 1
            for one in self.callbacks: one.on_train_batch_end(self, model, None, None, at)
"""
FAKE_MODEL = """
class Model: optimizers = [torch.optim.SGD(), torch.optim.SGD()]
"""
REAL_MODEL = """
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)])
    def configure_optimizers(self):
        return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in self.layers]
    def training_step(self, batch, at):
        if at % 2:
            for optimizer, layer in zip(self.optimizers(), self.layers):
                optimizer.zero_grad()
                self.manual_backward(layer(batch).sum())
                optimizer.step()
"""
REAL_OPTIONS = """dict(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)"""


class Bench:
    """A folder for slots, a fake torch, and an interpreter that finds both."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.slots = folder, folder / "slots"
        self.slots.mkdir()
        names = folder / "names"
        names.mkdir()
        (names / "gangline").symlink_to(ROOT)
        self.environment = {
            "PATH": os.environ["PATH"], "GANGLINE_STEPS": str(self.slots), "RANK": "3", "WORLD_SIZE": "8",
            "SLURM_JOB_ID": "4711", "PYTHONPATH": f"{names}:{fake_torch.write(folder / 'fake')}",
        }  # fmt: skip

    def run(self, *arguments: str, python: Path | str = sys.executable) -> str:
        done = subprocess.run(
            [str(python), *arguments], check=False, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    def script(self, text: str) -> str:
        (self.folder / "train.py").write_text(text)
        return "train.py"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def check_slot(line: str, steps: int = 5) -> None:
    data = bytes.fromhex(line)
    assert len(data) == step_slots.SLOT_BYTES
    assert step_slots.parse_head(data) == SlotHead("4711", 3, 8)
    parsed = step_slots.parse_steps(data)
    assert parsed is not None
    assert parsed.steps == steps


@pytest.mark.parametrize("how", [["train.py", "--lr", "1"], ["-m", "train", "--lr", "1"]])
def test_a_script_is_run_with_its_steps_reported(bench: Bench, how: list[str]) -> None:
    """The agent reads the layout that the job writes; the script sees its own arguments and name."""
    bench.script(SCRIPT.format(parameters=STAND_IN))
    slot, rest = bench.run("-m", "gangline.steps", *how).splitlines()
    check_slot(slot)
    assert rest == "['--lr', '1'] __main__"
    assert list(bench.slots.iterdir()) == []  # gone with its process


def test_a_safe_path_stays_as_it_is(bench: Bench) -> None:
    """With PYTHONSAFEPATH the script imports nothing from its own folder, and loses no other folder of the path."""
    bench.environment["PYTHONSAFEPATH"] = "1"
    first = bench.environment["PYTHONPATH"].partition(":")[0]
    bench.script("import sys; print(sys.path[0])")
    assert bench.run("-m", "gangline.steps", "train.py") == f"{first}\n"


@pytest.mark.parametrize("place", ["first", "last"])
def test_one_line_in_the_script_is_enough(bench: Bench, place: str) -> None:
    """Before torch is imported, and after."""
    text = SCRIPT.format(parameters=STAND_IN)
    line = "import gangline.steps\n"
    text = line + text if place == "first" else text.replace("optimizer =", f"{line}optimizer =")
    check_slot(bench.run(bench.script(text)).splitlines()[0])


@needs_torch
def test_real_torch(bench: Bench) -> None:
    """The same with torch itself, both ways."""
    text = SCRIPT.format(parameters=REAL)
    bench.script(text)
    check_slot(bench.run("-m", "gangline.steps", "train.py", python=TORCH_PYTHON).splitlines()[0])
    check_slot(
        bench.run(bench.script("import gangline.steps\n" + text), python=TORCH_PYTHON).splitlines()[
            0
        ]
    )


def test_it_imports_the_standard_library_only(bench: Bench) -> None:
    """A job must not load agent code: neither numpy, nor protobuf, nor torch if the job has none."""
    out = bench.run(
        "-c",
        "import sys; before = set(sys.modules); import gangline.steps; print(*sorted(set(sys.modules) - before))",
    )
    others = [name for name in out.split() if name.partition(".")[0] not in sys.stdlib_module_names]
    assert others == ["gangline", "gangline.steps"]


@pytest.mark.parametrize("folder", ["/proc/nowhere", "/nowhere", "file"])
def test_where_no_slot_can_be_had_nothing_is_reported(bench: Bench, folder: str) -> None:
    """A folder that cannot be created, or a file in its place: the job continues without reports."""
    (bench.folder / "file").write_text("")
    bench.environment["GANGLINE_STEPS"] = folder
    text = "import gangline.steps, torch\nfor _ in range(3):\n    torch.optim.SGD().step()\ngangline.steps.mark()\nprint('trained')"
    assert bench.run(bench.script(text)) == "trained\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it mounts a file system")
@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_a_full_or_read_only_shared_memory(bench: Bench, trouble: str) -> None:
    """A page that a full tmpfs does not have ends a process by SIGBUS at its first write."""
    fill = (
        "head -c 1M /dev/zero > SLOTS/filler 2>/dev/null"
        if trouble == "full"
        else "mount -o remount,ro SLOTS"
    )
    command = f"mount -t tmpfs -o size=64k none SLOTS && {{ {fill}; exec '{sys.executable}' train.py; }}".replace(
        "SLOTS", str(bench.slots)
    )
    bench.script(
        "import gangline.steps\nfor _ in range(3):\n    gangline.steps.mark()\nprint('trained')"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command],
        check=False,
        env=bench.environment,
        cwd=bench.folder,
        capture_output=True,
        text=True,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"this machine does not mount: {done.stderr.strip()}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


def test_a_forked_child_has_a_slot_of_its_own(bench: Bench) -> None:
    """A child that wrote into its parent's slot made a single rank of two. It ends by _exit, so the
    agent must remove its slot.
    """
    slots = bench.run(bench.script(FORKS)).split()
    modules = sorted(
        s.steps for s in (step_slots.parse_steps(bytes.fromhex(slot)) for slot in slots) if s
    )
    assert modules == [3, 5]


def test_threads_share_one_slot(bench: Bench) -> None:
    """Each write is atomic: a single call that holds the interpreter's lock."""
    slots = bench.run(bench.script(THREADS)).split()
    for slot in slots:
        parsed = step_slots.parse_steps(bytes.fromhex(slot))
        assert parsed is not None
    assert len(slots) >= 1


@pytest.mark.slow
def test_spawned_workers_report_by_themselves(bench: Bench) -> None:
    """A rank is read when its process steps first, not when it imports."""
    slots = bench.run(bench.script(SPAWNS)).split()
    heads = [step_slots.parse_head(bytes.fromhex(slot)) for slot in slots]
    assert {head.rank for head in heads if head} <= {5, 6}
    assert len(slots) == 2


def test_of_two_optimizers_one_is_counted(bench: Bench) -> None:
    """A GAN steps two optimizers in each of its steps: its period was read as half of the true one."""
    text = (
        SCRIPT.format(parameters=STAND_IN)
        .replace("    optimizer.step()", "    optimizer.step(); other.step()")
        .replace("for _", "other = torch.optim.SGD()\nfor _", 1)
    )
    check_slot(bench.run("-m", "gangline.steps", bench.script(text)).splitlines()[0])


def test_steps_that_are_marked_count_instead_of_the_optimizers(bench: Bench) -> None:
    """A loop that accumulates gradients marks its steps itself."""
    text = "import gangline.steps\ngangline.steps.mark()\n" + SCRIPT.format(parameters=STAND_IN)
    check_slot(bench.run(bench.script(text)).splitlines()[0], steps=1)


def test_an_optimizer_is_not_held_in_memory(bench: Bench) -> None:
    """An optimizer kept alive by the hook would keep the parameters of a whole model on the GPU."""
    text = "import gc, weakref, gangline.steps, torch\no = torch.optim.SGD(); o.step(); w = weakref.ref(o); del o; gc.collect(); print(w())"
    assert bench.run(bench.script(text)) == "None\n"


@pytest.mark.parametrize("arguments", [[], ["-m"], ["--help"]])
def test_wrong_use_says_what_is_right(bench: Bench, arguments: list[str]) -> None:
    """A typo must not look like a job that trained."""
    done = subprocess.run(
        [sys.executable, "-m", "gangline.steps", *arguments],
        check=False,
        env=bench.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("usage: python -m gangline.steps SCRIPT")


@pytest.mark.parametrize("how", [[], ["-m", "gangline.steps"]])
def test_lightnings_batches_are_steps(bench: Bench, how: list[str]) -> None:
    """A loop that steps two optimizers by hand counted each step twice."""
    folder = bench.folder / "fake" / "lightning"
    (folder / "pytorch").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "pytorch" / "__init__.py").write_text(FAKE_LIGHTNING)
    script = bench.script(LIGHTNING.format(model=FAKE_MODEL, options="{}", data=""))
    check_slot(bench.run(*how, script).splitlines()[0])


@needs_torch
@pytest.mark.skipif(
    not (REAL_LIGHTNING / "lightning").is_dir(),
    reason="no Lightning: tests/rigs/lightning.sh FOLDER; export GANGLINE_LIGHTNING=FOLDER",
)
@pytest.mark.slow
def test_real_lightning(bench: Bench) -> None:
    names = bench.folder / "names"
    data = ", torch.utils.data.DataLoader(torch.ones(10, 2), batch_size=1)"
    script = bench.script(LIGHTNING.format(model=REAL_MODEL, options=REAL_OPTIONS, data=data))
    done = subprocess.run(
        [str(TORCH_PYTHON), "-W", "ignore", script], check=False, capture_output=True, text=True, timeout=300, cwd=bench.folder,
        env=bench.environment | {"PYTHONPATH": f"{names}:{REAL_LIGHTNING}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    check_slot(done.stdout.splitlines()[-1])
