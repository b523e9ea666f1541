"""A fleet over months: what befalls it is drawn at once, and readings are made only where they are asked for."""

from .world import World

__all__ = ["World"]
