"""What silence is to advice: of one host a look after a while; of a rack at once, as one cause (`sharing.py`).

A silent host may work all the same: its agent is what fell silent. So nobody is asked to drain it, or to avoid it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from ..judgement.judge import Judgement
from ..judgement.outage import OUTAGE_SECONDS_MAX
from ..verdicts import HostScore
from .advisory import SILENCE, Action, Basis, Case, Scope
from .costs import Workload, together
from .desk import Memory
from .limits import SECOND_NS
from .places import Stand

#: Silence that is older is known, or the host is out of use for good.
NEWS_SECONDS_MAX = 86_400.0


def key_of(host: str) -> str:
    """Return the key of the case that *host* is silent."""
    return f"{host}/silent/"


def is_asked(memory: Memory, host: HostScore, judged: Judgement) -> bool:
    """Say whether the silence of *host*, which is STALE, calls for a look.

    Not where somebody has it out anyway, nor before agents had time to find us again after a restart of ours.
    """
    if host.host in memory.absent or host.host in memory.holds or not host.heard_ns:
        return False
    restarted_ns, now_ns = judged.before.restarted_ns, judged.computed_ns
    unheard = key_of(host.host) not in memory.cases and host.heard_ns < restarted_ns
    if unheard and now_ns - restarted_ns < OUTAGE_SECONDS_MAX * SECOND_NS:
        return False
    return not is_gone(host, now_ns)


def is_gone(host: HostScore, now_ns: int) -> bool:
    """Say whether nothing was heard of *host* for so long that it is taken to be gone for good, as after a restart."""
    return now_ns - host.heard_ns > NEWS_SECONDS_MAX * SECOND_NS


def silence(
    memory: Memory, host: HostScore, stand: Stand, work: Workload, gpus: int, restarted_ns: int
) -> Case:
    """Return the case that *host* is silent; the same as before, while it is."""
    key = key_of(host.host)
    before = memory.cases.get(key)
    if before is not None and before.case.place == stand.place:
        return before.case
    since_ns, unseen = max(host.heard_ns, restarted_ns), host.heard_ns < restarted_ns
    if before is not None:
        since_ns, unseen = before.case.since_ns, before.case.unseen
    away = f", and it was silent when we came back at {_moment(since_ns)}" if unseen else ""
    words = (
        f"nothing was heard of it since {_moment(host.heard_ns)}{away}: look at its power, its network, its "
        "agent; it may work all the same"
    )
    case = Case(
        key=key, host=host.host, reason=SILENCE, basis=Basis.DETERMINISTIC, action=Action.INSPECT,
        scope=Scope.HOST, words=words, since_ns=since_ns, place=stand.place, job=work.job,
        gang_gpus=work.gang_gpus, hazard_per_hour=host.hazard_per_hour, gpus=gpus, among=stand.among,
        unseen=unseen,
    )  # fmt: skip
    return replace(case, price=together([case]))


def _moment(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns // SECOND_NS, UTC):%Y-%m-%d %H:%M:%S} UTC"
