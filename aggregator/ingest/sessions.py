"""Who speaks under which name. The incumbent stays; a newcomer waits until it has been silent."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..access.caller import LOCAL, Caller
from ..refusals import ROOM_SECONDS, NameTaken, NoSession, NotAllowed, TooMuch
from ..store.rows import Foreign
from .findings import Findings
from .pace import HostPace

#: After so long without a word of the incumbent, its name is free.
SILENT_SECONDS = 60
_SILENT_NS = SILENT_SECONDS * 1_000_000_000
#: Of a name that is refused, which may be a megabyte, so much is shown: it is not looked at any further.
NAME_CHARACTERS_SHOWN = 253


@dataclass(slots=True)
class Session:
    """One agent's registration. Ends when the same name registers again."""

    host: str
    run_id: bytes
    boot_id: bytes
    address: str
    heard_ns: int
    token: str = ""
    #: Who registered it, the only one that may use it, and how it proved its name (`access/caller.py`).
    caller: Caller = LOCAL
    streams: int = 0
    ended: bool = False
    foreign: Mapping[int, Foreign] = field(default_factory=dict[int, Foreign])
    #: Of the host's late frames, kept when it registers again; made by its first stream.
    pace: HostPace | None = None

    def silent(self, now_ns: int) -> bool:
        """Whether its name is free."""
        return now_ns - self.heard_ns >= _SILENT_NS

    def __str__(self) -> str:
        return f"run {self.run_id.hex()[:8]} from {self.address}"


