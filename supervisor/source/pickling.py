"""Sends objects of the user's program to the process of a stream thread, including those of its main module.

The main module may be a notebook, or come from stdin: no other process can import it. Its definitions are sent by value
(cloudpickle), with the values of their globals at the start. This module adds support for objects whose identity
matters, classes that are more than their attributes, and names that other code looks up in ``__main__``. On arrival
each such class is compared with the original: a class without its fields would lose the user's data.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
import typing
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from .class_definition import MAIN, reduced_class
from .class_outline import Outline, difference, outline

#: The methods of a class that define how its objects are pickled.
_PICKLE = ("__reduce_ex__", "__reduce__", "__getstate__")


def dumps(obj: object) -> bytes:
    """Return an object's bytes for another process of this program.

    Raises TypeError, AttributeError or pickle.PicklingError if it, or an object that it refers to, cannot be sent.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump((obj, pickler.outlines))  # in this order: the second is filled while the first is pickled
    return file.getvalue()


def loads(data: bytes) -> Any:
    """Return the object of bytes from dumps, which must come from a process of this program.

    Raises TypeError if a class differs from the original, and exceptions of the objects themselves.
    """
    obj, outlines = pickle.loads(data)  # noqa: S301  see above
    for kind, before in outlines:
        lost = difference(before, outline(kind))
        if lost:
            raise TypeError(
                f"the class {kind.__qualname__} of {kind.__module__} cannot be sent to another process: {lost}. "
                "Put it into a module, and import it from there"
            )
    return obj


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """outlines: the classes sent by value, each with its outline to check on arrival."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.outlines: list[tuple[type, Outline]] = []

    @functools.cached_property
    def _of_modules(self) -> dict[int, tuple[str, str]]:
        return {id(obj): (module, name) for module, name, obj in _objects_of_modules()}

    def reducer_override(self, obj: object) -> object:
        if isinstance(obj, functools._lru_cache_wrapper) and not _can_be_imported(obj):
            return (_cached, tuple(obj.cache_parameters().values()), vars(obj), None, None, _update)
        if isinstance(obj, typing.NewType) and not _can_be_imported(obj):
            return typing.NewType, (obj.__name__, obj.__supertype__), vars(obj)
        reduced = super().reducer_override(obj)
        if reduced is not NotImplemented and isinstance(obj, type) and len(reduced) == 6:
            self.outlines.append((obj, outline(obj)))
            return reduced_class(obj, reduced)
        if reduced is NotImplemented and _is_without_state(obj) and id(obj) in self._of_modules:
            return _of_module, self._of_modules[id(obj)]
        return reduced


def _can_be_imported(obj: Any) -> bool:
    found = None if obj.__module__ == MAIN else sys.modules.get(obj.__module__)
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


def _cached(maxsize: int | None, typed: bool) -> object:
    """Return a cached function; its ``__wrapped__`` is set afterwards, because it may refer to the cached function."""

    @functools.lru_cache(maxsize, typed)
    def cached(*arguments: object, **keywords: object) -> object:
        return vars(cached)["__wrapped__"](*arguments, **keywords)

    return cached


def _update(obj: object, state: dict[str, object]) -> None:
    vars(obj).update(state)


def _is_without_state(obj: object) -> bool:
    """Return whether an object is only a sentinel, such as dataclasses.MISSING or ``object()``."""
    kind = type(obj)
    if isinstance(obj, type | ModuleType) or any(getattr(kind, name) is not getattr(object, name) for name in _PICKLE):
        return False
    try:
        return bool(obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)[1:] == ((kind,), None, None, None))
    except TypeError:  # it cannot be pickled
        return False


def _objects_of_modules() -> Iterator[tuple[str, str, object]]:
    for module_name, module in list(sys.modules.items()):
        if module_name not in (MAIN, "__mp_main__") and getattr(module, "__spec__", None) is not None:
            for name, obj in list(vars(module).items()):
                yield module_name, name, obj


def _of_module(module: str, name: str) -> object:
    return getattr(importlib.import_module(module), name)
