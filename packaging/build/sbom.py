"""What is in a package, and under which licence: a CycloneDX document for each, and a build that fails for a licence that is not on the list.

Python components are read from the metadata of the wheels as they were unpacked; the libraries inside the interpreter from pins.toml.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import uuid
from collections.abc import Iterator
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from sources import BuildError, Pins

#: SPDX identifiers under which something may be shipped.
LICENCES = frozenset(
    [
        "0BSD",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "LGPL-2.1-or-later",  # ClusterShell: a library of its own in site-packages, which anybody may replace
        "MIT",
        "MIT-0",
        "PSF-2.0",
        "Zlib",
        "blessing",
    ]
)
#: What authors write instead of an SPDX identifier.
ALIASES = {
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD": "BSD-3-Clause",
    "LGPLv2+": "LGPL-2.1-or-later",  # ClusterShell, which has the text of 2.1
    "License :: OSI Approved :: BSD License": "BSD-3-Clause",
    "License :: OSI Approved :: MIT License": "MIT",
    "MIT License": "MIT",
    "The MIT License (MIT)": "MIT",
}
#: The sources of pins.toml: SPDX identifier, and the name that databases of vulnerabilities know (CPE 2.3: vendor, product).
LIBRARIES = {
    "libffi": ("MIT", "libffi_project", "libffi"),
    "openssl": ("Apache-2.0", "openssl", "openssl"),
    "python3.13": ("PSF-2.0", "python", "python"),
    "sqlite3": ("blessing", "sqlite", "sqlite"),
    "zlib": ("Zlib", "zlib", "zlib"),
}
_NAMESPACE = uuid.UUID("6f0b6d5e-5d8c-5c1b-9a57-2f6f0f3c1c11")


def check_licence(expression: str, component: str) -> str:
    """Return *expression* as SPDX. Raises BuildError unless each part that has to hold is on the list.

    Of `A OR B` one on the list is enough; of `A AND B` all have to be.
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
    """Return the licence in a wheel's METADATA, checked. Raises BuildError."""
    classifiers = [
        one for one in metadata.get_all("Classifier", []) if one.startswith("License :: OSI")
    ]
    named = metadata.get("License-Expression") or metadata.get("License") or "".join(classifiers)
    return check_licence(
        named.strip().partition("\n")[0], component
    )  # some have the whole text there


def python_components(site: Path) -> Iterator[dict[str, Any]]:
    """Yield the wheels that were unpacked into *site*, Gangline's own too."""
    for file in sorted(site.glob("*.dist-info/METADATA")):
        metadata = HeaderParser().parsestr(file.read_text())
        name, version = metadata["Name"], metadata["Version"]
        purl = f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}"
        if name == "gangline":
            purl = f"pkg:generic/gangline@{version}"
        yield _component(name, version, purl, licence_of(metadata, f"{name} {version}"))


def library_components(pins: Pins) -> Iterator[dict[str, Any]]:
    """Yield the libraries inside the interpreter, with the archives that they were built from."""
    for name, source in sorted(pins.sources.items()):
        if name not in LIBRARIES:
            raise BuildError(
                f"{name} of pins.toml has no licence in LIBRARIES of packaging/build/sbom.py"
            )
        licence, vendor, product = LIBRARIES[name]
        upstream = source.version.partition(":")[2] or source.version
        version = re.sub(r"^.*really|-[^-]*$", "", upstream)
        component = _component(
            name,
            version,
            f"pkg:deb/debian/{name}@{source.version}?arch=source",
            check_licence(licence, name),
        )
        component["cpe"] = f"cpe:2.3:a:{vendor}:{product}:{version}:*:*:*:*:*:*:*"
        component["properties"] = [
            {"name": f"gangline:sha256:{archive}", "value": digest}
            for archive, digest in sorted(source.archives.items())
        ]
        yield component


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
    """Return the CycloneDX document of a package; the same for the same contents."""
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
    """Write the document of a package. *pins*: of the package with the interpreter. Raises BuildError."""
    components = [*python_components(site), *(library_components(pins) if pins else ())]
    if not pins:  # the rest of what it runs on is in the runtime's document
        runtime = f"pkg:generic/gangline-runtime@{version}"
        components.append(_component("gangline-runtime", version, runtime, "Apache-2.0"))
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(json.dumps(document(package, version, components, epoch), indent=1) + "\n")
    return to
