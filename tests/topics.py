"""Creates and deletes topics; each function returns when the broker shows the change, which it does with a delay."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.waiting import PATIENCE_SECONDS, eventually, wait_for_partitions


def create_topics(admin: AdminClient, *topics: NewTopic) -> None:
    """Create topics whose number of partitions is given, and wait for their leaders; raises KafkaException."""
    missing = {topic.topic: topic for topic in topics}

    def are_made() -> bool:
        for name, future in admin.create_topics(list(missing.values())).items():
            try:
                future.result(PATIENCE_SECONDS)
            except KafkaException as error:
                # A broker that gets no CPU for some seconds is fenced for a moment: no replica can be on it then.
                if error.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR:
                    raise
            else:
                del missing[name]
        return not missing

    eventually(are_made, lambda: f"no broker takes replicas of {', '.join(missing)}")
    for topic in topics:
        wait_for_partitions(admin, topic.topic, topic.num_partitions)


def add_partitions(admin: AdminClient, topic: str, count: int) -> None:
    """Give a topic this number of partitions, and wait for their leaders; raises KafkaException."""
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(PATIENCE_SECONDS)
    wait_for_partitions(admin, topic, count)


def delete_topics(admin: AdminClient, *names: str) -> None:
    """Delete these topics, if any, and wait until they are gone; raises KafkaException.

    One that is gone already may still be among the names that a broker has shown.
    """
    if not names:
        return
    for future in admin.delete_topics(list(names)).values():
        try:
            future.result(PATIENCE_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    eventually(lambda: set(names).isdisjoint(topic_names(admin)), f"{names} are gone")


def delete_topics_of(admin: AdminClient, prefix: str) -> None:
    """Delete all topics whose names begin like this; raises KafkaException."""
    delete_topics(admin, *(name for name in topic_names(admin) if name.startswith(prefix)))


def topic_names(admin: AdminClient) -> list[str]:
    """Return the names of all topics, including internal ones."""
    return list(admin.list_topics(timeout=PATIENCE_SECONDS).topics)
