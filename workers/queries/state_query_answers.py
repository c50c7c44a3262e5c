"""Answers requests of interactive queries v2 from the tasks of a stream thread (KIP-796).

Follows Kafka Streams' KafkaStreams.query and StoreQueryUtils.
"""

from __future__ import annotations

import time
from dataclasses import replace

from penstock.statestore.stores.state_store import StateStore
from penstock.topology.errors import SerializationError, StreamsError
from penstock.topology.query.position import Position
from penstock.topology.query.state_query_request import StateQueryRequest
from penstock.topology.query.state_query_result import FailureReason, QueryResult

from ..tasks.task import Task
from ..tasks.task_state import TaskState
from .state_query_text import read_query, shown_result
from .store_answers import PartitionResults, absent
from .store_reads import StoreReader, check_readable


def answer_request(request: StateQueryRequest, reader: StoreReader, rows_max: int | None = None) -> PartitionResults:
    """Return the answers of the tasks here that have the store. Raises UnknownStateStoreError.

    Tasks that are being restored and standby tasks answer, too, unless the request requires active ones. rows_max: of a
    request in text form, see AnswerRequest; it raises BadKeyError for keys and bounds that do not fit the store, and
    has an answer for each partition, NOT_PRESENT for those of other processes.
    """
    if rows_max is None:
        return _answers(request, reader, None)
    builder = reader.builder(request.store_name)
    check_readable(builder)
    reader.check_bound(request.store_name, request.position_bound.position)
    request = replace(request, query=read_query(request.query, builder))
    found = _answers(request, reader, rows_max)
    if None in found:
        return found
    wanted = range(reader.partitions_of(request.store_name)) if request.partitions is None else request.partitions
    return {**dict.fromkeys(wanted, absent(request.store_name)), **found}


def _answers(request: StateQueryRequest, reader: StoreReader, rows_max: int | None) -> PartitionResults:
    if reader.is_global(request.store_name):
        return {None: _of_global(request, reader, rows_max)}
    mine = {
        task_id: task
        for task_id, task in reader.task_manager.all_tasks().items()
        if request.store_name in task.state_manager.stores
    }
    wanted = [
        (task_id.partition, task)
        for task_id, task in sorted(mine.items())
        if request.partitions is None or task_id.partition in request.partitions
    ]
    return {
        **_beyond(request, reader),
        **{partition: _of_task(request, task, reader, rows_max) for partition, task in wanted},
    }


def _beyond(request: StateQueryRequest, reader: StoreReader) -> PartitionResults:
    """Return the failures of partitions that the store does not have."""
    count = reader.partitions_of(request.store_name)
    message = f"{request.store_name} has the partitions 0 to {count - 1}"
    missing = (partition for partition in request.partitions or () if not 0 <= partition < count)
    return {partition: QueryResult.for_failure(FailureReason.DOES_NOT_EXIST, message) for partition in missing}


def _of_global(request: StateQueryRequest, reader: StoreReader, rows_max: int | None) -> QueryResult:
    """Return the answer of a global store, which has all records up to its position; Kafka Streams answers none."""
    store, position = (
        reader.global_state.task.stores[request.store_name],
        reader.global_state.position(request.store_name),
    )
    return _run(request, store, position, "the global task", rows_max)


def _of_task(request: StateQueryRequest, task: Task, reader: StoreReader, rows_max: int | None) -> QueryResult:
    active = task.kind == "task"
    if request.is_require_active and not (active and task.state is TaskState.RUNNING):
        role = "an active" if active else "a standby"
        message = f"Task {task.task_id} is {role} task in state {task.state.name}"
        return QueryResult.for_failure(FailureReason.NOT_ACTIVE, message)
    position = reader.position(task, request.store_name, request.isolation_level)
    bound = request.position_bound.position
    if not request.is_require_active and not (position or Position()).reaches(bound, task.task_id.partition):
        known = "at an unknown position" if position is None else f"as of {position}"
        message = f"The rows of task {task.task_id} are {known}, not yet as of {bound}"
        return replace(QueryResult.for_failure(FailureReason.NOT_UP_TO_BOUND, message), position=position)
    try:
        store = reader.isolated(task.state_manager.stores[request.store_name], request.isolation_level)
    except StreamsError as error:
        return QueryResult.for_failure(FailureReason.STORE_EXCEPTION, str(error))
    return _run(request, store, position, f"task {task.task_id}", rows_max)


def _run(
    request: StateQueryRequest, store: StateStore, position: Position | None, where: str, rows_max: int | None
) -> QueryResult:
    began = time.perf_counter_ns()
    found = replace(store.query(request.query, None if rows_max is None else rows_max + 1), position=position)
    if rows_max is not None and found.is_success:
        try:
            found = replace(found, value=shown_result(request.query, found.value, store, rows_max))
        except SerializationError as error:
            failure: QueryResult = QueryResult.for_failure(FailureReason.STORE_EXCEPTION, str(error))
            found = replace(failure, position=position)
    if not request.execution_info_enabled:
        return found
    info = f"Handled in {type(store).__name__} of {where} in {time.perf_counter_ns() - began} ns"
    return replace(found, execution_info=(*found.execution_info, info))
