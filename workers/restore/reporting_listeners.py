"""Listeners in a stream thread's process that forward each call to the supervisor, where the user's listeners run."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from ..control.messages import ListenerCall, ThreadControl
from .listeners import StandbyUpdateListener, StateRestoreListener

L = TypeVar("L", StateRestoreListener, StandbyUpdateListener)


def reporting(listener: L, name: str, control: ThreadControl) -> L:
    """Return a listener whose methods report each call; name: the supervisor's name for this listener."""

    def report(method: str, *arguments: object) -> None:
        control.report(ListenerCall(name, method, arguments))

    for method in vars(type(listener)):
        if method.startswith("on_"):
            setattr(listener, method, partial(report, method))
    return listener
