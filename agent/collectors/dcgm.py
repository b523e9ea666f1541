"""DCGM's profiling, health watches, policy violations, XIDs, NVSwitches and vGPUs.

Mode `listen` reads only values that other clients have the engine watch. Mode `watch` adds watches
of its own, and yields to a profiler. Neither mode starts an engine, sets a policy or runs a
diagnostic. An engine that hangs is abandoned like a driver, in its own lane.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ...contract.block import Block
from ...contract.wire.telemetry_pb2 import HealthEvent
from ...ext import dcgm as library
from ...ext.dcgm import Dcgm, DcgmAbsent, DcgmError, Incident, Violation
from ..clock import Clock, SystemClock
from ..collector import NO_DATA_TURNS, AccessDenied, Collector, NoData
from ..events import EventPublisher
from ..hardware.files import Roots
from ..xid_reports import DUPLICATE_NS_MAX, NVML_XIDS, SECOND_NS, XID_DEDUPLICATOR
from . import dcgm_fields as fields
from .dcgm_fields import DcgmGpu, ProfilingReader
from .dcgm_parts import LINK_SXIDS, SWITCH_SXIDS, VIRTUALIZATION_MODE, EngineParts, link_parts

#: Timeout of a connection.
CONNECT_MILLISECONDS = 500
#: Interval of attempts to reach an engine that does not respond.
RETRY_SECONDS = 10
#: Interval of reads of health and XIDs; an engine's own watches are not faster.
HEALTH_SECONDS = 10
#: Interval at which groups and unwatched fields are listed again, and failed watches retried.
RECHECK_SECONDS = 60
#: An active incident is reported again at this interval, else the aggregator forgets it.
RETELL_SECONDS = 300
#: The agent's counts about DCGM are reported at a change and at this interval: a reading is stale
#: after 5 s.
SHOWN_SECONDS = 3
#: Maximum of active incidents, and of waiting XIDs; further ones are not reported.
INCIDENTS_MAX, XIDS_MAX = 256, 256
#: Sampling interval of the engine in mode `watch`.
WATCH_SECONDS = 1.0
FIELD_GROUP = "gangline"
#: DCGM's errors for entities, fields or modules that are unsupported or that no client watches.
NOTHING_THERE = (
    library.NOT_SUPPORTED,
    library.NO_DATA,
    library.NOT_WATCHED,
    library.MODULE_NOT_LOADED,
)

_CACHE = Path("/etc/ld.so.cache")
_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")

log = logging.getLogger(__name__)


def is_installed(roots: Roots) -> bool:
    """Return whether a client library is installed, without loading it: only the lane does."""
    if roots.dcgm_library:
        return True
    if not roots.is_this_machine:
        return False
    folders = [*_FOLDERS, *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    if any(
        Path(folder, name).exists()
        for folder in filter(None, folders)
        for name in library.LIBRARIES
    ):
        return True
    try:
        cache = _CACHE.read_bytes()
    except OSError:
        return False
    return any(name.encode() in cache for name in library.LIBRARIES)


def version_error(of_library: str, of_engine: str) -> str:
    """Return a message about versions with different majors; "" if they are equal or one is unknown.

    Most calls work across majors. Only single readings then fail, and their errors do not name the cause.
    """
    majors = [version.partition(".")[0] for version in (of_library, of_engine)]
    if not all(majors) or majors[0] == majors[1]:
        return ""
    ended = "; DCGM 3 is at its end of life" if "3" in majors else ""
    return (
        f"DCGM's library is {of_library} and its host engine {of_engine}: with different major versions readings are "
        f"missing{ended}; install the same major of both"
    )


class DcgmListener(Collector):
    """DCGM's readings and events.

    `collect` raises NoData without an engine, AccessDenied if the engine refuses.
    """

    name = "dcgm_1s"

    def __init__(self, roots: Roots, clock: Clock | None = None) -> None:
        self._roots, self._clock = roots, clock or SystemClock()
        self._reason = ""  # a permanent reason for no data
        if roots.dcgm == "off":
            self._reason = "dcgm is off"
        elif not is_installed(roots):
            self._reason = f"no DCGM: neither {' nor '.join(library.LIBRARIES)} is installed"
        self.enters_driver = not self._reason
        self._turns = 0
        self._block = Block("dcgm_1s_changes", ["host"])
        self._profiling_block: Block | None = None
        self._publisher: EventPublisher | None = None
        self._dcgm: Dcgm | None = None
        self._error: Exception | None = None
        self._retry_ns = 0
        self._gpus: dict[int, DcgmGpu] = {}
        self._profiling = ProfilingReader()
        self._profiling_ns = self._health_ns = self._groups_ns = self._watch_ns = 0
        self._watch_error = self._version_error = ""
        self._watching: set[str] = set()  # the watches that this connection has set
        self._watched_health: dict[int, int] = {}  # group -> systems
        self._incidents = _StandingIncidents()
        self._codes = _CodeReports()
        self._parts = EngineParts(roots)
        self._zeros = self._reconnects = self._shown_ns = 0
        self._counts: tuple[int, ...] = ()
        self._rows: dict[int, int] = {}  # GPU that needs profiling -> row of its block

    def start(self, publisher: EventPublisher) -> None:
        self._publisher = publisher

    def close(self) -> None:
        self._publisher = None

    def skip(self) -> bool:
        """With a permanent reason for no data, report it in one turn of ten."""
        self._turns += 1
        return bool(self._reason) and self._turns % NO_DATA_TURNS != 1

    def collect(self) -> Sequence[Block]:
        """Read new values; see the class."""
        if self._reason:
            raise NoData(self._reason)
        now_ns = self._clock.boottime_ns()
        try:
            dcgm = self._open(now_ns)
            self.access_error = ""
            blocks = self._read(dcgm, now_ns)
        except DcgmError as error:
            self._lose(error, now_ns)
            assert self._error is not None
            raise self._error.with_traceback(None) from None
        return blocks

    def _open(self, now_ns: int) -> Dcgm:
        if self._dcgm is not None and self._dcgm.is_connected:
            return self._dcgm
        if self._error is not None and now_ns < self._retry_ns:
            raise self._error.with_traceback(None)
        if self._dcgm is None:
            try:
                self._dcgm = Dcgm(self._roots.dcgm_library)
            except DcgmAbsent as error:
                self._fail(NoData(f"no DCGM: {error}"), now_ns)
                raise self._error_now() from None
        try:
            self._dcgm.connect(self._roots.dcgm_address, CONNECT_MILLISECONDS)
        except DcgmError as error:
            self._fail(self._connect_error(error), now_ns)
            raise self._error_now() from None
        self._begin(self._dcgm, now_ns)
        return self._dcgm

    def _error_now(self) -> Exception:
        assert self._error is not None
        return self._error

    def _fail(self, error: Exception, now_ns: int) -> None:
        self._error, self._retry_ns = error, now_ns + RETRY_SECONDS * SECOND_NS

    def _connect_error(self, error: DcgmError) -> Exception:
        where = self._roots.dcgm_address
        if error.code == library.VERSION_MISMATCH:
            return AccessDenied(
                f"the host engine at {where} has another major version than the library: {error}"
            )
        if error.code == library.NO_PERMISSION:
            return AccessDenied(f"the host engine at {where} rejected the connection: {error}")
        return NoData(f"no DCGM host engine answers at {where}: {error}")

    def _lose(self, error: DcgmError, now_ns: int) -> None:
        """Disconnect; retry after RETRY_SECONDS, at once if the engine was restarted."""
        if self._dcgm is not None:
            self._dcgm.disconnect()
        self._fail(RuntimeError(f"DCGM: {error}"), now_ns)
        if error.code == library.CONNECTION_NOT_VALID:
            self._retry_ns = now_ns

    def _begin(self, dcgm: Dcgm, now_ns: int) -> None:
        """Read the GPUs' identity, once per connection: the only values requested live."""
        self._reconnects += 1
        self._zeros += self._profiling.multiplexed_zeros
        self._profiling, self._watched_health = ProfilingReader(), {}
        self._profiling_ns = self._health_ns = self._groups_ns = self._watch_ns = 0
        self._watch_error, self._watching = "", set()
        self._version_error = version_error(*dcgm.versions())
        wanted = (*fields.IDENTITY_FIELDS, VIRTUALIZATION_MODE)
        values = dcgm.latest(dcgm.devices(), wanted, live=True)
        self._parts.begin(value for value in values if value.field == VIRTUALIZATION_MODE)
        self._gpus = {gpu.number: gpu for gpu in fields.gpus_of(values)}
        self._codes.begin()
        old = [gpu for gpu in self._gpus.values() if gpu.needs_profiling]
        self._rows = {gpu.number: row for row, gpu in enumerate(old)}
        self._profiling_block = Block("gpu_fast_1s", [gpu.uuid for gpu in old]) if old else None
        self._error = None
        extra = {"cause": "dcgm.connected"}
        log.info(
            "connected to DCGM's host engine at %s: %d GPUs",
            self._roots.dcgm_address,
            len(self._gpus),
            extra=extra,
        )

    def _read(self, dcgm: Dcgm, now_ns: int) -> list[Block]:
        if self._roots.dcgm == "watch" and now_ns >= self._watch_ns:
            self._watch_ns = now_ns + RECHECK_SECONDS * SECOND_NS
            self._watch(dcgm)
        blocks = list[Block]()
        if self._profiling_block is not None and now_ns >= self._profiling_ns:
            self._read_profiling(dcgm, self._profiling_block)
            wait = 1 if self._profiling.watched else HEALTH_SECONDS
            self._profiling_ns = now_ns // SECOND_NS * SECOND_NS + wait * SECOND_NS
            blocks.append(self._profiling_block)
        if now_ns >= self._health_ns:
            self._health_ns = now_ns // SECOND_NS * SECOND_NS + HEALTH_SECONDS * SECOND_NS
            self._read_health(dcgm, now_ns)
            xids = dcgm.latest(list(self._gpus), [fields.XID])
            self._codes.take(library.ENTITY_GPU, xids, self._clock)
            part_blocks, sxids = self._parts.read(dcgm, now_ns)
            blocks += part_blocks
            for group, values in sxids.items():
                self._codes.take(group, values, self._clock)
        self._take_violations(dcgm)
        self._publish(now_ns)
        if not self.access_error:
            self.access_error = self._version_error or self._watch_error or self._parts.access_error
        if self._put_counts() or now_ns >= self._shown_ns:
            self._shown_ns = now_ns + SHOWN_SECONDS * SECOND_NS
            blocks.append(self._block)
        return blocks

    def _put_counts(self) -> bool:
        """Set the counts; return whether a count has changed."""
        systems = 0
        for watched_systems in self._watched_health.values():
            systems |= watched_systems
        zeros = self._zeros + self._profiling.multiplexed_zeros
        lost = self._dcgm.lost_violations if self._dcgm else 0
        counts = (
            1, systems, len(self._incidents), self._reconnects, self._codes.reported_by_others, zeros, lost,
        )  # fmt: skip
        if counts == self._counts:
            return False
        self._counts = counts
        for column, count in enumerate(counts):
            self._block.put_int(column, 0, count)
        return True

    def _read_profiling(self, dcgm: Dcgm, block: Block) -> None:
        rows, columns = self._rows, fields.PROFILING_COLUMNS
        values = dcgm.latest(list(rows), fields.PROFILING_FIELDS)
        block.clear()
        for gpu, number, value in self._profiling.readings(values):
            block.put_float(columns[number], rows[gpu], value)
        if self._profiling.paused:
            self.access_error = "paused: DCGM's profiling metrics are blank, a profiler has the counters (dcgmi profile --resume)"

    def _read_health(self, dcgm: Dcgm, now_ns: int) -> None:
        try:
            if now_ns >= self._groups_ns:
                self._groups_ns = now_ns + RECHECK_SECONDS * SECOND_NS
                masks = {group: dcgm.health_systems(group) for group in dcgm.groups()}
                self._watched_health = {group: mask for group, mask in masks.items() if mask}
            incidents = [
                incident for group in self._watched_health for incident in dcgm.health(group)
            ]
        except DcgmError as error:
            if error.code not in (*NOTHING_THERE, library.FUNCTION_NOT_FOUND):
                raise
            self._watched_health, incidents = {}, []
        self._incidents.update(incidents, now_ns)

    def _take_violations(self, dcgm: Dcgm) -> None:
        for violation in dcgm.violations():
            if violation.condition == fields.XID_CONDITION:
                report = _CodeReport(library.ENTITY_GPU, violation.gpu, fields.XID, violation.first)
                self._codes.add(report, violation.timestamp_us, self._clock)
            elif self._publisher is not None:
                self._publisher.publish(self._violation_event(violation))

    def _watch(self, dcgm: Dcgm) -> None:
        """Set the watches that no other client has, until disconnection; retry refusals later."""
        self._watch_error = ""
        steps = (
            ("health", self._watch_health),
            ("profiling metrics", self._watch_profiling),
            (
                "XIDs",
                lambda dcgm: dcgm.watch_fields(library.ALL_GPUS, [fields.XID], FIELD_GROUP, 10.0),
            ),
            (
                "policy violations",
                lambda dcgm: dcgm.listen_to_policies(library.ALL_GPUS, fields.ALL_CONDITIONS),
            ),
            (
                "NVSwitches",
                lambda dcgm: self._parts.watch(dcgm, FIELD_GROUP, float(HEALTH_SECONDS)),
            ),
        )
        for name, step in steps:
            if name in self._watching:
                continue
            try:
                step(dcgm)
                self._watching.add(name)
            except DcgmError as error:
                if error.code == library.CONNECTION_NOT_VALID:
                    raise
                reason = "paused: " if error.code == library.IN_USE else ""
                self._watch_error = (
                    self._watch_error or f"{reason}{name} cannot be watched: {error}"
                )

    def _watch_health(self, dcgm: Dcgm) -> None:
        if not dcgm.health_systems(library.ALL_GPUS):
            dcgm.watch_health(library.ALL_GPUS, fields.ALL_SYSTEMS, float(HEALTH_SECONDS))

    def _watch_profiling(self, dcgm: Dcgm) -> None:
        if self._profiling_block is not None:
            wanted = [*fields.PROFILING_COLUMNS, fields.GRAPHICS_ACTIVE]
            dcgm.watch_fields(library.ALL_GPUS, wanted, f"{FIELD_GROUP}-profiling", WATCH_SECONDS)

    def _publish(self, now_ns: int) -> None:
        publisher = self._publisher
        if publisher is None:
            return
        for incident, began_ns, revision in self._incidents.due(now_ns):
            publisher.publish(self._incident_event(incident, began_ns, revision, now_ns))
        for report, at_ns in self._codes.due(now_ns, self._addresses_of):
            if report.group == library.ENTITY_GPU:
                publisher.publish(_xid_event(self._gpus[report.entity], report.code, at_ns))
            else:
                device = self._parts.switch_key(report.group, report.entity)
                publisher.publish(_sxid_event(report, device, at_ns))

    def _addresses_of(self, report: _CodeReport) -> Sequence[str]:
        """Return the PCI addresses under which the kernel log may have named the device."""
        if report.group != library.ENTITY_GPU:
            return self._parts.addresses_of(report.group, report.entity)
        gpu = self._gpus.get(report.entity)
        return (gpu.address,) if gpu else ()

    def _device(self, group: int, number: int) -> tuple[str, str]:
        """Return kind and name of an entity: a GPU's UUID, or else DCGM's number."""
        kind = fields.ENTITY_KINDS.get(group, f"entity_{group}")
        gpu = self._gpus.get(number) if group == library.ENTITY_GPU else None
        return kind, gpu.uuid if gpu else f"{kind}{number}"

    def _incident_event(
        self, incident: Incident, began_ns: int, revision: int, now_ns: int
    ) -> HealthEvent:
        kind, device = self._device(incident.entity_group, incident.entity)
        is_failure = incident.health >= fields.FAILURE
        return HealthEvent(
            event_id=f"dcgm/{device}/{incident.system:x}/{incident.code}/{began_ns}",
            device_kind=kind,
            device=device,
            name="gpu.dcgm_failure" if is_failure else "gpu.dcgm_warning",
            code=incident.code,
            message=fields.incident_text(incident),
            boottime_ns=began_ns,
            last_boottime_ns=now_ns,
            revision=revision,
            count=revision + 1,
            attributes={
                "source": "dcgm",
                "system": fields.HEALTH_SYSTEMS.get(incident.system, f"{incident.system:#x}"),
                "severity": "failure" if is_failure else "warning",
            },
        )

    def _violation_event(self, violation: Violation) -> HealthEvent:
        _, device = self._device(library.ENTITY_GPU, violation.gpu)
        return HealthEvent(
            device_kind="gpu",
            device="host" if violation.gpu == library.NO_GPU else device,
            name="gpu.dcgm_policy",
            code=violation.condition,
            message=fields.violation_text(violation),
            boottime_ns=_boottime_ns(violation.timestamp_us, self._clock),
            attributes={"source": "dcgm"},
        )