class Sessions:
    """All of them, by name. Owned by the loop's thread."""

    def __init__(self, findings: Findings, hosts_max: int) -> None:
        self._findings = findings
        self._hosts_max = hosts_max
        self._by_host: dict[str, Session] = {}
        self._by_token: dict[str, Session] = {}
        self._by_run: dict[bytes, Session] = {}

    def __len__(self) -> int:
        """How many hosts are registered or remembered."""
        return len(self._by_host)

    def remember(self, host: str, run_id: bytes, boot_id: bytes, address: str, now_ns: int) -> None:
        """Take over a host that the store knows: it is the incumbent of its name, heard just now."""
        self._keep(Session(host, run_id, boot_id, address, now_ns))

    def register(
        self,
        host: str,
        run_id: bytes,
        boot_id: bytes,
        address: str,
        now_ns: int,
        caller: Caller = LOCAL,
    ) -> Session:
        """Return a new session, on the same connection the one that is: its stream goes on.

        Raises NotAllowed where *caller* may not write as *host*, NameTaken or TooMuch, with words for the newcomer.
        """
        check_name(caller, host)
        new = Session(host, run_id, boot_id, address, now_ns, secrets.token_hex(16), caller)
        incumbent = self._by_host.get(host)
        if incumbent is not None and _is_same(incumbent, new):
            incumbent.heard_ns = now_ns
            return incumbent
        if incumbent is None and len(self._by_host) >= self._hosts_max:
            words = f"{self._hosts_max} hosts are registered, which is the limit (hosts_max)"
            raise TooMuch(words, ROOM_SECONDS)
        if incumbent is not None and not _may_follow(incumbent, new, now_ns):
            if new.caller.proof <= incumbent.caller.proof:
                raise NameTaken(self._two_of_one_name(incumbent, new, now_ns))
            self._taken_over(incumbent, new, now_ns)
        self._look_for_clone(new, now_ns)
        if incumbent is not None:
            new.pace = incumbent.pace
            self._end(incumbent)
        self._keep(new)
        return new

    def speaks(self, host: str, run_id: bytes, boot_id: bytes, address: str) -> bool:
        """Say whether this agent is registered on this connection: it only tells of a change."""
        incumbent = self._by_host.get(host)
        return incumbent is not None and _is_same(
            incumbent, Session(host, run_id, boot_id, address, 0)
        )

    def heard_ns(self, host: str) -> int:
        """Return when a host that registered last spoke."""
        return self._by_host[host].heard_ns

    def leap(self, leapt_ns: int, now_ns: int) -> None:
        """Our clock was set forward by *leapt_ns* since it was last looked at: nobody's name is free for that."""
        for session in self._by_host.values():
            if session.heard_ns <= now_ns - leapt_ns:
                session.heard_ns += leapt_ns

    def is_silent(self, host: str, now_ns: int) -> bool:
        """Say whether a host's name is free: it is not known, or has not spoken for SILENT_SECONDS."""
        session = self._by_host.get(host)
        return session is None or session.silent(now_ns)

    def get(self, token: str, caller: Caller = LOCAL) -> Session:
        """Return the session of *token*, which *caller* must have registered. Raises NoSession."""
        session = self._by_token.get(token)
        if session is None or (session.caller.role, session.caller.name) != (
            caller.role,
            caller.name,
        ):
            raise NoSession(
                "metadata gangline-session names no session of this aggregator "
                "(it may have restarted): call RegisterNode first"
            )
        return session

    def _keep(self, session: Session) -> None:
        self._by_host[session.host] = session
        self._by_run[session.run_id] = session
        if session.token:
            self._by_token[session.token] = session

    def _end(self, session: Session) -> None:
        session.ended = True
        self._by_token.pop(session.token, None)
        if self._by_run.get(session.run_id) is session:
            del self._by_run[session.run_id]

    def _two_of_one_name(self, incumbent: Session, new: Session, now_ns: int) -> str:
        cloned = incumbent.run_id == new.run_id
        if cloned:
            name, why = "identity.cloned_image", "both have the same run id: a cloned machine image"
            boots = f"boot {incumbent.boot_id.hex()[:8]}", f"boot {new.boot_id.hex()[:8]}"
        else:
            name, why = "identity.duplicate_name", "two hosts claim one name"
            boots = "", ""
        what_to_do = (
            "give the newcomer an empty spool folder and a name of its own"
            if cloned
            else "rename one of them; if the incumbent is gone, its name is free after "
            f"{SILENT_SECONDS} s of silence"
        )
        words = (
            f"{why}: incumbent {incumbent} {boots[0]}".rstrip()
            + f" stays, newcomer {new} {boots[1]}".rstrip()
            + f" is refused; {what_to_do}"
        )
        self._findings.find(new.host, name, words, now_ns, subject=_machine(new), expires=True)
        return f"name {new.host!r} is taken: {words}"

    def _taken_over(self, incumbent: Session, new: Session, now_ns: int) -> None:
        """Tell of a name that goes to the one with the better proof of it."""
        words = (
            f"two hosts claim one name: newcomer {new} ({new.caller.way}) takes it over from incumbent "
            f"{incumbent} ({incumbent.caller.way}), whose proof of it is less or older; rename one of them, or "
            "stop the incumbent if it should not be"
        )
        self._findings.find(
            new.host,
            "identity.duplicate_name",
            words,
            now_ns,
            subject=_machine(incumbent),
            expires=True,
        )

    def _look_for_clone(self, new: Session, now_ns: int) -> None:
        """Two machines of different names with one run id: both go on, both are told of."""
        other = self._by_run.get(new.run_id)
        if other is None or other.host == new.host or other.boot_id == new.boot_id:
            return
        if other.silent(now_ns):
            return  # renamed and rebooted, most likely
        for one, two in ((new, other), (other, new)):
            words = (
                f"{one.host} ({one.address}) and {two.host} ({two.address}) have the same run id "
                f"{new.run_id.hex()[:8]}: one is a clone of the other's disk; "
                "empty the agent's spool folder on one of them"
            )
            self._findings.find(
                one.host, "identity.cloned_image", words, now_ns, subject=two.host, expires=True
            )


def check_name(caller: Caller, host: str) -> None:
    """Raise NotAllowed, with words, where *caller* may not write as *host*."""
    if not caller.writes_as(host):
        raise NotAllowed(
            f"{caller} writes as its own host only, not as {host[:NAME_CHARACTERS_SHOWN]!r}: the agent's setting host, "
            "or the machine's name, must be the name that its certificate or token was made for"
        )


def _machine(session: Session) -> str:
    """The address without the port, which changes with every connection."""
    return session.address.rpartition(":")[0] or session.address


def _is_same(incumbent: Session, new: Session) -> bool:
    """Whether an agent registers again on its connection, as after a change of its inventory."""
    return bool(incumbent.token) and (
        (incumbent.run_id, incumbent.boot_id, incumbent.address, incumbent.caller)
        == (new.run_id, new.boot_id, new.address, new.caller)
    )


def _may_follow(incumbent: Session, new: Session, now_ns: int) -> bool:
    if incumbent.silent(now_ns):
        return True
    if incumbent.run_id != new.run_id:
        return False
    # The same spool: the agent again, or the same machine after a reboot (its stream is then dead).
    return incumbent.boot_id == new.boot_id or not incumbent.streams
