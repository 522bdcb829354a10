"""What the value of a setting may look like: Python's own type, or text where it comes as text.

An error says what the value must be; who has called knows its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def _text(value: object, from_text: bool) -> str:
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, str):
        raise TypeError("must be a string")
    return value


def _whole(value: object, from_text: bool) -> int:
    if from_text and isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            raise ValueError("must be an integer") from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("must be an integer")
    return value


def _seconds(value: object, from_text: bool) -> float:
    if from_text and isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise ValueError("must be a number of seconds") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("must be a number of seconds")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("must be a finite number of seconds") from None


def _flag(value: object, from_text: bool) -> bool:
    if from_text and isinstance(value, str):
        words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if value.lower() not in words:
            raise ValueError("must be true or false")
        return words[value.lower()]
    if not isinstance(value, bool):
        raise TypeError("must be true or false")
    return value


def _optional(parse: Callable[[object, bool], Any]) -> Callable[[object, bool], Any]:
    def parse_or_none(value: object, from_text: bool) -> Any:
        if value is None or (from_text and str(value).lower() in ("", "none", "auto")):
            return None
        return parse(value, from_text)

    return parse_or_none


PARSERS: Mapping[str, Callable[[object, bool], Any]] = {
    "str": _text,
    "bool": _flag,
    "bool | None": _optional(_flag),
    "int | None": _optional(_whole),
    "float": _seconds,
    "float | None": _optional(_seconds),
}
"""By the type of the setting; each takes a value and whether it is text of the environment."""
