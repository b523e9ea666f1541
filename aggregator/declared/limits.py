"""How much may be declared. What is beyond is refused, with words."""

from __future__ import annotations

#: Files of a folder, and bytes of each; all of them together may be as large as four.
FILES_MAX = 64
TOML_BYTES_MAX = 2 << 20  # read in pure Python: a second of it
FILE_BYTES_MAX = 16 << 20
TOTAL_BYTES_MAX = 4 * FILE_BYTES_MAX
#: Hosts whose places are given.
HOSTS_MAX = 50_000
#: Entries that give a host a place, in all files: one host may be told of in several.
PLACES_MAX = 4 * HOSTS_MAX
#: Columns of a CSV file, ours and others'.
COLUMNS_MAX = 256
#: Places that one host is told of in.
SAID_MAX = 16
#: Entries of each kind in all files: windows, overrides, expected hosts.
ENTRIES_MAX = 2_000
#: Patterns or names that one entry has.
NAMES_MAX = 512
#: `*`, `?` and ranges, of all files, that names are matched by one after another: in patterns of hosts that cannot be
#: written out, of rules, devices, models and versions. Each is asked of each host, once for each version of the files.
PIECES_MAX = 256
#: Of who, and of why; of one name or pattern: `fingerprints/place.py`.
WHO_CHARACTERS_MAX = 128
WHY_CHARACTERS_MAX = 512
#: A window and an override last no longer: what is to last is declared anew, by somebody who looked.
MAINTENANCE_DAYS_MAX = 366
OVERRIDE_DAYS_MAX = 366
#: Codes of one override.
CODES_MAX = 64
#: Problems that are told of at once.
PROBLEMS_MAX = 20
#: A file of lines is not read on once there are so many.
PROBLEMS_COUNTED_MAX = 10_000
