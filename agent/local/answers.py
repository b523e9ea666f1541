"""What this host says of itself without an aggregator: findings once a second, the status file, the health check.

`look` is for the daemon's thread; `answer` and `document` are for any: what they show is swapped whole.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...fingerprints.catalogue import BY_NAME
from ...fingerprints.policy import Policy
from ...fingerprints.policy_table import builtin
from ...fingerprints.settings import SettingsError
from ..clock import Clock
from ..config import AgentConfig
from ..hardware.files import read_text
from ..latest import Latest
from ..registration import version
from . import updating, verdict
from .findings import Findings
from .folder import STATUS
from .kept import Keeper, Kept
from .permit import Held, Permit
from .policyfile import LOOK_SECONDS, PolicyFile
from .resets import Resets
from .status import (
    RENEW_SECONDS,
    Device,
    StatusFile,
    cleared_fields,
    device_fields,
    document,
    encode,
    finding_fields,
)

SECOND_NS = 1_000_000_000
#: While something stands that a reset ends, the file says this often that it is watched for.
KEEP_SECONDS = 60.0

log = logging.getLogger(__name__)


def tables(config: AgentConfig) -> frozenset[str] | None:
    """Return the tables of whose readings something is told on this host; None: any may be.

    An operator's policy may be about any signal, and is tried on readings of before it came.
    """
    if config.metrics_listen or config.policy_file:
        return None
    signals = (name for row in builtin().rows for name in row.signals)
    return frozenset(
        (Resets.table, updating.STATE.table, *(BY_NAME[name].table for name in signals))
    )


class HealthAnswer(NamedTuple):
    """What nvhcd.HealthCheckService/RunHealthCheck answers: fields 1 to 4."""

    success: bool
    exit_code: int
    output: str
    error: str


class Answers:
    """`findings` and `permit` are fed by others: `findings.observe` by the teller, `permit.take` by the client."""

    def __init__(
        self,
        config: AgentConfig,
        latest: Latest,
        clock: Clock,
        boot_id: bytes,
        *,
        gpus: Callable[[], Mapping[str, str]] = dict,
        devices: Callable[[], Sequence[Device]] = tuple,
    ) -> None:
        """*gpus*: UUID -> PCI address, by the inventory. *devices*: those left out or hung, to be shown.

        Raises SettingsError when `enforcing` names what cannot be enforced.
        """
        self._latest, self._clock = latest, clock
        self._gpus, self._devices, self._boot_id = gpus, devices, boot_id
        file = config.policy_file
        self._policy = PolicyFile(
            Path(file) if file else None, config.state_folder, config.host_name
        )
        self._asked = tuple(config.enforcing)
        self._agree()
        if self._refused and not file:
            raise SettingsError(self._refused[0])
        self.permit = Permit(clock)
        driver = config.sys_root / "module/nvidia/version"
        self.findings = Findings(self._policy.policy, boot_id, lambda: read_text(driver) or "")
        self._keeper = Keeper(config.state_folder)
        kept = self._keeper.load(boot_id)
        self.findings.restore(kept, clock.boottime_ns())
        if self._keeper.last_error:
            log.warning("%s", self._keeper.last_error, extra={"cause": "findings.kept"})
            self.findings.reported.changed = True  # a good one takes its place
        self._kept_ns = 0
        self._kept_well = self.findings.once_well()
        self.file = StatusFile(config.run_path / STATUS)
        self._about = {
            "host": config.host_name,
            "agent_version": version(),
            "boot_id": boot_id.hex(),
            "pid": os.getpid(),
        }
        self.document: dict[str, Any] | None = None
        self._told: tuple[object, ...] = ()
        self._known: tuple[object, ...] = ()  # of what is told, what changes seldom
        self._written_ns = -(1 << 62)
        self._looked_ns = -(1 << 62)
        self._answered: tuple[object, int, HealthAnswer] | None = None

    # The daemon's thread -------------------------------------------------------------------

    def look(self) -> None:
        """Judge what was read, and show it. Never raises."""
        try:
            self._look(self._clock.boottime_ns())
        except Exception:
            log.exception("this host cannot be judged", extra={"cause": "answers"})

    def _look(self, now_ns: int) -> None:
        if now_ns - self._looked_ns >= LOOK_SECONDS * SECOND_NS:
            self._looked_ns = now_ns
            self._look_around(now_ns)
        changed = self.findings.turn(self._latest.tables, now_ns)
        if self.findings.reported.changed:
            self._keep(now_ns)
        held, devices = self.permit.held(now_ns), self._devices()
        told = self._known, held and held.reason, [(one.device, one.state) for one in devices]
        due = now_ns - self._written_ns >= RENEW_SECONDS * SECOND_NS
        if changed or due or told != self._told:
            self._told, self._written_ns = told, now_ns
            self._show(now_ns, held, devices)

    def _look_around(self, now_ns: int) -> None:
        """What changes seldom: the policy file, the inventory, which devices were well."""
        self.findings.know(self._gpus())
        if self._policy.look(lambda policy: self._dry_run(policy, now_ns)):
            self.findings.use(self._policy.policy)
            self._agree()
        well = self.findings.once_well()
        due = now_ns - self._kept_ns >= KEEP_SECONDS * SECOND_NS
        if well != self._kept_well or (self.findings.resets.closely and due):
            self._kept_well = well
            self._keep(now_ns)
        policy = self._policy
        self._known = policy.policy.version, policy.waits, self._notes()

    def _dry_run(self, policy: Policy, now_ns: int) -> None:
        """Judge the readings of now by *policy* before it is in force."""
        trial = Findings(policy, self._boot_id)
        trial.turn(self._latest.tables, now_ns)
        if trial.findings:
            named = ", ".join(f"{one.name} {one.device}" for one in trial.findings[:4])
            log.warning(
                "by policy %s stands now: %s",
                policy.version,
                named,
                extra={"cause": "policy.dry_run"},
            )

    def _keep(self, now_ns: int) -> None:
        findings, self._kept_ns = self.findings, now_ns
        findings.reported.changed = False
        self._keeper.save(
            Kept(
                self._boot_id,
                findings.reported.watched_since_ns,
                now_ns,
                tuple(findings.reported.events()),
                dict(findings.resets.at_ns),
                dict(findings.resets.energy_joules),
                findings.once_well(),
            )
        )

    def _agree(self) -> None:
        """Sort what `enforcing` names into what the policy in force allows and what it does not."""
        policy = self._policy.policy
        self._enforcing = [name for name in self._asked if policy.enforceable(name)]
        refusals = (policy.refusal(name) for name in self._asked)
        self._refused = tuple(f"enforcing: {words}" for words in refusals if words)

    def _notes(self) -> tuple[str, ...]:
        lost = self.findings.dropped_events
        ours = (
            self._policy.note,
            self._keeper.last_error,
            f"{lost} events were not judged" if lost else "",
        )
        return (*filter(None, ours), *self._refused)

    def _show(self, now_ns: int, held: Held | None, devices: Sequence[Device]) -> None:
        findings = self.findings
        shown = document(
            self._about,
            now_ns,
            findings=[
                finding_fields(one, findings.address_of(one.device)) for one in findings.findings
            ],
            left_out=findings.left_out,
            notes=self._notes(),
            policy="; ".join(filter(None, (self._policy.policy.version, self._policy.waits))),
            enforcing=self._enforcing,
            permit=held and {"until_ns": held.until_ns, "reason": held.reason},
            devices=[device_fields(one) for one in devices],
            cleared=[cleared_fields(one) for one in findings.cleared],
        )
        self.document = shown
        if not self.file.write(encode(shown)):
            log.error("%s", self.file.last_error, extra={"cause": "status"})

    def barring(self) -> float:
        """Return how many findings bar this host from jobs, or would under a permit."""
        shown, now_ns = self.document, self._clock.boottime_ns()
        if shown is None or not shown["enforcing"]:
            return 0.0
        permit = {"until_ns": now_ns + SECOND_NS, "reason": ""}
        return float(len(verdict.enforced({**shown, "permit": permit}, now_ns)))

    def close(self) -> None:
        """Take the status file away: this agent ends in order, and says nothing of the host any more."""
        self.file.remove()

    # Any thread ----------------------------------------------------------------------------

    def answer(self, arguments: Sequence[str] = ()) -> HealthAnswer:
        """Return the health check's answer, by the rules of `gangline check`. Never raises, never waits.

        *arguments* are the caller's (`--no-slurm`) and change nothing: there is one truth about a host.
        """
        shown, now_ns = self.document, self._clock.boottime_ns()
        known = self._answered
        if known is not None and known[0] is shown and now_ns < known[1]:
            return known[2]
        answer, until_ns = _answer(shown, now_ns)
        self._answered = (shown, until_ns, answer)
        return answer


#: So long an answer holds that nothing but a new document can change.
_LONG_NS = 1 << 62


def _answer(shown: dict[str, Any] | None, now_ns: int) -> tuple[HealthAnswer, int]:
    """Return the answer to *shown*, and until when it holds."""
    if shown is None:
        output = json.dumps({"fail_count": 0, "failed_checks": [], "findings": []})
        return HealthAnswer(True, 0, output, "the agent has just started"), _LONG_NS
    barred = verdict.enforced(shown, now_ns)
    output = json.dumps(
        {
            "fail_count": len(barred),
            "failed_checks": [f"{one['name']} {one['address'] or one['device']}" for one in barred],
            "report_only": not shown["enforcing"],
            "findings": [
                f"{one['name']} {one['device']}: {one['words']}" for one in shown["findings"]
            ],
        }
    )
    answer = HealthAnswer(not barred, int(bool(barred)), output, "")
    if not barred:
        return answer, _LONG_NS
    fresh_ns = min(shown["boottime_ns"], *(one["confirmed_ns"] for one in barred))
    until_ns = min(shown["permit"]["until_ns"], fresh_ns + verdict.FRESH_SECONDS * SECOND_NS)
    return answer, until_ns
