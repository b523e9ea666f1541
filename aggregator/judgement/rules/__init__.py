"""One file per kind of trouble; each function reads the present and yields symptoms."""
