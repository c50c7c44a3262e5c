"""Reads over several hosts: their merged results, also when a task moves between their responses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.supervisor.application_state import ApplicationState
from penstock.supervisor.queries.queries import Answers, Queries, Question
from penstock.supervisor.queries.store_routing import Found, QueryError, RemoteHosts, StoreQueries
from penstock.topology.records import TopicPartition
from penstock.workers.control.messages import CommandResult, HostsChanged, ReadStore
from penstock.workers.group.streams_metadata import HostInfo
from penstock.workers.queries.store_answers import Reply, Row, StoreRead

HERE, THERE = "here:80", "there:80"


def row(task: str) -> Row:
    return Row(task.encode(), b"{}", task)


class OneThread:
    """The part of a supervisor that StoreQueries uses; its stream thread has some of the three tasks."""

    def __init__(self, *tasks: str) -> None:
        self._tasks = tasks
        self.states = SimpleNamespace(state=ApplicationState.RUNNING)
        self.queries = Queries(HERE)
        partitions = frozenset(TopicPartition("in", number) for number in range(3))
        self.queries.metadata.on_change(HostsChanged({HERE: partitions, THERE: partitions}, {}, {"counts": {"in": 3}}))

    def ask(self, question: Question, answers: Answers, timeout: float) -> None:
        rows = tuple(map(row, self._tasks))
        answers.results.append(CommandResult(1, StoreRead(Reply.OK, rows=rows, tasks=self._tasks, partitions=3)))


class OtherHost(RemoteHosts):
    def __init__(self, *tasks: str) -> None:
        self._tasks = tasks

    def read(self, host: HostInfo, request: ReadStore, timeout: float) -> Found:
        return Found(list(map(row, self._tasks)), list(self._tasks))


def read(here: tuple[str, ...], there: tuple[str, ...]) -> Found:
    supervisor: Any = OneThread(*here)
    return StoreQueries(supervisor, HERE, OtherHost(*there)).read(ReadStore(0, "counts"), 1, local=False)


def test_the_results_of_all_hosts_are_merged() -> None:
    found = read(("0_0", "0_2"), ("0_1",))
    assert [each.task for each in found.rows] == ["0_0", "0_1", "0_2"]
    assert found.complete


@pytest.mark.parametrize(("there", "why"), [(("0_1", "0_2"), "would be in the answer twice"), ((), "2 of the 3 tasks")])
def test_a_task_that_moves_between_responses_appears_exactly_once(there: tuple[str, ...], why: str) -> None:
    with pytest.raises(QueryError, match=why) as raised:
        read(("0_0", "0_2"), there)
    assert (raised.value.status, raised.value.code, raised.value.retry_after) == (503, "INCOMPLETE", 1)
