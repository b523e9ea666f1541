"""An executor's main loop: waits for advice, reads the scheduler, decides, writes the ledger, runs commands, reports.

One thread decides and acts; another watches advisories (`client.py`). Failures of the scheduler or the aggregator never end
the loop: it logs them and retries.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ..contract.host_sets import fold_hosts
from ..contract.otlp_logs import ERROR, INFO, OtlpLogExporter, OtlpRecord
from . import core, ledger_updates, model, reports, weights
from .client import AggregatorClient, ClientError
from .launchers.launchers import Launchers
from .launchers.torchft import ReplicaKiller
from .ledger import ExecutorLedger, LedgerError
from .metrics import FAILED, OK, UPKEEP, ExecutorFigures
from .recovery import RECOVERY_POLL_SECONDS
from .recovery_follower import RecoveryFollower
from .settings import ExecutorConfig, NodeNames

log = logging.getLogger(__name__)

#: Limit of rounds of deciding and acting in a turn; an advisory needs a few rounds.
ROUNDS_MAX = 8
#: An advisory is skipped for this long after a command or call for it failed.
PAUSE_SECONDS = 5.0
#: Limit of remembered advisories that were already logged.
ANNOUNCED_MAX = 10_000
#: A repeated failure is logged once in this time.
LOG_SECONDS = 60.0


@dataclass(slots=True)
class Counters:
    """Counters since the start: steps by kind, failed steps, and turns."""

    steps: dict[str, int] = field(default_factory=dict)
    failures: int = 0
    turns: int = 0


class Executor:
    """The executor: `run` returns after `stop`. With *shadow* it only logs the steps that it would take."""

    def __init__(
        self,
        config: ExecutorConfig,
        scheduler: model.Scheduler,
        client: AggregatorClient,
        ledger: ExecutorLedger,
        names: NodeNames,
        *,
        shadow: bool = False,
        launchers: Launchers | None = None,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        wake: threading.Event | None = None,
        stopped: threading.Event | None = None,
        figures: ExecutorFigures | None = None,
        exporter: OtlpLogExporter | None = None,
    ) -> None:
        """*wake*: set by the client when advice changed; *stopped*: set to end `run`.

        *figures*: the figures of /metrics; *exporter*: receives a record of each step.
        """
        self._config, self._policy = config, config.policy()
        self._scheduler, self._client, self._ledger, self._names = scheduler, client, ledger, names
        self._launchers = launchers
        self._shadow, self._wall, self._monotonic = shadow, wall, monotonic
        self._wake = wake or threading.Event()
        self._stopped = stopped or threading.Event()
        self._capabilities: model.Capabilities | None = None
        self._state = model.SchedulerState()
        self._all_nodes_at = -1e9
        self._reported = reports.Reported(unavailable=reports.earlier_reports(ledger.reported))
        self._recoveries = RecoveryFollower(client, names, config.cluster)
        self._replicas = ReplicaKiller(config.torchft_lighthouses)
        self._buckets: dict[str, int] = {}
        self._buckets_at = -1e9
        #: Inputs of the last change of weights: time of the buckets, preferred nodes, and time of the nodes.
        self._weighed: object = None
        self._paused: dict[str, float] = {}
        self._logged: dict[str, float] = {}
        self._announced: set[str] = set()
        #: The ledger has unsaved changes from calls to the aggregator.
        self._is_unsaved = False
        self.counters = Counters()
        self.figures = figures or ExecutorFigures(wall=wall)
        self._exporter = exporter
        self.figures.marks_max, self.figures.is_shadow = config.marks_max, shadow

    def stop(self) -> None:
        """End `run` after its current step."""
        self._stopped.set()
        self._wake.set()

    def run(self) -> None:
        """Repeat turns until `stop` is called."""
        while not self._stopped.is_set():
            pause = self.turn()
            self._wake.wait(pause)
            self._wake.clear()

    def turn(self) -> float:
        """Read, decide, act and report; return the seconds until the next turn.

        Failures of the scheduler, the aggregator and the ledger are logged, not raised.
        """
        try:
            if self._capabilities is None:
                self._capabilities = self._scheduler.capabilities()
            if not self._shadow:
                self._scheduler.remove_expired()
            self._read()
            self._act()
            self._recoveries.collect()
            if not self._shadow:
                self._set_weights()
            self._recoveries.finish(self._state, self._wall())
            if self._launchers is not None:
                self._launchers.update(self._situation(), self._ledger)
            self._report()
            self.counters.turns += 1
            self.figures.is_connected = self._client.is_live()
            self.figures.observe(
                self._client.advice(), self._state, self._ledger, self._policy.actions
            )
        except model.SchedulerError as error:
            self._complain("the scheduler does not answer", str(error))
            return self._config.poll_seconds
        except LedgerError as error:
            self._complain("nothing is done without the ledger", str(error))
            return PAUSE_SECONDS
        pause = self._config.poll_seconds
        if self._recoveries.is_urgent(self._wall()):
            pause = min(pause, RECOVERY_POLL_SECONDS)
        return core.next_poll_seconds(self._ledger, self._capabilities, self._wall(), pause)

    def _situation(self) -> model.Situation:
        return model.Situation(
            self._client.advice(),
            self._state,
            self._wall(),
            self._client.is_live(),
            self._capabilities or model.Capabilities(),
            self._policy,
        )

    def _read(self) -> None:
        """Read jobs, holds and the nodes of interest; every `nodes_poll_seconds` read all nodes."""
        now = self._monotonic()
        nodes = dict(self._state.nodes)
        if now - self._all_nodes_at >= self._config.nodes_poll_seconds:
            nodes = self._scheduler.read_nodes()
            self._all_nodes_at = now
        else:
            wanted = core.nodes_of_interest(self._client.advice().values(), self._ledger)
            nodes |= self._scheduler.read_nodes(wanted) if wanted else {}
        jobs = {
            name: job if job.is_running else replace(job, previous_nodes=self._previous_nodes(name))
            for name, job in self._scheduler.read_jobs().items()
        }
        state = model.SchedulerState(nodes, jobs, self._scheduler.read_holds())
        for job in state.jobs.values():
            if job.problem:
                self._complain(f"job {job.name} is not seen on any node", job.problem)
        if core.is_mark_missing(self._ledger, state):
            state = replace(state, started=self._scheduler.started())
        self._state = state

    def _previous_nodes(self, job: str) -> frozenset[str]:
        before = self._state.jobs.get(job)
        if before is None:
            return frozenset()
        return before.nodes if before.is_running else before.previous_nodes

    def _act(self) -> None:
        """Decide and act until no step is due.

        Changes by calls to the aggregator are stored with the next intent, or at the end. If a kill prevents this, `core`
        recognizes an accepted advisory by its owner.
        """
        try:
            self._act_in_rounds()
        finally:
            if self._is_unsaved:
                self._save()

    def _save(self) -> None:
        self._ledger.save()
        self._is_unsaved = False

    def _act_in_rounds(self) -> None:
        for _ in range(ROUNDS_MAX):
            self._recoveries.collect()
            situation = self._situation()
            self.figures.note_advice(situation.advice, self._ledger, self._policy.actions)
            if ledger_updates.reconcile(self._ledger, situation):
                self._save()
            steps = [step for step in core.decide(situation, self._ledger) if self._is_due(step)]
            self._announce(situation)
            if self._shadow:
                return
            if not steps or self._stopped.is_set():
                return
            self._carry_out(situation, steps)
            if any(isinstance(step, model.SCHEDULER_STEPS) for step in steps):
                self._read()

    def _set_weights(self) -> None:
        """Set nodes' weights by buckets and recovery plans; without both settings restore the original weights."""
        live, now = self._client.is_live(), self._monotonic()
        if (
            self._config.weights
            and live
            and now - self._buckets_at >= self._config.weights_poll_seconds
        ):
            self._buckets_at = now
            try:
                found = self._client.buckets()
            except ClientError as error:
                self._complain("nodes keep their weights", str(error))
                return
            if found is not None:
                self._buckets = {self._names.node_of(host): one for host, one in found.items()}
        preferred = self._recoveries.planned_nodes() if self._config.follow_plan else frozenset()
        known = (self._buckets_at, preferred, self._all_nodes_at)
        if (self._config.weights and not self._buckets) or known == self._weighed:
            return
        self._weighed = known
        nodes = self._state.nodes
        steps = weights.weight_steps(nodes, self._buckets, preferred, self._ledger)
        changed = weights.forget_restored(nodes, self._ledger)
        steps = [step for step in steps if self._is_due(step)]
        if steps:
            self._carry_out(self._situation(), list(steps))
            fresh = self._scheduler.read_nodes({name for step in steps for name in step.nodes})
            self._state = replace(self._state, nodes={**nodes, **fresh})
        elif changed:
            self._ledger.save()

    def _is_due(self, step: model.Step) -> bool:
        return self._paused.get(step.advisory, -1e9) <= self._monotonic()

    def _carry_out(self, situation: model.Situation, steps: list[model.Step]) -> None:
        """Write the ledger once, send all commands to the scheduler together, then make the calls to the aggregator."""
        commands = [step for step in steps if isinstance(step, model.SCHEDULER_STEPS)]
        for command in commands:
            ledger_updates.record_intent(command, self._ledger, situation)
            if isinstance(command, model.SetWeight):
                weights.record_weight_intent(command, self._state.nodes, self._ledger)
            if isinstance(command, model.Requeue):
                advice = situation.advice.get(command.advisory)
                self._recoveries.begin(command, advice, situation.scheduler)
            log.info("%s: %s", describe(command), command.why)
        if commands:
            if not all(isinstance(command, model.StartNow) for command in commands):
                self._save()
            errors = self._apply(commands)
            now = self._wall()
            for command in commands:
                self._note(command, errors.get(command, ""), now)
            self._save()
        self._tell(
            situation, [step for step in steps if not isinstance(step, model.SCHEDULER_STEPS)]
        )

    def _apply(self, commands: Sequence[model.Step]) -> dict[model.Step, str]:
        """Carry out *commands*, replicas in parallel; return the error of each failed command."""
        kills = [one for one in commands if isinstance(one, model.KillReplicas)]
        if not kills:
            return self._scheduler.apply(commands)
        others = [one for one in commands if not isinstance(one, model.KillReplicas)]
        errors: dict[model.Step, str] = {}

        def kill(step: model.KillReplicas) -> None:
            names = {step.node, self._names.host_of(step.node)}
            note, error = self._replicas.kill(names, f"gangline: {step.advisory}")
            ledger_updates.record_replicas(step, note, self._ledger)
            if error:
                errors[step] = error

        def apply() -> None:
            errors.update(self._scheduler.apply(others) if others else {})

        calls: list[Callable[[], None]] = [*(partial(kill, one) for one in kills), apply]
        model.together(calls)
        return errors

    def _note(self, step: model.Step, error: str, now: float) -> None:
        kind = type(step).__name__
        self.counters.steps[kind] = self.counters.steps.get(kind, 0) + 1
        self._count(step, error)
        ledger_updates.record_result(step, error, self._ledger, now)
        if isinstance(step, model.Requeue):
            self._recoveries.note(step, error, now)
        if error:
            self.counters.failures += 1
            # `evictions` delays the next Requeue or EndStep of the job itself; KillReplicas is not repeated.
            if not isinstance(step, model.Requeue | model.EndStep | model.KillReplicas):
                self._paused[step.advisory] = self._monotonic() + PAUSE_SECONDS
            self._complain(f"{describe(step)} failed", error)

    def _count(self, step: model.Step, error: str) -> None:
        """Count a step, and export a record of it if an exporter is set and the step is not routine."""
        kind = type(step).__name__
        self.figures.count_action(kind, error)
        if self._exporter is None or kind in UPKEEP:
            return
        attributes = {
            "gangline.advisory": step.advisory,
            "gangline.step": kind,
            "gangline.outcome": FAILED if error else OK,
            "gangline.cluster": self._config.cluster,
            "host.name": self._names.host_of(str(getattr(step, "node", ""))),
            "gangline.workload": str(getattr(step, "job", "")),
            "gangline.error": error,
        }
        text = f"{describe(step)}: {step.why}{f': failed: {error}' if error else ''}"
        severity = ERROR if error else INFO
        self._exporter.export(
            OtlpRecord("gangline.act", text, int(self._wall() * 1e9), severity, attributes)
        )
        self.figures.dropped_log_records = self._exporter.dropped_count

    def _tell(self, situation: model.Situation, steps: list[model.Step]) -> None:
        """Carry out steps for the aggregator or the ledger: the calls in parallel, then their results in order."""
        if not steps:
            return
        if any(isinstance(step, model.Answer) for step in steps):
            # A replica that was suspended and lost the Lease has an outdated state: this write fails, so it sends no
            # answer.
            self._save()
        answers = model.together(
            [partial(self._call, situation.advice.get(step.advisory), step) for step in steps]
        )
        for step, answer in zip(steps, answers, strict=True):
            if isinstance(answer, ClientError):
                self.counters.failures += 1
                self._count(step, str(answer))
                self._paused[step.advisory] = self._monotonic() + PAUSE_SECONDS
                self._complain(f"{describe(step)} of {step.advisory}", str(answer))
                continue
            match step:
                case model.Accept() if answer is not None:
                    self._accepted(situation, situation.advice[step.advisory], answer)
                case model.Answer(state=state, why=note):
                    log.info("%s %s: %s", step.advisory, state, note)
                    self.figures.count_answer(step.advisory, state)
                    entry = self._ledger.get(step.advisory)
                    if entry is not None:
                        entry.answered = state
                case model.AdoptStore(store=store):
                    self._adopt_store(store)
                case model.Restore(advisory=name):
                    log.info("%s: the mark is set again: %s", name, step.why)
                    ledger_updates.record_accept(self._ledger, situation, situation.advice[name])
                    self._ledger.entries[name].answered = model.DONE
                case model.GiveBack(node=node):
                    log.warning("%s: %s", node, step.why)
                case model.Forget():
                    log.info("%s is over: %s", step.advisory, step.why)
                case _:
                    pass
            self._note(step, "", self._wall())
        self._is_unsaved = True

    def _adopt_store(self, store: str) -> None:
        """Begin the ledger for *store*, and report everything again."""
        log.warning(
            "the aggregator has another store (%s, before %s): it was reset or restored. What was set for the store before was "
            "removed, and the ledger begins again",
            store,
            self._ledger.store,
        )
        self._ledger.tokens, self._ledger.store = {}, store
        earlier = reports.earlier_reports(self._ledger.reported)
        self._reported = reports.Reported(unavailable=earlier)
        self._recoveries.forget()

    def _call(
        self, advice: model.Advice | None, step: model.Step
    ) -> model.Advice | ClientError | None:
        """Make the call of *step*; return its result or error. Runs in a separate thread."""
        lease = self._config.lease_seconds
        try:
            match step:
                case model.Accept() if advice is not None:
                    return self._client.answer(advice, "ACCEPTED", lease_seconds=lease)
                case model.RenewLease(note=note) if advice is not None:
                    return self._client.answer(advice, "ACCEPTED", note, lease)
                case model.Answer(state=state, why=note) if advice is not None:
                    plans = self._recoveries.plan_texts(step.advisory)
                    return self._client.answer(advice, state, "; ".join([note, *plans]))
                case model.GiveBack(node=node):
                    self._client.report_unavailable({}, 0, [self._names.host_of(node)])
                case _:
                    pass
        except ClientError as error:
            return error
        return None

    def _accepted(
        self, situation: model.Situation, advice: model.Advice, after: model.Advice
    ) -> None:
        if after.state != "ACCEPTED":
            self._paused[advice.name] = self._monotonic() + PAUSE_SECONDS
            log.info("%s was not granted: it is %s now", advice.name, after.state)
            return
        if after.token < self._ledger.tokens.get(advice.name, 0):
            log.warning("%s: fencing token %d is older than one seen", advice.name, after.token)
            return
        log.info(
            "accepted %s: %s of %s: %s", advice.name, advice.action, advice.node, advice.reason
        )
        ledger_updates.record_accept(self._ledger, replace(situation, now=self._wall()), after)

    def _announce(self, situation: model.Situation) -> None:
        """Log, once per state of an advisory, why it is skipped; in shadow mode also the steps for other advisories."""
        marks = sum(entry.is_marked for entry in self._ledger)
        for advice in situation.advice.values():
            key = f"{advice.etag} {advice.state}"
            if advice.state != "PROPOSED" or key in self._announced:
                continue
            if len(self._announced) >= ANNOUNCED_MAX:
                self._announced.clear()
            self._announced.add(key)
            mode = "shadow: " if self._shadow else ""
            what = f"{advice.name} ({advice.action} of {advice.node}: {advice.reason})"
            if refusal := core.refusal_reason(situation, self._ledger, advice, marks):
                log.info("%s%s is left to people: %s", mode, what, refusal)
            elif self._shadow:
                would = [describe(step) for step in core.plan(situation, advice)]
                log.info(
                    "%s%s would be accepted; then: %s", mode, what, "; ".join(would) or "nothing"
                )

    def _report(self) -> None:
        if self._shadow or not self._client.is_live():
            return
        now, names = self._wall(), self._names
        state = self._launchers.refine(self._state) if self._launchers else self._state
        try:
            if self._config.report_gangs:
                gangs, ended = reports.gang_updates(self._reported, state, now, names.host_of)
                if gangs or ended:
                    self._client.report_gangs(gangs, ended)
                    reports.record_gangs(self._reported, state, gangs, ended, now)
            if self._config.report_unavailable:
                fresh, back = reports.unavailable_updates(
                    self._reported, state, self._ledger, now, names.host_of
                )
                self._remember_reported(fresh)
                if fresh or back:
                    self._client.report_unavailable(fresh, reports.TTL_SECONDS, back)
                    reports.record_unavailable(self._reported, fresh, back, now, names.node_of)
            if self._config.report_outcomes:
                self._report_outcomes(state, now)
                self._recoveries.send()
            self._recoveries.refresh(self._monotonic())
        except ClientError as error:
            self._complain("a report was not accepted", str(error))

    def _remember_reported(self, fresh: Iterable[str]) -> None:
        """Store the nodes before they are reported as out, so that after a kill the next process reports their return."""
        names = {self._names.node_of(host) for host in fresh} | self._reported.unavailable.keys()
        if names != self._ledger.reported:
            self._ledger.reported = frozenset(names)
            self._ledger.save()

    def _report_outcomes(self, state: model.SchedulerState, now: float) -> None:
        reported = self._reported
        reports.collect_outcomes(
            reported, state, self._ledger, self._config.cluster, now, self._names.host_of
        )
        some = reported.outcomes[: reports.OUTCOMES_PER_REQUEST]
        if not some:
            return
        try:
            self._client.report_outcomes(some)
        except ClientError as error:
            if error.is_temporary:
                raise
            self._complain("outcomes were rejected and are dropped", str(error))
        del reported.outcomes[: len(some)]

    def _complain(self, what: str, error: str) -> None:
        """Log a failure; a repeated failure only once in LOG_SECONDS."""
        now = self._monotonic()
        line = f"{what}: {error}"
        if now - self._logged.get(line, -1e9) < LOG_SECONDS:
            return
        if len(self._logged) > 1000:
            self._logged.clear()
        self._logged[line] = now
        log.warning("%s", line)


