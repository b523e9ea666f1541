"""Ray: placement groups are gangs; the only action is a drain, which ends the node permanently.

Code that imports Ray runs in Ray's own Python (`executors/ray/gangline_ray.py`), because the versions of client and cluster
must agree.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any

from ...contract.text import counted
from .. import model
from ..scheduler_command import Run, run_command
from ..settings import ExecutorConfig
from ..site import SchedulerSite
from .settings import RayConfig

#: State in `ray.util.placement_group` -> state of a ScheduledJob; a removed group has ended.
GROUP_STATES = {"CREATED": "RUNNING", "PENDING": "PENDING", "RESCHEDULING": "PENDING", "REMOVED": "COMPLETED"}  # fmt: skip
#: Timeout of the helper program: Ray's Python takes seconds to import Ray.
HELPER_SECONDS = 30.0
IRREVERSIBLE = "a drain of Ray cannot be taken back: start Ray on the machine again"


class Ray(model.Scheduler):
    """Ray, through the helper program; tests of parsing replace *run*."""

    name = "ray"

    def __init__(
        self, helper: tuple[str, ...], address: str, drain_seconds: float, run: Run | None = None
    ) -> None:
        """*helper*: Ray's Python and the path of gangline_ray.py; *address*: HOST:PORT of the head node."""
        self._helper, self._address = helper, address
        self._drain_seconds = drain_seconds
        self._run = run or partial(run_command, seconds_max=HELPER_SECONDS)
        #: Node id -> message of this executor's drain: Ray shows the message only after the node has ended.
        self._drained: dict[str, str] = {}

    def capabilities(self) -> model.Capabilities:
        """Return the capabilities of this version."""
        return model.Capabilities(str(self._state().get("version", ""))[:40], has_hold=False)

    def read_nodes(self, names: Collection[str] | None = None) -> dict[str, model.Node]:
        """Return nodes by name, including nodes that ended under an executor's drain."""
        nodes = {name: self._node(name, r) for name, r in _nodes_by_name(self._state()).items()}
        return nodes if names is None else {name: nodes[name] for name in names if name in nodes}

    def _node(self, name: str, record: Mapping[str, Any]) -> model.Node:
        if record.get("alive") is not True:
            found, _, reason = str(record.get("death_message", "")).partition(model.REASON_PREFIX)
            if not _:
                return model.Node(name, "DEAD", str(found)[:500], is_responding=False, down="DEAD")
            # Without `adv=`, because nothing is left to undo.
            reason = f"{model.REASON_PREFIX}{reason}".partition(";adv=")[0][:500]
            return model.Node(
                name, "DEAD", reason, False, f"drained: {reason}", "", is_managed=True
            )
        if record.get("draining") is not True:
            self._drained.pop(str(record.get("id")), None)
            return model.Node(name, "ALIVE")
        reason = self._drained.get(str(record.get("id")), "")
        return model.Node(
            name=name,
            state="DRAINING",
            reason=reason,
            is_responding=True,
            out=f"draining: {reason}",
            down="",
            is_managed=bool(reason),
        )

    def read_jobs(self) -> dict[str, model.ScheduledJob]:
        """Return placement groups by id."""
        return parse_groups(self._state())

    def read_holds(self) -> dict[str, model.NodeHold]:
        """Return no holds: a drain is the only mark."""
        return {}

    def apply(self, steps: Iterable[model.Step]) -> dict[model.Step, str]:
        """Carry out *steps*."""
        return model.apply_each(steps, self._apply_one)

    def _apply_one(self, step: model.Step) -> None:
        match step:
            case model.Drain(node=node, reason=reason):
                record = _nodes_by_name(self._state()).get(node, {})
                if self._node(node, record).is_managed:
                    return
                number = str(record.get("id", ""))
                self._run([*self._helper, "drain", self._address, number, reason, f"{self._drain_seconds:.0f}"])  # fmt: skip
                self._drained[number] = reason
            case model.Resume(node=node):
                found = self.read_nodes([node]).get(node)
                if found is not None and found.state == "DRAINING":
                    raise model.SchedulerError(IRREVERSIBLE)
            case model.Requeue():
                raise model.SchedulerError("Ray lets it continue until its owner removes it")
            case _:
                raise model.SchedulerError(f"{type(step).__name__} is not a step of Ray")

    def _state(self) -> Mapping[str, Any]:
        text = self._run([*self._helper, "state", self._address])
        try:
            state = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise model.SchedulerError("gangline_ray.py: its output is not JSON") from error
        if not isinstance(state, dict):
            raise model.SchedulerError("gangline_ray.py: its output is not a JSON object")
        return state


