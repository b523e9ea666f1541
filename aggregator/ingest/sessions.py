"""Sessions: which agent owns which host name, and validation of its requests.

The owner of a name keeps it; another agent waits until the owner is silent.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from ...contract.frame import DEVICE_BYTES_MAX
from ...contract.signal import Kind
from ...contract.signals import BY_ID, BY_NAME, FORMER_EVENTS
from ...contract.wire.telemetry_pb2 import (
    HealthEvent,
    RegisterNodeRequest,
    ReportEventsRequest,
    SignalDefinition,
)
from ..errors import (
    CAPACITY_RETRY_SECONDS,
    AlreadyExists,
    InvalidArgument,
    NoSession,
    PermissionDenied,
    ResourceExhausted,
)
from ..principal import LOCAL, NAME_CHARACTERS_MAX, Principal, Role, is_name
from ..store.frame_rows import ForeignSignal
from .backlog import HostQuota
from .findings import ActiveFindings

#: A name is free after its owner was silent for this time.
SILENT_SECONDS = 60
_SILENT_NS = SILENT_SECONDS * 1_000_000_000
#: A rebooted machine that can prove to be the owner gets its name after this time: a running owner
#: sends a frame each second.
REBOOT_SILENT_SECONDS = 10
#: Messages of the owner that arrive up to this time after the new boot began were in transit.
DELIVERY_SECONDS = 2
#: Characters shown of a refused name, which may have a megabyte.
NAME_CHARACTERS_SHOWN = 253

#: Supported protocol versions: two before to one after this version.
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
#: Size of an event on disk, without unknown fields.
EVENT_BYTES_MAX = 64 << 10
EVENT_ID_CHARACTERS_MAX = 128
MESSAGE_CHARACTERS_MAX = 4096
#: Contents of an event besides its message: a storm is a count and its distinct forms.
FORMS_MAX = 32
FORM_CHARACTERS_MAX = 256
EVENT_ATTRIBUTES_MAX = 32
PROCESS_NAME_CHARACTERS_MAX = 64
#: No kernel writes more lines in one boot: 10^15 is a million per second for thirty years.
EVENT_COUNT_MAX = 10**15
ID_BYTES = 16
#: Cache of valid dictionaries of signals: a fleet has few versions of the agent, and checking 800
#: signals takes a third of a registration. Longer dictionaries are not cached.
CACHED_DICTIONARIES_MAX, CACHED_DICTIONARY_BYTES_MAX = 32, 1 << 17
_SIGNAL = re.compile(r"[a-z][a-z0-9_]*\.[a-z0-9_]+")
_KINDS = frozenset(Kind)


@dataclass(slots=True)
class Session:
    """One agent's registration. Ends when the same name registers again."""

    host: str
    run_id: bytes
    boot_id: bytes
    address: str
    last_received_ns: int
    token: str = ""
    #: The caller that registered the host, with its proof (`principal.py`); no other may send.
    principal: Principal = LOCAL
    streams: int = 0
    ended: bool = False
    foreign: Mapping[int, ForeignSignal] = field(default_factory=dict)
    #: Limit of the agent's flight recorder (0: it has none), and the agent's version.
    recording_seconds_max: int = 0
    agent_version: str = ""
    #: Time of its boot, aggregator's clock; 0: unknown.
    booted_ns: int = 0
    #: Quota of the host's late frames, created by its first stream, for all registrations.
    quota: HostQuota | None = None

    def is_silent(self, now_ns: int) -> bool:
        """Return whether its name is free."""
        return now_ns - self.last_received_ns >= _SILENT_NS

    def __str__(self) -> str:
        return f"run {self.run_id.hex()[:8]} from {self.address}"