def _boottime_ns(timestamp_us: int, clock: Clock) -> int:
    """Return the boot time of a DCGM timestamp, which is host wall-clock time, at most now."""
    now_ns = clock.boottime_ns()
    return max(1, min(now_ns, now_ns - (clock.wall_ns() - timestamp_us * 1000)))


def _xid_event(gpu: DcgmGpu, code: int, at_ns: int) -> HealthEvent:
    return HealthEvent(
        device_kind="gpu",
        device=gpu.uuid,
        name="gpu.xid",
        code=code,
        message=f"DCGM: XID {code}",
        boottime_ns=at_ns,
        attributes={"source": "dcgm", "pci_address": gpu.address},
    )


def _sxid_event(report: _CodeReport, device: str, at_ns: int) -> HealthEvent:
    """Return an SXID in the form of the kernel log's line."""
    is_fatal = {**SWITCH_SXIDS, **LINK_SXIDS}[report.field]
    is_of_link = report.group == library.ENTITY_LINK
    link = f", Link {link_parts(report.entity)[1]}" if is_of_link else ""
    message = f"DCGM: SXid {report.code}, {'Fatal' if is_fatal else 'Non-fatal'}{link}"
    from ...contract.xid.decode import (
        decode,  # only a sampler with a switch imports its table
    )

    attributes = decode(report.code, message, "", "sxid").attributes
    return HealthEvent(
        device_kind="nvswitch",
        device=device,
        name="nvswitch.sxid",
        code=report.code,
        message=message,
        boottime_ns=at_ns,
        attributes={**attributes, "source": "dcgm"},
    )


