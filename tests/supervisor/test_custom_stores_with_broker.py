"""Custom stores in real processes on a real broker, with exactly-once: killed, restored, handed over, queried."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from broker_stage import kill_one, read_now, shared_by
from confluent_kafka import Producer
from typing_extensions import override

from penstock import (
    KafkaStreams,
    LagInfo,
    StandbyUpdateListener,
    StateStoreTypeError,
    TopicPartition,
)
from penstock.workers.restore.listeners import StateRestoreListener, SuspendReason
from tests.custom_stores import LastingTally, Tally, tally_builder, tallying
from tests.read_to_end import read_to_end
from tests.waiting import LONGEST_SESSION_MS, PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]
PARTITIONS = 4
WORDS = [f"word-{number}" for number in range(20)]
KILLS = 3


class Tallying:
    """The application, and the words that were written to its source."""

    def __init__(self, bootstrap_servers: str, application_id: str, topics: tuple[str, str], state_dir: Path) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.source, self.sink = topics
        self.state_dir = state_dir
        self.expected: Counter[str] = Counter()
        self.config = {
            "application.id": application_id,
            "bootstrap.servers": bootstrap_servers,
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": 100,
            "session.timeout.ms": LONGEST_SESSION_MS,
            "heartbeat.interval.ms": 300,
        }

    def streams(self, kind: type[Tally], host: str = "a", **config: Any) -> KafkaStreams:
        topology = tallying(self.source, self.sink, tally_builder(kind))
        given = {name.replace("_", "."): value for name, value in config.items()}
        return KafkaStreams(topology, {**self.config, "state.dir": str(self.state_dir / host), **given})

    def produce(self, rounds: int) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap_servers})
        for word in WORDS * rounds:
            producer.produce(self.source, word, word)
            self.expected[word] += 1
        assert producer.flush(PATIENCE_SECONDS) == 0

    def wait_for_all_counts(self) -> None:
        eventually(lambda: self.counted() == self.expected, "each word is counted once")

    def counted(self) -> dict[str, int]:
        """Return the last count of each word in the sink."""
        return {
            (message.key() or b"").decode(): int(message.value() or b"0")
            for message in read_to_end(self.bootstrap_servers, self.sink)
        }

    def all_counts(self) -> list[tuple[str, int]]:
        """Return all records of the sink, sorted."""
        return sorted(
            ((message.key() or b"").decode(), int(message.value() or b"0"))
            for message in read_to_end(self.bootstrap_servers, self.sink)
        )


@pytest.fixture
def application(
    bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path
) -> Tallying:
    topics = make_topic("in", PARTITIONS), make_topic("out", PARTITIONS)
    return Tallying(bootstrap_servers, application_id, topics, tmp_path)


def total(streams: KafkaStreams, word: str) -> int | None:
    tally: Any = streams.store("tally", combine=sum)
    return cast("int | None", read_now(lambda: tally.count(word)))


@pytest.mark.parametrize("kind", [Tally, LastingTally])
def test_killed_processes_neither_lose_nor_repeat_a_count(application: Tallying, kind: type[Tally]) -> None:
    choice = random.Random(7)
    with application.streams(kind, num_stream_threads=2) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 2, PARTITIONS), "two threads share the tasks")
        for _ in range(KILLS):
            application.produce(5)
            kill_one(streams, choice)
            application.produce(5)
            eventually(lambda: shared_by(streams, 2, PARTITIONS), "the process is replaced")
        application.wait_for_all_counts()
        eventually(lambda: total(streams, WORDS[3]) == KILLS * 10, "the store can be read")
        everything: Any = streams.store("tally")
        with pytest.raises(StateStoreTypeError, match="count returned a result for each of 4 tasks"):
            everything.count(WORDS[3])
        assert sorted(everything.words()) == sorted(WORDS)
        one: Any = streams.store("tally", partition=0)
        assert set(one.words()) < set(WORDS)
        assert one.count(one.words()[0]) == KILLS * 10
    assert application.all_counts() == sorted((word, n) for word in WORDS for n in range(1, KILLS * 10 + 1))


def lags(streams: KafkaStreams) -> dict[int, LagInfo]:
    return streams.all_local_store_partition_lags().get("tally", {})


class Progress(StateRestoreListener, StandbyUpdateListener):
    """Notes how many records were restored, and which standby tasks became active."""

    def __init__(self) -> None:
        self.restored: Counter[int] = Counter()
        self.followed: Counter[int] = Counter()
        self.promoted: set[int] = set()

    @override
    def on_restore_end(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        self.restored[partition.partition] += total_restored

    @override
    def on_batch_loaded(self, partition: TopicPartition, *rest: Any) -> None:
        self.followed[partition.partition] += rest[3]

    @override
    def on_update_suspended(
        self, partition: TopicPartition, store: str, store_offset: int, end_offset: int | None, reason: SuspendReason
    ) -> None:
        if reason is SuspendReason.PROMOTED:
            self.promoted.add(partition.partition)


@pytest.mark.parametrize("kind", [Tally, LastingTally])
def test_a_standby_takes_over_without_a_restore(application: Tallying, kind: type[Tally]) -> None:
    progress = Progress()
    first = application.streams(kind, "a", num_standby_replicas=1)
    second = application.streams(kind, "b", num_standby_replicas=1)
    second.set_standby_update_listener(progress)
    second.set_global_state_restore_listener(progress)
    with second:
        with first:
            first.start()
            second.start()
            eventually(
                lambda: all(shared_by(streams, 1, PARTITIONS // 2) for streams in (first, second)), "both have tasks"
            )
            application.produce(10)
            application.wait_for_all_counts()
            (thread,) = first.status()
            mine = {int(task.task_id[2:]) for task in thread.tasks if task.kind == "active"}
            # Each record of the source makes one of the changelog, in the same partition.
            sent = Counter(
                message.partition() for message in read_to_end(application.bootstrap_servers, application.source)
            )
            eventually(lambda: all(progress.followed[number] == sent[number] for number in mine), "it follows")
            eventually(lambda: not any(lag.offset_lag for lag in lags(second).values()), "it has read the markers, too")
            assert lags(second).keys() == set(range(PARTITIONS))
            assert all(lags(second)[number].current_offset >= sent[number] for number in mine)
            first.close(leave_group=True)
        eventually(lambda: shared_by(second, 1, PARTITIONS), "the other host has all tasks")
        assert progress.promoted >= mine
        application.produce(10)
        application.wait_for_all_counts()
        assert not any(progress.restored[number] for number in mine)
    assert application.all_counts() == sorted((word, n) for word in WORDS for n in range(1, 21))
