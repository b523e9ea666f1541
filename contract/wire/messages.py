"""Base of the generated code: builds message classes with protobuf's C library, without its Python library.

protobuf's own `builder` imports the whole Python library, 2 MB that an agent would hold without need.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor, message
from google.protobuf.internal import api_implementation
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper


def file_of(serialized: bytes, module: str, names: dict[str, Any]) -> Any:
    """Register the file and return its descriptor; put its messages and enumerations into *names*."""
    if _metaclass() is None:
        return _without_c(serialized, module, names)
    file = descriptor.FileDescriptor("", "", serialized_pb=serialized)
    for name, enumeration in file.enum_types_by_name.items():
        names[name] = EnumTypeWrapper(enumeration)
        names.update({value.name: value.number for value in enumeration.values})
    for name, each in file.message_types_by_name.items():
        names[name] = _class_of(each, module, name)
    return file


def _metaclass() -> Any:
    """Return the C metaclass of messages; None if protobuf is pure Python, or has no such metaclass."""
    if api_implementation.Type() != "upb":
        return None
    try:
        from google._upb import _message  # type: ignore[import-not-found]
    except ImportError:
        return None
    return getattr(_message, "MessageMeta", None)


def _class_of(wanted: Any, module: str, name: str) -> Any:
    body = {"DESCRIPTOR": wanted, "__module__": module, "__qualname__": name}
    for inner, each in wanted.nested_types_by_name.items():
        body[inner] = _class_of(each, module, f"{name}.{inner}")
    return _metaclass()(wanted.name, (message.Message,), body)


def _without_c(serialized: bytes, module: str, names: dict[str, Any]) -> Any:
    from google.protobuf import descriptor_pool
    from google.protobuf.internal import builder

    file = descriptor_pool.Default().AddSerializedFile(serialized)
    builder.BuildMessageAndEnumDescriptors(file, names)
    builder.BuildTopDescriptorsAndMessages(file, module, names)
    return file
