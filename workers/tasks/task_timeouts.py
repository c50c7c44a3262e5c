"""How long what a task needs from the brokers may fail before that is an error (``task.timeout.ms``, KIP-572).

A broker that does not answer for a while must not end a stream thread: the task is left out and tried again in the next
loop, while the others continue. Kafka Streams: AbstractTask.maybeInitTaskTimeoutOrThrow.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.clients.clock import Clock
from penstock.clients.log_context import PrefixedLogger, listed
from penstock.topology.errors import StreamsError, TaskTimeoutError
from penstock.topology.records import TaskId


class TaskTimeouts:
    """Since when which operation of which task has failed. timeout_ms 0: the first failure is an error."""

    def __init__(self, timeout_ms: int, clock: Clock, log: PrefixedLogger) -> None:
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._log = log
        self._since_ms: dict[TaskId, dict[str, int]] = {}

    def failed(self, task_ids: Collection[TaskId], operation: str, error: StreamsError) -> None:
        """Note that an operation of these tasks failed and is to be tried again; the first failure is logged.

        operation: as in "<operation> fails". error: what the client said; it names topic and partition if they matter.
        Raises TaskTimeoutError if it has failed for longer than the timeout.
        """
        now_ms = self._clock.monotonic_ms()
        new = []
        for task_id in task_ids:
            operations = self._since_ms.setdefault(task_id, {})
            if operation not in operations:
                new.append(task_id)
            for_ms = now_ms - operations.setdefault(operation, now_ms)
            if for_ms >= self._timeout_ms:
                raise TaskTimeoutError(
                    f"Task {task_id} did not make progress within {for_ms} ms (task.timeout.ms={self._timeout_ms}): "
                    f"{operation} fails: {error} Check the brokers and the network between; if brokers may be away for "
                    "longer, raise task.timeout.ms.",
                    task_id,
                ) from error
        if new:
            self._log.warning(
                "%s of tasks %s failed and is tried again, for %d ms at most (task.timeout.ms): %s",
                operation.capitalize(),
                listed(new),
                self._timeout_ms,
                error,
            )

    def succeeded(self, task_ids: Collection[TaskId], operation: str | None = None) -> None:
        """Note that an operation of these tasks went well; None: all of what they do."""
        if not self._since_ms:
            return
        for task_id in task_ids:
            if operation is not None:
                self._since_ms.get(task_id, {}).pop(operation, None)
            if operation is None or not self._since_ms.get(task_id):
                self._since_ms.pop(task_id, None)
