"""Text for people that all programs write."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return *count* with *noun*, in the plural (default: with an s) unless it is 1."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
