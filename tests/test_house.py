"""Rules of the project beyond linters: allowed imports, shipped files, size of the agent."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from gangline import cli
from gangline.contract.wire import score_pb2

ROOT = Path(__file__).parent.parent
PARTS = ("agent", "aggregator", "contract", "executors", "fingerprints", "simulator", "ext")

#: part -> the parts it may import
ALLOWED = {
    "ext": {"ext"},
    "contract": {"contract", "ext"},
    "fingerprints": {"fingerprints", "contract", "ext"},
    "agent": {"agent", "contract", "ext"},
    "simulator": {"simulator", "agent", "contract", "ext"},
    "aggregator": {"aggregator", "contract", "fingerprints", "ext"},
    "executors": {"executors", "contract"},
    # In the processes of jobs: a copy of the file alone must work.
    "steps.py": set(),
    "torchrun.py": set(),
}

#: part -> its folders, and its own files, bottom to top: each imports only what is in the lines before its own.
LAYERS = {
    "agent": (
        "clock diagnostic frame_builder latest log spool xid_quarantine",
        "driver_unbind events gpu_list release_state transport xid_reports",
        "hardware",
        "collector config kernel_log",
        "registration",
        "collectors service_manager",
        "inventory self_metrics",
        "sampler",
        "gpu_release recorder",
        "daemon local prefork",
        "main",
        "commands",
        "__main__",
    ),
    "aggregator": (
        "arrays",
        "counter_deltas dataclass_json errors metrics model process_limits sql workers",
        "rule_declaration",
        "rule_catalogue",
        "hazard principal",
        "config",
        "auth store",
        "declared query",
        "fleet",
        "declared_reload ingest scoring",
        "advisories decisions permits recordings reservations runs",
        "calibration_log",
        "service",
        "monitoring",
        "judge_loop",
        "server",
        "commands",
    ),
    "executors": (
        "mirror_format model",
        "client ledger mirror_file scheduler_command",
        "evictions metrics mirror recovery reports scores weights",
        "core",
        "ledger_updates settings",
        "context launchers recovery_follower site",
        "cluster_reader reporter step_log",
        "step_runner undo",
        "weight_setter",
        "executor flux htcondor kubernetes pbs ray slurm",
        "command",
    ),
}

#: Retired terms: unsearchable, or with another meaning to outside readers.
RETIRED_WORDS = frozenset(
    [
        "ails",
        "anew",
        "asked",
        "asks",
        "book",
        "came",
        "crew",
        "desk",
        "door",
        "doubt",
        "fuse",
        "glance",
        "heard",
        "hears",
        "herd",
        "house",
        "kept",
        "keeper",
        "lately",
        "leap",
        "leaps",
        "leapt",
        "linger",
        "look",
        "looked",
        "looks",
        "mailbox",
        "meant",
        "mine",
        "nursery",
        "obey",
        "ours",
        "peerage",
        "said",
        "says",
        "shelf",
        "sick",
        "spare",
        "spared",
        "spares",
        "stands",
        "stood",
        "struck",
        "teller",
        "telling",
        "tells",
        "thaw",
        "told",
        "unwell",
        "vacate",
        "ward",
        "way",
        "ways",
        "whoever",
        "words",
    ]
)
#: Names with a retired term that others define: of a standard, a setting, a key on disk or on the
#: wire.
FOREIGN_NAMES = {
    "NVMe": ("spare", "spare_ratio", "spare_threshold_ratio", "reports_spare"),
    "the kernel's clock": ("leap_state",),
    "settings": ("probe_linger_seconds", "access_look_seconds"),
    "keys of policies and of JSON": ("words", "says", "state_message", "tells"),
    "kept with the advisories": ("fuse",),
    "of an evaluation on disk": ("told",),
    "English": ("came_up", "IGNORED_WORDS", "stands_out"),
}

#: Too heavy, or too entangled with the driver, for a daemon on every host.
HEAVY = {"duckdb", "grpc", "numpy", "pandas", "psutil", "pyarrow", "pynvml", "pyroute2", "sklearn"}

SOURCES = [p for part in PARTS for p in (ROOT / part).rglob("*.py") if "_pb2" not in p.name]
SOURCES += [ROOT / "steps.py", ROOT / "torchrun.py"]
LINES_OF_A_FUNCTION_MAX = 90

#: What only some of a part's processes need; each costs a start a tenth of a second and more.
DEAR = HEAVY | {"aiohttp", "cryptography", "kubernetes"}
ASKING = (
    "hosts",
    "explain",
    "advise",
    "permit",
    "sql",
    "job",
    "plan",
    "recover",
    "resize",
    "reservations",
    "record",
)
#: Module -> the dear packages that it may load.
MAY_LOAD: dict[str, set[str]] = {
    **{f"aggregator.commands.{name}": {"grpc"} for name in ASKING},
    "aggregator.commands.aggregator": set(),
    "aggregator.query.pool": set(),
    "aggregator.service.score_process_main": {"grpc", "numpy"},
    "aggregator.server": {"aiohttp", "duckdb", "grpc", "numpy", "pyarrow"},
    "executors.command": {"grpc"},
    "executors.mirror": {"grpc"},
    "executors.slurm.why": {"grpc"},
}


def imported_from_the_house(path: Path) -> Iterator[str]:
    """Yield the project's modules that *path* imports; within a package every such import is relative."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            base = (*base, *node.module.split(".")) if node.module else base
            yield from (".".join((*base, alias.name)) for alias in node.names)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.split(".")[0] not in ("gangline", *PARTS), f"{path}: absolute {name}"


