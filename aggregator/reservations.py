"""Reserved nodes: owner, expiry, and a fencing token that only grows, so that no node is promised twice.

A login holds at most a share of the nodes, each for at most a day, and only half as many node-hours within any 24 hours. A reservation ends early when the last token of its login is
revoked, or when an operator releases it.

Only the aggregator writes them. All reservations are in one file in its folder, replaced atomically and durably before a caller
gets its answer. While the aggregator runs, a monotonic clock counts the time left, so setting the wall clock ends no
reservation early. After a restart the wall clock counts, but never for longer than the reservation's original length.
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

from .counter_deltas import Indexes
from .durable_file import replace_file
from .errors import EtagMismatch, NotFound, PermissionDenied, ResourceExhausted, ServiceUnavailable

FILE_NAME, FILE_BYTES_MAX = "reservations.json", 64 << 20
#: Of all reservations together.
RESERVATIONS_MAX, HOSTS_MAX = 1000, 100_000
#: Limits per login, so that others can reserve, too.
LOGIN_RESERVATIONS_MAX, LOGIN_NODES_SHARE_MAX = RESERVATIONS_MAX // 2, 0.75
#: From the reservation to its end, renewals included.
TTL_SECONDS_MAX = 86_400
SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
#: Node-hours of a login within any 24 hours, for each node that it may hold: else it could reserve the same nodes again and again.
LOGIN_HOURS_MAX, LOGIN_WINDOW_HOURS = 12, 24
#: After this time some reservation may have ended.
RETRY_SECONDS = 60.0

log = logging.getLogger(__name__)


class HostReservation(NamedTuple):
    """Hosts that nobody else is offered until `expire_ns`, which is of the steady clock."""

    token: int
    owner: str
    hosts: tuple[str, ...]
    expire_ns: int
    ttl_ns: int
    workload: str = ""
    decision: str = ""
    request_id: str = ""
    option: int = 0  #: of the decision, from 1; 0: not said
    login: str = ""  #: `Principal.login`
    by_token: bool = False
    last_ns: int = 0  #: latest end after renewals, by the steady clock

    @property
    def begin_ns(self) -> int:
        """When it was reserved, by the steady clock."""
        return self.last_ns - TTL_SECONDS_MAX * SECOND_NS

    @property
    def node_ns(self) -> int:
        """Its nodes multiplied by its time, up to its end."""
        return len(self.hosts) * (self.expire_ns - self.begin_ns)

    @property
    def name(self) -> str:
        """The resource name, of its token."""
        return f"reservations/{self.token}"

    @property
    def key(self) -> str:
        """The name as plans know it: only a caller of the same login counts its nodes as free."""
        return reservation_key(self.name, self.login)


def reservation_key(name: str, login: str) -> str:
    """Return `HostReservation.key` of the reservation *name* of *login*."""
    return f"{name} {login}" if login else name


class Reservations:
    """All reservations. Belongs to the loop. `reserve`, `renew` and `release` hold at once; `persisted` makes them last."""

    def __init__(
        self,
        folder: Path,
        wall_ns: Callable[[], int],
        steady_ns: Callable[[], int] = time.monotonic_ns,
        has_login: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """A file that cannot be read is set aside: what it held is lost, and tokens still grow.

        *has_login*: whether a login, by its name, still has a token.
        """
        self._path = folder / FILE_NAME
        self._wall_ns, self._steady_ns, self._has_login = wall_ns, steady_ns, has_login
        self._active: dict[int, HostReservation] = {}
        self._by_host: dict[str, int] = {}
        #: Login -> hour of the steady clock -> node-time of its reservations that ended then.
        self._ended: dict[str, dict[int, int]] = {}
        self._last_token = 0
        self._changes = self._written = 0
        self._lock = asyncio.Lock()
        self._node_indexes: tuple[Any, tuple[tuple[str, Indexes], ...]] = (None, ())
        self._load()

    def active(self, owner: str = "") -> list[HostReservation]:
        """Return those that hold now, the oldest first; of *owner* only, where one is given."""
        self._expire()
        return [one for one in self._active.values() if not owner or one.owner == owner]

    def of_host(self, host: str) -> HostReservation | None:
        """Return the reservation that holds *host* now."""
        self._expire()
        token = self._by_host.get(host)
        return None if token is None else self._active[token]

    def of_request(self, owner: str, request_id: str) -> HostReservation | None:
        """Return what an earlier request of this id made, while it holds."""
        self._expire()
        found = (each for each in self._active.values() if each.request_id == request_id)
        return next((each for each in found if request_id and each.owner == owner), None)

    def expire_wall_ns(self, one: HostReservation) -> int:
        """Return when it ends, by the wall clock of now."""
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
        # Also above those of a file that was lost.
        token = max(self._last_token + 1, self._wall_ns() // 1_000_000)
        self._last_token = token
        now_ns = self._steady_ns()
        one = HostReservation(
            token, owner, tuple(hosts), now_ns + ttl_ns, ttl_ns, workload, decision, request_id, option, login, by_token,
            now_ns + TTL_SECONDS_MAX * SECOND_NS,
        )  # fmt: skip
        self._add(one)
        self._changes += 1
        return one

    def renew(
        self, name: str, owner: str, token: int, ttl_ns: int, login_nodes_max: int = HOSTS_MAX
    ) -> HostReservation:
        """Set its end to *ttl_ns* from now, within a day after it began and its login's node-hours.

        Raises NotFound, PermissionDenied, EtagMismatch.
        """
        one = self._find(name, owner, token)
        if one is None:
            raise NotFound(
                f"{name[:100]!r} has expired, was released, or never existed. Reserve again, and "
                "stop using its nodes"
            )
        expire_ns = min(self._steady_ns() + ttl_ns, one.last_ns)
        if one.login:
            left_ns = (
                login_nodes_max * LOGIN_HOURS_MAX * HOUR_NS - self._node_ns(one.login) + one.node_ns
            )
            expire_ns = min(
                expire_ns, max(one.begin_ns + left_ns // len(one.hosts), self._steady_ns())
            )
        renewed = one._replace(expire_ns=expire_ns, ttl_ns=ttl_ns)
        self._active[one.token] = renewed
        self._changes += 1
        return renewed

    def release(self, name: str, owner: str, token: int, *, by_operator: bool = False) -> bool:
        """End it; False: it has ended already. *by_operator*: for any owner. Raises PermissionDenied, EtagMismatch."""
        one = self._named(name) if by_operator else self._find(name, owner, token)
        if one is None:
            return False
        self._remove(one)
        self._changes += 1
        return True

    async def persisted(self) -> None:
        """Return once what is reserved now is on disk. Raises ServiceUnavailable."""
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
        """Return each reservation's name, and its hosts by *index*, those below *count*."""
        self._expire()
        key = (self._changes, len(self._active), id(index), len(index), count)
        if self._node_indexes[0] != key:
            found: list[tuple[str, Indexes]] = []
            for one in self._active.values():
                nodes = [index.get(host, count) for host in one.hosts]
                found.append((one.key, np.array([n for n in nodes if n < count], dtype=np.intp)))
            self._node_indexes = key, tuple(found)
        return self._node_indexes[1]

    def _node_ns(self, login: str) -> int:
        """Return the node-time of the login's reservations that hold now or ended within the window, each with all its time."""
        first = self._steady_ns() // HOUR_NS - LOGIN_WINDOW_HOURS
        ended = {hour: ns for hour, ns in self._ended.get(login, {}).items() if hour >= first}
        self._ended[login] = ended
        active = sum(one.node_ns for one in self._active.values() if one.login == login)
        return active + sum(ended.values())

    def _check_login(self, login: str, count: int, ttl_ns: int, nodes_max: int) -> None:
        held = [len(one.hosts) for one in self._active.values() if one.login == login]
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
        return next((each for each in self._active.values() if each.name == name), None)

    def _find(self, name: str, owner: str, token: int) -> HostReservation | None:
        one = self._named(name)
        if one is None:
            return None
        if one.owner != owner:
            raise PermissionDenied(
                f"{name} is of {one.owner!r}, not of {owner!r}; its owner can end it, or an operator's login (Release)"
            )
        if one.token != token:
            raise EtagMismatch(
                f"fencing_token {token} is not that of {name}: send the token that Reserve returned"
            )
        return one

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
        for one in list(self._active.values()):
            is_revoked = one.by_token and not self._has_login(one.login)
            if one.expire_ns <= now_ns or is_revoked:
                self._remove(one)
                self._changes += is_revoked

    def _encoded(self) -> bytes:
        ahead_ns = self._wall_ns() - self._steady_ns()
        ended = [
            [login, (hour + 1) * HOUR_NS - 1 + ahead_ns, node_ns]
            for login in self._ended
            if self._node_ns(login)
            for hour, node_ns in self._ended[login].items()
        ]
        return json.dumps(
            {
                "version": 1,
                "last_token": self._last_token,
                "ended": ended,
                "reservations": [
                    {
                        **one._asdict(),
                        "expire_ns": self.expire_wall_ns(one),
                        "last_ns": self._wall_ns() + max(one.last_ns - self._steady_ns(), 0),
                    }
                    for one in self._active.values()
                ],
            }
        ).encode()

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
        for one in stored:
            left_ns = min(one.expire_ns - now_ns, one.ttl_ns)
            if left_ns > 0 and not any(host in self._by_host for host in one.hosts):
                last_ns = min(
                    one.last_ns - now_ns if one.last_ns else left_ns, TTL_SECONDS_MAX * SECOND_NS
                )
                self._add(one._replace(expire_ns=steady_ns + left_ns, last_ns=steady_ns + last_ns))
            elif one.login and one.last_ns:
                self._count_ended(one.login, steady_ns + min(left_ns, 0), one.node_ns)


