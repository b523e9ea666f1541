"""What this host says of itself without an aggregator: findings once a second, the status file, the health check.

`look` is for the daemon's thread; `answer` and `document` are for any: what they show is swapped whole.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ...contract.host_policy import Policy, builtin
from ...contract.settings import SettingsError
from ...contract.signals import BY_NAME
from ...contract.wire.telemetry_pb2 import IngestAck, RegisterNodeResponse
from ..clock import Clock
from ..collector import Outcome, Turn
from ..config import STATUS, AgentConfig
from ..hardware.files import read_text
from ..hardware.nvidia import kernel_driver_version
from ..latest import Latest
from ..registration import version
from . import check
from .check import FORMAT, NAMES_MAX, STATUS_BYTES_MAX, text
from .findings import Findings
from .findings_state import FindingsState, Keeper
from .gpu_list import EVENT as MISSING
from .gpu_list import GpuList, View
from .policy_file import LOOK_SECONDS, Held, Permit, PolicyFile
from .policy_rules import Cleared, Finding, Resets

# ----------------------------------------------------------------------
# The status document of this host, and the file that shows it: replaced whole, so that no reader
# waits.

#: The file is renewed at least this often, or readers take the agent for dead.
RENEW_SECONDS = 10.0
_MODE = 0o644


def finding_fields(finding: Finding, address: str) -> dict[str, Any]:
    """Return a finding as the document shows it. *address*: of a GPU, its PCI address."""
    return {
        "name": finding.name,
        "device": text(finding.device),
        "address": address,
        "severity": str(finding.severity),
        "problem": "user" if finding.severity == "application" else "node",
        "words": text(finding.words),
        "action": finding.action,
        "scope": finding.scope,
        "clears_when": finding.clears_when,
        "since_ns": finding.since_ns,
        "confirmed_ns": finding.confirmed_ns,
        "count": finding.count,
        "enforceable": finding.enforceable,
    }


def cleared_fields(cleared: Cleared) -> dict[str, Any]:
    """Return what is over as the document shows it."""
    found = cleared.finding
    return {
        "name": found.name,
        "device": text(found.device),
        "words": text(found.words),
        "since_ns": found.since_ns,
        "cleared_ns": cleared.cleared_ns,
        "why": cleared.why,
    }


class Device(Protocol):
    """What is shown of `agent.sampler.quarantine.DeviceState`."""

    @property
    def lane(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def state(self) -> IntEnum: ...
    @property
    def call(self) -> str: ...
    @property
    def hung_seconds(self) -> float: ...
    @property
    def words(self) -> str: ...


def device_fields(device: Device) -> dict[str, Any]:
    """Return a device that does not answer, or did not a minute ago, as the document shows it."""
    return {
        "lane": device.lane,
        "device": text(device.device),
        "state": device.state.name.lower(),
        "call": text(device.call),
        "hung_seconds": round(device.hung_seconds, 1),
        "words": text(device.words),
    }


def document(
    about: Mapping[str, Any],
    now_ns: int,
    *,
    findings: Sequence[dict[str, Any]],
    left_out: int,
    notes: Iterable[str],
    **more: Any,
) -> dict[str, Any]:
    """Return the document of now. *about*: what does not change; *more*: enforcing, permit, devices."""
    return {
        "format": FORMAT,
        **about,
        "boottime_ns": now_ns,
        "findings": list(findings),
        "left_out": left_out,
        "notes": [text(note) for note in notes][:NAMES_MAX],
        **more,
    }


def encode(fields: dict[str, Any]) -> bytes:
    """Return the file's content, of at most STATUS_BYTES_MAX: beyond, the mildest findings are left out."""
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
    """The file at *path*. Never raises; `last_error` says what failed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last_error = ""
        self.writes = 0
        self._new = path.with_name(f".{path.name}.new")

    def write(self, content: bytes) -> bool:
        """Replace the file. Not synced: after a boot nobody wants it. Say whether it was written."""
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
            os.fchmod(file, _MODE)  # whatever the umask is: everybody may ask how the host is
            at = 0
            while at < len(content):
                at += os.write(file, content[at:])
        finally:
            os.close(file)
        os.replace(self._new, self.path)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            return os.open(self._new, flags, _MODE)
        except FileNotFoundError:  # the folder is not there yet, or was removed
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            return os.open(self._new, flags, _MODE)

    def remove(self) -> None:
        """Take the file away, as at an orderly end: who asks then is told that no agent runs."""
        with suppress(OSError):
            self.path.unlink()


# ----------------------------------------------------------------------
# Whether library and driver are of different versions: an update under way, and no GPU lost.

STATE = BY_NAME["gpu.driver_updating_state"]
#: An older reading says nothing of now: the GPUs were let go of, say.
FRESH_NS = 10_000_000_000


def words(latest: Latest, proc: Path, now_ns: int) -> str:
    """Return what is to be said of it; empty while no GPU's reading shows it. For any thread."""
    readings = latest.tables.get(STATE.table)
    if readings is None or now_ns - readings.boottime_ns > FRESH_NS:
        return ""
    if not any(value for _, value in readings.values(STATE.signal_id)):
        return ""
    version = kernel_driver_version(proc)
    loaded = f"; the kernel has {version} loaded" if version else ""
    return f"being updated: NVML and the driver are of different versions{loaded}"


