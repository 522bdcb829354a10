"""What counts as a number, and the errors for what does not.

NumPy scalars and 0-d arrays or tensors are numbers; a bool is not. Arrays are told by their
`shape`, so that neither NumPy nor torch has to be imported.
"""

from __future__ import annotations

import math
from numbers import Integral, Real


def _scalar(value: object) -> object:
    """Unwrap a 0-d array or tensor; anything else comes back as it is."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    return value


def integer(value: object, name: str, *, minimum: int | None = None) -> int:
    """Return `value` as an int.

    Raises:
        TypeError: Not an integer (a bool and a float are none).
        ValueError: Below `minimum`.
    """
    scalar = value if type(value) is int else _scalar(value)
    if isinstance(scalar, bool) or not isinstance(scalar, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r} ({type(value).__name__})")
    result = int(scalar)
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
        raise ValueError(f"{name} is too large for a float, got {value!r}") from None


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
    """Return `value` if it is a bool.

    Raises:
        TypeError: Anything else.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {value!r} ({type(value).__name__})")
    return value
