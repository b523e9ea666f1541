"""The packages' list of contents: each component has a license that is on the list."""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.packages.built import PACKAGES, needs_packages, tar_of, text_of

BUILD = Path(__file__).parent.parent.parent / "packaging" / "build"
METADATA = "Metadata-Version: 2.1\nName: {}\nVersion: 1.0\n{}\n"

COMPILED = "cp313-cp313-manylinux_2_28_x86_64"


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


def site(folder: Path, licence: str, tag: str = "py3-none-any", name: str = "Thing_One") -> Path:
    info = folder / "thing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA.format(name, licence))
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag}\n")
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
    """A dependency may change its license unnoticed in a minor version."""
    with pytest.raises(sbom.BuildError, match=r"Thing_One 1\.0: its licence .* is not on the list"):
        list(sbom.python_components(site(tmp_path, line)))


def test_a_wheel_says_itself_what_is_inside(sbom: ModuleType, tmp_path: Path) -> None:
    """By an SBOM of its own; a crate is not the library that it binds, and a licence that is not on the list fails the build."""
    wheels = site(tmp_path, "License-Expression: MIT", COMPILED)
    document = wheels / "thing-1.0.dist-info" / "sboms" / "own.cdx.json"
    document.parent.mkdir()
    crate = {"name": "openssl", "version": "0.10.81", "purl": "pkg:cargo/openssl@0.10.81", "licenses": [{"expression": "Apache-2.0"}]}  # fmt: skip
    library = {"name": "openssl", "version": "4.0.3", "purl": "pkg:generic/openssl@4.0.3"}
    document.write_text(json.dumps({"components": [crate, library]}))
    _, first, second = sbom.python_components(wheels)
    assert "cpe" not in first and ":openssl:openssl:4.0.3:" in second["cpe"]
    assert second["licenses"] == [{"expression": "Apache-2.0"}]
    assert second["bom-ref"].startswith("pkg:pypi/thing-one@1.0#")
    document.write_text(json.dumps({"components": [{**crate, "licenses": [{"expression": "SSPL-1.0"}]}]}))  # fmt: skip
    with pytest.raises(sbom.BuildError, match=r"openssl in Thing_One: its licence 'SSPL-1\.0'"):
        list(sbom.python_components(wheels))
    for wrong in ("{", "[]", '{"components": [{}]}'):
        document.write_text(wrong)
        with pytest.raises(sbom.BuildError, match=r"own\.cdx\.json is no CycloneDX"):
            list(sbom.python_components(wheels))


def test_what_is_inside_another_version_is_looked_at_again(
    sbom: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minor version of a wheel brought a library with a known hole, and no list had it."""
    wheels = site(tmp_path, "License-Expression: MIT", COMPILED, "thing")
    table = tmp_path / "bundled.toml"
    monkeypatch.setattr(sbom, "BUNDLED", table)
    for text, message in (
        ("", r"thing 1\.0 has compiled modules and no SBOM, and bundled\.toml knows none"),
        ('[thing]\nversion = "0.9"\nlibraries = {}', r"bundled\.toml knows 0\.9: read its"),
    ):
        table.write_text(text)
        with pytest.raises(sbom.BuildError, match=message):
            list(sbom.python_components(wheels))
    table.write_text(
        '[thing]\nversion = "1.0"\nlibraries = { zlib = ["Zlib", "1.3"], re2 = "MIT" }'
    )
    _, zlib, re2 = sbom.python_components(wheels)
    assert zlib["version"] == "1.3" and ":zlib:zlib:1.3:" in zlib["cpe"] and "version" not in re2
    (wheels / "thing.libs").mkdir()
    (wheels / "thing.libs" / "libre2-1f.so.1").touch()
    list(sbom.python_components(wheels))
    (wheels / "thing.libs" / "libnew-2f.so.1").touch()
    with pytest.raises(sbom.BuildError, match=r"names no library of libnew-2f\.so\.1"):
        list(sbom.python_components(wheels))


def test_every_compiled_wheel_is_known(sbom: ModuleType) -> None:
    """bundled.toml has the versions that wheels.txt pins, except for wheels that declare their contents."""
    table = tomllib.loads(sbom.BUNDLED.read_text())
    pinned = {}
    for line in (BUILD / "wheels.txt").read_text().splitlines():
        if not line.startswith("#") and not line.endswith("-any.whl"):
            name, version = line.split()[1].split("-")[:2]
            pinned[name.replace("_", "-")] = version
    assert {name: row["version"] for name, row in table.items()} == {
        name: version
        for name, version in pinned.items()
        if name not in ("cryptography", "pydantic-core", "scikit-learn")
    }


def test_every_library_of_the_interpreter_is_in_it(sbom: ModuleType) -> None:
    pins = importlib.import_module("sources").read_pins()
    components = {component["name"]: component for component in sbom.library_components(pins)}
    assert set(components) == set(pins.sources)
    assert all(component["version"] in component["cpe"] for component in components.values())
    assert components["zlib"]["version"] == "1.3.1" and components["openssl"]["version"].startswith(
        "3."
    )


def test_the_same_contents_give_the_same_document(sbom: ModuleType, tmp_path: Path) -> None:
    """A random serial number would make every build differ."""
    wheels = site(tmp_path, "License-Expression: MIT")
    texts = {
        sbom.write_sbom("p", "1-1", wheels, None, tmp_path / name, 0).read_text()
        for name in ("a.json", "b.json")
    }
    assert len(texts) == 1


@needs_packages
@pytest.mark.parametrize("package", PACKAGES)
def test_it_is_in_the_package(package: str) -> None:
    with tar_of(package) as tar:
        text = text_of(tar, f"./usr/share/doc/{package}/sbom.cdx.json")
        names = [name for name in tar.getnames() if name.endswith(".dist-info")]
    document: dict[str, Any] = json.loads(text)
    assert document["bomFormat"] == "CycloneDX" and document["specVersion"] == "1.6"
    wheels = [
        component
        for component in document["components"]
        if "pypi" in component["purl"] or component["name"] == "gangline"
    ]
    inside = {
        component["name"] for component in document["components"] if "#" in component["bom-ref"]
    }
    assert inside >= ({"openssl", "zlib", "openblas"} if "aggregator" in package else set())
    assert len(wheels) == len(names)