@pytest.mark.slow
def test_arrows_run_one_way() -> None:
    """Agent and aggregator never import each other: either can be installed, upgraded and broken alone."""
    wrong = []
    for path in SOURCES:
        file = path.relative_to(ROOT)
        for name in imported_from_the_house(path):
            is_of_others = name.startswith(("contract.client", "contract.server"))
            is_agent = file.parts[0] in ("agent", "simulator")
            allowed = (*ALLOWED[file.parts[0]], "cli")
            if (is_agent and is_of_others) or name.partition(".")[0] not in allowed:
                wrong.append(f"{file} imports {name}")
    assert wrong == []


def imports_of(path: Path, modules: dict[tuple[str, ...], Path]) -> Iterator[Path]:
    """Yield the files that *path* imports at any time, also inside a function; imports for types only are left out."""
    package = path.relative_to(ROOT).parent.parts
    nodes: list[ast.AST] = [ast.parse(path.read_text())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and node.level:
            base = (*package[: len(package) + 1 - node.level], *(node.module or "").split("."))
            base = tuple(part for part in base if part)
            for name in node.names:
                module = modules.get((*base, name.name)) or modules.get(base)
                if module is not None and module != path:
                    yield module


def test_no_files_import_each_other_in_a_circle() -> None:
    """A circle can only be read, tested and imported as a whole."""
    modules = {
        path.relative_to(ROOT)
        .with_suffix("")
        .parts[: -1 if path.stem == "__init__" else None]: path
        for path in SOURCES
    }
    order = TopologicalSorter({path: set(imports_of(path, modules)) for path in SOURCES})
    try:
        order.prepare()
    except CycleError as error:
        circle = " -> ".join(str(path.relative_to(ROOT)) for path in error.args[1])
        raise AssertionError(circle) from None


def _unit(file: Path) -> str:
    """Return the folder of a part, or the file in the part's own folder."""
    return file.relative_to(ROOT).with_suffix("").parts[1]


@pytest.mark.parametrize("part", LAYERS)
def test_each_layer_imports_only_the_layers_below(part: str) -> None:
    """A layer can be read, tested and replaced without the layers above."""
    level = {unit: index for index, line in enumerate(LAYERS[part]) for unit in line.split()}
    wrong = []
    for path in SOURCES:
        if path.relative_to(ROOT).parts[0] != part or (
            path.parent == ROOT / part and path.stem == "__init__"
        ):
            continue
        assert _unit(path) in level, f"{path}: no layer in LAYERS; put it as low as its imports let"
        for name in imported_from_the_house(path):
            owner, _, rest = name.partition(".")
            unit = rest.partition(".")[0]
            if (
                owner == part
                and unit in level
                and unit != _unit(path)
                and level[unit] >= level[_unit(path)]
            ):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_each_class_has_a_name_of_its_own() -> None:
    """`Held` was the name of six things, and a search found all of them."""
    by_name: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                by_name.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in by_name.items() if len(paths) > 1} == {}


