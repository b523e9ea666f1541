"""Where parts have been: a row per part, host and slot, from its first registration there to the last.

A part is a device whose key goes with it (a GPU's UUID) and that says where it sits (its PCI address).
A GPU that moved is followed by its key, a slot through all that sat in it, a renamed host by its parts.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb

from ..verdicts import DUPLICATE_GPU, LET_GO

#: Stints remembered of one host; beyond, those that ended longest ago go: a host may invent keys for ever.
STINTS_PER_HOST_MAX = 4096

#: What says where a part sits, the first that it has.
_SLOT = "coalesce(d.attributes['pci_address'], d.attributes['index'])"

#: Hosts with a GPU that another has too: whose it is, is open (`ingest/gpuowners.py`), and it stays where it was.
_OPEN = f"SELECT subject FROM main.findings WHERE name = '{DUPLICATE_GPU}' AND cleared IS NULL"
#: When hosts last registered, or had a GPU let go to them by another.
_HOSTS = f"""
SELECT h.host, greatest(h.registered, max(f.cleared)) AS registered FROM main.hosts AS h LEFT JOIN main.findings AS f
ON f.subject = h.host AND f.name = '{DUPLICATE_GPU}' AND f.clears_when = '{LET_GO}'
WHERE h.registered IS NOT NULL GROUP BY h.host, h.registered
"""
#: Of what two hosts have, it is where it was registered last: after a restart all hosts are looked at, those too that
#: it left before they were switched off.
_NOW = f"""
SELECT DISTINCT ON (d.kind, d.device) d.kind, d.device, d.host, {_SLOT} AS slot, h.registered
FROM main.devices AS d JOIN ({_HOSTS}) AS h USING (host)
WHERE d.host IN (SELECT unnest($hosts)) AND {_SLOT} IS NOT NULL AND {_SLOT} <> d.device
    AND NOT (d.host IN ({_OPEN}) AND EXISTS (FROM main.parts AS p
        WHERE p.present AND p.kind = d.kind AND p.device = d.device AND p.host <> d.host))
    AND NOT EXISTS (FROM main.parts AS p WHERE p.present AND p.kind = d.kind AND p.device = d.device
        AND p.host <> d.host AND p.last_seen > h.registered)
ORDER BY h.registered DESC
"""
_SAME = "p.kind = n.kind AND p.device = n.device AND p.host = n.host AND p.slot = n.slot"
_NOT_THERE_NOW = f"""
UPDATE main.parts AS p SET present = false
WHERE present AND p.host IN (SELECT unnest($hosts)) AND NOT EXISTS (FROM parts_now AS n WHERE {_SAME})
"""
_ELSEWHERE_NOW = """
UPDATE main.parts AS p SET present = false WHERE present AND EXISTS (
    FROM parts_now AS n WHERE p.kind = n.kind AND p.device = n.device AND p.host <> n.host)
"""
_STILL_THERE = f"""
UPDATE main.parts AS p SET last_seen = n.registered FROM parts_now AS n WHERE p.present AND {_SAME}
"""
_NEW = f"""
INSERT INTO main.parts
SELECT n.kind, n.device, n.host, n.slot, n.registered, n.registered, true FROM parts_now AS n
WHERE NOT EXISTS (FROM main.parts AS p WHERE p.present AND {_SAME})
"""


def registered(cursor: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Return host -> when it last registered, or had its GPUs let go by another: microseconds since 1970."""
    rows: list[tuple[str, int]] = cursor.execute(
        f"SELECT host, epoch_us(registered) FROM ({_HOSTS})"
    ).fetchall()
    return dict(rows)


def news(seen: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Return the hosts that registered since *seen*."""
    return [host for host, time_us in now.items() if seen.get(host) != time_us]


def see(connection: duckdb.DuckDBPyConnection, hosts: list[str]) -> None:
    """Take what *hosts* registered with as where their parts are now. Within a transaction."""
    connection.execute(f"CREATE OR REPLACE TEMP TABLE parts_now AS {_NOW}", {"hosts": hosts})
    connection.execute(_NOT_THERE_NOW, {"hosts": hosts})
    connection.execute(_ELSEWHERE_NOW)
    connection.execute(_STILL_THERE)
    connection.execute(_NEW)
    connection.execute(
        "DELETE FROM main.parts WHERE rowid IN (SELECT rowid FROM main.parts WHERE host IN "
        "(SELECT unnest($hosts)) QUALIFY row_number() OVER (PARTITION BY host ORDER BY present DESC, "
        f"last_seen DESC) > {STINTS_PER_HOST_MAX})",
        {"hosts": hosts},
    )
    connection.execute("DROP TABLE parts_now")
