"""Status of this host without an aggregator: findings each second and at each event, status file, health check.

Call `update` only in the daemon's thread. `health_check` and `document` are safe in any thread:
their data is replaced atomically.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ...contract.host_policy import Policy, builtin
from ...contract.settings import SettingsError
from ...contract.signals import BY_NAME
from ...contract.wire.telemetry_pb2 import HealthEvent, IngestAck, RegisterNodeResponse
from ..clock import Clock
from ..collector import CollectOutcome, CollectResult
from ..config import STATUS_NAME, AgentConfig
from ..gpu_list import EVENT_NAME as MISSING
from ..gpu_list import GpuInventory, GpuList
from ..hardware.files import read_text
from ..hardware.nvidia import kernel_driver_version
from ..latest import LatestReadings
from ..registration import version
from ..sampler.quarantine import DeviceState
from ..spool.event_queue import EventQueue
from ..spool.spool import Spool
from ..transport.client import Client
from . import check
from .check import FORMAT, NAMES_MAX, STATUS_BYTES_MAX, printable
from .findings import HostFindings
from .findings_state import FindingsState, FindingsStateFile
from .policy_file import CHECK_SECONDS, ActivePermit, Permit, PolicyFile
from .policy_rules import ClearedFinding, GpuResetDetector, HostFinding

#: Period in which the file is renewed. Readers take the agent of an older file for dead.
RENEW_SECONDS = 10.0
_MODE = 0o644


def finding_fields(finding: HostFinding, address: str) -> dict[str, Any]:
    """Return a finding's fields in the document. *address*: a GPU's PCI address."""
    return {
        "name": finding.name,
        "device": printable(finding.device),
        "address": address,
        "severity": str(finding.severity),
        "problem": "user" if finding.severity == "application" else "node",
        "words": printable(finding.message),
        "action": finding.action,
        "scope": finding.scope,
        "clears_when": finding.clears_when,
        "since_ns": finding.since_ns,
        "confirmed_ns": finding.confirmed_ns,
        "count": finding.count,
        "enforceable": finding.enforceable,
    }


def cleared_fields(cleared: ClearedFinding) -> dict[str, Any]:
    """Return a cleared finding's fields in the document."""
    finding = cleared.finding
    return {
        "name": finding.name,
        "device": printable(finding.device),
        "words": printable(finding.message),
        "since_ns": finding.since_ns,
        "cleared_ns": cleared.cleared_ns,
        "why": cleared.reason,
    }


def device_fields(device: DeviceState) -> dict[str, Any]:
    """Return the document's fields of a device that is hung, or was up to a minute ago."""
    return {
        "lane": device.group,
        "device": printable(device.device),
        "state": device.state.name.lower(),
        "call": printable(device.call),
        "hung_seconds": round(device.hung_seconds, 1),
        "words": printable(device.message),
    }


def document(
    constant_fields: Mapping[str, Any],
    now_ns: int,
    *,
    findings: Sequence[dict[str, Any]],
    left_out: int,
    notes: Iterable[str],
    **fields: Any,
) -> dict[str, Any]:
    """Return the document. *constant_fields* never change; *fields*: enforcing, permit, devices."""
    return {
        "format": FORMAT,
        **constant_fields,
        "boottime_ns": now_ns,
        "findings": list(findings),
        "left_out": left_out,
        "notes": [printable(note) for note in notes][:NAMES_MAX],
        **fields,
    }


def encode(fields: dict[str, Any]) -> bytes:
    """Return the file's content, at most STATUS_BYTES_MAX; the mildest findings are left out."""
    content = json.dumps(fields).encode()
    while len(content) > STATUS_BYTES_MAX:
        half = len(fields["findings"]) // 2
        dropped = len(fields["findings"]) - half
        fields = {**fields, "findings": fields["findings"][:half], "cleared": [], "devices": []}
        fields["left_out"] += dropped
        content = json.dumps(fields).encode()
        if not half and len(content) > STATUS_BYTES_MAX:
            fields["notes"] = []
            content = json.dumps(fields).encode()
            break
    return content


