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
#: DCGM_FE_GPU and so on: kinds of entities that have fields.
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
#: GPU of a violation whose GPU DCGM does not name (DCGM 3).
NO_GPU: int

class DcgmAbsent(Exception):
    """There is no DCGM library, or the file is not one."""

class DcgmError(Exception):
    """A call failed; `code` is its dcgmReturn_t, `call` its name."""

    code: int
    call: str
    def __init__(self, words: str, code: int, call: str) -> None: ...

class FieldValue(NamedTuple):
    """A field of an entity. `value`: None if blank or after an error; a blob has 256 bytes."""

    entity: int
    field: int
    status: int
    timestamp_us: int
    value: int | float | str | bytes | None

class Incident(NamedTuple):
    """A health watch's finding: `health` 10 warning, 20 failure; `code`: DCGM_FR_ constant."""

    entity_group: int
    entity: int
    system: int
    health: int
    code: int
    message: str

class Violation(NamedTuple):
    """A violated policy condition. The condition defines `first` and `second`."""

    gpu: int
    condition: int
    timestamp_us: int
    first: int
    second: int

class Dcgm:
    """The client library and a connection. A failed call raises DcgmError; none holds the GIL."""

    major: int
    library: str
    is_connected: bool
    def __init__(self, library: str = "") -> None:
        """Load *library*, or the newest of `LIBRARIES`. Raises DcgmAbsent."""

    def connect(self, address: str, timeout_ms: int) -> None:
        """Connect to the host engine at `host:port` or `unix:PATH`. Raises ValueError for ""."""

    def versions(self) -> tuple[str, str]:
        """Return the versions of library and engine, as "4.2.3", or "". Never raises."""

    def disconnect(self) -> None:
        """Close the connection, which ends the engine's watches for it. Never raises."""

    def devices(self) -> list[int]:
        """Return DCGM's ids of the GPUs."""

    def entities(self, group: int) -> list[int]:
        """Return DCGM's ids of the entities of a kind, up to 1,024."""

    def latest(
        self,
        entities: Sequence[int],
        fields: Sequence[int],
        live: bool = False,
        group: int = ENTITY_GPU,
    ) -> list[FieldValue]:
        """Return the engine's cached value of each field of up to 32 entities.

        *live*: read the driver now. *group*: the kind of the entities.
        """

    def groups(self) -> list[int]:
        """Return the ids of the engine's groups."""

    def health_systems(self, group: int) -> int:
        """Return the systems whose health is watched in *group*, as a mask."""

    def health(self, group: int) -> list[Incident]:
        """Return the findings of the health watches of *group*."""

    def watch_health(self, group: int, systems: int, seconds: float) -> None:
        """Start a watch of the health of *systems*."""

    def create_group(self, name: str, entity_group: int, entities: Sequence[int]) -> int:
        """Create a group of entities of one kind; it ends with the connection. Return its id."""

    def watch_fields(self, group: int, fields: Sequence[int], name: str, seconds: float) -> None:
        """Start a watch of *fields*, in a field group of that name."""

    def listen_to_policies(self, group: int, conditions: int) -> None:
        """Subscribe to violations of the existing policies. Sets no policy and no action."""

    def violations(self) -> list[Violation]:
        """Return the violations since the last call. Calls no library."""

    @property
    def lost_violations(self) -> int:
        """Violations lost to a full buffer since the process began."""

def sizes() -> dict[str, int]:
    """Return the version word of each struct, by its name in dcgm_structs.h, for tests."""
