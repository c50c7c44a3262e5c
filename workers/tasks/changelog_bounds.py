"""Where changelogs begin and end, asked without waiting: a broker that is away must not stop the tasks that run.

The end is the high watermark, whatever the consumer's isolation level: records of a transaction that is committed but
whose markers are still on their way belong to the state, since the input offsets of the same transaction will be
visible (KAFKA-10167).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import NamedTuple

from penstock.clients.clock import Clock
from penstock.clients.cluster.admin import Admin
from penstock.clients.cluster.offsets import EARLIEST, LATEST
from penstock.clients.errors import BrokerError, ErrorCode, RetriableError
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.errors import BrokerUnavailableError, StreamsError
from penstock.topology.records import TopicPartition

#: How long one question may take, in ms, before a warning, and another attempt.
REQUEST_TIMEOUT_MS = 10_000
#: Between a failed question and the next one, in ms.
RETRY_BACKOFF_MS = 100

#: What follows when a changelog was deleted, and what can be done.
CHANGELOG_DELETED = (
    "A restart recreates it empty, and the state built so far is lost with it. To start from the beginning, stop "
    "the application on all hosts, `penstock reset MODULE:TOPOLOGY --execute` on each, and start it again."
)


class Bounds(NamedTuple):
    """Offsets of a partition: of its first record, and behind its last one."""

    first: int
    end: int


@dataclass(slots=True)
class _Question:
    """One partition's two requests. since_ms: when it was asked first; futures is None between two tries."""

    since_ms: int
    futures: tuple[Future[int], Future[int]] | None = None
    next_try_ms: int = 0


class ChangelogBounds:
    """Asks the leaders. timeout_ms: how long no answer may come before it is an error (``task.timeout.ms``)."""

    def __init__(self, admin: Admin, clock: Clock, timeout_ms: int, log: PrefixedLogger) -> None:
        self._admin = admin
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._log = log
        self._questions: dict[TopicPartition, _Question] = {}

    def poll(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return what is known by now of these partitions; the others are being asked for. An answer is given once.

        Raises BrokerUnavailableError if a partition was requested longer than the timeout, StreamsError if its topic
        does not exist, or may not be read.
        """
        for partition in self._questions.keys() - set(wanted):
            del self._questions[partition]
        now_ms = self._clock.monotonic_ms()
        for partition in wanted:
            self._questions.setdefault(partition, _Question(now_ms))
        self._ask([p for p, q in self._questions.items() if q.futures is None and q.next_try_ms <= now_ms])
        return dict(self._answers(now_ms))

    def wait(self, seconds: float) -> bool:
        """Wait for answers, so many seconds at most. Returns False if nothing is being asked."""
        asked = [future for question in self._questions.values() for future in question.futures or ()]
        if asked:
            wait(asked, seconds)
        return bool(asked)

    def _ask(self, partitions: Collection[TopicPartition]) -> None:
        if not partitions:
            return
        firsts, ends = (
            self._admin.offsets(dict.fromkeys(partitions, at), REQUEST_TIMEOUT_MS) for at in (EARLIEST, LATEST)
        )
        for partition in partitions:
            self._questions[partition].futures = (firsts[partition], ends[partition])

    def _answers(self, now_ms: int) -> Iterator[tuple[TopicPartition, Bounds]]:
        for partition, question in list(self._questions.items()):
            if question.futures is None or not all(future.done() for future in question.futures):
                continue
            try:
                bounds = _bounds(*question.futures)
            except (RetriableError, BrokerError) as error:
                self._on_error(partition, question, error, now_ms)
                continue
            del self._questions[partition]
            yield partition, bounds

    def _on_error(self, partition: TopicPartition, question: _Question, error: Exception, now_ms: int) -> None:
        """Try again after a while, or raise what it means."""
        if not isinstance(error, RetriableError):
            raise StreamsError(f"Where the changelog {partition} begins and ends is not told: {error}.") from error
        if now_ms - question.since_ms >= self._timeout_ms:
            if isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise missing_changelog(partition, str(error)) from error
            raise BrokerUnavailableError(
                f"Where the changelog {partition} begins and ends could not be found out within {self._timeout_ms} ms "
                f"(task.timeout.ms): {error}"
            ) from error
        if question.next_try_ms == 0:
            self._log.warning("Asking for the offsets of %s: %s; trying again", partition, error)
        question.futures = None
        question.next_try_ms = now_ms + RETRY_BACKOFF_MS


def _bounds(first: Future[int], end: Future[int]) -> Bounds:
    return Bounds(first.result(), end.result())


def missing_changelog(partition: TopicPartition, reason: str) -> StreamsError:
    """Return the error for a missing changelog, with its fix."""
    return StreamsError(
        f"The changelog topic {partition.topic} was deleted, or has no partition {partition.partition}: {reason}. "
        + CHANGELOG_DELETED
    )
