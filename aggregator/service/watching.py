"""Who watches scores: what changed from one snapshot to the next, serialised once for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from ...fingerprints.wire import score_pb2
from ..fleet.arrays import Flags, Indexes, Times
from ..judgement.columns import Columns
from ..judgement.judge import Judgement
from ..refusals import ROOM_SECONDS, Invalid, TooMuch
from ..store.scorelog import differs
from .packed import packed

log = logging.getLogger(__name__)

#: How often the snapshot is looked at while somebody watches.
LOOK_SECONDS = 0.1
#: Without any change, a bookmark is sent after so many versions: a watch that hears nothing is broken.
QUIET_VERSIONS = 10
WATCHERS_MAX = 1000
BOOKMARK_CHARACTERS_MAX = 64
#: Watches go on from different versions, as fast as each reads: so many updates are kept for others at the same one.
UPDATES_MAX = 16


class Changes:
    """What changed since any version. `take` is called with each snapshot; watchers wait for the next.

    Of each node the version is kept in which it last became another: that is all that is needed, however far behind
    a watcher is, and takes eight bytes a node.
    """

    def __init__(self) -> None:
        self.latest: Judgement | None = None
        #: What watchers are told: what no change is told of stays as it was.
        self._told = Columns.none()
        self._changed_in: Times = np.zeros(0, dtype=np.int64)
        self._begun = 0
        self._news_of: Judgement | None = (
            None  # the last snapshot that there was anything to tell of
        )
        self._updates: dict[int, bytes] = {}  # until it, by the version after which they go on
        self._whole: tuple[Judgement, bytes] | None = None
        self._news = asyncio.Event()

    def take(self, snapshot: Judgement) -> None:
        """Note what is other than what watchers were told; wake them if there is anything to tell."""
        if self.latest is snapshot:
            return
        before, self.latest = self.latest, snapshot
        if before is None or before.dictionary_version != snapshot.dictionary_version:
            self._begin(snapshot)
            return
        changed = _changed(self._told, snapshot.columns)
        self._told = self._told.followed_by(snapshot.columns, changed)
        known = self._changed_in.size
        self._changed_in = np.where(
            changed, snapshot.version, np.pad(self._changed_in, (0, changed.size - known))
        )
        assert self._news_of is not None
        quiet_versions = snapshot.version - self._news_of.version
        is_news = changed.any() or before.degraded_reason != snapshot.degraded_reason
        if is_news or quiet_versions >= QUIET_VERSIONS:
            self._tell(snapshot)

    def _begin(self, snapshot: Judgement) -> None:
        """Begin an epoch: what was before is not known."""
        self._told, self._begun = snapshot.columns, snapshot.version
        self._changed_in = np.full(self._told.score.size, snapshot.version, dtype=np.int64)
        self._tell(snapshot)

    def _tell(self, snapshot: Judgement) -> None:
        self._news_of = snapshot
        self._updates.clear()
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

    def since(self, version: int) -> tuple[int, bytes] | None:
        """Return (version now, update since *version*, empty without news); None where that is not known.

        An update is made once for all who go on from one version.
        """
        now = self._news_of
        if self.latest is None or now is None or not self._begun <= version <= self.latest.version:
            return None
        if version >= now.version:
            return version, b""
        update = self._updates.get(version)
        if update is None:
            nodes = np.flatnonzero(self._changed_in > version)
            update = message(now, self._told, nodes, whole=False)
            if len(self._updates) < UPDATES_MAX:
                self._updates[version] = update
        return now.version, update


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
            words = f"{WATCHERS_MAX} watch already; end some, or ask ScoreNodes"
            raise TooMuch(words, ROOM_SECONDS)
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
                known, update = told
                if update:
                    await write(update)
                else:
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
    # What is beneath a state has a say in the bucket, and comes and goes without it.
    other = (told.ended != head.ended) | (told.bucket != head.bucket)
    changed[:known] = differs(told, head) | other
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
