"""The policy of codes and findings as a view, so that SQL says the action that the code has."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from ...fingerprints.policy import Row
from ...fingerprints.policy_table import builtin
from ...fingerprints.xid import policy, sxid_policy
from ..sql import quoted

#: name, signal, code (None: any), action, scope, severity, clears, source
Action = tuple[str, str, int | None, str, str, str, str, str]

_COLUMNS = "name, signal, code, action, scope, severity, clears, source"
_COMMENT = (
    "what our policy says to do about a code or a reading, from fingerprints/xid.toml, sxid.toml, policy.toml; "
    "code is NULL where any will do: FROM ops.actions WHERE signal = ''gpu.xid'' AND code = 95"
)


def actions() -> Iterator[Action]:
    """Yield every row of the policies that says what to do."""
    for signal, rows in (("gpu.xid", policy()), ("nvswitch.sxid", sxid_policy())):
        source = f"{signal.partition('.')[2]}.toml"
        for code, one in rows.items():
            said = one.action, one.scope, str(one.severity), str(one.clears)
            yield one.name, signal, code, *said, source
    for row in builtin().rows:
        for exact in _codes(row) if row.action else ():
            said = row.action, row.scope, str(row.severity), str(row.clears)
            yield row.name, row.about, exact, *said, "policy.toml"


def _codes(row: Row) -> tuple[int | None, ...]:
    """Return the values of its event or its reading that a row is about; (None,) for any."""
    exact = row.when and row.when[0].compare in ("==", "in") and not row.when[0].other
    found = tuple(map(int, row.when[0].values)) if exact else row.codes
    return found or (None,)


@cache
def actions_sql() -> str:
    """Return the statements that make `ops.actions`."""
    rows = ",\n".join(f"({', '.join(map(_literal, row))})" for row in actions())
    return (
        f"CREATE OR REPLACE VIEW ops.actions AS FROM (VALUES\n{rows}\n) AS t({_COLUMNS});\n"
        f"COMMENT ON VIEW ops.actions IS '{_COMMENT}';\n"
    )


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else quoted(str(value))
