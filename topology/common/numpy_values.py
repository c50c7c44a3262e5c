"""NumPy's scalars and arrays as Python's values. NumPy is not imported: a program without it has no such values."""

from __future__ import annotations

import sys
from typing import Any

#: Units of time that Python's datetime does not have; NumPy would return them as integers.
_TOO_FINE = ("ns", "ps", "fs", "as")


def is_numpy_scalar(value: object) -> bool:
    """Return whether a value is a scalar of NumPy, such as a float32."""
    return isinstance(value, getattr(sys.modules.get("numpy"), "generic", ()))


def is_numpy_array(value: object) -> bool:
    """Return whether a value is an array of NumPy."""
    return isinstance(value, getattr(sys.modules.get("numpy"), "ndarray", ()))


def from_numpy(found: Any) -> object:
    """Return a scalar as a value of Python, an array as a list; times are cut to microseconds."""
    kind = found.dtype.kind
    if kind in "mM" and sys.modules["numpy"].datetime_data(found.dtype)[0] in _TOO_FINE:
        found = found.astype(f"{kind}8[us]")
    return found.tolist()
