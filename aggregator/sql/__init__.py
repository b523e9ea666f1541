"""Migrations, views and macros as .sql files."""


def quoted(text: str) -> str:
    """Return *text* as a string of SQL."""
    return "'" + text.replace("'", "''") + "'"
