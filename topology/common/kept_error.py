"""An exception that is kept, to be raised for several records."""

from __future__ import annotations

from typing import NoReturn


class KeptError:
    """An exception with the traceback that it had when it was kept.

    Each raise adds frames to the exception's own traceback, which would grow from record to record.
    """

    __slots__ = ("_traceback", "error")

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self._traceback = error.__traceback__

    def raise_again(self) -> NoReturn:
        """Raise the exception."""
        raise self.error.with_traceback(self._traceback)