class StatusFile:
    """The file at *path*. Never raises; `last_error` has the last failure."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last_error = ""
        self.writes = 0
        self._new = path.with_name(f".{path.name}.new")

    def write(self, content: bytes) -> bool:
        """Replace the file; return success. Never synced: a later boot does not read it."""
        try:
            self._replace(content)
        except OSError as error:
            self.last_error = f"{self.path}: {error.strerror}"
            with suppress(OSError):
                self._new.unlink()
            return False
        self.last_error = ""
        self.writes += 1
        return True

    def _replace(self, content: bytes) -> None:
        file = self._open()
        try:
            os.fchmod(file, _MODE)  # despite the umask: every user may read the host's status
            written = 0
            while written < len(content):
                written += os.write(file, content[written:])
        finally:
            os.close(file)
        os.replace(self._new, self.path)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            return os.open(self._new, flags, _MODE)
        except FileNotFoundError:  # the folder does not exist yet, or was removed
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            return os.open(self._new, flags, _MODE)

    def remove(self) -> None:
        """Remove the file at an orderly end: readers then see that no agent runs."""
        with suppress(OSError):
            self.path.unlink()


STATE = BY_NAME["gpu.driver_updating_state"]
#: Age at which a reading no longer counts: the GPUs may have been released.
FRESH_NS = 10_000_000_000


def driver_mismatch(latest: LatestReadings, proc: Path, now_ns: int) -> str:
    """Return a text if the versions of NVML and driver differ (an update), else "". Any thread."""
    readings = latest.tables.get(STATE.table)
    if readings is None or now_ns - readings.boottime_ns > FRESH_NS:
        return ""
    if not any(value for _, value in readings.values(STATE.signal_id)):
        return ""
    version = kernel_driver_version(proc)
    loaded = f"; the kernel has {version} loaded" if version else ""
    return f"being updated: NVML and the driver are of different versions{loaded}"


#: Groups of unread sources in the document.
GROUPS_MAX = 32


class Verdict(NamedTuple):
    """The aggregator's state of this host. *at_ns*: boot time of the last message that had it."""

    state: str
    reason: str
    at_ns: int


class UnreadSources(NamedTuple):
    """Sources that are not read for the same reason."""

    outcome: str
    words: str
    names: list[str]


class SelfStatus:
    """State of the agent itself: connection, spool, unread sources. For the daemon's thread."""

    def __init__(
        self,
        connection: Client,
        frames: Spool,
        events: EventQueue,
        results: Callable[[], Sequence[CollectResult]],
        clock: Clock,
    ) -> None:
        """*results* returns each source's last result; the same object until a result differs."""
        self._connection, self._frames, self._events = connection, frames, events
        self._results, self._clock = results, clock
        self._connected = False
        self._since_ns = clock.boottime_ns()
        self._acked_frames = frames.acknowledged_frames
        self._last_ack_ns: int | None = None
        self._last_results: Sequence[CollectResult] = ()
        self._unread: list[UnreadSources] = []
        self._unread_names: list[tuple[str, list[str]]] = []
        self._ok_count = 0
        self._verdict: Verdict | None = None  # set by the client's thread

    def update_verdict(self, message: IngestAck) -> None:
        """Store the aggregator's state of this host. For a single thread."""
        verdict = message.verdict
        self._verdict = (
            Verdict(printable(verdict.state), printable(verdict.reason), self._clock.boottime_ns())
            if message.HasField("verdict")
            else None
        )

    def update(self) -> None:
        """Store the changes since the last update."""
        now_ns = self._clock.boottime_ns()
        if self._connection.connected is not self._connected:
            self._connected, self._since_ns = self._connection.connected, now_ns
        if self._frames.acknowledged_frames != self._acked_frames:
            self._acked_frames, self._last_ack_ns = self._frames.acknowledged_frames, now_ns
        results = self._results()
        if results is not self._last_results:
            self._last_results, self._unread = results, group_unread(results)
            self._unread_names = [(group.outcome, group.names) for group in self._unread]
            self._ok_count = sum(result.outcome is CollectOutcome.OK for result in results)

    @property
    def change_key(self) -> object:
        """Return the fields whose change is published at once."""
        return self._connected, self._verdict and self._verdict.state, self._unread_names

    def fields(self) -> dict[str, Any]:
        """Return the section `agent` of the document."""
        frames, connection = self._frames, self._connection
        return {
            "pid": os.getpid(),
            "aggregator": printable(connection.target),
            "connected": self._connected,
            "since_ns": self._since_ns,
            "last_error": printable(connection.last_error),
            "last_receipt_ns": self._last_ack_ns,
            "waiting_frames": frames.unacknowledged_frames,
            "waiting_bytes": frames.bytes,
            "waiting_events": len(self._events),
            "lost_frames": frames.dropped_frames,
            "refused_frames": frames.refused_frames,
            "lost_events": self._events.dropped_events,
            "write_errors": frames.write_errors,
            "sources_well": self._ok_count,
            "verdict": self._verdict and self._verdict._asdict(),
            "sources_unread": [group._asdict() for group in self._unread],
        }


