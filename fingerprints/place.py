"""Where a host stands, by name of each field: as files of people have it, and an agent's own labels (`gangline.rack`)."""

from __future__ import annotations

#: A label that begins so is ours.
LABEL_PREFIX = "gangline."
FIELDS = (
    "rack", "power_domain", "cooling_domain", "leaf", "spine", "nvlink_domain", "rails", "core",
    "nvlink_subdomain",
)  # fmt: skip
