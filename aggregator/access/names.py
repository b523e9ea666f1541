"""From what a certificate says of its holder to a role and a name.

Either a URI `spiffe://TRUST/gangline/ROLE/NAME` (SPIFFE-ID standard, section 2), or a DNS name or, where there is
neither, the common name, by patterns that the operator set: `agent={name}.gpu.example`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .caller import GIVEN, Role

#: A SPIFFE ID has no more (SPIFFE-ID standard, 2.3); no DNS name has as many.
IDENTITY_CHARACTERS_MAX = 2048
#: No DNS name is longer.
NAME_CHARACTERS_MAX = 253
#: A certificate with more names is looked at no further.
NAMES_MAX = 64
PATTERNS_MAX = 64
PLACE = "{name}"

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_SPIFFE = re.compile(
    r"spiffe://(?P<trust>[a-z0-9._-]{1,255})/gangline/(?P<role>[a-z]+)/(?P<name>[^/]+)"
)
_TRUST = re.compile(r"[a-z0-9._-]{1,255}")
_AROUND = re.compile(r"[A-Za-z0-9._-]*")


class Holder(NamedTuple):
    """Whom a certificate was issued to."""

    role: Role
    name: str


class Pattern(NamedTuple):
    """`ROLE=BEFORE{name}AFTER`, compared without regard to case, as DNS names are."""

    role: Role
    before: str
    after: str

    def match(self, text: str) -> Holder | None:
        """Return whom *text* names, None if it is not of this form."""
        text = text.lower()
        size = len(text) - len(self.before) - len(self.after)
        if size < 1 or not (text.startswith(self.before) and text.endswith(self.after)):
            return None
        name = text[len(self.before) : len(self.before) + size]
        return Holder(self.role, name) if is_name(name) else None


#: What `is_name` takes, for people.
NAME_FORM = f"letters, digits, '.', '_' and '-', the first and the last a letter or a digit, at most {NAME_CHARACTERS_MAX}"


def is_name(text: str) -> bool:
    """Whether *text* can name a host or a person."""
    return len(text) <= NAME_CHARACTERS_MAX and _NAME.fullmatch(text) is not None


def parse_pattern(text: str) -> Pattern:
    """Return a pattern of `ROLE=...{name}...`. Raises ValueError with what would be right."""
    role, equals, form = text.partition("=")
    around = form.split(PLACE)
    given = tuple(str(one) for one in GIVEN)
    if (
        not equals
        or role not in given
        or len(around) != 2
        or not all(map(_AROUND.fullmatch, around))
    ):
        raise ValueError(
            f"{text[:80]!r}: ROLE=PATTERN with one {PLACE}, as agent={PLACE}.gpu.example; "
            f"ROLE is one of {', '.join(given)}"
        )
    return Pattern(Role(role), around[0].lower(), around[1].lower())


def check_patterns(texts: Sequence[str]) -> None:
    """Raise ValueError unless each of *texts* is a pattern. For a setting's check."""
    if len(texts) > PATTERNS_MAX:
        raise ValueError(f"at most {PATTERNS_MAX} patterns")
    for text in texts:
        parse_pattern(text)


def check_trust_domain(text: str) -> None:
    """Raise ValueError unless *text* is a SPIFFE trust domain, or empty for any."""
    if text and not _TRUST.fullmatch(text):
        raise ValueError("a SPIFFE trust domain, as cluster.example, in lower case; or nothing")


def parse_spiffe(text: str, trust: str = "") -> Holder | None:
    """Return the holder of `spiffe://TRUST/gangline/ROLE/NAME`; None if it is another form or *trust*."""
    match = _SPIFFE.fullmatch(text) if len(text) <= IDENTITY_CHARACTERS_MAX else None
    if match is None or (trust and match["trust"] != trust) or not is_name(match["name"]):
        return None
    role = next((one for one in GIVEN if one == match["role"]), None)
    return Holder(role, match["name"]) if role else None


class Names:
    """What certificates' names mean here."""

    def __init__(self, patterns: Iterable[str], trust: str) -> None:
        """*patterns* as `parse_pattern` takes them; *trust*: of SPIFFE names, "" for any that the CA signs."""
        self._patterns = [parse_pattern(text) for text in patterns]
        self._trust = trust

    def holder(self, auth: Mapping[str, Iterable[bytes]]) -> Holder | None:
        """Return whom gRPC's auth context of a checked certificate names. Never raises."""
        uris, names = _texts(auth, "peer_uri"), _texts(auth, "peer_dns")
        for uri in uris:
            if holder := parse_spiffe(uri, self._trust):
                return holder
        for text in names or ([] if uris else _texts(auth, "x509_common_name")):
            for pattern in self._patterns:
                if holder := pattern.match(text):
                    return holder
        return None


def shown(auth: Mapping[str, Iterable[bytes]]) -> str:
    """Return a certificate's names for a person's eyes, cut short."""
    keys = ("peer_uri", "peer_dns", "x509_common_name")
    texts = [text for key in keys for text in _texts(auth, key)]
    said = ", ".join(texts)[:200]
    return "".join(c if c.isprintable() else "?" for c in said) or "no name"


def _texts(auth: Mapping[str, Iterable[bytes]], key: str) -> list[str]:
    found = [bytes(one).decode("utf-8", "replace") for one in list(auth.get(key, ()))[:NAMES_MAX]]
    return [one for one in found if one]