def _records(state: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = state.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _name_of(record: Mapping[str, Any]) -> str:
    """Return the name in `ray start --node-name`; else the host name, because Ray then uses the address as name."""
    name = str(record.get("name") or "")
    return name if name and name != record.get("address") else str(record.get("hostname") or "")


def _nodes_by_name(state: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return nodes by name; among nodes of the same name an alive node is preferred, else the last in the list."""
    found: dict[str, Mapping[str, Any]] = {}
    for record in _records(state, "nodes"):
        name = _name_of(record)
        if model.NODE_NAME.fullmatch(name) and (
            record.get("alive") is True or not found.get(name, {}).get("alive")
        ):
            found[name] = record
    return found


def parse_groups(state: Mapping[str, Any]) -> dict[str, model.ScheduledJob]:
    """Return placement groups by id, with the names of their nodes."""
    names = {str(record.get("id")): _name_of(record) for record in _records(state, "nodes")}
    jobs: dict[str, model.ScheduledJob] = {}
    for group in _records(state, "groups"):
        number, placed = group.get("id"), group.get("nodes")
        status = GROUP_STATES.get(str(group.get("state")))
        if not isinstance(number, str) or not number.isalnum() or len(number) > 64 or not status:
            continue
        if isinstance(placed, list):
            nodes = frozenset(names.get(str(one), "") for one in placed)
        else:
            nodes = frozenset()
        gpus = group.get("gpus")
        is_running = status == "RUNNING"
        jobs[number] = model.ScheduledJob(
            number,
            status,
            frozenset(filter(model.NODE_NAME.fullmatch, nodes)) if is_running else frozenset(),
            gpus=int(gpus) if isinstance(gpus, int | float) and 0 <= gpus < 1e6 else 0,
        )
    return jobs


def doctor_findings(ray: Ray, drains: bool) -> Iterable[model.DoctorFinding]:
    """Yield the state of Ray and unexpected behavior. Raises SchedulerError if Ray does not respond."""
    version, nodes = ray.capabilities().version, ray.read_nodes()
    alive = sum(node.state == "ALIVE" for node in nodes.values())
    yield model.DoctorFinding(
        model.DoctorLevel.OK, f"Ray {version} answers: {counted(alive, 'node')}"
    )
    if drains:
        yield model.DoctorFinding(
            model.DoctorLevel.NOTE, f"EVICT_NOW drains nodes, and {IRREVERSIBLE}"
        )
    else:
        yield model.DoctorFinding(
            model.DoctorLevel.NOTE, "nothing is drained: `actions` does not name EVICT_NOW"
        )


class RaySite(SchedulerSite):
    """Ray through a helper program in its own Python."""

    title = "Ray"

    def __init__(self, config: ExecutorConfig) -> None:
        super().__init__(config)
        assert isinstance(config, RayConfig)
        self._ray = Ray(config.ray_helper, config.ray_address, config.ray_drain_seconds)
        self.scheduler = self._ray

    def findings(self, attempt: bool) -> Iterable[model.DoctorFinding]:
        """Yield the findings of Ray's doctor; *attempt* is ignored: a drain has no dry run."""
        del attempt
        return doctor_findings(self._ray, bool(self.config.actions))
