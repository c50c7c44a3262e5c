"""Time that a record takes in user code is not the brokers' time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.testing.wire import WireProxy
from tests.clients.application import Topics, wait_for_values
from tests.clients.conftest import MakeApplication, MakeTopic
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_records_are_not_given_up_while_user_code_works_on_the_next_one(
    topics: Topics, run: MakeApplication, make_topic: MakeTopic
) -> None:
    """It takes longer than delivery.timeout.ms: nothing is sent meanwhile, and that is not the broker's fault."""
    source, sink = make_topic("in"), make_topic("out")
    values = [*(f"0 instant {number}" for number in range(6)), "5 slow"]
    topics.write(source, values)
    application = run(
        "slow",
        source,
        sink,
        topics.bootstrap_servers,
        auto_offset_reset="earliest",
        linger_ms=1_000,  # those before it wait in the client when it begins
        producer_delivery_timeout_ms=3_000,
        request_timeout_ms=1_500,
    )
    wait_for_values(application, topics, sink, values, 60)


def test_a_topic_that_is_back_is_not_taken_for_missing(
    topics: Topics, run: MakeApplication, make_topic: MakeTopic, unique_name: Callable[[str], str]
) -> None:
    """It was away for a moment, of which the application has seen the beginning only: user code was at work."""
    source, sink = make_topic("in"), topics.create(unique_name("out"))
    with WireProxy(topics.bootstrap_servers) as proxy:
        application = run(
            "slow",
            source,
            sink,
            proxy.bootstrap_servers,
            auto_offset_reset="earliest",
            commit_interval_ms=60_000,  # a commit would wait for the record that cannot be written
            producer_topic_metadata_propagation_max_ms=12_000,
        )
        topics.write(source, ["0 first"])
        wait_for_values(application, topics, sink, ["0 first"], 60)
        topics.delete(sink)
        asked = questions_for_leaders(proxy)
        topics.write(source, ["0 written while it is away"])
        eventually(lambda: questions_for_leaders(proxy) >= asked + 2, "the topic is missed")
        topics.write(source, ["20 slow"])
        application.wait_until_begun("20 slow")
        topics.create(sink)
        wait_for_values(application, topics, sink, ["0 written while it is away", "20 slow"], 60)


def questions_for_leaders(proxy: WireProxy) -> int:
    return sum(count for (api, _), count in proxy.requests.items() if api == "Metadata")
