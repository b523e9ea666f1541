"""Messages created by protobuf's C library alone equal those of its own builder, and import less."""

from __future__ import annotations

import subprocess
import sys

import pytest
from google.protobuf import duration_pb2

from gangline.contract.wire import messages, telemetry_pb2


def test_messages_hold_what_they_are_given() -> None:
    event = telemetry_pb2.HealthEvent(event_id="e", attributes={"a": "b"})
    again = telemetry_pb2.HealthEvent.FromString(event.SerializeToString())
    assert again == event
    assert again.attributes["a"] == "b"
    assert type(again).__module__ == telemetry_pb2.__name__


def test_nested_messages_and_enumerations_have_their_names() -> None:
    request = telemetry_pb2.RegisterNodeRequest(labels={"rack": "7"})
    assert type(request).LabelsEntry.__qualname__ == "RegisterNodeRequest.LabelsEntry"
    for name, enumeration in telemetry_pb2.DESCRIPTOR.enum_types_by_name.items():
        for value in enumeration.values:
            assert getattr(telemetry_pb2, name).Name(value.number) == value.name
            assert getattr(telemetry_pb2, value.name) == value.number


def test_without_the_c_library_the_builder_makes_them() -> None:
    program = (
        "from gangline.contract.wire import telemetry_pb2 as t\n"
        "e = t.HealthEvent(event_id='e', attributes={'a': 'b'})\n"
        "print(t.HealthEvent.FromString(e.SerializeToString()).attributes['a'])"
    )
    environment = {
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python",
        "PYTHONPATH": ":".join(sys.path),
    }
    completed = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, env=environment
    )
    assert completed.stdout.split() == [b"b"]


def test_it_brings_no_message_class_in_python_along() -> None:
    program = (
        "import sys\nfrom gangline.contract.wire import telemetry_pb2\n"
        "print('google.protobuf.internal.python_message' in sys.modules)"
    )
    completed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert completed.stdout.split() == [b"False"]


def test_a_file_that_is_known_is_the_same_file() -> None:
    names: dict[str, object] = {}
    serialized = duration_pb2.DESCRIPTOR.serialized_pb
    assert messages.file_of(serialized, __name__, names) is duration_pb2.DESCRIPTOR


def test_another_library_leaves_it_to_the_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("google._upb._message", object())
    names: dict[str, object] = {}
    serialized = duration_pb2.DESCRIPTOR.serialized_pb
    assert messages.file_of(serialized, __name__, names) is duration_pb2.DESCRIPTOR
    assert type(names["Duration"]).__name__ == "MessageMeta"