def _decoded(data: bytes) -> tuple[int, list[HostReservation], list[tuple[str, int, int]]]:
    """Return the last token, the reservations and the node-time of ended reservations: (login, wall clock, node-time).

    Raises ValueError, TypeError, KeyError.
    """
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"more than {FILE_BYTES_MAX} bytes")
    fields = json.loads(data)
    if fields["version"] != 1:
        raise ValueError(f"version {fields['version']!r}, expected 1: a later aggregator wrote it")
    found = [
        HostReservation(**{**one, "hosts": tuple(one["hosts"])}) for one in fields["reservations"]
    ]
    for one in found:
        numbers = (
            one.token,
            one.expire_ns,
            one.ttl_ns,
            one.option,
            one.last_ns,
            fields["last_token"],
        )
        texts = (one.owner, one.workload, one.decision, one.request_id, one.login, *one.hosts)
        if (
            not all(type(each) is int for each in numbers)
            or not all(isinstance(each, str) for each in texts)
            or type(one.by_token) is not bool
        ):
            raise TypeError("a field of the wrong type")
    ended = [(login, wall_ns, node_ns) for login, wall_ns, node_ns in fields.get("ended", ())]
    for login, *times in ended:
        if not isinstance(login, str) or not all(type(one) is int for one in times):
            raise TypeError("a field of the wrong type")
    return int(fields["last_token"]), found, ended
