"""Notifies systemd of the state of a ``Type=notify`` service: sd_notify(3) without a dependency."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from ..channels.descriptors import EXHAUSTED
from ..logs.log_floods import bounded_logger

logger = bounded_logger(__name__)

#: How long systemd may block the supervisor's loop.
SEND_SECONDS = 0.2


class SystemdNotifier:
    """Sends READY, STATUS, WATCHDOG and STOPPING to the socket in NOTIFY_SOCKET; does nothing without one.

    environment: os.environ, or a test's. WATCHDOG_PID names the process that the variables are for: not its children.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._address = environment.get("NOTIFY_SOCKET", "")
        #: Maximum interval between calls of ``watchdog``; None if systemd does not expect them.
        self.watchdog_interval_ms = _watchdog_interval_ms(environment)
        self._next_watchdog_ms = 0
        self._status = ""

    def ready(self) -> None:
        """Report that the service has started."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """Show one line in ``systemctl status``; the same line is not sent twice."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def stopping(self) -> None:
        """Report that the service is stopping."""
        self._send("STOPPING=1")

    def watchdog(self, now_ms: int) -> None:
        """Report that the loop is alive, twice per WatchdogSec; must be called often. now_ms: a monotonic clock."""
        if self.watchdog_interval_ms is not None and now_ms >= self._next_watchdog_ms:
            self._next_watchdog_ms = now_ms + self.watchdog_interval_ms
            self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # A leading @ stands for the NUL byte of Linux' abstract sockets.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(SEND_SECONDS)
                sender.sendto(message.encode(), address)
        except TimeoutError:
            logger.warning("systemd does not read its notifications: %r is dropped", message)
        except OSError as error:
            logger.warning("cannot notify systemd of %r at %s: %s", message, self._address, error)
            if error.errno not in EXHAUSTED:
                self._address = ""  # logged once; the service continues without it


def _watchdog_interval_ms(environment: Mapping[str, str]) -> int | None:
    """Return half of WatchdogSec, as sd_watchdog_enabled(3) advises."""
    pid = environment.get("WATCHDOG_PID")
    usec = environment.get("WATCHDOG_USEC", "")
    if not usec.isdigit() or (pid and pid != str(os.getpid())):
        return None
    return max(1, int(usec) // 2000)
