"""Requests that only a partition's leader answers; each leader gets one request for all its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.topology.records import TopicPartition

from ..errors import BrokerError, ErrorCode, RetriableError, UnreachableError, broker_error
from ..protocol.schema import Request
from ..retry_log import RetryLog
from .brokers import Leader
from .cluster import QUESTIONS, Cluster
from .retrying import TRY_MS, time_left, to_tell, try_ms
from .topics import described


class LeaderResponse(NamedTuple):
    """A leader's response for one partition; value is undefined if code is an error."""

    partition: TopicPartition
    code: int
    value: int


@dataclass(frozen=True, slots=True)
class LeaderQuestion:
    """request: builds a request from partitions with their leader epochs; answers: parses a response.

    name: of its retries. purpose: see Cluster.send.
    """

    name: str

    request: Callable[[Mapping[TopicPartition, int]], Request]
    responses: Callable[[Any], Iterable[LeaderResponse]]
    purpose: str = QUESTIONS


@dataclass(slots=True)
class _Inquiry:
    """One question. left: the partitions without a response; errors: their latest errors, if there were any."""

    question: LeaderQuestion
    left: dict[TopicPartition, Future[int]]
    deadline: float
    retries: RetryLog
    errors: dict[TopicPartition, Exception] = field(default_factory=dict)

    def complete(self, partition: TopicPartition, value: int) -> None:
        self.left.pop(partition).set_result(value)
        if self.retries:
            self.retries.succeeded(self._name(partition), asyncio.get_running_loop().time() * 1000)

    def _name(self, partition: TopicPartition) -> str:
        return f"{self.question.name} of {partition}"

    def fail(self, partition: TopicPartition, error: Exception, limit_ms: float = TRY_MS) -> None:
        """Record an error; after a retriable one the partition is requested again. limit_ms: of this attempt."""
        self.errors[partition] = to_tell(self.errors.get(partition), error, limit_ms)
        if isinstance(error, RetriableError):
            now_ms = asyncio.get_running_loop().time() * 1000
            self.retries.failed(self._name(partition), str(self.errors[partition]), now_ms)
        else:
            self.retries.drop(self._name(partition))
            self.left.pop(partition).set_exception(error)


class LeaderQuestions:
    """Sends requests to the leaders of one cluster. Caches leaders until a request to one fails."""

    def __init__(self, cluster: Cluster, retry_backoff_ms: int) -> None:
        self._cluster = cluster
        self._pause_ms = retry_backoff_ms
        self._leaders: dict[TopicPartition, Leader] = {}

    async def ask(self, question: LeaderQuestion, asked: Mapping[TopicPartition, Future[int]], timeout_ms: int) -> None:
        """Complete each future when its response arrives, or with a BrokerError or UnreachableError.

        Retriable errors (ErrorCode.retriable) are retried until the timeout. A missing topic is one of them, since a
        broker may not know a new topic yet.
        """
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        inquiry = _Inquiry(question, dict(asked), deadline, self._cluster.retries)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._ask_once(inquiry)
                while inquiry.left and time_left(deadline, self._pause_ms):
                    await asyncio.sleep(self._pause_ms / 1000)
                    await self._ask_once(inquiry)
        silence = UnreachableError(f"no response within {timeout_ms} ms")
        for partition, future in inquiry.left.items():
            self._leaders.pop(partition, None)
            future.set_exception(inquiry.errors.get(partition, silence))

    async def _ask_once(self, inquiry: _Inquiry) -> None:
        await self._look_up(inquiry, [partition for partition in inquiry.left if partition not in self._leaders])
        by_node: dict[int, dict[TopicPartition, int]] = {}  # epochs; concurrent questions may evict leaders too
        for partition in inquiry.left:
            leader = self._leaders.get(partition)
            if leader is not None:
                by_node.setdefault(leader.node, {})[partition] = leader.epoch
        await asyncio.gather(*(self._ask_leader(inquiry, node, epochs) for node, epochs in by_node.items()))

    async def _look_up(self, inquiry: _Inquiry, partitions: Collection[TopicPartition]) -> None:
        """Look up the leaders of these partitions, and record an error for those without one."""
        topics = {partition.topic for partition in partitions}
        if not topics:
            return
        limit_ms = try_ms(inquiry.deadline)
        try:
            response = await self._cluster.metadata(topics, timeout_ms=limit_ms)
        except (RetriableError, BrokerError) as error:
            for partition in partitions:
                inquiry.fail(partition, error, limit_ms)
            return
        refused = {topic.name: topic.error_code for topic in response.topics if topic.error_code}
        existing = described(response, None).topics
        for partition in partitions:
            topic = existing.get(partition.topic)
            found = None if topic is None else topic.partitions.get(partition.partition)
            if found is None:
                code = refused.get(partition.topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                inquiry.fail(partition, broker_error(code))
            elif found.leader.node < 0:
                inquiry.fail(partition, broker_error(ErrorCode.LEADER_NOT_AVAILABLE))
            else:
                self._leaders[partition] = found.leader

    async def _ask_leader(self, inquiry: _Inquiry, node: int, epochs: Mapping[TopicPartition, int]) -> None:
        question, limit_ms = inquiry.question, try_ms(inquiry.deadline)
        request = question.request(epochs)
        try:
            response = await self._cluster.ask_broker(node, request, limit_ms, question.purpose)
        except (RetriableError, BrokerError) as error:
            responses = {}
            unanswered: Exception = error
        else:
            responses = {each.partition: each for each in question.responses(response)}
            unanswered = UnreachableError(f"broker {node} responded without the partition")
        for partition in epochs:
            found = responses.get(partition)
            if found is not None and not found.code:
                inquiry.complete(partition, found.value)
                continue
            self._leaders.pop(partition, None)
            inquiry.fail(partition, unanswered if found is None else broker_error(found.code), limit_ms)
