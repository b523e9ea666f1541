"""Compiled modules: code that must release the GIL or must not allocate. Import each module separately."""
