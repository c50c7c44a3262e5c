"""Tracebacks of exceptions that are raised for several records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn


class KeptError:
    """An exception with the tracebacks that it, its causes and its members had when it was kept.

    Each raise adds frames to an exception's own traceback, which would grow from record to record.
    """

    __slots__ = ("_tracebacks", "error")

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self._tracebacks = [(each, each.__traceback__) for each in _with_causes(error)]
        forget_tracebacks(error)  # another call may raise the same objects before this one is raised again

    def raise_again(self) -> NoReturn:
        """Raise the exception."""
        for each, traceback in self._tracebacks:
            each.__traceback__ = traceback
        raise self.error


def forget_tracebacks(error: BaseException) -> None:
    """Remove the tracebacks of an exception that is done with, and of its causes and members.

    The user's code may raise the same objects for the next record, and would add to their tracebacks. An example is the
    exception of a Future, also as the cause of another one.
    """
    for each in _with_causes(error):
        each.__traceback__ = None


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield each exception that is shown with this one: causes, contexts, members of groups. They may form cycles."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        left += (each.__cause__, each.__context__)
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
