"""Man pages and completion, made from the parsers of the commands."""

from __future__ import annotations

import gzip
import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gangline import cli
from gangline.agent.commands import check
from gangline.aggregator.commands.admin import SUBCOMMANDS

BUILD = Path(__file__).parent.parent.parent / "packaging" / "build"
EPOCH = 1793491200


@pytest.fixture
def manuals() -> Iterator[ModuleType]:
    """The module of the build, which is a script beside others and no package."""
    sys.path.insert(0, str(BUILD))
    try:
        yield importlib.import_module("manuals")
    finally:
        sys.path.remove(str(BUILD))
        sys.modules.pop("manuals", None)


def test_every_option_of_check_has_its_line(manuals: ModuleType) -> None:
    """`check` reads its options by hand; its page is made from its own help."""
    parser = manuals.check_parser(check)
    options = {name for action in parser._actions for name in action.option_strings}
    assert options == {"-h", "--help", "--for", "--json", "--run-folder"}
    text = manuals.page("check", "is this host fit for a job?", parser, EPOCH)
    assert "prints nothing if nothing is wrong" in text.replace("\n", " ")
    assert "10 if the setting `enforcing`" in text.replace("\n", " ")


def test_what_roff_takes_for_its_own_is_escaped(manuals: ModuleType) -> None:
    """A line that begins with a dot is a request, and disappears."""
    assert manuals._roff(".TH is\n'no' a\\b --json") == "\\&.TH is\n\\&'no' a\\eb \\-\\-json"


@pytest.mark.slow
def test_every_command_has_a_page(manuals: ModuleType, tmp_path: Path) -> None:
    """mandoc reports nothing on any page; each shell reads its completion."""
    pytest.importorskip("shtab", reason="needs: pip install shtab (packaging/build/pins.toml)")
    pages = manuals.write_all(tmp_path, EPOCH)
    names = {page.name.removesuffix(".1.gz") for page in pages}
    commands = {*cli.COMMANDS, *(f"admin-{name}" for name in SUBCOMMANDS), "agent-status"}
    assert names == {"gangline", *(f"gangline-{name}" for name in commands - {"admin"})}
    in_agent = {page.name for page in pages if "gangline-agent/usr" in str(page)}
    assert "gangline-doctor.1.gz" in in_agent and "gangline-hosts.1.gz" not in in_agent
    if shutil.which("mandoc"):
        for page in pages:
            linted = subprocess.run(
                ["mandoc", "-T", "lint", "-W", "style"],
                input=gzip.decompress(page.read_bytes()), check=False, capture_output=True,
            )  # fmt: skip
            assert linted.stdout == b"", page.name
    for shell, name in manuals.COMPLETION.items():
        file = tmp_path / "gangline-runtime" / name
        assert "doctor" in file.read_text()
        if shutil.which(shell):
            subprocess.run([shell, "-n", str(file)], check=True)
