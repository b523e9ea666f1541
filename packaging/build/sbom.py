"""Lists the contents of each package with their licenses in a CycloneDX document; a license that is not allowed fails the build.

Python components come from the metadata of the unpacked wheels, libraries inside a wheel from the wheel's SBOM or from
bundled.toml, and libraries inside the interpreter from pins.toml.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import tomllib
import uuid
from collections.abc import Iterator
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from sources import BuildError, Pins

#: SPDX identifiers of the licenses that a package may contain.
LICENCES = frozenset(
    [
        "0BSD",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSD-3-Clause-Open-MPI",
        "BSL-1.0",
        "CC0-1.0",
        # GCC's runtime libraries: the exception permits use by programs of any license.
        "GPL-3.0-or-later WITH GCC-exception-3.1",
        "ISC",
        # Shipped as a separate file, which a user can replace.
        "LGPL-2.1-or-later",
        "MIT",
        "MIT-0",
        # Per file: certifi is a list of CAs, shipped unchanged.
        "MPL-2.0",
        "PSF-2.0",
        "Unicode-3.0",
        "Unicode-DFS-2016",
        "Zlib",
        "blessing",
        "bzip2-1.0.6",
        "curl",
    ]
)
#: License names in wheels that are no SPDX identifier -> SPDX identifier.
ALIASES = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "Copyright (c) 2001-2002 Enthought, Inc. 2003, SciPy Developers.": "BSD-3-Clause",  # the first line of its text
    "LGPLv2+": "LGPL-2.1-or-later",  # ClusterShell, which has the text of 2.1
    "License :: OSI Approved :: BSD License": "BSD-3-Clause",
    "License :: OSI Approved :: MIT License": "MIT",
    "MIT License": "MIT",
    "The MIT License (MIT)": "MIT",
}
#: Source of pins.toml -> (SPDX identifier, vendor, product); databases of vulnerabilities use vendor and product (CPE
#: 2.3).
LIBRARIES = {
    "libffi": ("MIT", "libffi_project", "libffi"),
    "openssl": ("Apache-2.0", "openssl", "openssl"),
    "python3.13": ("PSF-2.0", "python", "python"),
    "sqlite3": ("blessing", "sqlite", "sqlite"),
    "zlib": ("Zlib", "zlib", "zlib"),
}
#: Libraries that a wheel's SBOM names without a license.
UNLICENSED = {"libgomp": "GPL-3.0-or-later WITH GCC-exception-3.1"}
#: Libraries inside the wheels that have no SBOM.
BUNDLED = Path(__file__).with_name("bundled.toml")
_NAMESPACE = uuid.UUID("6f0b6d5e-5d8c-5c1b-9a57-2f6f0f3c1c11")


def check_licence(expression: str, component: str) -> str:
    """Return *expression* as SPDX. Raises BuildError if its license is not in LICENCES.

    `A AND B` requires both licenses in LICENCES, `A OR B` either.
    """
    expression = ALIASES.get(expression.strip(), expression.strip())
    for group in re.split(r"\s+AND\s+", expression):
        choices = [one.strip("() ") for one in re.split(r"\s+OR\s+", group)]
        if not LICENCES & set(choices):
            raise BuildError(
                f"{component}: its licence {expression or 'is not named'!r} is not on the list of packaging/build/sbom.py: read it, "
                "then add it there, or do without the component"
            )
    return expression


def licence_of(metadata: Message, component: str) -> str:
    """Return the license in a wheel's METADATA. Raises BuildError if it is not in LICENCES."""
    classifiers = [
        one for one in metadata.get_all("Classifier", []) if one.startswith("License :: OSI")
    ]
    named = metadata.get("License-Expression") or metadata.get("License") or "".join(classifiers)
    return check_licence(
        named.strip().partition("\n")[0], component
    )  # some wheels have the whole license text here


def python_components(site: Path) -> Iterator[dict[str, Any]]:
    """Yield the wheels in *site*, including Gangline's, each followed by the libraries inside it."""
    bundled = tomllib.loads(BUNDLED.read_text())
    for file in sorted(site.glob("*.dist-info/METADATA")):
        metadata = HeaderParser().parsestr(file.read_text())
        name, version = metadata["Name"], metadata["Version"]
        purl = f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}"
        if name == "gangline":
            purl = f"pkg:generic/gangline@{version}"
        wheel = _component(name, version, purl, licence_of(metadata, f"{name} {version}"))
        yield wheel
        yield from wheel_components(wheel, file, bundled)


def _inner(wheel: dict[str, Any], name: str, version: str, licence: str) -> dict[str, Any]:
    """Return the component of a library inside a wheel."""
    purl = f"pkg:generic/{name}" + (f"@{version}" if version else "")
    component = _component(
        name, version, purl, check_licence(licence, f"{name} in {wheel['name']}")
    )
    component["bom-ref"] = f"{wheel['purl']}#{name}@{version}"
    if not version:
        del component["version"]
    elif name in LIBRARIES:
        component["cpe"] = _cpe(name, version)
    component["properties"] = [{"name": "gangline:inside", "value": wheel["purl"]}]
    return component


