"""The ledger: the marks that this executor set in the scheduler, their advisories, and the previous values.

The ledger is stored before each command: as a JSON file that is replaced atomically and synced. A lock file in the same
folder keeps a second executor off the ledger. In Kubernetes the ledger is a ConfigMap (`kubernetes/state.py`).
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..contract.durable_file import replace_file

FORMAT = 1
#: A larger file is refused as invalid; a further entry is refused.
FILE_BYTES_MAX, ENTRIES_MAX = 16 << 20, 20_000
#: Limit of nodes stored as reported. A node beyond the limit that returns while no executor runs stays out until its
#: report expires.
REPORTED_MAX = 2000

#: `mark` of an entry: the kind of mark that was set. NONE: the advisory needs no mark.
HOLD, DRAIN, DOWN, NONE = "hold", "drain", "down", ""

#: `phase` of an entry.
ACCEPTED = "accepted"  # nothing is set yet
SETTING = "setting"  # the command that sets the mark was about to be sent
SET = "set"  # the scheduler confirmed the mark
GIVEN_BACK = "given back"  # a person removed the mark; it is never set again
REMOVED = "removed"  # this executor removed the mark
PHASES = (ACCEPTED, SETTING, SET, GIVEN_BACK, REMOVED)

#: `state` of an evicted job.
REQUEUE, START, MOVED, LEFT = "requeue", "start", "moved", "left"

_MOVE = "stop the executor, run `gangline executor SCHEDULER undo --all`, and move the file away"
_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float)}


class LedgerError(Exception):
    """The ledger cannot be read, written or locked; the message names the remedy."""


@dataclass(slots=True)
class JobProgress:
    """The progress of a job that leaves a node. `restarts`: number of its earlier requeues."""

    state: str
    restarts: int = 0
    note: str = ""
    #: When the job was requeued, when it was first seen waiting, and when its delay was last lifted; 0: not yet.
    requeued: float = 0.0
    waiting: float = 0.0
    started: float = 0.0
    #: How often the scheduler refused to move the job, and how often the job started on the node again.
    attempts: int = 0
    returns: int = 0
    #: Time of the next attempt.
    retry: float = 0.0


@dataclass(slots=True)
class Entry:
    """The mark of an advisory, set or about to be set, and the progress of the node's jobs."""

    advisory: str
    node: str
    action: str
    owner: str
    token: int
    accepted: float
    expires: float
    mark: str = NONE
    hold: str = ""
    phase: str = ACCEPTED
    #: When the mark was last confirmed; 0: never.
    set_at: float = 0.0
    #: End of the mark as last sent to the scheduler.
    ends: float = 0.0
    before_state: str = ""
    before_reason: str = ""
    #: Last answer to the aggregator: "", DONE, FAILED, REJECTED.
    answered: str = ""
    #: When jobs leave the node at a checkpoint; 0: unknown.
    evict_at: float = 0.0
    #: Outcome for the torchft replicas on the node; "": they are not ended, or not yet.
    replicas: str = ""
    #: Note of the last report to the aggregator about jobs that are still on the node.
    reported: str = ""
    jobs: dict[str, JobProgress] = field(default_factory=dict)

    @property
    def is_marked(self) -> bool:
        """Whether the scheduler may have this entry's mark."""
        return self.phase in (SETTING, SET) and self.mark != NONE


@dataclass(slots=True)
class WeightChange:
    """A changed weight of a node.

    `before`: the original weight; `given`: the weight last sent to the scheduler; `earlier`: the
    weight until then.
    """

    before: int
    given: int
    earlier: int


