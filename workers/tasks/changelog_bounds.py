"""First and end offsets of changelogs, requested without blocking: an unavailable broker must not stop running tasks.

The end is the high watermark, whatever the consumer's isolation level. Records of a committed transaction whose markers
are not written yet belong to the state, because the input offsets of that transaction will be visible (KAFKA-10167).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from penstock.clients.clock import Clock
from penstock.clients.cluster.admin import Admin
from penstock.clients.cluster.offsets import EARLIEST, LATEST
from penstock.clients.errors import BrokerError, ErrorCode, RetriableError
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.errors import BrokerUnavailableError, StreamsError
from penstock.topology.records import TopicPartition

#: Time limit of a request, in ms; then a warning is logged and the request repeated.
REQUEST_TIMEOUT_MS = 10_000
#: Delay between a failed request and the next one, in ms.
RETRY_BACKOFF_MS = 100

#: The consequence of a deleted changelog, and the fix.
CHANGELOG_DELETED = (
    "The state built so far is lost with it, and the next start is refused. To start from the beginning, stop "
    "the application on all hosts, `penstock reset MODULE:TOPOLOGY --execute` on each, and start it again."
)


class Bounds(NamedTuple):
    """Offsets of a partition: of its first record, and after its last one."""

    first: int
    end: int


@dataclass(slots=True)
class _Question:
    """A partition's two requests. since_ms: time of the first request; futures: None between two attempts."""

    since_ms: int
    futures: tuple[Future[int], Future[int]] | None = None
    next_try_ms: int = 0


class ChangelogBounds:
    """Requests offsets from leaders. timeout_ms: how long requests may fail before an error (``task.timeout.ms``)."""

    def __init__(self, admin: Admin, clock: Clock, timeout_ms: int, log: PrefixedLogger) -> None:
        self._admin = admin
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._log = log
        self._questions: dict[TopicPartition, _Question] = {}

    def poll(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return the bounds known by now, each once; request those of the other partitions.

        Raises BrokerUnavailableError if requests for a partition have failed for the timeout, StreamsError if its topic
        does not exist or may not be read.
        """
        for partition in self._questions.keys() - set(wanted):
            del self._questions[partition]
        now_ms = self._clock.monotonic_ms()
        for partition in wanted:
            self._questions.setdefault(partition, _Question(now_ms))
        self._ask([p for p, q in self._questions.items() if q.futures is None and q.next_try_ms <= now_ms])
        return dict(self._answers(now_ms))

    def first_at(self, partition: TopicPartition, time_ms: int) -> Future[int]:
        """Look up the offset of the first record at or after a time; negative if there is none."""
        return self._admin.offsets({partition: time_ms}, REQUEST_TIMEOUT_MS)[partition]

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the pending requests for these partitions, and their answers.

        Call it whenever a task gets its partitions: other threads may have written to a changelog since then.
        """
        for partition in partitions:
            self._questions.pop(partition, None)

    def wait(self, seconds: float) -> bool:
        """Wait for responses, at most this long. Returns False if no request is pending."""
        asked = [future for question in self._questions.values() for future in question.futures or ()]
        if asked:
            self._admin.wait(asked, seconds)
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
        """Schedule a retry, or raise."""
        if not isinstance(error, RetriableError):
            raise StreamsError(f"The offsets of changelog {partition} cannot be read: {error}.") from error
        if now_ms - question.since_ms >= self._timeout_ms:
            if isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise missing_changelog(partition, str(error)) from error
            raise BrokerUnavailableError(
                f"The offsets of changelog {partition} could not be read within {self._timeout_ms} ms "
                f"(task.timeout.ms): {error}"
            ) from error
        if question.next_try_ms == 0:
            self._log.warning("Requesting the offsets of %s failed: %s; trying again", partition, error)
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
