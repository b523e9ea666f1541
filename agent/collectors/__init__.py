"""One file per source of signals, one method each, named in one visible table."""
