"""`python -m tests.contract.faults_page`: prints the table of faults as the page `docs/faults.md`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from gangline.contract.faults.table import FOLDER

_HEAD = """# Faults

`make docs` writes this page from `contract/faults/` ([its keys](../contract/faults/README.md)). A host finds a fault by
itself and shows it in `gangline check` under the name of its finding, which `enforcing` may contain if it is marked
"may bar". The aggregator finds it in the fleet: the state that the host gets, and the factor on its hazard. Text, action
and limit are the same in both. Codes of XIDs and SXIDs have tables of their own (`gangline xid 94`). Rules that compare
hosts or need more than one reading are functions: `aggregator/rule_catalogue/`.
"""
_TITLES = {
    "gpu": "GPUs",
    "nvlink": "NVLinks and fabrics",
    "network": "Network, RDMA, PCIe",
    "storage": "Drives and file systems",
    "host": "Hosts",
    "jobs": "Jobs",
}


def page() -> str:
    """Return the page."""
    sections = [_HEAD]
    for stem, title in _TITLES.items():
        faults = tomllib.loads((FOLDER / f"{stem}.toml").read_text(encoding="utf-8"))["fault"]
        rows = "\n".join(map(_row, faults))
        head = "| fault | found when | on the host | in the fleet | text | what to do | source of the limit |"
        sections.append(f"## {title}\n\n{head}\n|---|---|---|---|---|---|---|\n{rows}\n")
    return "\n".join(sections)


def _row(fault: Mapping[str, Any]) -> str:
    cells = (
        f"`{fault['name']}`",
        _condition(fault),
        _host(fault),
        _fleet(fault),
        fault.get("message", ""),
        fault.get("action", ""),
        fault["source"],
    )
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _condition(fault: Mapping[str, Any]) -> str:
    if "event" in fault:
        codes = ", ".join(map(str, fault.get("codes", ())))
        return f"event `{fault['event']}`" + (f" with code {codes}" if codes else "")
    if "counter" in fault:
        minimum = fault.get("minimum", 1)
        rate = f"{minimum} a second" if fault.get("per_second") else f"{minimum} in ten minutes"
        peers = f", and {fault['peers_ratio']} times its peers" if "peers_ratio" in fault else ""
        return f"`{fault['counter']}` counts {rate}{peers}"
    if "judged" in fault:
        return f"by the aggregator's rule `{fault['judged']}`"
    conditions = " and ".join(f"`{condition}`" for condition in fault["when"])
    lasting = f" for {fault['for_seconds']} s" if "for_seconds" in fault else ""
    return conditions + lasting


def _host(fault: Mapping[str, Any]) -> str:
    if "severity" not in fault:
        return "by code" if "policy" in fault else ""
    name = fault.get("finding", fault["name"].replace(".", "_"))
    bars = ", may bar" if fault.get("enforceable") else ""
    return f"{fault['severity']}{bars}: `{name}`"


def _fleet(fault: Mapping[str, Any]) -> str:
    parts: dict[str, Any] | Sequence[dict[str, Any]] = fault.get("fleet", ())
    rules = [parts] if isinstance(parts, dict) else parts
    states = [f"{rule['state']} x{rule.get('hazard_factor', 1)}" for rule in rules]
    return ", ".join(dict.fromkeys(states))


if __name__ == "__main__":
    print(page(), end="")