class Sessions:
    """All sessions by host name. Owned by the event loop's thread."""

    def __init__(self, findings: ActiveFindings, hosts_max: int) -> None:
        self._findings = findings
        self._hosts_max = hosts_max
        self._by_host: dict[str, Session] = {}
        self._by_token: dict[str, Session] = {}
        self._by_run: dict[bytes, Session] = {}

    def __len__(self) -> int:
        """Return the number of registered or restored hosts."""
        return len(self._by_host)

    def restore(self, host: str, run_id: bytes, boot_id: bytes, address: str, now_ns: int) -> None:
        """Restore a host from the store as owner of its name, as if it had just sent a message."""
        self._add(Session(host, run_id, boot_id, address, now_ns))

    def register(
        self,
        host: str,
        run_id: bytes,
        boot_id: bytes,
        address: str,
        now_ns: int,
        principal: Principal = LOCAL,
        *,
        boottime_ns: int = 0,
    ) -> Session:
        """Return a new session, or the current one if it has the same connection: its stream
        continues.

        *boottime_ns*: time since the machine's boot; 0: unknown. Raises PermissionDenied if
        *principal* may not write as *host*, AlreadyExists, or ResourceExhausted.
        """
        check_name(principal, host)
        new = Session(host, run_id, boot_id, address, now_ns, secrets.token_hex(16), principal)
        new.booted_ns = now_ns - boottime_ns if boottime_ns else 0
        incumbent = self._by_host.get(host)
        if incumbent is not None and _is_same(incumbent, new):
            incumbent.last_received_ns = now_ns
            return incumbent
        if incumbent is None and len(self._by_host) >= self._hosts_max:
            message = f"{self._hosts_max} hosts are registered, which is the limit (hosts_max)"
            raise ResourceExhausted(message, CAPACITY_RETRY_SECONDS)
        if incumbent is not None and not _may_replace(incumbent, new, now_ns):
            if new.principal.proof <= incumbent.principal.proof:
                raise AlreadyExists(self._report_duplicate_name(incumbent, new, now_ns))
            self._report_takeover(incumbent, new, now_ns)
        self._check_for_clone(new, now_ns)
        if incumbent is not None:
            new.quota = incumbent.quota
            self._end(incumbent)
        self._add(new)
        return new

    def is_registered(self, host: str, run_id: bytes, boot_id: bytes, address: str) -> bool:
        """Return whether this agent is registered on this connection."""
        incumbent = self._by_host.get(host)
        return incumbent is not None and _is_same(
            incumbent, Session(host, run_id, boot_id, address, 0)
        )

    def last_received_ns(self, host: str) -> int:
        """Return the time of a registered host's last message."""
        return self._by_host[host].last_received_ns

    def apply_clock_jump(self, jump_ns: int, now_ns: int) -> None:
        """Adjust times to a clock set forward by *jump_ns*, so that no name becomes free by it."""
        for session in self._by_host.values():
            if session.last_received_ns <= now_ns - jump_ns:
                session.last_received_ns += jump_ns

    def of_host(self, host: str) -> Session | None:
        """Return the session of a host, None if the host is unknown."""
        return self._by_host.get(host)

    def names(self) -> list[str]:
        return list(self._by_host)

    def is_silent(self, host: str, now_ns: int) -> bool:
        """Return whether a host's name is free: unknown, or silent for SILENT_SECONDS."""
        session = self._by_host.get(host)
        return session is None or session.is_silent(now_ns)

    def get(self, token: str, principal: Principal = LOCAL) -> Session:
        """Return the session of *token* if *principal* registered it, else raise NoSession."""
        session = self._by_token.get(token)
        if session is None or (session.principal.role, session.principal.name) != (
            principal.role,
            principal.name,
        ):
            raise NoSession(
                "metadata gangline-session names no session of this aggregator "
                "(it may have restarted): call RegisterNode first"
            )
        return session

    def _add(self, session: Session) -> None:
        self._by_host[session.host] = session
        self._by_run[session.run_id] = session
        if session.token:
            self._by_token[session.token] = session

    def _end(self, session: Session) -> None:
        session.ended = True
        self._by_token.pop(session.token, None)
        if self._by_run.get(session.run_id) is session:
            del self._by_run[session.run_id]

    def _report_duplicate_name(self, incumbent: Session, new: Session, now_ns: int) -> str:
        cloned = incumbent.run_id == new.run_id
        if cloned:
            name = "identity.cloned_image"
            reason = "both have the same run id: a cloned machine image"
            boots = f"boot {incumbent.boot_id.hex()[:8]}", f"boot {new.boot_id.hex()[:8]}"
        else:
            name, reason = "identity.duplicate_name", "two hosts claim one name"
            boots = "", ""
        if cloned:
            remedy = "give the newcomer an empty spool folder and a name of its own"
        else:
            remedy = (
                "rename one of them; if the incumbent is gone, its name is free after "
                f"{SILENT_SECONDS} s of silence"
            )
        message = (
            f"{reason}: incumbent {incumbent} {boots[0]}".rstrip()
            + f" stays, newcomer {new} {boots[1]}".rstrip()
            + f" is refused; {remedy}"
        )
        self._findings.find(new.host, name, message, now_ns, subject=_machine(new), expires=True)
        return f"name {new.host!r} is taken: {message}"

    def _report_takeover(self, incumbent: Session, new: Session, now_ns: int) -> None:
        message = (
            f"two hosts claim one name: newcomer {new} ({new.principal.auth_method}) takes it over from incumbent "
            f"{incumbent} ({incumbent.principal.auth_method}), whose proof is weaker or older; "
            "rename one of them, or "
            "stop the incumbent if it should not be"
        )
        self._findings.find(
            new.host,
            "identity.duplicate_name",
            message,
            now_ns,
            subject=_machine(incumbent),
            expires=True,
        )

    def _check_for_clone(self, new: Session, now_ns: int) -> None:
        # Two machines with different names and the same run id: both continue, and both are
        # reported.
        other = self._by_run.get(new.run_id)
        if other is None or other.host == new.host or other.boot_id == new.boot_id:
            return
        if other.is_silent(now_ns):
            return  # renamed and rebooted, most likely
        for first, second in ((new, other), (other, new)):
            message = (
                f"{first.host} ({first.address}) and {second.host} ({second.address}) have the same run id "
                f"{new.run_id.hex()[:8]}: one is a clone of the other's disk; "
                "empty the agent's spool folder on one of them"
            )
            self._findings.find(
                first.host,
                "identity.cloned_image",
                message,
                now_ns,
                subject=second.host,
                expires=True,
            )


