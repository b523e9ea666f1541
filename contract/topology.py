"""Location of a host: the fields, in declaration files and in an agent's own labels (`gangline.rack`)."""

from __future__ import annotations

#: Prefix of labels that Gangline defines.
LABEL_PREFIX = "gangline."
#: Limits of the characters of a name, and of the leaf switches of a host (`rails`, separated by blanks). An aggregator
#: drops the excess.
NAME_CHARACTERS_MAX, RAILS_MAX = 128, 64
FIELDS = (
    "rack", "power_domain", "cooling_domain", "leaf", "spine", "nvlink_domain", "rails", "core",
    "nvlink_subdomain",
)  # fmt: skip
