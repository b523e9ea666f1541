"""DCGM: loads the client library at run time, and connects to a running host engine. It never starts one."""

from collections.abc import Sequence
from typing import NamedTuple

LIBRARIES: tuple[str, ...]
SYMBOLS: tuple[str, ...]
REQUIRED: tuple[str, ...]
VALUES_MAX: int
#: DCGM_GROUP_ALL_GPUS, DCGM_GROUP_ALL_NVSWITCHES.
ALL_GPUS: int
ALL_SWITCHES: int
#: DCGM_FE_GPU and so on: kinds of what a field is of.
ENTITY_GPU: int
ENTITY_VGPU: int
ENTITY_SWITCH: int
ENTITY_LINK: int
# dcgmReturn_t
OK: int
NOT_SUPPORTED: int
TIMEOUT: int
VERSION_MISMATCH: int
NO_DATA: int
NOT_WATCHED: int
NO_PERMISSION: int
FUNCTION_NOT_FOUND: int
CONNECTION_NOT_VALID: int
IN_USE: int
MODULE_NOT_LOADED: int
INSUFFICIENT_SIZE: int
BLANK_INT: int
BLANK_FLOAT: float
#: Of a violation whose GPU DCGM does not name (DCGM 3).
NO_GPU: int

class DcgmAbsent(Exception):
    """There is no DCGM library, or what was found is none."""

class DcgmError(Exception):
    """A call failed; `code` is its dcgmReturn_t, `call` its name."""

    code: int
    call: str
    def __init__(self, words: str, code: int, call: str) -> None: ...

class FieldValue(NamedTuple):
    """A field of an entity. `value` is None where DCGM has none: blank, or `status` is no success. Of a blob: its first 256 bytes."""

    entity: int
    field: int
    status: int
    timestamp_us: int
    value: int | float | str | bytes | None

class Incident(NamedTuple):
    """What a health watch has found; `health` is 10 (warning) or 20 (failure), `code` a DCGM_FR_ of dcgm_errors.h."""

    entity_group: int
    entity: int
    system: int
    health: int
    code: int
    message: str

class Violation(NamedTuple):
    """A policy condition that was violated. `first` and `second` are the condition's own numbers."""

    gpu: int
    condition: int
    timestamp_us: int
    first: int
    second: int

class Dcgm:
    """The client library and its one connection. Every call raises DcgmError when it fails; none holds the GIL."""

    major: int
    library: str
    is_connected: bool
    def __init__(self, library: str = "") -> None:
        """Load *library*, or the newest of `LIBRARIES`. Raises DcgmAbsent."""

    def connect(self, address: str, timeout_ms: int) -> None:
        """Connect to the host engine at `host:port` or `unix:PATH`. ValueError without an address."""

    def versions(self) -> tuple[str, str]:
        """Return the versions of the library and of the engine, as "4.2.3"; "" where one does not tell. Never raises."""

    def disconnect(self) -> None:
        """Close the connection, if there is one; what it had the engine watch ends with it. Never raises."""

    def devices(self) -> list[int]:
        """Return DCGM's ids of the GPUs."""

    def entities(self, group: int) -> list[int]:
        """Return DCGM's ids of the entities of a kind, at most 1,024."""

    def latest(
        self,
        entities: Sequence[int],
        fields: Sequence[int],
        live: bool = False,
        group: int = ENTITY_GPU,
    ) -> list[FieldValue]:
        """Return the last value of each field of each entity that the engine has cached: of 32 entities at most.

        *live*: it asks the driver now. *group*: the kind of the entities.
        """

    def groups(self) -> list[int]:
        """Return the engine's groups of entities."""

    def health_systems(self, group: int) -> int:
        """Return the systems whose health somebody watches in *group*, as a mask."""

    def health(self, group: int) -> list[Incident]:
        """Return what the health watches of *group* have found."""

    def watch_health(self, group: int, systems: int, seconds: float) -> None:
        """Have the engine watch the health of *systems*."""

    def create_group(self, name: str, entity_group: int, entities: Sequence[int]) -> int:
        """Make a group of entities of one kind in the engine, which ends with the connection; return its id."""

    def watch_fields(self, group: int, fields: Sequence[int], name: str, seconds: float) -> None:
        """Have the engine watch *fields* in a field group of that name."""

    def listen_to_policies(self, group: int, conditions: int) -> None:
        """Subscribe to violations of the policies in force. Sets no policy and no action."""

    def violations(self) -> list[Violation]:
        """Return what was reported since the last call. Calls no library."""

    @property
    def lost_violations(self) -> int:
        """Violations that found no room since the process began."""

def sizes() -> dict[str, int]:
    """Return the version word of each struct, by its name in dcgm_structs.h, for tests."""
