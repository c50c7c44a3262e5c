"""Answers requests of interactive queries v2 from all stream threads of this host (KIP-796)."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from penstock.topology.query.state_query_request import StateQueryRequest
from penstock.topology.query.state_query_result import FailureReason, QueryResult, StateQueryResult
from penstock.workers.control.messages import AnswerRequest, CommandResult

from .queries import Answers, Question

R = TypeVar("R")


class StreamThreads(Protocol):
    """The part of the supervisor that asks all stream threads."""

    def ask(self, question: Question, answers: Answers, timeout: float | None) -> list[CommandResult]:
        """Query all stream threads and return their responses. Raises TimeoutError after timeout (s)."""


def answered(request: StateQueryRequest[R], threads: StreamThreads, timeout: float | None) -> StateQueryResult[R]:
    """Return the answers of all partitions. Raises the errors of the request itself, and TimeoutError."""
    results = threads.ask(lambda number: AnswerRequest(number, request), Answers(), timeout)
    for failed in (result for result in results if result.error is not None):
        raise failed.kind(f"Cannot query {request.store_name}: {failed.error}")
    found: dict[int | None, QueryResult[R]] = {}
    for partition, result in (pair for one in results for pair in one.value.items()):
        if partition not in found or found[partition].is_failure or _is_better(result, found[partition]):
            found[partition] = result
    if None in found:
        return StateQueryResult(global_result=found[None])
    message = f"The partition of {request.store_name} is not on this host now"
    absent: QueryResult[R] = QueryResult.for_failure(FailureReason.NOT_PRESENT, message)
    by_partition = {partition: result for partition, result in found.items() if partition is not None}
    return StateQueryResult(
        dict.fromkeys(sorted(request.partitions or ()), absent) | dict(sorted(by_partition.items()))
    )


def _is_better(result: QueryResult[Any], other: QueryResult[Any]) -> bool:
    """Return whether a success is that of a running active task, which knows its position, and the other one is not."""
    return result.is_success and result.position is not None and other.position is None
