"""How long a task's requests to the brokers may fail before an error is raised (``task.timeout.ms``, KIP-572).

A broker that does not answer for a while must not end a stream thread. The thread skips the task, retries in the next
iteration, and continues with the other tasks. Kafka Streams: AbstractTask.maybeInitTaskTimeoutOrThrow.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.clients.clock import Clock
from penstock.clients.log_context import PrefixedLogger, listed
from penstock.topology.errors import StreamsError, TaskTimeoutError
from penstock.topology.records import TaskId


class TaskTimeouts:
    """The failing operations of tasks, with the time of the first failure. timeout_ms 0: the first failure raises."""

    def __init__(self, timeout_ms: int, clock: Clock, log: PrefixedLogger) -> None:
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._log = log
        self._since_ms: dict[TaskId, dict[str, int]] = {}

    def failed(self, task_ids: Collection[TaskId], operation: str, error: StreamsError) -> None:
        """Record that an operation of these tasks failed and will be retried; the first failure is logged.

        operation: as in "<operation> fails". error: the client's error. Raises TaskTimeoutError if the operation has
        failed for longer than the timeout.
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
        """Record that an operation of these tasks succeeded; None: all operations."""
        if not self._since_ms:
            return
        for task_id in task_ids:
            if operation is not None:
                self._since_ms.get(task_id, {}).pop(operation, None)
            if operation is None or not self._since_ms.get(task_id):
                self._since_ms.pop(task_id, None)
