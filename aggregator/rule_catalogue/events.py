"""Rules of codes with tables of their own: XIDs and SXIDs, and events that were too many to list."""

from ..model import HealthState, Reason
from ..rule_declaration import EventKind, HazardClass, Rule
from .faults import FAULT_CLASSES

#: Codes of NVIDIA's GPUs and NVSwitches; their policies define the meaning (`contract/xid/`).
XID = Rule(
    "gpu.xid", HealthState.HEALTHY, Reason.NONE, "", leave_seconds=0.0, fault_class=HazardClass.DRIVER, is_family=True,
    reads=("gpu.recovery_action_state", "nvlink.link_state"),
)
SXID = Rule(
    "nvswitch.sxid", HealthState.HEALTHY, Reason.NONE, "", leave_seconds=0.0, fault_class=HazardClass.LINK, is_family=True,
)
#: Events of one name that were too many to be distinguished (`agent/kernel_log/incidents.py`).
FOLDED = EventKind(
    Rule(
        "folded", HealthState.HEALTHY, Reason.BLIND, "", leave_seconds=0.0, fault_class=FAULT_CLASSES[Reason.BLIND],
        is_family=True,
    ),
    "too many at once to list each; read the kernel log (journalctl -k)",
)
