"""Answers requests of interactive queries v2: from this host in process, from all hosts over HTTP (KIP-796)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol, TypeVar

from penstock.topology.query.state_query_request import StateQueryRequest
from penstock.topology.query.state_query_result import FailureReason, QueryResult, StateQueryResult
from penstock.workers.control.messages import AnswerRequest, CommandResult
from penstock.workers.group.streams_metadata import HostInfo
from penstock.workers.queries.store_answers import PartitionResults, absent

from ..supervisor import Supervisor
from .queries import Answers, Question
from .store_routing import BOUND_POLL_SECONDS, QueryError, StoreQueries, ask_threads, no_thread, refused

R = TypeVar("R")


class StreamThreads(Protocol):
    """The part of the supervisor that asks all stream threads."""

    def ask(self, question: Question, answers: Answers, timeout: float | None) -> list[CommandResult]:
        """Query all stream threads and return their responses. Raises TimeoutError after timeout (s)."""


class QueriedHosts(Protocol):
    """Other hosts that answer requests in text form; see http/forwarding.py."""

    def query(self, host: HostInfo, request: StateQueryRequest, rows_max: int, timeout: float) -> PartitionResults:
        """Return the answers of another host's own tasks, with ShownResults. Raises QueryError."""


def answered(request: StateQueryRequest[R], threads: StreamThreads, timeout: float | None) -> StateQueryResult[R]:
    """Return the answers of all partitions. Raises the errors of the request itself, and TimeoutError."""
    results = threads.ask(lambda number: AnswerRequest(number, request), Answers(), timeout)
    for failed in (result for result in results if result.error is not None):
        raise failed.kind(f"Cannot query {request.store_name}: {failed.error}")
    found = _best(result.value for result in results)
    if None in found:
        return StateQueryResult(global_result=found[None])
    by_partition = {partition: result for partition, result in found.items() if partition is not None}
    missing = dict.fromkeys(sorted(request.partitions or ()), absent(request.store_name))
    return StateQueryResult(missing | dict(sorted(by_partition.items())))


def _best(parts: Iterable[PartitionResults]) -> dict[int | None, QueryResult]:
    """Return the best answer of each partition: that of a running active task, if there is one."""
    found: dict[int | None, QueryResult] = {}
    for partition, result in (pair for part in parts for pair in part.items()):
        if partition not in found or _rank(result) > _rank(found[partition]):
            found[partition] = result
    return found


def _rank(result: QueryResult) -> int:
    if result.is_failure:
        return 0 if result.failure_reason is FailureReason.NOT_PRESENT else 1
    return 2 if result.position is None else 3  # only a running active task knows its position


class HostedQueries:
    """Answers requests in text form, with other hosts. Any thread may use it.

    hosts: None without other hosts. clock, pause: seconds, and the function that waits for some.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        queries: StoreQueries,
        hosts: QueriedHosts | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._supervisor = supervisor
        self._queries = queries
        self._hosts = hosts
        self._clock = clock
        self._pause = pause

    def answer(
        self, request: StateQueryRequest, rows_max: int, timeout: float, local: bool, wait: float = 0
    ) -> PartitionResults:
        """Return the answers of all partitions, with ShownResults; local: of this host only. Raises QueryError.

        wait: how long to ask again while rows have not reached the request's bound, in seconds. A partition that cannot
        be read fails with its reason.
        """
        deadline = self._clock() + wait
        while True:
            found = self._answers(request, rows_max, timeout, local)
            behind = any(result.failure_reason is FailureReason.NOT_UP_TO_BOUND for result in found.values())
            if not behind or self._clock() >= deadline:
                return found
            self._pause(BOUND_POLL_SECONDS)

    def _answers(self, request: StateQueryRequest, rows_max: int, timeout: float, local: bool) -> PartitionResults:
        self._queries.check_running()
        results = ask_threads(
            self._supervisor, lambda number: AnswerRequest(number, request, rows_max), Answers(), timeout
        )
        if not results:
            raise no_thread()
        for failed in (result for result in results if result.error is not None):
            raise refused(failed)
        found = _best(result.value for result in results)
        errors: list[str] = []
        for host in () if local or None in found else self._queries.hosts_with(request.store_name):
            missing = [
                partition
                for partition, result in found.items()
                if partition is not None and _rank(result) < 3 and not _is_final(result)
            ]
            if not missing:
                break
            assert self._hosts is not None
            try:
                part = self._hosts.query(host, request.with_partitions(missing), rows_max, timeout)
            except QueryError as error:
                errors.append(error.message)
                continue
            found = _best((found, part))
        return {partition: _explained(result, errors) for partition, result in found.items()}


def _is_final(result: QueryResult) -> bool:
    """Return whether a failure is that of all hosts."""
    return result.failure_reason in (FailureReason.UNKNOWN_QUERY_TYPE, FailureReason.DOES_NOT_EXIST)


def _explained(result: QueryResult, errors: list[str]) -> QueryResult:
    """Return an answer that says why other hosts were not asked, if none of them has the partition."""
    if not errors or result.failure_reason is not FailureReason.NOT_PRESENT:
        return result
    return replace(result, failure_message="; ".join([result.failure_message, *errors]))
