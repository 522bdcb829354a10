"""Numbers and moments as logs write them."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
)
"""A number; without groups. For patterns with `re.IGNORECASE`."""

_ABSENT = frozenset({"", "none", "null", "n/a", "na", "-"})

_MOMENT = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(Z|[-+]\d\d:?\d\d)?"
)


def number(value: Any) -> float | None:
    """The float that `value` is or spells; None where it says that there is none.

    Raises:
        ValueError: It is, or spells, no number.
    """
    if type(value) is float:
        return value
    if value is None:
        return None
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{str(value)[:20]}... is too large") from None
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            text = value.strip().lower()
            if text in _ABSENT:
                return None
            if "_" in text:
                raise
            return float(text.replace(",", ""))
    raise ValueError(f"no number: {str(value)[:40]!r}")


def whole(value: Any) -> int | None:
    """The step number that `value` is or spells, also as 10.0; None where there is none.

    Raises:
        ValueError: It is no whole number >= 0 below 2**63.
    """
    if type(value) is int:
        found = value
    else:
        real = number(value)
        if real is None:
            return None
        if not real.is_integer():  # infinity and NaN are none either
            raise ValueError(f"no step number: {str(value)[:40]!r}")
        found = int(real)
    if not 0 <= found < 2**63:
        raise ValueError(f"step {str(found)[:40]} is out of range")
    return found


def moment(text: str, end: int = 120) -> float | None:
    """Unix time of the first date and time within the first `end` characters; None without one.

    A log that names no time zone is read as UTC.
    """
    match = _MOMENT.search(text, 0, end)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        midnight = _midnight(int(year), int(month), int(day))
    except ValueError:
        return None
    seconds = midnight + 3600 * int(hour) + 60 * int(minute) + int(second)
    if zone and zone != "Z":
        sign = -1 if zone[0] == "+" else 1
        seconds += sign * (3600 * int(zone[1:3]) + 60 * int(zone[-2:]))
    return seconds + (float("0." + fraction) if fraction else 0.0)


@lru_cache(maxsize=64)
def _midnight(year: int, month: int, day: int) -> int:
    return int(datetime(year, month, day, tzinfo=timezone.utc).timestamp())


# Unix times of logs: after 2001 and before 2286, in seconds, or in milliseconds.
_EARLIEST, _LATEST = 1e9, 1e10


def unix_time(value: Any) -> float | None:
    """Unix time in seconds that `value` gives as a number (seconds, ms, us or ns) or as a date.

    None where it gives none, such as the seconds since a run's start.
    """
    if isinstance(value, str):
        found = moment(value)
        if found is not None:
            return found
    try:
        seconds = number(value)
    except ValueError:
        return None
    if seconds is None:
        return None
    for scale in (1.0, 1e3, 1e6, 1e9):
        if _EARLIEST <= seconds / scale < _LATEST:
            return seconds / scale
    return None