def describe(step: model.Step) -> str:
    """Return *step* as a short text: its type and its fields."""
    fields = [
        f"{name}={value:.0f}"
        if isinstance(value, float)
        else f"{name}={fold_hosts(value) if isinstance(value, tuple) else value}"
        for name in type(step).__dataclass_fields__
        if name not in ("advisory", "why", "parts")
        and (value := getattr(step, name)) not in ("", False, ())
    ]
    return " ".join([type(step).__name__, *fields])


def undo_all(
    scheduler: model.Scheduler, ledger: ExecutorLedger | None = None
) -> tuple[list[str], list[str]]:
    """Remove all marks of executors, found by name and reason; return (completed actions, failures).

    Needs no aggregator. The *ledger* is needed only for the original weights of nodes. A drain is ended only if the node's
    reason is still the executor's.
    """
    state = model.SchedulerState(scheduler.read_nodes(), {}, scheduler.read_holds())
    steps = core.undo_steps(state)
    errors = scheduler.apply(steps) if steps else {}
    done = [describe(step) for step in steps if step not in errors]
    failed = [f"{describe(step)}: {error}" for step, error in errors.items()]
    if ledger is not None and ledger.weights:
        try:
            done += _restore_weights(scheduler, state, ledger)
        except (LedgerError, model.SchedulerError) as error:
            failed.append(f"weights: {error}")
    cleared, uncleared = scheduler.clear_health()
    return [*done, *cleared], [*failed, *uncleared]


def _restore_weights(
    scheduler: model.Scheduler, state: model.SchedulerState, ledger: ExecutorLedger
) -> list[str]:
    """Restore the original weights of nodes; return the steps as text. Raises LedgerError, SchedulerError."""
    steps = weights.restore_steps(state.nodes, ledger)
    for step in steps:
        weights.record_weight_intent(step, state.nodes, ledger)
    ledger.save()
    if errors := scheduler.apply(steps):
        raise model.SchedulerError("; ".join(errors.values()))
    weights.forget_restored(scheduler.read_nodes(set(ledger.weights)), ledger)
    ledger.save()
    return [describe(step) for step in steps]
