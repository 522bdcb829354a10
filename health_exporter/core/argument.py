"""What counts as a number, and the errors for what does not.

NumPy scalars and 0-d arrays or tensors are numbers; a bool is not. Arrays are told by their
`shape`, so that neither NumPy nor torch has to be imported.
"""

from __future__ import annotations

import math
from numbers import Integral, Real

_INTEGER_BITS = 63
"""Steps and counts end as floats and as 64-bit integers elsewhere; a larger one is a mistake."""


def _scalar(value: object) -> object:
    """Unwrap a 0-d array or tensor; anything else comes back as it is."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    return value


def integer(value: object, name: str, *, minimum: int | None = None) -> int:
    """Return `value` as an int.

    Raises:
        TypeError: Not an integer (a bool and a float are none).
        ValueError: Below `minimum`, or it does not fit in 64 bits.
    """
    scalar = value if type(value) is int else _scalar(value)
    if isinstance(scalar, bool) or not isinstance(scalar, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r} ({type(value).__name__})")
    result = int(scalar)
    if result.bit_length() > _INTEGER_BITS:
        raise ValueError(f"{name} must fit in 64 bits, got one of {result.bit_length()} bits")
    if minimum is not None and result < minimum:
        raise ValueError(f"{name} must be >= {minimum}, got {result}")
    return result


def real(value: object, name: str) -> float:
    """Return `value` as a float, which may be NaN or infinite.

    Raises:
        TypeError: Not a real number.
        ValueError: An integer too large for a float.
    """
    scalar = _scalar(value)
    if isinstance(scalar, bool) or not isinstance(scalar, Real):
        raise TypeError(f"{name} must be a real number, got {value!r} ({type(value).__name__})")
    try:
        return float(scalar)
    except OverflowError:
        # Not the value itself: Python refuses to print integers of more than 4,300 digits.
        raise ValueError(f"{name} is too large for a float, got {type(value).__name__}") from None


def finite(value: object, name: str, *, above: float | None = None) -> float:
    """Return `value` as a finite float, greater than `above` where that is given.

    Raises:
        TypeError: Not a real number.
        ValueError: NaN, infinite, or not above `above`.
    """
    result = real(value, name)
    if not math.isfinite(result):
        raise ValueError(f"{name} must be finite, got {result}")
    if above is not None and not result > above:
        raise ValueError(f"{name} must be > {above:g}, got {result}")
    return result


def nonnegative(value: object, name: str) -> float:
    """Return `value` as a finite float >= 0.

    Raises:
        TypeError: Not a real number.
        ValueError: NaN, infinite or negative.
    """
    result = finite(value, name)
    if result < 0.0:
        raise ValueError(f"{name} must be >= 0, got {result}")
    return result


def boolean(value: object, name: str) -> bool:
    """Return `value` as a bool.

    Raises:
        TypeError: Not a bool of Python, NumPy or torch.
    """
    scalar = _scalar(value)
    if not isinstance(scalar, bool):
        raise TypeError(f"{name} must be a bool, got {value!r} ({type(value).__name__})")
    return scalar
