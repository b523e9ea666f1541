"""Reserved nodes, each with an owner, an expiry and an increasing fencing token.

No node is reserved twice. A login holds at most a share of the nodes, each for at most a day, and
half as many node-hours within any 24 hours. A reservation ends early when the login's last token is
revoked, or when an operator releases it.

Only the aggregator writes reservations, to a file in its folder that is replaced atomically and
durably before a caller gets its answer. While it runs, a monotonic clock counts the time left, so
that setting the wall clock ends no reservation early. After a restart the wall clock counts, but
never for longer than the reservation's original length.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..contract.durable_file import replace_file
from .arrays import Indexes
from .errors import EtagMismatch, NotFound, PermissionDenied, ResourceExhausted, ServiceUnavailable

FILE_NAME, FILE_BYTES_MAX = "reservations.json", 64 << 20
#: Limits of all reservations together.
RESERVATIONS_MAX, HOSTS_MAX = 1000, 100_000
#: Limits per login, so that others can reserve, too.
LOGIN_RESERVATIONS_MAX, LOGIN_NODES_SHARE_MAX = RESERVATIONS_MAX // 2, 0.75
#: Maximum time from a reservation to its end, with renewals.
TTL_SECONDS_MAX = 86_400
SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
#: Node-hours per login and held node in 24 hours: a login could reserve the same nodes forever.
LOGIN_HOURS_MAX, LOGIN_WINDOW_HOURS = 12, 24
#: Suggested wait until a reservation may have ended.
RETRY_SECONDS = 60.0

log = logging.getLogger(__name__)


class HostReservation(NamedTuple):
    """Hosts reserved for an owner until `expire_ns` of the steady clock."""

    token: int
    owner: str
    hosts: tuple[str, ...]
    expire_ns: int
    ttl_ns: int
    workload: str = ""
    decision: str = ""
    request_id: str = ""
    option: int = 0  #: number of the decision's option, from 1; 0: unknown
    login: str = ""  #: `Principal.login`
    by_token: bool = False
    last_ns: int = 0  #: latest end after renewals, by the steady clock

    @property
    def begin_ns(self) -> int:
        """Time of the reservation, by the steady clock."""
        return self.last_ns - TTL_SECONDS_MAX * SECOND_NS

    @property
    def node_ns(self) -> int:
        """Number of nodes times nanoseconds until the end."""
        return len(self.hosts) * (self.expire_ns - self.begin_ns)

    @property
    def name(self) -> str:
        """Resource name, from the token."""
        return f"reservations/{self.token}"

    @property
    def key(self) -> str:
        """The name used by plans: only callers of the same login may use its nodes."""
        return reservation_key(self.name, self.login)


def reservation_key(name: str, login: str) -> str:
    """Return `HostReservation.key` of the reservation *name* of *login*."""
    return f"{name} {login}" if login else name


class Reservations:
    """All reservations, on the event loop; `persisted` makes changes durable."""

    def __init__(
        self,
        folder: Path,
        wall_ns: Callable[[], int],
        steady_ns: Callable[[], int] = time.monotonic_ns,
        has_login: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """Load the file.

        An unreadable file is renamed, its reservations are lost, and tokens still increase.

        *has_login*: whether a login still has a token.
        """
        self._path = folder / FILE_NAME
        self._wall_ns, self._steady_ns, self._has_login = wall_ns, steady_ns, has_login
        self._active: dict[int, HostReservation] = {}
        self._by_host: dict[str, int] = {}
        #: Login -> hour of the steady clock -> node-time of reservations that ended in it.
        self._ended: dict[str, dict[int, int]] = {}
        self._last_token = 0
        self._changes = self._written = 0
        self._lock = asyncio.Lock()
        self._node_indexes: tuple[Any, tuple[tuple[str, Indexes], ...]] = (None, ())
        self._load()

    def active(self, owner: str = "") -> list[HostReservation]:
        """Return the active reservations, oldest first, only those of *owner* if given."""
        self._expire()
        return [r for r in self._active.values() if not owner or r.owner == owner]

    def of_host(self, host: str) -> HostReservation | None:
        """Return the active reservation of *host*."""
        self._expire()
        token = self._by_host.get(host)
        return None if token is None else self._active[token]

    def of_request(self, owner: str, request_id: str) -> HostReservation | None:
        """Return the active reservation that an earlier request with this id made."""
        self._expire()
        matches = (r for r in self._active.values() if r.request_id == request_id)
        return next((r for r in matches if request_id and r.owner == owner), None)

    def expire_wall_ns(self, one: HostReservation) -> int:
        """Return its end by the current wall clock."""
        return self._wall_ns() + max(one.expire_ns - self._steady_ns(), 0)

    def reserve(
        self,
        owner: str,
        hosts: Sequence[str],
        ttl_ns: int,
        *,
        workload: str = "",
        decision: str = "",
        option: int = 0,
        request_id: str = "",
        login: str = "",
        by_token: bool = False,
        login_nodes_max: int = HOSTS_MAX,
    ) -> HostReservation:
        """Reserve *hosts*; none may be reserved already. Raises ResourceExhausted."""
        self._expire()
        if login:
            self._check_login(login, len(hosts), ttl_ns, login_nodes_max)
        assert not any(host in self._by_host for host in hosts)
        if len(self._active) >= RESERVATIONS_MAX or len(self._by_host) + len(hosts) > HOSTS_MAX:
            raise ResourceExhausted(
                f"{len(self._active)} reservations of {len(self._by_host)} nodes are active, at "
                f"most {RESERVATIONS_MAX} of {HOSTS_MAX}. Release some, or wait until they expire",
                RETRY_SECONDS,
            )
        # Also greater than the tokens of a lost file.
        token = max(self._last_token + 1, self._wall_ns() // 1_000_000)
        self._last_token = token
        now_ns = self._steady_ns()
        reservation = HostReservation(
            token, owner, tuple(hosts), now_ns + ttl_ns, ttl_ns, workload, decision, request_id, option, login, by_token,
            now_ns + TTL_SECONDS_MAX * SECOND_NS,
        )  # fmt: skip
        self._add(reservation)
        self._changes += 1
        return reservation

    def renew(
        self, name: str, owner: str, token: int, ttl_ns: int, login_nodes_max: int = HOSTS_MAX
    ) -> HostReservation:
        """Set the end to *ttl_ns* from now, within a day of its start and the login's node-hours.

        Raises NotFound, PermissionDenied, EtagMismatch.
        """
        reservation = self._find(name, owner, token)
        if reservation is None:
            raise NotFound(
                f"{name[:100]!r} has expired, was released, or never existed. Reserve again, and "
                "stop using its nodes"
            )
        expire_ns = min(self._steady_ns() + ttl_ns, reservation.last_ns)
        if reservation.login:
            budget_ns = login_nodes_max * LOGIN_HOURS_MAX * HOUR_NS
            left_ns = budget_ns - self._node_ns(reservation.login) + reservation.node_ns
            end_ns = reservation.begin_ns + left_ns // len(reservation.hosts)
            expire_ns = min(expire_ns, max(end_ns, self._steady_ns()))
        renewed = reservation._replace(expire_ns=expire_ns, ttl_ns=ttl_ns)
        self._active[reservation.token] = renewed
        self._changes += 1
        return renewed

    def release(self, name: str, owner: str, token: int, *, by_operator: bool = False) -> bool:
        """End a reservation; False: it had ended. Raises PermissionDenied, EtagMismatch.

        *by_operator*: owner and token are not checked.
        """
        reservation = self._named(name) if by_operator else self._find(name, owner, token)
        if reservation is None:
            return False
        self._remove(reservation)
        self._changes += 1
        return True

    async def persisted(self) -> None:
        """Return once all changes are on disk. Raises ServiceUnavailable."""
        wanted = self._changes
        async with self._lock:
            if self._written >= wanted:
                return
            changes, data = self._changes, self._encoded()
            try:
                await asyncio.to_thread(replace_file, self._path, data)
            except OSError as error:
                raise ServiceUnavailable(
                    f"reservations cannot be stored: {error.strerror or error}; nothing is reserved"
                ) from error
            self._written = changes

    def node_indexes(self, index: Mapping[str, int], count: int) -> tuple[tuple[str, Indexes], ...]:
        """Return per reservation its key, and the *index* values of its hosts below *count*."""
        self._expire()
        key = (self._changes, len(self._active), id(index), len(index), count)
        if self._node_indexes[0] != key:
            entries: list[tuple[str, Indexes]] = []
            for reservation in self._active.values():
                nodes = [index.get(host, count) for host in reservation.hosts]
                known = np.array([n for n in nodes if n < count], dtype=np.intp)
                entries.append((reservation.key, known))
            self._node_indexes = key, tuple(entries)
        return self._node_indexes[1]

    def _node_ns(self, login: str) -> int:
        """Return the node-time of the login's reservations, active or ended within the window."""
        first = self._steady_ns() // HOUR_NS - LOGIN_WINDOW_HOURS
        ended = {hour: ns for hour, ns in self._ended.get(login, {}).items() if hour >= first}
        self._ended[login] = ended
        active = sum(r.node_ns for r in self._active.values() if r.login == login)
        return active + sum(ended.values())

    def _check_login(self, login: str, count: int, ttl_ns: int, nodes_max: int) -> None:
        held = [len(r.hosts) for r in self._active.values() if r.login == login]
        if len(held) >= LOGIN_RESERVATIONS_MAX or sum(held) + count > nodes_max:
            raise ResourceExhausted(
                f"the login {login!r} has {len(held)} reservations of {sum(held)} nodes and asks for {count} more, at "
                f"most {LOGIN_RESERVATIONS_MAX} of {nodes_max}, so that others can reserve. Release some, or wait until "
                "they expire",
                RETRY_SECONDS,
            )
        used_ns, requested_ns = self._node_ns(login), count * ttl_ns
        if used_ns + requested_ns > nodes_max * LOGIN_HOURS_MAX * HOUR_NS:
            raise ResourceExhausted(
                f"the login {login!r} reserved {used_ns / HOUR_NS:,.1f} node-hours within {LOGIN_WINDOW_HOURS} h and asks "
                f"for {requested_ns / HOUR_NS:,.1f} more, at most {nodes_max * LOGIN_HOURS_MAX:,} ({LOGIN_HOURS_MAX} for "
                f"each of {nodes_max} nodes), so that others can reserve. Ask for a shorter ttl or fewer nodes, or wait",
                RETRY_SECONDS,
            )

    def _named(self, name: str) -> HostReservation | None:
        self._expire()
        return next((r for r in self._active.values() if r.name == name), None)

    def _find(self, name: str, owner: str, token: int) -> HostReservation | None:
        reservation = self._named(name)
        if reservation is None:
            return None
        if reservation.owner != owner:
            raise PermissionDenied(
                f"{name} is of {reservation.owner!r}, not of {owner!r}; its owner can end it, or an operator's login (Release)"
            )
        if reservation.token != token:
            raise EtagMismatch(
                f"fencing_token {token} is not that of {name}: send the token that Reserve returned"
            )
        return reservation

    def _add(self, one: HostReservation) -> None:
        self._active[one.token] = one
        self._by_host.update(dict.fromkeys(one.hosts, one.token))

    def _remove(self, one: HostReservation) -> None:
        del self._active[one.token]
        for host in one.hosts:
            del self._by_host[host]
        if one.login:
            end_ns = min(one.expire_ns, self._steady_ns())
            self._count_ended(one.login, end_ns, one._replace(expire_ns=end_ns).node_ns)

    def _count_ended(self, login: str, end_ns: int, node_ns: int) -> None:
        hours = self._ended.setdefault(login, {})
        hour = end_ns // HOUR_NS
        hours[hour] = hours.get(hour, 0) + node_ns

    def _expire(self) -> None:
        now_ns = self._steady_ns()
        for reservation in list(self._active.values()):
            is_revoked = reservation.by_token and not self._has_login(reservation.login)
            if reservation.expire_ns <= now_ns or is_revoked:
                self._remove(reservation)
                self._changes += is_revoked

    def _encoded(self) -> bytes:
        ahead_ns = self._wall_ns() - self._steady_ns()
        ended = [
            [login, (hour + 1) * HOUR_NS - 1 + ahead_ns, node_ns]
            for login in self._ended
            if self._node_ns(login)
            for hour, node_ns in self._ended[login].items()
        ]
        reservations = []
        for active in self._active.values():
            last_ns = self._wall_ns() + max(active.last_ns - self._steady_ns(), 0)
            stored = active._replace(expire_ns=self.expire_wall_ns(active), last_ns=last_ns)
            reservations.append(stored._asdict())
        fields = {"version": 1, "last_token": self._last_token, "ended": ended}
        return json.dumps({**fields, "reservations": reservations}).encode()

    def _load(self) -> None:
        try:
            with open(self._path, "rb") as file:
                last_token, stored, ended = _decoded(file.read(FILE_BYTES_MAX + 1))
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            aside = self._path.with_suffix(".unreadable")
            log.error(
                "%s cannot be read (%s): it is kept as %s, and nothing is reserved", self._path, error, aside.name
            )  # fmt: skip
            self._path.replace(aside)
            return
        self._last_token = last_token
        now_ns, steady_ns = self._wall_ns(), self._steady_ns()
        for login, wall_ns, node_ns in ended:
            self._count_ended(login, min(wall_ns - now_ns, 0) + steady_ns, node_ns)
        for reservation in stored:
            left_ns = min(reservation.expire_ns - now_ns, reservation.ttl_ns)
            if left_ns > 0 and not any(host in self._by_host for host in reservation.hosts):
                last_ns = reservation.last_ns - now_ns if reservation.last_ns else left_ns
                last_ns = steady_ns + min(last_ns, TTL_SECONDS_MAX * SECOND_NS)
                self._add(reservation._replace(expire_ns=steady_ns + left_ns, last_ns=last_ns))
            elif reservation.login and reservation.last_ns:
                end_ns = steady_ns + min(left_ns, 0)
                self._count_ended(reservation.login, end_ns, reservation.node_ns)


