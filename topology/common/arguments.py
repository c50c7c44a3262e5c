"""Checks of arguments to the DSL: errors are raised at the declaration, not with the first record."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import TopologyError

#: What to do instead of passing an async function.
ASYNC_ADVICE = "map_values_async() and its like await such functions, many at a time (docs/async.md)"


def check_function(given: object, what: str, *, optional: bool = False) -> None:
    """Raise TopologyError unless an argument is a function; an optional one may be None.

    what: the argument and its operator, for the message.
    """
    if not callable(given) and not (optional and given is None):
        raise TopologyError(f"{what} must be a function, got {given!r}")
    if is_asynchronous(given):
        raise TopologyError(f"{what} must be a plain function, got the async {given!r}: {ASYNC_ADVICE}")


def check_async_function(given: object, what: str) -> None:
    """Raise TopologyError unless given is an async function."""
    if not callable(given):
        raise TopologyError(f"{what} must be an async function, got {given!r}")
    if not is_asynchronous(given) and inspect.isroutine(given):
        raise TopologyError(f"{what} must be an async function, got the plain {given!r}: use map_values() or the like")
    if is_asynchronous(given, inspect.isasyncgenfunction):
        raise TopologyError(f"{what} must return its result, but {given!r} yields: it is an async generator function")


def is_asynchronous(given: object, *kinds: Callable[[Any], bool]) -> bool:
    """Return whether a call returns a coroutine or an asynchronous generator, which would never be awaited.

    kinds: functions of inspect for other kinds than these two.
    """
    while isinstance(given, partial):
        given = given.func
    called = given if inspect.isroutine(given) or isinstance(given, type) else type(given).__call__
    return any(is_kind(called) for is_kind in kinds or (inspect.iscoroutinefunction, inspect.isasyncgenfunction))


def check_type(given: object, kind: type | tuple[type, ...], what: str, hint: str) -> None:
    """Raise TopologyError unless an argument has a type.

    what: the argument, for the message; hint: the expected type in words.
    """
    if not isinstance(given, kind):
        raise TopologyError(f"{what} must be {hint}, got {given!r}")


def check_topic(given: object, what: str) -> None:
    """Raise TopologyError unless given is the name of one topic."""
    if not isinstance(given, str) or not given:
        raise TopologyError(f"{what} needs the name of a topic, got {given!r}")
