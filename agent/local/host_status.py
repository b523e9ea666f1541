"""Status of this host without an aggregator: findings each second and at each event, and the health check.

Call `update` only in the daemon's thread. `health_check` and `document` are safe in any thread:
their data is replaced atomically.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...contract.faults.policy import Policy
from ...contract.faults.table import builtin
from ...contract.settings import SettingsError
from ...contract.signals import BY_NAME
from ...contract.wire.telemetry_pb2 import HealthEvent, IngestAck, RegisterNodeResponse
from ..clock import Clock
from ..config import STATUS_NAME, AgentConfig
from ..gpu_list import EVENT_NAME as MISSING
from ..gpu_list import GpuInventory, GpuList
from ..hardware.files import read_text
from ..latest import LatestReadings
from ..registration import version
from ..sampler.quarantine import DeviceState
from . import check, status_file
from .findings import HostFindings
from .findings_state import FindingsState, FindingsStateFile
from .policy_file import CHECK_SECONDS, ActivePermit, Permit, PolicyFile
from .policy_rules import GpuResetDetector
from .self_status import STATE, SelfStatus

SECOND_NS = 1_000_000_000
#: Period of saving the state while a reset would end a finding: it records that the agent watches.
SAVE_SECONDS = 60.0

#: Updates at an event between two regular ones. Further events wait for the regular update.
EARLY_UPDATES_MAX = 10

log = logging.getLogger(__name__)

#: Expiry of a result that only a new document can change.
_NO_EXPIRY_NS = 1 << 62


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
        self._gpus, self._gpu_inventory = gpus, gpu_inventory
        self._devices, self._boot_id = devices, boot_id
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
        self.file = status_file.StatusFile(config.run_path / STATUS_NAME)
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
        due = now_ns - self._written_ns >= status_file.RENEW_SECONDS * SECOND_NS
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
                boot_id=self._boot_id,
                watched_since_ns=findings.event_findings.watched_since_ns,
                watched_until_ns=now_ns,
                events=tuple(findings.event_findings.events()),
                resets_ns=dict(findings.reset_detector.last_reset_ns),
                energy_joules=dict(findings.reset_detector.energy_joules),
                once_well=findings.once_well(),
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
        status = status_file.document(
            self._identity,
            now_ns,
            findings=[
                status_file.finding_fields(finding, findings.address_of(finding.device))
                for finding in findings.findings
            ],
            left_out=findings.left_out,
            notes=self._notes(),
            policy="; ".join(filter(None, (self._policy.policy.version, self._policy.pending))),
            enforcing=self._enforcing,
            permit=permit and {"until_ns": permit.until_ns, "reason": permit.reason},
            devices=[status_file.device_fields(device) for device in devices],
            cleared=[status_file.cleared_fields(cleared) for cleared in findings.cleared],
            agent=self_status and self_status.fields(),
        )
        status["barred"] = _barred(status, now_ns)
        self.document = status
        if not self.file.write(status_file.encode(status)):
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
                f"{finding['name']} {finding['device']}: {finding['message']}"
                for finding in status["findings"]
            ],
        }
    )
    result = HostHealthResult(not blocking, int(bool(blocking)), output, "")
    return result, _end_of_bar_ns(status, blocking) if blocking else _NO_EXPIRY_NS


def _barred(status: dict[str, Any], now_ns: int) -> dict[str, Any] | None:
    """Return why no job may start here, and until when this holds; None if jobs may start."""
    blocking = check.enforced_findings(status, now_ns)
    if not blocking:
        return None
    reasons = (
        f"{finding['name']} {finding['address'] or finding['device']}: {finding['message']}"
        for finding in blocking
    )
    return {
        "until_ns": _end_of_bar_ns(status, blocking),
        "reason": check.printable("; ".join(reasons)),
    }


def _end_of_bar_ns(status: dict[str, Any], blocking: Sequence[dict[str, Any]]) -> int:
    fresh_ns = min(status["boottime_ns"], *(finding["confirmed_ns"] for finding in blocking))
    return int(min(status["permit"]["until_ns"], fresh_ns + check.FRESH_SECONDS * SECOND_NS))
