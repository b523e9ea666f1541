"""Ray: a helper in Ray's own Python drains its nodes."""
