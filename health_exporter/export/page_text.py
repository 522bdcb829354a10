"""Words and numbers of the page at `/`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from html import escape
from math import isfinite, isinf

# What XML and HTML do not allow, lone surrogates among it, and the controls that turn the
# direction of writing and could make a name read as another.
_UNWANTED = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_LONGEST = 500
"""Characters of one text: an exception can carry a whole tensor."""

_RANGES_NAMED = 12
_DAY_S = 86_400.0


def text(value: object) -> str:
    """`value` as text of HTML or of an attribute in double quotes, cut to 500 characters."""
    plain = str(value)
    if len(plain) > _LONGEST:
        plain = plain[: _LONGEST - 1] + "\u2026"
    return escape(_UNWANTED.sub("\ufffd", plain))


def number(value: float) -> str:
    """Four digits; NaN and infinity in words that are used for them."""
    if not isfinite(value):
        return ("infinite" if value > 0 else "-infinite") if isinf(value) else "NaN"
    return f"{value:.4g}"


def count(n: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def duration(seconds: float) -> str:
    """A duration to two digits or so."""
    seconds = max(0.0, seconds)
    if not isfinite(seconds):
        return "forever"
    if seconds < 1.0:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 10.0:
        return f"{seconds:.2g} s"
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    if seconds < 7200.0:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * _DAY_S else f"{seconds / _DAY_S:.1f} days"


def moment(unix_time: float, now: float) -> str:
    """A `<time>` element: time of day, or the date where that is not clear, and how long ago."""
    try:
        at = datetime.fromtimestamp(unix_time, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return "at an unknown time"
    recent = abs(now - unix_time) < _DAY_S / 2
    shown = at.strftime("%H:%M:%S UTC" if recent else "%Y-%m-%d %H:%M UTC")
    ago = f" ({duration(now - unix_time)} ago)" if now - unix_time >= 1.0 else ""
    return f'<time datetime="{at.isoformat(timespec="seconds")}">{shown}</time>{ago}'


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers, neighbours joined: `3, 8 to 15`; bounded in length."""
    spans: list[list[int]] = []
    for n in numbers:
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    shown = [
        str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a} to {b}"
        for a, b in spans[:_RANGES_NAMED]
    ]
    rest = sum(b - a + 1 for a, b in spans[_RANGES_NAMED:])
    return ", ".join(shown) + (f" and {rest:,} more" if rest else "")
