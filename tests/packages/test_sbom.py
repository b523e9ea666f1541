"""What the packages say of what is in them: each component with a licence that is on the list."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.packages.built import PACKAGES, needs_packages, tar_of, text_of

BUILD = Path(__file__).parent.parent.parent / "packaging" / "build"
METADATA = "Metadata-Version: 2.1\nName: {}\nVersion: 1.0\n{}\n"


@pytest.fixture
def sbom() -> Iterator[ModuleType]:
    """The module of the build, which is a script beside others and no package."""
    sys.path.insert(0, str(BUILD))
    try:
        yield importlib.import_module("sbom")
    finally:
        sys.path.remove(str(BUILD))
        for name in ("sbom", "sources"):
            sys.modules.pop(name, None)


def site(folder: Path, licence: str) -> Path:
    """A folder with one wheel, unpacked."""
    info = folder / "thing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA.format("Thing_One", licence))
    return folder


@pytest.mark.parametrize(
    ("line", "expression"),
    [
        ("License-Expression: GPL-2.0-or-later OR Apache-2.0", "GPL-2.0-or-later OR Apache-2.0"),
        ("License: 3-Clause BSD License", "BSD-3-Clause"),
        ("Classifier: License :: OSI Approved :: MIT License", "MIT"),
        ("License: The MIT License (MIT)\n        \n        Copyright (c) 2014", "MIT"),
    ],
)
def test_a_licence_is_found_where_its_author_put_it(
    line: str, expression: str, sbom: ModuleType, tmp_path: Path
) -> None:
    (component,) = sbom.python_components(site(tmp_path, line))
    assert component["licenses"] == [{"expression": expression}]
    assert component["purl"] == "pkg:pypi/thing-one@1.0"


@pytest.mark.parametrize(
    "line", ["", "License-Expression: AGPL-3.0-only", "License-Expression: MIT AND GPL-3.0-only"]
)
def test_another_licence_fails_the_build(line: str, sbom: ModuleType, tmp_path: Path) -> None:
    """A dependency changes its licence in a minor version, and nobody reads it."""
    with pytest.raises(sbom.BuildError, match=r"Thing_One 1\.0: its licence .* is not on the list"):
        list(sbom.python_components(site(tmp_path, line)))


def test_every_library_of_the_interpreter_is_in_it(sbom: ModuleType) -> None:
    pins = importlib.import_module("sources").read_pins()
    found = {one["name"]: one for one in sbom.library_components(pins)}
    assert set(found) == set(pins.sources)
    assert all(one["version"] in one["cpe"] for one in found.values())
    assert found["zlib"]["version"] == "1.3.1" and found["openssl"]["version"].startswith("3.")


def test_the_same_contents_give_the_same_document(sbom: ModuleType, tmp_path: Path) -> None:
    """A serial number that is drawn by chance makes no two builds the same."""
    wheels = site(tmp_path, "License-Expression: MIT")
    texts = {
        sbom.write_sbom("p", "1-1", wheels, None, tmp_path / name, 0).read_text()
        for name in ("a.json", "b.json")
    }
    assert len(texts) == 1


@needs_packages
@pytest.mark.parametrize("package", PACKAGES)
def test_it_is_in_the_package(package: str) -> None:
    """Every wheel that is in the package is in its document."""
    with tar_of(package) as tar:
        text = text_of(tar, f"./usr/share/doc/{package}/sbom.cdx.json")
        names = [name for name in tar.getnames() if name.endswith(".dist-info")]
    document: dict[str, Any] = json.loads(text)
    assert document["bomFormat"] == "CycloneDX" and document["specVersion"] == "1.6"
    wheels = [
        one for one in document["components"] if "pypi" in one["purl"] or one["name"] == "gangline"
    ]
    assert len(wheels) == len(names)
