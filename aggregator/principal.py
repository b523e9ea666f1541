"""The caller of a request, the permissions of roles, and the identity in a certificate.

The login check sets the caller once, before a service's code runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from .errors import PermissionDenied

#: Maximum of a SPIFFE ID (SPIFFE-ID standard, 2.3), and more than any DNS name.
IDENTITY_CHARACTERS_MAX = 2048
#: Maximum of a DNS name.
NAME_CHARACTERS_MAX = 253
#: Maximum names of a certificate that are examined.
NAMES_MAX = 64
PATTERNS_MAX = 64
NAME_PLACEHOLDER = "{name}"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_SPIFFE = re.compile(
    r"spiffe://(?P<trust>[a-z0-9._-]{1,255})/gangline/(?P<role>[a-z]+)/(?P<name>[^/]+)"
)
_TRUST = re.compile(r"[a-z0-9._-]{1,255}")
_LITERAL = re.compile(r"[A-Za-z0-9._-]*")
#: Description of the names that `is_name` accepts.
NAME_FORM = f"letters, digits, '.', '_' and '-', the first and the last a letter or a digit, at most {NAME_CHARACTERS_MAX}"


class Role(StrEnum):
    """A caller's role, which decides its permissions (`PERMISSIONS`)."""

    AGENT = "agent"  #: writes as its own host, reads nothing
    SCHEDULER = "scheduler"  #: reads scores, plans, acknowledges
    OPERATOR = "operator"  #: reads everything, SQL, permits
    ADMIN = "admin"  #: everything
    #: Plain text beyond loopback, explicitly enabled, without any login: callers are unknown.
    ANYONE = "anyone"


#: The roles of certificates and tokens.
GRANTABLE_ROLES = (Role.AGENT, Role.SCHEDULER, Role.OPERATOR, Role.ADMIN)


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller. Equal `role`, `name` and `auth_method` mean the same caller for every limit.

    `host`: the only host that an agent writes as; "" for others. `auth_method`: kind of login.
    `proof`: of two callers that claim a host name, the greater proof wins: (0, 0) none, (1, time of
    the token), (2, time of the certificate), in s of Unix time. `until`: end of the login, in s; 0:
    never.
    """

    role: Role
    name: str
    host: str = ""
    auth_method: str = "local"  # "certificate", "token", or without a login "local", "plain"
    proof: tuple[int, int] = (0, 0)
    until: int = 0

    @property
    def is_authenticated(self) -> bool:
        """Whether the login is verified."""
        return bool(self.proof[0])

    @property
    def login(self) -> str:
        """Role and name, which several logins may share; "" without a verified login."""
        return f"{self.role} {self.name}" if self.is_authenticated else ""

    @property
    def is_token(self) -> bool:
        """Whether the login is a token, which can be revoked."""
        return self.auth_method.startswith("token")

    def writes_as(self, host: str) -> bool:
        """Return whether the caller may register as *host* and send its readings."""
        return self.role is not Role.AGENT or self.host == host

    def __str__(self) -> str:
        return f"{self.role} {self.name!r} (by {self.auth_method})"


#: The caller on plain loopback without any login: all users of this machine may do everything.
LOCAL = Principal(Role.ADMIN, "local")
#: The caller beyond loopback without any login.
ANYONE = Principal(Role.ANYONE, "anyone", auth_method="plain")

_PRINCIPAL: ContextVar[Principal] = ContextVar("caller")


_ACTOR = re.compile(rf"(?:{'|'.join(GRANTABLE_ROLES)}) [^/]*")


def login_of_actor(actor: str) -> str:
    """Return the login in an actor `LOGIN/NAME`; "" if the caller had no login."""
    match = _ACTOR.match(actor)
    return match[0] if match else ""


def current_principal(context: Any) -> Principal:
    """Return the caller of the current call. Raises PermissionDenied if no login check ran."""
    try:
        return _PRINCIPAL.get()
    except LookupError:
        raise PermissionDenied(
            "the caller was not authenticated: this service has no guard"
        ) from None


def current_login() -> str:
    """Return `Principal.login` of the current call; "" if no login check ran."""
    return _PRINCIPAL.get(LOCAL).login


def current_role() -> Role:
    """Return the role of the current call's caller; ADMIN if no login check ran."""
    return _PRINCIPAL.get(LOCAL).role


