"""The part of TensorFlow's `Event` message that holds scalars, decoded from its bytes.

Wire format: protobuf.dev/programming-guides/encoding. Field numbers: tensorflow/core/util/
event.proto, framework/summary.proto and framework/tensor.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")

_SESSION_START = 1
_DT_FLOAT, _DT_DOUBLE, _DT_INT32, _DT_INT64, _DT_BFLOAT16, _DT_HALF = 1, 2, 3, 9, 14, 19


class Event(NamedTuple):
    """An event, as far as scalars go."""

    time: float
    step: int
    scalars: list[tuple[str, float]]
    started: bool
    """A writer's session starts here."""


def parse(data: bytes) -> Event:
    """Decode an `Event`.

    Raises:
        ValueError: The bytes are no message.
    """
    time, step, started = 0.0, 0, False
    scalars: list[tuple[str, float]] = []
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes) and len(value) == 8:
            time = _DOUBLE.unpack(value)[0]
        elif number == 2 and isinstance(value, int):
            step = value - (1 << 64) if value >> 63 else value
        elif number == 5 and isinstance(value, bytes):
            for inner, summary in _fields(value):
                if inner == 1 and isinstance(summary, bytes):
                    scalar = _scalar(summary)
                    if scalar is not None:
                        scalars.append(scalar)
        elif number == 7 and isinstance(value, bytes):
            started = any(pair == (1, _SESSION_START) for pair in _fields(value))
    return Event(time, step, scalars, started)


def _scalar(data: bytes) -> tuple[str, float] | None:
    """The tag and number of a `Summary.Value`; None if it is an image, a histogram or a text."""
    tag, found = "", None
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            tag = value.decode("utf-8", "replace")
        elif number == 2 and isinstance(value, bytes) and len(value) == 4:
            found = _FLOAT.unpack(value)[0]
        elif number == 8 and isinstance(value, bytes):
            found = _tensor(value)
    return None if found is None else (tag, float(found))


def _tensor(data: bytes) -> float | None:
    """The number of a `TensorProto` of one number; None if it is another tensor."""
    dtype = 0
    content = b""
    found: list[float] = []
    for number, value in _fields(data):
        if number == 1 and isinstance(value, int):
            dtype = value
        elif number == 2 and isinstance(value, bytes):
            if any(inner == 2 for inner, _ in _fields(value)):  # a dimension: no scalar, unless 1
                sizes = [d for inner, dim in _fields(value) if inner == 2 for d in _sizes(dim)]
                if any(size != 1 for size in sizes):
                    return None
        elif number == 4 and isinstance(value, bytes):
            content = value
        else:
            found += _listed(number, value)
    if content:
        return _from_content(dtype, content)
    if len(found) != 1:
        return None
    if dtype in (_DT_HALF, _DT_BFLOAT16):
        return _from_content(dtype, struct.pack("<H", int(found[0]) & 0xFFFF))
    return found[0]


def _sizes(dim: Any) -> list[int]:
    if not isinstance(dim, bytes):
        return []
    return [value for number, value in _fields(dim) if number == 1 and isinstance(value, int)]


def _listed(number: int, value: int | bytes) -> list[float]:
    """Numbers in the typed lists of a `TensorProto`: packed, or one by one."""
    if number == 5 and isinstance(value, bytes):
        return [v for (v,) in _FLOAT.iter_unpack(value)] if len(value) % 4 == 0 else []
    if number == 6 and isinstance(value, bytes):
        return [v for (v,) in _DOUBLE.iter_unpack(value)] if len(value) % 8 == 0 else []
    if number in (7, 10, 13):
        numbers = [value] if isinstance(value, int) else list(_varints(value))
        return [float(v - (1 << 64) if v >> 63 else v) for v in numbers]
    return []


def _from_content(dtype: int, content: bytes) -> float | None:
    if dtype == _DT_BFLOAT16 and len(content) == 2:  # the upper half of a float
        return float(_FLOAT.unpack(b"\0\0" + content)[0])
    layout = {_DT_FLOAT: "<f", _DT_DOUBLE: "<d", _DT_INT32: "<i", _DT_INT64: "<q", _DT_HALF: "<e"}
    code = layout.get(dtype)
    if code is None or struct.calcsize(code) != len(content):
        return None
    return float(struct.unpack(code, content)[0])


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of a message: integers of varints, else bytes."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"an event of a kind of field that does not exist ({kind})")
        if at + size > end:
            raise ValueError("an event is cut short")
        yield number, data[at : at + size]
        at += size


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("an event is cut short")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
