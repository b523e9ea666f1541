"""Times as operators write them: one hour off, and a host is drained while its job runs."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.declared.moments import format_time, moment_ns

BERLIN = ZoneInfo("Europe/Berlin")
TIMES = st.datetimes(datetime(2001, 1, 1), datetime(2199, 1, 1)).map(
    lambda at: at.replace(microsecond=0)
)


@given(TIMES, st.integers(-14 * 60, 14 * 60))
def test_an_offset_says_all(at: datetime, minutes: int) -> None:
    """The offset decides, beside any zone."""
    written = at.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    assert moment_ns(written, "Asia/Tokyo", is_end=True) == round(written.timestamp()) * 10**9


@given(TIMES)
def test_a_local_time_is_one_moment_or_refused(at: datetime) -> None:
    """At a change of clocks an hour exists twice or not at all, so its meaning is unknown."""
    moments = {round(at.replace(tzinfo=BERLIN, fold=fold).timestamp()) for fold in (0, 1)}
    try:
        moment = moment_ns(at, "Europe/Berlin", is_end=False)
    except ValueError as error:
        assert len(moments) == 2 and "give its offset" in str(error)
    else:
        assert {moment // 10**9} == moments


@pytest.mark.parametrize(
    ("hour", "day", "message"),
    [(2, date(2026, 10, 25), "is there twice"), (2, date(2026, 3, 29), "does not exist")],
)
def test_the_night_of_the_change(hour: int, day: date, message: str) -> None:
    local_time = datetime(day.year, day.month, day.day, hour, 30)
    with pytest.raises(ValueError, match=message):
        moment_ns(local_time, "Europe/Berlin", is_end=False)


def test_a_date_is_its_whole_day() -> None:
    """`until = 2026-12-24` that ended as the 24th began would be a day short."""
    day = date(2026, 12, 24)
    begin, end = (moment_ns(day, "Europe/Berlin", is_end=is_end) for is_end in (False, True))
    assert datetime.fromtimestamp(begin / 1e9, UTC) == datetime(2026, 12, 23, 23, tzinfo=UTC)
    assert end - begin == 86_400 * 10**9 and format_time(end) == "2026-12-24 23:00 UTC"


@pytest.mark.parametrize(
    ("value", "zone", "message"),
    [
        (datetime(2026, 1, 1), "", "a time_zone beside it"),
        (datetime(2026, 1, 1), "Mars/Olympus", "unknown time zone"),
        (datetime(2026, 1, 1), "../../etc/passwd", "unknown time zone"),
        (date.max, "UTC", "the year 9999"),
        (datetime(1, 1, 1, tzinfo=UTC), "UTC", "the year 1"),
        ("2026-01-01", "UTC", "expected a time"),
        (20260101, "UTC", "expected a time"),
    ],
)
def test_what_is_no_time_is_told(value: object, zone: str, message: str) -> None:
    """Quotes around a date are the commonest slip in TOML."""
    with pytest.raises(ValueError, match=message):
        moment_ns(value, zone, is_end=True)
