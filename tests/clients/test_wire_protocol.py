"""An application's requests on the wire, seen by a proxy, and its handling of a request that arrives late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from penstock.testing.wire import Hold, Rule, WireProxy
from tests.clients.application import Topics, wait_for_values
from tests.clients.conftest import MakeApplication, MakeTopic
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

EXACTLY_ONCE = "exactly_once_v2"


@pytest.fixture
def proxy(bootstrap_servers: str) -> Iterator[WireProxy]:
    """A proxy without rules."""
    with WireProxy(bootstrap_servers) as made:
        yield made


def versions(proxy: WireProxy, api: str) -> set[int]:
    return {version for name, version in proxy.requests if name == api}


@pytest.mark.parametrize("codec", ["none", "lz4", "gzip", "snappy", "zstd"])
def test_records_of_every_codec_are_read_by_one_client(
    topics: Topics, run: MakeApplication, make_topic: MakeTopic, proxy: WireProxy, codec: str
) -> None:
    """A second client would use another version of Fetch."""
    source, sink = make_topic("in"), make_topic("out")
    values = [f"{number} " + "x" * 1_000 for number in range(100)]
    topics.write(source, values, compression_type=codec, linger_ms=100)
    application = run("copy", source, sink, proxy.bootstrap_servers, auto_offset_reset="earliest")
    wait_for_values(application, topics, sink, values)
    assert len(versions(proxy, "Fetch")) == 1


def test_a_commit_delivered_late_does_not_commit_the_next_transaction(
    topics: Topics, run: MakeApplication, make_topic: MakeTopic, proxy: WireProxy
) -> None:
    """The next transaction never commits, because its process dies.

    Its outputs must stay invisible, or they would appear twice.
    """
    source, sink = make_topic("in"), make_topic("out")
    application = run(
        "slow", source, sink, proxy.bootstrap_servers, auto_offset_reset="earliest", processing_guarantee=EXACTLY_ONCE
    )
    topics.write(source, ["0 a"])
    wait_for_values(application, topics, sink, ["0 a"])
    proxy.set_rules([Rule(Hold(until="Produce", drop=True), api="EndTxn", nth=1)])
    topics.write(source, ["0 held"])
    wait_for_values(application, topics, sink, ["0 a", "0 held"])
    topics.write(source, ["0 of the next one", "8 slow"])
    proxy.wait_for(lambda event: "the broker answers" in event.what)
    application.kill()
    proxy.heal()
    application.start()
    eventually(lambda: "8 slow" in topics.values(sink), lambda: application.log[-4000:])
    doubled = [value for value, times in Counter(topics.values(sink)).items() if times > 1]
    assert not doubled, f"{doubled}\n" + "\n".join(map(str, proxy.events))
