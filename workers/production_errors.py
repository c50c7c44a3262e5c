"""``production.exception.handler``: what becomes of a record that could not be written (KIP-210)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from penstock.topology.exception_handlers import (
    PRODUCTION,
    ErrorHandlerContext,
    ProducerRecord,
    Result,
    configured_handler,
)
from penstock.topology.records import TaskId

from .streams_producer import ProductionExceptionHandler

#: The report of a failure comes long after the send and names no task.
UNKNOWN_TASK = TaskId(-1, -1)


def production_error_handler(config: Mapping[str, Any]) -> ProductionExceptionHandler:
    """Return the configured handler in the shape that StreamsProducer asks; raises ConfigError if there is none such.

    Its context names no input record, because by then the task is elsewhere. RETRY counts as FAIL: the producer has
    tried for delivery.timeout.ms already.
    """
    handle = configured_handler(config, PRODUCTION)

    def goes_on_without(message: Any, error: KafkaError) -> bool:
        context = ErrorHandlerContext(None, -1, -1, None, "producer", UNKNOWN_TASK, -1, None, None)
        record = ProducerRecord(
            message.topic(), message.key(), message.value(), message.timestamp()[1], None, message.partition()
        )
        return handle(context, record, KafkaException(error)).result is Result.RESUME

    return goes_on_without
