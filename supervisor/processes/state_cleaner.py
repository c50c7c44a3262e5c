"""Deletes the state of tasks that have moved away (Kafka Streams: the state-cleaner thread of KafkaStreams)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from penstock.statestore.directory.state_directory import StateDirectory
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ProcessorStateError

logger = logging.getLogger(__name__)


class StateCleaner:
    """A thread that checks every ``state.cleanup.delay.ms``, while the application runs.

    A separate thread, because deleting a large RocksDB would block the supervisor's loop. Directories that a stream
    thread has locked are kept. ``state.cleanup.dir.max.age.ms`` is checked once, before the stream threads start
    (KIP-1259).
    """

    def __init__(self, directory: StateDirectory, config: StreamsConfig, is_running: Callable[[], bool]) -> None:
        self._directory = directory
        self._delay_ms: int = config["state.cleanup.delay.ms"]
        self._max_age_ms: int = config["state.cleanup.dir.max.age.ms"]
        self._is_running = is_running
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-state-cleaner", daemon=True)

    def start(self) -> None:
        """Delete outdated state, then start checking."""
        if self._max_age_ms >= 0:
            self._clean(self._max_age_ms)
        self._thread.start()

    def stop(self) -> None:
        """Stop checking; a running deletion is completed."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._delay_ms / 1000):
            if self._is_running():
                self._clean(self._delay_ms)

    def _clean(self, older_than_ms: int) -> None:
        try:
            self._directory.clean(older_than_ms)
        except ProcessorStateError:
            logger.exception("Failed to delete state of tasks that have moved away; retrying later")
