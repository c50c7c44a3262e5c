"""Answers of the brokers about partitions, requested once for all tasks that start together.

Otherwise each of a hundred tasks would wait for its own response, which a pending fetch or a busy broker may delay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

from penstock.clients.log_context import PrefixedLogger
from penstock.topology.errors import BrokerUnavailableError
from penstock.topology.records import TopicPartition

A = TypeVar("A")


class AskedTogether(Generic[A]):
    """ask(partitions): requests the answers; may leave out partitions that only ``together`` names.

    what: the answers' name in log lines.
    """

    def __init__(
        self, what: str, ask: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, A]], log: PrefixedLogger
    ) -> None:
        self._what = what
        self._ask = ask
        self._log = log
        self._expected: frozenset[TopicPartition] = frozenset()
        self._answers: Mapping[TopicPartition, A] = {}

    @contextmanager
    def together(self, partitions: Collection[TopicPartition]) -> Iterator[None]:
        """Within this context, the first call of ``of`` for one of these partitions asks for all of them."""
        self._expected = frozenset(partitions)
        try:
            yield
        finally:
            self._expected, self._answers = frozenset(), {}

    def of(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, A]:
        """Return the answer for each partition; raises what ask raises."""
        if not self._expected.isdisjoint(partitions) and not self._expected <= set(partitions):
            self._ask_for_all()
        if all(partition in self._answers for partition in partitions):
            return {partition: self._answers[partition] for partition in partitions}
        return dict(self._ask(partitions))

    def _ask_for_all(self) -> None:
        expected, self._expected = sorted(self._expected), frozenset()
        try:
            self._answers = self._ask(expected)
        except BrokerUnavailableError as error:  # may concern one partition only: tasks of the others need not wait
            self._log.debug("%s Requesting the %s of each task separately", error, self._what)
