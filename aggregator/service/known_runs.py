"""Runs that the caller of a request may name: a login's own jobs, and jobs whose names no two logins share."""

from __future__ import annotations

import difflib
from collections.abc import Container

from ...fingerprints.sensitivity import KnownWorkloads
from ..advisories.workloads import owner_of, qualified_name
from ..principal import Role, current_login, current_role


def visible_name(name: str, known: Container[str]) -> str | None:
    """Return the name of the caller's run or job *name*; None if it is unknown, or of another login.

    A login that reported a job under a name in use by another gets its own. Operators see every run.
    """
    login = current_login()
    own = qualified_name(name, login)
    if own in known:
        return own
    owner = owner_of_run(name)
    may_see = owner in ("", login) or current_role() in (Role.OPERATOR, Role.ADMIN)
    return name if name in known and may_see else None


def owner_of_run(name: str) -> str:
    """Return the login in the name of a job, or in the id of a run (`SOURCE/JOB@TIME`); "" without one."""
    job = name if name.endswith(")") else name.rpartition("@")[0]
    return owner_of(job) if job.endswith(")") else ""


def similar_names(name: str, known: KnownWorkloads) -> str:
    """List up to three known names that resemble *name*; names of a single login are left out."""
    others = [other for other in known.names if not owner_of_run(other)]
    return ", ".join(difflib.get_close_matches(name, others, 3, 0.6))
