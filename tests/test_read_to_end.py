"""Tests that read a topic to its end see what has been committed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.read_to_end import read_to_end
from tests.topics import create_topics, delete_topics
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.broker


def test_the_end_of_an_open_transaction_is_waited_for(
    bootstrap_servers: str, unique_name: Callable[[str], str]
) -> None:
    admin, topic = AdminClient({"bootstrap.servers": bootstrap_servers}), unique_name("topic")
    create_topics(admin, NewTopic(topic, 1, 1))
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"1")
    producer.flush()
    with ThreadPoolExecutor(1) as executor:
        reading = read_to_end(bootstrap_servers, topic)
        first = executor.submit(next, reading, None)
        with pytest.raises(TimeoutError):
            first.result(0.5)
        producer.commit_transaction(PATIENCE_SECONDS)
        found = first.result(PATIENCE_SECONDS)
        assert found is not None
        assert found.value() == b"1"
        assert list(reading) == []
    delete_topics(admin, topic)
