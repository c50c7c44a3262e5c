"""A limit of the input: a stream thread reads its source topics only up to given offsets, for a short time.

With it two applications stop at the same point of their input: docs/decisions/13-cutover.md. The thread ends the limit
by itself when the time is over, so that a caller that dies stops nothing.
"""

from __future__ import annotations

from penstock.clients.clock import Clock
from penstock.clients.log_context import PrefixedLogger

from ..control.messages import CommandResult, LimitInput
from ..tasks.partition_consumer import PartitionConsumer


class InputLimit:
    """The limit of one stream thread, which only this thread uses."""

    def __init__(self, consumer: PartitionConsumer, clock: Clock, log: PrefixedLogger) -> None:
        self._consumer, self._clock, self._log = consumer, clock, log
        self._until_ms: int | None = None

    def begin(self, command: LimitInput) -> CommandResult:
        """Replace the limits, or prolong them."""
        if self._until_ms is None:
            self._log.info("Reading no further than the offsets of a cutover for at most %d ms", command.limit_ms)
        self._consumer.limit(command.offsets)
        self._until_ms = self._clock.monotonic_ms() + command.limit_ms
        return CommandResult(command.id)

    def poll(self) -> None:
        """End the limits if their time is over."""
        if self._until_ms is not None and self._clock.monotonic_ms() >= self._until_ms:
            self._consumer.limit({})
            self._until_ms = None
            self._log.info("The limit of the input has ended")
