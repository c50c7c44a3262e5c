"""Penstock takes over a Java Kafka Streams application in place, and gives it back: same results, same topics."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from penstock.statestore.buffers.time_ordered_buffers import OLD_HEADER, PRIOR_HEADER
from tests.java.conftest import MakeHandover
from tests.java.handover import Java, assert_as_one_uninterrupted_run
from tests.java.program import topology
from tests.java.versions import is_since

pytestmark = [pytest.mark.broker, pytest.mark.slow]
#: Headers of a suppression's changelog with those of the values before.
PREVIOUS = (PRIOR_HEADER, OLD_HEADER)


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


@pytest.mark.skipif(not is_since((4, 4)), reason="this version of Kafka Streams has no stores with headers")
def test_stores_with_headers_and_a_suppression_are_taken_over_and_given_back(handover: MakeHandover) -> None:
    config = {"dsl_store_format": "HEADERS"}
    application, reference = handover("moved", **config), handover("uninterrupted", **config)
    application.run_java("java")
    topics, records = application.internal_topics(), application.changelog_records()
    application.run_penstock("penstock", threads=1)
    assert application.restored == records, "every record of the changelogs that Java wrote, and none twice"
    application.run_java("java")  # on its own state; the changelogs have more records
    application.run_penstock("penstock")  # likewise
    shutil.rmtree(application.directory / "java")
    application.run_java("java")  # from changelogs that both have written
    assert application.internal_topics() == topics, "no internal topic is added or made anew"
    assert_as_one_uninterrupted_run(application, reference)
    both = reference.headers(), application.headers()
    for found in both:
        with_some = {name for name, rows in found.items() if any(headers for _, headers in rows)}
        assert with_some >= {"final", "joined", next(name for name in found if "SUPPRESS" in name)}
    assert comparable(both[1]) == comparable(both[0])


def comparable(headers: Mapping[str, Counter[Any]]) -> dict[str, Counter[Any]]:
    """Return the headers without those of a suppression's previous values, which differ with each flush of the cache.

    So do these values: see Handover.changelog.
    """
    found = {}
    for name, rows in headers.items():
        found[name] = Counter[Any]()
        for (key, pairs), count in rows.items():
            found[name][key, tuple(pair for pair in pairs if pair[0] not in PREVIOUS)] += count
    return found


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
