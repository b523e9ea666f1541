"""The NVML binding against NVIDIA's header and against nvidia-ml-py."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.ext import nvml
from gangline.ext.nvml import Nvml
from tests.ext.sweeping import LIBRARY_READINGS, Sweeping, addresses
from tests.fake_nvml.build import compiler, header_folder
from tests.fake_nvml.fixtures import Play
from tests.fake_nvml.scenario import Gpu, Scenario, Steps, gpus

ABI = Path(nvml.__file__).with_name("nvml_abi.pxd")
REFERENCE = Path(__file__).parents[1] / "fake_nvml" / "reference.py"

#: Value -> a driver's maximum, in NVML's unit; others: LIMIT.
LIMITS: dict[str, int] = {
    "event_reasons": 2**63 - 100, "energy": 2**52, "margin": 120, "performance_state": 15, "processes": 40,
    "pcie_generation": 7, "pcie_generation_max": 7, "pcie_width": 32, "pcie_width_max": 32,
    "pcie_replays": 2**32 - 2, "compute_mode": 3, "sram_unique": 40, "sram_unique_parity": 40,
    "sram_unique_each": 2**32 - 2,
}  # fmt: skip
LIMIT = 2**40
#: The same by the beginning or the end of the name.
LIMITS_OF_KINDS = {
    ("temperature", "slowdown", "shutdown", "gpu_max", "memory_max"): 120,
    ("utilization",): 100,
    ("clock",): 99_999,
    ("power", "module_power"): 10**7,
    ("remapped", "banks"): 2**24,
    (
        "remap_",
        "repair",
        "unrepairable",
        "ecc_mode",
        "mig_mode",
        "persistence",
        "sram_threshold",
    ): 1,
}
#: Fields with the value of a call.
SAME = {
    3: "ecc_corrected_volatile", 4: "ecc_uncorrected_volatile", 5: "ecc_corrected_aggregate",
    6: "ecc_uncorrected_aggregate", 83: "energy", 94: "pcie_replays", 185: "power", 187: "power_limit_min",
    188: "power_limit_max", 189: "power_limit_default", 192: "power_limit_requested",
}  # fmt: skip
FIELD_LIMITS = {
    29: 2**20,
    30: 2**20,
    31: 1,
    82: 120,
    186: 10**7,
    197: 2**32 - 2,
    198: 2**32 - 2,
    230: 7,
}


def compile_and_run(source: str, folder: Path) -> str:
    """Compile a C program against NVIDIA's header, and return its output."""
    (folder / "check.c").write_text("#define NVML_NO_UNVERSIONED_FUNC_DEFS\n" + source)
    program = str(folder / "check")
    options = ["-Werror", "-Wall", f"-I{header_folder()}"]
    subprocess.run([*compiler(), *options, str(folder / "check.c"), "-o", program], check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout


def test_layouts_and_version_words_are_nvidias(tmp_path: Path) -> None:
    """Two bindings can share one wrong struct: both then agree on the wrong bytes."""
    ours = nvml.abi()
    prints = "".join(f'printf("%lu\\n", (unsigned long)({key}));' for key in ours)
    source = (
        f"#include <nvml.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void){{{prints}}}"
    )
    theirs = compile_and_run(source, tmp_path).split()
    assert ours == dict(zip(ours, map(int, theirs), strict=True))


def test_constants_are_nvidias(tmp_path: Path) -> None:
    """A field id that moved between headers returns NVML_SUCCESS with another quantity."""
    ours = dict(re.findall(r"^    (NVML_\w+) = (\d+)$", ABI.read_text(), re.MULTILINE))
    assert len(ours) > 30
    prints = "".join(f'printf("%d\\n", (int)({name}));' for name in ours)
    source = f"#include <nvml.h>\n#include <stdio.h>\nint main(void){{{prints}}}"
    assert list(ours.values()) == compile_and_run(source, tmp_path).split()


def test_prototypes_are_nvidias(tmp_path: Path) -> None:
    """A pointer to 32 bits where the driver writes 64 sometimes destroys the neighboring variable."""
    declared = re.findall(
        r"^    (.+?)\(\*(nvml\w+)\)\((.*)\) noexcept nogil$", ABI.read_text(), re.MULTILINE
    )
    assert tuple(name for _, name, _ in declared) == nvml.SYMBOLS
    lines = [
        f"static {result}(*check_{name})({args or 'void'});" for result, name, args in declared
    ]
    uses = "".join(f"check_{name} = {name};(void)check_{name};" for _, name, _ in declared)
    source = "#include <nvml.h>\n" + "\n".join(lines) + f"\nvoid check(void){{{uses}}}\n"
    (tmp_path / "prototypes.c").write_text("#define NVML_NO_UNVERSIONED_FUNC_DEFS\n" + source)
    options = ["-Werror", "-Wall", "-Wno-deprecated-declarations", f"-I{header_folder()}"]
    command = [*compiler(), *options, "-c", "prototypes.c"]
    subprocess.run(command, check=True, cwd=tmp_path)


def limits(name: str) -> tuple[int, int]:
    if name in ("memory_total", "bar1_total"):  # memory in use must fit
        return 2**47, 2**48
    if name in ("memory_used", "memory_reserved", "bar1_used"):
        return 0, 2**45
    for kinds, limit in LIMITS_OF_KINDS.items():
        if name not in LIMITS and any(kind in name for kind in kinds):
            return 0, limit
    return -20 if name == "margin" else 0, LIMITS.get(name, LIMIT)


def random_gpu(gpu: Gpu, rng: random.Random, steps: int) -> Gpu:
    """Give every value of *gpu* a random course, partly not supported; fields agree with calls."""

    def course(name: str) -> Steps:
        low, high = limits(name)
        return [rng.randint(low, high) if rng.random() < 0.9 else "-" for _ in range(steps)]

    gpu.values = {name: course(name) for name in gpu.values}
    for number, (kind, _) in gpu.fields.items():
        if number in SAME:
            gpu.fields[number] = (kind, gpu.values[SAME[number]])
        else:
            # power_watts falls back to another call without the field: never missing here
            low = -20 if kind == "int" else 0
            high = 2**62 if kind == "ull" else FIELD_LIMITS.get(number, 120)
            gpu.fields[number] = (kind, [rng.randint(low, high) for _ in range(steps)])
    return gpu


#: GPU -> reading -> value, of one step.
Said = dict[str, dict[str, float | int | None]]


def by_nvidia(library: str, scenario: Scenario, steps: int) -> dict[str, Any]:
    """Return nvidia-ml-py's readings of the same library and scenario, from a process of its own."""
    environment = os.environ | {"LD_LIBRARY_PATH": str(Path(library).parent)}
    command = [sys.executable, str(REFERENCE), str(scenario.path), str(steps)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    result = json.loads(done.stdout)
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize("seed", range(3))
def test_every_value_is_what_nvidias_own_binding_reads(seed: int, library: str, play: Play) -> None:
    """A wrong unit, struct or field would be wrong on every host of the fleet."""
    steps, devices = 24, gpus(4)
    scenario = play(
        [random_gpu(gpu, random.Random(f"{seed} {gpu.uuid}"), steps) for gpu in devices]
    )
    theirs = by_nvidia(library, scenario, steps)["steps"]
    ours = []
    with Sweeping(library, addresses(devices), LIBRARY_READINGS) as sweeping:
        for step in range(steps):
            scenario.step(step)
            rows = sweeping.read()
            ours.append({gpu.uuid: row for gpu, row in zip(devices, rows, strict=True)})
    assert list(differences(ours, theirs)) == []


def differences(ours: list[Said], theirs: list[Said]) -> Iterator[tuple[int, str, str, Any, Any]]:
    for step, (said, reference) in enumerate(zip(ours, theirs, strict=True)):
        assert said.keys() == reference.keys()
        for uuid, row in said.items():
            assert row.keys() == reference[uuid].keys()
            for name, value in row.items():
                if value != reference[uuid][name]:
                    yield step, uuid, name, value, reference[uuid][name]


def test_devices_are_what_nvidias_own_binding_finds(library: str, play: Play) -> None:
    """Inventory and collectors must refer to the same GPU."""
    theirs = by_nvidia(library, play(gpus(8)), 0)
    ours = Nvml(library)
    result = ours.devices()
    assert [(f"0000{d.address}".upper(), d.uuid, d.name, d.serial) for d in result] == [
        tuple(device) for device in theirs["devices"]
    ]
    assert ours.driver_version() == theirs["driver"]
    assert ours.device(result[3].address) == result[3]
    ours.close()