def group_unread(results: Sequence[CollectResult]) -> list[UnreadSources]:
    """Return the unread sources grouped by reason, the gravest outcome first."""
    groups: dict[tuple[CollectOutcome, str], list[str]] = {}
    for result in results:
        if result.outcome is not CollectOutcome.OK:
            names = groups.setdefault((result.outcome, printable(result.message)), [])
            if len(names) < NAMES_MAX:
                names.append(printable(result.collector))
    ordered = sorted(groups.items(), key=lambda group: (-group[0][0], group[1]))
    return [
        UnreadSources(key[0].name.lower(), key[1], names) for key, names in ordered[:GROUPS_MAX]
    ]


SECOND_NS = 1_000_000_000
#: Period of saving the state while a reset would end a finding: it records that the agent watches.
SAVE_SECONDS = 60.0

#: Updates at an event between two regular ones. Further events wait for the regular update.
EARLY_UPDATES_MAX = 10

log = logging.getLogger(__name__)


def judged_tables(config: AgentConfig) -> frozenset[str] | None:
    """Return the tables that the agent's rules use; None: any table.

    A policy of the operator may use any signal, and is tried on earlier readings.
    """
    if config.metrics_listen or config.policy_file:
        return None
    signals = (name for row in builtin().rows for name in row.signals)
    return frozenset(
        (GpuResetDetector.table, STATE.table, *(BY_NAME[name].table for name in signals))
    )


class HostHealthResult(NamedTuple):
    """Response of nvhcd.HealthCheckService/RunHealthCheck: fields 1 to 4."""

    success: bool
    exit_code: int
    output: str
    error: str


