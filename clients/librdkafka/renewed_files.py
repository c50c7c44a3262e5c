"""Warns once when files have changed that a running librdkafka client has read at its creation and keeps using."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from ..connection.security import read_once

logger = logging.getLogger(__name__)

#: How often the files are checked: certificates are renewed hours before they expire.
CHECK_SECONDS = 30.0
#: The name of the threads that check them.
THREAD = "penstock-renewed-files"


class RenewedFiles:
    """Watches the TLS files and secrets of a client's settings, by librdkafka's names, until close().

    A separate thread checks them, because a file system may block.
    """

    def __init__(self, settings: Mapping[str, object], check_seconds: float = CHECK_SECONDS) -> None:
        self._client_id = settings.get("client.id", "librdkafka")
        self._check_seconds = check_seconds
        self._files = read_once(settings)
        self._closed = threading.Event()
        if self._files.names:
            threading.Thread(target=self._watch, name=THREAD, daemon=True).start()

    def _watch(self) -> None:
        while not self._closed.wait(self._check_seconds):
            if self._files.have_changed():
                logger.warning(
                    "[%s] Files of this client have changed: %s. librdkafka reads them only once, so new connections "
                    "use them as they were. Restart the stream thread (`penstock threads restart`) before they expire.",
                    self._client_id,
                    ", ".join(self._files.names),
                )
                return

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
