"""Java and Penstock as members of one group at the same time: the results are those of Java alone."""

from __future__ import annotations

import pytest

from tests.waiting import eventually

from .conftest import MakeHandover
from .handover import Handover, Instance, assert_as_one_uninterrupted_run

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PROTOCOLS = {"classic": {}, "streams": {"group.protocol": "streams"}}
GUARANTEES = {"at_least_once": {}, "exactly_once_v2": {"processing.guarantee": "exactly_once_v2"}}


def share(application: Handover) -> None:
    """Feed while the members of both kinds have tasks, and wait until all is processed."""
    eventually(application.shared, application.members)
    application.feed()
    application.settle()


def move(application: Handover, before: Instance, after: str) -> Instance:
    """Move the application from one instance to one of the other kind, while records flow; return the new one."""
    application.feed()
    start = application.start_penstock if after.startswith("penstock") else application.start_java
    instance = start(after)
    application.settle()
    share(application)
    application.feed()
    before.stop()
    application.settle()
    application.feed()
    application.settle()
    return instance


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_rolling_move_from_java_and_back(handover: MakeHandover, protocol: str, guarantee: str) -> None:
    config = PROTOCOLS[protocol] | GUARANTEES[guarantee]
    application = handover("moved", **config)
    java = application.start_java("java")
    topics = application.internal_topics()
    penstock = move(application, java, "penstock")
    java = move(application, penstock, "java-again")
    java.stop()
    assert application.internal_topics() == topics, "no internal topic is added or recreated"
    assert_as_one_uninterrupted_run(application, handover("uninterrupted", **config))