class HostStatus:
    """Findings and permit of this host. Publisher and client call `observe`, `on_response`."""

    def __init__(
        self,
        config: AgentConfig,
        latest: LatestReadings,
        clock: Clock,
        boot_id: bytes,
        *,
        gpus: Callable[[], Mapping[str, str]] = dict,
        gpu_inventory: Callable[[], GpuInventory | None] = lambda: None,
        devices: Callable[[], Sequence[DeviceState]] = tuple,
    ) -> None:
        """Load policy and saved state.

        *gpus*: UUID -> PCI address, including lost GPUs. *gpu_inventory*: the GPUs that respond.
        *devices*: devices that are hung or left out. Raises SettingsError if `enforcing` names a
        finding that cannot be enforced.
        """
        self._latest, self._clock = latest, clock
        self._gpus, self._gpu_inventory, self._devices, self._boot_id = (
            gpus,
            gpu_inventory,
            devices,
            boot_id,
        )
        #: All GPUs that this host ever had.
        self.gpu_list = GpuList(config.state_folder)
        file = config.policy_file
        self._policy = PolicyFile(
            Path(file) if file else None, config.state_folder, config.host_name
        )
        self._requested_enforcing = tuple(config.enforcing)
        self._apply_enforcing()
        if self._refusals and not file:
            raise SettingsError(self._refusals[0])
        self.permit = Permit(clock)
        driver = config.sys_root / "module/nvidia/version"
        self.findings = HostFindings(self._policy.policy, boot_id, lambda: read_text(driver) or "")
        self._state_file = FindingsStateFile(config.state_folder)
        state = self._state_file.load(boot_id)
        self.findings.restore(state, clock.boottime_ns())
        if self._state_file.last_error:
            log.warning("%s", self._state_file.last_error, extra={"cause": "findings.kept"})
            self.findings.event_findings.changed = True  # replaces the broken file
        self._saved_ns = 0
        self._saved_once_well = self.findings.once_well()
        self.file = StatusFile(config.run_path / STATUS_NAME)
        self._identity = {
            "host": config.host_name,
            "agent_version": version(),
            "boot_id": boot_id.hex(),
            "pid": os.getpid(),
        }
        #: State of the agent itself; None until there is a client.
        self.self_status: SelfStatus | None = None
        self.document: dict[str, Any] | None = None
        self._published_key: tuple[object, ...] = ()
        self._slow_state: tuple[object, ...] = ()  # policy and notes
        self._written_ns = -(1 << 62)
        self._refreshed_ns = -(1 << 62)
        self._cached_check: tuple[object, int, HostHealthResult] | None = None
        self._post: Callable[[Callable[[], None]], bool] | None = None
        self._early_requested, self._early_updates = False, 0

    def update(self) -> None:
        """Judge readings and events, and publish the result; called once a second. Never raises."""
        self._early_updates = 0
        self._update_guarded()

    def _update_early(self) -> None:
        """Judge waiting events before the next regular update."""
        self._early_requested = False
        if self.document is not None and self._early_updates < EARLY_UPDATES_MAX:
            self._early_updates += 1
            self._update_guarded()

    def _update_guarded(self) -> None:
        try:
            self._update(self._clock.boottime_ns())
        except Exception:
            log.exception("judging this host failed", extra={"cause": "answers"})

    def _update(self, now_ns: int) -> None:
        if now_ns - self._refreshed_ns >= CHECK_SECONDS * SECOND_NS:
            self._refreshed_ns = now_ns
            self._refresh_slow_state(now_ns)
        changed = self.findings.evaluate(self._latest.tables, now_ns)
        if self.findings.event_findings.changed:
            self._save_state(now_ns)
        permit, devices = self.permit.active(now_ns), self._devices()
        change_key: tuple[object, ...] = (
            self._slow_state,
            permit and permit.reason,
            [(device.device, device.state) for device in devices],
        )
        if self.self_status is not None:
            self.self_status.update()
            change_key += (self.self_status.change_key,)
        due = now_ns - self._written_ns >= RENEW_SECONDS * SECOND_NS
        if changed or due or change_key != self._published_key:
            self._published_key, self._written_ns = change_key, now_ns
            self._publish(now_ns, permit, devices)

    def _refresh_slow_state(self, now_ns: int) -> None:
        """Refresh the parts that seldom change: policy file, inventory, once-well devices."""
        self.findings.set_gpu_addresses(self._gpus())
        reported_missing = {
            key[1] for key in self.findings.event_findings.records if key[0] == MISSING
        }
        for event in self.gpu_list.check(self._gpu_inventory(), reported_missing, now_ns):
            self.findings.observe(event)
        if self._policy.poll(lambda policy: self._dry_run(policy, now_ns)):
            self.findings.set_policy(self._policy.policy)
            self._apply_enforcing()
        once_well = self.findings.once_well()
        due = now_ns - self._saved_ns >= SAVE_SECONDS * SECOND_NS
        if once_well != self._saved_once_well or (self.findings.reset_detector.is_needed and due):
            self._saved_once_well = once_well
            self._save_state(now_ns)
        policy = self._policy
        self._slow_state = policy.policy.version, policy.pending, self._notes()

    def _dry_run(self, policy: Policy, now_ns: int) -> None:
        """Log the findings of *policy* on the present readings before it takes effect."""
        candidate = HostFindings(policy, self._boot_id)
        candidate.evaluate(self._latest.tables, now_ns)
        if candidate.findings:
            listed = ", ".join(
                f"{finding.name} {finding.device}" for finding in candidate.findings[:4]
            )
            log.warning(
                "findings by policy %s now: %s",
                policy.version,
                listed,
                extra={"cause": "policy.dry_run"},
            )

    def _save_state(self, now_ns: int) -> None:
        findings, self._saved_ns = self.findings, now_ns
        findings.event_findings.changed = False
        self._state_file.save(
            FindingsState(
                self._boot_id,
                findings.event_findings.watched_since_ns,
                now_ns,
                tuple(findings.event_findings.events()),
                dict(findings.reset_detector.last_reset_ns),
                dict(findings.reset_detector.energy_joules),
                findings.once_well(),
            )
        )

    def _apply_enforcing(self) -> None:
        """Split the names in `enforcing` into those that the policy allows and refusals."""
        policy = self._policy.policy
        self._enforcing = [
            name for name in self._requested_enforcing if policy.is_enforceable(name)
        ]
        refusals = (policy.enforce_error(name) for name in self._requested_enforcing)
        self._refusals = tuple(f"enforcing: {reason}" for reason in refusals if reason)

    def _notes(self) -> tuple[str, ...]:
        lost = self.findings.dropped_events
        local_notes = (
            self._policy.note,
            self._state_file.last_error,
            self.gpu_list.last_error,
            f"{lost} events were not judged" if lost else "",
        )
        return (*filter(None, local_notes), *self._refusals)

    def _publish(
        self, now_ns: int, permit: ActivePermit | None, devices: Sequence[DeviceState]
    ) -> None:
        findings, self_status = self.findings, self.self_status
        status = document(
            self._identity,
            now_ns,
            findings=[
                finding_fields(finding, findings.address_of(finding.device))
                for finding in findings.findings
            ],
            left_out=findings.left_out,
            notes=self._notes(),
            policy="; ".join(filter(None, (self._policy.policy.version, self._policy.pending))),
            enforcing=self._enforcing,
            permit=permit and {"until_ns": permit.until_ns, "reason": permit.reason},
            devices=[device_fields(device) for device in devices],
            cleared=[cleared_fields(cleared) for cleared in findings.cleared],
            agent=self_status and self_status.fields(),
        )
        self.document = status
        if not self.file.write(encode(status)):
            log.error("%s", self.file.last_error, extra={"cause": "status"})

    def blocking_findings(self) -> float:
        """Return how many findings keep jobs off this host, or would under a permit."""
        status, now_ns = self.document, self._clock.boottime_ns()
        if status is None or not status["enforcing"]:
            return 0.0
        permit = {"until_ns": now_ns + SECOND_NS, "reason": ""}
        return float(len(check.enforced_findings({**status, "permit": permit}, now_ns)))

    def close(self) -> None:
        """Remove the status file: this agent ends in order."""
        self.file.remove()

    def on_response(self, message: RegisterNodeResponse | IngestAck) -> None:
        """Take the permit and the host's state from a message. For the client's thread."""
        self.permit.update(message)
        if isinstance(message, IngestAck) and self.self_status is not None:
            self.self_status.update_verdict(message)

    def post_with(self, post: Callable[[Callable[[], None]], bool]) -> None:
        """Judge each event at once in the daemon's thread, to which *post* hands a call."""
        self._post = post

    def observe(self, event: HealthEvent) -> None:
        """Queue *event*; request an early update. For any thread. Never blocks or raises."""
        if self.findings.observe(event) and self._post is not None and not self._early_requested:
            self._early_requested = True
            if not self._post(self._update_early):
                self._early_requested = False  # queue full: the event waits for the next second

    def health_check(self, arguments: Sequence[str] = ()) -> HostHealthResult:
        """Return the result by the rules of `gangline check`. Never raises or waits.

        *arguments* of the caller (`--no-slurm`) change nothing: each caller gets the same result.
        """
        status, now_ns = self.document, self._clock.boottime_ns()
        cached = self._cached_check
        if cached is not None and cached[0] is status and now_ns < cached[1]:
            return cached[2]
        result, until_ns = _health_check(status, now_ns)
        self._cached_check = (status, until_ns, result)
        return result


