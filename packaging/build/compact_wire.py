"""Rewrites protoc's output: messages by `messages` instead of protobuf's builder, and stubs without
gRPC's experimental classes, which nothing calls. `make proto` runs it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

_FILE = re.compile(
    r"^DESCRIPTOR = _descriptor_pool\.Default\(\)\.AddSerializedFile\((.*)\)$", re.MULTILINE
)
#: A second client of each service, of static methods.
_EXPERIMENTAL = re.compile(
    r"\n\n # This class is part of an EXPERIMENTAL API\.\n.*?(?=\n\nclass |\Z)", re.DOTALL
)


def lighter(generated: str) -> str:
    """Return the code of a `_pb2_grpc.py` without its experimental classes, or of a `_pb2.py`: its
    imports, and one call with the file as bytes."""
    if "import grpc\n" in generated:
        return _EXPERIMENTAL.sub("", generated)
    head, _, rest = generated.partition("from google.protobuf import descriptor as _descriptor\n")
    file = _FILE.search(rest)
    if file is None:
        raise ValueError("protoc's output has changed")
    others = "".join(f"{line}\n" for line in rest[: file.start()].splitlines() if "_pb2" in line)
    return (
        f"{head}from gangline.contract.wire import messages as _messages\n{others}\n"
        f"DESCRIPTOR = _messages.file_of({file[1]}, __name__, globals())\n"
    )


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(lighter(path.read_text()))