class ExecutorLedger:
    """Entries by advisory. Call `save` after each change, before the command that the change announces."""

    def __init__(self, path: Path) -> None:
        """Read *path*, which may be missing. Raises LedgerError."""
        self.path = path
        self.place = str(path)
        self.load()

    def load(self) -> None:
        """Read the stored ledger. Raises LedgerError."""
        self.entries: dict[str, Entry] = {}
        #: Highest fencing token seen, by advisory; advice with an older token is never acted on.
        self.tokens: dict[str, int] = {}
        #: Identity of the aggregator's store that issued the entries and tokens; "": unknown.
        self.store = ""
        #: Nodes that were reported to the aggregator as out; the next process reports the returned nodes.
        self.reported: frozenset[str] = frozenset()
        #: Changed weights by node.
        self.weights: dict[str, WeightChange] = {}
        text = self.read_text()
        if text is not None:
            self._parse(text)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self.entries.values()))

    def get(self, advisory: str) -> Entry | None:
        """Return the entry of *advisory*."""
        return self.entries.get(advisory)

    def add(self, entry: Entry) -> None:
        """Add or replace an entry. Raises LedgerError beyond ENTRIES_MAX."""
        if len(self.entries) >= ENTRIES_MAX and entry.advisory not in self.entries:
            raise LedgerError(f"{self.place}: {ENTRIES_MAX} entries; nothing more is accepted")
        self.entries[entry.advisory] = entry
        self.tokens[entry.advisory] = max(self.tokens.get(entry.advisory, 0), entry.token)

    def remove(self, advisory: str) -> None:
        """Remove an entry; beyond ENTRIES_MAX tokens also forget the tokens that are lowest and have no entry."""
        self.entries.pop(advisory, None)
        if len(self.tokens) > ENTRIES_MAX:
            newest = sorted(self.tokens.items(), key=lambda one: -one[1])[: ENTRIES_MAX // 2]
            recent = dict(newest) | {
                name: self.tokens[name] for name in self.entries if name in self.tokens
            }
            self.tokens = recent

    def on_node(self, node: str) -> list[Entry]:
        """Return the entries of *node*."""
        return [entry for entry in self.entries.values() if entry.node == node]

    def save(self) -> None:
        """Store the ledger, synced. Raises LedgerError."""
        document = {
            "format": FORMAT,
            "entries": [asdict(entry) for entry in self.entries.values()],
            "tokens": self.tokens,
            "store": self.store,
            "reported": sorted(self.reported)[:REPORTED_MAX],
            "weights": {
                name: [one.before, one.given, one.earlier] for name, one in self.weights.items()
            },
        }
        self.write_text(json.dumps(document))

    def write_text(self, text: str) -> None:
        """Replace the stored text with *text*, synced. Raises LedgerError."""
        try:
            replace_file(self.path, text.encode())
        except OSError as error:
            raise LedgerError(f"{self.path}: {error.strerror}") from error

    def read_text(self) -> str | None:
        """Return the stored text; None if nothing is stored. Raises LedgerError."""
        try:
            if self.path.stat().st_size > FILE_BYTES_MAX:
                raise LedgerError(f"{self.path}: larger than {FILE_BYTES_MAX} bytes; {_MOVE}")
            return self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(f"{self.path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise LedgerError(f"{self.path}: not a valid ledger: {error}; {_MOVE}") from error

    def _parse(self, text: str) -> None:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise LedgerError(f"{self.place}: not a valid ledger: {error}; {_MOVE}") from error
        try:
            if document["format"] != FORMAT:
                raise LedgerError(
                    f"{self.place}: format {document['format']!r}, this version reads {FORMAT}; {_MOVE}"
                )
            self.entries = {one["advisory"]: _entry(one) for one in document["entries"]}
            self.tokens = {str(name): int(token) for name, token in document["tokens"].items()}
            self.store = str(document.get("store", ""))
            self.reported = frozenset(map(str, document.get("reported", ())))
            self.weights = {
                str(name): WeightChange(*map(int, change))
                for name, change in document.get("weights", {}).items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LedgerError(f"{self.place}: not a valid ledger: {error!r}; {_MOVE}") from error


class UnsavedLedger(ExecutorLedger):
    """A ledger that is never stored, for an executor that changes nothing."""

    def __init__(self, path: Path | None = None) -> None:
        """Read *path*, which may be missing; None: begin empty. Raises LedgerError."""
        self._begins_empty = path is None
        super().__init__(path or Path("nowhere"))

    def read_text(self) -> str | None:
        """Return the stored text; None if nothing is stored. Raises LedgerError."""
        return None if self._begins_empty else super().read_text()

    def write_text(self, text: str) -> None:
        """Store nothing."""


def _entry(document: Any) -> Entry:
    """Return the entry of a JSON object. Raises KeyError, TypeError, ValueError."""
    values = dict(document)
    jobs = {str(name): JobProgress(**one) for name, one in values.pop("jobs", {}).items()}
    entry = Entry(**values, jobs=jobs)
    for one in fields(Entry):
        expected = _TYPES.get(str(one.type))
        if expected and not isinstance(getattr(entry, one.name), expected):
            raise ValueError(f"{one.name} = {getattr(entry, one.name)!r}")
    if entry.phase not in PHASES or entry.mark not in (HOLD, DRAIN, DOWN, NONE):
        raise ValueError(f"phase {entry.phase!r}, mark {entry.mark!r}")
    return entry


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the ledger in *folder* against other executors; create *folder* if it is missing. Raises LedgerError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LedgerError(
            f"{folder}: {error.strerror}; make it for the user of the executor, or name another folder with --set ledger="
        ) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LedgerError(
                f"{folder}: another executor uses this ledger; stop it, or name another folder with --set ledger="
            ) from error
        yield
    finally:
        os.close(handle)