# ----------------------------------------------------------------------
# How the agent itself stands, for the status file: connection, spool, and sources that are not
# read.

#: Groups of sources that are not read, at most.
GROUPS_MAX = 32


class Connection(Protocol):
    """What is asked of `transport.client.Client`."""

    @property
    def target(self) -> str: ...
    @property
    def connected(self) -> bool: ...
    @property
    def last_error(self) -> str: ...


class Frames(Protocol):
    """What is asked of `spool.spool.Spool`."""

    @property
    def unacknowledged_frames(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def dropped_frames(self) -> int: ...
    @property
    def refused_frames(self) -> int: ...
    @property
    def write_errors(self) -> int: ...
    def next_sequence(self) -> int: ...


class Events(Protocol):
    """What is asked of `spool.events.EventQueue`."""

    @property
    def dropped_events(self) -> int: ...
    def __len__(self) -> int: ...


class Verdict(NamedTuple):
    """How the aggregator finds this host, and when it said so last (boot time)."""

    state: str
    reason: str
    at_ns: int


class Unread(NamedTuple):
    """Sources that are not read for the same reason."""

    outcome: str
    words: str
    names: list[str]


class SelfStatus:
    """`look` once a second, in the daemon's thread; `fields` are of the last look."""

    def __init__(
        self,
        connection: Connection,
        frames: Frames,
        events: Events,
        turns: Callable[[], Iterable[Turn]],
        clock: Clock,
    ) -> None:
        """*turns*: the last turn of each source."""
        self._connection, self._frames, self._events = connection, frames, events
        self._turns, self._clock = turns, clock
        self._connected = False
        self._since_ns = clock.boottime_ns()
        self._receipted = self._count_receipts()
        self._receipt_ns: int | None = None
        self._unread: list[Unread] = []
        self._well = 0
        self._verdict: Verdict | None = None  # set by the client's thread

    def take(self, message: IngestAck) -> None:
        """Note how the aggregator finds this host. For one thread at a time."""
        found = message.verdict
        self._verdict = (
            Verdict(text(found.state), text(found.reason), self._clock.boottime_ns())
            if message.HasField("verdict")
            else None
        )

    def look(self) -> None:
        """Note what changed since the last look."""
        now_ns = self._clock.boottime_ns()
        if self._connection.connected is not self._connected:
            self._connected, self._since_ns = self._connection.connected, now_ns
        receipted = self._count_receipts()
        if receipted > self._receipted:
            self._receipt_ns = now_ns
        self._receipted = receipted
        turns = list(self._turns())
        self._unread = grouped(turns)
        self._well = sum(turn.outcome is Outcome.OK for turn in turns)

    def _count_receipts(self) -> int:
        """Return a number that rises by one with each frame that has a receipt."""
        frames = self._frames
        lost = frames.dropped_frames + frames.refused_frames
        return frames.next_sequence() - frames.unacknowledged_frames - lost

    @property
    def told(self) -> object:
        """What is shown as soon as it has changed; the rest with the next document."""
        unread = [(one.outcome, one.names) for one in self._unread]
        return self._connected, self._verdict and self._verdict.state, unread

    def fields(self) -> dict[str, Any]:
        """Return the section `agent` of the document."""
        frames, connection = self._frames, self._connection
        return {
            "pid": os.getpid(),
            "aggregator": text(connection.target),
            "connected": self._connected,
            "since_ns": self._since_ns,
            "last_error": text(connection.last_error),
            "last_receipt_ns": self._receipt_ns,
            "waiting_frames": frames.unacknowledged_frames,
            "waiting_bytes": frames.bytes,
            "waiting_events": len(self._events),
            "lost_frames": frames.dropped_frames,
            "refused_frames": frames.refused_frames,
            "lost_events": self._events.dropped_events,
            "write_errors": frames.write_errors,
            "sources_well": self._well,
            "verdict": self._verdict and self._verdict._asdict(),
            "sources_unread": [one._asdict() for one in self._unread],
        }


def grouped(turns: Sequence[Turn]) -> list[Unread]:
    """Return the sources whose last turn read nothing, the gravest first, one row for those with the same reason."""
    groups: dict[tuple[Outcome, str], list[str]] = {}
    for turn in turns:
        if turn.outcome is not Outcome.OK:
            names = groups.setdefault((turn.outcome, text(turn.words)), [])
            if len(names) < NAMES_MAX:
                names.append(text(turn.collector))
    ordered = sorted(groups.items(), key=lambda one: (-one[0][0], one[1]))
    return [Unread(key[0].name.lower(), key[1], names) for key, names in ordered[:GROUPS_MAX]]


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
    return frozenset((Resets.table, STATE.table, *(BY_NAME[name].table for name in signals)))


class HealthAnswer(NamedTuple):
    """What nvhcd.HealthCheckService/RunHealthCheck answers: fields 1 to 4."""

    success: bool
    exit_code: int
    output: str
    error: str


class Answers:
    """`findings` and `permit` are fed by others: `findings.observe` by the teller, `take` by the client."""

    def __init__(
        self,
        config: AgentConfig,
        latest: Latest,
        clock: Clock,
        boot_id: bytes,
        *,
        gpus: Callable[[], Mapping[str, str]] = dict,
        view: Callable[[], View | None] = lambda: None,
        devices: Callable[[], Sequence[Device]] = tuple,
    ) -> None:
        """*gpus*: UUID -> PCI address, those that are gone too. *view*: which answer, by the inventory. *devices*: those left out or hung, to be shown.

        Raises SettingsError when `enforcing` names what cannot be enforced.
        """
        self._latest, self._clock = latest, clock
        self._gpus, self._view, self._devices, self._boot_id = gpus, view, devices, boot_id
        #: The GPUs that this host ever had.
        self.gpu_list = GpuList(config.state_folder)
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
        #: How the agent itself stands; set once there is a client to ask.
        self.itself: SelfStatus | None = None
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
        told: tuple[object, ...] = (
            self._known,
            held and held.reason,
            [(one.device, one.state) for one in devices],
        )
        if self.itself is not None:
            self.itself.look()
            told += (self.itself.told,)
        due = now_ns - self._written_ns >= RENEW_SECONDS * SECOND_NS
        if changed or due or told != self._told:
            self._told, self._written_ns = told, now_ns
            self._show(now_ns, held, devices)

    def _look_around(self, now_ns: int) -> None:
        """What changes seldom: the policy file, the inventory, which devices were well."""
        self.findings.know(self._gpus())
        standing = {key[1] for key in self.findings.reported.records if key[0] == MISSING}
        for event in self.gpu_list.look(self._view(), standing, now_ns):
            self.findings.observe(event)
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
            FindingsState(
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
            self.gpu_list.last_error,
            f"{lost} events were not judged" if lost else "",
        )
        return (*filter(None, ours), *self._refused)

    def _show(self, now_ns: int, held: Held | None, devices: Sequence[Device]) -> None:
        findings, itself = self.findings, self.itself
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
            agent=itself and itself.fields(),
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
        return float(len(check.enforced({**shown, "permit": permit}, now_ns)))

    def close(self) -> None:
        """Take the status file away: this agent ends in order, and says nothing of the host any more."""
        self.file.remove()

    # The client's thread -------------------------------------------------------------------

    def take(self, message: RegisterNodeResponse | IngestAck) -> None:
        """Take what the aggregator says of this host: its permit, and how it finds the host."""
        self.permit.take(message)
        if isinstance(message, IngestAck) and self.itself is not None:
            self.itself.take(message)

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
    barred = check.enforced(shown, now_ns)
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
    until_ns = min(shown["permit"]["until_ns"], fresh_ns + check.FRESH_SECONDS * SECOND_NS)
    return answer, until_ns
