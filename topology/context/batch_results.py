"""The results of batch functions as lists of Python values. No library is imported: its values prove that it is."""

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

#: Types of values that are not of a library.
_USUAL = frozenset((dict, str, float, int, bool, bytes, list, tuple, type(None)))
#: Those that contain no other values.
_SIMPLE = _USUAL - {dict, list, tuple}


def result_values(result: object) -> list[Any] | None:
    """Return the values of a list, tuple, array or Series, or the rows of an Arrow array, RecordBatch or Table.

    Values of NumPy, pandas and Arrow become Python's: missing ones None, arrays lists, times are cut to microseconds.
    The parts of dicts and lists in a list or tuple stay as they are. Returns None for anything else, such as a dict, a
    set, text, a DataFrame, a generator or a single value.
    """
    if isinstance(result, _ONE_VALUE):
        return None
    if isinstance(result, Sequence):
        return [_python_value(value) for value in result]
    values = _from_numpy(result) if is_numpy_array(result) else _listed(result)
    return values if isinstance(values, list) else None


def _python_value(value: object) -> object:
    if type(value) in _USUAL:
        return value
    if is_numpy_scalar(value) or is_numpy_array(value):
        return _from_numpy(value)
    library = type(value).__module__.partition(".")[0]
    if library == "pandas":
        return _from_pandas(value)
    return _from_arrow(value) if library == "pyarrow" else value


def _from_numpy(found: Any) -> object:
    value = from_numpy(found)
    return _opened(value) if found.dtype.hasobject else value


def _from_pandas(found: object) -> object:
    pandas = sys.modules["pandas"]
    if found is pandas.NA or found is pandas.NaT:
        return None
    if isinstance(found, pandas.Timestamp):
        return found.to_pydatetime(warn=False)
    return from_numpy(found.to_timedelta64()) if isinstance(found, pandas.Timedelta) else _listed(found)


def _from_arrow(found: object) -> object:
    return _opened(found.as_py()) if hasattr(found, "as_py") else _listed(found)


def _listed(column: object) -> object:
    """Return the values of an array or Series as a list; anything else unchanged."""
    methods = (getattr(column, name, None) for name in _TO_LIST)
    method = next((method for method in methods if method is not None), None)
    return column if method is None else _opened(method())


def _opened(value: object) -> object:
    """Return a value that a library has made, with Python's values in its dicts, lists and tuples."""
    if type(value) is dict:
        is_simple = _SIMPLE.issuperset(map(type, value.values()))
        return value if is_simple else {name: _opened(part) for name, part in value.items()}
    if type(value) is list or type(value) is tuple:
        return value if _SIMPLE.issuperset(map(type, value)) else type(value)(map(_opened, value))
    return _python_value(value)
