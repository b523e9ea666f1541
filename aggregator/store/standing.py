"""Which events an open finding is about: a restart reads them whatever their age, and history keeps them."""

from __future__ import annotations

#: A finding begins when its event is judged, so long after it came at the most: a code waits for its companions.
_JUDGED_WITHIN = "INTERVAL 1 MINUTE"

#: Selects their `rowid`. By host, signal and device (`judgement/found.py` puts a finding's subject together; the kernel
#: names a GPU by its PCI address), and since the finding began: what came before that is over. All codes of the device: one
#: may excuse another.
STANDING_EVENTS = f"""
WITH open_findings AS (
    SELECT host, split_part(subject, ' ', 1) AS device, split_part(subject, ' ', 2) AS name, min(since) AS since
    FROM findings WHERE cleared IS NULL GROUP BY ALL
),
spelled AS (
    FROM open_findings
    UNION
    SELECT f.host, d.attributes['pci_address'], f.name, f.since
    FROM open_findings AS f JOIN devices AS d ON d.host = f.host AND d.device = f.device AND d.kind = 'gpu'
)
SELECT e.rowid
FROM events AS e
SEMI JOIN spelled AS s
    ON s.host = e.host AND s.name = e.name AND lower(s.device) = lower(coalesce(nullif(e.device, ''), 'host'))
    AND s.since <= e.received + {_JUDGED_WITHIN}
"""