def _own_documents(wheel: dict[str, Any], folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the components in a wheel's SBOMs (PEP 770). Raises BuildError for an SBOM that is not CycloneDX."""
    for file in sorted(folder.iterdir()):
        try:
            table = json.loads(file.read_text())
            rows = [(row, row["name"], row.get("version", "")) for row in table["components"]]
        except (ValueError, LookupError, TypeError) as error:
            raise BuildError(f"{wheel['name']}: {file.name} is no CycloneDX: {error!r}") from None
        for row, name, version in rows:
            if name.replace("_", "-") == wheel["name"]:
                continue  # the wheel itself
            named = [one.get("expression", "") for one in row.get("licenses", ())]
            named = named or [UNLICENSED.get(name) or LIBRARIES.get(name, ("",))[0]]
            component = _inner(wheel, name, version, named[0])
            component["purl"] = row.get("purl", component["purl"])
            if not component["purl"].startswith("pkg:generic/"):
                component.pop("cpe", None)  # the Rust crate openssl is not OpenSSL itself
            yield component


def wheel_components(
    wheel: dict[str, Any], metadata: Path, bundled: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the libraries inside a wheel with compiled modules, from its SBOMs or from bundled.toml.

    Raises BuildError.
    """
    name, version = wheel["name"], wheel["version"]
    tags = re.findall(r"^Tag: (.*)$", metadata.with_name("WHEEL").read_text(), re.MULTILINE)
    if name == "gangline" or all(tag.endswith("-any") for tag in tags):
        return
    if (own := metadata.with_name("sboms")).is_dir():
        yield from _own_documents(wheel, own)
        return
    found = bundled.get(re.sub(r"[-_.]+", "-", name).lower())
    if found is None or found["version"] != version:
        raise BuildError(
            f"{name} {version} has compiled modules and no SBOM, and {BUNDLED.name} knows "
            f"{'none' if found is None else found['version']}: read its licence files, then name the libraries inside it there"
        )
    for file in metadata.parent.parent.glob(f"{name}.libs/*"):
        if not any(library.lower() in file.name.lower() for library in found["libraries"]):
            raise BuildError(f"{name} {version}: {BUNDLED.name} names no library of {file.name}")
    for library, row in found["libraries"].items():
        licence, its_version = (row, "") if isinstance(row, str) else row
        yield _inner(wheel, library, its_version, licence)


def library_components(pins: Pins) -> Iterator[dict[str, Any]]:
    """Yield the libraries inside the interpreter, with the SHA-256 of their source archives."""
    for name, source in sorted(pins.sources.items()):
        if name not in LIBRARIES:
            raise BuildError(
                f"{name} of pins.toml has no licence in LIBRARIES of packaging/build/sbom.py"
            )
        licence = LIBRARIES[name][0]
        upstream = source.version.partition(":")[2] or source.version
        version = re.sub(r"^.*really|-[^-]*$", "", upstream)
        component = _component(
            name,
            version,
            f"pkg:deb/debian/{name}@{source.version}?arch=source",
            check_licence(licence, name),
        )
        component["cpe"] = _cpe(name, version)
        component["properties"] = [
            {"name": f"gangline:sha256:{archive}", "value": digest}
            for archive, digest in sorted(source.archives.items())
        ]
        yield component


def _cpe(library: str, version: str) -> str:
    _, vendor, product = LIBRARIES[library]
    return f"cpe:2.3:a:{vendor}:{product}:{version}:*:*:*:*:*:*:*"


def _component(name: str, version: str, purl: str, licence: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "licenses": [{"expression": licence}],
    }


def document(
    package: str, version: str, components: list[dict[str, Any]], epoch: int
) -> dict[str, Any]:
    """Return the CycloneDX document of a package; equal contents give an equal document."""
    digest = hashlib.sha256(json.dumps(components, sort_keys=True).encode()).hexdigest()
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, f'{package} {version} {digest}')}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
            "component": {
                "type": "application",
                "bom-ref": f"pkg:generic/{package}@{version}",
                "name": package,
                "version": version,
                "licenses": [{"expression": "Apache-2.0"}],
            },
        },
        "components": components,
    }


def write_sbom(
    package: str, version: str, site: Path, pins: Pins | None, to: Path, epoch: int
) -> Path:
    """Write the document of a package to *to*.

    *pins*: None for a package without the interpreter. Raises BuildError.
    """
    components = [*python_components(site), *(library_components(pins) if pins else ())]
    if not pins:  # the document of gangline-runtime lists the components that the packages share
        runtime = f"pkg:generic/gangline-runtime@{version}"
        components.append(_component("gangline-runtime", version, runtime, "Apache-2.0"))
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(json.dumps(document(package, version, components, epoch), indent=1) + "\n")
    return to
