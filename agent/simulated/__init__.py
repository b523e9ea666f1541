"""Hosts that do not exist: the same readings as real collectors, from a physical model with faults."""

from .faults import Fault
from .fleet import SimulatedFleet

__all__ = ["Fault", "SimulatedFleet"]
