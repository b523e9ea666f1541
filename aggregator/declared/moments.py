"""Parser of times and time zones in declarations."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_WHEN = "expected a time with its offset, as 2026-11-23T22:00:00+01:00, or a time_zone beside it"
_QUOTED = "expected a time without quotes, as 2026-11-23T22:00:00+01:00, or a day as 2026-11-23"
#: Range of accepted years.
YEARS = (2000, 2200)


@lru_cache(maxsize=64)
def time_zone(name: str) -> tzinfo:
    """Return a time zone by its name. Raises ValueError with the expected form."""
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(
            f"unknown time zone {ascii(name)[:60]}: expected a name as Europe/Berlin or UTC "
            "(`timedatectl list-timezones`)"
        ) from error


def moment_ns(value: object, zone_name: str, *, is_end: bool) -> int:
    """Return nanoseconds since 1970 of a TOML date or time. Raises ValueError with a message.

    A date alone is its whole day: as an end, until midnight after it. Without an offset it is in
    *zone_name*; a time that does not exist in this zone, or exists twice, is refused.
    """
    if isinstance(value, str):
        raise ValueError(_QUOTED)  # noqa: TRY004 - content of a file
    if not isinstance(value, date):  # a datetime is a date, too
        raise ValueError(_WHEN)  # noqa: TRY004
    if not YEARS[0] <= value.year < YEARS[1]:
        raise ValueError(f"the year {value.year}: expected {YEARS[0]} to {YEARS[1] - 1}")
    if isinstance(value, datetime):
        moment = value
    else:
        moment = datetime.combine(value + timedelta(days=1) if is_end else value, time())
    if moment.tzinfo is None:
        moment = _local(moment, zone_name)
    since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000


def _local(at: datetime, zone_name: str) -> datetime:
    if not zone_name:
        raise ValueError(_WHEN)
    first, second = (at.replace(tzinfo=time_zone(zone_name), fold=fold) for fold in (0, 1))
    if first.utcoffset() != second.utcoffset():
        # In a gap fold=0 has the earlier offset, so the way to UTC and back gives another time.
        back = first.astimezone(UTC).astimezone(first.tzinfo).replace(tzinfo=None)
        problem = "is there twice" if back == at else "does not exist"
        raise ValueError(
            f"{at:%Y-%m-%d %H:%M} {problem} in {zone_name}, where clocks are changed: give its offset, "
            f"as {first.isoformat()} or {second.isoformat()}"
        )
    return first


@lru_cache(maxsize=1024)
def format_time(at_ns: int) -> str:
    """Return a time for a message."""
    return f"{datetime.fromtimestamp(at_ns // 1_000_000_000, UTC):%Y-%m-%d %H:%M} UTC"
