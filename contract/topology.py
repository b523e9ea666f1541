"""Location of a host: the fields, in declaration files and in an agent's own labels (`gangline.rack`)."""

from __future__ import annotations

#: A label that begins so is ours.
LABEL_PREFIX = "gangline."
#: Of one name, and leaf switches of one host, which `rails` has with blanks between: an aggregator leaves out what is more.
NAME_CHARACTERS_MAX, RAILS_MAX = 128, 64
FIELDS = (
    "rack", "power_domain", "cooling_domain", "leaf", "spine", "nvlink_domain", "rails", "core",
    "nvlink_subdomain",
)  # fmt: skip