class _StandingIncidents:
    """Active incidents of DCGM's health watches, with their begin and last report."""

    def __init__(self) -> None:
        self._standing: dict[tuple[int, int, int, int], tuple[Incident, int, int, int]] = {}

    def __len__(self) -> int:
        return len(self._standing)

    def update(self, found: Sequence[Incident], now_ns: int) -> None:
        """Replace the active incidents; report no end, as an empty list does not prove health."""
        new = dict[tuple[int, int, int, int], tuple[Incident, int, int, int]]()
        for incident in found[:INCIDENTS_MAX]:
            if incident.health >= fields.WARNING:
                key = (incident.entity_group, incident.entity, incident.system, incident.code)
                _, began_ns, revision, published_ns = self._standing.get(
                    key, (incident, now_ns, -1, 0)
                )
                new[key] = incident, began_ns, revision, published_ns
        self._standing = new

    def due(self, now_ns: int) -> list[tuple[Incident, int, int]]:
        """Return (incident, begin, revision) if new or last reported RETELL_SECONDS ago."""
        due = list[tuple[Incident, int, int]]()
        for key, (incident, began_ns, revision, published_ns) in self._standing.items():
            if revision < 0 or now_ns - published_ns >= RETELL_SECONDS * SECOND_NS:
                self._standing[key] = incident, began_ns, revision + 1, now_ns
                due.append((incident, began_ns, revision + 1))
        return due


