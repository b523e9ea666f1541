"""What RegisterNode and ReportEvents may say: every field's limit, and a refusal that names both."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sized
from functools import lru_cache
from types import MappingProxyType

from ...fingerprints.catalogue import BY_ID, Kind
from ...fingerprints.frames import DEVICE_BYTES_MAX
from ...fingerprints.wire.telemetry_pb2 import (
    HealthEvent,
    RegisterNodeRequest,
    ReportEventsRequest,
    SignalDefinition,
)
from ..access.names import NAME_CHARACTERS_MAX, is_name
from ..refusals import Invalid
from ..store.rows import Foreign

#: Protocol versions spoken: two before to one after this version.
PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX = 1, 2
SIGNALS_MAX = 8192
SIGNAL_NAME_CHARACTERS_MAX = 128
DEVICES_MAX = 4096
ATTRIBUTES_MAX = 64
LABELS_MAX = 64
KEY_CHARACTERS_MAX = 128
VALUE_CHARACTERS_MAX = 1024
VERSION_CHARACTERS_MAX = 64
KIND_CHARACTERS_MAX = 32
EVENTS_MAX = 1000
EVENT_ID_CHARACTERS_MAX = 128
MESSAGE_CHARACTERS_MAX = 4096
#: What an event carries beside its words: a storm is told by a count and its distinct forms.
FORMS_MAX = 32
FORM_CHARACTERS_MAX = 256
EVENT_ATTRIBUTES_MAX = 32
PROCESS_NAME_CHARACTERS_MAX = 64
#: No kernel writes more lines while it is up: 10^15 is a million a second for thirty years.
EVENT_COUNT_MAX = 10**15
ID_BYTES = 16
#: Dictionaries of signals that were found good: a fleet's agents are of a few versions, and to look at each
#: of 800 signals is a third of what a registration costs. Longer ones are looked at each time.
REMEMBERED_MAX, REMEMBERED_BYTES_MAX = 32, 1 << 17

_SIGNAL = re.compile(r"[a-z][a-z0-9_]*\.[a-z0-9_]+")
_KINDS = frozenset(Kind)


def check_request(request: RegisterNodeRequest) -> Mapping[int, Foreign]:
    """Check all fields; return the signals that only this agent knows. Raises Invalid."""
    version = request.protocol_version
    if not PROTOCOL_VERSION_MIN <= version <= PROTOCOL_VERSION_MAX:
        raise Invalid(
            "protocol_version",
            f"{version}; this aggregator speaks {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION_MAX}",
        )
    if not is_name(request.node):
        raise Invalid(
            "node",
            f"{request.node[:64]!r} is no host name: letters, digits, '.', '_' and '-', "
            f"at most {NAME_CHARACTERS_MAX}",
        )
    for field in ("run_id", "boot_id"):
        length = len(getattr(request, field))
        if length != ID_BYTES:
            raise Invalid(field, f"{length} bytes, expected {ID_BYTES}")
    _text("agent_version", request.agent_version, VERSION_CHARACTERS_MAX)
    _map("labels", request.labels, LABELS_MAX)
    _check_devices(request)
    _count("signals", request.signals, SIGNALS_MAX)
    said = RegisterNodeRequest()
    said.signals.MergeFrom(request.signals)
    dictionary = said.SerializeToString()
    check = _foreign if len(dictionary) <= REMEMBERED_BYTES_MAX else _foreign.__wrapped__
    return check(dictionary)


@lru_cache(maxsize=REMEMBERED_MAX)
def _foreign(dictionary: bytes) -> Mapping[int, Foreign]:
    """Return the signals of a dictionary that we do not know. Raises Invalid, which is not remembered."""
    foreign: dict[int, Foreign] = {}
    for signal in RegisterNodeRequest.FromString(dictionary).signals:
        _check_signal(signal, foreign)
    return MappingProxyType(foreign)


def _check_devices(request: RegisterNodeRequest) -> None:
    _count("devices", request.devices, DEVICES_MAX)
    for device in request.devices:
        _text("devices.kind", device.kind, KIND_CHARACTERS_MAX)
        if not device.key or len(device.key.encode()) > DEVICE_BYTES_MAX:
            raise Invalid("devices.key", f"{device.key[:64]!r}: 1 to {DEVICE_BYTES_MAX} bytes")
        _map("devices.attributes", device.attributes, ATTRIBUTES_MAX)


def _check_signal(signal: SignalDefinition, foreign: dict[int, Foreign]) -> None:
    """Ids are given once and never again: the same id must mean the same as here."""
    number, name = signal.signal_id, signal.name
    if not 0 < number < 65536:
        raise Invalid("signals.signal_id", f"{number} ({name[:64]}): 1 to 65535")
    if len(name) > SIGNAL_NAME_CHARACTERS_MAX or not _SIGNAL.fullmatch(name):
        raise Invalid(
            "signals.name",
            f"{name[:64]!r}: expected kind.name_unit, at most {SIGNAL_NAME_CHARACTERS_MAX} characters",
        )
    if signal.kind not in _KINDS:
        raise Invalid("signals.kind", f"{signal.kind[:32]!r} ({name}): one of {', '.join(Kind)}")
    ours = BY_ID.get(number)
    known = (ours.name, str(ours.kind)) if ours else None
    if known is None and number not in foreign:
        foreign[number] = Foreign(name, signal.kind == Kind.GAUGE)
        return
    known = known or (foreign[number].name, signal.kind)
    if known != (name, signal.kind):
        raise Invalid(
            "signals",
            f"id {number} is {name} ({signal.kind}) there and {known[0]} ({known[1]}) here; an id "
            "means one signal for ever: agent and aggregator are not of one line of versions",
        )


def check_events(request: ReportEventsRequest) -> None:
    """Check all fields of all events. Raises Invalid; nothing of the request is then taken."""
    _count("events", request.events, EVENTS_MAX)
    for event in request.events:
        _check_event(event)


def _check_event(event: HealthEvent) -> None:
    if not event.event_id:
        raise Invalid("events.event_id", "empty: an event without one could be stored twice")
    _text("events.event_id", event.event_id, EVENT_ID_CHARACTERS_MAX)
    _text("events.device_kind", event.device_kind, KIND_CHARACTERS_MAX)
    _text("events.device", event.device, DEVICE_BYTES_MAX)
    _text("events.name", event.name, SIGNAL_NAME_CHARACTERS_MAX)
    _text("events.message", event.message, MESSAGE_CHARACTERS_MAX)
    _text("events.process_name", event.process_name, PROCESS_NAME_CHARACTERS_MAX)
    _count("events.forms", event.forms, FORMS_MAX)
    for form in event.forms:
        _text("events.forms", form, FORM_CHARACTERS_MAX)
    _map("events.attributes", event.attributes, EVENT_ATTRIBUTES_MAX)
    if len(event.boot_id) not in (0, ID_BYTES):
        raise Invalid("events.boot_id", f"{ID_BYTES} bytes or none, got {len(event.boot_id)}")
    if event.count > EVENT_COUNT_MAX:
        raise Invalid(
            "events.count", f"{event.count} lines of one event, at most {EVENT_COUNT_MAX}"
        )


def _count(field: str, values: Sized, count_max: int) -> None:
    if len(values) > count_max:
        raise Invalid(field, f"{len(values)} of them, at most {count_max}")


def _text(field: str, text: str, characters_max: int) -> None:
    if len(text) > characters_max:
        raise Invalid(field, f"{len(text)} characters, at most {characters_max}")


def _map(field: str, values: Mapping[str, str], count_max: int) -> None:
    _count(field, values, count_max)
    for key, value in values.items():
        _text(f"{field} key", key, KEY_CHARACTERS_MAX)
        _text(f"{field}[{key}]", value, VALUE_CHARACTERS_MAX)
