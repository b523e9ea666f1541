"""Limits of declaration files: sizes, entries, matching cost, durations and problems."""

from __future__ import annotations

#: Files of a folder, and bytes of each; all files together may have four times these bytes.
FILES_MAX = 64
TOML_BYTES_MAX = 2 << 20  # read in pure Python: about a second
FILE_BYTES_MAX = 16 << 20
TOTAL_BYTES_MAX = 4 * FILE_BYTES_MAX
#: Hosts with a declared location.
HOSTS_MAX = 50_000
#: Entries with a location, in all files: a host may be in several.
PLACES_MAX = 4 * HOSTS_MAX
#: Columns of a CSV file, known and unknown.
COLUMNS_MAX = 256
#: Entries of a host.
SOURCES_PER_HOST_MAX = 16
#: Entries of each kind in all files: windows, overrides, expected hosts.
ENTRIES_MAX = 2_000
#: Patterns or names of an entry.
NAMES_MAX = 512
#: `*`, `?` and ranges in all files that are matched one by one: in patterns of hosts that cannot be
#: expanded, of rules, devices, models and versions. Each is matched with each host, once for each
#: version of the files.
MATCH_COST_MAX = 256
#: Characters of `who` and `why`; those of a name or pattern: `contract/topology.py`.
WHO_CHARACTERS_MAX = 128
WHY_CHARACTERS_MAX = 512
#: Maximum length of a window and an override; then a person checks and declares it again.
MAINTENANCE_DAYS_MAX = 366
OVERRIDE_DAYS_MAX = 366
#: Codes of an override.
CODES_MAX = 64
#: Problems reported at once.
PROBLEMS_MAX = 20
#: Parsing a file stops after this many problems.
PROBLEMS_COUNTED_MAX = 10_000