#: Expiry of a result that only a new document can change.
_NO_EXPIRY_NS = 1 << 62


def _health_check(status: dict[str, Any] | None, now_ns: int) -> tuple[HostHealthResult, int]:
    """Return the result for *status*, and the boot time until which it holds."""
    if status is None:
        output = json.dumps({"fail_count": 0, "failed_checks": [], "findings": []})
        return HostHealthResult(True, 0, output, "the agent has just started"), _NO_EXPIRY_NS
    blocking = check.enforced_findings(status, now_ns)
    output = json.dumps(
        {
            "fail_count": len(blocking),
            "failed_checks": [
                f"{finding['name']} {finding['address'] or finding['device']}"
                for finding in blocking
            ],
            "report_only": not status["enforcing"],
            "findings": [
                f"{finding['name']} {finding['device']}: {finding['words']}"
                for finding in status["findings"]
            ],
        }
    )
    result = HostHealthResult(not blocking, int(bool(blocking)), output, "")
    if not blocking:
        return result, _NO_EXPIRY_NS
    fresh_ns = min(status["boottime_ns"], *(finding["confirmed_ns"] for finding in blocking))
    until_ns = min(status["permit"]["until_ns"], fresh_ns + check.FRESH_SECONDS * SECOND_NS)
    return result, until_ns
