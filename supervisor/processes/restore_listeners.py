"""The user's restore and standby listeners, called with the stream threads' reports."""

from __future__ import annotations

from penstock.clients.log_context import PrefixedLogger
from penstock.workers.control.messages import ListenerCall
from penstock.workers.restore.listeners import StandbyUpdateListener, StateRestoreListener


class RestoreListeners:
    """Both are optional; stream threads report only events with a listener."""

    def __init__(self, log: PrefixedLogger) -> None:
        self.restore: StateRestoreListener | None = None
        self.standby: StandbyUpdateListener | None = None
        self._log = log

    @property
    def wanted(self) -> tuple[str, ...]:
        """Return the listeners that are set: values of ListenerCall.listener."""
        by_name = {"restore": self.restore, "standby": self.standby}
        return tuple(name for name, listener in by_name.items() if listener is not None)

    def call(self, call: ListenerCall) -> None:
        """Call a listener. Exceptions are logged: they must not end the application."""
        listener = self.restore if call.listener == "restore" else self.standby
        if listener is None:
            return
        try:
            getattr(listener, call.method)(*call.arguments)
        except Exception:  # noqa: BLE001  a user's code
            self._log.exception("The listener's %s failed", call.method)
