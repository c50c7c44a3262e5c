"""``production.exception.handler``: decides on records that could not be written (KIP-210, KIP-1034, KIP-1065)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.clients.errors import ClientError
from penstock.topology.context.exception_handlers import (
    PRODUCTION,
    ErrorHandlerContext,
    LogAndFail,
    ProducerRecord,
    Result,
    configured_handler,
)
from penstock.topology.records import Message, TaskId

from .record_collector import TRANSIENT, Decision, ProductionExceptionHandler

logger = logging.getLogger(__name__)

#: The broker reports a failure long after the send, and without the task.
UNKNOWN_TASK = TaskId(-1, -1)
#: The name used for the operator in the handler's context and in metrics.
PRODUCER_NODE = "producer"


def production_error_handler(config: Mapping[str, Any]) -> ProductionExceptionHandler:
    """Return the configured handler as RecordCollector calls it; raises ConfigError if it does not exist.

    Its context has no input record, because the task has moved on by then. The dead letters of the built-in handlers
    therefore hold the record that could not be written. The task is known only if the client refused the record
    immediately. RETRY after a transient error restarts the thread's tasks from the last commit (Kafka Streams:
    TaskCorruptedException), which writes the record again; after any other error it counts as FAIL.
    """
    handle = configured_handler(config, PRODUCTION)

    def decide(message: Message, error: ClientError, task_id: TaskId | None) -> Decision:
        context = ErrorHandlerContext(None, -1, -1, None, PRODUCER_NODE, task_id or UNKNOWN_TASK, -1, None, None)
        key, value = message.key(), message.value()
        record = ProducerRecord(message.topic(), key, value, message.timestamp()[1], None, message.partition())
        response = handle(context, record, error)
        if response.result is Result.RETRY and error.kind not in TRANSIENT:
            logger.warning(
                "%s returned RETRY for an error that is not transient, which counts as FAIL (%s)", PRODUCTION, error
            )
        letters = response.dead_letter_queue_records
        if isinstance(handle, LogAndFail):
            letters = [replace(letter, key=key, value=value, timestamp=record.timestamp) for letter in letters]
        return Decision(response.result is Result.RESUME, letters)

    return decide
