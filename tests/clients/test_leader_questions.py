"""Concurrent requests to leaders, over a cluster whose responses the test holds back."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from penstock.clients.cluster.leader_questions import LeaderQuestions
from penstock.clients.cluster.offsets import LATEST, offsets_at
from penstock.clients.errors import ErrorCode, UnreachableError
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.retry_log import RetryLog
from penstock.topology.records import TopicPartition

PARTITION = TopicPartition("in", 0)


class HeldCluster:
    """Has one topic with one leader. ListOffsets returns the responses that the test provides."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.retries = RetryLog(PrefixedLogger("penstock.test", ""))

    async def metadata(self, topics: Any, timeout_ms: float) -> Any:
        leads = SimpleNamespace(
            partition_index=0, leader_id=1, leader_epoch=7, replica_nodes=[1], isr_nodes=[1], error_code=0
        )
        topic = SimpleNamespace(name="in", error_code=0, topic_id=bytes(16), partitions=[leads])
        return SimpleNamespace(topics=[topic], brokers=[])

    async def ask_broker(self, node: int, request: Any, timeout_ms: float, purpose: str) -> Any:
        self.asked += 1
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        code, offset = answer
        partition = SimpleNamespace(partition_index=0, error_code=code, offset=offset)
        return SimpleNamespace(topics=[SimpleNamespace(name="in", partitions=[partition])])


async def asked(cluster: HeldCluster, number: int) -> None:
    while cluster.asked < number:
        await asyncio.sleep(0)


def test_a_leader_that_another_request_found_unreachable_is_looked_up_again() -> None:
    async def ask_twice() -> list[int]:
        cluster: Any = HeldCluster()
        questions = LeaderQuestions(cluster, 1)
        futures: list[Future[int]] = [Future() for _ in range(3)]

        def ask(future: Future[int]) -> asyncio.Task[None]:
            question = offsets_at({PARTITION: LATEST}, committed_only=False)
            return asyncio.create_task(questions.ask(question, {PARTITION: future}, 10_000))

        known = ask(futures[0])
        await asked(cluster, 1)
        cluster.answers.put_nowait((0, 3))
        await known
        first = ask(futures[1])
        await asked(cluster, 2)
        second = ask(futures[2])  # will use the known leader just when the first request removes it
        cluster.answers.put_nowait((ErrorCode.NOT_LEADER_OR_FOLLOWER, -1))
        for _ in range(2):
            cluster.answers.put_nowait((0, 5))
        await asyncio.gather(first, second)
        return [future.result() for future in futures]

    assert asyncio.run(ask_twice()) == [3, 5, 5]


def test_an_unreachable_leader_is_retried() -> None:
    async def ask() -> tuple[int, int]:
        cluster: Any = HeldCluster()
        for answer in (UnreachableError("connection refused"), UnreachableError("connection refused"), (0, 5)):
            cluster.answers.put_nowait(answer)
        future: Future[int] = Future()
        question = offsets_at({PARTITION: LATEST}, committed_only=False)
        await LeaderQuestions(cluster, 1).ask(question, {PARTITION: future}, 10_000)
        return cluster.asked, future.result()

    assert asyncio.run(ask()) == (3, 5)
