"""Who watches scores: what changed from one snapshot to the next, serialised once for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import numpy as np

from ...fingerprints.wire import score_pb2
from ..fleet.arrays import Flags, Indexes
from ..judgement.columns import Columns
from ..judgement.judge import Judgement
from ..refusals import Invalid, TooMuch
from ..store.scorelog import differs
from .packed import packed

log = logging.getLogger(__name__)

#: How often the snapshot is looked at while somebody watches.
LOOK_SECONDS = 0.1
#: Without any change, a bookmark is sent after so many versions: a watch that hears nothing is broken.
QUIET_VERSIONS = 10
#: Changes that a watch can go on from: five minutes of them. An older bookmark begins anew.
VERSIONS_MAX = 300
WATCHERS_MAX = 1000
BOOKMARK_CHARACTERS_MAX = 64


class Change(NamedTuple):
    """One version: which nodes changed, and the update as bytes."""

    version: int
    nodes: Indexes
    update: bytes


class Changes:
    """The changes of the last versions. `take` is called with each snapshot; watchers wait for the next."""

    def __init__(self) -> None:
        self.latest: Judgement | None = None
        self._told = Columns.none()
        self._kept: deque[Change] = deque(maxlen=VERSIONS_MAX)
        self._whole: tuple[Judgement, bytes] | None = None
        self._news = asyncio.Event()

    def take(self, snapshot: Judgement) -> None:
        """Note what is other than what watchers were told; wake them if there is anything to tell."""
        if self.latest is snapshot:
            return
        before, self.latest = self.latest, snapshot
        anew = before is None or before.dictionary_version != snapshot.dictionary_version
        if anew:
            self._told, nodes = snapshot.columns, np.zeros(0, dtype=np.intp)
            self._kept.clear()
        else:
            changed = _changed(self._told, snapshot.columns)
            nodes = np.flatnonzero(changed)
            self._told = self._told.followed_by(snapshot.columns, changed)
        word = anew or (before and before.degraded_reason != snapshot.degraded_reason)
        last = self._kept[-1].version if self._kept else 0
        if nodes.size or word or snapshot.version - last >= QUIET_VERSIONS:
            update = message(snapshot, self._told, nodes, whole=False)
            self._kept.append(Change(snapshot.version, nodes, update))
            news, self._news = self._news, asyncio.Event()
            news.set()

    async def wait(self) -> None:
        """Return when there is news."""
        await self._news.wait()

    def whole(self) -> tuple[int, bytes]:
        """Return (version, update) with all nodes, made once a version."""
        assert self.latest is not None
        if self._whole is None or self._whole[0] is not self.latest:
            everyone = np.arange(self._told.score.size, dtype=np.intp)
            update = message(self.latest, self._told, everyone, whole=True)
            self._whole = self.latest, update
        return self.latest.version, self._whole[1]

    def since(self, version: int) -> tuple[int, list[bytes]] | None:
        """Return (version now, updates after *version*); None where they are not known any more."""
        later = [change for change in self._kept if change.version > version]
        if self.latest is None or not self._kept or version > self.latest.version:
            return None
        if len(later) == len(self._kept) and later[0].version != version + 1:
            return None
        if len(later) <= 1:
            return (later[-1].version if later else version), [change.update for change in later]
        nodes = np.unique(np.concatenate([change.nodes for change in later]))
        update = message(self.latest, self._told, nodes, whole=False)
        return self.latest.version, [update]


class Watching:
    """All watchers of one service, and the one task that looks for them."""

    def __init__(self, snapshot: Callable[[], Judgement]) -> None:
        """*snapshot*: returns the last one, or raises NotReady."""
        self._snapshot, self._changes = snapshot, Changes()
        self._task: asyncio.Task[None] | None = None
        self.count = 0

    async def watch(self, bookmark: str, write: Callable[[bytes], Awaitable[object]]) -> None:
        """Write updates until the caller is gone. Raises Invalid, NotReady, TooMuch."""
        at = bookmarked(bookmark)
        snapshot = self._snapshot()
        if self.count >= WATCHERS_MAX:
            raise TooMuch(f"{WATCHERS_MAX} watch already; end some, or ask ScoreNodes")
        self.count += 1
        try:
            self._look(snapshot)
            known = at[1] if at and at[0] == snapshot.dictionary_version else -1
            while True:
                told = self._changes.since(known) if known >= 0 else None
                if told is None:
                    known, update = self._changes.whole()
                    await write(update)
                    continue
                known, updates = told
                for update in updates:
                    await write(update)
                if not updates:
                    await self._changes.wait()
        finally:
            self.count -= 1

    def _look(self, snapshot: Judgement) -> None:
        self._changes.take(snapshot)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look_always())

    async def _look_always(self) -> None:
        while self.count:
            try:
                self._changes.take(self._snapshot())
            except Exception:
                log.exception("a snapshot could not be told to those who watch")
            await asyncio.sleep(LOOK_SECONDS)


def bookmarked(bookmark: str) -> tuple[int, int] | None:
    """Return (epoch, version) of a bookmark, None for the empty one. Raises Invalid."""
    if not bookmark:
        return None
    epoch, dash, version = bookmark.partition("-")
    if len(bookmark) > BOOKMARK_CHARACTERS_MAX or not (
        dash and epoch.isdecimal() and version.isdecimal()
    ):
        raise Invalid("bookmark", f"{bookmark[:64]!r}, expected bookmark of an update, or none")
    return int(epoch), int(version)


def _changed(told: Columns, now: Columns) -> Flags:
    """Say which nodes are other than told; new ones are."""
    changed = np.ones(now.score.size, dtype=bool)
    known = told.score.size
    head = now.head(known)
    changed[:known] = differs(told, head) | (told.ended != head.ended)
    return changed


def message(snapshot: Judgement, told: Columns, nodes: Indexes, *, whole: bool) -> bytes:
    """Return the update of *nodes*, serialised."""
    update = score_pb2.NodeScoresUpdate(
        snapshot=whole,
        bookmark=f"{snapshot.dictionary_version}-{snapshot.version}",
        dictionary_version=snapshot.dictionary_version,
        score_version=snapshot.version,
        state=told.state[nodes].tobytes(),
        bucket=told.bucket[nodes].tobytes(),
        reason=told.reason[nodes].tobytes(),
        ended=told.ended[nodes].tobytes(),
        degraded=bool(snapshot.degraded_reason),
        degraded_reason=snapshot.degraded_reason,
    )
    update.compute_time.FromNanoseconds(snapshot.computed_ns)
    repeated: dict[str, np.typing.NDArray[Any]] = {
        "node_index": nodes,
        "score": told.score[nodes],
        "hazard_per_hour": told.hazard_per_hour[nodes],
        "relative_speed": told.relative_speed[nodes],
    }
    return update.SerializeToString() + packed(score_pb2.NodeScoresUpdate, repeated)