def _decoded(data: bytes) -> tuple[int, list[HostReservation], list[tuple[str, int, int]]]:
    """Return the last token, the reservations, and ended ones as (login, wall time, node-time).

    Raises ValueError, TypeError, KeyError, RecursionError.
    """
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"more than {FILE_BYTES_MAX} bytes")
    fields = json.loads(data)
    if fields["version"] != 1:
        raise ValueError(f"version {fields['version']!r}, expected 1: a later aggregator wrote it")
    reservations = [
        HostReservation(**{**entry, "hosts": tuple(entry["hosts"])})
        for entry in fields["reservations"]
    ]
    for r in reservations:
        numbers = (r.token, r.expire_ns, r.ttl_ns, r.option, r.last_ns, fields["last_token"])
        texts = (r.owner, r.workload, r.decision, r.request_id, r.login, *r.hosts)
        if (
            not all(type(number) is int for number in numbers)
            or not all(isinstance(text, str) for text in texts)
            or type(r.by_token) is not bool
        ):
            raise TypeError("a field of the wrong type")
    ended = [(login, wall_ns, node_ns) for login, wall_ns, node_ns in fields.get("ended", ())]
    for login, *times in ended:
        if not isinstance(login, str) or not all(type(number) is int for number in times):
            raise TypeError("a field of the wrong type")
    return int(fields["last_token"]), reservations, ended
