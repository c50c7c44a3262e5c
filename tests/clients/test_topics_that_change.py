"""Topics that are deleted and made again under a running application."""

from __future__ import annotations

import pytest

from tests.clients.application import Topics, wait_for_values
from tests.clients.conftest import MakeApplication, MakeTopic

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_a_sink_that_is_recreated_with_fewer_partitions_is_written_to(
    topics: Topics, run: MakeApplication, make_topic: MakeTopic
) -> None:
    source, sink = make_topic("in"), make_topic("out", partitions=4)
    application = run("copy", source, sink, topics.bootstrap_servers)
    before, after = ([f"{when} {number}" for number in range(40)] for when in ("before", "after"))
    topics.write(source, before)
    wait_for_values(application, topics, sink, before, 60)
    topics.delete(sink)
    topics.create(sink, partitions=2)
    topics.write(source, after)
    wait_for_values(application, topics, sink, after, 60, repeated=True)


def test_a_source_that_is_recreated_with_a_longer_log_is_read_from_its_beginning(
    topics: Topics, run: MakeApplication, make_topic: MakeTopic
) -> None:
    """The position in the old log is an offset of the new one, but for another record."""
    source, sink = make_topic("in"), make_topic("out")
    old = [*(f"0 old {number}" for number in range(99)), "6 slow"]
    application = run("slow", source, sink, topics.bootstrap_servers, auto_offset_reset="earliest")
    topics.write(source, old)
    application.wait_until_begun("6 slow")
    topics.delete(source)
    topics.create(source)
    new = [f"0 new {number}" for number in range(300)]
    topics.write(source, new)
    wait_for_values(application, topics, sink, [*old, *new], 60)