def check_name(principal: Principal, host: str) -> None:
    """Raise PermissionDenied if *principal* may not write as *host*."""
    if not principal.writes_as(host):
        raise PermissionDenied(
            f"{principal} writes as its own host only, not as {host[:NAME_CHARACTERS_SHOWN]!r}: the agent's setting host, "
            "or the machine's name, must be the name that its certificate or token was made for"
        )


def _machine(session: Session) -> str:
    """Return the address without the port, which changes with every connection."""
    return session.address.rpartition(":")[0] or session.address


def _is_same(incumbent: Session, new: Session) -> bool:
    """Return whether an agent registers again on its connection."""
    return bool(incumbent.token) and (
        (incumbent.run_id, incumbent.boot_id, incumbent.address, incumbent.principal)
        == (new.run_id, new.boot_id, new.address, new.principal)
    )


def _may_replace(incumbent: Session, new: Session, now_ns: int) -> bool:
    if incumbent.is_silent(now_ns):
        return True
    has_same_spool = incumbent.run_id == new.run_id
    if incumbent.boot_id == new.boot_id:
        return has_same_spool  # the agent was restarted
    # Diskless hosts begin a new spool at each boot; their login identifies them.
    is_same_host = has_same_spool or _has_same_login(incumbent, new)
    if is_same_host or _machine(incumbent) == _machine(new):
        # The old stream stays open until TCP gives up, but is silent since the new boot.
        until_ns = incumbent.last_received_ns - DELIVERY_SECONDS * 1_000_000_000
        if new.booted_ns and new.booted_ns >= until_ns:
            return True
    silent_ns = now_ns - incumbent.last_received_ns
    is_gone = not incumbent.streams or silent_ns >= REBOOT_SILENT_SECONDS * 1_000_000_000
    return is_same_host and is_gone


def _has_same_login(incumbent: Session, new: Session) -> bool:
    """Return whether both sessions proved the same login of a single host."""
    login = new.principal.login
    return new.principal.role is Role.AGENT and bool(login) and login == incumbent.principal.login


def check_request(request: RegisterNodeRequest) -> Mapping[int, ForeignSignal]:
    """Check all fields; return the signals that only this agent knows. Raises InvalidArgument."""
    version = request.protocol_version
    if not PROTOCOL_VERSION_MIN <= version <= PROTOCOL_VERSION_MAX:
        raise InvalidArgument(
            "protocol_version",
            f"{version}; this aggregator speaks {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION_MAX}",
        )
    if not is_name(request.node):
        raise InvalidArgument(
            "node",
            f"{request.node[:64]!r} is not a host name: letters, digits, '.', '_' and '-', "
            f"at most {NAME_CHARACTERS_MAX}",
        )
    for name in ("run_id", "boot_id"):
        length = len(getattr(request, name))
        if length != ID_BYTES:
            raise InvalidArgument(name, f"{length} bytes, expected {ID_BYTES}")
    _check_text("agent_version", request.agent_version, VERSION_CHARACTERS_MAX)
    _check_map("labels", request.labels, LABELS_MAX)
    _check_devices(request)
    _check_count("signals", request.signals, SIGNALS_MAX)
    canonical = RegisterNodeRequest()
    canonical.signals.MergeFrom(request.signals)
    dictionary = canonical.SerializeToString()
    check = _foreign if len(dictionary) <= CACHED_DICTIONARY_BYTES_MAX else _foreign.__wrapped__
    return check(dictionary)


@lru_cache(maxsize=CACHED_DICTIONARIES_MAX)
def _foreign(dictionary: bytes) -> Mapping[int, ForeignSignal]:
    """Return a dictionary's unknown signals. Raises InvalidArgument, which is not cached."""
    foreign: dict[int, ForeignSignal] = {}
    for signal in RegisterNodeRequest.FromString(dictionary).signals:
        _check_signal(signal, foreign)
    return MappingProxyType(foreign)


