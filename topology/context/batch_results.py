"""The results of batch functions as lists of Python values."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from ..common.numpy_values import from_numpy, is_numpy_array, is_numpy_scalar

#: Types of one value that seem to be a list of values, too.
_ONE_VALUE = (str, bytes, bytearray, memoryview, type)
#: The methods that return a list: of Arrow's arrays and batches, of NumPy's arrays and pandas' Series, of Polars'
#: Series. DataFrames have none of them.
_TO_LIST = ("to_pylist", "tolist", "to_list")


class ArrowColumn(Protocol):
    """An array, RecordBatch or Table of Arrow."""

    def to_pylist(self) -> Any:
        """Return the values, or the rows."""


class NumpyColumn(Protocol):
    """An array of NumPy, or a Series of pandas."""

    def tolist(self) -> Any:
        """Return the values."""


class PolarsColumn(Protocol):
    """A Series of Polars."""

    def to_list(self) -> Any:
        """Return the values."""


#: Results of batch functions whose type does not say what they contain.
Column: TypeAlias = ArrowColumn | NumpyColumn | PolarsColumn

#: Types of values that are no scalars of a library.
_USUAL = frozenset((dict, str, float, int, bool, bytes, list, tuple, type(None)))


def result_values(result: object) -> list[Any] | None:
    """Return the values of a list, tuple, array or Series, or the rows of an Arrow array, RecordBatch or Table.

    Scalars of NumPy and Arrow become Python's values; NumPy's times are cut to microseconds. Returns None for anything
    else, such as a dict, a set, text, a DataFrame, a generator or a single value.
    """
    if isinstance(result, _ONE_VALUE):
        return None
    if is_numpy_array(result):
        values = from_numpy(result)
    elif isinstance(result, Sequence):
        values = list(result)
    else:
        methods = (getattr(result, name, None) for name in _TO_LIST)
        values = next((method() for method in methods if method is not None), None)
    return [_python_value(value) for value in values] if isinstance(values, list) else None


def _python_value(value: object) -> Any:
    if type(value) in _USUAL:
        return value
    if is_numpy_scalar(value):
        return from_numpy(value)
    arrow_scalar: Any = getattr(sys.modules.get("pyarrow"), "Scalar", ())
    return value.as_py() if isinstance(value, arrow_scalar) else value
