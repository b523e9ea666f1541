"""The table: which role may call what. A method that is not here is nobody's, and a house test names it."""

from __future__ import annotations

from .caller import Role

_AGENTS = frozenset({Role.AGENT, Role.ADMIN, Role.ANYONE})
_SCHEDULERS = frozenset({Role.SCHEDULER, Role.OPERATOR, Role.ADMIN, Role.ANYONE})
#: Who answers advice is somebody: nobody knows who speaks beyond loopback without a login.
_EXECUTORS = _SCHEDULERS - {Role.ANYONE}
_OPERATORS = frozenset({Role.OPERATOR, Role.ADMIN})
_READERS = _OPERATORS | {Role.ANYONE}
_ADMINS = frozenset({Role.ADMIN})
#: Answered to whoever reaches the port: a load balancer has no login.
OPEN: frozenset[Role] = frozenset(Role)

#: Service -> method -> roles. `*`: all of its methods.
ROLES: dict[str, dict[str, frozenset[Role]]] = {
    "gangline.v1.TelemetryService": {
        "RegisterNode": _AGENTS,
        "StreamTelemetry": _AGENTS,
        "ReportEvents": _AGENTS,
    },
    "gangline.v1.ScoreService": {
        "GetNodeDictionary": _SCHEDULERS,
        "GetNodeScore": _SCHEDULERS,
        "ListNodeScores": _SCHEDULERS,
        "ScoreNodes": _SCHEDULERS,
        "WatchNodeScores": _SCHEDULERS,
    },
    "gangline.v1.PermitService": {
        "GetPermit": _READERS,
        "GrantPermit": _OPERATORS,
        "RevokePermit": _READERS,  # in doubt anybody who may look may stop it
    },
    "gangline.v1.AdvisoryService": {
        "WatchAdvisories": _SCHEDULERS,
        "ListAdvisories": _SCHEDULERS,
        "GetAdvisory": _SCHEDULERS,
        "AckAdvisory": _EXECUTORS,
        "ReportGangs": _EXECUTORS,
        "ReportUnavailableNodes": _EXECUTORS,
        "EvaluateRule": _OPERATORS,
    },
    "gangline.v1.OutcomeService": {"ReportOutcomes": _EXECUTORS},
    "gangline.v1.QueryService": {"*": _OPERATORS},
    "gangline.v1.AdminService": {"*": _ADMINS},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": _READERS},
    "grpc.health.v1.Health": {"Check": OPEN, "Watch": OPEN, "List": OPEN},
}


def roles_of(method: str) -> frozenset[Role]:
    """Return who may call `/package.Service/Method`; nobody where the table does not say."""
    service, _, name = method.removeprefix("/").partition("/")
    methods = ROLES.get(service, {})
    return methods.get(name, methods.get("*", frozenset()))
