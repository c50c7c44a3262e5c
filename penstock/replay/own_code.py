"""Which code is the user's, and the first call of it while a record is processed."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

#: Packages of Penstock.
_OURS = frozenset({"penstock", "penstock_command", "penstock_distribution"})
_INSTALLED = ("site-packages", "dist-packages")
_LIBRARY = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))


@dataclass(frozen=True, slots=True)
class OwnCode:
    """The user's code: not Penstock's, Python's or an installed package's, unless it is the package of the topology."""

    package: str

    @classmethod
    def of(cls, topology: str) -> OwnCode:
        """Return the code that belongs to a topology. topology: ``module:attribute``."""
        return cls(topology.partition(":")[0].partition(".")[0])

    def has(self, frame: FrameType) -> bool:
        """Return whether a frame runs the user's code."""
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in _OURS:
            return False
        file = frame.f_code.co_filename
        if file.startswith("<"):  # generated, such as the constructor of a dataclass
            return False
        if package == self.package:
            return True
        return not file.startswith(_LIBRARY) and not any(part in file for part in _INSTALLED)


@contextmanager
def stopping_at_first_call(own: OwnCode, stop: Callable[[FrameType], None]) -> Iterator[None]:
    """Call stop with the frame of the first call of the user's code within the block, if there is one."""

    def watch(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and own.has(frame):
            sys.setprofile(None)
            stop(frame)

    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)
