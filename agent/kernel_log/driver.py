"""What NVIDIA's driver means beyond the form of its lines: read by the XID policy's decoder."""

from __future__ import annotations

from collections.abc import Callable

from ...fingerprints.xid_decode import VARYING, decode
from .notice import ATTRIBUTES_MAX, VALUE_CHARACTERS_MAX, Notice, printable
from .nvidia import SXID, XID

#: What of a line of `VARYING` tells it from the next of its code, besides its severity. Each is an incident
#: of its own, so every line of theirs is decoded.
_APART = ("recovery", "unit", "link")


class Decoder:
    """Adds to an XID or SXID what its words say by the driver that is loaded."""

    def __init__(self, driver_version: Callable[[], str]) -> None:
        """*driver_version* as `575.57.08`, "" when it is not known; asked for each line decoded."""
        self._driver_version = driver_version
        for code, table in (
            (145, "xid"),
            (0, "sxid"),
        ):  # the tables are read now, not when it counts
            decode(code, "", table=table)

    def decode(self, notice: Notice, text: str) -> Notice:
        """Return the notice with what was decoded, all but these two as it is. Never raises."""
        if notice.name not in (XID, SXID):
            return notice
        table = "xid" if notice.name == XID else "sxid"
        decoded = decode(notice.code, text, self._driver_version(), table)
        attributes = {
            name: printable(value, VALUE_CHARACTERS_MAX)
            for name, value in {**notice.attributes, **decoded.attributes}.items()
        }
        scope = ""
        if notice.name == SXID or notice.code in VARYING:
            apart = (decoded.attributes.get(name, "") for name in _APART)
            scope = " ".join((decoded.severity.value, *apart))[:VALUE_CHARACTERS_MAX]
        kept = dict(list(attributes.items())[:ATTRIBUTES_MAX])
        return notice._replace(attributes=kept, scope=scope)