def set_principal(principal: Principal) -> None:
    """Set the caller of the current task."""
    _PRINCIPAL.set(principal)


_AGENTS = frozenset({Role.AGENT, Role.ADMIN, Role.ANYONE})
_SCHEDULERS = frozenset({Role.SCHEDULER, Role.OPERATOR, Role.ADMIN, Role.ANYONE})
#: Answers to advice need a verified login.
_EXECUTORS = _SCHEDULERS - {Role.ANYONE}
_OPERATORS = frozenset({Role.OPERATOR, Role.ADMIN})
_READERS = _OPERATORS | {Role.ANYONE}
_ADMINS = frozenset({Role.ADMIN})
#: Open to all callers: a load balancer has no login.
PUBLIC: frozenset[Role] = frozenset(Role)

#: Service -> method -> roles; `*`: all methods. A missing method is denied, and a test reports it.
PERMISSIONS: dict[str, dict[str, frozenset[Role]]] = {
    "gangline.v1.TelemetryService": {
        "RegisterNode": _AGENTS,
        "StreamTelemetry": _AGENTS,
        "ReportEvents": _AGENTS,
        "UploadRecording": _AGENTS,
    },
    "gangline.v1.ScoreService": {
        "GetNodeDictionary": _SCHEDULERS,
        "GetNodeScore": _SCHEDULERS,
        "ListNodeScores": _SCHEDULERS,
        "ScoreNodes": _SCHEDULERS,
        "WatchNodeScores": _SCHEDULERS,
    },
    "gangline.v1.JobService": {"ListJobs": _SCHEDULERS, "GetJob": _SCHEDULERS},
    "gangline.v1.PlacementService": {
        "PlanPlacement": _SCHEDULERS,
        "EvaluatePlacement": _SCHEDULERS,
        "WatchPlan": _SCHEDULERS,
        "PlanResize": _SCHEDULERS,
        "ListTopologyDomains": _SCHEDULERS,
    },
    "gangline.v1.InterferenceService": {
        "PredictInterference": _SCHEDULERS,
        "VerifyIsolation": _SCHEDULERS,
    },
    "gangline.v1.RecoveryService": {"PlanRecovery": _SCHEDULERS, "ReportRecovery": _EXECUTORS},
    "gangline.v1.ReservationService": {
        "Reserve": _SCHEDULERS,
        "Renew": _SCHEDULERS,
        "Release": _SCHEDULERS,
        "ListReservations": _SCHEDULERS,
    },
    "gangline.v1.DecisionService": {"GetDecision": _SCHEDULERS},
    "gangline.v1.PermitService": {
        "GetPermit": _READERS,
        "GrantPermit": _OPERATORS,
        "RevokePermit": _READERS,  # in doubt, every reader may stop it
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
    "gangline.v1.RecordingService": {"RecordHost": _OPERATORS},
    "gangline.v1.AdminService": {"*": _ADMINS},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": _SCHEDULERS},
    "grpc.health.v1.Health": {"Check": PUBLIC, "Watch": PUBLIC, "List": PUBLIC},
}


def roles_of(method: str) -> frozenset[Role]:
    """Return the roles that may call `/package.Service/Method`; none if it is not in the table."""
    service, _, name = method.removeprefix("/").partition("/")
    methods = PERMISSIONS.get(service, {})
    return methods.get(name, methods.get("*", frozenset()))


class CertificateSubject(NamedTuple):
    """The holder of a certificate."""

    role: Role
    name: str


class NamePattern(NamedTuple):
    """`ROLE=BEFORE{name}AFTER`, compared case-insensitively, like DNS names."""

    role: Role
    before: str
    after: str

    def match(self, text: str) -> CertificateSubject | None:
        """Return the holder in *text*, None if it does not match."""
        text = text.lower()
        size = len(text) - len(self.before) - len(self.after)
        if size < 1 or not (text.startswith(self.before) and text.endswith(self.after)):
            return None
        name = text[len(self.before) : len(self.before) + size]
        return CertificateSubject(self.role, name) if is_name(name) else None


def is_name(text: str) -> bool:
    """Return whether *text* can name a host or a person."""
    return len(text) <= NAME_CHARACTERS_MAX and _NAME.fullmatch(text) is not None


def parse_name_pattern(text: str) -> NamePattern:
    """Return the pattern of `ROLE=...{name}...`. Raises ValueError with the expected form."""
    role, equals, form = text.partition("=")
    around = form.split(NAME_PLACEHOLDER)
    given = tuple(str(role_name) for role_name in GRANTABLE_ROLES)
    if (
        not equals
        or role not in given
        or len(around) != 2
        or not all(map(_LITERAL.fullmatch, around))
    ):
        raise ValueError(
            f"{text[:80]!r}: ROLE=PATTERN with one {NAME_PLACEHOLDER}, as agent={NAME_PLACEHOLDER}.gpu.example; "
            f"ROLE is one of {', '.join(given)}"
        )
    return NamePattern(Role(role), around[0].lower(), around[1].lower())


def check_name_patterns(texts: Sequence[str]) -> None:
    """Raise ValueError unless each of *texts* is a pattern; the check of a setting."""
    if len(texts) > PATTERNS_MAX:
        raise ValueError(f"at most {PATTERNS_MAX} patterns")
    for text in texts:
        parse_name_pattern(text)


def check_trust_domain(text: str) -> None:
    """Raise ValueError unless *text* is a SPIFFE trust domain or empty."""
    if text and not _TRUST.fullmatch(text):
        raise ValueError("a SPIFFE trust domain, as cluster.example, in lower case; or nothing")


def parse_spiffe(text: str, trust: str = "") -> CertificateSubject | None:
    """Return the holder of `spiffe://TRUST/gangline/ROLE/NAME`; None if it is another form or *trust*."""
    match = _SPIFFE.fullmatch(text) if len(text) <= IDENTITY_CHARACTERS_MAX else None
    if match is None or (trust and match["trust"] != trust) or not is_name(match["name"]):
        return None
    role = next((candidate for candidate in GRANTABLE_ROLES if candidate == match["role"]), None)
    return CertificateSubject(role, match["name"]) if role else None


class CertificateIdentity:
    """Maps the names in a certificate to a role and a name.

    The name is a URI `spiffe://TRUST/gangline/ROLE/NAME` (SPIFFE-ID standard, section 2), or a DNS
    name, or, without both, the common name. Patterns of the operator, such as
    `agent={name}.gpu.example`, map DNS and common names.
    """

    def __init__(self, patterns: Iterable[str], trust: str) -> None:
        """*patterns*: texts for `parse_name_pattern`; *trust*: SPIFFE trust domain, "" for any."""
        self._patterns = [parse_name_pattern(text) for text in patterns]
        self._trust = trust

    def principal(self, auth: Mapping[str, Iterable[bytes]]) -> CertificateSubject | None:
        """Return the holder in gRPC's auth context of a verified certificate. Never raises."""
        uris, names = _texts(auth, "peer_uri"), _texts(auth, "peer_dns")
        for uri in uris:
            if subject := parse_spiffe(uri, self._trust):
                return subject
        for text in names or ([] if uris else _texts(auth, "x509_common_name")):
            for pattern in self._patterns:
                if subject := pattern.match(text):
                    return subject
        return None


def certificate_names(auth: Mapping[str, Iterable[bytes]]) -> str:
    """Return a certificate's names for messages, shortened."""
    keys = ("peer_uri", "peer_dns", "x509_common_name")
    texts = [text for key in keys for text in _texts(auth, key)]
    joined = ", ".join(texts)[:200]
    return "".join(c if c.isprintable() else "?" for c in joined) or "no name"


def _texts(auth: Mapping[str, Iterable[bytes]], key: str) -> list[str]:
    texts = [bytes(v).decode("utf-8", "replace") for v in list(auth.get(key, ()))[:NAMES_MAX]]
    return [text for text in texts if text]
