"""Time that a record takes in user code is not the brokers' time."""

from __future__ import annotations

import pytest

from tests.clients.application import Topics, wait_for_values
from tests.clients.conftest import MakeApplication, MakeTopic

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="One Kafka client: deadlines count time in which nobody served the client",
)
def test_records_are_not_given_up_while_user_code_works_on_the_next_one(
    topics: Topics, run: MakeApplication, make_topic: MakeTopic
) -> None:
    """Each takes longer than delivery.timeout.ms: nothing is sent meanwhile, and that is not the broker's fault."""
    source, sink = make_topic("in"), make_topic("out")
    values = [f"3 record {number}" for number in range(5)]
    topics.write(source, values)
    application = run(
        "slow",
        source,
        sink,
        topics.bootstrap_servers,
        producer_delivery_timeout_ms=2_000,
        request_timeout_ms=1_500,
    )
    wait_for_values(application, topics, sink, values, 60)


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="One Kafka client: the time in which a topic is unknown runs while nobody asks",
)
def test_a_topic_that_is_back_is_not_taken_for_missing(
    topics: Topics, run: MakeApplication, make_topic: MakeTopic
) -> None:
    """It was away for a moment, of which the application has seen the beginning only: user code was at work."""
    source, sink = make_topic("in"), make_topic("out")
    application = run("slow", source, sink, topics.bootstrap_servers, producer_topic_metadata_propagation_max_ms=5_000)
    topics.write(source, ["0 first"])
    wait_for_values(application, topics, sink, ["0 first"], 60)
    topics.delete(sink)
    topics.write(source, ["0 written while it is away"])
    application.wait_until_begun("0 written while it is away")
    topics.write(source, ["8 slow"])
    application.wait_until_begun("8 slow")
    topics.create(sink)
    wait_for_values(application, topics, sink, ["0 written while it is away", "8 slow"], 60)