def _given_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module binds: definitions, assignments, parameters, and aliases of imports."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield name
            case ast.arg(arg=name) | ast.alias(asname=str(name)):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


@pytest.mark.slow
def test_no_name_has_a_retired_word() -> None:
    """Names use the terms of the field, so that newcomers can search them."""
    foreign = {name for names in FOREIGN_NAMES.values() for name in names}
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        for name in (path.stem, *_given_names(ast.parse(path.read_text())))
        if name.strip("_") not in foreign
        and RETIRED_WORDS & {w.lower() for w in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
    }
    assert sorted(wrong) == []


def test_the_contract_imports_nothing_heavy() -> None:
    """The agent imports the contract; `client/` and `server/` are for the other programs."""
    for path in (ROOT / "contract").rglob("*.py"):
        if path.parent.name in ("client", "server"):
            continue
        tree = ast.parse(path.read_text())
        names = {
            name.partition(".")[0]
            for node in ast.walk(tree)
            for name in (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom) and not node.level
                else []
            )
        }
        assert not names & HEAVY or "_pb2_grpc" in path.name, f"{path}: {names & HEAVY}"


def test_every_package_and_extension_is_shipped() -> None:
    """A module that runs from the checkout but is missing from the wheel breaks users only."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    loaded = {
        ".".join(["gangline", *init.parent.relative_to(ROOT).parts])
        for part in PARTS
        for init in (ROOT / part).rglob("__init__.py")
    }
    assert set(setuptools["packages"]) == loaded | {"gangline"}
    assert not any(
        name.startswith(("gangline.tests", "gangline.bench")) for name in setuptools["packages"]
    )
    modules = {e["name"] for e in setuptools["ext-modules"]}
    ours = {f"gangline.ext.{pyx.stem}" for pyx in (ROOT / "ext").glob("*.pyx")}
    assert modules == ours | {"gangline.ext.cython_shared"}
    for pyx in (ROOT / "ext").glob("*.pyx"):
        assert pyx.with_suffix(".pyi").exists(), f"{pyx.name} has no .pyi"


def loaded_by(module: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter holds after importing *module*."""
    code = f"import sys, {module}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd="/"
    )
    return set(out.stdout.split())


@pytest.mark.parametrize("module", ["gangline.agent.main", "gangline.agent.commands.agent"])
def test_the_agent_stays_light(module: str) -> None:
    """grpcio alone costs 26 MB and a dozen wake-ups a second on each of ten thousand hosts."""
    assert not loaded_by(module) & HEAVY


@pytest.mark.slow
@pytest.mark.parametrize("module", MAY_LOAD)
def test_a_process_loads_only_what_it_uses(module: str) -> None:
    """The list of hosts and an error for a wrong option took a second to appear, because of needless imports."""
    assert loaded_by(f"gangline.{module}") & DEAR <= MAY_LOAD[module]


