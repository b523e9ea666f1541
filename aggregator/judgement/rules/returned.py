"""Hosts that are back in service after advice took them out: watched, and more likely to fail again than others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...declared.moments import told
from ...sql import quoted
from ...verdicts import Reason, State
from ..experience import Return
from ..present import Present
from ..queries import moment
from ..symptoms import Rule, Symptom

SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS
RULE = Rule("host.returned", State.PROBATION, Reason.POLICY, "", leave_seconds=0.0)
#: Days since the return, and how many times as likely a fault is until then as with a host that never failed: 276, 27, 17,
#: 12 and 7 against 2.5 in 1,000 node-days (400 nodes over 348 days, stepfun-ai/InfiniteHBD-Trace).
FACTORS = ((1.0, 110.4), (3.0, 10.8), (7.0, 6.8), (14.0, 4.8), (30.0, 2.8))
#: And after the last of these.
LATER_FACTOR = 1.5


def factor_after(days: float) -> float:
    """Return how many times as likely a fault is so long after a return."""
    return next((factor for until, factor in FACTORS if days < until), LATER_FACTOR)


def returned_hosts(
    present: Present, returned: Mapping[str, Return], *, is_trained: bool
) -> Iterator[Symptom]:
    """Yield who is on probation. *is_trained*: a model of this fleet says itself what a return means."""
    fleet = present.fleet
    for name, one in returned.items():
        host = fleet.index.get(name)
        if host is None or not fleet.first_ns[host] or present.now_ns >= one.until_ns:
            continue
        days = max(present.now_ns - one.since_ns, 0) / DAY_NS
        factor = 1.0 if is_trained else factor_after(days)
        often = "" if is_trained else f"; so soon hosts fail {factor:,.3g} times as often as others"
        yield Symptom(
            rule=RULE,
            host=host,
            device="host",
            signal=RULE.name,
            value=days,
            unit="days",
            normal="not taken out by advice lately",
            words=f"back in service since {told(one.since_ns)}, and watched{often}",
            sql="SELECT time, kind, advisory, words FROM ops.advice_history "
            f"WHERE host = {quoted(name)} AND time BETWEEN {moment(one.since_ns - SECOND_NS)} AND {moment(present.now_ns)} ORDER BY time DESC",
            hazard_factor=factor,
            whose=RULE.name,  # what befalls the host now is another fault, and no reason to forget this one
            clears=f"it stays well until {told(one.until_ns)}",
        )
