"""Time that a record takes in user code does not count against the brokers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.testing.wire import WireProxy
from tests.clients.application import Topics, wait_for_values
from tests.clients.conftest import MakeApplication, MakeTopic
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_records_do_not_expire_while_user_code_processes_the_next_one(
    topics: Topics, run: MakeApplication, make_topic: MakeTopic
) -> None:
    """It takes longer than delivery.timeout.ms. Nothing is sent meanwhile, which is not the broker's fault."""
    source, sink = make_topic("in"), make_topic("out")
    values = [*(f"0 instant {number}" for number in range(6)), "5 slow"]
    topics.write(source, values)
    application = run(
        "slow",
        source,
        sink,
        topics.bootstrap_servers,
        auto_offset_reset="earliest",
        linger_ms=1_000,  # those before it are buffered in the client when it begins
        producer_delivery_timeout_ms=3_000,
        request_timeout_ms=1_500,
    )
    wait_for_values(application, topics, sink, values)


def test_a_topic_that_exists_again_is_not_reported_as_missing(
    topics: Topics, run: MakeApplication, make_topic: MakeTopic, unique_name: Callable[[str], str]
) -> None:
    """It was missing for a moment, and the application has seen only the beginning of that: user code was running."""
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
        wait_for_values(application, topics, sink, ["0 first"])
        topics.delete(sink)
        asked = questions_for_leaders(proxy)
        topics.write(source, ["0 written while it is away"])
        eventually(lambda: questions_for_leaders(proxy) >= asked + 2, "the topic is missed")
        topics.write(source, ["20 slow"])
        application.wait_until_begun("20 slow")
        topics.create(sink)
        wait_for_values(application, topics, sink, ["0 written while it is away", "20 slow"])


def questions_for_leaders(proxy: WireProxy) -> int:
    return sum(count for (api, _), count in proxy.requests.items() if api == "Metadata")