def test_the_command_line_imports_nothing_until_asked() -> None:
    """`gangline --help` must answer on a host that has one extra installed, or none."""
    assert not loaded_by("gangline.cli") & (HEAVY | {"google", "h2"})


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_exists(name: str) -> None:
    """The table of commands promises; each module keeps it."""
    module, _, what = cli.COMMANDS[name]
    module, _, function = module.partition(":")
    assert callable(getattr(importlib.import_module(module, "gangline"), function or "main"))
    assert what


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_helps(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` answers with exit code 0, names the command and never needs an aggregator."""
    try:
        code = cli.main([name, "--help"])
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == cli.OK
    assert f"gangline {name}" in capsys.readouterr().out


def test_packaging_is_no_python_package() -> None:
    """An __init__.py in packaging/ would hide the library `packaging` from tools run at the root."""
    assert not list((ROOT / "packaging").glob("*.py"))
    assert not list((ROOT / "packaging").rglob("__init__.py"))


@pytest.mark.slow
def test_functions_fit_a_screen() -> None:
    """Projects with huge functions become hard to maintain."""
    for path in [*SOURCES, ROOT / "cli.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                assert lines <= LINES_OF_A_FUNCTION_MAX, f"{path}:{node.lineno} {node.name}"


def test_every_public_thing_says_what_it_is() -> None:
    """A reader should not have to read the body to learn what a module or a class is for."""
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), f"{path} has no docstring"
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path}: class {node.name} has no docstring"


def test_generated_code_is_of_the_proto_files(tmp_path: Path) -> None:
    """Editing a .proto without `make proto` would ship an API that no document describes."""
    names = tmp_path / "gangline"
    names.symlink_to(ROOT)
    wire = ROOT / "contract" / "wire"
    out = tmp_path / "out"
    out.mkdir()
    protos = sorted(wire.glob("*.proto"))
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", "-I", str(tmp_path)),
            *(f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}"),
            *(str(names / p.relative_to(ROOT)) for p in protos),
        ],
        check=True,
        cwd=tmp_path,
    )
    subprocess.run(
        [sys.executable, ROOT / "packaging" / "build" / "compact_wire.py", *out.rglob("*_pb2*.py")],
        check=True,
    )
    generated = {
        p.name: _of_any_generator(p.read_text()) for p in out.rglob("*_pb2*") if _is_wanted(p.stem)
    }
    present = {p.name: _of_any_generator(p.read_text()) for p in wire.glob("*_pb2*")}
    assert generated == present, "run `make proto`"


def _of_any_generator(code: str) -> str:
    """Return generated code without what differs between grpcio-tools 1.76, which `make proto` runs, and newer ones."""
    code = re.sub(
        r"^(?:GRPC_GENERATED_VERSION = .*|# Protobuf Python Version: .*)\n",
        "",
        code,
        flags=re.MULTILINE,
    )
    return code.replace("(object):", ":").replace(": _Optional[bool] = ...", ": bool = ...")


def test_generated_code_runs_with_the_oldest_grpcio_that_is_declared() -> None:
    """`pip install` took 1.76 as declared, and the import of the aggregator refused all before 1.85.1."""
    declared = re.findall(r'"grpcio[\w-]*>=([0-9.]+)"', (ROOT / "pyproject.toml").read_text())
    for path in (ROOT / "contract" / "wire").glob("*_grpc.py"):
        [version] = re.findall(
            r"^GRPC_GENERATED_VERSION = '([0-9.]+)'$", path.read_text(), re.MULTILINE
        )
        assert {version} == {f"{declared_version}.0" for declared_version in declared}, path


def _is_wanted(module: str) -> bool:
    """Return whether a generated module must exist: those for grpcio only if a module imports them."""
    if not module.endswith("_grpc"):
        return True
    folders = ("agent", "aggregator", "bench", "tests")
    sources = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return any(module in path.read_text() for path in sources)


def test_verdicts_speak_as_the_wire_does() -> None:
    """If the judge's state 3 were the scheduler's 4, the wrong hosts would be drained."""
    from gangline.aggregator.model import SEVERITY, HealthState, Reason

    states = {k: v for k, v in score_pb2.HealthState.items() if v}
    assert states == {s.name: s.value for s in HealthState}
    reasons = {k: v for k, v in score_pb2.ReasonCode.items() if v}
    assert reasons == {f"REASON_{r.name}": r.value for r in Reason if r}
    assert sorted(SEVERITY) == sorted(HealthState)
