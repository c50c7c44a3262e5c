"""Reads over several hosts: their merged results, also when a task moves between their responses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from penstock.supervisor.application_state import ApplicationState
from penstock.supervisor.queries.queries import Answers, Queries, Question
from penstock.supervisor.queries.store_routing import Found, QueryError, RemoteHosts, StoreQueries
from penstock.topology.context.partitioners import partition_for_key
from penstock.topology.query.position import Position
from penstock.topology.records import TopicPartition
from penstock.topology.serdes import serdes
from penstock.topology.serdes.serdes import PlainSerde, Serdes
from penstock.workers.control.messages import CommandResult, HostsChanged, ReadStore
from penstock.workers.group.streams_metadata import HostInfo
from penstock.workers.queries.store_answers import Reply, Row, StoreRead
from tests.manual_clock import ManualClock

HERE, THERE = "here:80", "there:80"


def row(task: str) -> Row:
    return Row(task.encode(), b"{}", task)


class OneThread:
    """The part of a supervisor that StoreQueries uses; its stream thread has some of the three tasks."""

    def __init__(self, *tasks: str) -> None:
        self._tasks = tasks
        self.states = SimpleNamespace(state=ApplicationState.RUNNING)
        self.queries = Queries(HERE, {}, lambda: 0)
        partitions = frozenset(TopicPartition("in", number) for number in range(3))
        self.queries.metadata.on_change(HostsChanged({HERE: partitions, THERE: partitions}, {}, {"counts": {"in": 3}}))

    def ask(self, question: Question, answers: Answers, timeout: float) -> None:
        rows = tuple(map(row, self._tasks))
        position = of(*self._tasks)
        read = StoreRead(Reply.OK, rows=rows, tasks=self._tasks, partitions=3, position=position)
        answers.results.append(CommandResult(1, read))


def of(*tasks: str) -> Position:
    """Return the position of tasks that have the first record of their partition."""
    return Position.from_map({"in": {int(task[-1]): 0 for task in tasks}})


class OtherHost(RemoteHosts):
    def __init__(self, *tasks: str) -> None:
        self._tasks = tasks

    def read(self, host: HostInfo, request: ReadStore, timeout: float) -> Found:
        return Found(list(map(row, self._tasks)), list(self._tasks), position=of(*self._tasks))

    def columns(self, host: HostInfo, store: str, timeout: float) -> NoReturn:
        raise NotImplementedError("no test asks for columns")


def read(here: tuple[str, ...], there: tuple[str, ...]) -> Found:
    supervisor: Any = OneThread(*here)
    return StoreQueries(supervisor, OtherHost(*there)).read(ReadStore(0, "counts"), 1, local=False)


def test_the_results_of_all_hosts_are_merged() -> None:
    found = read(("0_0", "0_2"), ("0_1",))
    assert [each.task for each in found.rows] == ["0_0", "0_1", "0_2"]
    assert found.complete
    assert found.position == of("0_0", "0_1", "0_2")


@pytest.mark.parametrize(("there", "why"), [(("0_1", "0_2"), "would be in the answer twice"), ((), "2 of the 3 tasks")])
def test_a_task_that_moves_between_responses_appears_exactly_once(there: tuple[str, ...], why: str) -> None:
    with pytest.raises(QueryError, match=why) as raised:
        read(("0_0", "0_2"), there)
    assert (raised.value.status, raised.value.code, raised.value.retry_after) == (503, "INCOMPLETE", 1)


class Behind(OneThread):
    """A stream thread whose task reaches the requested position at the given attempt."""

    def __init__(self, reaches_at: int) -> None:
        super().__init__("0_0")
        self.asked, self._reaches_at = 0, reaches_at

    def ask(self, question: Question, answers: Answers, timeout: float) -> None:
        self.asked += 1
        reply = Reply.OK if self.asked >= self._reaches_at else Reply.BEHIND
        read = StoreRead(reply, "not yet", tasks=("0_0",), partitions=1, position=of("0_0"))
        answers.results.append(CommandResult(1, read))


def test_rows_that_have_not_reached_a_position_are_asked_for_again_until_the_time_is_over() -> None:
    clock = ManualClock()
    supervisor: Any = Behind(3)

    queries = StoreQueries(supervisor, None, lambda: clock.now_ms / 1000, clock.sleep)
    request = ReadStore(0, "counts", at_least=of("0_0"))
    assert queries.read(request, 1, local=True, wait=1).tasks == ["0_0"]
    assert supervisor.asked == 3
    late: Any = Behind(1_000)
    queries = StoreQueries(late, None, lambda: clock.now_ms / 1000, clock.sleep)
    for wait, attempts in ((0, 1), (1, 22)):
        late.asked = 0
        with pytest.raises(QueryError, match="not yet") as raised:
            queries.read(request, 1, local=True, wait=wait)
        assert (raised.value.code, raised.value.details["position"]) == ("NOT_UP_TO_BOUND", {"in": {"0": 0}})
        assert late.asked <= attempts, "twenty times a second"


class Keyed(OneThread):
    """Three stream threads, each with one task, whose keys are text. asked: the task of each question."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str | None] = []
        self.moved: set[str] = set()

    def ask(self, question: Question, answers: Answers, timeout: float) -> None:
        self.asked.append(answers.task)
        request = question(1)
        assert isinstance(request, ReadStore)
        assert request.key is not None
        owner = f"0_{partition_for_key(request.key.encode(), 3)}"
        if answers.task in (None, owner) and answers.task not in self.moved:
            read = StoreRead(Reply.OK, rows=(row(owner),), tasks=(owner,), partitions=3, key_serde="string")
            answers.results.append(CommandResult(1, read))


def test_only_the_stream_thread_that_should_have_a_key_is_asked() -> None:
    supervisor: Any = Keyed()
    queries = StoreQueries(supervisor, None)
    keys = [f"k{number}" for number in range(20)]
    owners = [queries.read(ReadStore(0, "counts", key=key), 1, local=True).tasks[0] for key in keys]
    assert len(set(owners)) == 3
    assert supervisor.asked == [None, *owners[1:]], "the first answer shows what the keys are"


def test_all_stream_threads_are_asked_if_the_one_that_should_have_a_key_has_not() -> None:
    supervisor: Any = Keyed()
    queries = StoreQueries(supervisor, None)
    (owner,) = queries.read(ReadStore(0, "counts", key="k"), 1, local=True).tasks
    supervisor.moved.add(owner)
    assert queries.read(ReadStore(0, "counts", key="k"), 1, local=True).tasks == [owner]
    assert supervisor.asked == [None, owner, None]


@pytest.mark.parametrize("serde", [serde for serde in vars(serdes).values() if isinstance(serde, PlainSerde)], ids=repr)
def test_the_name_of_a_built_in_serde_is_enough_to_find_a_keys_task(serde: PlainSerde[Any]) -> None:
    assert Serdes.of(serde.name) is serde
