"""State and offsets with real processes: the cleaner, and commits that the user's code requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker_stage import PARTITIONS, Counting, produce, shared_by
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from held_commits import NEVER_MS
from stage import LogLines

from penstock import KafkaStreams, Processor, ProcessorContext, Record, Serdes, StreamsBuilder
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker

#: Long enough that a task moving between two processes does not count as gone.
CLEANUP_DELAY_MS = 1_500


@pytest.fixture
def counting(bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path) -> Counting:
    made = Counting(
        bootstrap_servers, application_id, make_topic("in", PARTITIONS), make_topic("out", PARTITIONS), tmp_path / "one"
    )
    made.config["state.cleanup.delay.ms"] = CLEANUP_DELAY_MS
    return made


def on_disk(counting: Counting, state_dir: Path) -> set[str]:
    """Return the tasks that have a directory."""
    return {path.name for path in (state_dir / str(counting.config["application.id"])).glob("0_*")}


def tasks_of(streams: KafkaStreams) -> set[str]:
    return {task.task_id for thread in streams.status() for task in thread.tasks if task.state == "RUNNING"}


@pytest.mark.slow
def test_the_state_of_tasks_that_moved_to_another_host_is_deleted(
    counting: Counting, tmp_path: Path, log: LogLines
) -> None:
    counting.produce(3)
    with counting.streams(1) as one:
        one.start()
        eventually(lambda: shared_by(one, 1), "one host has all tasks")
        assert len(on_disk(counting, tmp_path / "one")) == PARTITIONS
        other = counting.config | {"state.dir": str(tmp_path / "two")}
        with KafkaStreams(counting.topology(), other) as two:
            two.start()
            eventually(lambda: shared_by(one, 1, PARTITIONS // 2), "the other host has half of them")
            eventually(lambda: on_disk(counting, tmp_path / "one") == tasks_of(one), "what has moved is deleted")
            assert "cleanup delay is 1500ms" in log.wait_for("Deleting obsolete state directory")
            assert len(tasks_of(one)) == PARTITIONS // 2
            assert on_disk(counting, tmp_path / "two") >= tasks_of(two)
            counting.produce(1)
            counting.wait_for_all_counts()


def committing(source: str) -> Any:
    """Request a commit with each record whose value is "commit"."""

    class CommitsOnRequest(Processor[str, str, None, None]):
        def init(self, context: ProcessorContext) -> None:
            self.context = context

        def process(self, record: Record[str, str]) -> None:
            if record.value == "commit":
                self.context.commit()

    builder = StreamsBuilder()
    builder.stream(source, key_serde=Serdes.string(), value_serde=Serdes.string()).process(CommitsOnRequest)
    return builder.build()


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_a_requested_commit_happens_at_once(counting: Counting, admin: AdminClient, guarantee: str) -> None:
    group = str(counting.config["application.id"])
    config = counting.config | {"processing.guarantee": guarantee, "commit.interval.ms": NEVER_MS}
    config["transaction.timeout.ms"] = NEVER_MS + 1

    def committed() -> int:
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(counting.source, n) for n in range(PARTITIONS)])
        found = admin.list_consumer_group_offsets([asked])[group].result(PATIENCE_SECONDS).topic_partitions
        return sum(max(partition.offset, 0) for partition in found or ())

    with KafkaStreams(committing(counting.source), config) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 1), "the thread has the tasks")
        counting.produce(1)
        processed = len(counting.expected)
        eventually(lambda: streams.status()[0].records_processed == processed, "all is processed")
        assert committed() == 0, "nobody has asked"
        produce(counting.bootstrap_servers, counting.source, "commit")
        eventually(lambda: committed() > 0, "it is committed")
