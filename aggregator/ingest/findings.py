"""Current findings: kept in the fleet, cleared when they no longer occur, and stored. Owners of
GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from ..fleet.fleet import Fleet
from ..model import AGGREGATOR_HOST, DUPLICATE_GPU, GPU_RELEASED, Finding

#: A finding of an occurrence, not of a state, expires this long after the last one.
EXPIRES_SECONDS = 300
_EXPIRES_NS = EXPIRES_SECONDS * 1_000_000_000

Key = tuple[str, str, str]  # host, name, subject

#: Globally unique key of a GPU, from NVML.
_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class ActiveFindings:
    """Open findings. Owned by the event loop's thread."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._last_ns: dict[Key, int] = {}  # only of findings that expire
        self._recorded: dict[Key, Finding] = {}
        self._changed: list[Finding] = []

    def __contains__(self, key: Key) -> bool:
        return key in self._fleet.findings

    def count(self, name: str) -> int:
        """Return the number of active findings *name*."""
        return sum(name == finding_name for _, finding_name, _ in self._fleet.findings)

    def find(
        self, host: str, name: str, message: str, now_ns: int, *, subject: str = "", expires: bool
    ) -> None:
        """Report a finding; *expires*: it ends after EXPIRES_SECONDS without another report."""
        key = host, name, subject
        if expires:
            self._last_ns[key] = now_ns
        if key not in self:
            finding = Finding(host, name, subject, message, now_ns)
            if self._fleet.add_finding(finding):
                self._recorded[key] = finding
                self._changed.append(finding)

    def restore(self, finding: Finding, now_ns: int, *, expires: bool) -> None:
        """Restore a finding from before the restart, with its original time."""
        key = finding.host, finding.name, finding.subject
        if expires:
            self._last_ns[key] = now_ns
        self._recorded[key] = finding
        self._fleet.add_finding(finding)

    def report_not_storing(self, reason: str, now_ns: int) -> None:
        """Report why nothing is stored; "" clears the finding. It is stored once the disk works."""
        if reason:
            message = f"nothing is stored or acknowledged: {reason}; agents keep their readings"
            self.find(AGGREGATOR_HOST, "store.failing", message, now_ns, expires=False)
        else:
            self.clear(AGGREGATOR_HOST, "store.failing", now_ns)

    def clear(
        self, host: str, name: str, now_ns: int, *, subject: str = "", because: str = ""
    ) -> None:
        """Clear a finding if it is open; *because*: the reason."""
        key = host, name, subject
        self._last_ns.pop(key, None)
        self._fleet.clear_finding(host, name, subject)
        finding = self._recorded.pop(key, None)
        if finding is not None:
            ended = because or finding.clears_when
            self._changed.append(replace(finding, cleared_ns=now_ns, clears_when=ended))

    def sweep(self, now_ns: int) -> None:
        old = [key for key, last in self._last_ns.items() if now_ns - last > _EXPIRES_NS]
        for host, name, subject in old:
            self.clear(host, name, now_ns, subject=subject)

    def changes(self, now_ns: int) -> list[Finding]:
        """Return opened and cleared findings since the last call, for the store."""
        active = dict(self._fleet.findings)
        changed, self._changed = self._changed, []
        opened = [finding for key, finding in active.items() if self._recorded.get(key) != finding]
        closed = [
            replace(finding, cleared_ns=now_ns)
            for key, finding in self._recorded.items()
            if active.get(key) != finding
        ]
        self._recorded = active
        return changed + closed + opened


# Owners of GPUs: two hosts that both send messages cannot have the same GPU. When a GPU moves, its
# old host gives it up first: it was switched off, or registered without it. Requests do not show
# which of two hosts is right, so neither loses score: a finding names both, and history
# (`parquet/views.py`) moves the GPU only after one of them gave it up.


class GpuOwners:
    """Owner of each GPU. *is_silent*: whether a host was silent long enough to free its name."""

    def __init__(
        self,
        findings: ActiveFindings,
        is_silent: Callable[[str, int], bool],
        before: Iterable[tuple[str, str]] = (),
    ) -> None:
        """*before*: (GPU, host) from the store."""
        self._findings = findings
        self._is_silent = is_silent
        self._owner: dict[str, str] = {}
        self._gpus_of: dict[str, tuple[str, ...]] = {}
        self._contested: set[str] = set()  # hosts that registered another host's GPU
        for key, host in before:
            if _UUID.fullmatch(key):
                self._owner[key] = host
        for key, host in self._owner.items():
            self._gpus_of[host] = (*self._gpus_of.get(host, ()), key)

    def register(self, host: str, keys: Iterable[str], now_ns: int) -> bool:
        """Update a host's GPUs. True: another host that still reports has such a GPU.

        The GPU stays with that host until the host is silent or registers without it.
        """
        now = {key: None for key in keys if _UUID.fullmatch(key)}
        for key in self._gpus_of.get(host, ()):
            if key not in now and self._owner.get(key) == host:
                del self._owner[key]
        self._gpus_of[host] = tuple(now)
        self._claim(host, now_ns)
        return host in self._contested

    def step(self, now_ns: int) -> None:
        """Recheck contested GPUs: a host may have given one up, or be silent."""
        for host in sorted(self._contested):
            if self._is_silent(host, now_ns):
                self._findings.clear(AGGREGATOR_HOST, DUPLICATE_GPU, now_ns, subject=host)
            else:
                self._claim(host, now_ns)

    def _claim(self, host: str, now_ns: int) -> None:
        others: dict[str, str] = {}
        for key in self._gpus_of[host]:
            owner = self._owner.get(key, host)
            if owner != host and not self._is_silent(owner, now_ns):
                others[key] = owner
            else:
                self._owner[key] = host
        if others:
            self._contested.add(host)
            message = _duplicate_gpu_message(host, others)
            self._findings.find(
                AGGREGATOR_HOST, DUPLICATE_GPU, message, now_ns, subject=host, expires=True
            )
        elif host in self._contested:
            self._contested.discard(host)
            self._findings.clear(
                AGGREGATOR_HOST, DUPLICATE_GPU, now_ns, subject=host, because=GPU_RELEASED
            )


def _duplicate_gpu_message(host: str, others: dict[str, str]) -> str:
    key, owner = min(others.items())
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return (
        f"{host} registered with {key}{more}, which {owner} has, and both report: two agents on "
        "one machine under two names (stop one), or one of them reports a wrong GPU (check both); "
        "history leaves the GPU "
        f"with {owner} until that is silent or registers without it"
    )
