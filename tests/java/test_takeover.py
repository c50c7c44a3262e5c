"""Penstock takes over a Java Kafka Streams application in place, and gives it back: same results, same topics."""

from __future__ import annotations

import shutil

import pytest

from tests.java.conftest import MakeHandover
from tests.java.handover import Java, assert_as_one_uninterrupted_run
from tests.java.program import topology

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_a_java_application_is_taken_over_and_given_back(handover: MakeHandover) -> None:
    application = handover("moved")
    application.run_java("java")
    topics = application.internal_topics()
    records = application.changelog_records()
    # One thread: a task that moves to a second one, which joins a little later, would restore its in-memory stores
    # again.
    application.run_penstock("penstock", threads=1)
    assert application.restored == records, "every record of the changelogs that Java wrote, and none twice"
    application.run_java("java")  # on its own state; the changelogs have more records
    application.run_penstock("penstock")  # likewise
    shutil.rmtree(application.directory / "java")
    application.run_java("java")  # from changelogs that both have written
    assert application.internal_topics() == topics, "no internal topic is added or made anew"
    assert_as_one_uninterrupted_run(application, handover("uninterrupted"))


def test_both_describe_the_same_topology(handover: MakeHandover, java: Java) -> None:
    application = handover("described")
    text = java.describe(application.properties("java"))
    assert str(topology(application.topics).describe()) == text


@pytest.mark.parametrize(
    "config",
    [{"processing.guarantee": "exactly_once_v2"}, {"group.protocol": "streams"}],
    ids=["exactly_once_v2", "streams_protocol"],
)
@pytest.mark.long
def test_the_same_with_other_guarantees_and_protocols(handover: MakeHandover, config: dict[str, str]) -> None:
    application = handover("moved", **config)
    application.run_java("java")
    topics = application.internal_topics()
    application.run_penstock("penstock")
    assert application.restored > 0
    shutil.rmtree(application.directory / "java")
    application.run_java("java")
    assert application.internal_topics() == topics, "no internal topic is added or made anew"
    assert_as_one_uninterrupted_run(application, handover("uninterrupted", **config))