class _CodeReport(NamedTuple):
    """The code of an XID, or of an SXID of a switch or a link, in a DCGM field."""

    group: int
    entity: int
    field: int
    code: int


class _CodeReports:
    """XIDs and SXIDs from DCGM, reported only if neither the kernel log nor NVML has shown them."""

    def __init__(self) -> None:
        self.reported_by_others = 0
        #: (kind, entity, field) -> the last code.
        self._last: dict[tuple[int, int, int], int] = {}
        self._waiting: list[tuple[_CodeReport, int]] = []  # and its boot time

    def begin(self) -> None:
        """Forget the last codes: the fields of a new connection show old codes."""
        self._last = {}

    def take(self, group: int, values: Sequence[library.FieldValue], clock: Clock) -> None:
        """Take values of one kind of entity; a field keeps its last code: only a change is new."""
        for value in values:
            code = value.value if isinstance(value.value, int) else 0
            key = (group, value.entity, value.field)
            if code > 0 and self._last.get(key, code) != code:
                self.add(_CodeReport(*key, code), value.timestamp_us, clock)
            self._last[key] = code

    def add(self, report: _CodeReport, timestamp_us: int, clock: Clock) -> None:
        """Queue a code until the other sources may have shown it.

        A code without a GPU is dropped: only the other sources report such codes.
        """
        if report.entity != library.NO_GPU and len(self._waiting) < XIDS_MAX:
            self._waiting.append((report, _boottime_ns(timestamp_us, clock)))

    def due(
        self, now_ns: int, addresses_of: Callable[[_CodeReport], Sequence[str]]
    ) -> list[tuple[_CodeReport, int]]:
        """Return reports, with boot times, that have waited and no other source has shown.

        *addresses_of*: the PCI addresses under which other sources may have shown the report. A
        switch and its link report the same SXID; the link's is returned.
        """
        old = {waiting for waiting in self._waiting if now_ns - waiting[1] >= 2 * DUPLICATE_NS_MAX}
        self._waiting = [waiting for waiting in self._waiting if waiting not in old]
        due, seen = list[tuple[_CodeReport, int]](), set[tuple[int, int]]()
        for report, at_ns in sorted(old, key=lambda waiting: (-waiting[0].group, waiting[1])):
            addresses = addresses_of(report)
            if report.group == library.ENTITY_LINK:
                seen.add((link_parts(report.entity)[0], report.code))
            is_of_link = (
                report.group == library.ENTITY_SWITCH and (report.entity, report.code) in seen
            )
            if not addresses or is_of_link:
                continue
            if any(
                source.was_recorded(address, report.code, at_ns)
                for source in (XID_DEDUPLICATOR, NVML_XIDS)
                for address in addresses
            ):
                self.reported_by_others += 1
            else:
                due.append((report, at_ns))
        return due