def _check_devices(request: RegisterNodeRequest) -> None:
    _check_count("devices", request.devices, DEVICES_MAX)
    for device in request.devices:
        _check_text("devices.kind", device.kind, KIND_CHARACTERS_MAX)
        if not device.key or len(device.key.encode()) > DEVICE_BYTES_MAX:
            raise InvalidArgument(
                "devices.key", f"{device.key[:64]!r}: 1 to {DEVICE_BYTES_MAX} bytes"
            )
        _check_map("devices.attributes", device.attributes, ATTRIBUTES_MAX)


def _check_signal(signal: SignalDefinition, foreign: dict[int, ForeignSignal]) -> None:
    # An id is never reused: the same id must have the same meaning here.
    number, name = signal.signal_id, signal.name
    if not 0 < number < 65536:
        raise InvalidArgument("signals.signal_id", f"{number} ({name[:64]}): 1 to 65535")
    if len(name) > SIGNAL_NAME_CHARACTERS_MAX or not _SIGNAL.fullmatch(name):
        raise InvalidArgument(
            "signals.name",
            f"{name[:64]!r}: expected kind.name_unit, at most {SIGNAL_NAME_CHARACTERS_MAX} characters",
        )
    if signal.kind not in _KINDS:
        raise InvalidArgument(
            "signals.kind", f"{signal.kind[:32]!r} ({name}): one of {', '.join(Kind)}"
        )
    name = FORMER_EVENTS.get(name, name)
    known_signal = BY_ID.get(number)
    known = (known_signal.name, str(known_signal.kind)) if known_signal else None
    if known_signal is None and name in BY_NAME:
        raise InvalidArgument(
            "signals",
            f"{name} has id {number} there and {BY_NAME[name].signal_id} here; a name never "
            "changes its signal, so agent and aggregator are of different builds",
        )
    if known is None and number not in foreign:
        foreign[number] = ForeignSignal(name, signal.kind == Kind.GAUGE)
        return
    known = known or (foreign[number].name, signal.kind)
    if known != (name, signal.kind):
        raise InvalidArgument(
            "signals",
            f"id {number} is {name} ({signal.kind}) there and {known[0]} ({known[1]}) here; an "
            "id never changes its signal, so agent and aggregator are of different builds",
        )


def check_events(request: ReportEventsRequest) -> None:
    """Check all events, and drop unknown fields. Raises InvalidArgument: no event is accepted."""
    request.DiscardUnknownFields()
    _check_count("events", request.events, EVENTS_MAX)
    for event in request.events:
        _check_event(event)


def _check_event(event: HealthEvent) -> None:
    if not event.event_id:
        raise InvalidArgument(
            "events.event_id", "empty: an event without one could be stored twice"
        )
    _check_text("events.event_id", event.event_id, EVENT_ID_CHARACTERS_MAX)
    _check_text("events.device_kind", event.device_kind, KIND_CHARACTERS_MAX)
    _check_text("events.device", event.device, DEVICE_BYTES_MAX)
    _check_text("events.name", event.name, SIGNAL_NAME_CHARACTERS_MAX)
    _check_text("events.message", event.message, MESSAGE_CHARACTERS_MAX)
    _check_text("events.process_name", event.process_name, PROCESS_NAME_CHARACTERS_MAX)
    _check_count("events.forms", event.forms, FORMS_MAX)
    for form in event.forms:
        _check_text("events.forms", form, FORM_CHARACTERS_MAX)
    _check_map("events.attributes", event.attributes, EVENT_ATTRIBUTES_MAX)
    if len(event.boot_id) not in (0, ID_BYTES):
        raise InvalidArgument(
            "events.boot_id", f"{ID_BYTES} bytes or none, got {len(event.boot_id)}"
        )
    if event.count > EVENT_COUNT_MAX:
        raise InvalidArgument(
            "events.count", f"{event.count} lines of one event, at most {EVENT_COUNT_MAX}"
        )
    if (size := event.ByteSize()) > EVENT_BYTES_MAX:
        raise InvalidArgument("events", f"{size} bytes of one event, at most {EVENT_BYTES_MAX}")


def _check_count(field: str, values: Sized, count_max: int) -> None:
    if len(values) > count_max:
        raise InvalidArgument(field, f"{len(values)} of them, at most {count_max}")


def _check_text(field: str, text: str, characters_max: int) -> None:
    if len(text) > characters_max:
        raise InvalidArgument(field, f"{len(text)} characters, at most {characters_max}")


def _check_map(field: str, values: Mapping[str, str], count_max: int) -> None:
    _check_count(field, values, count_max)
    for key, value in values.items():
        _check_text(f"{field} key", key, KEY_CHARACTERS_MAX)
        _check_text(f"{field}[{key}]", value, VALUE_CHARACTERS_MAX)
